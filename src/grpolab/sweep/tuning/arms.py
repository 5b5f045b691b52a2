"""The arms of a study that is tuned: their settings, the values that Optuna suggests, and where trials are kept.

Every arm is an Optuna study of its own, `<study>/<arm>`, so that all get equally many trials.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from grpolab.equalities import explain_equality
from grpolab.errors import RequestError, format_value
from grpolab.identity import dotted
from grpolab.paths import plain
from grpolab.run.database import connected, reason_of
from grpolab.run.tracking import SQLITE, password_problem
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import Composer, key_of
from grpolab.sweep.plan import Cell
from grpolab.sweep.study import Study, load
from grpolab.sweep.tuning.settings import Scalar, Space, Tuning
from grpolab.vocabulary import COMPLETE, RUNNING

TRIAL = "trial"  # the factor of a tuning's plan beside the arms
STARTUP_TRIALS = 5  # random ones, before TPE has something to go by
SHOWN_DIGITS = 4  # of a suggested number: what a person can copy
# They decide what is learnt, how it is measured or how long it lasts: with them, trials could not be compared.
FIXED = {"seed", "task", "reward", "evaluation", "diagnostics", "machine", "device", "dtype", "early_stop"}
FIXED |= {"rollout_steps", "max_completions", "max_optimizer_steps", "max_seconds"}
RECORD, IDENTITY = "record", "identity"  # attributes in the storage: of a trial, of an arm
SERVERS = ("postgresql", "mysql")
SCHEMA = "optuna"  # in PostgreSQL: MLflow's tables may be in the same database, and both have a table of one name

Point = Mapping[str, Scalar]


def load_tuned(name: str) -> Study:
    """Return the study of that name or path. Raises RequestError if there is none, or it has no `tuning:`."""
    study = load(name)
    if not isinstance(study, Study) or study.tuning is None:
        raise RequestError(f"{study.file} has no `tuning:`: say there which keys are tuned, and how")
    return study


def override(key: str, value: Scalar) -> str:
    """Return `learning_rate=0.00041`, as it stands in a study file."""
    return f"{key}={format_value(value)}"


class TunedStudy:
    """A study that has a section `tuning:`, with the settings of each of its arms."""

    def __init__(self, study: Study, overrides: Sequence[str] = ()) -> None:
        """Check the study; `overrides` stand after those of every arm. Raises RequestError with all problems."""
        assert study.tuning
        self.study, self.overrides = study, list(overrides)
        self.tuning: Tuning = study.tuning
        self.arms = list(study.factors[study.compare])
        self.plan_name = f"{study.name}.tuning"  # under which the trials' runs are planned, and tracked
        self._composer = Composer()
        self._composed: dict[tuple[str, str], RunSettings] = {}  # by arm and values
        self._content: dict[str, dict[str, Any]] = {}  # what the settings name, as it was when first read
        problems = [f"{text}: a tuning sets its seeds itself" for text in overrides if key_of(text) == "seed"]
        problems += [problem for arm in self.arms for problem in self._problems(arm)]
        if problems:
            raise RequestError(dict.fromkeys(problems))

    def _problems(self, arm: str) -> Iterator[str]:
        """Yield a sentence for each key that cannot be tuned, or that the arm does not use."""
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
        """Return the variant whose values are tuned: a level of each factor."""
        named = {self.study.compare: arm, **self.tuning.where}
        return {factor: named.get(factor) or next(iter(levels)) for factor, levels in self.study.factors.items()}

    def settings(self, arm: str, point: Point) -> RunSettings:
        """Compose the arm with these values. Raises RequestError if they do not fit together."""
        values = [override(key, value) for key, value in point.items()]
        if (arm, str(values)) not in self._composed:
            overrides = [*self.study.overrides_of(self.levels(arm)), *self.overrides, *values]
            self._composed[arm, str(values)] = self._composer.compose(overrides)
        return self._composed[arm, str(values)]

    def cells(self, arm: str, number: int, point: Point) -> list[Cell]:
        """Return the runs of a trial, one for each seed, in order.

        Raises RequestError as `settings` does, and if data or code has changed since the first trial.
        """
        settings, levels = self.settings(arm, point), {self.study.compare: arm, TRIAL: str(number)}
        names = str((settings.task, settings.reward, settings.model))
        content = resolve_run(settings).content()
        if (first := self._content.setdefault(names, content)) != content:
            key = " and ".join(key for key, value in content.items() if value != first.get(key))
            raise RequestError(f"what {key} names has changed since the tuning began: its trials need the old content")
        return [Cell(levels, settings, seed) for seed in self.tuning.seeds]

    def base_cells(self) -> list[Cell]:
        """Return the runs of every arm without any tuned value."""
        return [cell for arm in self.arms for cell in self.cells(arm, 0, {})]

    def space(self, arm: str) -> dict[str, dict[str, Any]]:
        return {key: values.model_dump(exclude_none=True) for key, values in self.tuning.space_of(arm).items()}

    def common_values(self, arm: str) -> dict[str, Any]:
        """Return the study's own values of the arm's tuned keys; None if it sets none, or sets them by a preset."""
        values = {
            key: value for key, value in dotted(self.settings(arm, {}).model_dump()) if not isinstance(value, list)
        }
        return {key: values.get(key) for key in self.tuning.space_of(arm)}

    def identity(self, arm: str) -> dict[str, Any]:
        """Return what must be unchanged for a tuning to continue: all that defines it except the number of trials."""
        tuning = self.tuning.model_dump(exclude={"trials", "arms", "space", "where"})
        return {**tuning, "space": self.space(arm), "settings": resolve_run(self.settings(arm, {})).signature}


class ShuffledGrid(RandomSampler):
    """The points of a grid in a shuffled order. Optuna's GridSampler needs `study.optimize`, which is not used here."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(seed)
        points = list(itertools.product(*(values.choices or [] for values in space.values())))
        # Shuffled by hash: the same order in every process and Python version.
        order = sorted(range(len(points)), key=lambda index: hashlib.sha256(f"{seed}/{index}".encode()).digest())
        self._points = [dict(zip(space, points[index], strict=True)) for index in order]

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, param_name: str, _: Any) -> Scalar:
        """Return the key's value at the first untried point that agrees with the values that the trial has so far."""
        others = study.get_trials(deepcopy=False)
        taken = [other.params for other in others if other.number != trial.number and other.state != TrialState.FAIL]
        free = [point for point in self._points if point not in taken and trial.params.items() <= point.items()]
        return (free or self._points)[0][param_name]


