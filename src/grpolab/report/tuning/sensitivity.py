"""F24 from the trials of a tuning: how much the score of each arm depends on each tuned key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import panel_grid
from grpolab.report.manifest import Manifest, Series
from grpolab.report.style import arm_styles
from grpolab.report.tuning.keys import Key
from grpolab.report.tuning.marks import column, legend, manifest, mark_unscored, seed_range
from grpolab.report.tuning.trials import DIVERGED, PRUNED, Tuning

STRETCHES = 6  # equal parts of a key's range, each of which gives the line one point


def sensitivity(tuning: Tuning) -> tuple[Figure, Manifest]:
    """Score against each key, all arms in one panel: a line through the best trial of each sixth of the range.

    A mean over trials would mix in the other keys, and pruning would flatter it, because the trials that it left out
    are the bad ones; the best trial of a stretch is what the arm reaches there when the other keys are tuned.
    """
    keys, numbers = tuning.all_keys(), []
    figure, grid = panel_grid(tuning.objectives, [key.name for key in keys], height=2.0, share_x=False)
    for (metric, name), panel in grid.items():
        for row, arm in enumerate(tuning.arms):
            if key := tuning.key(arm, name):
                line = _draw_arm(panel, tuning, arm, key, metric, row)
                numbers.append({"arm": arm, "metric": metric, "key": name, **line})
        next(key for key in keys if key.name == name).dress(panel, "x")
    legend(figure, tuning, [PRUNED, DIVERGED], arms=True)
    caption = (
        "Score against each tuned key. Faint: every complete trial. The line goes through the best trial of each"
        f" {_ORDINAL} of the range (where one trial is alone there, its other keys show too), shaded from its"
        " lowest to its highest seed."
    )
    statistic = "mean over the tuning seeds, range of seeds"
    return figure, manifest(tuning, "tuning_sensitivity", caption, statistic, numbers)


_ORDINAL = {4: "quarter", 5: "fifth", 6: "sixth"}[STRETCHES]


def _draw_arm(panel: Axes, tuning: Tuning, arm: str, key: Key, metric: str, row: int) -> Series:
    """One arm against one key: its trials, its profile and, in a row of their own, those without a score."""
    colour, dashes, marker = arm_styles(tuning.arms)[arm]
    done, others = tuning.scored(arm, metric), tuning.of(arm, PRUNED, DIVERGED)
    line = profile(tuning, done, key, metric)
    panel.plot(key.drawn(column(done, key)), done["score"], marker, color=colour, alpha=0.35, markersize=2.5)
    panel.fill_between(line["x"], line["low"], line["high"], color=colour, alpha=0.15, linewidth=0)
    panel.plot(line["x"], line["score"], color=colour, linestyle=dashes, marker=marker)
    mark_unscored(panel, key.drawn(column(others, key)), others["state"], colour, row)
    return {name: values.tolist() for name, values in line.items()}


def profile(tuning: Tuning, done: pd.DataFrame, key: Key, metric: str) -> pd.DataFrame:
    """The best of the trials `done` in each stretch of a key's range: x, score, low and high (its seeds)."""
    shares = key.share(column(done, key))
    stretches = shares if key.choices else np.clip(np.floor(shares * STRETCHES), 0, STRETCHES - 1)
    best: Any = (tuning.sign(metric) * done["score"]).groupby(stretches).idxmax()
    chosen = done.loc[best]
    low, high = seed_range(tuning, chosen, metric)
    line = {"x": key.drawn(column(chosen, key)), "score": chosen["score"].to_numpy(), "low": low, "high": high}
    return pd.DataFrame(line).sort_values("x")
