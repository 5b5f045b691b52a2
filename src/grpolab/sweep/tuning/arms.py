"""What is tuned: the arms of one facet of a study, which values are tried next, and when a trial is given up."""

from __future__ import annotations

import hashlib
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner, WilcoxonPruner
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from grpolab.errors import RequestError, format_value
from grpolab.identity import dotted
from grpolab.settings.equalities import explain_equality
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import Composer, key_of
from grpolab.sweep.plan import Cell
from grpolab.sweep.study import Study, load
from grpolab.sweep.tuning.settings import Pruner, Scalar, Space, Tuning

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
    return f"{key}={format_value(value)}"


class Arms:
    """The arms of a study that has a section `tuning:`, each with its settings and its space."""

    def __init__(self, study: Study, overrides: Sequence[str] = ()) -> None:
        """`overrides` stand after those of every arm, and before its values. Raises RequestError with all problems."""
        assert study.tuning
        self.study, self.overrides = study, list(overrides)
        self.tuning: Tuning = study.tuning
        self.names = list(study.factors[study.compare])
        self.plan_name = f"{study.name}.tuning"  # under which the trials' runs are planned, and tracked
        self._composer = Composer()
        self._composed: dict[tuple[str, str], RunSettings] = {}
        self._content: dict[str, dict[str, Any]] = {}  # of what is named, as it was when it was first asked for
        problems = [f"{text}: a tuning sets its seeds itself" for text in overrides if key_of(text) == "seed"]
        problems += [problem for arm in self.names for problem in self._problems(arm)]
        if problems:
            raise RequestError(dict.fromkeys(problems))

    def _problems(self, arm: str) -> Iterator[str]:
        """A sentence for each key that cannot be tuned or that the arm does not use, and where values do not fit."""
        space = self.tuning.space_of(arm)
        fixed = [key for key in space if key.partition(".")[0] in FIXED]
        for key in fixed:
            yield f"tuning: {key} cannot be tuned: it decides what is learnt, how it is measured or how long it lasts"
        try:
            self.settings(arm, {})
            for key, values in space.items() if not fixed else ():
                first, *others = [self.settings(arm, {key: value}) for value in values.choices or values.bounds]
                reasons = [explain_equality(first, other) for other in others]
                if all(reason is not None for reason in reasons):
                    yield f"tuning: arm {arm} makes no use of {key}: {'; '.join(reasons[0] or [])}"
        except RequestError as error:
            yield from (f"{problem} (tuning, arm {arm})" for problem in error.problems)

    def levels(self, arm: str) -> dict[str, str]:
        """The variant whose values are tuned."""
        chosen = {self.study.compare: arm, **self.tuning.where}
        return {factor: chosen.get(factor) or next(iter(levels)) for factor, levels in self.study.factors.items()}

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
        content = resolve_run(settings).content()
        if (first := self._content.setdefault(names, content)) != content:
            changed = " and ".join(key for key, value in content.items() if value != first.get(key))
            raise RequestError(
                f"what {changed} names has changed since the tuning began: its trials need the old content"
            )
        return [Cell(levels, resolve_run(settings.model_copy(update={"seed": seed}))) for seed in self.tuning.seeds]

    def base_cells(self) -> list[Cell]:
        """The runs of every arm as it is without any tuning."""
        return [cell for arm in self.names for cell in self.cells(arm, 0, {})]

    def space(self, arm: str) -> dict[str, dict[str, Any]]:
        """The arm's space as a study file states it."""
        return {key: values.model_dump(exclude_none=True) for key, values in self.tuning.space_of(arm).items()}

    def common(self, arm: str) -> dict[str, Any]:
        """What the study gives the arm's keys before any tuning; None where it has no value, or names a preset."""
        values = dict(dotted(self.settings(arm, {}).model_dump()))
        return {
            key: None if isinstance(values.get(key), list) else values.get(key) for key in self.tuning.space_of(arm)
        }

    def identity(self, arm: str) -> dict[str, Any]:
        """All that two tunings of an arm must share to be one: the number of trials is no part of it."""
        tuning = self.tuning.model_dump(exclude={"trials", "arms", "space", "where"})
        return {**tuning, "space": self.space(arm), "settings": resolve_run(self.settings(arm, {})).signature}


def load_tuned(name: str) -> Study:
    """The study of that name or path. Raises RequestError where there is none, or it has no `tuning:`."""
    study = load(name)
    if not isinstance(study, Study) or study.tuning is None:
        raise RequestError(f"{study.file} has no `tuning:`: say there which keys are tuned, and how")
    return study


# Which values are tried next. A sampler is made anew for every key of every trial, from the trial's number.
#
# So a resumed tuning suggests what the straight one would have, and never its first suggestions again. The arms are no
# part of the seed: those with the same space begin with the same values.


class GridSampler(RandomSampler):
    """The points of a grid in an order shuffled once. Optuna's own ends its loop, and ask and tell have none."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(seed)
        points = list(itertools.product(*(values.choices or [] for values in space.values())))
        order = sorted(range(len(points)), key=lambda index: hashlib.sha256(f"{seed}/{index}".encode()).digest())
        self._points = [dict(zip(space, points[index], strict=True)) for index in order]

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, param_name: str, _: Any) -> Scalar:
        """The key's value at the first point that no other trial has and that fits what this one has already."""
        others = study.get_trials(deepcopy=False)
        taken = [other.params for other in others if other.number != trial.number and other.state != TrialState.FAIL]
        free = [point for point in self._points if point not in taken and trial.params.items() <= point.items()]
        return (free or self._points)[0][param_name]


def sampler(tuning: Tuning, space: Space, number: int, key: str, parallel: bool) -> BaseSampler:
    """For one key of one trial; for what is drawn of all keys together, `key` is empty."""
    text = f"{tuning.sampler_seed}/{number}/{key}".encode()
    seed = int.from_bytes(hashlib.sha256(text).digest()[:4])
    if tuning.sampler == "tpe":
        return TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, constant_liar=parallel)
    if tuning.sampler == "cmaes":
        return CmaEsSampler(seed=seed)
    return RandomSampler(seed) if tuning.sampler == "random" else GridSampler(space, tuning.sampler_seed)


def point_of(params: Mapping[str, Any], space: Space) -> Point:
    """The values that a trial's runs take: numbers of a range with few digits."""
    point = {key: params[key] for key in space}
    for key, values in space.items():
        if values.choices is None:
            low, high = values.bounds
            point[key] = min(max(float(f"{params[key]:.{SHOWN_DIGITS}g}"), low), high)
    return point


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
