"""What the rules look at: the tidy numbers of one run, from its folder or from another framework's log.

A column or a table that is not there is empty: a rule that needs it stays silent, and never guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.report.columns import column, tail_length
from grpolab.report.diagnosis.thresholds import MOST, ROUNDING, STILL_KL, STILL_REACH, TAIL
from grpolab.report.diagnosis.weights import Weights

Floats = NDArray[np.float64]


def largest(frame: pd.DataFrame, metric: str) -> float:
    """The largest value; NaN where there is none."""
    found = column(frame, metric)
    return float(found.max()) if len(found) else np.nan


def middle(frame: pd.DataFrame, metric: str) -> float:
    """The median; NaN where there is none."""
    found = column(frame, metric)
    return float(np.median(found)) if len(found) else np.nan


@dataclass(frozen=True, eq=False)
class Evidence:
    """One run. Tables as in `report/runs.py`; an update's numbers are those before its optimiser step."""

    run: str
    state: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys; empty where a log does not hold them
    updates: pd.DataFrame = field(default_factory=pd.DataFrame)
    rollouts: pd.DataFrame = field(default_factory=pd.DataFrame)
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    samples: pd.DataFrame = field(default_factory=pd.DataFrame)  # tokens of the rollout steps that were kept
    weights: Weights | None = None  # at the end, beside those at the start
    unknown: tuple[str, ...] = ()  # what could not be read, one sentence each
    not_finite: Mapping[str, int] = field(default_factory=dict)  # metric -> its values that are NaN or infinite

    @cached_property
    def first(self) -> pd.DataFrame:
        """Updates that are the first on their batch."""
        return self.updates[self._is_first]

    @cached_property
    def later(self) -> pd.DataFrame:
        """The other updates: the ratio can differ from 1 there."""
        return self.updates[~self._is_first] if len(self.updates) else self.updates

    @cached_property
    def _is_first(self) -> pd.Series:
        if not {"iteration", "minibatch"} <= set(self.updates):  # one row a batch, or who knows: not told apart
            return pd.Series(False, index=self.updates.index)
        return (self.updates["iteration"] == 0) & (self.updates["minibatch"] == 0)

    @cached_property
    def updates_per_batch(self) -> int:
        """Optimiser steps on one batch; 0 where the log does not tell."""
        if not self._is_first.any():
            return 0
        return int(self.updates.groupby("rollout_step").size().max())

    @cached_property
    def reach(self) -> Floats:
        """Largest |ratio - 1| of each later update; empty where no batch is reused."""
        return distance_from_one(self.later)

    @cached_property
    def is_still(self) -> bool:
        """Whether the policy hardly moves: on a used batch, or from the start where no batch is reused."""
        if len(self.reach):
            return bool(np.quantile(self.reach, MOST) < STILL_REACH)
        from_start = column(self.rollouts, "kl_ref/exact")
        return len(from_start) > 0 and bool(from_start[-1] < STILL_KL)

    @cached_property
    def has_moved(self) -> bool:
        """Whether the policy provably moved while a batch was used, whatever the ratio says.

        The sampler's log-probs stay what they were; the old ones, where they follow the weights, leave them behind.
        """
        gap = column(self.rollouts, "gap/sampler_trainer")
        if len(gap):
            return bool(np.median(gap) > ROUNDING)
        return largest(self.rollouts, "kl_ref/exact") > STILL_KL

    @cached_property
    def clipped_norm(self) -> Floats:
        """Gradient norm of each update after it was clipped."""
        return np.minimum(column(self.updates, "grad_norm"), float(self.settings.get("max_grad_norm", np.inf)))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """What the optimiser did in each rollout step that says how far the weights moved.

        Columns: rollout_step, step_norm (L2), rate (learning rates of its updates, summed), norm (largest gradient
        norm).
        """
        if not {"rollout_step", "learning_rate", "grad_norm"} <= set(self.updates):
            return pd.DataFrame(columns=["rollout_step", "step_norm", "rate", "norm"])
        by_step = self.updates.groupby("rollout_step")
        taken = pd.DataFrame({"rate": by_step["learning_rate"].sum(), "norm": by_step["grad_norm"].max()}).reset_index()
        if "weights/step_norm" not in self.rollouts:
            return taken.assign(step_norm=np.nan).iloc[:0]
        moved = self.rollouts[["rollout_step", "weights/step_norm"]].dropna()
        return taken.merge(moved.rename(columns={"weights/step_norm": "step_norm"}), on="rollout_step")

    def ends(self, metric: str, share: float = TAIL) -> tuple[float, float]:
        """Mean of a rollout metric over the first and the last `share` of the run; NaN where there is none."""
        found = column(self.rollouts, metric)
        if not len(found):
            return np.nan, np.nan
        n = tail_length(len(found), share)
        return float(found[:n].mean()), float(found[-n:].mean())


def distance_from_one(updates: pd.DataFrame) -> Floats:
    """Largest |ratio - 1| of each update that says its least and largest token ratio."""
    if not {"ratio/token_min", "ratio/token_max"} <= set(updates):
        return np.empty(0)
    found = updates[["ratio/token_min", "ratio/token_max"]].dropna()
    return np.maximum(found["ratio/token_max"] - 1, 1 - found["ratio/token_min"]).to_numpy(dtype=np.float64)
