"""F1: learning curves."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from grpolab.quantities import Thresholds
from grpolab.report.figures.panels import (
    LOG_BAND,
    MEAN_BAND,
    MEDIAN,
    arm_label,
    draw_seeds,
    label_x,
    legend_arms,
    lines_by_arm,
    log_axis,
    name_arms,
    note_gaps,
    panel_grid,
    pivot_seeds,
    say,
    start_at_zero,
)
from grpolab.report.load import Study
from grpolab.report.stability import gradient_spikes
from grpolab.report.statistics.intervals import t_interval
from grpolab.report.style import ArmStyle, Manifest, Series, arm_styles, manifest
from grpolab.vocabulary import DIVERGED, STOPPED


def draw_learning_curves(study: Study) -> tuple[Figure, Manifest]:
    """Training reward and held-out accuracy over rollout steps."""
    rows = {"training reward": ("rollouts", "reward/mean"), "held-out accuracy": ("evaluations", study.metric)}
    figure, grid, numbers = lines_by_arm(study, rows)
    for facet in study.facets:
        _mark_ended(grid["held-out accuracy", facet], study, facet)
    caption = f"Training reward (batch mean) and held-out accuracy (`{study.metric}`) over rollout steps."
    return figure, manifest(study, "F1", caption, MEAN_BAND, numbers)


def _mark_ended(panel: Axes, study: Study, facet: str) -> None:
    """A cross at the last finite evaluation of each run that diverged or was stopped."""
    styles, here = arm_styles(study.arms), study.done[study.done["facet"] == facet]
    for cell in here[here["outcome"].isin([DIVERGED, STOPPED])].itertuples():
        own = study.of_cell("evaluations", cell)
        last = own[~own["carried"]].tail(1)
        colour = styles[cell.arm].colour
        panel.plot(last["rollout_step"], last[study.metric], "x", color=colour, markersize=6, markeredgewidth=1.5)


# ----------------------------------------------------------------------------------------------------------------------
# F12: entropy of the sampling policy.


ENTROPY_ROWS = {
    "mean entropy\n(nat per token)": ("rollouts", "entropy/behaviour"),
    "80th percentile\n(nat per token)": ("rollouts", "entropy/behaviour_p80"),
}


def draw_entropy(study: Study) -> tuple[Figure, Manifest]:
    """Mean and 80th percentile of the sampling policy's token entropy."""
    figure, grid, numbers = lines_by_arm(study, ENTROPY_ROWS)
    start_at_zero(grid)
    caption = "Entropy of the sampling policy over rollout steps: mean and 80th percentile over completion tokens."
    return figure, manifest(study, "F12", caption, MEAN_BAND, numbers)


# ----------------------------------------------------------------------------------------------------------------------
# F14: accuracy that is paid for with entropy, R = -a exp(H) + b.


LEAST_POINTS = 4  # evaluations of a run that is fitted
LEAST_RANGE = 0.05  # nat between its lowest and highest entropy
LEAST_R2 = 0.5  # below it the relation does not hold
_SCATTER = "held-out accuracy R"
_ROWS = {"a": "slope a\nin R = -a exp(H) + b", "b": "offset b\nin R = -a exp(H) + b"}


