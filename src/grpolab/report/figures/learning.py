"""Figures of a run over time: reward and accuracy, entropy, KL, lengths, gradient norm, zero-variance groups."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grpolab.quantities import Thresholds
from grpolab.report.figures.panels import (
    LOG_BAND,
    MEAN_BAND,
    MEDIAN,
    Drawing,
    arm_label,
    draw_arms,
    draw_seeds,
    label_x,
    legend_arms,
    lines_by_arm,
    log_axis,
    name_arms,
    panel_grid,
    pivot_seeds,
    say,
    start_at_zero,
    whole_numbers,
)
from grpolab.report.load import Study
from grpolab.report.stability import gradient_spikes
from grpolab.report.statistics.intervals import t_interval
from grpolab.report.style import ArmStyle, Series, arm_styles
from grpolab.vocabulary import DIVERGED, STOPPED


def draw_learning_curves(study: Study) -> Drawing:
    """Training reward and held-out accuracy over rollout steps."""
    rows = {"training reward": ("rollouts", "reward/mean"), "held-out accuracy": ("evaluations", study.metric)}
    figure, grid, numbers = lines_by_arm(study, rows)
    for facet in study.facets:
        _mark_ended(grid["held-out accuracy", facet], study, facet)
    caption = f"Training reward (batch mean) and held-out accuracy (`{study.metric}`) over rollout steps."
    return Drawing(figure, caption, MEAN_BAND, numbers)


def _mark_ended(panel: Axes, study: Study, facet: str) -> None:
    """A cross at the last finite evaluation of each run that diverged or was stopped."""
    styles, here = arm_styles(study.arms), study.done[study.done["facet"] == facet]
    for cell in here[here["outcome"].isin([DIVERGED, STOPPED])].itertuples():
        evaluations = study.of_cell("evaluations", cell)
        last = evaluations[~evaluations["carried"]].tail(1)
        colour = styles[cell.arm].colour
        panel.plot(last["rollout_step"], last[study.metric], "x", color=colour, markersize=6, markeredgewidth=1.5)


_ENTROPY_ROWS = {
    "mean entropy\n(nat per token)": ("rollouts", "entropy/behaviour"),
    "80th percentile\n(nat per token)": ("rollouts", "entropy/behaviour_p80"),
}


def draw_entropy(study: Study) -> Drawing:
    """Mean and 80th percentile of the sampling policy's token entropy."""
    figure, grid, numbers = lines_by_arm(study, _ENTROPY_ROWS)
    start_at_zero(grid)
    caption = "Entropy of the sampling policy over rollout steps: mean and 80th percentile over completion tokens."
    return Drawing(figure, caption, MEAN_BAND, numbers)


LEAST_POINTS = 4  # evaluations of a run that is fitted
LEAST_RANGE = 0.05  # nat between its lowest and highest entropy
LEAST_R2 = 0.5  # below it the relation does not hold
_SCATTER = "held-out accuracy R"
_FIT_ROWS = {"a": "slope a\nin R = -a exp(H) + b", "b": "offset b\nin R = -a exp(H) + b"}


def draw_entropy_reward(study: Study) -> Drawing:
    """Accuracy against entropy at every evaluation, a fit for each run, and below the fits' a and b by arm."""
    figure, grid = panel_grid([_SCATTER, *_FIT_ROWS.values()], study.facets, height=1.7, share_x=False, share_y=False)
    styles, numbers = arm_styles(study.arms), []
    for facet in study.facets:
        rollouts = dict(study.by_arm("rollouts", facet))
        for arm, evaluations in study.by_arm("evaluations", facet):
            points = paired(evaluations, rollouts.get(arm, study.rollouts.iloc[:0]), study.metric)
            by_seed = {seed: fit(run) for seed, run in points.groupby("seed")}
            fits = pd.DataFrame(by_seed, index=["a", "b", "r2"]).T
            _draw_points(grid[_SCATTER, facet], points, fits, styles[arm])
            estimates = {
                name: _draw_fits(grid[row, facet], study.arms.index(arm), fits, name, styles[arm])
                for name, row in _FIT_ROWS.items()
            }
            seeds = {int(seed): row.tolist() for seed, row in zip(fits.index, fits.to_numpy(), strict=True)}
            numbers.append({"facet": facet, "arm": arm, "points": len(points), **estimates, "a_b_r2_of_seeds": seeds})
        grid[_SCATTER, facet].set_xlabel("entropy H (nat per token)")
        for row in _FIT_ROWS.values():
            name_arms(grid[row, facet], study.arms)
            if not grid[row, facet].lines:
                say(grid[row, facet], "entropy hardly varies, or too few evaluations")
    legend_arms(figure, study)
    caption = (
        "Held-out accuracy R of each evaluation against the entropy H of the same policy in its rollout step (the last"
        " one: in the step before), with R = -a exp(H) + b fitted to each run by least squares, and a and b by arm."
        f" No fit where a run has fewer than {LEAST_POINTS} evaluations or its entropy varies by less than"
        f" {LEAST_RANGE:g} nat. Hollow: the fits' median R² is below {LEAST_R2:g}, the relation does not hold."
    )
    return Drawing(figure, caption, "a and b: mean over seeds, 95% t-interval; dots are seeds", numbers)


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


