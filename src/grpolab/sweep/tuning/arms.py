"""What is tuned: each arm of one facet of a study, and the settings that values of its keys make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpolab.errors import RequestError
from grpolab.identity import signature
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import Composer, key_of
from grpolab.sweep.plan import Cell
from grpolab.sweep.study import Study, load
from grpolab.sweep.tuning.settings import Scalar, Space, Tuning

TRIAL = "trial"  # the factor of a tuning's plan beside the arms
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

    def space(self, arm: str) -> Space:
        """The keys that are tuned in an arm."""
        return self.tuning.space_of(arm)

    def levels(self, arm: str) -> dict[str, str]:
        """The variant whose values are tuned."""
        return self.tuning.levels(self.study.factors, self.study.compare, arm)

    def settings(self, arm: str, point: Point) -> RunSettings:
        """The arm with these values. Raises RequestError where they do not fit together."""
        values = [override(key, value) for key, value in point.items()]
        if (arm, str(values)) not in self._composed:
            own = self.study.overrides_of(self.levels(arm))
            self._composed[arm, str(values)] = self._composer.compose([*own, *self.overrides, *values])
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
        values = self.settings(arm, {}).model_dump()
        return {key: _at(values, key) for key in self.space(arm)}

    def corners(self, arm: str) -> Iterator[tuple[str, list[RunSettings]]]:
        """Each key with the settings of its outermost values, the other keys as the study has them."""
        for key, values in self.space(arm).items():
            yield key, [self.settings(arm, {key: value}) for value in values.corners()]

    def identity(self, arm: str) -> dict[str, Any]:
        """All that two tunings of an arm must share to be one: the number of trials is no part of it."""
        tuning = self.tuning.model_dump(exclude={"trials", "arms", "space", "where"})
        space = {key: values.model_dump(exclude_none=True) for key, values in self.space(arm).items()}
        return {**tuning, "space": space, "settings": signature(self.settings(arm, {}).identity())}

    def _problems(self, arm: str) -> Iterator[str]:
        fixed = [key for key in self.space(arm) if key.partition(".")[0] in FIXED]
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


def _at(values: Any, key: str) -> Any:
    """The value of a dotted key; None where there is none, or it is a whole group."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return None if isinstance(values, dict | list) else values
