"""The score over pairs of tuned keys."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.tri import LinearTriInterpolator, Triangulation

from grpolab.report.figures.panels import panel_grid, say
from grpolab.report.manifest import Manifest, Series
from grpolab.report.tuning.keys import Key
from grpolab.report.tuning.marks import (
    BEST,
    COLOURS,
    COMMON_PAIR,
    OVER_SEEDS,
    column,
    legend,
    manifest,
    mark,
    score_colours,
)
from grpolab.report.tuning.trials import COMPLETE, DIVERGED, PRUNED, Tuning

_GRID = 200  # points a side, between which nothing is interpolated any more
_LEVELS = 9


def contour(tuning: Tuning) -> tuple[Figure, Manifest] | None:
    """Score over each pair of keys, interpolated between complete trials; None with fewer than two keys."""
    metric = tuning.objectives[0]
    pairs = {arm: list(combinations(tuning.keys(arm), 2)) for arm in tuning.arms}
    most = max(map(len, pairs.values()))
    if not most:
        return None
    figure, grid = panel_grid(list(map(str, range(most))), tuning.arms, height=1.9, share_x=False, share_y=False)
    colours, numbers = score_colours(tuning, metric), []
    for (place, arm), panel in grid.items():
        own = pairs[arm][int(place) :]
        panel.set_visible(bool(own))
        if own:
            numbers.append(_draw_contour(panel, tuning, arm, *own[0], colours))
    figure.colorbar(colours, ax=list(grid.values()), label=metric, pad=0.01, aspect=25)
    legend(figure, tuning, [COMPLETE, PRUNED, DIVERGED, BEST, COMMON_PAIR])
    caption = (
        f"`{metric}` over pairs of keys, linear between complete trials (dots); nothing is drawn where no three trials"
        " enclose a place."
    )
    return figure, manifest(tuning, "tuning_contour", caption, OVER_SEEDS, numbers)


def _draw_contour(panel: Axes, tuning: Tuning, arm: str, x: Key, y: Key, colours: ScalarMappable) -> Series:
    """One arm's trials over one pair of keys; the numbers that are drawn."""
    done = tuning.scored(arm, tuning.objectives[0])
    places = x.drawn(column(done, x)), y.drawn(column(done, y))
    _fill(panel, x, y, (x.share(column(done, x)), y.share(column(done, y))), done["score"].to_numpy(), colours)
    mark(panel, *places, COMPLETE, "black", markersize=2.8, markeredgecolor="white", markeredgewidth=0.3)
    for state in (PRUNED, DIVERGED):
        own = tuning.of(arm, state)
        mark(panel, x.drawn(column(own, x)), y.drawn(column(own, y)), state, "0.15")
    common = tuning.common(arm)
    mark(panel, x.drawn([common.get(x.name, np.nan)]), y.drawn([common.get(y.name, np.nan)]), COMMON_PAIR, "white")
    best = done["number"].isin(tuning.best(arm)[:1])
    mark(panel, places[0][best], places[1][best], BEST, "white")
    x.dress(panel, "x")
    y.dress(panel, "y")
    panel.set(xlabel=x.name, ylabel=y.name)
    named = {"arm": arm, "x_key": x.name, "y_key": y.name}
    return named | {"x": places[0].tolist(), "y": places[1].tolist(), "score": done["score"].tolist()}


def _fill(
    panel: Axes, x: Key, y: Key, shares: tuple[np.ndarray, np.ndarray], scores: np.ndarray, colours: ScalarMappable
) -> None:
    """The surface through the scores, linear in what the sampler draws from."""
    try:
        surface = LinearTriInterpolator(Triangulation(*shares), scores)
    except (RuntimeError, ValueError):  # fewer than three trials, or all on one line
        say(panel, "too few complete trials")
        return
    even = np.linspace(0, 1, _GRID)
    levels = np.linspace(*colours.get_clim(), _LEVELS)
    z = surface(*np.meshgrid(even, even))
    panel.contourf(x.at(even), y.at(even), z, levels, cmap=COLOURS, norm=colours.norm, extend="both")