def _draw_points(panel: Axes, points: pd.DataFrame, fits: pd.DataFrame, style: ArmStyle) -> None:
    """Evaluations as dots, each run's fit as a thin line over its own entropies."""
    entropy, accuracy = points["entropy"], points["accuracy"]
    panel.plot(entropy, accuracy, style.marker, color=style.colour, markersize=2.2, alpha=0.6, linewidth=0)
    for seed, run in points.groupby("seed"):
        x = np.linspace(run["entropy"].min(), run["entropy"].max(), 20)
        fitted = fits.at[seed, "b"] - fits.at[seed, "a"] * np.exp(x)
        panel.plot(x, fitted, color=style.colour, linewidth=0.6)


def _draw_fits(panel: Axes, place: int, fits: pd.DataFrame, name: str, style: ArmStyle) -> Series:
    """Mean with its interval at an arm's place, seeds as dots; hollow where the fits explain little."""
    values = fits[name].dropna()
    if values.empty:
        return {}
    interval, holds = t_interval(values), fits["r2"].median() >= LEAST_R2
    panel.plot(np.full(interval.n, place - 0.2), values, ".", color=style.colour, markersize=3, alpha=0.6)
    limits = panel.dataLim.frozen()
    panel.vlines(place, interval.low, interval.high, color=style.colour, linewidth=1)
    panel.dataLim.set(limits)
    face = style.colour if holds else "white"
    panel.plot(place, interval.mean, style.marker, color=style.colour, markerfacecolor=face)
    return {**interval._asdict(), "holds": bool(holds)}


_KL_ROWS = {
    "KL(old || new)\n(nat per token)": ("updates", "kl_old/k3"),
    "KL(policy || warm start)\n(nat per token)": ("rollouts", "kl_ref/exact"),
}


def draw_kl(study: Study) -> Drawing:
    """KL from the old policy, mean over the updates of a rollout step, and the exact KL to the warm start."""
    figure, _, numbers = lines_by_arm(study, _KL_ROWS, height=1.6, log=True)
    caption = (
        "KL divergence of the policy from the one that sampled the batch (estimator k3, mean over the optimiser steps"
        " of a rollout step, of which the first has 0), and from the warm start (exact over the vocabulary, on the"
        " completions of the rollout steps where it is measured). Log scale; steps without any change are left out."
    )
    return Drawing(figure, caption, LOG_BAND, numbers)


_LENGTH_ROWS = {
    f"{label}\n{sort} (tokens)": ("rollouts", f"length/{sort}_{statistic}")
    for statistic, label in (("mean", "mean length,"), ("p95", "95th percentile,"))
    for sort in ("right", "wrong")
}
_TRUNCATED = {"truncated\n(share)": ("rollouts", "truncation/share")}


def draw_lengths(study: Study) -> Drawing:
    """Mean and 95th percentile of the length of right and of wrong completions; below, the share that is truncated."""
    figure, grid, numbers = lines_by_arm(study, _LENGTH_ROWS | _TRUNCATED, height=1.15)
    lengths = [panel for (row, _), panel in grid.items() if row in _LENGTH_ROWS]
    drawn = [panel.dataLim for panel in lengths if panel.lines]
    if drawn:  # one y scale for all, so that right and wrong can be compared
        low, high = min(box.ymin for box in drawn), max(box.ymax for box in drawn)
        room = 0.06 * (high - low) or 0.5
        for panel in lengths:
            panel.set_ylim(low - room, high + room)
    for (row, _), panel in grid.items():
        if row in _TRUNCATED:
            panel.set_ylim(0, max(0.02, 1.06 * panel.dataLim.ymax) if panel.lines else 1)
    caption = (
        "Length of right and of wrong completions in tokens, end token included: mean and 95th percentile of the"
        " batch, all four on one scale; below, the share of completions that ran into the limit without an end token."
    )
    return Drawing(figure, caption, MEAN_BAND, numbers)


_OVER_TIME, _BY_UPDATE = "gradient norm,\nlargest of the step", "gradient norm,\nmedian over the run"


