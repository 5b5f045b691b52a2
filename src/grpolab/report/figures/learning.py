"""Figures of a run over time: reward and accuracy, entropy, KL, lengths, gradient norm, groups of equal rewards."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN, SMOOTHED, Drawing, NotDrawnError, Sheet, figure, pivot_seeds, smoothed
from grpolab.report.load import Study
from grpolab.report.stability import gradient_spikes
from grpolab.report.statistics.intervals import geometric_band, t_interval
from grpolab.report.style import QUIET
from grpolab.vocabulary import DIVERGED, STOPPED

OVER_TIME = f"{MEAN}; {SMOOTHED}"
GEOMETRIC = f"geometric mean over seeds, 95% t-interval of the logarithms; {SMOOTHED}"


@figure("F1", "learning_curves", "Learning curves: training reward and held-out accuracy")
def draw_learning_curves(study: Study) -> Drawing:
    rows = {"training reward": ("rollouts", "reward/mean"), "held-out accuracy": ("evaluations", study.metric)}
    sheet = panels.lines_by_arm(study, rows)
    for cell in study.done[study.done["outcome"].isin([DIVERGED, STOPPED])].itertuples():
        evaluations = study.of_cell("evaluations", cell)
        last = evaluations[~evaluations["carried"]].tail(1)  # the last finite one gets a cross
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


@figure("D2", "logged_curves", "What logs of other frameworks show over time")
def draw_logged_curves(study: Study) -> Drawing:
    rows = {row: (table, metric) for row, (table, metric) in LOGGED.items() if metric in getattr(study, table)}
    if not rows:
        raise NotDrawnError("no log has what it shows")
    return panels.lines_by_arm(study, rows).drawing("What the logs hold, over their steps.", OVER_TIME)


@figure("F12", "entropy", "Entropy of the sampling policy, and its difference to the baseline's")
def draw_entropy(study: Study) -> Drawing:
    metric, baseline = "entropy/behaviour", panels.arm_label(study, study.baseline)
    entropy, difference = "entropy\n(nat per token)", f"entropy minus that\nof {baseline} (nat)"
    sheet = Sheet(study, [entropy, difference])
    sheet.lines(entropy, "rollouts", metric)
    sheet.lines(difference, panels.minus_baseline(study, study.rollouts, metric), metric)
    for panel in sheet.row(difference):
        panel.axhline(0, color=QUIET, linewidth=0.7, linestyle=":")
    panels.label_x(sheet.grid, "rollout steps")
    sheet.legend()
    caption = (
        "Entropy of the sampling policy over rollout steps, mean over completion tokens; and its difference to that of"
        f" `{study.baseline}` with the same seed."
    )
    return sheet.drawing(caption, f"{OVER_TIME}; differences paired by seed")


LEAST_POINTS = 4  # evaluations of a run that is fitted
LEAST_RANGE = 0.05  # nat between its lowest and highest entropy
LEAST_R2 = 0.5  # below it the relation does not hold


@figure("F14", "entropy_for_accuracy", "What entropy buys: accuracy against entropy, with the fitted exchange curve")
def draw_entropy_reward(study: Study) -> Drawing:
    """The means over seeds of every evaluation with the mean of the curves fitted to the runs; the slope by arm."""
    way, slope = "held-out accuracy R", "slope a"
    sheet = Sheet(study, [way, slope], height=1.3 + 0.06 * len(study.arms), share_x=False)
    for panel, facet, arm, evaluations in sheet.arms(way, "evaluations"):
        style, rollouts = sheet.styles[arm], study.rollouts
        of_arm = rollouts[(rollouts["facet"] == facet) & (rollouts["arm"] == arm)]
        points = paired(evaluations, of_arm, study.metric)
        means = points.groupby("rollout_step")[["entropy", "accuracy"]].mean()
        panel.plot(means["entropy"], means["accuracy"], style.marker, color=style.colour, linewidth=0)
        fits = pd.DataFrame({seed: fit(run) for seed, run in points.groupby("seed")}, index=["a", "b", "r2"]).T.dropna()
        interval, place, holds = t_interval(fits["a"]), study.arms.index(arm), fits["r2"].median() >= LEAST_R2
        if len(fits):
            x = np.linspace(means["entropy"].min(), means["entropy"].max(), 20)
            panel.plot(x, fits["b"].mean() - fits["a"].mean() * np.exp(x), color=style.colour, linestyle=style.line)
            panels.draw_row(sheet.grid[slope, facet], place, fits["a"].to_numpy(), interval, style, hollow=not holds)
        drawn = {"x": means["entropy"].tolist(), "mean": means["accuracy"].tolist()}
        fitted = {"a": interval._asdict(), "holds": bool(holds), "a_b_r2_of_seeds": panels.by_seed(fits.T)}
        sheet.add({**drawn, **fitted}, facet=facet, arm=arm, points=len(points))
    for panel in sheet.row(way):
        panel.set_xlabel("entropy H (nat per token)")
    for panel in sheet.row(slope):
        sheet.name_rows(panel, study.arms)
        panel.set_xlabel("slope a")
        panel.set_ylabel("")
        if not panel.lines:
            panels.say(panel, "entropy hardly varies, or too few evaluations")
    sheet.legend()
    caption = (
        "Held-out accuracy R of every evaluation against the entropy H of the same policy in its rollout step (the last"
        " one: in the step before), both means over seeds; lines: R = -a exp(H) + b, the mean of the curves that are"
        " fitted to each run by least squares; below their slope a."
        f" No fit where a run has fewer than {LEAST_POINTS} evaluations or its entropy varies by less than"
        f" {LEAST_RANGE:g} nat. Hollow: the fits' median R² is below {LEAST_R2:g}, the relation does not hold."
    )
    return sheet.drawing(caption, "a: mean over seeds, 95% t-interval; dots are seeds")


def paired(evaluations: pd.DataFrame, rollouts: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Columns seed, rollout_step, entropy, accuracy: each evaluation of a run, and the entropy of what it evaluates.

    That policy samples in the rollout step of the same number. After the last step none does: the step before counts.
    """
    if metric not in evaluations or "entropy/behaviour" not in rollouts:
        return pd.DataFrame(columns=["seed", "rollout_step", "entropy", "accuracy"])
    accuracy = evaluations.loc[~evaluations["carried"], ["seed", "rollout_step", metric]].sort_values("rollout_step")
    entropy = rollouts[["seed", "rollout_step", "entropy/behaviour"]].sort_values("rollout_step")
    both = pd.merge_asof(accuracy, entropy, on="rollout_step", by="seed", tolerance=1)
    return both.rename(columns={metric: "accuracy", "entropy/behaviour": "entropy"}).dropna()


