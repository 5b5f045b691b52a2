"""The numbers of one run, in the form that the rules read.

A missing column or table is empty, and a rule that needs it reports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.framework_names import LOG_ONLY
from grpolab.meanings import METRICS
from grpolab.quantities import Thresholds
from grpolab.readers.log_names import PART
from grpolab.readers.logs import RunLog
from grpolab.report import journals
from grpolab.report.journals import both, column, final_score, has_collapsed
from grpolab.report.text import count, listing
from grpolab.vocabulary import DIVERGED, STOPPED

Floats = NDArray[np.float64]

MOST = 0.9  # share of updates or rollout steps that 'nearly all' means
ROUNDING = 1e-4  # |log ratio| that two float32 forward passes of one policy can differ by (the loop asserts it)
TRUNCATED = 0.5  # share of completions that are cut off, above which most have no end token
STILL_DEVIATION = 0.2  # largest |ratio - 1| of nearly all updates on a used batch: the usual clip range, never reached
STILL_KL = 1e-4  # nat per token from the start, at the end of the run; only where no batch is reused
REWARD = "reward/mean"  # the score of a run that was not evaluated
SCORES = ("eval/accuracy_expected", "eval/accuracy_greedy", REWARD)  # the first that a run has is its score
EVALUATED = ("eval/accuracy_expected", "eval/reward")  # the score of a report on other programs' runs, if all have one
SPANS = 10  # equal pieces of a log, whose mean rewards stand for evaluations
NOISE = 4  # a fall is a collapse if it is larger than so many standard errors of a piece's mean
HALF = 0.5  # of a run: a batch has too few groups to count one alone
LEAST_OF_TREND = 4  # rewards: fewer have no trend with an error
ONE_SIDE = 0.9  # share of the groups with equal rewards (or of the rewards' range) that counts as nearly all
# The field's clip range at each ratio level: PPO's and GRPO's, and GSPO's.
USUAL_RANGE = {"token": 0.2, "sequence": 3e-4}

TABLES = {"update": "updates", "rollout": "rollouts", "evaluation": "evaluations"}


def median(values: Floats) -> float:
    """Return the median; NaN without any value."""
    return float(np.median(values)) if len(values) else np.nan


def ratio_deviations(updates: pd.DataFrame) -> Floats:
    """Return the largest |ratio - 1| of each update that logs its least and largest token ratio."""
    least, most = both(updates, "ratio/token_min", "ratio/token_max")
    return np.maximum(most - 1, 1 - least)


def trend(values: Floats) -> tuple[float, float]:
    """Return the change from first to last along the values' least-squares line, and the change's standard error."""
    places = np.linspace(-0.5, 0.5, len(values))
    slope, mean = np.polyfit(places, values, 1)
    residuals = values - mean - slope * places
    freedom, length = max(len(values) - 2, 1), float(np.sqrt((places**2).sum()))
    return float(slope), float(np.sqrt((residuals**2).sum() / freedom)) / length


def neighbour_noise(values: Floats) -> float:
    """Return the noise's standard deviation, estimated without trend from differences of neighbours; inf for two."""
    return float(np.std(np.diff(values))) / np.sqrt(2) if len(values) > 2 else np.inf


def pieces(rollouts: pd.DataFrame) -> list[tuple[int, float]]:
    """Cut a log into SPANS equal pieces, fewer if it is short; return each one's last step and mean reward."""
    steps, rewards = both(rollouts, "rollout_step", REWARD)
    parts = np.array_split(np.arange(len(steps)), min(SPANS, len(steps)) or 1)
    return [(int(steps[rows].max()), float(rewards[rows].mean())) for rows in parts if len(rows)]


