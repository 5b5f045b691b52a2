"""F14: accuracy that is paid for with entropy, R = -a exp(H) + b."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import legend_arms, name_arms, note_gaps, panel_grid, say
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.statistics import t_interval
from grpolab.report.style import ArmStyle, arm_styles

LEAST_POINTS = 4  # evaluations of a run that is fitted
LEAST_RANGE = 0.05  # nat between its lowest and highest entropy
LEAST_R2 = 0.5  # below it the relation does not hold
_SCATTER = "held-out accuracy R"
_ROWS = {"a": "slope a\nin R = -a exp(H) + b", "b": "offset b\nin R = -a exp(H) + b"}


def draw(study: Study) -> tuple[Figure, Manifest]:
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
