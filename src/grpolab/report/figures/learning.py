"""Figures of a run over time: reward and accuracy, entropy, KL, lengths, gradient norm, zero-variance groups."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN_BAND, Drawing, Sheet, draw_seeds, figure, pivot_seeds
from grpolab.report.load import Study
from grpolab.report.stability import gradient_spikes
from grpolab.report.statistics.intervals import share_band, t_interval
from grpolab.vocabulary import DIVERGED, STOPPED


@figure("F1", "Learning curves: training reward and held-out accuracy")
def draw_learning_curves(study: Study) -> Drawing:
    rows = {"training reward": ("rollouts", "reward/mean"), "held-out accuracy": ("evaluations", study.metric)}
    sheet = panels.lines_by_arm(study, rows)
    for cell in study.done[study.done["outcome"].isin([DIVERGED, STOPPED])].itertuples():
        evaluations = study.of_cell("evaluations", cell)
        last = evaluations[~evaluations["carried"]].tail(1)  # the last finite one gets a cross
        panel, colour = sheet.grid["held-out accuracy", cell.facet], sheet.styles[cell.arm].colour
        panel.plot(last["rollout_step"], last[study.metric], "x", color=colour, markersize=6, markeredgewidth=1.5)
    caption = f"Training reward (batch mean) and held-out accuracy (`{study.metric}`) over rollout steps."
    return sheet.drawing(caption, MEAN_BAND)


@figure("F12", "Entropy of the sampling policy")
def draw_entropy(study: Study) -> Drawing:
    rows = {
        "mean entropy\n(nat per token)": ("rollouts", "entropy/behaviour"),
        "80th percentile\n(nat per token)": ("rollouts", "entropy/behaviour_p80"),
    }
    sheet = panels.lines_by_arm(study, rows)
    panels.start_at_zero(sheet.grid)
    caption = "Entropy of the sampling policy over rollout steps: mean and 80th percentile over completion tokens."
    return sheet.drawing(caption, MEAN_BAND)


LEAST_POINTS = 4  # evaluations of a run that is fitted
LEAST_RANGE = 0.05  # nat between its lowest and highest entropy
LEAST_R2 = 0.5  # below it the relation does not hold


@figure("F14", "What entropy buys: accuracy against entropy, with the fitted exchange curve")
def draw_entropy_reward(study: Study) -> Drawing:
    scatter = "held-out accuracy R"
    fit_rows = {"a": "slope a\nin R = -a exp(H) + b", "b": "offset b\nin R = -a exp(H) + b"}
    sheet = Sheet(study, [scatter, *fit_rows.values()], height=1.7, share_x=False, share_y=False)
    for panel, facet, arm, evaluations in sheet.arms(scatter, "evaluations"):
        style, rollouts = sheet.styles[arm], study.rollouts
        of_arm = rollouts[(rollouts["facet"] == facet) & (rollouts["arm"] == arm)]
        points = paired(evaluations, of_arm, study.metric)
        entropy, accuracy = points["entropy"], points["accuracy"]
        panel.plot(entropy, accuracy, style.marker, color=style.colour, markersize=2.2, alpha=0.6, linewidth=0)
        fits = pd.DataFrame({seed: fit(run) for seed, run in points.groupby("seed")}, index=["a", "b", "r2"]).T
        for seed, run in points.groupby("seed"):
            x = np.linspace(run["entropy"].min(), run["entropy"].max(), 20)
            panel.plot(x, fits.at[seed, "b"] - fits.at[seed, "a"] * np.exp(x), color=style.colour, linewidth=0.6)
        estimates: dict[str, dict] = {"a": {}, "b": {}}
        for name, row in fit_rows.items():
            values, place, panel = fits[name].dropna(), study.arms.index(arm), sheet.grid[row, facet]
            if len(values):
                interval, holds = t_interval(values), bool(fits["r2"].median() >= LEAST_R2)
                panel.plot(np.full(len(values), place - 0.2), values, ".", color=style.colour, markersize=3, alpha=0.6)
                with panels.not_scaled_to(panel):
                    panel.vlines(place, interval.low, interval.high, color=style.colour, linewidth=1)
                face = style.colour if holds else "white"
                panel.plot(place, interval.mean, style.marker, color=style.colour, markerfacecolor=face)
                estimates[name] = {**interval._asdict(), "holds": holds}
        sheet.add({**estimates, "a_b_r2_of_seeds": panels.by_seed(fits.T)}, facet=facet, arm=arm, points=len(points))
    for panel in sheet.row(scatter):
        panel.set_xlabel("entropy H (nat per token)")
    for row in fit_rows.values():
        for panel in sheet.row(row):
            panels.name_arms(panel, study.arms)
            if not panel.lines:
                panels.say(panel, "entropy hardly varies, or too few evaluations")
    sheet.legend()
    caption = (
        "Held-out accuracy R of each evaluation against the entropy H of the same policy in its rollout step (the last"
        " one: in the step before), with R = -a exp(H) + b fitted to each run by least squares, and a and b by arm."
        f" No fit where a run has fewer than {LEAST_POINTS} evaluations or its entropy varies by less than"
        f" {LEAST_RANGE:g} nat. Hollow: the fits' median R² is below {LEAST_R2:g}, the relation does not hold."
    )
    return sheet.drawing(caption, "a and b: mean over seeds, 95% t-interval; dots are seeds")


def paired(evaluations: pd.DataFrame, rollouts: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Columns seed, entropy, accuracy: each evaluation of a run with the entropy of the policy that it evaluates.

    That policy samples in the rollout step of the same number. After the last step none does: the step before counts.
    """
    if metric not in evaluations or "entropy/behaviour" not in rollouts:
        return pd.DataFrame(columns=["seed", "entropy", "accuracy"])
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


