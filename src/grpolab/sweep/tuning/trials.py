"""The trials of one arm in the storage: asked for, reported, told. One Optuna study each, `<study>/<arm>`."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from grpolab.errors import RequestError
from grpolab.identity import plain
from grpolab.sweep.tuning.arms import Arms, Point
from grpolab.sweep.tuning.pruning import pruner
from grpolab.sweep.tuning.sampling import point_of, sampler, suggest

# States of a trial, in trials.json.
COMPLETE, PRUNED, DIVERGED, FAILED, RUNNING = "complete", "pruned", "diverged", "failed", "running"
TOLD = {COMPLETE: TrialState.COMPLETE, DIVERGED: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}
OWNER, RECORD, IDENTITY = "owner", "record", "identity"  # attributes in the storage

Record = dict[str, Any]


class ArmTrials:
    """The trials of an arm."""

    def __init__(self, storage: BaseStorage, arms: Arms, arm: str, parallel: bool) -> None:
        """Raises RequestError where the storage has another tuning of that name."""
        self.arm, self.space, self.tuning, self._parallel = arm, arms.space(arm), arms.tuning, parallel
        settings = arms.settings(arm, {})
        self.seed_steps = settings.planned_steps
        first = max(self.tuning.pruner.after, settings.evaluation.every)
        self.name = f"{arms.study.name}/{arm}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self._study = optuna.create_study(
                storage=storage,
                study_name=self.name,
                directions=[objective.direction for objective in self.tuning.objectives],
                pruner=pruner(self.tuning.pruner, first, self.seed_steps * len(self.tuning.seeds)),
                load_if_exists=True,
            )
        self._claim(plain(arms.identity(arm)))

    def _claim(self, identity: Record) -> None:
        there = self._study.user_attrs.get(IDENTITY)
        if there is None and not self.all():
            self._study.set_user_attr(IDENTITY, identity)
        elif there != identity:
            keys = sorted(key for key in identity if (there or {}).get(key) != identity[key])
            raise RequestError(
                f"the storage holds another tuning under the name {self.name}: {', '.join(keys)} changed since; name"
                " another --storage, or move that one away"
            )

    def all(self) -> list[FrozenTrial]:
        """Every trial, by number."""
        return self._study.get_trials(deepcopy=False)

    def taken(self) -> int:
        """Trials that count towards the budget: finished, or on their way. A failed one is made up for."""
        return sum(trial.state != TrialState.FAIL for trial in self.all())

    def running(self) -> list[FrozenTrial]:
        """Trials on their way, whoever does them."""
        return [trial for trial in self.all() if trial.state == TrialState.RUNNING]

    def ask(self, owner: str) -> ArmTrial:
        """A new trial. Who asks has the tuning's lock, so that its number is known before."""
        self._study.sampler = sampler(self.tuning, self.space, len(self.all()), "", self._parallel)
        return self._owned(self._study.ask(), owner)

    def adopt(self, trial: FrozenTrial, owner: str) -> ArmTrial:
        """A trial that a dead command has left; it goes on as if nothing had been."""
        self._study.sampler = sampler(self.tuning, self.space, trial.number, "", self._parallel)
        return self._owned(optuna.trial.Trial(self._study, trial._trial_id), owner)

    def _owned(self, trial: optuna.Trial, owner: str) -> ArmTrial:
        trial.set_user_attr(OWNER, owner)
        together = self._study.sampler
        for key, values in self.space.items():
            if self.tuning.sampler != "cmaes":  # which draws all keys at once
                self._study.sampler = sampler(self.tuning, self.space, trial.number, key, self._parallel)
            suggest(trial, key, values)
        self._study.sampler = together
        return ArmTrial(self, self._study, trial)


class ArmTrial:
    """One trial on its way."""

    def __init__(self, arm: ArmTrials, study: optuna.Study, trial: optuna.Trial) -> None:
        self.arm, self._study, self._trial = arm, study, trial
        self.number = trial.number
        self.point: Point = point_of(trial.params, arm.space)
        told = self._frozen().intermediate_values  # by a command that died
        self._told, self._last_told = set(told), max(told, default=-1)

    def _frozen(self) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[self.number]

    @property
    def record(self) -> Record | None:
        """What a command that died before it could tell had found."""
        return self._trial.user_attrs.get(RECORD)

    @property
    def started(self) -> datetime | None:
        """When it was asked for."""
        return self._trial.datetime_start

    def is_hopeless(self, step: int, value: float, judged: bool = True) -> bool:
        """Report a value, in the direction of the objective; where it is to be `judged`, ask the pruner."""
        if step not in self._told:
            self._trial.report(value, step)
        return judged and step >= self._last_told and self._trial.should_prune()

    def tell(self, record: Record) -> None:
        """End the trial; the record first, so that a kill in between changes nothing."""
        self._trial.set_user_attr(RECORD, record)
        state = TOLD.get(record["state"], TrialState.FAIL)
        means = (
            [float(record["scores"][one.metric]["mean"]) for one in self.arm.tuning.objectives]
            if state == TrialState.COMPLETE
            else None
        )
        self._study.tell(self.number, means, state, skip_if_finished=True)
