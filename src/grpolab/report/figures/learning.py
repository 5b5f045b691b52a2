"""Figures of a run over time: reward and accuracy, entropy, KL, lengths, gradient norm, groups of equal rewards."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grpolab.report.figures import panels
from grpolab.report.figures.panels import GEOMETRIC, OVER_TIME, Drawing, NotDrawnError, Sheet, pivot_seeds, smoothed
from grpolab.report.load import StudyRuns
from grpolab.report.stability import gradient_spikes
from grpolab.report.statistics.intervals import geometric_band
from grpolab.vocabulary import DIVERGED, STOPPED


def draw_learning_curves(study: StudyRuns) -> Drawing:
    """Draw F1. A run that ended early has a cross at its last finite evaluation."""
    rows = {"training reward": ("rollouts", "reward/mean"), "held-out accuracy": ("evaluations", study.metric)}
    sheet = panels.lines_by_arm(study, rows)
    for cell in study.done[study.done["outcome"].isin([DIVERGED, STOPPED])].itertuples():
        evaluations = study.of_cell("evaluations", cell)
        last = evaluations[~evaluations["carried"]].tail(1)
        panel, colour = sheet.grid["held-out accuracy", cell.facet], sheet.styles[cell.arm].colour
        panel.plot(last["rollout_step"], last[study.metric], "x", color=colour, markersize=6, markeredgewidth=1.5)
    caption = f"Training reward (batch mean) and held-out accuracy (`{study.metric}`) over rollout steps."
    return sheet.drawing(caption, OVER_TIME)


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
    """Draw D2: whatever of LOGGED the logs of another framework hold."""
    rows = {row: (table, metric) for row, (table, metric) in LOGGED.items() if metric in getattr(study, table)}
    if not rows:
        raise NotDrawnError("no log has what it shows")
    return panels.lines_by_arm(study, rows).drawing("What the logs hold, over their steps.", OVER_TIME)


def draw_entropy(study: StudyRuns) -> Drawing:
    """Draw F12."""
    metric, baseline = "entropy/behaviour", panels.arm_label(study, study.baseline)
    entropy, difference = "entropy\n(nat per token)", f"entropy minus that\nof {baseline} (nat)"
    sheet = Sheet(study, [entropy, difference])
    sheet.lines(entropy, "rollouts", metric)
    sheet.lines(difference, _minus_baseline(study, study.rollouts, metric), metric)
    sheet.mark_zero(difference)
    sheet.label_x("rollout steps")
    sheet.legend()
    caption = (
        "Entropy of the sampling policy over rollout steps, mean over completion tokens; and its difference to that of"
        f" `{study.baseline}` with the same seed."
    )
    return sheet.drawing(caption, f"{OVER_TIME}; differences paired by seed")


def _minus_baseline(study: StudyRuns, records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the records of all other arms with `metric` minus the baseline's of the same seed and rollout step."""
    places, is_baseline = ["facet", "seed", "rollout_step"], records["arm"] == study.baseline
    baseline, others = records[is_baseline].set_index(places)[metric], records[~is_baseline]
    same = baseline.reindex(pd.MultiIndex.from_frame(others[places])).to_numpy()
    return others.assign(**{metric: others[metric] - same})


def draw_kl(study: StudyRuns) -> Drawing:
    """Draw F15."""
    rows = {
        "KL(old || new)\n(nat per token)": ("updates", "kl_old/k3"),
        "KL(policy || warm start)\n(nat per token)": ("rollouts", "kl_ref/exact"),
    }
    sheet = panels.lines_by_arm(study, rows, height=1.6, log=True)
    caption = (
        "KL divergence of the policy from the one that sampled the batch (estimator k3, mean over the optimiser steps"
        " of a rollout step, of which the first has 0), and from the warm start (exact over the vocabulary, on the"
        " completions of the rollout steps where it is measured). Log scale; steps without any change are left out."
    )
    return sheet.drawing(caption, GEOMETRIC)


def draw_completion_length(study: StudyRuns) -> Drawing:
    """Draw F17, right and wrong completions on one scale."""
    right, wrong, apart = "length/right_mean", "length/wrong_mean", "wrong minus right"
    difference = study.rollouts.get(wrong, np.nan) - study.rollouts.get(right, np.nan)
    lengths = {"right answers\n(tokens)": right, "wrong answers\n(tokens)": wrong}
    rows = {row: ("rollouts", metric) for row, metric in lengths.items()} | {
        "wrong minus right\n(tokens)": (study.rollouts.assign(**{apart: difference}), apart),
        "truncated\n(share)": ("rollouts", "truncation/share"),
    }
    sheet = panels.lines_by_arm(study, rows, height=1.15)
    length_panels = [panel for row in lengths for panel in sheet.row(row)]
    drawn = [panel.dataLim for panel in length_panels if panel.lines]
    if drawn:
        low, high = min(box.ymin for box in drawn), max(box.ymax for box in drawn)
        room = 0.06 * (high - low) or 0.5
        for panel in length_panels:
            panel.set_ylim(low - room, high + room)
    sheet.mark_zero("wrong minus right\n(tokens)")
    for panel in sheet.row("truncated\n(share)"):
        panel.set_ylim(0, max(0.02, 1.06 * panel.dataLim.ymax) if panel.lines else 1)
    caption = (
        "Mean length of right and of wrong completions in tokens, end token included, on one scale; how much longer the"
        " wrong ones of a batch are; and the share of completions that ran into the limit without an end token."
    )
    return sheet.drawing(caption, OVER_TIME)


