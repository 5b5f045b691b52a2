"""How the figures of a tuning show trials: a mark for each state, the colours of scores, the legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from grpolab.report.figures.panels import handle
from grpolab.report.style import NOTE_COLOUR, QUIET, arm_styles
from grpolab.report.tuning.trials import COMPLETE, DIVERGED, PRUNED, Key, Tuning

BEST, COMMON, COMMON_PAIR = "best", "common value", "common values"
COLOURS = "cividis"  # scores; it reads the same in grey
# Where a trial without a score is marked: just above the lower end of the panel, arms that share it above each other.
_FLOOR, _ROW = 0.035, 0.04
_MARKS: dict[str, dict[str, Any]] = {
    COMPLETE: {"marker": "o", "markersize": 3.2},
    PRUNED: {"marker": "v", "markersize": 4, "markerfacecolor": "none", "markeredgewidth": 0.8},
    DIVERGED: {"marker": "x", "markersize": 4, "markeredgewidth": 1.0, "color": NOTE_COLOUR},
    BEST: {"marker": "*", "markersize": 9, "markeredgecolor": "black", "markeredgewidth": 0.6},
    COMMON_PAIR: {"marker": "P", "markersize": 6, "markeredgecolor": "black", "markeredgewidth": 0.6},
}
_COMMON_LINE: dict[str, Any] = {"color": QUIET, "linestyle": (0, (1, 1.5)), "linewidth": 1.0}


def mark(panel: Axes, x: ArrayLike, y: ArrayLike, state: str, colour: str, **options: Any) -> None:
    """Trials of one state at their places."""
    look = {"color": colour, "linestyle": "none", "zorder": 3, **_MARKS[state], **options}
    panel.plot(x, y, **look)


def mark_unscored(panel: Axes, x: Any, states: pd.Series, colour: str, row: int = 0) -> None:
    """Pruned and diverged trials along the lower end of a panel: they have a place on its x axis, and no score."""
    panel.margins(y=max(panel.get_ymargin(), _FLOOR + 1.6 * (row + 1) * _ROW))
    for state in (PRUNED, DIVERGED):
        here = np.asarray(x)[(states == state).to_numpy()]
        mark(panel, here, np.full(len(here), _FLOOR + row * _ROW), state, colour, transform=panel.get_xaxis_transform())


def mark_common(panel: Axes, tuning: Tuning, arm: str, key: Key) -> None:
    """A line at the value that the study gives the arm without tuning."""
    (place,) = key.drawn([tuning.common(arm).get(key.name, np.nan)])
    if np.isfinite(place):
        panel.axvline(place, **_COMMON_LINE)


def score_colours(tuning: Tuning, metric: str) -> ScalarMappable:
    """One scale for the scores of all arms."""
    scores = np.concatenate([tuning.scored(arm, metric)["score"] for arm in tuning.arms])
    low, high = (scores.min(), scores.max()) if len(scores) else (0.0, 1.0)
    return ScalarMappable(Normalize(low, high if high > low else low + 1e-9), COLOURS)


def legend(figure: Figure, tuning: Tuning, marks: Sequence[str], arms: bool = False) -> None:
    """One legend below all panels: marks (of states that trials are in), and the arms where they share panels."""
    styles = arm_styles(tuning.arms)
    handles = [handle(arm, style) for arm, style in styles.items()] if arms else []
    absent = {COMPLETE, PRUNED, DIVERGED} - {*tuning.trials["state"]}
    handles += [_mark_handle(name) for name in marks if name not in absent]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 7), handlelength=2.2)


def _mark_handle(name: str) -> Line2D:
    if name == COMMON:
        return Line2D([], [], **_COMMON_LINE, label=name)
    face = "white" if name in (BEST, COMMON_PAIR) else QUIET
    return Line2D([], [], **{"color": face, "linestyle": "none", **_MARKS[name], "label": name})
