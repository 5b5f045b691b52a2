"""F22: performance profile, the share of runs that score above each threshold."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import label_x, legend_arms, note_gaps, only_says, panel_grid, say
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.pooled import SCORE, Pool, estimated, interval_note, pools
from grpolab.report.statistics import performance_profile
from grpolab.report.style import arm_styles

REPLICATES = 2_000  # each gives a whole curve
_ROW = "runs above the\nthreshold (share)"


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Share of the runs of all tasks whose normalised score is above a threshold, against that threshold."""
    groups = pools(study)
    if all(pool.lack for pool in groups):
        return only_says(study, "F22", groups[0].lack)
    figure, grid = panel_grid([_ROW], [pool.title for pool in groups], height=2.2)
    numbers: list[Series] = []
    for panel, pool in zip(grid.values(), groups, strict=True):
        if pool.lack:
            say(panel, pool.lack)
        numbers += [{"facet": pool.title, "lacks": pool.lack}] if pool.lack else _draw_pool(panel, pool, study.arms)
    label_x(grid, f"threshold of {SCORE}")
    legend_arms(figure, study, [series["arm"] for series in numbers if "arm" in series])
    note_gaps(figure, study)
    caption = (
        f"Share of runs, of all tasks together, whose normalised score {SCORE} is above a threshold: the higher the"
        " curve the better. Only seeds that every arm has on every task."
    )
    return figure, manifest(study, "F22", caption, f"share of runs; band: {interval_note(REPLICATES)}", numbers)


def _draw_pool(panel: Axes, pool: Pool, arms: list[str]) -> list[Series]:
    """A curve and its band for each arm."""
    styles, numbers = arm_styles(arms), []
    lowest, highest = (reach(pool.scores_ATS, initial=0.0) for reach in (np.min, np.max))
    x = np.linspace(lowest - 0.02, highest + 0.02, 81)
    bounds_AX = estimated(pool.scores_ATS, partial(performance_profile, thresholds_X=x), REPLICATES)
    for arm, share, low, high in zip(pool.arms, *bounds_AX, strict=True):
        style = styles[arm]
        panel.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0, step="post")
        panel.plot(x, share, color=style.colour, linestyle=style.line, drawstyle="steps-post")
        n = [len(pool.seeds)] * len(x)
        series = {"x": x.tolist(), "mean": share.tolist(), "low": low.tolist(), "high": high.tolist(), "n": n}
        numbers.append({"facet": pool.title, "arm": arm, **series})
    return numbers
