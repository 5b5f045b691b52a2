"""Where a number becomes evidence: every threshold of the doctor, in one place.

Those that follow from arithmetic say so; the others were set on development runs (seeds 0 and 1, tasks addition and
sorting; SHARPER again after a first scoring on seeds 10 and 11), never on the runs that `make doctor-check` scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from grpolab.doctor.causes import CAUSES
from grpolab.quantities import Thresholds
from grpolab.report.journals import column, tail_length

_STABILITY = Thresholds()  # what the report means by the same words

# --- does the policy move? ----------------------------------------------------------------------------------------
STILL_REACH = 0.2  # largest |ratio - 1| of nearly all updates on a used batch: the usual clip range, never reached
STILL_KL = 1e-4  # nat per token from the start, at the end of the run; only where no batch is reused
MOST = 0.9  # share of updates or rollout steps that 'nearly all' means
ROUNDING = 1e-4  # |log ratio| that two float32 forward passes of one policy can differ by (learner.py asserts it)
JUMP = 10.0  # the third pass's distance from 1 over the second's, which is 2 for steps of equal size

# --- gradient and step ----------------------------------------------------------------------------------------------
EQUAL_GROUPS = 0.99  # share of groups with equal rewards that leaves no signal at all
STARVED_GROUPS = 0.8  # as in report/stability.py
STARVED_PART = 0.5  # of the run that is looked at: a batch has too few groups to count one alone
TINY_ADVANTAGE = 1e-2  # size of the advantages, in centred rewards, that no normalisation by a real std gives
SMALL_FRACTION = 0.1  # of Adam's full step: a gradient of a ninth of adam_epsilon gives it (g / (g + epsilon))
WARM = 0.1  # share of the peak learning rate that a warm-up should at least have reached
FLOAT32_SPACING = 6e-8  # of a weight of size 1: a smaller step is rounded to nothing
ON_GRID = 0.999  # share of weights that are bfloat16 numbers; of float32 weights 2^-16 are
FEW_MOVED = 0.5  # share of the weights that moved, where rounding swallows updates

# --- trust region ---------------------------------------------------------------------------------------------------
CLIPPED_AT_ONCE = 0.3  # share of tokens with an advantage that are clipped from the second update on; at most about 0.5
NARROW = 0.25  # what clipping at 0.2 would have clipped, over what was clipped

# --- sampler and trainer --------------------------------------------------------------------------------------------
NOISE_DIRECTION = 0.5  # KL(old || new) by k1 over k3: 1 where old is the sampler, 0 where both are equally noisy
BFLOAT16_KL = 5e-4  # nat, k3: log-probs that are off by .03, twice what bfloat16 did to the tiny model's
SHARPER = 0.1  # how much lower the sampler's entropy is, relative, where it was cooler; reading amiss never lowers it
FLATTER = 0.25  # how much higher, where it was hotter; reading amiss raises it a little

# --- training breaks down -------------------------------------------------------------------------------------------
KL_DOMINATES = 10.0  # beta times KL, in advantages (which are about 1)
KL_HUGE = 10.0  # nat per token: a mean of exp(difference), which a few tokens make
CELL_RATIO = 5.0  # of a token with A < 0: the clip would have let a token with A > 0 go at 1.2
CELL_SHARE = 0.2  # of the updates
SPIKE = _STABILITY.spike_factor  # largest gradient norm over the median
TAIL = _STABILITY.tail  # share of a run that 'first' and 'last' mean
DROP = 0.9  # share of the score at the start that a collapsed run lost: small batches alone can cost three quarters
ENTROPY_LEFT = _STABILITY.entropy_ratio  # of the start
ENTROPY_HALVED = 0.5  # of the start: enough where a setting asks for it
ENTROPY_GROWTH = _STABILITY.entropy_explosion  # last over first
TRUNCATED = 0.5  # share of completions at the end

# --- metric ---------------------------------------------------------------------------------------------------------
ZERO_LOSS = 1e-6  # rounding of a mean of centred advantages
MISCOUNTED = 0.005  # relative difference of a share from its count


# ----------------------------------------------------------------------------------------------------------------------
# What the doctor says: a cause with its evidence, and the whole diagnosis of a run.


Confidence = Literal["certain", "likely", "possible"]
CONFIDENCES: dict[Confidence, str] = {
    "certain": "an identity of arithmetic that every sound run keeps is broken, or a setting leaves no other way out",
    "likely": "the numbers fit this cause and no other that the doctor knows",
    "possible": "the numbers fit, and fit other causes too",
}


@dataclass(frozen=True)
class Finding:
    """One cause in one run."""

    cause: str  # an id of `grpolab.doctor.causes`
    confidence: Confidence
    evidence: tuple[str, ...]  # sentences with numbers and steps
    instead: tuple[str, ...] = ()  # causes that the log cannot tell from this one

    @property
    def rank(self) -> tuple[int, int]:
        """The surest first; among equals the one that explains the others."""
        return list(CONFIDENCES).index(self.confidence), list(CAUSES).index(self.cause)


@dataclass(frozen=True)
class Diagnosis:
    """What a run's numbers say: causes, best first, what only looks odd, and whether the run ended with less.

    No cause means that no rule fits, which is not that nothing is wrong: `fall` and `unknown` say more.
    """

    run: str
    state: str  # how the run ended, or that it has not
    findings: tuple[Finding, ...]
    notes: dict[str, str] = field(default_factory=dict)  # an id of `grpolab.doctor.causes.NOTES` -> its evidence
    unknown: tuple[str, ...] = ()  # what could not be looked at, one sentence each
    fall: str | None = None  # that accuracy (or reward, where only that is there) fell, with the numbers


# ----------------------------------------------------------------------------------------------------------------------
# The weights at the end of a run beside those at its start: how many there are, which moved, how finely they lie.


MOST_WEIGHTS = (
    1_000_000  # weights of a tensor that are looked at: enough to tell, and a large model is read in a moment
)


@dataclass(frozen=True)
class Weights:
    """What two files of weights say of a run."""

    count: int  # of all weights
    on_grid: float  # share that is exactly a bfloat16 number
    moved: float  # share that differs from the start; NaN where the start is not known
    still: tuple[str, ...] = ()  # names of tensors of which nothing moved


def compare(end: Path, start: Path | None) -> Weights | None:
    """The weights in `end` beside those in `start`; None where `end` is no readable file."""
    try:
        after = _read(end)
        before = _read(start) if start and start.is_file() else {}
    except (OSError, SafetensorError):
        return None
    changed = {name: after[name][1] != before[name][1] for name in after if name in before}
    looked = np.concatenate([values for _, values in after.values()])
    moved = np.concatenate(list(changed.values())) if changed else np.empty(0)
    return Weights(
        count=sum(size for size, _ in after.values()),
        on_grid=float(_is_bfloat16(looked).mean()),
        moved=float(moved.mean()) if len(moved) else float("nan"),
        still=tuple(name for name, differs in changed.items() if not differs.any()),
    )


def _read(path: Path) -> dict[str, tuple[int, NDArray]]:
    """Each tensor's number of weights, and the first of them, flat and in float32."""
    found = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            part = file.get_slice(name)
            shape = part.get_shape() or [1]
            rows = min(shape[0], max(1, MOST_WEIGHTS // max(1, int(np.prod(shape[1:])))))
            found[name] = int(np.prod(shape)), np.asarray(part[:rows], dtype=np.float32).ravel()
    return found


def _is_bfloat16(values: NDArray) -> NDArray:
    """Whether the lower half of each float32 is empty."""
    return (values.view(np.uint32) & 0xFFFF) == 0


# ----------------------------------------------------------------------------------------------------------------------
# What the rules look at: the tidy numbers of one run, from its folder or from another framework's log.
#
# A column or a table that is not there is empty: a rule that needs it stays silent, and never guesses.


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
    """One run. Tables as in `report/journals.py`; an update's numbers are those before its optimiser step."""

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