def draw_entropy_reward(study: Study) -> tuple[Figure, Manifest]:
    """Accuracy against entropy at every evaluation, a fit for each run, and below the fits' a and b by arm."""
    figure, grid = panel_grid([_SCATTER, *_ROWS.values()], study.facets, height=1.7, share_x=False, share_y=False)
    styles, numbers = arm_styles(study.arms), []
    for facet in study.facets:
        rollouts = dict(study.by_arm("rollouts", facet))
        for arm, evaluations in study.by_arm("evaluations", facet):
            points = paired(evaluations, rollouts.get(arm, study.rollouts.iloc[:0]), study.metric)
            fits = pd.DataFrame({seed: fit(own) for seed, own in points.groupby("seed")}, index=["a", "b", "r2"]).T
            _draw_points(grid[_SCATTER, facet], points, fits, styles[arm])
            estimates = {
                name: _draw_estimate(grid[row, facet], study.arms.index(arm), fits, name, styles[arm])
                for name, row in _ROWS.items()
            }
            seeds = {int(seed): own.tolist() for seed, own in zip(fits.index, fits.to_numpy(), strict=True)}
            numbers.append({"facet": facet, "arm": arm, "points": len(points), **estimates, "a_b_r2_of_seeds": seeds})
        grid[_SCATTER, facet].set_xlabel("entropy H (nat per token)")
        for row in _ROWS.values():
            name_arms(grid[row, facet], study.arms)
            if not grid[row, facet].lines:
                say(grid[row, facet], "entropy hardly varies, or too few evaluations")
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study)
    caption = (
        "Held-out accuracy R of each evaluation against the entropy H of the same policy in its rollout step (the last"
        " one: in the step before), with R = -a exp(H) + b fitted to each run by least squares, and a and b by arm."
        f" No fit where a run has fewer than {LEAST_POINTS} evaluations or its entropy varies by less than"
        f" {LEAST_RANGE:g} nat. Hollow: the fits' median R² is below {LEAST_R2:g}, the relation does not hold."
    )
    return figure, manifest(study, "F14", caption, "a and b: mean over seeds, 95% t-interval; dots are seeds", numbers)


