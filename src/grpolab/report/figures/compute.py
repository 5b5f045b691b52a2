"""Figures against compute: saturation curves and their extrapolation, time to a threshold, reuse of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from grpolab.report.figures.panels import (
    MEAN_DOTS,
    Drawing,
    band_series,
    draw_row,
    draw_seeds,
    legend_arms,
    log_axis,
    name_rows,
    panel_grid,
    pivot_seeds,
    say,
    whole_numbers,
)
from grpolab.report.load import Study
from grpolab.report.measures import by_setting, completions_learnt, is_share, measure
from grpolab.report.statistics.curves import (
    PARAMETERS,
    Saturation,
    Survival,
    fit_saturation,
    kaplan_meier,
    time_to_threshold,
)
from grpolab.report.statistics.intervals import (
    Band,
    Interval,
    TooFewError,
    geometric_interval,
    share_band,
    share_interval,
    t_band,
    t_interval,
)
from grpolab.report.statistics.tests import page_trend
from grpolab.report.style import NOTE_COLOUR, QUIET, ArmStyle, Series, arm_styles
from grpolab.report.text import number, p_equals

HELD_OUT = 0.25  # share of the evaluations, the last ones
_CURVE = "held-out accuracy"
_PARAMETER_COLUMNS = {
    "asymptote": "asymptote A",
    "exponent": "exponent B",
    "midpoint": "midpoint $C_{mid}$\n(completions)",
}
_HELD_OUT = "held out: predicted\nminus measured"


@dataclass(frozen=True)
class _Run:
    """One run's evaluations and its fits: to all of them, and to those before the held-out ones."""

    seed: int
    compute_E: NDArray
    score_E: NDArray
    whole: Saturation
    early: Saturation | None

    @property
    def held_out(self) -> int:
        return _held_out(len(self.score_E))

    @property
    def surprise(self) -> float:
        """Mean of predicted minus measured accuracy over the held-out evaluations; NaN where none can be held out."""
        if self.early is None:
            return np.nan
        return float(np.mean(self.early.at(self.compute_E[-self.held_out :]) - self.score_E[-self.held_out :]))


def draw_compute_curve(study: Study) -> Drawing:
    """Accuracy by completions with fitted curves; A, B and C_mid by arm; the error of the extrapolation."""
    columns = [_CURVE, *_PARAMETER_COLUMNS.values(), _HELD_OUT]
    figure, grid = panel_grid(
        study.facets, columns, height=max(1.25, 0.45 + 0.17 * len(study.arms)), share_x=False, share_y=False
    )
    styles, numbers = arm_styles(study.arms), []
    band = share_band if is_share(study, study.metric) else t_band
    for facet in study.facets:
        panels = {column: grid[facet, column] for column in columns}
        for place, (arm, evaluations) in enumerate(study.by_arm("evaluations", facet)):
            try:
                runs = _fits(evaluations, study)
            except TooFewError as lack:
                numbers.append({"facet": facet, "arm": arm, "lacks": str(lack)})
                say(panels[_CURVE], str(lack))
                continue
            labels = {"facet": facet, "arm": arm}
            numbers.append({**labels, "metric": study.metric, **_draw_curve(panels[_CURVE], runs, styles[arm], band)})
            numbers += [{**labels, **series} for series in _draw_estimates(panels, place, runs, styles[arm])]
        _finish(panels, [arm for arm, _ in study.by_arm("evaluations", facet)], facet)
    legend_arms(figure, study)
    caption = (
        f"Held-out accuracy (`{study.metric}`) against completions learnt from, mean over seeds. Lines: mean of the"
        " curves start + (A - start)/(1 + (C_mid/C)^B) that are fitted to each run by least squares, A at most 1."
        " Dots: the seeds whose curve identifies the parameter (inside its bounds; 95% interval of the fit within .1"
        " for A and a factor of 2 for B and C_mid). Where not all do, k/n says how many, and there is no mean. Last:"
        f" how much too high the curve is at the last {HELD_OUT:.0%} of the evaluations when it is fitted without them"
        " (dotted)."
    )
    return Drawing(figure, caption, MEAN_DOTS, numbers)


def _held_out(evaluations: int) -> int:
    """How many of a run's evaluations, the start included, are held out."""
    return max(1, round(HELD_OUT * (evaluations - 1)))


def _fits(evaluations: pd.DataFrame, study: Study) -> list[_Run]:
    """Raises TooFewError where the runs have too few evaluations."""
    runs = []
    for seed, unsorted in evaluations.groupby("seed"):
        run = unsorted.sort_values("rollout_step")
        compute_E = completions_learnt(study, run).to_numpy(dtype=np.float64)
        score_E = run[study.metric].to_numpy(dtype=np.float64)
        keep = len(score_E) - _held_out(len(score_E))
        early = fit_saturation(compute_E[:keep], score_E[:keep]) if keep > len(PARAMETERS) else None
        runs.append(_Run(int(seed), compute_E, score_E, fit_saturation(compute_E, score_E), early))
    return runs


