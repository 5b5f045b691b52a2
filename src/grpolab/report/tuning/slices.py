"""The score against each tuned key, arm by arm."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import panel_grid
from grpolab.report.manifest import Manifest, Series
from grpolab.report.style import arm_styles
from grpolab.report.tuning.keys import Key
from grpolab.report.tuning.marks import (
    BEST,
    COMMON,
    OVER_SEEDS,
    column,
    legend,
    manifest,
    mark,
    mark_common,
    mark_unscored,
    seed_range,
)
from grpolab.report.tuning.trials import COMPLETE, DIVERGED, PRUNED, Tuning


def slices(tuning: Tuning) -> tuple[Figure, Manifest]:
    """Score against each key, one row per arm; bars reach over the seeds of a trial."""
    metric, numbers = tuning.objectives[0], []
    most = max(len(tuning.keys(arm)) for arm in tuning.arms)
    figure, grid = panel_grid(tuning.arms, list(map(str, range(most))), height=1.45, share_x=False)
    for (arm, place), panel in grid.items():
        keys = tuning.keys(arm)[int(place) :]
        panel.set(title="", ylabel=f"{arm}\n{metric}" if place == "0" else "")
        panel.set_visible(bool(keys))
        if keys:
            numbers.append(_draw_slice(panel, tuning, arm, keys[0]))
    legend(figure, tuning, [COMPLETE, PRUNED, DIVERGED, BEST, COMMON])
    caption = (
        f"`{metric}` of each trial against each tuned key; bars reach from the lowest to the highest seed. Dotted: the"
        " value that the study gives without tuning. Pruned and diverged trials stand along the lower edge."
    )
    return figure, manifest(tuning, "tuning_slice", caption, OVER_SEEDS, numbers)


def _draw_slice(panel: Axes, tuning: Tuning, arm: str, key: Key) -> Series:
    metric, colour = tuning.objectives[0], arm_styles(tuning.arms)[arm].colour
    done, others = tuning.scored(arm, metric), tuning.of(arm, PRUNED, DIVERGED)
    x, (low, high) = key.drawn(column(done, key)), seed_range(tuning, done, metric)
    panel.vlines(x, low, high, color=colour, linewidth=0.6, alpha=0.6)
    mark(panel, x, done["score"], COMPLETE, colour)
    mark_unscored(panel, key.drawn(column(others, key)), others["state"], colour)
    best = done["number"].isin(tuning.best(arm)[:1])
    mark(panel, x[best], done["score"][best], BEST, colour)
    mark_common(panel, tuning, arm, key)
    key.dress(panel, "x")
    panel.set_xlabel(key.name)
    return {"arm": arm, "key": key.name, "x": x.tolist(), "score": done["score"].tolist(), "low": low, "high": high}
