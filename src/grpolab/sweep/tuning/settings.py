"""The section `tuning:` of a study file: which values of which keys are tried, how often, and what is best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, FiniteFloat, ValidationError, model_validator

from grpolab.errors import RequestError, near_matches
from grpolab.paths import find_file
from grpolab.quantities import QUANTITIES
from grpolab.settings import Count, Natural, Seed
from grpolab.study_names import available
from grpolab.sweep.fields import MOST_SEEDS, Different, Level, Overrides, Part, unknown
from grpolab.sweep.schema import sentences

Scalar = bool | int | float | str | None
Space = dict[str, "TunedKey"]
SeedList = Annotated[list[Annotated[Seed, Field(strict=True)]], Field(min_length=1, max_length=MOST_SEEDS), Different]

MOST_TRIALS = 10_000  # of an arm
PREFIX = "tuned="


class TunedKey(Part):
    """The values of a key: any real number from `low` to `high`, or one of the `choices`."""

    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    log: bool = Field(default=False, description="Whether equal ratios are equally likely, not equal differences.")
    choices: list[Scalar] | None = Field(default=None, description="Whole numbers, words and null, one by one.")

    @model_validator(mode="after")
    def _fits_together(self) -> TunedKey:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log:
                raise ValueError("tuning: a key has `choices`, or `low` and `high`, never both")
            if len({(type(value), value) for value in self.choices}) < max(2, len(self.choices)):
                raise ValueError(f"tuning: choices={self.choices} must be two or more different values")
        elif self.low is None or self.high is None:
            raise ValueError("tuning: a key needs `low` and `high`, or `choices`")
        elif self.low >= self.high:
            raise ValueError(f"tuning: low={self.low:g} must be less than high={self.high:g}")
        elif self.log and self.low <= 0:
            raise ValueError(f"tuning: low={self.low:g} must be > 0 where log is true")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Of a range: what can be composed there can be composed between them."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high


class Goal(Part):
    """The number that a trial is judged by."""

    metric: str = Field(description="A stability quantity of the report, e.g. final_score.")
    direction: Literal["maximize", "minimize"]


class Pruner(Part):
    """A rule that ends a trial: the mean of its last `window` evaluations, against the arm's other trials."""

    name: Literal["none", "median"]
    window: Count = Field(default=3, description="Evaluations that are averaged.")
    after: Natural = Field(default=0, description="Rollout steps of each seed that nobody judges.")
    startup_trials: Count = Field(default=4, description="Finished trials that it needs.")


class Tuning(Part):
    """The plan of `grpolab tune` for a study: every arm gets equally many trials, with the same seeds."""

    space: Space = Field(default={}, description="Keys that are tuned in every arm.")
    arms: dict[str, dict[str, TunedKey | None]] = Field(default={}, description="An arm's own; null: not in this arm.")
    where: dict[str, str] = Field(default={}, description="The level of each factor but the arms: one facet is tuned.")
    sampler: Literal["tpe", "cmaes", "random", "grid"] = "tpe"
    sampler_seed: Seed = 0
    trials: Annotated[int, Field(ge=1, le=MOST_TRIALS, strict=True)] = Field(description="Of each arm.")
    seeds: SeedList = Field(description="Of each trial; none of the study's own.")
    objectives: list[Goal] = Field(min_length=1, max_length=1, description="The number that decides.")
    pruner: Pruner = Pruner(name="none")

    @property
    def goal(self) -> Goal:
        return self.objectives[0]

    def space_of(self, arm: str) -> Space:
        space = {**self.space, **self.arms.get(arm, {})}
        return {key: values for key, values in space.items() if values is not None}

    def problems(self, factors: Mapping[str, Mapping[str, Any]], compare: str, seeds: Sequence[int]) -> Iterator[str]:
        """Yield a sentence for each contradiction within the tuning, or between it and the study."""
        arms = factors.get(compare, {})
        yield from unknown("tuning.arms", self.arms, arms)
        for arm in arms:
            if not self.space_of(arm):
                yield f"tuning: arm {arm} has no key to tune: name some under `space:` or `arms.{arm}:`"
        yield from unknown("tuning.where", self.where, [factor for factor in factors if factor != compare])
        for factor, levels in factors.items():
            if factor in self.where:
                yield from unknown(f"tuning.where.{factor}", [self.where[factor]], levels)
            elif factor != compare and len(levels) > 1:
                yield f"tuning.where.{factor} is missing: name the level that is tuned, one of {', '.join(levels)}"
        if shared := sorted(set(self.seeds) & set(seeds)):
            yield f"tuning.seeds={shared} are seeds of the study too: values must be judged by seeds that chose none"
        yield from unknown("tuning.objectives: metric", [self.goal.metric], QUANTITIES)
        for arm in arms:
            space = self.space_of(arm)
            ranges = [key for key, values in space.items() if values.choices is None]
            points = math.prod(len(values.choices or []) for values in space.values())
            if self.sampler == "cmaes" and (len(space) < 2 or len(ranges) < len(space)):
                yield f"tuning.sampler=cmaes needs two or more keys with low and high, arm {arm} has {len(ranges)}"
            if self.sampler == "grid" and ranges:
                yield f"tuning.sampler=grid needs choices for each key, arm {arm} has none for {', '.join(ranges)}"
            if self.sampler == "grid" and 0 < points < self.trials:
                yield f"tuning.trials={self.trials} is more than the {points} points of arm {arm}'s grid"


