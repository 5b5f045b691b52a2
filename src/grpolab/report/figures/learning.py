"""Figures of a run over time: reward and accuracy, entropy, KL, lengths, gradient norm, groups of equal rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from grpolab.report.figures import panels
from grpolab.report.figures.panels import GEOMETRIC, MEAN, OVER_TIME, Drawing, NotDrawnError, Sheet, pivot_seeds
from grpolab.report.journals import final_score
from grpolab.report.load import StudyRuns
from grpolab.report.stability import gradient_spikes
from grpolab.report.statistics.intervals import geometric_band, share_band, t_band
from grpolab.report.style import QUIET, ArmStyle
from grpolab.vocabulary import DIVERGED, EXACT_EVALUATION, PASS_AT, STOPPED


def draw_learning_curves(study: StudyRuns) -> Drawing:
    """Training reward (batch mean) and held-out accuracy (`{study.metric}`) over rollout steps."""
    rows = {"training reward": ("rollouts", "reward/mean"), "held-out accuracy": ("evaluations", study.metric)}
    sheet = panels.draw_curves(study, rows)
    for cell in study.done[study.done["outcome"].isin([DIVERGED, STOPPED])].itertuples():
        evaluations = pd.DataFrame(study.of_cell("evaluations", cell))
        last = evaluations[~evaluations["carried"]].tail(1)  # the last finite one has a cross
        panel, colour = sheet.grid["held-out accuracy", cell.facet], sheet.styles[cell.arm].colour
        panel.plot(last["rollout_step"], last[study.metric], "x", color=colour, markersize=6, markeredgewidth=1.5)
    return sheet.finish(OVER_TIME)


LOGGED = {
    "training reward": ("rollouts", "reward/mean"),
    "length (tokens)": ("rollouts", "length/mean"),
    "truncated share": ("rollouts", "truncation/share"),
    "equal groups": ("rollouts", "zero_variance/share"),
    "entropy (nat)": ("rollouts", "entropy/behaviour"),
    "clip fraction": ("updates", "clip/active"),
    "KL to reference": ("updates", "kl_ref/k3"),
}


def draw_logged_curves(study: StudyRuns) -> Drawing:
    """All that the logs hold, over their steps."""
    rows = {row: (table, metric) for row, (table, metric) in LOGGED.items() if metric in getattr(study, table)}
    if not rows:
        raise NotDrawnError("no log has what it shows")
    return panels.draw_curves(study, rows).finish(OVER_TIME)


def draw_entropy(study: StudyRuns) -> Drawing:
    """Entropy of the sampling policy over rollout steps, mean over completion tokens; and its difference to that of
    `{study.baseline}` with the same seed.
    """
    metric, difference = "entropy/behaviour", f"entropy minus that\nof {panels.arm_label(study, study.baseline)} (nat)"
    places, is_baseline = ["facet", "seed", "rollout_step"], study.rollouts["arm"] == study.baseline
    baseline, others = study.rollouts[is_baseline].set_index(places)[metric], study.rollouts[~is_baseline]
    same_place = baseline.reindex(pd.MultiIndex.from_frame(others[places])).to_numpy()
    differences = others.assign(**{metric: others[metric] - same_place})
    rows = {"entropy\n(nat per token)": ("rollouts", metric), difference: (differences, metric)}
    sheet = panels.draw_curves(study, rows)
    sheet.mark(0, difference)
    return sheet.finish(f"{OVER_TIME}; differences paired by seed")


def draw_kl(study: StudyRuns) -> Drawing:
    """KL divergence of the policy from the one that sampled the batch (estimator k3, mean over the optimiser steps of a
    rollout step, of which the first has 0), and from the warm start (exact over the vocabulary, on the completions of
    the rollout steps where it is measured). Log scale; steps without any change are left out.
    """
    rows = {
        "KL(old || new)\n(nat per token)": ("updates", "kl_old/k3"),
        "KL(policy || warm start)\n(nat per token)": ("rollouts", "kl_ref/exact"),
    }
    return panels.draw_curves(study, rows, height=1.6, log=True).finish(GEOMETRIC)


def draw_completion_length(study: StudyRuns) -> Drawing:
    """Mean length of right and of wrong completions in tokens, end token included, on one scale; how much longer the
    wrong ones of a batch are; and the share of completions that ran into the limit without an end token.
    """
    right, wrong, apart = "length/right_mean", "length/wrong_mean", "wrong minus right"
    difference = study.rollouts.get(wrong, np.nan) - study.rollouts.get(right, np.nan)
    rows = {
        "right answers\n(tokens)": ("rollouts", right),
        "wrong answers\n(tokens)": ("rollouts", wrong),
        "wrong minus right\n(tokens)": (study.rollouts.assign(**{apart: difference}), apart),
        "truncated\n(share)": ("rollouts", "truncation/share"),
    }
    sheet = panels.draw_curves(study, rows, height=1.15)
    right_row, wrong_row, difference_row, truncated_row = rows
    lengths = [*sheet.row(right_row), *sheet.row(wrong_row)]
    limits = [panel.get_ylim() for panel in lengths if panel.lines]
    for panel in lengths if limits else []:
        panel.set_ylim(np.min(limits), np.max(limits))
    sheet.mark(0, difference_row)
    for panel in sheet.row(truncated_row):
        panel.set_ylim(bottom=0)
    return sheet.finish(OVER_TIME)


def draw_gradient_norm(study: StudyRuns) -> Drawing:
    """Global gradient norm before clipping (log scale). First the largest of a rollout step; a star is a spike: more
    than {study.thresholds.spike_factor:g} times the median of the {study.thresholds.spike_window} rollout steps before.
    Then by the update's place in its batch (0: the first). Norms of 0 are left out: nothing could be learnt.
    """
    over_time, by_update = "gradient norm,\nlargest of the step", "gradient norm,\nmedian over the run"
    sheet = Sheet(study, [over_time, by_update], share_x=False)
    sheet.draw_metric(over_time, "updates", "grad_norm", log=True, how="max")
    for panel, facet, arm, updates in sheet.by_arm(over_time, "updates", "grad_norm"):
        look = sheet.styles[arm]
        labels: dict[str, Any] = {"metric": "grad_norm", "facet": facet, "arm": arm}
        for seed, norms in pivot_seeds(updates, "rollout_step", "grad_norm", "max").items():
            spikes = norms[gradient_spikes(norms.to_numpy(), study.thresholds)]
            panel.plot(spikes.index, spikes, "*", color=look.colour, markersize=5, markeredgewidth=0)
            sheet.record({"x": spikes.index.tolist(), "spikes": spikes.tolist()}, **labels, seed=seed)
        places = updates.assign(update=updates.groupby(["seed", "rollout_step"]).cumcount())
        norms_XS, labels["by"] = pivot_seeds(places, "update", "grad_norm", "median"), "update in the batch"
        sheet.draw_means(sheet.grid[by_update, facet], norms_XS, look, geometric_band, **labels)
    for (row, _), panel in sheet.grid.items():
        panels.set_log_axis(panel, "y")
        panel.set_xlabel("rollout steps" if row == over_time else "update of a batch")
        if row == by_update:
            panels.set_whole_ticks(panel)
    sheet.draw_legend([Line2D([], [], color="black", marker="*", linestyle="", label="spike (any seed)")])
    return sheet.finish(GEOMETRIC)


def draw_equal_reward_groups(study: StudyRuns) -> Drawing:
    """Groups whose completions all have the same reward. First the runs of `{study.baseline}`: all right and all wrong,
    stacked, mean over seeds; dotted, what one success probability p common to all prompts (the batch's mean) would
    give, p^G + (1 - p)^G for groups of G. Then the share of such groups for every arm.
    """
    stacked, share = f"share of groups,\n{panels.arm_label(study, study.baseline)}", "groups of equal\nrewards (share)"
    sheet = Sheet(study, [stacked, share])
    for panel, facet, arm, rollouts in sheet.by_arm(stacked, "rollouts"):
        if arm != study.baseline:
            continue
        names = ["zero_variance/all_right", "zero_variance/all_wrong", "reward/correct"]
        shares = rollouts.reindex(columns=["rollout_step", *names])
        means = panels.smooth(shares.groupby("rollout_step").mean().astype("float64"))
        all_right, all_wrong, p = (means[name] for name in names)
        cells = study.cells[(study.cells["facet"] == facet) & (study.cells["arm"] == arm)]
        group_size = int(cells["setting/num_generations"].iloc[0])  # arms may have others
        theory = p**group_size + (1 - p) ** group_size
        panel.stackplot(means.index, all_right, all_wrong, colors=["0.8", "0.5"], linewidth=0)
        panel.plot(means.index, theory, color="black", linestyle=":", linewidth=1)
        for metric, values in zip([*names[:2], "p^G+(1-p)^G"], (all_right, all_wrong, theory), strict=True):
            sheet.record({"x": means.index.tolist(), "mean": values.tolist()}, facet=facet, arm=arm, metric=metric)
    sheet.draw_metric(share, "rollouts", "zero_variance/share")
    sheet.start_at_zero()
    sheet.label_x("rollout steps")
    areas = [Patch(color=colour, label=label) for label, colour in (("all right", "0.8"), ("all wrong", "0.5"))]
    sheet.draw_legend([*areas, Line2D([], [], color="black", linestyle=":", label="by chance alone")])
    return sheet.finish(OVER_TIME)


START = ArmStyle(QUIET, "--", "None")  # of the warm start


def draw_pass_at_k(study: StudyRuns) -> Drawing:
    """Share of held-out items with a right one among k completions, exact from an item's probability p (mean of
    1 - (1 - p)^k) or estimated without bias. Dashed: the warm start; the end is the mean of the late evaluations, as of
    a score. Below: how much that is above it, paired by seed.{crossings}
    """
    names = {1: study.metric} | {k: f"eval/pass_at_{k}" for k in PASS_AT}
    if study.metric != EXACT_EVALUATION[0] or not any(name in study.evaluations for name in [*names.values()][1:]):
        raise NotDrawnError(f"needs {names[PASS_AT[0]]}: evaluation.samples of {PASS_AT[0]} or more")
    share, gain = "pass@k\n(share of items)", "end minus start\n(points)"
    sheet, crossings = Sheet(study, [share, gain], height=1.9), list[str]()
    sheet.mark(0, gain)
    for panel, facet, arm, evaluations in sheet.by_arm(share, "evaluations", names[PASS_AT[0]]):
        by_run = [run.sort_values("rollout_step") for _, run in evaluations.groupby("seed")]
        known = {k: name for k, name in names.items() if name in evaluations and evaluations[name].notna().any()}
        start_XS, end_XS = (
            pd.DataFrame({int(run["seed"].iloc[0]): {k: at(run[name]) for k, name in known.items()} for run in by_run})
            for at in (lambda values: values.iloc[0], lambda values: final_score(values, study.thresholds.score_tail))
        )
        labels: dict[str, Any] = {"metric": "pass@k", "facet": facet, "arm": arm}
        if not any(series["facet"] == facet for series in sheet.numbers):
            sheet.draw_means(panel, start_XS, START, share_band, **labels | {"arm": "start"})
        sheet.draw_means(panel, end_XS, sheet.styles[arm], share_band, **labels)
        apart_XS = 100 * (end_XS - start_XS)
        mean_X = sheet.draw_means(sheet.grid[gain, facet], apart_XS, sheet.styles[arm], t_band, **labels, minus="start")
        if (k := crossing(apart_XS.index.to_numpy(), mean_X)) < np.inf:
            sure = t_band(apart_XS.to_numpy())[2][-1] < 0
            place = f" on {facet}" if facet else ""
            crossings.append(f"`{arm}`{place} at k = {k:.0f}{' (below 0 beyond its interval)' if sure else ''}")
    for panel in sheet.grid.values():
        panel.set_xscale("log", base=2)
        panel.set_xticks([*names], [*map(str, names)])
        panel.minorticks_off()
    sheet.label_x("k (completions of an item)")
    sheet.draw_legend([panels.line_of(START, "warm start")])
    below = f" Here: {'; '.join(crossings)}." if crossings else " None does here."
    return sheet.finish(MEAN, crossings=below)


def crossing(k_X: NDArray, gain_X: NDArray) -> float:
    """Return the k at which a gain that begins above 0 falls below it for good, linear in log k; infinite if never."""
    if not len(gain_X) or gain_X[-1] >= 0:
        return np.inf
    last = int(np.flatnonzero(gain_X > 0)[-1]) if (gain_X > 0).any() else -1
    if last < 0:
        return float(k_X[0])
    share = gain_X[last] / (gain_X[last] - gain_X[last + 1])
    return float(k_X[last] * (k_X[last + 1] / k_X[last]) ** share)
