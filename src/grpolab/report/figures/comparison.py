"""Figures that compare arms: paired differences, aggregates over tasks, time to a threshold, stability, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from grpolab.report import how_many_seeds, measures, style
from grpolab.report.claims import OPEN, Claim
from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN_DOTS, Drawing, NotDrawnError, Sheet, arm_label
from grpolab.report.load import StudyRuns
from grpolab.report.registered import CONFIRMATORY
from grpolab.report.statistics import intervals, looks
from grpolab.report.statistics.intervals import LEAST_FOR_BOOTSTRAP, REPLICATES, Interval, TooFewError
from grpolab.report.statistics.tests import wilson
from grpolab.report.style import QUIET, Manifest
from grpolab.report.text import estimate, number
from grpolab.vocabulary import MARGIN_OF_GAIN

UNPAIRED = "difference of means over seeds, 95% interval of Welch: a description, not corrected"
DESCRIPTION = "mean over shared seeds, 95% t-interval: a description, not corrected; dots are seeds"


def draw_final_accuracy(study: StudyRuns) -> Drawing:
    """{score} minus that of `{study.baseline}`{how}, on one scale. Grey: the margin, within which a difference is too
    small to matter.
    """
    others, baseline = [arm for arm in study.arms if arm != study.baseline], arm_label(study, study.baseline)
    if not others:
        raise NotDrawnError(f"needs an arm beside {baseline}")
    sheet = _draw_differences(study, dict.fromkeys(others, study.baseline))
    sheet.figure.supxlabel(f"final {study.score_name} minus that of {baseline}", fontsize=7.5)
    if not study.is_paired:
        return sheet.finish(UNPAIRED, score=f"Mean final {study.score_name}", how=", unpaired")
    return sheet.finish(DESCRIPTION, score=f"Final {study.score_name}", how=" with the same seed")


def _draw_differences(study: StudyRuns, pairs: dict[str, str]) -> Sheet:
    """Draw a row for each pair of arms: final accuracy of the first minus that of the second, by seed."""
    sheet, scores = Sheet(study, [""], height=0.5 + 0.2 * len(pairs)), measures.measure(study, "final_score")
    for (_, facet), panel in sheet.grid.items():
        if (margin := margin_in(study, facet)) > 0:
            panel.axvspan(-margin, margin, color="0.93", linewidth=0, zorder=0)
        for y, (arm, other) in enumerate(pairs.items()):
            by_seed = (measures.at(scores, facet, arm) - measures.at(scores, facet, other)).dropna()
            if not study.is_paired:  # the difference of two unrelated runs with one seed number means nothing
                by_seed = by_seed[:0]
            apart = measures.difference(study, scores, facet, arm, other)
            interval = Interval(apart.effect, apart.low, apart.high, apart.n)
            labels = {"facet": facet, "minus": other, "margin": margin}
            sheet.draw_interval(panel, y, by_seed, interval, arm, metric="final_score", **labels)
            if not apart.n:
                panel.annotate("no runs", (0.02, y), xycoords=("axes fraction", "data"), va="center", color=QUIET)
        panel.axvline(0, color=QUIET, linewidth=0.6, zorder=0)
        sheet.name_rows(panel, list(pairs))
        panel.margins(x=0.1)
    ends = [panel.get_xlim() for panel in sheet.grid.values()]
    for panel in sheet.grid.values():
        panel.set_xlim(np.min(ends), np.max(ends))
        panel.locator_params(axis="x", nbins=5 if len(sheet.grid) <= 3 else 3)  # numbers of narrow panels run together
    return sheet


def margin_in(study: StudyRuns, facet: str) -> float:
    """Return the smallest difference in final accuracy that matters in a facet: the one that the study registered.

    Without one, it is the default share of the baseline's mean gain; NaN without runs of the baseline.
    """
    first = int((study.cells["facet"] == facet).to_numpy().argmax())
    place = "/".join(filter(None, (study.places()[first], str(study.tasks.iloc[first]))))
    entries = [
        (study.plan.get("registered") or {}).get(hypothesis["id"], {"margins": {}})
        for hypothesis in study.plan.get("hypotheses", [])
        if hypothesis["metric"] == "final_score" and hypothesis["scale"] == "linear"
    ]
    if known := [margin for entry in entries if (margin := entry["margins"].get(place))]:
        return float(min(known))
    return float(MARGIN_OF_GAIN * measures.at(measures.measure(study, "gain"), facet, study.baseline).mean())


_AGGREGATES: dict[str, Callable[[NDArray], NDArray]] = {
    "interquartile mean": intervals.iqm,
    "mean": lambda scores_TS: scores_TS.mean(axis=(-2, -1)),
    "median": lambda scores_TS: np.median(scores_TS, axis=(-2, -1)),
    "optimality gap\n(less is better)": intervals.optimality_gap,
}


def draw_aggregate_scores(study: StudyRuns) -> Drawing:
    """Normalised score {score} over all tasks: 0 is the warm start, 1 always right. The interquartile mean leaves out
    the best and the worst quarter of runs; the optimality gap is how far runs stay below 1. Only seeds that every arm
    has on every task. Interquartile means: {means}.
    """
    groups = measures.pool_tasks(study)
    if all(group.lack for group in groups):
        raise NotDrawnError(groups[0].lack)
    sheet = Sheet(study, [group.title for group in groups], list(_AGGREGATES), height=0.6 + 0.17 * len(study.arms))
    written = list[str]()
    for group in groups:
        if group.lack:
            sheet.write_lack(sheet.grid[group.title, "mean"], group.lack, facet=group.title)
            continue
        for name, statistic in _AGGREGATES.items():
            panel = sheet.grid[group.title, name]
            bounds_A = intervals.estimate_with_bounds(group.scores_ATS, statistic)
            for y, (arm, mean, low, high) in enumerate(zip(group.arms, *bounds_A, strict=True)):
                interval = Interval(float(mean), float(low), float(high), len(group.seeds))
                sheet.draw_interval(panel, y, pd.Series(dtype=float), interval, arm, metric=name, facet=group.title)
                if statistic is intervals.iqm:
                    place = f", {group.title}" if group.title else ""
                    written.append(f"`{arm}`{place} {estimate(*interval[:3])}")
            sheet.name_rows(panel, group.arms)
    how = (
        f"95% percentile interval of a bootstrap of seeds within tasks, the same seeds for every arm ({REPLICATES:,}"
        f" replicates, generator seed 0), where there are {LEAST_FOR_BOOTSTRAP} runs of each task or more"
    )
    return sheet.finish(how, score=measures.SCORE, means="; ".join(written))


def draw_time_to_threshold(study: StudyRuns) -> Drawing:
    """Share of runs whose held-out accuracy (`{study.metric}`) has risen above their own start by the threshold: half
    of the gain of `{study.baseline}`, from the start of its mean curve to its highest point. By completions
    sampled, as far as evaluations tell; not by seconds, which measure what else the machine was doing: the runs of a
    sweep share its cores. Runs that never get there are censored at their planned end.
    """
    row = "runs that reached it\n(share)"
    sheet = Sheet(study, [row], height=1.7)
    for facet in study.facets:
        panel, arms = sheet.grid[row, facet], dict(study.by_arm("evaluations", facet))
        threshold = half_gain(arms.get(study.baseline, pd.DataFrame()), study.metric)
        labels = {"by": "completions", "facet": facet, "threshold": threshold}
        panel.set(xlabel=f"completions to a gain of {number(threshold)}", ylim=(-0.03, 1.03))
        if np.isnan(threshold):
            sheet.write_lack(panel, f"{study.baseline} gains nothing: there is no threshold", **labels)
            arms = {}
        for arm, evaluations in arms.items():
            ends = []  # of each run: the time when it reaches the threshold or ends, and whether it reaches it
            for _, unsorted in evaluations.groupby("seed"):
                run = unsorted.sort_values("rollout_step")
                gain = run[study.metric] - run[study.metric].iloc[0]
                ends.append(intervals.time_to_threshold(run["completions"], gain, threshold))
            times, reached = zip(*ends, strict=True)
            try:
                survival = intervals.kaplan_meier(times, reached)
            except TooFewError as lack:
                sheet.write_lack(panel, str(lack), **labels, arm=arm)
                continue
            look, x = sheet.styles[arm], [0.0, *survival.time_X.tolist(), max(times)]
            share, low, high = (
                [first, *(1 - values).tolist(), 1 - values[-1]]
                for first, values in ((0.0, survival.share_X), (np.nan, survival.high_X), (np.nan, survival.low_X))
            )
            panel.fill_between(x, low, high, color=look.colour, alpha=0.12, linewidth=0, step="post")
            panel.plot(x, share, color=look.colour, linestyle=look.line, drawstyle="steps-post")
            counts = {"median": survival.median, "n": survival.n, "censored": survival.censored}
            sheet.record({"x": x, "mean": share, "low": low, "high": high, **counts}, **labels, arm=arm)
    sheet.draw_legend()
    return sheet.finish("Kaplan-Meier estimate, 95% log-log interval")


def half_gain(curves: pd.DataFrame, metric: str) -> float:
    """Return half of the gain of the mean curve over seeds, from its start to its highest point; NaN without a gain."""
    if curves.empty:
        return np.nan
    mean_E = curves.groupby("rollout_step")[metric].mean().sort_index().to_numpy(dtype=np.float64)
    start, highest = float(mean_E[0]), float(mean_E.max())
    return (highest - start) / 2 if highest > start else np.nan


def draw_stability(study: StudyRuns) -> Drawing:
    """Stability per arm: rate of collapsed, diverged or stopped runs (95% Wilson interval), largest fall of the
    held-out accuracy below an earlier peak, gradient spikes, largest token ratio (log scale, geometric mean), and the
    fall of the sampling policy's entropy from the first to the last tenth of the run.
    """
    columns = {
        "lost": "collapsed, diverged\nor stopped (rate)",
        "drawdown": "drawdown\n(accuracy)",
        "spikes_per_100": "gradient spikes\nper 100 rollout steps",
        "ratio_max": "largest\ntoken ratio",
        "entropy_drop": "entropy drop\n(nat)",
    }
    table = measures.stability_table(study)
    never = [quantity for quantity in ("drawdown", "spikes_per_100") if not (table[quantity] > 0).any()]
    shown = {title: quantity for quantity, title in columns.items() if quantity not in never}
    sheet = Sheet(study, study.facets, list(shown), height=0.35 + 0.17 * len(study.arms))
    for (facet, column), panel in sheet.grid.items():
        quantity = shown[column]
        for y, arm in enumerate(study.arms):
            runs = table[(table["facet"] == facet) & (table["arm"] == arm)].set_index("seed")
            values_S = runs[quantity].astype("float64")
            if quantity == "lost":
                interval = wilson(int(values_S.sum()), len(values_S))
            elif quantity == "ratio_max":
                interval = intervals.geometric_interval(values_S)
            else:
                interval = measures.mean_interval(study, quantity, values_S)
            sheet.draw_interval(panel, y, values_S, interval, arm, metric=quantity, facet=facet)
        sheet.name_rows(panel, study.arms)
        if quantity == "lost":
            panel.set_ylabel(facet.replace("/", "\n"))
            panel.set_xlim(-0.04, 1.04)
    for (_, column), panel in sheet.grid.items():
        if shown[column] == "ratio_max":
            panels.set_log_axis(panel, "x")
        elif shown[column] in ("drawdown", "spikes_per_100"):  # nothing lies below 0
            panel.set_xlim(left=-0.04 * panel.get_xlim()[1])
    left_out = " and ".join(columns[quantity].split("\n")[0] for quantity in never)
    return sheet.finish(MEAN_DOTS, f" Left out, because no run has any: {left_out}." if never else "")


FULL = "full"


def draw_each_change(study: StudyRuns) -> Drawing:
    """Effect of each change on the final accuracy, seed by seed: from `{study.baseline}` on each + is added to the arm
    above it, and below the line one change is left out of `full`.
    """
    rungs = ladder_of(study.arms, study.baseline)
    if not rungs:
        raise NotDrawnError(
            f"needs arms that are named +x for a change that is added, {FULL} for all of them, -x for one left out"
        )
    sheet, names = _draw_differences(study, rungs), list(rungs)
    for panel in sheet.grid.values() if FULL in names and names[-1] != FULL else ():  # where leaving out begins
        panel.axhline(names.index(FULL) + 0.5, color=QUIET, linewidth=0.7)
    sheet.figure.supxlabel("final accuracy minus that of the arm that is changed", fontsize=7.5)
    return sheet.finish(DESCRIPTION)


def ladder_of(arms: list[str], baseline: str) -> dict[str, str]:
    """Return each rung with the arm that it changes: the one before, or `full` for one left out; {} for no ladder."""
    added = [baseline, *(arm for arm in arms if arm.startswith("+")), *(arm for arm in arms if arm == FULL)]
    left_out = [arm for arm in arms if arm.startswith("-") and FULL in arms]
    if len(added) == 1 or len(added) + len(left_out) < 3:
        return {}
    return dict(zip(added[1:], added, strict=False)) | dict.fromkeys(left_out, FULL)


LEAST_SEEDS = 20  # of a study, for papers with up to five
_PAPERS = {
    "wrong sign\n(share of papers)": ("wrong_sign", "one margin"),
    "no difference,\nclaimed (share)": ("claimed", "none"),
    "exaggeration of\nclaims (times)": ("exaggeration", "one margin"),
}
_PAIRINGS = {"unpaired": style.ArmStyle("#d55e00", "--", "s"), "paired": style.ArmStyle("#0072b2", "-", "o")}


def draw_sign_errors(study: StudyRuns) -> Drawing:
    """What papers with few seeds would report, drawn from the runs of `{study.name}`: paired, with the same seeds of
    both arms, or unpaired. First, how often the worse arm is ahead where the true difference is one margin; then how
    often a difference is claimed where there is none; last, how many times too large the claimed ones are on average,
    where the truth is one margin. Mean over the arms against `{study.baseline}`; dotted: a coin's toss, 5%, and no
    exaggeration. With one seed a claim is a difference of a margin or more, else an interval without 0.
    """
    table = how_many_seeds.sign_errors(study)
    table = table[(table["arm"] == "mean") & (table["seeds"] >= LEAST_SEEDS)] if len(table) else table
    if table.empty:
        raise NotDrawnError(f"needs {LEAST_SEEDS} seeds that an arm and {study.baseline} share, and a gain")
    sheet = Sheet(study, _PAPERS, height=1.4)
    for (row, facet), panel in sheet.grid.items():
        rate, true = _PAPERS[row]
        here = table[(table["facet"] == facet) & (table["true"] == true)]
        for (pairing, look), shift in zip(_PAIRINGS.items(), (-0.07, 0.07), strict=True):
            of = here[here["runs"] == pairing]
            mean, low, high = (of[name].to_numpy() for name in (rate, f"{rate}_low", f"{rate}_high"))
            x, error = np.arange(len(of)) + shift, np.maximum([mean - low, high - mean], 0)
            panel.errorbar(x, mean, yerr=error, capsize=2, elinewidth=0.8, **look.line_options)
            series = {"x": of["n"].tolist(), "mean": mean.tolist(), "low": low.tolist(), "high": high.tolist()}
            sheet.record(series, metric=rate, true=true, runs=pairing, facet=facet)
        panel.set_xticks(range(here["n"].nunique()), sorted(here["n"].unique()))
        if rate == "exaggeration":
            panel.axhline(1, color=QUIET, linewidth=0.7, linestyle=":", zorder=0)
        else:
            panel.yaxis.set_major_formatter(PercentFormatter(1))
            panel.axhline(0.5 if rate == "wrong_sign" else 0.05, color=QUIET, linewidth=0.7, linestyle=":", zorder=0)
            panel.set_ylim(bottom=-0.02)
    sheet.label_x("seeds of each arm")
    sheet.draw_legend([panels.line_of(look, pairing) for pairing, look in _PAIRINGS.items()], arms=())
    return sheet.finish("share or mean over imagined papers, 95% interval of a jackknife over seeds: a description")


VERDICTS_PLACE = Path("figures/verdicts.png")
COLOURS = {
    **{looks.SUPPORTED: "#0072b2", looks.OPPOSITE: "#d55e00"},
    **{looks.NEGLIGIBLE: "#009e73", **dict.fromkeys(OPEN, "0.6")},
}
REACH = 12.0  # margins; an interval that goes further ends in an arrow
KEPT = ("study", "id", "verdict", "label", "effect", "low", "high", "n")


def write_verdicts(study: StudyRuns, claims: Sequence[Claim], output: Path) -> tuple[Manifest, Path] | None:
    """Write the forest plot of the tested differences as PNG, PDF and manifest; None where no claim has a margin.

    It stands below the report's screen: a row for each claim below the name of its study.
    """
    shown = [claim for claim in claims if claim.is_finding and np.isfinite([claim.effect, claim.low, claim.high]).all()]
    if not shown:
        return None
    with style.paper_style():
        rows = len(shown) + len({claim.study for claim in shown})
        figure = Figure(figsize=(style.TEXT_WIDTH, 0.8 + 0.17 * rows), layout="constrained")
        _draw_verdicts(figure.subplots(), shown)
    caption = (
        "Every tested difference of means in units of its margin (grey: inside it), with the interval of its decision:"
        " outside of 0 where a direction was decided, inside the grey where the difference is negligible."
        " Round: claimed to differ; square: claimed to be equal. Filled: confirmatory; hollow: exploratory."
        " Logarithmic beyond 2 margins; arrows leave the picture. Counts, trends and metrics without a margin are in"
        " the table."
    )
    numbers = [{key: getattr(claim, key) for key in KEPT} | {"claimed": _claimed(claim)} for claim in shown]
    alt = f"Forest plot of {len(shown)} differences in units of their margins."
    how = "mean over seeds, interval of the decision"
    manifest = style.manifest(study, "verdicts", caption, how, numbers, alt)
    style.save(figure, (output / VERDICTS_PLACE).with_suffix(""))
    manifest.write((output / VERDICTS_PLACE).with_suffix(".json"))
    return manifest, VERDICTS_PLACE


DIFFERENT, EQUAL = "different", "equal"  # what a claim says of two arms
SHAPES = {DIFFERENT: "o", EQUAL: "s"}


def _claimed(claim: Claim) -> str:
    return EQUAL if claim.question and claim.question.is_equality else DIFFERENT


def _draw_verdicts(panel: Axes, shown: Sequence[Claim]) -> None:
    panel.axvspan(-1, 1, color="0.93", linewidth=0)
    panel.axvline(0, color=QUIET, linewidth=0.6)
    place, ticks = 0.0, list[tuple[float, str]]()
    for name, group in groupby(shown, key=lambda claim: claim.study):
        ticks.append((place, name.replace("_", " ")))
        panel.axhline(place, color="0.9", linewidth=5, zorder=0)
        for claim in group:
            place += 1
            colour = COLOURS[claim.verdict]
            face = colour if claim.label == CONFIRMATORY else "white"
            low, effect, high = np.clip([claim.low, claim.effect, claim.high], -REACH, REACH)
            panel.hlines(place, low, high, color=colour, linewidth=1.6)
            panel.plot(effect, place, SHAPES[_claimed(claim)], color=colour, markerfacecolor=face, markersize=4)
            for leaves, end, arrow in ((claim.low < -REACH, -REACH, "<"), (claim.high > REACH, REACH, ">")):
                if leaves:
                    panel.plot(end, place, arrow, color=colour, markersize=3.5, clip_on=False)
            ticks.append((place, f"{claim.id}  {claim.contrast}" + (f" ({claim.where})" if claim.where else "")))
            look: dict[str, Any] = {"va": "center", "fontsize": 6.5, "color": colour}
            words = claim.word if claim.verdict in (looks.SUPPORTED, looks.OPPOSITE) else claim.verdict
            words += " (equal)" if _claimed(claim) == EQUAL else ""
            panel.annotate(words, (1.01, place), xycoords=("axes fraction", "data"), **look)
        place += 1
    panel.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
    panel.set_ylim(place - 0.4, -0.8)
    panel.set_xscale("symlog", linthresh=2)
    panel.set_xticks(values := [-10, -5, -2, -1, 0, 1, 2, 5, 10], map(str, values))
    panel.minorticks_off()
    panel.grid(visible=False, axis="y")
    panel.set_xlabel("difference in margins (grey: too small to matter)")
