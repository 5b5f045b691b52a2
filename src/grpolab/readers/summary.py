"""A summary of a config file in eight lines, each with the source of its value: a key of the file, or a default.

Which keys decide a value is found by changing one key at a time. There is no list of them to keep up to date.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from grpolab.errors import RequestError, format_value
from grpolab.readers.given import Given, Options

# What it is called -> ours.
SHOWN = {
    "completions of a prompt": ("num_generations",),
    "prompts of a step": ("prompts_per_step",),
    "passes, minibatches": ("num_iterations", "num_minibatches"),
    "learning rate": ("learning_rate",),
    "clip range": ("epsilon", "epsilon_high"),
    "weight of the KL": ("beta",),
    "longest answer": ("max_completion_length",),
    "temperature": ("temperature",),
}
SHOWN_KEYS = 3
# Type of a key's value -> other values to try in its place.
OTHERS: dict[type, Callable[[Any], list[Any]]] = {
    bool: lambda value: [not value],
    int: lambda value: [value * 2 or 1],
    float: lambda value: [value * 2 or 0.5],
    type(None): lambda _: [0.5, 64],
}


def find_deciding_keys(options: Options, values_of: Callable[[Options], Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return for each value of ours the framework's keys whose change changes it."""
    deciding, usual = defaultdict[str, set[str]](set), values_of(options)
    for key, value in options.items():
        for other in OTHERS.get(type(value), lambda _: [])(value):
            with suppress(RequestError, ValueError, TypeError, AttributeError, KeyError, ArithmeticError):
                changed = values_of(options | {key: other})
                for ours in usual.keys() | changed.keys():
                    if usual.get(ours) != changed.get(ours):
                        deciding[ours].add(key)
    return deciding


def summarise(
    values: Mapping[str, Any], given: Given, written: set[str], deciding: Mapping[str, set[str]], told: str
) -> Iterator[str]:
    """Yield a line for each of SHOWN.

    `values`: the run's settings; `written`: the keys that have a value in the file; `told`: the sentences beside it.
    """
    for name, ours in SHOWN.items():
        keys = {key for each in ours for key in deciding.get(each, ())}
        said, is_open = sorted(keys & written), sorted(keys & given.open.keys())
        where = f"{', '.join(said[:SHOWN_KEYS])}{', ..' if len(said) > SHOWN_KEYS else ''}" if said else "a default"
        if is_open:
            where = f"not in the file: {', '.join(is_open[:SHOWN_KEYS])}"
        elif any(each in told for each in ours):
            where = f"{where}; see below"
        texts = [format_value(values.get(each)) for each in ours]
        shown = texts[0] if name == "clip range" and texts[0] == texts[1] else ", ".join(texts)
        yield f"{name:24} {shown:16} {where}"
