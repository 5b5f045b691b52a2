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

from grpolab.quantities import Thresholds
from grpolab.report.journals import column, tail_length

Floats = NDArray[np.float64]

MOST = 0.9  # share of updates or rollout steps that 'nearly all' means
ROUNDING = 1e-4  # |log ratio| that two float32 forward passes of one policy can differ by (the loop asserts it)
STILL_REACH = 0.2  # largest |ratio - 1| of nearly all updates on a used batch: the usual clip range, never reached
STILL_KL = 1e-4  # nat per token from the start, at the end of the run; only where no batch is reused
# The field's clip range at each ratio level: PPO's and GRPO's, and GSPO's.
USUAL_RANGE = {"token": 0.2, "sequence": 3e-4}


def largest(frame: pd.DataFrame, metric: str) -> float:
    """The largest value; NaN where there is none."""
    values = column(frame, metric)
    return float(values.max()) if len(values) else np.nan


def middle(frame: pd.DataFrame, metric: str) -> float:
    """The median; NaN where there is none."""
    values = column(frame, metric)
    return float(np.median(values)) if len(values) else np.nan


def distance_from_one(updates: pd.DataFrame) -> Floats:
    """Largest |ratio - 1| of each update that has its least and largest token ratio."""
    if not {"ratio/token_min", "ratio/token_max"} <= set(updates):
        return np.empty(0)
    known = updates[["ratio/token_min", "ratio/token_max"]].dropna()
    return np.maximum(known["ratio/token_max"] - 1, 1 - known["ratio/token_min"]).to_numpy(dtype=np.float64)


@dataclass(frozen=True)
class Weights:
    """The weights at the end of a run beside those at its start."""

    count: int  # of all weights
    on_grid: float  # share that is exactly a bfloat16 number
    moved: float  # share that differs from the start; NaN where the start is not known
    still: tuple[str, ...] = ()  # names of tensors of which nothing moved


@dataclass(frozen=True, eq=False)
class Evidence:
    """One run. Tables as in `report/journals.py`; an update's numbers are those before its optimiser step."""

    run: str
    state: str  # how the run ended, or that it has not
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys; empty where a log does not hold them
    updates: pd.DataFrame = field(default_factory=pd.DataFrame)
    rollouts: pd.DataFrame = field(default_factory=pd.DataFrame)
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    samples: pd.DataFrame = field(default_factory=pd.DataFrame)  # tokens of the rollout steps that were kept
    weights: Weights | None = None
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
        return int(self.updates.groupby("rollout_step").size().max()) if self._is_first.any() else 0

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

    @property
    def has_outer_cap(self) -> bool:
        """Whether the settings bound the ratio of tokens with A < 0 too."""
        return bool(self.settings.get("delta") or self.settings.get("dual_clip"))

    def ends(self, metric: str, share: float = Thresholds.tail) -> tuple[float, float]:
        """Mean of a rollout metric over the first and the last `share` of the run; NaN where there is none."""
        values = column(self.rollouts, metric)
        if not len(values):
            return np.nan, np.nan
        n = tail_length(len(values), share)
        return float(values[:n].mean()), float(values[-n:].mean())