def draw_gradient_norm(study: Study) -> Drawing:
    """Gradient norm before clipping: the largest of each rollout step, spikes marked, and by update in the batch."""
    figure, grid = panel_grid([_OVER_TIME, _BY_UPDATE], study.facets, share_x=False)
    styles, numbers, limits = arm_styles(study.arms), [], study.thresholds
    for facet in study.facets:
        for arm, updates in study.by_arm("updates", facet):
            norms_XS = pivot_seeds(updates, "rollout_step", "grad_norm", "max")
            spikes = _mark_spikes(grid[_OVER_TIME, facet], norms_XS, styles[arm], limits)
            over_time = draw_seeds(grid[_OVER_TIME, facet], norms_XS.where(norms_XS > 0), styles[arm], median=True)
            place = updates.groupby(["seed", "rollout_step"]).cumcount()
            by_update_XS = pivot_seeds(
                updates[["seed", "grad_norm"]].assign(update=place), "update", "grad_norm", "median"
            )
            within = draw_seeds(grid[_BY_UPDATE, facet], by_update_XS, styles[arm], median=True)
            labels = {"metric": "grad_norm", "facet": facet, "arm": arm}
            numbers += [{**labels, "spikes": spikes, **over_time}, {**labels, "by": "update in the batch", **within}]
        for row, label in ((_OVER_TIME, "rollout steps"), (_BY_UPDATE, "update of a batch")):
            log_axis(grid[row, facet], "y")
            grid[row, facet].set_xlabel(label)
        whole_numbers(grid[_BY_UPDATE, facet])
    spike = Line2D([], [], color="black", marker="*", linestyle="", label="spike (any seed)")
    legend_arms(figure, study, extra=[spike])
    caption = (
        "Global gradient norm before clipping (log scale). First the largest of a rollout step; a star is a spike: more"
        f" than {limits.spike_factor:g} times the median of the {limits.spike_window} rollout steps before. Then by"
        " the update's place in its batch (0: the first). Norms of 0 are left out: nothing could be learnt."
    )
    return Drawing(figure, caption, MEDIAN, numbers)


def _mark_spikes(panel: Axes, norms_XS: pd.DataFrame, style: ArmStyle, limits: Thresholds) -> dict[int, list[int]]:
    """A star on each spike; the rollout steps of each seed's spikes."""
    spikes = {}
    for seed, norms in norms_XS.items():
        at = norms[gradient_spikes(norms.to_numpy(), limits)]
        panel.plot(at.index, at, "*", color=style.colour, markersize=5, markeredgewidth=0)
        spikes[int(seed)] = at.index.tolist()
    return spikes


_ALL_RIGHT, _ALL_WRONG = "zero_variance/all_right", "zero_variance/all_wrong"


def draw_zero_variance(study: Study) -> Drawing:
    """All-right and all-wrong groups of the baseline, stacked, with the theory; below, their sum for every arm."""
    stacked, share = f"share of groups,\n{arm_label(study, study.baseline)}", "zero-variance groups\n(share)"
    figure, grid = panel_grid([stacked, share], study.facets)
    numbers: list[Series] = []
    for facet in study.facets:
        for arm, frame in study.by_arm("rollouts", facet):
            if arm == study.baseline:
                baseline = study.cells[(study.cells["facet"] == facet) & (study.cells["arm"] == arm)]
                group_size = int(baseline["setting/num_generations"].iloc[0])  # arms may have others
                stack = _draw_stack(grid[stacked, facet], frame, group_size)
                numbers += [{"facet": facet, "arm": arm, **series} for series in stack]
            numbers += draw_arms(grid[share, facet], study, [(arm, frame)], "zero_variance/share", facet)
    start_at_zero(grid)
    label_x(grid, "rollout steps")
    areas = [Patch(color=colour, label=label) for label, colour in (("all right", "0.8"), ("all wrong", "0.5"))]
    theory = Line2D([], [], color="black", linestyle=":", label=r"$p^G + (1-p)^G$")
    legend_arms(figure, study, extra=[*areas, theory])
    caption = (
        f"Groups whose completions all have the same reward. First the runs of `{study.baseline}`: all right and all"
        " wrong, stacked, mean over seeds; dotted, what one success probability p common to all prompts (the batch's"
        " mean) would give. Then the share of such groups for every arm."
    )
    return Drawing(figure, caption, MEAN_BAND, numbers)


def _draw_stack(panel: Axes, rollouts: pd.DataFrame, group_size: int) -> list[Series]:
    """Stacked means of both kinds over rollout steps, and p^G + (1-p)^G for the mean share of right completions p."""
    shares = rollouts.reindex(columns=["rollout_step", _ALL_RIGHT, _ALL_WRONG, "reward/correct"])
    means = shares.groupby("rollout_step").mean().astype("float64")
    panel.stackplot(means.index, means[_ALL_RIGHT], means[_ALL_WRONG], colors=["0.8", "0.5"], linewidth=0)
    p = means["reward/correct"]
    theory = p**group_size + (1 - p) ** group_size
    panel.plot(means.index, theory, color="black", linestyle=":", linewidth=1)
    x = means.index.tolist()
    drawn = {_ALL_RIGHT: means[_ALL_RIGHT], _ALL_WRONG: means[_ALL_WRONG], "p^G+(1-p)^G": theory}
    return [{"metric": metric, "x": x, "mean": values.tolist()} for metric, values in drawn.items()]