def paired(evaluations: pd.DataFrame, rollouts: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Columns seed, entropy, accuracy: each evaluation of a run with the entropy of the policy that it evaluates.

    That policy samples in the rollout step of the same number. After the last step none does: the step before counts.
    """
    if metric not in evaluations or "entropy/behaviour" not in rollouts:
        return pd.DataFrame(columns=["seed", "entropy", "accuracy"])
    own = evaluations.loc[~evaluations["carried"], ["seed", "rollout_step", metric]].sort_values("rollout_step")
    entropy = rollouts[["seed", "rollout_step", "entropy/behaviour"]].sort_values("rollout_step")
    found = pd.merge_asof(own, entropy, on="rollout_step", by="seed", tolerance=1)
    return found.rename(columns={metric: "accuracy", "entropy/behaviour": "entropy"}).dropna()


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
    panel.plot(
        points["entropy"], points["accuracy"], style.marker, color=style.colour, markersize=2.2, alpha=0.6, linewidth=0
    )
    for seed, own in points.groupby("seed"):
        entropy = np.linspace(own["entropy"].min(), own["entropy"].max(), 20)
        panel.plot(
            entropy, fits.at[seed, "b"] - fits.at[seed, "a"] * np.exp(entropy), color=style.colour, linewidth=0.6
        )


def _draw_estimate(panel: Axes, place: int, fits: pd.DataFrame, name: str, style: ArmStyle) -> Series:
    """Mean with its interval at an arm's place, seeds as dots; hollow where the fits explain little."""
    values = fits[name].dropna()
    if values.empty:
        return {}
    mean, low, high, n = t_interval(values)
    holds = fits["r2"].median() >= LEAST_R2
    panel.plot(np.full(n, place - 0.2), values, ".", color=style.colour, markersize=3, alpha=0.6)
    limits = panel.dataLim.frozen()
    panel.vlines(place, low, high, color=style.colour, linewidth=1)
    panel.dataLim.set(limits)
    panel.plot(place, mean, style.marker, color=style.colour, markerfacecolor=style.colour if holds else "white")
    return {"mean": mean, "low": low, "high": high, "n": n, "holds": bool(holds)}


# ----------------------------------------------------------------------------------------------------------------------
# F15: how far the policy moves, within a batch and from its warm start.


KL_ROWS = {
    "KL(old || new)\n(nat per token)": ("updates", "kl_old/k3"),
    "KL(policy || warm start)\n(nat per token)": ("rollouts", "kl_ref/exact"),
}


def draw_kl(study: Study) -> tuple[Figure, Manifest]:
    """KL from the old policy, mean over the updates of a rollout step, and the exact KL to the warm start."""
    figure, _, numbers = lines_by_arm(study, KL_ROWS, height=1.6, log=True)
    caption = (
        "KL divergence of the policy from the one that sampled the batch (estimator k3, mean over the optimiser steps"
        " of a rollout step, of which the first has 0), and from the warm start (exact over the vocabulary, on the"
        " completions of the rollout steps where it is measured). Log scale; steps without any change are left out."
    )
    return figure, manifest(study, "F15", caption, LOG_BAND, numbers)


# ----------------------------------------------------------------------------------------------------------------------
# F17: length of right and wrong completions, and how many are cut off.


_LENGTHS_ROWS = {
    f"{label}\n{sort} (tokens)": ("rollouts", f"length/{sort}_{statistic}")
    for statistic, label in (("mean", "mean length,"), ("p95", "95th percentile,"))
    for sort in ("right", "wrong")
}
_TRUNCATED = {"truncated\n(share)": ("rollouts", "truncation/share")}


def draw_lengths(study: Study) -> tuple[Figure, Manifest]:
    """Mean and 95th percentile of the length of right and of wrong completions; below, the share that is truncated."""
    figure, grid, numbers = lines_by_arm(study, _LENGTHS_ROWS | _TRUNCATED, height=1.15)
    _equal_heights([panel for (row, _), panel in grid.items() if row in _LENGTHS_ROWS])
    for (row, _), panel in grid.items():
        if row in _TRUNCATED:
            panel.set_ylim(0, max(0.02, 1.06 * panel.dataLim.ymax) if panel.lines else 1)
    caption = (
        "Length of right and of wrong completions in tokens, end token included: mean and 95th percentile of the"
        " batch, all four on one scale; below, the share of completions that ran into the limit without an end token."
    )
    return figure, manifest(study, "F17", caption, MEAN_BAND, numbers)


def _equal_heights(panels: list[Axes]) -> None:
    """One y scale for all, so that right and wrong can be compared."""
    drawn = [panel.dataLim for panel in panels if panel.lines]
    if drawn:
        low, high = min(box.ymin for box in drawn), max(box.ymax for box in drawn)
        room = 0.06 * (high - low) or 0.5
        for panel in panels:
            panel.set_ylim(low - room, high + room)


# ----------------------------------------------------------------------------------------------------------------------
# F16: gradient norm and its spikes.


_OVER_TIME, _BY_UPDATE = "gradient norm,\nlargest of the step", "gradient norm,\nmedian over the run"


def draw_gradient_norm(study: Study) -> tuple[Figure, Manifest]:
    """Gradient norm before clipping: the largest of each rollout step, spikes marked, and by update in the batch."""
    figure, grid = panel_grid([_OVER_TIME, _BY_UPDATE], study.facets, share_x=False)
    styles, numbers, limits = arm_styles(study.arms), [], study.thresholds
    for facet in study.facets:
        for arm, updates in study.by_arm("updates", facet):
            norms_XS = pivot_seeds(updates, "rollout_step", "grad_norm", "max")
            spikes = _mark_spikes(grid[_OVER_TIME, facet], norms_XS, styles[arm], limits)
            over_time = draw_seeds(grid[_OVER_TIME, facet], norms_XS.where(norms_XS > 0), styles[arm], median=True)
            within = draw_seeds(grid[_BY_UPDATE, facet], _by_update(updates), styles[arm], median=True)
            labels = {"metric": "grad_norm", "facet": facet, "arm": arm}
            numbers += [{**labels, "spikes": spikes, **over_time}, {**labels, "by": "update in the batch", **within}]
        for row, label in ((_OVER_TIME, "rollout steps"), (_BY_UPDATE, "update of a batch")):
            log_axis(grid[row, facet], "y")
            grid[row, facet].set_xlabel(label)
        grid[_BY_UPDATE, facet].xaxis.set_major_locator(MaxNLocator(integer=True))
    spike = Line2D([], [], color="black", marker="*", linestyle="", label="spike (any seed)")
    legend_arms(figure, study, study.arms, [spike])
    note_gaps(figure, study)
    caption = (
        "Global gradient norm before clipping (log scale). First the largest of a rollout step; a star is a spike: more"
        f" than {limits.spike_factor:g} times the median of the {limits.spike_window} rollout steps before. Then by"
        " the update's place in its batch (0: the first). Norms of 0 are left out: nothing could be learnt."
    )
    return figure, manifest(study, "F16", caption, MEDIAN, numbers)


def _by_update(updates: pd.DataFrame) -> pd.DataFrame:
    """Median norm over the run at each update of a batch (index) for each seed (columns)."""
    place = updates.groupby(["seed", "rollout_step"]).cumcount()
    norms = updates[["seed", "grad_norm"]].assign(update=place)
    return pivot_seeds(norms, "update", "grad_norm", "median")


def _mark_spikes(panel: Axes, norms_XS: pd.DataFrame, style: ArmStyle, limits: Thresholds) -> dict[int, list[int]]:
    """A star on each spike; the rollout steps of each seed's spikes."""
    spikes = {}
    for seed, norms in norms_XS.items():
        at = norms[gradient_spikes(norms.to_numpy(), limits)]
        panel.plot(at.index, at, "*", color=style.colour, markersize=5, markeredgewidth=0)
        spikes[int(seed)] = at.index.tolist()
    return spikes


# ----------------------------------------------------------------------------------------------------------------------
# F20: groups whose rewards are all equal: they teach nothing.


_ALL_RIGHT, _ALL_WRONG = "zero_variance/all_right", "zero_variance/all_wrong"
_COLOURS = {_ALL_RIGHT: "0.8", _ALL_WRONG: "0.5"}


def draw_zero_variance(study: Study) -> tuple[Figure, Manifest]:
    """All-right and all-wrong groups of the baseline, stacked, with the theory; below, their sum for every arm."""
    stacked, share = f"share of groups,\n{arm_label(study, study.baseline)}", "zero-variance groups\n(share)"
    figure, grid = panel_grid([stacked, share], study.facets)
    styles = arm_styles(study.arms)
    numbers: list[Series] = []
    for facet in study.facets:
        for arm, frame in study.by_arm("rollouts", facet):
            labels = {"facet": facet, "arm": arm}
            if arm == study.baseline:
                numbers += [
                    {**labels, **s} for s in _draw_stack(grid[stacked, facet], frame, _group_size(study, facet))
                ]
            series = draw_seeds(
                grid[share, facet], pivot_seeds(frame, "rollout_step", "zero_variance/share"), styles[arm], share=True
            )
            numbers.append({"metric": "zero_variance/share", **labels, **series})
    start_at_zero(grid)
    label_x(grid, "rollout steps")
    areas = [Patch(color=colour, label=metric.split("/")[1].replace("_", " ")) for metric, colour in _COLOURS.items()]
    theory = Line2D([], [], color="black", linestyle=":", label=r"$p^G + (1-p)^G$")
    legend_arms(figure, study, study.arms, [*areas, theory])
    note_gaps(figure, study)
    caption = (
        f"Groups whose completions all have the same reward. First the runs of `{study.baseline}`: all right and all"
        " wrong, stacked, mean over seeds; dotted, what one success probability p common to all prompts (the batch's"
        " mean) would give. Then the share of such groups for every arm."
    )
    return figure, manifest(study, "F20", caption, MEAN_BAND, numbers)


def _group_size(study: Study, facet: str) -> int:
    """Completions of a group in the baseline's runs, which a study may compare with other sizes."""
    own = study.cells[(study.cells["facet"] == facet) & (study.cells["arm"] == study.baseline)]
    return int(own["setting/num_generations"].iloc[0])


def _draw_stack(panel: Axes, rollouts: pd.DataFrame, group_size: int) -> list[Series]:
    """Stacked means of both kinds over rollout steps, and p^G + (1-p)^G for the mean share of right completions p."""
    shares = rollouts.reindex(columns=["rollout_step", _ALL_RIGHT, _ALL_WRONG, "reward/correct"])
    means = shares.groupby("rollout_step").mean().astype("float64")
    panel.stackplot(means.index, means[_ALL_RIGHT], means[_ALL_WRONG], colors=list(_COLOURS.values()), linewidth=0)
    p = means["reward/correct"]
    theory = p**group_size + (1 - p) ** group_size
    panel.plot(means.index, theory, color="black", linestyle=":", linewidth=1)
    x = means.index.tolist()
    drawn = {_ALL_RIGHT: means[_ALL_RIGHT], _ALL_WRONG: means[_ALL_WRONG], "p^G+(1-p)^G": theory}
    return [{"metric": metric, "x": x, "mean": values.tolist()} for metric, values in drawn.items()]