def _draw_curve(panel: Axes, runs: list[_Run], style: ArmStyle, band: Callable[..., Band]) -> Series:
    """Means of the evaluations as markers, of the fitted curves as lines; dotted where it is foretold."""
    compute_E = runs[0].compute_E
    scores_ES = pd.DataFrame({run.seed: pd.Series(run.score_E, run.compute_E) for run in runs})
    bounds = band(scores_ES.to_numpy())
    panel.plot(scores_ES.index, bounds[0], style.marker, color=style.colour, markersize=2.5)
    dense = np.linspace(0, compute_E[-1], 100)[1:]
    panel.plot(dense, np.mean([run.whole.at(dense) for run in runs], axis=0), color=style.colour, linewidth=0.9)
    early = [run.early for run in runs if run.early is not None]
    if early:
        beyond = np.linspace(compute_E[-1 - runs[0].held_out], compute_E[-1], 30)
        foretold = np.mean([fit.at(beyond) for fit in early], axis=0)
        panel.plot(beyond, foretold, color=style.colour, linestyle=":", linewidth=1.2)
    return {**band_series(scores_ES, bounds), "seeds": {run.seed: run.score_E.tolist() for run in runs}}


def _draw_estimates(panels: dict[str, Axes], place: int, runs: list[_Run], style: ArmStyle) -> list[Series]:
    """A row in each panel of a parameter, and in that of the extrapolation."""
    numbers: list[Series] = []
    for parameter, column in _PARAMETER_COLUMNS.items():
        known = {run.seed: getattr(run.whole, parameter) for run in runs if run.whole.identified[parameter]}
        of = share_interval if parameter == "asymptote" else geometric_interval  # A is an accuracy
        interval = _interval_of_all(np.array(list(known.values())), len(runs), of)
        _draw_known(panels[column], place, known, len(runs), interval, style)
        numbers.append({"metric": parameter, **interval._asdict(), "runs": len(runs), "seeds": known})
    surprises = {run.seed: run.surprise for run in runs if np.isfinite(run.surprise)}
    interval = _interval_of_all(np.array(list(surprises.values())), len(surprises), t_interval)
    _draw_known(panels[_HELD_OUT], place, surprises, len(surprises), interval, style)
    return [*numbers, {"metric": "predicted minus measured", **interval._asdict(), "seeds": surprises}]


def _interval_of_all(values_S: NDArray, runs: int, of: Callable[[NDArray], Interval]) -> Interval:
    """Mean with its interval; NaN where some runs have no value: the rest are no sample."""
    return of(values_S) if len(values_S) == runs else Interval(np.nan, np.nan, np.nan, len(values_S))


def _draw_known(
    panel: Axes, place: int, known: dict[int, float], runs: int, interval: Interval, style: ArmStyle
) -> None:
    """A row; how many runs identify the parameter where that is not every one."""
    if known:
        draw_row(panel, place, np.array(list(known.values())), interval, style)
    if len(known) < runs:
        words, beside = f"{len(known)}/{runs}", panel.get_yaxis_transform()
        panel.text(1.02, place, words, transform=beside, color=NOTE_COLOUR, va="center", fontsize=7)


def _finish(panels: dict[str, Axes], arms: list[str], facet: str) -> None:
    """Scales, names of the arms, and a sentence in a panel that has nothing to show."""
    panels[_CURVE].set_ylabel(facet.replace("/", "\n"))
    panels[_CURVE].set_xlabel("completions")
    for column, panel in panels.items():
        if column == _CURVE:
            continue
        name_rows(panel, arms if column == _PARAMETER_COLUMNS["asymptote"] else [""] * len(arms))
        if not panel.lines:
            panel.set_xticks([])
            for text in list(panel.texts):
                text.remove()
            say(panel, "too few evaluations to hold any out" if column == _HELD_OUT else "no curve identifies it")
        elif column == _HELD_OUT:
            panel.axvline(0, color=QUIET, linewidth=0.7, linestyle=":")
        elif column == _PARAMETER_COLUMNS["asymptote"]:
            low, high = panel.dataLim.intervalx
            panel.set_xlim(low - 0.03, high + 0.03)
        else:
            low, high = panel.dataLim.intervalx
            room = max(1.1, np.sqrt(10 * low / high))  # a decade at least: within less there are no readable ticks
            panel.set_xlim(low / room, high * room)
            log_axis(panel, "x")


