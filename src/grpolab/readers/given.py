"""A config file, the framework's options that it gives, and the checks that all frameworks' options go through."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from grpolab.bounded import LARGEST, parse_json, parse_value, parse_yaml, read_text
from grpolab.errors import RequestError
from grpolab.readers.pairs import read_overrides

Options: TypeAlias = dict[str, Any]

KINDS = {
    ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".py": "python", ".ipynb": "notebook",
    ".sh": "shell", ".bash": "shell", ".slurm": "shell", ".txt": "words", ".log": "words",
}  # fmt: skip
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle")
# Where a run's folder keeps all its values: Hydra, W&B, TRL and ms-swift as people save them, MLflow.
WHOLE_CONFIGS = (
    *(".hydra/config.yaml", "files/config.yaml", "training_args.json", "args.json", "config.yaml", "config.json"),
    "params",
)
OF_WANDB = {"_wandb", "wandb_version"}
MOST_PARAMS = 5000  # of MLflow
LARGEST_NOTEBOOK = 16 * LARGEST  # which has its pictures in it
OTHER_LANGUAGE = re.compile(r"\s*%%(?!capture|time|writefile)")  # a cell that is no Python
# A key that only such a file has -> what the file is.
OTHERS = {
    **dict.fromkeys(("exp_ctrl", "max_head_offpolicyness", "actor_inf"), "AReaL's older layout, which is not read"),
    **dict.fromkeys(("compute_environment", "distributed_type"), "what accelerate starts processes by"),
    "zero_optimization": "a config of DeepSpeed",
    "finetuning_type": "a config of LLaMA-Factory",
    **dict.fromkeys(("packing", "assistant_only_loss"), "a config for supervised fine-tuning"),
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

    def split(self) -> list[str]:
        """Return the words of the text. Raises RequestError if a quotation does not end."""
        try:
            return shlex.split(self.text, comments=True)
        except ValueError as error:
            raise self.refusal("is no list of words: a quotation mark is not closed") from error


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
    framework: str = ""  # whose config the file is
    evidence: str = ""  # by what the file's framework was recognised, if nobody named it
    program: str = ""  # of a script's command, the words before the options
    whole: str = ""  # of a script: what says all values of a run that it starts


def load_config(path: str) -> ConfigFile:
    """Return a config file; of a run's folder, the config that the run wrote in full. Raises RequestError."""
    place = Path(path)
    if place.is_dir() and place.name != "params":
        places = [place / name for name in WHOLE_CONFIGS if (place / name).exists()]
        if not places:
            raise RequestError(f"{path} cannot be read: a run's folder has one of {', '.join(WHOLE_CONFIGS)}")
        place = places[0]
    if place.is_dir():  # MLflow has a file for each parameter
        params = {file.name: read_text(str(file)) for file in sorted(place.iterdir())[:MOST_PARAMS] if file.is_file()}
        return ConfigFile(str(place), "json", json.dumps(params))
    if (suffix := place.suffix) in PICKLES:
        raise RequestError(
            f"{path} is a pickle, and reading one can run whatever is in it: give a .json of it, which"
            " json.dumps(torch.load(FILE, weights_only=False).to_dict(), default=str) writes where it is trusted"
        )
    if (kind := KINDS.get(suffix)) is None:
        raise RequestError(f"{path}: the format of *{suffix} is unknown: name it {', '.join(KINDS)}")
    path = str(place)
    if kind != "notebook":
        return ConfigFile(path, kind, read_text(path))
    notebook = parse_json(path, read_text(path, LARGEST_NOTEBOOK))
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise RequestError(f"{path} is no notebook: it has no cells")
    code = [cell.get("source", "") for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    texts = ["".join(map(str, source)) if isinstance(source, list) else str(source) for source in code]
    return ConfigFile(path, "python", "\n".join(text for text in texts if not OTHER_LANGUAGE.match(text)))


def parse_document(file: ConfigFile) -> tuple[Options, list[str]]:
    """Return the mapping in a YAML, JSON or TOML file, and notes; a list of Hydra's overrides is one, with dotted keys.

    What W&B and MLflow put around the values is taken away. Raises RequestError if the file is none of these, or holds
    the numbers of a run instead of its config.
    """
    try:
        content = tomllib.loads(file.text) if file.kind == "toml" else None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise file.refusal(f"is no TOML: {error}") from error
    if file.kind != "toml":
        content = (parse_json if file.kind == "json" else parse_yaml)(file.path, file.text)
    if isinstance(content, list) and content and all(isinstance(word, str) and "=" in word for word in content):
        return read_overrides(content)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise file.refusal("must be a mapping of keys to values, or a list of key=value")
    if {"_runtime", "_step"} <= content.keys():
        raise file.refusal("is W&B's summary, the last values of a run's metrics: its config.yaml has the config")
    if Path(file.path).name == "params":  # MLflow's, all text; verl's keys have slashes there
        return {name.replace("/", "."): parse_value(str(text)) for name, text in content.items()}, []
    parts = {key: part for key, part in content.items() if key not in OF_WANDB}
    if parts and all(isinstance(part, dict) and part.keys() <= {"value", "desc"} for part in parts.values()):
        return {key: part.get("value") for key, part in parts.items()}, []
    return content, []


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
