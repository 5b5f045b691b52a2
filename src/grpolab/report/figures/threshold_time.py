"""F25: how long runs take to half of what the baseline gains."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import legend_arms, name_rows, note_gaps, panel_grid, say
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import completions_learnt
from grpolab.report.statistics import Survival, TooFewError, kaplan_meier, time_to_threshold
from grpolab.report.style import ArmStyle, arm_styles
from grpolab.report.text import number

_REACHED = "reached it\n(share of runs)"
_SHORT = "never reached it\n(runs)"


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Share of runs that have reached the threshold by completions learnt from; how many never do."""
    figure, grid = panel_grid([_REACHED, _SHORT], study.facets, height=1.7, share_x=False)
    numbers: list[Series] = []
    for facet in study.facets:
        curves = {
            arm: frame.assign(completions=completions_learnt(study, frame))
            for arm, frame in study.by_arm("evaluations", facet)
        }
        threshold = half_gain(curves.get(study.baseline, pd.DataFrame()), study.metric)
        panel = grid[_REACHED, facet]
        panel.set(xlabel=f"completions to a gain of {number(threshold)}", ylim=(-0.03, 1.03))
        drawn = _draw_panel(panel, curves, threshold, study)
        numbers += [{"by": "completions", "facet": facet, "threshold": threshold, **series} for series in drawn]
        _draw_short(grid[_SHORT, facet], [s for s in numbers if s["facet"] == facet], study.arms)
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study)
    caption = (
        f"Share of runs whose held-out accuracy (`{study.metric}`) has risen above their own start by the threshold:"
        f" half of the gain of `{study.baseline}`, from the start of its mean curve to its highest point. By"
        " completions learnt from, as far as evaluations tell; not by seconds, which measure what else the machine was"
        " doing: the runs of a sweep share its cores. Runs that never get there are censored at their planned end, and"
        " counted."
    )
    return figure, manifest(study, "F25", caption, "Kaplan-Meier estimate, 95% log-log interval", numbers)


def half_gain(curves: pd.DataFrame, metric: str) -> float:
    """Half of the gain of the mean curve over seeds, from its start to its highest point; NaN without a gain."""
    if curves.empty:
        return np.nan
    mean_E = curves.groupby("rollout_step")[metric].mean().sort_index().to_numpy(dtype=np.float64)
    start, highest = float(mean_E[0]), float(mean_E.max())
    return (highest - start) / 2 if highest > start else np.nan


def _draw_panel(panel: Axes, curves: dict[str, pd.DataFrame], threshold: float, study: Study) -> list[Series]:
    """A curve for each arm."""
    if np.isnan(threshold):
        say(panel, f"{study.baseline} gains nothing: there is no threshold")
        return [{"lacks": "a gain of the baseline"}]
    styles, numbers = arm_styles(study.arms), []
    for arm, frame in curves.items():
        runs = [own.sort_values("rollout_step") for _, own in frame.groupby("seed")]
        gains = [own[study.metric] - own[study.metric].iloc[0] for own in runs]
        ends = [time_to_threshold(own["completions"], gain, threshold) for own, gain in zip(runs, gains, strict=True)]
        times, reached = zip(*ends, strict=True)
        try:
            survival = kaplan_meier(times, reached)
        except TooFewError as lack:
            say(panel, str(lack))
            continue
        numbers.append({"arm": arm, **_draw_curve(panel, survival, max(times), styles[arm])})
    return numbers


def _draw_curve(panel: Axes, survival: Survival, end: float, style: ArmStyle) -> Series:
    """Steps from 0 runs at time 0 to `end`, the last time that a run was watched."""
    x = [0.0, *survival.time_X.tolist(), end]
    share, low, high = (
        [first, *(1 - values).tolist(), 1 - values[-1]]
        for first, values in ((0.0, survival.share_X), (np.nan, survival.high_X), (np.nan, survival.low_X))
    )
    panel.fill_between(x, low, high, color=style.colour, alpha=0.09, linewidth=0, step="post")
    panel.plot(x, share, color=style.colour, linestyle=style.line, drawstyle="steps-post")
    counts = {"median": survival.median, "n": survival.n, "censored": survival.censored}
    return {"x": x, "mean": share, "low": low, "high": high, **counts}


def _draw_short(panel: Axes, numbers: list[Series], arms: list[str]) -> None:
    """How many of an arm's runs never reach the threshold, beside the share that they are."""
    curves = {series["arm"]: series for series in numbers if "arm" in series}
    styles = arm_styles(arms)
    for place, arm in enumerate(arms):
        if arm in curves:
            censored, n = curves[arm]["censored"], curves[arm]["n"]
            panel.barh(place, censored / n, color=styles[arm].colour, alpha=0.75, height=0.7, linewidth=0)
            panel.text(censored / n + 0.02, place, f"{censored} of {n}", va="center", fontsize=7)
    name_rows(panel, arms)
    panel.set(xlim=(0, 1.35), xticks=(0, 0.5, 1), xlabel="share of runs")
    panel.grid(axis="y", visible=False)
