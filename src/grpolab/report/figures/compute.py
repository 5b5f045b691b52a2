"""Figures against compute: saturation curves and their extrapolation, time to a threshold, reuse of a batch."""

from __future__ import annotations

import numpy as np
import pandas as pd

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN_DOTS, Drawing, Sheet, draw_along, figure
from grpolab.report.figures.sensitivity import Axis
from grpolab.report.load import Study
from grpolab.report.measures import band_of, by_setting, completions_learnt, measure
from grpolab.report.statistics import intervals
from grpolab.report.statistics.curves import PARAMETERS, Saturation, fit_saturation, kaplan_meier, time_to_threshold
from grpolab.report.statistics.intervals import Interval, TooFewError, share_band, t_band
from grpolab.report.style import QUIET, ArmStyle, Series
from grpolab.report.text import number

HELD_OUT = 0.25  # share of the evaluations, the last ones
_CURVE, _SURPRISE = "held-out accuracy", "predicted minus measured"


@figure("F29", "accuracy_against_compute", "Accuracy against rollouts, with a sigmoid fit and its extrapolation")
def draw_compute_curve(study: Study) -> Drawing:
    """Accuracy by completions with fitted curves; the error of the extrapolation by arm."""
    sheet = Sheet(study, [_CURVE, _SURPRISE], height=1.1 + 0.08 * len(study.arms), share_x=False)
    for facet in study.facets:
        panel = sheet.grid[_CURVE, facet]
        for arm, evaluations in study.by_arm("evaluations", facet):
            try:
                _draw_arm(sheet, facet, arm, evaluations)
            except TooFewError as lack:
                sheet.say(panel, str(lack), facet=facet, arm=arm)
        panel.set_xlabel("completions")
        panel = sheet.grid[_SURPRISE, facet]
        sheet.name_rows(panel, study.arms)
        panel.set(xlabel=_SURPRISE, ylabel="")
        if panel.lines:
            panel.axvline(0, color=QUIET, linewidth=0.7, linestyle=":")
        else:
            panel.set_xticks([])
            panels.say(panel, "too few evaluations to hold any out")
    sheet.legend()
    caption = (
        f"Held-out accuracy (`{study.metric}`) against completions learnt from, mean over seeds. Lines: mean of the"
        " curves start + (A - start)/(1 + (C_mid/C)^B) that are fitted to each run by least squares, A at most 1; the"
        " manifest has A, B and C_mid of the runs whose curve identifies them. Below, how much too high the curve is at"
        f" the last {HELD_OUT:.0%} of the evaluations when it is fitted without them (dotted)."
    )
    return sheet.drawing(caption, MEAN_DOTS)