def draw_gradient_norm(study: StudyRuns) -> Drawing:
    """Draw F16."""
    over_time, by_update = "gradient norm,\nlargest of the step", "gradient norm,\nmedian over the run"
    limits = study.thresholds
    sheet = Sheet(study, [over_time, by_update], share_x=False)
    sheet.lines(over_time, "updates", "grad_norm", log=True, how="max")
    for panel, facet, arm, updates in sheet.arms(over_time, "updates"):
        style, labels = sheet.styles[arm], {"metric": "grad_norm", "facet": facet, "arm": arm}
        for seed, norms in pivot_seeds(updates, "rollout_step", "grad_norm", "max").items():
            at = norms[gradient_spikes(norms.to_numpy(), limits)]
            panel.plot(at.index, at, "*", color=style.colour, markersize=5, markeredgewidth=0)
            sheet.add({"x": at.index.tolist(), "spikes": at.tolist()}, **labels, seed=seed)
        places = updates.assign(update=updates.groupby(["seed", "rollout_step"]).cumcount())
        norms_XS = pivot_seeds(places, "update", "grad_norm", "median")
        sheet.line(sheet.grid[by_update, facet], norms_XS, style, geometric_band, **labels, by="update in the batch")
    for (row, _), panel in sheet.grid.items():
        panels.log_axis(panel, "y")
        panel.set_xlabel("rollout steps" if row == over_time else "update of a batch")
        if row == by_update:
            panels.whole_numbers(panel)
    sheet.legend([Line2D([], [], color="black", marker="*", linestyle="", label="spike (any seed)")])
    caption = (
        "Global gradient norm before clipping (log scale). First the largest of a rollout step; a star is a spike: more"
        f" than {limits.spike_factor:g} times the median of the {limits.spike_window} rollout steps before. Then by"
        " the update's place in its batch (0: the first). Norms of 0 are left out: nothing could be learnt."
    )
    return sheet.drawing(caption, GEOMETRIC)


def draw_equal_reward_groups(study: StudyRuns) -> Drawing:
    """Draw F20."""
    stacked, share = f"share of groups,\n{panels.arm_label(study, study.baseline)}", "groups of equal\nrewards (share)"
    all_right, all_wrong = "zero_variance/all_right", "zero_variance/all_wrong"
    sheet = Sheet(study, [stacked, share])
    for panel, facet, arm, rollouts in sheet.arms(stacked, "rollouts"):
        if arm == study.baseline:
            shares = rollouts.reindex(columns=["rollout_step", all_right, all_wrong, "reward/correct"])
            means = smoothed(shares.groupby("rollout_step").mean().astype("float64"))
            panel.stackplot(means.index, means[all_right], means[all_wrong], colors=["0.8", "0.5"], linewidth=0)
            cells = study.cells[(study.cells["facet"] == facet) & (study.cells["arm"] == arm)]
            group_size = int(cells["setting/num_generations"].iloc[0])  # arms may have others
            p = means["reward/correct"]
            theory = p**group_size + (1 - p) ** group_size
            panel.plot(means.index, theory, color="black", linestyle=":", linewidth=1)
            drawn = {all_right: means[all_right], all_wrong: means[all_wrong], "p^G+(1-p)^G": theory}
            for metric, values in drawn.items():
                sheet.add({"x": means.index.tolist(), "mean": values.tolist()}, facet=facet, arm=arm, metric=metric)
    sheet.lines(share, "rollouts", "zero_variance/share")
    sheet.start_at_zero()
    sheet.label_x("rollout steps")
    areas = [Patch(color=colour, label=label) for label, colour in (("all right", "0.8"), ("all wrong", "0.5"))]
    sheet.legend([*areas, Line2D([], [], color="black", linestyle=":", label="by chance alone")])
    caption = (
        f"Groups whose completions all have the same reward. First the runs of `{study.baseline}`: all right and all"
        " wrong, stacked, mean over seeds; dotted, what one success probability p common to all prompts (the batch's"
        " mean) would give, p^G + (1 - p)^G for groups of G. Then the share of such groups for every arm."
    )
    return sheet.drawing(caption, OVER_TIME)