def make_sampler(tuning: Tuning, space: Space, index: int, key: str, parallel: bool) -> BaseSampler:
    """Make the sampler of one key of one trial, seeded by both.

    So a resumed tuning suggests the same values as an uninterrupted one, and arms with equal spaces begin with the same
    values. `key` is empty if the sampler draws all keys together (CMA-ES).
    """
    if tuning.sampler == "grid":
        return ShuffledGrid(space, tuning.sampler_seed)
    seed = int.from_bytes(hashlib.sha256(f"{tuning.sampler_seed}/{index}/{key}".encode()).digest()[:4])
    if tuning.sampler == "random":
        return RandomSampler(seed)
    if tuning.sampler == "cmaes":
        return CmaEsSampler(seed=seed)
    return TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, constant_liar=parallel)


def open_storage(uri: str, study: str) -> RDBStorage:
    """Open the database of a tuning's trials, or make it.

    Raises RequestError if the URI's kind is not supported, or the database does not answer or is another study's.
    """
    if problem := password_problem(uri):
        raise RequestError(f"--storage {uri} {problem}")
    if not uri.startswith((SQLITE, *SERVERS)) or uri == SQLITE:
        raise RequestError(f"--storage {uri} is no storage: use sqlite:///FILE, postgresql://... or mysql://...")
    try:
        storage = RDBStorage(uri) if uri.startswith(SQLITE) else _open_server(uri)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SQLAlchemyError, StorageInternalError) as error:
        raise RequestError(f"--storage {uri} cannot be opened: {reason_of(error)}") from error
    names = {arm.study_name.rpartition("/")[0] for arm in storage.get_all_studies()}
    if uri.startswith(SQLITE) and names and study not in names:
        raise RequestError(f"--storage {uri} holds the tuning of {', '.join(sorted(names))}: name another one")
    return storage


def _open_server(uri: str) -> RDBStorage:
    options: dict[str, Any] = {"pool_pre_ping": True}  # a server may have been started again meanwhile
    with connected(uri) as connection:
        if uri.startswith("postgresql"):
            if SCHEMA not in sqlalchemy.inspect(connection).get_schema_names():
                connection.execute(CreateSchema(SCHEMA, if_not_exists=True))
                connection.commit()
            options["connect_args"] = {"options": f"-csearch_path={SCHEMA}"}
    return RDBStorage(uri, options)