def draw_threshold_time(study: Study) -> Drawing:
    """Share of runs that have reached the threshold by completions learnt from; how many never do."""
    reached, short = "reached it\n(share of runs)", "never reached it\n(runs)"
    figure, grid = panel_grid([reached, short], study.facets, height=1.7, share_x=False)
    numbers: list[Series] = []
    for facet in study.facets:
        curves = {
            arm: frame.assign(completions=completions_learnt(study, frame))
            for arm, frame in study.by_arm("evaluations", facet)
        }
        threshold = half_gain(curves.get(study.baseline, pd.DataFrame()), study.metric)
        panel = grid[reached, facet]
        panel.set(xlabel=f"completions to a gain of {number(threshold)}", ylim=(-0.03, 1.03))
        drawn = _draw_survival(panel, curves, threshold, study)
        numbers += [{"by": "completions", "facet": facet, "threshold": threshold, **series} for series in drawn]
        _draw_short(grid[short, facet], drawn, study.arms)
    legend_arms(figure, study)
    caption = (
        f"Share of runs whose held-out accuracy (`{study.metric}`) has risen above their own start by the threshold:"
        f" half of the gain of `{study.baseline}`, from the start of its mean curve to its highest point. By"
        " completions learnt from, as far as evaluations tell; not by seconds, which measure what else the machine was"
        " doing: the runs of a sweep share its cores. Runs that never get there are censored at their planned end, and"
        " counted."
    )
    return Drawing(figure, caption, "Kaplan-Meier estimate, 95% log-log interval", numbers)


def half_gain(curves: pd.DataFrame, metric: str) -> float:
    """Half of the gain of the mean curve over seeds, from its start to its highest point; NaN without a gain."""
    if curves.empty:
        return np.nan
    mean_E = curves.groupby("rollout_step")[metric].mean().sort_index().to_numpy(dtype=np.float64)
    start, highest = float(mean_E[0]), float(mean_E.max())
    return (highest - start) / 2 if highest > start else np.nan


def _draw_survival(panel: Axes, curves: dict[str, pd.DataFrame], threshold: float, study: Study) -> list[Series]:
    """A curve for each arm."""
    if np.isnan(threshold):
        say(panel, f"{study.baseline} gains nothing: there is no threshold")
        return [{"lacks": "a gain of the baseline"}]
    styles, numbers = arm_styles(study.arms), []
    for arm, frame in curves.items():
        runs = [run.sort_values("rollout_step") for _, run in frame.groupby("seed")]
        gains = [run[study.metric] - run[study.metric].iloc[0] for run in runs]
        ends = [time_to_threshold(run["completions"], gain, threshold) for run, gain in zip(runs, gains, strict=True)]
        times, reached = zip(*ends, strict=True)
        try:
            survival = kaplan_meier(times, reached)
        except TooFewError as lack:
            say(panel, str(lack))
            continue
        numbers.append({"arm": arm, **_draw_steps(panel, survival, max(times), styles[arm])})
    return numbers


def _draw_steps(panel: Axes, survival: Survival, end: float, style: ArmStyle) -> Series:
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


_CLIP, _BY_PASS, _SCORE = "clipped tokens (share)", "clipped, by pass\nover the batch", "final accuracy"


def draw_reuse(study: Study) -> Drawing:
    """Mean clip fraction and final accuracy against num_iterations, and the clip fraction of each pass."""
    figure, grid = panel_grid([_CLIP, _BY_PASS, _SCORE], study.facets, share_x=False)
    styles, numbers = arm_styles(study.arms), list[Series]()
    for facet in study.facets:
        for row, metric in ((_CLIP, "clip/active"), (_SCORE, "final_score")):
            values_SL = by_setting(study, measure(study, metric), facet, "setting/num_iterations")
            band = share_band if is_share(study, metric) else t_band
            numbers.append({"metric": metric, "facet": facet, **_draw_trend(grid[row, facet], values_SL, band)})
        for arm, updates in study.by_arm("updates", facet):
            labels = {"metric": "clip/active", "by": "iteration", "facet": facet, "arm": arm}
            values_XS = pivot_seeds(updates, "iteration", "clip/active")
            numbers.append({**labels, **draw_seeds(grid[_BY_PASS, facet], values_XS, styles[arm], share=True)})
        whole_numbers(grid[_BY_PASS, facet])
        grid[_BY_PASS, facet].set_xlabel("pass (0 = first)")
    legend_arms(figure, study)
    caption = (
        "Clip fraction (mean over all optimiser steps) and final accuracy against num_iterations, with the p-value of"
        " Page's test that they rise (ranks within seeds); between them the clip fraction of each pass over the batch."
    )
    return Drawing(figure, caption, MEAN_DOTS, numbers)


def _draw_trend(panel: Axes, values_SL: pd.DataFrame, band: Callable[..., Band]) -> Series:
    """Seeds as dots, the mean with its interval, and the trend's p."""
    x = values_SL.columns.to_numpy(dtype=float)
    if not len(x):
        return {"x": []}
    bounds = band(values_SL.to_numpy().T)
    mean, low, high, _ = bounds
    for _, values in values_SL.iterrows():
        panel.plot(x, values, ".", color=QUIET, markersize=3)
    panel.errorbar(x, mean, yerr=[mean - low, high - mean], color="black", marker="o", capsize=2, elinewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.set_xticks(x, [f"{value:g}" for value in x])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("num_iterations")
    p = page_trend(values_SL.to_numpy())
    if np.isfinite(p):
        panel.set_title(f"rising: {p_equals(p)}", loc="right", fontsize=7)  # inside, it would lie on the data
    series = band_series(values_SL.T, bounds)
    seeds = series.pop("seeds")
    return {**series, "x": x.tolist(), "trend_p": p, "seeds": seeds}
