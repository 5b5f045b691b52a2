"""Figures against compute: saturation curves and their extrapolation, time to a threshold, reuse of a batch."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN_DOTS, Drawing, Sheet, draw_seeds, figure
from grpolab.report.load import Study
from grpolab.report.measures import band_of, by_setting, completions_learnt, measure
from grpolab.report.statistics import intervals
from grpolab.report.statistics.curves import PARAMETERS, Saturation, fit_saturation, kaplan_meier, time_to_threshold
from grpolab.report.statistics.intervals import Interval, TooFewError, share_band
from grpolab.report.statistics.tests import page_trend
from grpolab.report.style import NOTE_COLOUR, QUIET
from grpolab.report.text import number, p_equals

HELD_OUT = 0.25  # share of the evaluations, the last ones
_CURVE, _SURPRISE = "held-out accuracy", "held out: predicted\nminus measured"
_PARAMETERS = {
    "asymptote A": "asymptote",
    "exponent B": "exponent",
    "midpoint $C_{mid}$\n(completions)": "midpoint",
}


@figure("F29", "Accuracy against rollouts, with a sigmoid fit and its extrapolation")
def draw_compute_curve(study: Study) -> Drawing:
    """Accuracy by completions with fitted curves; A, B and C_mid by arm; the error of the extrapolation."""
    columns, height = [_CURVE, *_PARAMETERS, _SURPRISE], max(1.25, 0.45 + 0.17 * len(study.arms))
    sheet = Sheet(study, study.facets, columns, height=height, share_x=False, share_y=False)
    for facet in study.facets:
        arms = dict(study.by_arm("evaluations", facet))
        panel = sheet.grid[facet, _CURVE]
        for place, (arm, evaluations) in enumerate(arms.items()):
            try:
                _draw_arm(sheet, facet, arm, place, evaluations)
            except TooFewError as lack:
                sheet.add({"lacks": str(lack)}, facet=facet, arm=arm)
                panels.say(panel, str(lack))
        panel.set_ylabel(facet.replace("/", "\n"))
        panel.set_xlabel("completions")
        for column in columns[1:]:
            panel = sheet.grid[facet, column]
            panels.name_rows(panel, list(arms) if column == columns[1] else [""] * len(arms))
            low, high = panel.dataLim.intervalx
            if not panel.lines:
                panel.set_xticks([])
                for text in list(panel.texts):
                    text.remove()
                words = "too few evaluations to hold any out" if column == _SURPRISE else "no curve identifies it"
                panels.say(panel, words)
            elif column == _SURPRISE:
                panel.axvline(0, color=QUIET, linewidth=0.7, linestyle=":")
            elif column == columns[1]:
                panel.set_xlim(low - 0.03, high + 0.03)
            else:
                room = max(1.1, np.sqrt(10 * low / high))  # a decade at least: within less there are no readable ticks
                panel.set_xlim(low / room, high * room)
                panels.log_axis(panel, "x")
    sheet.legend()
    caption = (
        f"Held-out accuracy (`{study.metric}`) against completions learnt from, mean over seeds. Lines: mean of the"
        " curves start + (A - start)/(1 + (C_mid/C)^B) that are fitted to each run by least squares, A at most 1."
        " Dots: the seeds whose curve identifies the parameter (inside its bounds; 95% interval of the fit within .1"
        " for A and a factor of 2 for B and C_mid). Where not all do, k/n says how many, and there is no mean. Last:"
        f" how much too high the curve is at the last {HELD_OUT:.0%} of the evaluations when it is fitted without them"
        " (dotted)."
    )
    return sheet.drawing(caption, MEAN_DOTS)


def _draw_arm(sheet: Sheet, facet: str, arm: str, place: int, evaluations: pd.DataFrame) -> None:
    """An arm's mean curve with the fits to its runs, and a row for each parameter and for the extrapolation.

    Raises TooFewError where the runs have too few evaluations.
    """
    study, style, labels = sheet.study, sheet.styles[arm], {"facet": facet, "arm": arm}
    scores: dict[int, pd.Series] = {}  # by seed and completions
    whole: dict[int, Saturation] = {}  # fits to all evaluations
    early: list[Saturation] = []  # to those before the held-out ones
    surprises: dict[int, float] = {}
    for seed, unsorted in evaluations.groupby("seed"):
        run = unsorted.sort_values("rollout_step")
        compute_E = completions_learnt(study, run).to_numpy(dtype=np.float64)
        score_E = run[study.metric].to_numpy(dtype=np.float64)
        scores[int(seed)], whole[int(seed)] = pd.Series(score_E, compute_E), fit_saturation(compute_E, score_E)
        held_out = max(1, round(HELD_OUT * (len(score_E) - 1)))  # all but the start can be
        if len(score_E) - held_out > len(PARAMETERS):
            early.append(fit_saturation(compute_E[:-held_out], score_E[:-held_out]))
            surprises[int(seed)] = float(np.mean(early[-1].at(compute_E[-held_out:]) - score_E[-held_out:]))

    # The last run's compute_E and held_out are those of all: what ended early is carried forward.
    panel, scores_ES = sheet.grid[facet, _CURVE], pd.DataFrame(scores)
    band = band_of(study, study.metric)(scores_ES.to_numpy())
    panel.plot(scores_ES.index, band[0], style.marker, color=style.colour, markersize=2.5)
    dense = np.linspace(0, compute_E[-1], 100)[1:]
    fitted = np.mean([fit.at(dense) for fit in whole.values()], axis=0)
    panel.plot(dense, fitted, color=style.colour, linewidth=0.9)
    if early:
        beyond = np.linspace(compute_E[-1 - held_out], compute_E[-1], 30)
        foretold = np.mean([fit.at(beyond) for fit in early], axis=0)
        panel.plot(beyond, foretold, color=style.colour, linestyle=":", linewidth=1.2)
    series = {**panels.band_series(scores_ES, band), "seeds": {seed: run.tolist() for seed, run in scores.items()}}
    sheet.add(series, **labels, metric=study.metric)

    for column, parameter in _PARAMETERS.items():
        known = {seed: getattr(fit, parameter) for seed, fit in whole.items() if fit.identified[parameter]}
        values, panel = np.array(list(known.values())), sheet.grid[facet, column]
        interval = Interval(np.nan, np.nan, np.nan, len(known))  # some runs alone are no sample
        if len(known) == len(whole):  # A is an accuracy
            interval = (intervals.share_interval if parameter == "asymptote" else intervals.geometric_interval)(values)
        else:
            words, beside = f"{len(known)}/{len(whole)}", panel.get_yaxis_transform()
            panel.text(1.02, place, words, transform=beside, color=NOTE_COLOUR, va="center", fontsize=7)
        if known:
            panels.draw_row(panel, place, values, interval, style)
        sheet.add({**interval._asdict(), "runs": len(whole), "seeds": known}, **labels, metric=parameter)
    values = np.array(list(surprises.values()))
    interval = intervals.t_interval(values)
    if surprises:
        panels.draw_row(sheet.grid[facet, _SURPRISE], place, values, interval, style)
    sheet.add({**interval._asdict(), "seeds": surprises}, **labels, metric="predicted minus measured")


@figure("F25", "Time until half of the gain is reached, runs that never reach it censored")
def draw_threshold_time(study: Study) -> Drawing:
    """Share of runs that have reached the threshold by completions learnt from; how many never do."""
    reached_row, short_row = "reached it\n(share of runs)", "never reached it\n(runs)"
    sheet = Sheet(study, [reached_row, short_row], height=1.7, share_x=False)
    for facet in study.facets:
        panel, short = sheet.grid[reached_row, facet], sheet.grid[short_row, facet]
        arms = dict(study.by_arm("evaluations", facet))
        threshold = half_gain(arms.get(study.baseline, pd.DataFrame()), study.metric)
        labels = {"by": "completions", "facet": facet, "threshold": threshold}
        panel.set(xlabel=f"completions to a gain of {number(threshold)}", ylim=(-0.03, 1.03))
        if np.isnan(threshold):
            panels.say(panel, f"{study.baseline} gains nothing: there is no threshold")
            sheet.add({"lacks": "a gain of the baseline"}, **labels)
            arms = {}
        for arm, evaluations in arms.items():
            ends = []  # of each run: when it reaches the threshold, or how far it was watched; and which of these
            for _, unsorted in evaluations.groupby("seed"):
                run = unsorted.sort_values("rollout_step")
                gain = run[study.metric] - run[study.metric].iloc[0]
                ends.append(time_to_threshold(completions_learnt(study, run), gain, threshold))
            times, reached = zip(*ends, strict=True)
            try:
                survival = kaplan_meier(times, reached)
            except TooFewError as lack:
                panels.say(panel, str(lack))
                continue
            style, place = sheet.styles[arm], study.arms.index(arm)
            x = [0.0, *survival.time_X.tolist(), max(times)]
            share, low, high = (
                [first, *(1 - values).tolist(), 1 - values[-1]]
                for first, values in ((0.0, survival.share_X), (np.nan, survival.high_X), (np.nan, survival.low_X))
            )
            panel.fill_between(x, low, high, color=style.colour, alpha=0.09, linewidth=0, step="post")
            panel.plot(x, share, color=style.colour, linestyle=style.line, drawstyle="steps-post")
            never = survival.censored / survival.n
            short.barh(place, never, color=style.colour, alpha=0.75, height=0.7, linewidth=0)
            short.text(never + 0.02, place, f"{survival.censored} of {survival.n}", va="center", fontsize=7)
            series = {"x": x, "mean": share, "low": low, "high": high}
            counts = {"median": survival.median, "n": survival.n, "censored": survival.censored}
            sheet.add({**series, **counts}, **labels, arm=arm)
        panels.name_rows(short, study.arms)
        short.set(xlim=(0, 1.35), xticks=(0, 0.5, 1), xlabel="share of runs")
        short.grid(axis="y", visible=False)
    sheet.legend()
    caption = (
        f"Share of runs whose held-out accuracy (`{study.metric}`) has risen above their own start by the threshold:"
        f" half of the gain of `{study.baseline}`, from the start of its mean curve to its highest point. By"
        " completions learnt from, as far as evaluations tell; not by seconds, which measure what else the machine was"
        " doing: the runs of a sweep share its cores. Runs that never get there are censored at their planned end, and"
        " counted."
    )
    return sheet.drawing(caption, "Kaplan-Meier estimate, 95% log-log interval")


def half_gain(curves: pd.DataFrame, metric: str) -> float:
    """Half of the gain of the mean curve over seeds, from its start to its highest point; NaN without a gain."""
    if curves.empty:
        return np.nan
    mean_E = curves.groupby("rollout_step")[metric].mean().sort_index().to_numpy(dtype=np.float64)
    start, highest = float(mean_E[0]), float(mean_E.max())
    return (highest - start) / 2 if highest > start else np.nan


@figure("F18", "Clip fraction and final accuracy against the number of passes over a batch")
def draw_reuse(study: Study) -> Drawing:
    """Mean clip fraction and final accuracy against num_iterations, and the clip fraction of each pass."""
    by_pass = "clipped, by pass\nover the batch"
    trends = {"clipped tokens (share)": "clip/active", "final accuracy": "final_score"}
    sheet = Sheet(study, ["clipped tokens (share)", by_pass, "final accuracy"], share_x=False)
    for facet in study.facets:
        for row, metric in trends.items():
            values_SL = by_setting(study, measure(study, metric), facet, "setting/num_iterations")
            sheet.add(_draw_trend(sheet.grid[row, facet], values_SL, study, metric), metric=metric, facet=facet)
        panel = sheet.grid[by_pass, facet]
        for arm, updates in study.by_arm("updates", facet):
            values_XS = panels.pivot_seeds(updates, "iteration", "clip/active")
            series = draw_seeds(panel, values_XS, sheet.styles[arm], share_band)
            sheet.add(series, metric="clip/active", by="iteration", facet=facet, arm=arm)
        panels.whole_numbers(panel)
        panel.set_xlabel("pass (0 = first)")
    sheet.legend()
    caption = (
        "Clip fraction (mean over all optimiser steps) and final accuracy against num_iterations, with the p-value of"
        " Page's test that they rise (ranks within seeds); between them the clip fraction of each pass over the batch."
    )
    return sheet.drawing(caption, MEAN_DOTS)


def _draw_trend(panel: Axes, values_SL: pd.DataFrame, study: Study, metric: str) -> dict:
    """Seeds as dots, the mean with its interval, and the trend's p."""
    if values_SL.columns.empty:
        return {"x": []}
    x = values_SL.columns.to_numpy(dtype=float)
    mean, low, high, _ = band = band_of(study, metric)(values_SL.to_numpy().T)
    panel.plot(x, values_SL.to_numpy().T, ".", color=QUIET, markersize=3)
    panel.errorbar(x, mean, yerr=[mean - low, high - mean], color="black", marker="o", capsize=2, elinewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.set_xticks(x, [f"{value:g}" for value in x])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("num_iterations")
    p = page_trend(values_SL.to_numpy())
    if np.isfinite(p):
        panel.set_title(f"rising: {p_equals(p)}", loc="right", fontsize=7)  # inside, it would lie on the data
    series = panels.band_series(values_SL.T, band)
    seeds = series.pop("seeds")
    return {**series, "x": x.tolist(), "trend_p": p, "seeds": seeds}
