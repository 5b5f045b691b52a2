"""Words of a command as key/value pairs: `--flags` and Hydra's overrides.

A value that the file does not determine, such as a variable of the script's caller, is open: an `Open` with its text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpolab.bounded import parse_value

FLAG = re.compile(r"--([A-Za-z_][\w.-]*)(?:=(.*))?", re.DOTALL)
OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w./-]*)(?:@[\w.]*)?(?:=(.*))?", re.DOTALL)
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,\s*([^${}]*))?\}")
FOLLOWED = 10  # references from key to key
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


class Open(str):
    """The text of a value that the file does not determine."""


def split_open(pairs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the known values of some pairs, and the texts of those that are open."""
    left_open = {key: str(value) for key, value in pairs.items() if isinstance(value, Open)}
    return {key: value for key, value in pairs.items() if key not in left_open}, left_open


def find_program_end(words: Sequence[str]) -> int:
    """Return the index of the first word after the program's name, from which on words are the trainer's; else 0."""
    for number, (left, word) in enumerate(itertools.pairwise(words), start=1):
        is_module = left in ("-m", "--module") and word not in LAUNCHERS
        if word.endswith(".py") or is_module or (left, word) in (("swift", "rlhf"), ("trl", "grpo")):
            return number + 1
    return 0


def read_flags(words: Iterable[str]) -> dict[str, Any]:
    """Return `--key value ..` and `--key=value` with values as YAML reads them; the last of a repeated key counts."""
    texts, name = dict[str, list[str]](), ""
    for word in words:
        text: str | None = word
        if match := FLAG.fullmatch(word):
            name, text = match[1].replace("-", "_"), match[2]
            texts.pop(name, None)
            texts[name] = []
        if name and text is not None:
            texts[name].append(Open(text) if isinstance(word, Open) else text)
    return {name: _read_values(values) for name, values in texts.items()}


def _read_values(texts: Sequence[str]) -> Any:
    """Return the value after a flag as YAML reads it, except that a colon makes no mapping."""
    if any(isinstance(text, Open) for text in texts):
        return Open(" ".join(texts))
    pairs = [(text, parse_value(text)) for text in texts]
    values = [text if isinstance(value, dict) and text[0] != "{" else value for text, value in pairs]
    return values if len(values) > 1 else values[0] if values else True


def read_overrides(words: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the pairs of Hydra's overrides, the last of each key, and a sentence for each `~key`."""
    pairs, notes = dict[str, Any](), list[str]()
    for word in words:
        match = OVERRIDE.fullmatch(word)
        if match is None or (match[3] is None and match[1] != "~"):
            continue
        sign, name, text = match.groups()
        pairs.pop(name, None)
        if sign == "~":
            notes.append(f"~{name}: the key is taken away, and the default is what counts here")
        else:
            pairs[name] = Open(text) if isinstance(word, Open) else parse_value(text)
    return pairs, notes


def follow_references(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """Return pairs with the values to which references `${a.b}` lead; a value that still has one is open."""
    followed = dict(pairs)
    for key, text in pairs.items():
        for _ in range(FOLLOWED):
            match = REFERENCE.fullmatch(text) if isinstance(text, str) and not isinstance(text, Open) else None
            if match is None or (match[1] not in pairs and match[2] is None):
                break
            text = pairs[match[1]] if match[1] in pairs else parse_value(match[2])
        followed[key] = Open(text) if "${" in str(text) else text
    return followed
