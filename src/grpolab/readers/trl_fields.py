"""TRL's `GRPOConfig` from 0.14, its first, to 1.16, and trainers that build on it: `trl.yaml`, by version.

A config's version shows in fields that only some versions have. If several fit, the newest counts, and the user is told
what the others would make of the file.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpolab.bounded import read_mapping
from grpolab.errors import RequestError
from grpolab.frameworks.trl_options import LOSS, LOSS_TYPES

TABLE = read_mapping(str(Path(__file__).with_name("trl.yaml")))
CARRIED: dict[str, Any] = LOSS | TABLE["carried"]  # with the newest defaults
NOT_CARRIED: dict[str, str] = TABLE["lost"]
DEFAULTS: dict[str, dict[str, Any]] = TABLE["defaults"]
SINCE = {name: version for version, names in TABLE["added"].items() for name in names.split()}
UNTIL = {name: version for version, names in TABLE["last"].items() for name in names.split()}
VERSIONS = (*(f"0.{minor}" for minor in range(14, 30)), *(f"1.{minor}" for minor in range(17)))
CHOICES: dict[str, Collection[Any]] = {
    "loss_type": LOSS_TYPES,
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": (True, False, "group", "batch", "none"),
}
MOST_BY_HAND = 60  # fields without effect
PIN = re.compile(r"\btrl(?:\[[\w, -]*\])?\s*(?:==|~=|@\s*git\S*@v?)\s*v?(\d+\.\d+)")


def of_fork(fork: str | None, part: str) -> dict[str, Any]:
    """Return a part of what a trainer that builds on TRL's has; of TRL itself for None."""
    return dict(TABLE["forks"][fork or "trl"].get(part, {}))


def list_quiet(fork: str | None) -> frozenset[str]:
    """Return the fields of TRL, or of a trainer that builds on it, that change no result here."""
    return frozenset(TABLE["forks"][fork or "trl"].get("no_effect", "").split())


@functools.cache
def list_known(fork: str | None) -> frozenset[str]:
    """Return the fields that some version of TRL, or a trainer that builds on it, has."""
    others = {*of_fork(None, "not_carried"), *of_fork(fork, "not_carried"), *CARRIED, *SINCE, *UNTIL}
    return list_quiet(None) | list_quiet(fork) | others


def is_resolved(options: Collection[str]) -> bool:
    """Return True for what a run wrote itself, with all fields: no hand writes so many of TrainingArguments."""
    return len(list_quiet(None).intersection(options)) > MOST_BY_HAND


def find_change(name: str, value: Any, fork: str | None) -> str:
    """Return why an option that changes what is learnt, and that only some have, is not carried; '' if it does not."""
    unchanged, why = (of_fork(None, "not_carried") | of_fork(fork, "not_carried")).get(name, ([value], ""))
    return "" if value in unchanged or value == "None" else why


def find_version(version: str) -> int:
    """Return the index of a version in VERSIONS; a patch release counts as its minor version. Raises RequestError."""
    minor = ".".join(version.split(".")[:2])
    if minor not in VERSIONS:
        raise RequestError(f"TRL: version={version} is not known: it is one of {VERSIONS[0]} to {VERSIONS[-1]}")
    return VERSIONS.index(minor)


def find_pin(text: str) -> str | None:
    """Return the known version that a text installs (`pip install trl==0.15.2`), or None."""
    found = {match for match in PIN.findall(text) if match in VERSIONS}
    return found.pop() if len(found) == 1 else None


def find_fitting(options: Mapping[str, Any], fork: str | None = None) -> tuple[int, int, list[str]]:
    """Return the first and last version with these options (first > last: none), and the fields that show it."""
    if fork in ("ms-swift", "megatron-swift"):  # which have fields of its own by these names
        return 0, len(VERSIONS) - 1, []
    since = {name: find_version(SINCE[name]) for name in options if name in SINCE}
    values = {name: known.get(str(options.get(name))) for name, known in TABLE["first_with_value"].items()}
    since |= {name: find_version(version) for name, version in values.items() if version}
    until = {name: find_version(UNTIL[name]) for name in options if name in UNTIL}
    absent = CARRIED.keys() - options.keys() if is_resolved(options) else ()  # what that version does not have
    since |= {f"the lack of {name}": find_version(UNTIL[name]) + 1 for name in absent if name in UNTIL}
    until |= {f"the lack of {name}": max(find_version(SINCE[name]) - 1, 0) for name in absent if name in SINCE}
    first, last = max(since.values(), default=0), min(until.values(), default=len(VERSIONS) - 1)
    why = [name for name, version in since.items() if version == first]
    return first, last, [*why, *(name for name, version in until.items() if version == last)]


def get_default(name: str, version: int, newest: Any) -> Any:
    """Return a field's default in a version; `newest` is its default in the newest one."""
    values = [value for since, value in DEFAULTS.get(name, {}).items() if find_version(since) <= version]
    return values[-1] if values else newest


def list_changes(name: str, first: int, last: int) -> Iterator[str]:
    """Yield `0.04 until 0.18` for each other default of a field between two versions."""
    steps = [(find_version(since), value) for since, value in DEFAULTS.get(name, {}).items()]
    for (_, value), (until, _) in itertools.pairwise(steps):
        if first < until <= last:
            yield f"{value} until {VERSIONS[until - 1]}"
