"""What is tuned: the arms of one facet of a study, which values are tried next, and when a trial is given up."""

from __future__ import annotations

import hashlib
import itertools
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner, WilcoxonPruner
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from grpolab.errors import RequestError
from grpolab.identity import dotted, signature
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import Composer, key_of
from grpolab.sweep.plan import Cell
from grpolab.sweep.study import Study, load
from grpolab.sweep.tuning.settings import Pruner, Scalar, Space, Tuning, Values

TRIAL = "trial"  # the factor of a tuning's plan beside the arms
WATCHED = "eval/accuracy_expected"  # every task measures it, and where one answer is right without sampling noise
STARTUP_TRIALS = 5  # random ones, before TPE has something to go by
SHOWN_DIGITS = 4  # of a suggested number: what a person can copy
# They decide what is learnt, how it is measured or how long it lasts: with them, trials could not be compared.
FIXED = {"seed", "task", "reward", "evaluation", "diagnostics", "machine", "device", "dtype", "early_stop"}
FIXED |= {"rollout_steps", "max_completions", "max_optimizer_steps", "max_seconds"}

Point = Mapping[str, Scalar]


def override(key: str, value: Scalar) -> str:
    """`learning_rate=0.00041`, as it stands in a study file."""
    if isinstance(value, bool) or value is None:
        return f"{key}={'null' if value is None else str(value).lower()}"
    return f"{key}={value}"


class Arms:
    """The arms of a study that has a section `tuning:`, each with its settings and its space."""

    def __init__(self, study: Study, overrides: Sequence[str] = ()) -> None:
        """`overrides` stand after those of every arm, and before its values. Raises RequestError with all problems."""
        assert study.tuning
        self.study, self.overrides = study, list(overrides)
        self.tuning: Tuning = study.tuning
        self._composer = Composer()
        self._composed: dict[tuple[str, str], RunSettings] = {}
        self._content: dict[str, dict[str, Any]] = {}  # of what is named, as it was when it was first asked for
        self.names = list(self.study.factors[self.study.compare])
        problems = [f"{text}: a tuning sets its seeds itself" for text in overrides if key_of(text) == "seed"]
        problems += [problem for arm in self.names for problem in self._problems(arm)]
        if problems:
            raise RequestError(dict.fromkeys(problems))

    @property
    def plan_name(self) -> str:
        """The name under which the trials' runs are planned, and tracked."""
        return f"{self.study.name}.tuning"

    def levels(self, arm: str) -> dict[str, str]:
        """The variant whose values are tuned."""
        return self.tuning.levels(self.study.factors, self.study.compare, arm)

    def settings(self, arm: str, point: Point) -> RunSettings:
        """The arm with these values. Raises RequestError where they do not fit together."""
        values = [override(key, value) for key, value in point.items()]
        if (arm, str(values)) not in self._composed:
            overrides = [*self.study.overrides_of(self.levels(arm)), *self.overrides, *values]
            self._composed[arm, str(values)] = self._composer.compose(overrides)
        return self._composed[arm, str(values)]

    def cells(self, arm: str, number: int, point: Point) -> list[Cell]:
        """The runs of a trial, one for each seed, in order.

        Raises as `settings`, and where data or code has changed since the first trial: they could not be compared.
        """
        settings, levels = self.settings(arm, point), {self.study.compare: arm, TRIAL: str(number)}
        names = str((settings.task, settings.reward, settings.model))
        content = settings.content()
        if (first := self._content.setdefault(names, content)) != content:
            changed = " and ".join(key for key, value in content.items() if value != first.get(key))
            raise RequestError(
                f"what {changed} names has changed since the tuning began: its trials need the old content"
            )
        return [Cell(levels, settings.model_copy(update={"seed": seed})) for seed in self.tuning.seeds]

    def common(self, arm: str) -> dict[str, Any]:
        """What the study gives the arm's keys before any tuning; None where it has no value, or names a preset."""
        values = dict(dotted(self.settings(arm, {}).model_dump()))
        return {
            key: None if isinstance(values.get(key), list) else values.get(key) for key in self.tuning.space_of(arm)
        }

    def corners(self, arm: str) -> Iterator[tuple[str, list[RunSettings]]]:
        """Each key with the settings of its outermost values, the other keys as the study has them."""
        for key, values in self.tuning.space_of(arm).items():
            yield key, [self.settings(arm, {key: value}) for value in values.corners()]

    def identity(self, arm: str) -> dict[str, Any]:
        """All that two tunings of an arm must share to be one: the number of trials is no part of it."""
        tuning = self.tuning.model_dump(exclude={"trials", "arms", "space", "where"})
        space = {key: values.model_dump(exclude_none=True) for key, values in self.tuning.space_of(arm).items()}
        return {**tuning, "space": space, "settings": signature(self.settings(arm, {}).identity())}

    def _problems(self, arm: str) -> Iterator[str]:
        fixed = [key for key in self.tuning.space_of(arm) if key.partition(".")[0] in FIXED]
        for key in fixed:
            yield f"tuning: {key} cannot be tuned: it decides what is learnt, how it is measured or how long it lasts"
        try:
            self.settings(arm, {})
            if not fixed:
                list(self.corners(arm))
        except RequestError as error:
            yield from (f"{problem} (tuning, arm {arm})" for problem in error.problems)


def load_tuned(name: str) -> Study:
    """The study in experiments/<name>.yaml. Raises RequestError where there is none, or it has no `tuning:`."""
    study = load(name)
    if not isinstance(study, Study) or study.tuning is None:
        raise RequestError(f"experiments/{name}.yaml has no `tuning:`: say there which keys are tuned, and how")
    return study


# ----------------------------------------------------------------------------------------------------------------------
# Which values are tried next. A sampler is made anew for every key of every trial, from the trial's number.
#
# So a resumed tuning suggests what the straight one would have, and never its first suggestions again. The arms are no
# part of the seed: those with the same space begin with the same values.


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
            other.params
            for other in others
            if other.number != trial.number and other.state != TrialState.FAIL and other.params
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
    point = {}
    for key, values in space.items():
        point[key] = params[key]
        if values.choices is None:
            assert values.low is not None
            assert values.high is not None
            point[key] = min(max(float(f"{params[key]:.{SHOWN_DIGITS}g}"), values.low), values.high)
    return point


# ----------------------------------------------------------------------------------------------------------------------
# When a trial is given up. Steps are rollout steps, those of a trial's seeds one after the other.
#
# What is reported is the mean of the last evaluations, and it is the *current* one that is compared: by the best so far
# (as Optuna's median compares) a run that collapses would never be given up.


class CurrentMedianPruner(BasePruner):
    """Below the median that finished trials had at the same step."""

    def __init__(self, startup_trials: int) -> None:
        self._startup_trials = startup_trials

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether the trial is to be given up at its last step."""
        step = trial.last_step
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        values = [other.intermediate_values[step] for other in finished if step in other.intermediate_values]
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
