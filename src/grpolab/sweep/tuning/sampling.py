"""When a trial is given up. Steps are rollout steps, those of a trial's seeds one after the other.

What is reported is the mean of the last evaluations, and it is the *current* one that is compared: by the best so far
(as Optuna's median compares) a run that collapses would never be given up.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner, WilcoxonPruner
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from grpolab.sweep.tuning.arms import Point
from grpolab.sweep.tuning.settings import Pruner, Scalar, Space, Tuning, Values

WATCHED = "eval/accuracy_expected"  # every task measures it, and where one answer is right without sampling noise


class CurrentMedianPruner(BasePruner):
    """Below the median that finished trials had at the same step."""

    def __init__(self, startup_trials: int) -> None:
        self._startup_trials = startup_trials

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether the trial is to be given up at its last step."""
        step = trial.last_step
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        values = [one.intermediate_values[step] for one in finished if step in one.intermediate_values]
        if step is None or len(values) < self._startup_trials:
            return False
        current, median = trial.intermediate_values[step], statistics.median(values)
        return current < median if study.direction == StudyDirection.MAXIMIZE else current > median


def pruner(asked: Pruner, first: int, last: int) -> BasePruner:
    """The pruner of trials that are first judged at step `first` and end at `last`."""
    if asked.name == "median":
        return CurrentMedianPruner(asked.startup_trials)
    if asked.name == "asha":
        return SuccessiveHalvingPruner(min_resource=first, reduction_factor=asked.factor)
    if asked.name == "hyperband":
        return HyperbandPruner(min_resource=first, max_resource=last, reduction_factor=asked.factor)
    return WilcoxonPruner(p_threshold=asked.p) if asked.name == "wilcoxon" else NopPruner()


# ----------------------------------------------------------------------------------------------------------------------
# Which values are tried next. A sampler is made anew for every key of every trial, from the trial's number.
#
# So a resumed tuning suggests what the straight one would have, and never its first suggestions again. The arms are no
# part of the seed: those with the same space begin with the same values.


STARTUP_TRIALS = 5  # random ones, before TPE has something to go by
SHOWN_DIGITS = 4  # of a suggested number: what a person can copy


class GridSampler(BaseSampler):
    """The points of a grid in an order shuffled once. Optuna's own ends its loop, and ask and tell have none."""

    def __init__(self, space: Space, seed: int) -> None:
        self._keys = list(space)
        self._points = list(itertools.product(*(values.choices or [] for values in space.values())))
        order = [(hashlib.sha256(f"{seed}/{index}".encode()).digest(), index) for index in range(len(self._points))]
        self._points = [self._points[index] for _, index in sorted(order)]

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Keys are drawn one by one."""
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """None together."""
        return {}

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, param_name: str, _: Any) -> Scalar:
        """The key's value at the first point that no other trial has and that fits what this one has already."""
        others = study.get_trials(deepcopy=False)
        taken = [
            one.params for one in others if one.number != trial.number and one.state != TrialState.FAIL and one.params
        ]
        points = [dict(zip(self._keys, point, strict=True)) for point in self._points]
        free = [point for point in points if point not in taken and trial.params.items() <= point.items()]
        return (free or points)[0][param_name]


def sampler(tuning: Tuning, space: Space, number: int, key: str, parallel: bool) -> BaseSampler:
    """For one key of one trial; for what is drawn of all keys together, `key` is empty."""
    text = f"{tuning.sampler_seed}/{number}/{key}".encode()
    seed = int.from_bytes(hashlib.sha256(text).digest()[:4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if tuning.sampler == "tpe":
            return TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, constant_liar=parallel)
        if tuning.sampler == "cmaes":
            return CmaEsSampler(seed=seed)
        return RandomSampler(seed) if tuning.sampler == "random" else GridSampler(space, tuning.sampler_seed)


def suggest(trial: optuna.Trial, key: str, values: Values) -> None:
    """Give the trial a value of the key, unless it has one."""
    if values.choices is not None:
        trial.suggest_categorical(key, values.choices)
    else:
        assert values.low is not None
        assert values.high is not None
        trial.suggest_float(key, values.low, values.high, log=values.log)


def point_of(params: Mapping[str, Any], space: Space) -> Point:
    """The values that a trial's runs take: numbers of a range with few digits."""
    return {
        key: params[key] if values.choices is not None else _rounded(params[key], values)
        for key, values in space.items()
    }


def _rounded(drawn: float, values: Values) -> float:
    assert values.low is not None
    assert values.high is not None
    return min(max(float(f"{drawn:.{SHOWN_DIGITS}g}"), values.low), values.high)
