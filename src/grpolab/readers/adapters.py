"""Adapters, for the readers of TRL and verl: what a file says of `peft` as our `lora`, and the other way round."""

from __future__ import annotations

import re
from typing import Any

from grpolab.readers.given import Options

EVERY = "all-linear"  # peft's word for each linear layer but the head
BY_NAME = re.compile(r"\.\*\\\.\(?((?:\w|\\\.|\|)+)\)?")  # `.*\.q_proj` or `.*\.(q_proj|v_proj)`


def find_targets(written: Any) -> list[str] | None:
    """Return the ends of layers' names that are written, None for every layer.

    They are a list, words with commas between them (EasyR1), or a regular expression that lists ends of names. Raises
    ValueError for any other: what it matches depends on the model.
    """
    if written in (EVERY, [EVERY]):
        return None
    if written is None:
        raise ValueError("peft then chooses by the kind of model, mostly q_proj and v_proj")
    if isinstance(written, str):
        listed = BY_NAME.fullmatch(written)
        if not listed and "," not in written:
            raise ValueError("a word is a regular expression for peft, over a layer's whole name")
        written = listed[1].replace("\\", "").split("|") if listed else re.split(r"\s*,\s*", written.strip(" ,"))
    if not isinstance(written, list) or not written or not all(isinstance(name, str) and name for name in written):
        raise ValueError("it must be names of layers")
    return list(dict.fromkeys(written))


def as_trl(targets: list[str] | None) -> list[str]:
    """Return ends of names as TRL's ModelConfig takes them, for which a single one is a regular expression."""
    if targets is None or targets == [EVERY]:
        return [EVERY]
    return [rf".*\.{re.escape(str(targets[0]))}"] if len(targets) == 1 else targets


def translate(key: str, rank: int, alpha: int, targets: Any) -> tuple[Options, list[str]]:
    """Return our setting for adapters, and what is to be said of the targets, which have that key in the framework."""
    try:
        return {"lora": {"rank": rank, "alpha": alpha, "targets": find_targets(targets)}}, []
    except ValueError as error:
        return {}, [f"{key}={targets}: {error}; all weights are trained here unless lora says which layers adapt"]