# `tuned=STUDY` among the overrides of a study: for each arm the values that `grpolab tune STUDY` found for it.


class TunedArm(Part, extra="ignore"):
    """The part of an arm's entry that a study needs; the rest is its provenance, for people."""

    overrides: Overrides
    trial: int


class TunedValues(Part, extra="ignore"):
    """The part of a file conf/tuned/STUDY.yaml that a study needs."""

    study: str
    seeds: list[int]
    trials_per_arm: int
    arms: dict[str, TunedArm]


def read_tuned(study: str) -> TunedValues:
    """Read the tuned values of a study. Raises RequestError if the file does not exist, or `tune` did not write it."""
    path = find_file("conf", "tuned", f"{study}.yaml")
    if not path.is_file():
        have = sorted(file.stem for file in path.parent.glob("*.yaml"))
        known = f"have {', '.join(have)}; " if have else ""
        named = study if study in available() else "STUDY"
        unknown_study = f"{PREFIX}{study} is unknown{near_matches(study, have)}"
        raise RequestError(f"{unknown_study}: {known}run `grpolab tune {named}` first")
    try:
        return TunedValues.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        raise RequestError(f"{path}: {text}" for text in sentences(TunedValues, error)) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RequestError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def with_tuned_values(overrides: Sequence[str], arm: str) -> Overrides:
    """Replace `tuned=STUDY` by the arm's values. They go to the end, because they were tuned with all other overrides.

    Raises RequestError if the file does not exist, or lacks the arm.
    """
    replaced = [text for text in overrides if not text.startswith(PREFIX)]
    for text in overrides:
        if text.startswith(PREFIX):
            values = read_tuned(text.removeprefix(PREFIX))
            if arm not in values.arms:
                raise RequestError(f"{text} has no values for arm {arm}: it has {', '.join(values.arms)}")
            replaced += values.arms[arm].overrides
    return replaced


def named_tunings(overrides: Sequence[str], factors: Mapping[str, Mapping[str, Level]]) -> list[dict[str, Any]]:
    """Return the tunings that a study names, their values, and the factor and level (None: in all variants)."""
    places: list[tuple[str | None, str | None, Level]] = [(None, None, list(overrides))]
    places += [(factor, level, written) for factor, levels in factors.items() for level, written in levels.items()]
    tunings = []
    for factor, level, written in places:
        texts = written if isinstance(written, list) else itertools.chain(*written.values())
        for text in dict.fromkeys(text for text in texts if text.startswith(PREFIX)):
            tunings.append({"factor": factor, "level": level, **read_tuned(text.removeprefix(PREFIX)).model_dump()})
    return tunings


def shared_seeds(tunings: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> list[str]:
    """Return a sentence for each tuning that used some of `seeds`: values must not be judged by their tuning seeds."""
    return [
        f"seeds={', '.join(map(str, shared))} chose the values of {PREFIX}{tuning['study']}: judge them by other seeds,"
        " in the study's `seeds:` or --seeds"
        for tuning in tunings
        if (shared := sorted(set(tuning["seeds"]) & set(seeds)))
    ]