def _draw_arm(sheet: Sheet, facet: str, arm: str, evaluations: pd.DataFrame) -> None:
    """An arm's mean curve with the fits to its runs, and a row for the extrapolation.

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
    panel, scores_ES = sheet.grid[_CURVE, facet], pd.DataFrame(scores)
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

    for parameter in PARAMETERS:
        known = {seed: getattr(fit, parameter) for seed, fit in whole.items() if fit.identified[parameter]}
        interval = Interval(np.nan, np.nan, np.nan, len(known))  # some runs alone are no sample
        if len(known) == len(whole):  # A is an accuracy
            of = intervals.share_interval if parameter == "asymptote" else intervals.geometric_interval
            interval = of(list(known.values()))
        sheet.add({**interval._asdict(), "runs": len(whole), "seeds": known}, **labels, metric=parameter)
    values = np.array(list(surprises.values()))
    interval = intervals.t_interval(values)
    if surprises:
        panels.draw_row(sheet.grid[_SURPRISE, facet], study.arms.index(arm), values, interval, style)
    sheet.add({**interval._asdict(), "seeds": surprises}, **labels, metric=_SURPRISE)


@figure("F25", "time_to_threshold", "Time until half of the gain is reached, runs that never reach it censored")
def draw_threshold_time(study: Study) -> Drawing:
    """Share of runs that have reached the threshold by completions learnt from."""
    row = "runs that reached it\n(share)"
    sheet = Sheet(study, [row], height=1.7)
    for facet in study.facets:
        panel, arms = sheet.grid[row, facet], dict(study.by_arm("evaluations", facet))
        threshold = half_gain(arms.get(study.baseline, pd.DataFrame()), study.metric)
        labels = {"by": "completions", "facet": facet, "threshold": threshold}
        panel.set(xlabel=f"completions to a gain of {number(threshold)}", ylim=(-0.03, 1.03))
        if np.isnan(threshold):
            sheet.say(panel, f"{study.baseline} gains nothing: there is no threshold", **labels)
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
                sheet.say(panel, str(lack), **labels, arm=arm)
                continue
            style = sheet.styles[arm]
            x = [0.0, *survival.time_X.tolist(), max(times)]
            share, low, high = (
                [first, *(1 - values).tolist(), 1 - values[-1]]
                for first, values in ((0.0, survival.share_X), (np.nan, survival.high_X), (np.nan, survival.low_X))
            )
            panel.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0, step="post")
            panel.plot(x, share, color=style.colour, linestyle=style.line, drawstyle="steps-post")
            series = {"x": x, "mean": share, "low": low, "high": high}
            counts = {"median": survival.median, "n": survival.n, "censored": survival.censored}
            sheet.add({**series, **counts}, **labels, arm=arm)
    sheet.legend()
    caption = (
        f"Share of runs whose held-out accuracy (`{study.metric}`) has risen above their own start by the threshold:"
        f" half of the gain of `{study.baseline}`, from the start of its mean curve to its highest point. By"
        " completions learnt from, as far as evaluations tell; not by seconds, which measure what else the machine was"
        " doing: the runs of a sweep share its cores. Runs that never get there are censored at their planned end."
    )
    return sheet.drawing(caption, "Kaplan-Meier estimate, 95% log-log interval")


def half_gain(curves: pd.DataFrame, metric: str) -> float:
    """Half of the gain of the mean curve over seeds, from its start to its highest point; NaN without a gain."""
    if curves.empty:
        return np.nan
    mean_E = curves.groupby("rollout_step")[metric].mean().sort_index().to_numpy(dtype=np.float64)
    start, highest = float(mean_E[0]), float(mean_E.max())
    return (highest - start) / 2 if highest > start else np.nan


_PASSES, _BLACK = "setting/num_iterations", ArmStyle("black", "-", "o")


@figure("F18", "batch_reuse", "Clip fraction and final accuracy against the number of passes over a batch")
def draw_reuse(study: Study) -> Drawing:
    """Mean clip fraction and final accuracy against num_iterations, and the clip fraction of each pass."""
    clipped, by_pass = "clipped tokens\n(share)", "clipped, by pass\nover the batch"
    gain = f"final accuracy minus\nthat of {panels.arm_label(study, study.baseline)}"
    own = study.cells.loc[study.cells["arm"] == study.baseline, _PASSES].iloc[0]
    sheet = Sheet(study, [clipped, by_pass, gain], share_x=False)
    for facet in study.facets:
        for row, metric in ((clipped, "clip/active"), (gain, "final_score")):
            values_LS = by_setting(study, measure(study, metric), facet, _PASSES).T
            if row == gain and len(values_LS):
                values_LS = values_LS - values_LS.reindex([own]).iloc[0]
            series: Series = {"x": []}
            if len(values_LS):
                axis, band = Axis(values_LS.index.tolist(), "num_iterations"), share_band if row == clipped else t_band
                series = draw_along(sheet.grid[row, facet], axis.places(axis.values), values_LS, _BLACK, band)
                axis.label(sheet.grid[row, facet])
            sheet.add(series, metric=metric, facet=facet, **({"minus": study.baseline} if row == gain else {}))
        panel = sheet.grid[by_pass, facet]
        for arm, updates in study.by_arm("updates", facet):
            values_XS = panels.pivot_seeds(updates, "iteration", "clip/active")
            labels = {"metric": "clip/active", "by": "iteration", "facet": facet, "arm": arm}
            sheet.line(panel, values_XS, sheet.styles[arm], share_band, **labels)
        panels.whole_numbers(panel)
        panel.set_xlabel("pass (0 = first)")
    for panel in sheet.row(gain):
        panel.axhline(0, color=QUIET, linewidth=0.7, linestyle=":")
    sheet.legend()
    caption = (
        "Clip fraction (mean over all optimiser steps) against num_iterations; the clip fraction of each pass over the"
        f" batch; and final accuracy against num_iterations, minus that of `{study.baseline}` with the same seed."
    )
    return sheet.drawing(caption, f"{MEAN_DOTS}; differences paired by seed")
