"""F28: changes added one after the other, and each left out of all."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import MEAN_DOTS, note_gaps, only_says, panel_grid
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import at, mean_interval, measure
from grpolab.report.statistics import Interval, paired_difference
from grpolab.report.style import QUIET, ArmStyle, arm_styles

FULL = "full"
_LACK = f"needs arms that are named +x for a change that is added, {FULL} for all of them, -x for one left out"


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Final accuracy of every rung with its paired difference to the rung that it changes."""
    rungs = steps(study.arms, study.baseline)
    if not rungs:
        return only_says(study, "F28", _LACK)
    figure, grid = panel_grid(["final accuracy"], study.facets, height=2.3)
    scores, styles = measure(study, "final_score"), arm_styles(study.arms)
    numbers: list[Series] = []
    for (_, facet), panel in grid.items():
        for place, (arm, before) in enumerate(rungs.items()):
            own, other = at(scores, facet, arm), at(scores, facet, before) if before else None
            estimate = mean_interval(study, "final_score", own)
            series = _draw_bar(panel, place, own, other, estimate, styles[arm])
            numbers.append({"metric": "final_score", "facet": facet, "arm": arm, "minus": before, **series})
        panel.set_xticks(range(len(rungs)), list(rungs), rotation=35, ha="right", rotation_mode="anchor")
        panel.grid(axis="x", visible=False)
        _mark_full(panel, at(scores, facet, FULL), list(rungs))
    tops = [panel.dataLim.ymax for panel in grid.values() if np.isfinite(panel.dataLim.ymax)]
    for panel in grid.values():
        panel.set_ylim(0, 1.08 * max(tops, default=1.0))  # the differences stand above the intervals
    note_gaps(figure, study)
    caption = (
        f"Final accuracy from `{study.baseline}` on, each + adding one change to the arm before it, and (right of the"
        f" line) with one change left out of `{FULL}`. Above each bar the mean difference to the arm before, or to"
        f" `{FULL}`, seed by seed; bold where its 95% t-interval leaves out 0 (not adjusted)."
    )
    return figure, manifest(study, "F28", caption, MEAN_DOTS, numbers)


def steps(arms: list[str], baseline: str) -> dict[str, str | None]:
    """Each rung with the arm that it is compared with: the one before, or `full` for one left out; {} for no ladder."""
    added = [baseline, *(arm for arm in arms if arm.startswith("+")), *(arm for arm in arms if arm == FULL)]
    left_out = [arm for arm in arms if arm.startswith("-") and FULL in arms]
    if len(added) == 1 or len(added) + len(left_out) < 3:
        return {}
    return dict(zip(added, [None, *added], strict=False)) | dict.fromkeys(left_out, FULL)


def _draw_bar(
    panel: Axes, place: int, own_S: pd.Series, other_S: pd.Series | None, estimate: Interval, style: ArmStyle
) -> Series:
    """The mean with its interval, seeds as dots, and above them the paired difference."""
    if own_S.empty:
        return {}
    mean, low, high, n = estimate
    panel.bar(place, mean, width=0.7, color=style.colour, alpha=0.6, linewidth=0)
    panel.plot(np.full(len(own_S), place - 0.15), own_S, ".", color="black", markersize=3)
    panel.vlines(place, low, high, color="black", linewidth=0.8)
    series: Series = {"mean": mean, "low": low, "high": high, "n": n}
    seeds = {int(seed): float(value) for seed, value in own_S.items()}
    if other_S is None:
        return {**series, "seeds": seeds}
    step = paired_difference(own_S, other_S)
    sure = step.low > 0 or step.high < 0
    height = max(own_S.max(), high) if np.isfinite(high) else own_S.max()
    words = f"{step.effect:+.3f}" if step.effect else "0"
    panel.annotate(
        words, (place, height), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom",
        fontsize=6, fontweight="bold" if sure else "normal", color="black" if sure else QUIET,
    )  # fmt: skip
    return {**series, "step": step.effect, "step_low": step.low, "step_high": step.high, "seeds": seeds}


def _mark_full(panel: Axes, full_S: pd.Series, rungs: list[str]) -> None:
    """The height of `full`, and where leaving out begins."""
    if len(full_S):
        panel.axhline(full_S.mean(), color=QUIET, linewidth=0.7, linestyle=":")
    if FULL in rungs and rungs[-1] != FULL:
        panel.axvline(rungs.index(FULL) + 0.5, color=QUIET, linewidth=0.7)
