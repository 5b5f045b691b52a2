"""What every framework's options go through: known names, whole numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from grpolab.errors import RequestError, near_matches


def refuse_unknown(framework: str, names: Collection[str], known: Collection[str]) -> None:
    """Raises RequestError with a sentence for each name that the framework does not have."""
    problems = [f"{name} is no key of {framework}{near_matches(name, known)}" for name in names if name not in known]
    if problems:
        raise RequestError(problems)


def refuse_wrong_counts(framework: str, options: Mapping[str, Any], names: Collection[str]) -> None:
    """Raises RequestError with a sentence for each of these that is no whole number from 1 on."""
    wrong = [name for name in names if type(options[name]) is not int or options[name] < 1]
    if wrong:
        raise RequestError(
            f"{framework}: {name}={options[name]} is not allowed: it must be a whole number >= 1" for name in wrong
        )


def refuse_wrong_types(framework: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raises RequestError with a sentence for each value that is not of its default's type; null stands for any."""
    wrong = [
        f"{framework}: {name}={options[name]} is not allowed: it must be {KINDS[type(default)][1]}"
        for name, default in defaults.items()
        if type(default) in KINDS and type(options[name]) not in KINDS[type(default)][0]
    ]
    if wrong:
        raise RequestError(wrong)


KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int, float), "a number"),
    float: ((int, float), "a number"),
    str: ((str, bool, int, float), "a word"),
}