def fit(points: pd.DataFrame) -> tuple[float, float, float]:
    """a, b and R² of R = -a exp(H) + b by least squares; NaN where entropy hardly varies or points are too few."""
    entropy, accuracy = (points[name].to_numpy(dtype=np.float64) for name in ("entropy", "accuracy"))
    if len(points) < LEAST_POINTS or np.ptp(entropy) < LEAST_RANGE:
        return np.nan, np.nan, np.nan
    slope, offset = np.polyfit(np.exp(entropy), accuracy, 1)
    left = accuracy - (slope * np.exp(entropy) + offset)
    spread = np.sum((accuracy - accuracy.mean()) ** 2)
    return -float(slope), float(offset), float(1 - np.sum(left**2) / spread) if spread else np.nan


@figure("F15", "kl", "KL to the old policy in each update, and to the warm start")
def draw_kl(study: Study) -> Drawing:
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


@figure("F17", "completion_length", "Length of right and of wrong completions, and how many are truncated")
def draw_lengths(study: Study) -> Drawing:
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
    if drawn:  # one y scale for both, so that right and wrong can be compared
        low, high = min(box.ymin for box in drawn), max(box.ymax for box in drawn)
        room = 0.06 * (high - low) or 0.5
        for panel in length_panels:
            panel.set_ylim(low - room, high + room)
    for panel in sheet.row("wrong minus right\n(tokens)"):
        panel.axhline(0, color=QUIET, linewidth=0.7, linestyle=":")
    for panel in sheet.row("truncated\n(share)"):
        panel.set_ylim(0, max(0.02, 1.06 * panel.dataLim.ymax) if panel.lines else 1)
    caption = (
        "Mean length of right and of wrong completions in tokens, end token included, on one scale; how much longer the"
        " wrong ones of a batch are; and the share of completions that ran into the limit without an end token."
    )
    return sheet.drawing(caption, OVER_TIME)


@figure("F16", "gradient_norm", "Gradient norm before clipping, and its spikes")
def draw_gradient_norm(study: Study) -> Drawing:
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


@figure("F20", "equal_reward_groups", "Groups whose rewards are all equal, against what chance alone would make")
def draw_zero_variance(study: Study) -> Drawing:
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
    panels.start_at_zero(sheet.grid)
    panels.label_x(sheet.grid, "rollout steps")
    areas = [Patch(color=colour, label=label) for label, colour in (("all right", "0.8"), ("all wrong", "0.5"))]
    sheet.legend([*areas, Line2D([], [], color="black", linestyle=":", label="by chance alone")])
    caption = (
        f"Groups whose completions all have the same reward. First the runs of `{study.baseline}`: all right and all"
        " wrong, stacked, mean over seeds; dotted, what one success probability p common to all prompts (the batch's"
        " mean) would give, p^G + (1 - p)^G for groups of G. Then the share of such groups for every arm."
    )
    return sheet.drawing(caption, OVER_TIME)
