"""F27: what every arm gains or loses against the baseline, seed by seed."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import arm_label, draw_row, name_rows, note_gaps, only_says, panel_grid
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import at, measure
from grpolab.report.statistics import Difference, Interval, holm, paired_difference
from grpolab.report.style import QUIET, arm_styles
from grpolab.report.text import p_equals


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Paired differences of the final accuracy to the baseline with their intervals and Holm-adjusted p-values."""
    others = [arm for arm in study.arms if arm != study.baseline]
    if not others:
        return only_says(study, "F27", f"needs an arm beside {arm_label(study, study.baseline)}")
    figure, grid = panel_grid([""], study.facets, height=0.5 + 0.2 * len(others))
    scores = measure(study, "final_score")
    pairs = [(facet, arm) for facet in study.facets for arm in others]
    differences = [paired_difference(at(scores, f, arm), at(scores, f, study.baseline)) for f, arm in pairs]
    adjusted = holm([difference.p for difference in differences])
    numbers: list[Series] = []
    for (facet, arm), difference, p in zip(pairs, differences, adjusted, strict=True):
        panel = grid["", facet]
        seeds = (at(scores, facet, arm) - at(scores, facet, study.baseline)).dropna()
        draw_row(panel, others.index(arm), seeds.to_numpy(), _interval(difference), arm_styles(study.arms)[arm])
        _write_p(panel, others.index(arm), difference, p)
        estimate = {"mean": difference.effect, "low": difference.low, "high": difference.high, "n": difference.n}
        values = {int(seed): float(value) for seed, value in seeds.items()}
        numbers.append({"facet": facet, "arm": arm, "minus": study.baseline, **estimate, "holm_p": p, "seeds": values})
    for panel in grid.values():
        panel.axvline(0, color=QUIET, linewidth=0.7, linestyle=":")
        name_rows(panel, others)
        panel.margins(x=0.1)
    figure.supxlabel(f"final accuracy minus that of {arm_label(study, study.baseline)}", fontsize=7.5)
    note_gaps(figure, study)
    caption = (
        f"Final accuracy minus that of `{study.baseline}` with the same seed. p: paired t-test of no difference,"
        f" adjusted by Holm over all {len(pairs)} comparisons of this figure."
    )
    statistic = "mean over shared seeds, 95% t-interval (not adjusted); dots are seeds"
    return figure, manifest(study, "F27", caption, statistic, numbers)


def _interval(difference: Difference) -> Interval:
    return Interval(difference.effect, difference.low, difference.high, difference.n)


def _write_p(panel: Axes, place: int, difference: Difference, p: float) -> None:
    """The adjusted p right of the row; in its place how many seeds there are where they are too few."""
    words = p_equals(p) if np.isfinite(p) else f"{difference.n} shared seeds"
    panel.text(1.02, place, words, transform=panel.get_yaxis_transform(), va="center", fontsize=7)