class ArmTrials:
    """The trials of an arm: one Optuna study."""

    def __init__(self, storage: RDBStorage, tuned: TunedStudy, arm: str, parallel: bool) -> None:
        """Open the arm's trials, and queue those that a killed command left unfinished, with their values.

        Raises RequestError if the storage has another tuning of that name.
        """
        self.tuned, self.arm, self.tuning, self.space = tuned, arm, tuned.tuning, tuned.tuning.space_of(arm)
        self.name, self._parallel = f"{tuned.study.name}/{arm}", parallel
        self.study = optuna.create_study(
            storage=storage,
            study_name=self.name,
            direction=self.tuning.goal.direction,
            load_if_exists=True,
        )
        identity, there = plain(tuned.identity(arm)), self.study.user_attrs.get(IDENTITY)
        if there is None and not self.study.trials:
            self.study.set_user_attr(IDENTITY, identity)
        elif there != identity:
            keys = sorted(key for key in identity if (there or {}).get(key) != identity[key])
            raise RequestError(
                f"the storage holds another tuning under the name {self.name}: {', '.join(keys)} changed since; name"
                " another --storage, or move that one away"
            )
        for trial in self._trials(TrialState.RUNNING):
            self.study.tell(trial.number, state=TrialState.FAIL)
            if self.space.keys() <= trial.params.keys():
                self.study.enqueue_trial(trial.params)

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    def begun(self) -> list[FrozenTrial]:
        """Return the trials that count towards the budget, in order: all but failed ones, which others replace."""
        return self._trials(TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)

    def ended(self) -> int:
        return len(self._trials(TrialState.COMPLETE, TrialState.PRUNED))

    def entries(self) -> list[dict[str, Any]]:
        """Return the trials for trials.json: ended and running ones, without those that a killed command left."""
        running: dict[str, Any] = {"state": RUNNING, "reason": None, "scores": {}, "signatures": {}}
        return [
            {"arm": self.arm, "number": trial.number, "values": self.point_of(trial)}
            | trial.user_attrs.get(RECORD, running)
            for trial in self._trials()
            if RECORD in trial.user_attrs or trial.state == TrialState.RUNNING
        ]

    def ask(self) -> optuna.Trial:
        """Ask Optuna for the next trial and its values."""
        index = len(self.begun())
        self.study.sampler = make_sampler(self.tuning, self.space, index, "", self._parallel)
        trial = self.study.ask()
        for key, values in self.space.items():
            if self.tuning.sampler != "cmaes":
                self.study.sampler = make_sampler(self.tuning, self.space, index, key, self._parallel)
            if values.choices is not None:
                trial.suggest_categorical(key, values.choices)
            else:
                trial.suggest_float(key, *values.bounds, log=values.log)
        return trial

    def point_of(self, trial: FrozenTrial | optuna.Trial) -> dict[str, Scalar]:
        """Return the values that a trial's runs use: suggested numbers, rounded to a few digits."""
        point = {key: trial.params[key] for key in self.space if key in trial.params}
        for key in point:
            if self.space[key].choices is None:
                low, high = self.space[key].bounds
                point[key] = min(max(float(f"{point[key]:.{SHOWN_DIGITS}g}"), low), high)
        return point

    def is_behind(self, value: float, step: int) -> bool:
        """Return True if a trial's current value is below the median of the complete trials at the same step.

        Optuna's median pruner compares a trial's best value so far, and so never prunes a run that rises and collapses.
        """
        others = [trial.intermediate_values for trial in self._trials(TrialState.COMPLETE)]
        values = [curve[step] for curve in others if step in curve]
        return len(values) >= self.tuning.pruner.startup_trials and value < statistics.median(values)

    def best(self) -> list[int]:
        """Return a list with the number of the best complete trial; empty if there is none yet."""
        sign = -1 if self.tuning.goal.direction == "maximize" else 1
        ended = self._trials(TrialState.COMPLETE)  # diverged ones among them
        complete = [trial for trial in ended if trial.user_attrs[RECORD]["state"] == COMPLETE]
        return [trial.number for trial in sorted(complete, key=lambda trial: sign * (trial.value or 0.0))[:1]]