def least_fall(logs: Sequence[pd.DataFrame], metric: str = REWARD) -> float:
    """Return how far a log's score must fall to be a collapse: beyond the noise, and a tenth of its range.

    The score is the mean reward of pieces of a log; another metric is evaluated, and stands for itself.
    """
    courses = [[mean for _, mean in pieces(log)] if metric == REWARD else list(column(log, metric)) for log in logs]
    means = list(chain(*courses))
    least = [Thresholds.collapse_drop * max(1.0, max(means) - min(means))] if means else []
    for values in (column(log, metric) for log in logs):
        if len(values) > 2:
            size = max(1, len(values) // SPANS) if metric == REWARD else 1
            least.append(NOISE * neighbour_noise(values) / np.sqrt(size))
    return max(least, default=Thresholds.collapse_drop)


@dataclass(frozen=True)
class Weights:
    """The weights at the end of a run, compared with those at its start."""

    count: int  # of all weights
    on_grid: float  # share that is exactly a bfloat16 number
    moved: float  # share that differs from the start; NaN if the start is not known
    still: tuple[str, ...] = ()  # names of tensors in which no weight moved


@dataclass(frozen=True, eq=False)
class Evidence:
    """One run. Tables as in `report/journals.py`; an update's numbers are those before its optimiser step."""

    run: str
    state: str  # how the run ended, or that it has not
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys; empty if a log does not hold them
    updates: pd.DataFrame = field(default_factory=pd.DataFrame)
    rollouts: pd.DataFrame = field(default_factory=pd.DataFrame)
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    samples: pd.DataFrame = field(default_factory=pd.DataFrame)  # tokens of the rollout steps that were kept
    weights: Weights | None = None
    unknown: tuple[str, ...] = ()  # what could not be read, one sentence each
    readings: tuple[str, ...] = ()  # what of a log was read as what, one sentence each
    not_finite: Mapping[str, Sequence[int]] = field(default_factory=dict)  # metric -> steps where it is NaN or infinite
    framework: str = "grpolab"  # whose log it is
    seconds: float = np.nan  # that the run took; NaN if no time is logged
    # `stability.journal_quantities` of a run whose updates are not kept
    numbers: Mapping[str, float | bool] = field(default_factory=dict)
    # From the study for which the run is diagnosed; empty if there is none.
    thresholds: Thresholds | None = None
    metric: str = ""

    def setting(self, key: str, default: float = 0.0) -> float:
        """Return a setting that is a number; one that is empty is 0."""
        return float(self.settings.get(key, default) or 0)

    @property
    def samples_from_another(self) -> bool:
        """True if the settings make the sampler another policy: older batches, older weights, noise, or a cut."""
        is_cut = any(self.setting(key) for key in ("top_k", "top_p", "min_p")) and self.framework == "grpolab"
        is_changed = any(self.setting(key) for key in ("staleness", "sampler_refresh", "sampler_noise"))
        return is_changed or (is_cut and not self.settings.get("keep_sampling_mask"))

    def values(self, metric: str) -> Floats:
        """Return a metric over the run, in order; empty if it is not logged."""
        is_rollout = metric in LOG_ONLY or METRICS[metric].kind == "rollout"
        return column(self.rollouts if is_rollout else self.updates, metric)

    def median(self, metric: str) -> float:
        """Return the median; NaN if the metric is not logged."""
        return median(self.values(metric))

    def largest(self, metric: str) -> float:
        """Return the largest value; NaN if the metric is not logged."""
        return journals.largest(self.values(metric))

    def ends(self, metric: str, share: float = Thresholds.tail) -> tuple[float, float]:
        """Return the mean of a metric over the first and over the last `share` of its rows; NaN without any."""
        values = self.values(metric)
        n = journals.tail_length(len(values), share)
        return journals.mean(values[:n]), journals.mean(values[-n:])

    @cached_property
    def _is_first(self) -> pd.Series:
        if not {"iteration", "minibatch"} <= set(self.updates):  # a row a batch, or unknown
            return pd.Series(False, index=self.updates.index, dtype=bool)
        return (self.updates["iteration"] == 0) & (self.updates["minibatch"] == 0)

    @cached_property
    def first(self) -> pd.DataFrame:
        """The updates that are known to be the first ones on their batches."""
        return self.updates[self._is_first]

    @cached_property
    def later(self) -> pd.DataFrame:
        """The other updates: there the ratio can differ from 1."""
        return self.updates[~self._is_first]

    @cached_property
    def updates_per_batch(self) -> int:
        """Optimiser steps on one batch; 0 if the log does not tell."""
        return int(self.updates["rollout_step"].value_counts().max()) if self._is_first.any() else 0

    @cached_property
    def first_deviations(self) -> Floats:
        """Largest |ratio - 1| of each batch's first update."""
        return ratio_deviations(self.first)

    @cached_property
    def deviations(self) -> Floats:
        """Largest |ratio - 1| of each later update; empty if no batch is reused."""
        return ratio_deviations(self.later)

    @property
    def largest_deviation(self) -> float:
        """The largest |ratio - 1| of all later updates; NaN if no batch is reused."""
        return journals.largest(self.deviations)

    @property
    def peak_rate(self) -> float:
        """The largest learning rate in the log, else the one in the settings; NaN if neither is known."""
        rate, in_settings = self.largest("learning_rate"), self.settings.get("learning_rate")
        return float(in_settings) if np.isnan(rate) and isinstance(in_settings, int | float) else rate

    @cached_property
    def is_still(self) -> bool:
        """True if the policy hardly moves: by the ratios on reused batches, else by the KL from the start."""
        if len(self.deviations):
            return bool(np.quantile(self.deviations, MOST) < STILL_DEVIATION)
        return bool((self.values("kl_ref/exact")[-1:] < STILL_KL).any())

    @cached_property
    def has_moved(self) -> bool:
        """True if the policy provably moved while a batch was used, even if all ratios are 1.

        Old log-probs that wrongly follow the weights move away from the sampler's log-probs, which stay the same.
        """
        gap = self.median("gap/sampler_trainer")
        return self.largest("kl_ref/exact") > STILL_KL if np.isnan(gap) else gap > ROUNDING

    @cached_property
    def reward_parts(self) -> dict[str, tuple[Floats, Floats]]:
        """Each part of the reward, with the whole reward in the same rows."""
        names = [name for name in self.rollouts if name in ("reward/correct", "reward/format") or PART.fullmatch(name)]
        return {name: both(self.rollouts, name, REWARD) for name in names}

    @cached_property
    def has_no_kl_term(self) -> bool:
        """True if the KL to the reference is no number in any row, while loss, reward and gradient always are."""
        others = ("loss", "grad_norm", REWARD)
        never = len(self.not_finite.get("kl_ref/k3", ())) > 0 and not len(self.values("kl_ref/k3"))
        others_are = any(len(self.values(name)) for name in others) and not any(map(self.not_finite.get, others))
        return never and others_are

    @property
    def has_outer_cap(self) -> bool:
        """True if the settings bound the ratio of tokens with A < 0 too."""
        return bool(self.settings.get("delta") or self.settings.get("dual_clip"))

    @cached_property
    def score(self) -> tuple[str, Floats]:
        """The score's metric and values: held-out accuracy if there are at least two evaluations, else the reward.

        Evaluations in a log of another program have a noise that is not known: there the rules look at the reward.
        """
        for metric in (self.metric, *(SCORES if self.framework == "grpolab" else SCORES[-1:])):
            values = column(self.rollouts if metric == REWARD else self.evaluations, metric)
            values = values[np.isfinite(values)]
            if len(values) > 1:
                break
        return metric, values

    @property
    def believable_fall(self) -> float:
        """The least fall of the score that is no noise; for rewards, three times their noise."""
        metric, score = self.score
        return 3 * neighbour_noise(score) if metric == REWARD else Thresholds.collapse_drop

    @cached_property
    def course(self) -> Floats:
        """The score over the run, as the report computes it: one value per evaluation.

        A log without evaluations is cut into about SPANS equal pieces, and the score is each one's mean reward.
        """
        metric, values = self.score
        return np.array([reward for _, reward in pieces(self.rollouts)]) if metric == REWARD else values

    @property
    def final_score(self) -> float:
        """The score at the end, as reports have it."""
        return final_score(self.course, self.limits.score_tail)

    @cached_property
    def is_collapsed(self) -> bool:
        """True if the score fell and did not recover: the report's label, however the run ended."""
        if self.score[0] == REWARD and len(self.score[1]) < LEAST_OF_TREND:
            return False  # nothing tells a fall from noise
        return has_collapsed(self.course, self.limits)

    @property
    def lost(self) -> str:
        """The report's label of a lost run (collapsed, diverged, stopped); empty for one that was not lost."""
        ended = next((outcome for outcome in (DIVERGED, STOPPED) if self.state.startswith(outcome)), "")
        return ended or ("collapsed" if self.is_collapsed else "")

    @cached_property
    def limits(self) -> Thresholds:
        """Thresholds of the study, else ours; a reward that stands for the score must fall beyond its noise."""
        if self.thresholds or self.score[0] != REWARD:
            return self.thresholds or Thresholds()
        return Thresholds(collapse_drop=least_fall([self.rollouts]))

    @cached_property
    def reward_went(self) -> Literal["up", "down", "nowhere", "unknown"]:
        """The direction of the mean reward: its trend, if that is larger than two standard errors."""
        rewards = self.values(REWARD)
        if len(rewards) < LEAST_OF_TREND:
            return "unknown"
        change, error = trend(rewards)
        return "nowhere" if abs(change) <= 2 * error else "up" if change > 0 else "down"

    @cached_property
    def all_right_and_wrong(self) -> tuple[float, float]:
        """Shares of groups that are all right, and all wrong, in the second half of the run; NaN if not logged."""
        return self.ends("zero_variance/all_right", HALF)[1], self.ends("zero_variance/all_wrong", HALF)[1]

    @cached_property
    def why_equal(self) -> Literal["right", "wrong", "mixed", "unknown"]:
        """Kind of the groups with equal rewards in the second half of the run: nearly all right, all wrong, or mixed.

        If a log does not tell what is right, a mean reward at one end of the rewards' range does.
        """
        equal, (right, wrong) = self.ends("zero_variance/share", HALF)[1], self.all_right_and_wrong
        if equal > 0 and not np.isnan(right + wrong):
            return "right" if right > ONE_SIDE * equal else "wrong" if wrong > ONE_SIDE * equal else "mixed"
        least, most = -journals.largest(-self.values("reward/min")), self.largest("reward/max")
        reward = self.ends(REWARD, HALF)[1]
        if not most > least or np.isnan(reward):
            return "unknown"
        place = (reward - least) / (most - least)
        return "right" if place > ONE_SIDE else "wrong" if place < 1 - ONE_SIDE else "mixed"

    @cached_property
    def equal_groups(self) -> Floats:
        """Share of groups with equal rewards, by step; if not logged, 1 where all rewards of a step are equal."""
        if len(shares := self.values("zero_variance/share")):
            return shares
        if len(spread := self.values("reward/std")):
            return (spread == 0).astype(np.float64)
        least, most = both(self.rollouts, "reward/min", "reward/max")
        return (least == most).astype(np.float64)


def to_evidence(log: RunLog) -> Evidence:
    """Return the evidence in the log of another framework."""
    said = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in log.settings.items()]
    seconds = np.nan
    if "seconds/step" in log.rollouts:  # TRL logs the mean of a step, in a row for every `logging_steps`
        stride = median(column(log.rollouts.diff(), "rollout_step")) if log.framework == "trl" else 1.0
        seconds = float(column(log.rollouts, "seconds/step").sum() * np.nanmax([stride, 1.0]))
    return Evidence(
        run=log.run,
        state=f"a log of {log.framework} with {count(log.rows, 'row')}",
        settings=log.settings,
        updates=log.updates,
        rollouts=log.rollouts,
        evaluations=log.evaluations,
        readings=log.readings,
        unknown=(
            f"settings other than {listing(said, 8)}, which are written there"
            if said
            else "the settings (epsilon, beta, num_iterations, max_grad_norm, warm-up): such a log does not hold them",
            "advantages and single tokens: such a log does not hold them",
            *log.problems,
        ),
        not_finite=log.not_finite,
        framework=log.framework,
        seconds=seconds,
    )
