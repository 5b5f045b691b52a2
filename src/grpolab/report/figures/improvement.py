"""F23: probability of improvement over the baseline."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import arm_label, draw_row, label_x, name_rows, note_gaps, only_says, panel_grid, say
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.pooled import SCORE, Pool, estimated, interval_note, pools
from grpolab.report.statistics import Interval, probability_of_improvement
from grpolab.report.statistics.bootstrap import REPLICATES
from grpolab.report.style import QUIET, arm_styles


def draw(study: Study) -> tuple[Figure, Manifest]:
    """For every other arm the probability that one of its runs beats a run of the baseline, averaged over tasks."""
    groups = pools(study)
    if all(_lack(pool, study) for pool in groups):
        return only_says(study, "F23", _lack(groups[0], study))
    figure, grid = panel_grid([""], [pool.title for pool in groups], height=0.3 + 0.2 * len(study.arms))
    numbers: list[Series] = []
    for panel, pool in zip(grid.values(), groups, strict=True):
        if lack := _lack(pool, study):
            say(panel, lack)
        numbers += [{"facet": pool.title, "lacks": lack}] if lack else _draw_pool(panel, pool, study)
    label_x(grid, f"P(better than {arm_label(study, study.baseline)})")
    note_gaps(figure, study)
    caption = (
        f"Probability that a run of an arm has a higher normalised score {SCORE} than a run of `{study.baseline}` on"
        " the same task, averaged over tasks; a tie is half of one. Runs are compared across seeds. Only seeds that"
        " every arm has on every task."
    )
    return figure, manifest(study, "F23", caption, interval_note(REPLICATES), numbers)


def _lack(pool: Pool, study: Study) -> str:
    """Why there is nothing, or too little, to compare; empty where there is enough."""
    both = study.baseline in pool.arms and len(pool.arms) > 1
    return pool.lack if both else f"needs runs of {study.baseline} and of another arm"


def _draw_pool(panel: Axes, pool: Pool, study: Study) -> list[Series]:
    """A row for each arm but the baseline."""
    others = [arm for arm in pool.arms if arm != study.baseline]
    styles, numbers = arm_styles(study.arms), []
    scores = dict(zip(pool.arms, pool.scores_ATS, strict=True))
    for place, arm in enumerate(others):
        pair_ATS = np.stack([scores[arm], scores[study.baseline]])
        mean, low, high = (float(x) for x in estimated(pair_ATS, probability_of_improvement, REPLICATES))
        draw_row(panel, place, np.empty(0), Interval(mean, low, high, len(pool.seeds)), styles[arm])
        bounds = {"mean": mean, "low": low, "high": high, "n": len(pool.seeds)}
        numbers.append({"facet": pool.title, "arm": arm, "minus": study.baseline, **bounds})
    name_rows(panel, others)
    panel.axvline(0.5, color=QUIET, linewidth=0.7, linestyle=":")
    panel.set_xlim(-0.02, 1.02)
    return numbers