@figure("F15", "KL to the old policy in each update, and to the warm start")
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
    return sheet.drawing(caption, "geometric mean over seeds, 95% t-interval of the logarithms; thin lines are seeds")


@figure("F17", "Length of right and of wrong completions, and how many are truncated")
def draw_lengths(study: Study) -> Drawing:
    lengths = {
        f"{label}\n{sort} (tokens)": ("rollouts", f"length/{sort}_{statistic}")
        for statistic, label in (("mean", "mean length,"), ("p95", "95th percentile,"))
        for sort in ("right", "wrong")
    }
    truncated = "truncated\n(share)"
    sheet = panels.lines_by_arm(study, {**lengths, truncated: ("rollouts", "truncation/share")}, height=1.15)
    length_panels = [panel for row in lengths for panel in sheet.row(row)]
    drawn = [panel.dataLim for panel in length_panels if panel.lines]
    if drawn:  # one y scale for all, so that right and wrong can be compared
        low, high = min(box.ymin for box in drawn), max(box.ymax for box in drawn)
        room = 0.06 * (high - low) or 0.5
        for panel in length_panels:
            panel.set_ylim(low - room, high + room)
    for panel in sheet.row(truncated):
        panel.set_ylim(0, max(0.02, 1.06 * panel.dataLim.ymax) if panel.lines else 1)
    caption = (
        "Length of right and of wrong completions in tokens, end token included: mean and 95th percentile of the"
        " batch, all four on one scale; below, the share of completions that ran into the limit without an end token."
    )
    return sheet.drawing(caption, MEAN_BAND)


@figure("F16", "Gradient norm before clipping, and its spikes")
def draw_gradient_norm(study: Study) -> Drawing:
    over_time, by_update = "gradient norm,\nlargest of the step", "gradient norm,\nmedian over the run"
    limits = study.thresholds
    sheet = Sheet(study, [over_time, by_update], share_x=False)
    for panel, facet, arm, updates in sheet.arms(over_time, "updates"):
        style, spikes = sheet.styles[arm], {}
        norms_XS = pivot_seeds(updates, "rollout_step", "grad_norm", "max")
        for seed, norms in norms_XS.items():
            at = norms[gradient_spikes(norms.to_numpy(), limits)]
            panel.plot(at.index, at, "*", color=style.colour, markersize=5, markeredgewidth=0)
            spikes[int(seed)] = at.index.tolist()
        series = draw_seeds(panel, norms_XS.where(norms_XS > 0), style, band=None)
        sheet.add(series, metric="grad_norm", facet=facet, arm=arm, spikes=spikes)
        places = updates.assign(update=updates.groupby(["seed", "rollout_step"]).cumcount())
        norms_XS = pivot_seeds(places, "update", "grad_norm", "median")
        series = draw_seeds(sheet.grid[by_update, facet], norms_XS, style, band=None)
        sheet.add(series, metric="grad_norm", facet=facet, arm=arm, by="update in the batch")
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
    return sheet.drawing(caption, "median over seeds; thin lines are seeds")


@figure("F20", "Groups whose rewards are all equal, against what chance alone would make")
def draw_zero_variance(study: Study) -> Drawing:
    stacked, share = f"share of groups,\n{panels.arm_label(study, study.baseline)}", "zero-variance groups\n(share)"
    all_right, all_wrong = "zero_variance/all_right", "zero_variance/all_wrong"
    sheet = Sheet(study, [stacked, share])
    for panel, facet, arm, rollouts in sheet.arms(stacked, "rollouts"):
        if arm == study.baseline:
            shares = rollouts.reindex(columns=["rollout_step", all_right, all_wrong, "reward/correct"])
            means = shares.groupby("rollout_step").mean().astype("float64")
            panel.stackplot(means.index, means[all_right], means[all_wrong], colors=["0.8", "0.5"], linewidth=0)
            cells = study.cells[(study.cells["facet"] == facet) & (study.cells["arm"] == arm)]
            group_size = int(cells["setting/num_generations"].iloc[0])  # arms may have others
            p = means["reward/correct"]
            theory = p**group_size + (1 - p) ** group_size
            panel.plot(means.index, theory, color="black", linestyle=":", linewidth=1)
            drawn = {all_right: means[all_right], all_wrong: means[all_wrong], "p^G+(1-p)^G": theory}
            for metric, values in drawn.items():
                sheet.add({"x": means.index.tolist(), "mean": values.tolist()}, facet=facet, arm=arm, metric=metric)
        values_XS = pivot_seeds(rollouts, "rollout_step", "zero_variance/share")
        series = draw_seeds(sheet.grid[share, facet], values_XS, sheet.styles[arm], share_band)
        sheet.add(series, metric="zero_variance/share", facet=facet, arm=arm)
    panels.start_at_zero(sheet.grid)
    panels.label_x(sheet.grid, "rollout steps")
    areas = [Patch(color=colour, label=label) for label, colour in (("all right", "0.8"), ("all wrong", "0.5"))]
    sheet.legend([*areas, Line2D([], [], color="black", linestyle=":", label=r"$p^G + (1-p)^G$")])
    caption = (
        f"Groups whose completions all have the same reward. First the runs of `{study.baseline}`: all right and all"
        " wrong, stacked, mean over seeds; dotted, what one success probability p common to all prompts (the batch's"
        " mean) would give. Then the share of such groups for every arm."
    )
    return sheet.drawing(caption, MEAN_BAND)
