"""A config file, the framework's options that it gives, and the checks that all frameworks' options go through."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from grpolab.bounded import LARGEST, parse_json, read_text
from grpolab.errors import RequestError

Options: TypeAlias = dict[str, Any]

KINDS = {
    ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".py": "python", ".ipynb": "notebook",
    ".sh": "shell", ".bash": "shell", ".slurm": "shell", ".txt": "words",
}  # fmt: skip
LARGEST_NOTEBOOK = 16 * LARGEST  # which has its pictures in it
OTHER_LANGUAGE = re.compile(r"\s*%%(?!capture|time|writefile)")  # a cell that is no Python
# A key that only such a file has -> what the file is.
OTHERS = {
    "actor_rollout_ref": "a config of verl",
    "worker": "a config of EasyR1, a fork of verl whose keys are others",
    "actor_train": "a config of ROLL",
    **dict.fromkeys(("compute_environment", "distributed_type"), "what accelerate starts processes by"),
    "zero_optimization": "a config of DeepSpeed",
    **dict.fromkeys(("stage", "finetuning_type", "lora_rank"), "a config of LLaMA-Factory"),
    **dict.fromkeys(("max_seq_length", "packing", "assistant_only_loss"), "a config for supervised fine-tuning"),
    "per_device_train_batch_size": "a config of TRL or transformers",
    "parameters": "a sweep of W&B",
    "log_history": "the log of a run: use grpolab diagnose --from trl",
}
TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int, float), "a number"),
    float: ((int, float), "a number"),
    str: ((str, bool, int, float), "a word"),
}


@dataclass(frozen=True)
class ConfigFile:
    """A file's text and its kind, by its suffix; a notebook's text is the Python of its cells."""

    path: str
    kind: str
    text: str

    def refusal(self, reason: str) -> RequestError:
        return RequestError(f"{self.path} {reason}")


@dataclass(frozen=True)
class Given:
    """The options of a config file, as far as they can be read without running anything."""

    options: Options
    open: dict[str, str] = field(default_factory=dict)  # key -> the text there, whose value the file does not say
    notes: list[str] = field(default_factory=list)  # a sentence for each thing that was chosen or passed over
    version: str | None = None  # of the framework, where it is known
    processes: int | None = None  # that train, where it is known
    fork: str | None = None  # which changes the framework's defaults
    overridable: list[str] = field(default_factory=list)  # keys whose values are a script's defaults


def load_config(path: str) -> ConfigFile:
    """Return a config file. Raises RequestError if it cannot be read, is too large, or has an unknown suffix."""
    suffix = Path(path).suffix
    if (kind := KINDS.get(suffix)) is None:
        raise RequestError(f"{path}: the format of *{suffix} is unknown: name it {', '.join(KINDS)}")
    if kind != "notebook":
        return ConfigFile(path, kind, read_text(path))
    notebook = parse_json(path, read_text(path, LARGEST_NOTEBOOK))
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise RequestError(f"{path} is no notebook: it has no cells")
    code = [cell.get("source", "") for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    texts = ["".join(map(str, source)) if isinstance(source, list) else str(source) for source in code]
    return ConfigFile(path, "python", "\n".join(text for text in texts if not OTHER_LANGUAGE.match(text)))


def describe_other(keys: Collection[str]) -> str:
    """Say what else a file without the wanted keys is, by the keys that it has; '' if that is not known."""
    return next((f"it is {what}" for key, what in OTHERS.items() if key in keys), "")


def shorten(value: Any) -> str:
    """Return a value's text, cut to a length that fits into a sentence."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def refuse_wrong_counts(framework: str, options: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise RequestError with a sentence for each named option that is not a whole number of at least 1."""
    wrong = [name for name in names if type(options[name]) is not int or options[name] < 1]
    if wrong:
        raise RequestError(
            f"{framework}: {name}={options[name]} is not allowed: it must be a whole number >= 1" for name in wrong
        )


def refuse_wrong_types(framework: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise RequestError with a sentence for each value of another type than its default; null is always allowed."""
    wrong = [
        f"{framework}: {name}={options[name]} is not allowed: it must be {TYPES[type(default)][1]}"
        for name, default in defaults.items()
        if type(default) in TYPES and type(options[name]) not in TYPES[type(default)][0]
    ]
    if wrong:
        raise RequestError(wrong)
