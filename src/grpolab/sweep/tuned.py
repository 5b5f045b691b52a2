"""`tuned=STUDY` among the overrides of a study: for each arm the values that `grpolab tune STUDY` found for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from grpolab.errors import RequestError, near_matches
from grpolab.paths import project_root
from grpolab.sweep import schema
from grpolab.sweep.part import Level, Overrides, Part

PREFIX = "tuned="


class TunedArm(Part, extra="ignore"):
    """What of an arm's entry a study needs; the rest is its provenance, for people."""

    overrides: Overrides
    trial: int


class TunedValues(Part, extra="ignore"):
    """The same of a file conf/tuned/STUDY.yaml."""

    study: str
    seeds: list[int]
    trials_per_arm: int
    arms: dict[str, TunedArm]


def path_of(study: str) -> Path:
    """The file with a study's tuned values."""
    return project_root() / "conf" / "tuned" / f"{study}.yaml"


def read(study: str) -> TunedValues:
    """The tuned values of a study.

    Raises RequestError where there is no such file, or it is not one of ours.
    """
    path = path_of(study)
    if not path.is_file():
        have = sorted(file.stem for file in path.parent.glob("*.yaml"))
        known = f"have {', '.join(have)}; " if have else ""
        near = near_matches(study, have)
        raise RequestError(f"{PREFIX}{study} is unknown{near}: {known}run `grpolab tune {study}` first")
    try:
        return TunedValues.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        raise RequestError(f"{path}: {text}" for text in schema.sentences(TunedValues, error)) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RequestError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def resolved(overrides: Sequence[str], arm: str) -> Overrides:
    """Overrides with `tuned=STUDY` replaced by the arm's values, which stand last: they are for all of its settings.

    Raises RequestError where a file is not there, or lacks the arm.
    """
    plain = [text for text in overrides if not text.startswith(PREFIX)]
    for text in overrides:
        if text.startswith(PREFIX):
            values = read(text.removeprefix(PREFIX))
            if arm not in values.arms:
                raise RequestError(f"{text} has no values for arm {arm}: it has {', '.join(values.arms)}")
            plain += values.arms[arm].overrides
    return plain


def named(overrides: Sequence[str], factors: Mapping[str, Mapping[str, Level]]) -> list[dict[str, Any]]:
    """Which tunings a study names, at which level of which factor (both None: in all variants), and their values."""
    places: list[tuple[str | None, str | None, Level]] = [(None, None, list(overrides))]
    places += [(factor, level, own) for factor, levels in factors.items() for level, own in levels.items()]
    return [
        {"factor": factor, "level": level, "study": values.study, "seeds": values.seeds}
        | {"trials_per_arm": values.trials_per_arm, "arms": {arm: own.model_dump() for arm, own in values.arms.items()}}
        for factor, level, own in places
        for text in dict.fromkeys(_texts(own))
        if text.startswith(PREFIX)
        for values in [read(text.removeprefix(PREFIX))]
    ]


def _texts(level: Level) -> Overrides:
    return level if isinstance(level, list) else [text for own in level.values() for text in own]


def shared_seeds(tunings: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> list[str]:
    """A sentence for each tuning that has chosen values by seeds which are now to judge them."""
    return [
        f"seeds={', '.join(map(str, shared))} chose the values of {PREFIX}{one['study']}: judge them by other seeds,"
        " in the study's `seeds:` or --seeds"
        for one in tunings
        if (shared := sorted(set(one["seeds"]) & set(seeds)))
    ]
