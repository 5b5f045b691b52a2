"""Compose one run from Hydra overrides: Hydra picks the groups, the keys are applied, pydantic checks the settings.

Keys are applied to what Hydra made of the groups, so that all problems are reported at once and a study of a hundred
variants composes each choice of groups once. No working directory or Hydra folder is touched.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Sequence
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from grpolab.credentials import REFERENCE, is_secret_name, reveals
from grpolab.errors import RequestError, near_matches
from grpolab.paths import find_file, roots
from grpolab.run.memory import with_micro_batches
from grpolab.settings.run import RunSettings
from grpolab.sweep.schema import sentences, show

CONF_FOLDER, CONFIG_NAME = "conf", "run"
NO_VALUE = "???"
# YAML's infinity, which Hydra's override grammar reads as text.
_INFINITIES = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf}


def compose(overrides: Sequence[str]) -> RunSettings:
    """Return the settings that `overrides` ask for. Raises RequestError with everything that is wrong."""
    return Composer().compose(overrides)


class Composer:
    """Composes many runs, and keeps what Hydra made of each choice of groups."""

    def __init__(self) -> None:
        *self.own_confs, self.conf = (root / CONF_FOLDER for root in roots())  # own: a project's and plugins'
        text = (self.conf / f"{CONFIG_NAME}.yaml").read_text()
        entries = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["defaults"]
        # Group -> its default option.
        self.defaults: dict[str, str | None] = {
            group: option for entry in entries if isinstance(entry, dict) for group, option in entry.items()
        }
        self.groups: dict[str, list[str]] = {}  # group -> options, `trl/grpo` for a file in a folder of the group
        for group, option in self.defaults.items():
            folders = [conf / group for conf in (*self.own_confs, self.conf)]
            files = [file.relative_to(folder) for folder in folders for file in folder.rglob("*.yaml")]
            names = sorted({file.with_suffix("").as_posix() for file in files})
            self.groups[group] = names + ["null"] * (option is None)
        self._bases: dict[tuple[tuple[str, str], ...], bytes] = {}
        self._parser = OverridesParser.create()
        self._parsed: dict[str, Override] = {}  # most overrides stand in every variant

    def compose(self, overrides: Sequence[str]) -> RunSettings:
        """Return the settings that `overrides` ask for. Raises RequestError with everything that is wrong."""
        problems: list[str] = []
        written = [part for text in overrides for part in _expand_task(text)]
        parsed = [override for text in written if (override := self.parse(text, problems))]
        choices = self._choose_groups(parsed, problems)
        config = pickle.loads(self._base(choices))
        for override in parsed:
            if override.key_or_group not in self.groups:
                _apply(override, config, problems)
        values = _resolve_values(config, problems)
        try:
            # Strict: a seed of `true` or an epsilon of '0.2' in quotes is a mistake, not a number.
            settings = RunSettings.model_validate(values, strict=True)
        except ValidationError as error:
            problems += sentences(RunSettings, error, [*self.groups])
            # Check the rules across fields as well, with defaults in place of the bad values.
            bad = {str(entry["loc"][0]) for entry in error.errors() if entry["loc"]}
            good = {key: value for key, value in values.items() if key not in bad}
            try:
                RunSettings.model_validate({**self.values(choices), **good}, strict=True)
            except ValidationError as misfit:
                across = sentences(RunSettings, misfit)
                problems += [text for text in across if not any(key in text for key in bad)]
        if problems:
            raise RequestError(dict.fromkeys(problems))
        return with_micro_batches(settings) if settings.micro_batch_size == "auto" else settings

    def values(self, choices: dict[str, str]) -> dict[str, Any]:
        """Return the values of a choice of groups before any key is set; `???` marks a value that must be given."""
        container = OmegaConf.to_container(pickle.loads(self._base(choices)), resolve=True)
        assert isinstance(container, dict)
        return {str(key): value for key, value in container.items()}

    def parse(self, text: str, problems: list[str], sweep: bool = False) -> Override | None:
        """Parse an override, or append a sentence to `problems`. `sweep` allows several values."""
        quoted = re.sub(r"=(~[\w./:-]*)$", r"='\1'", text)  # Hydra's grammar has no place in the user's home
        try:
            override = self._parsed[text] = self._parsed.get(text) or self._parser.parse_override(quoted)
        except (HydraException, ValueError, RecursionError):  # the last two: 5,000 digits, a hundred brackets
            override = None
        if override is None or not override.key_or_group:
            why = "cannot be read: write key=value, and quote a value of special characters"
            problems.append(f"{show(repr(text))} {why}")
        elif override.is_delete():
            problems.append(f"{text}: a setting cannot be removed, set {override.key_or_group}=null or another value")
        elif override.package is not None:
            problems.append(f"{text}: a group cannot be put at another place with @")
        elif override.is_sweep_override() and not sweep:
            problems.append(f"{text} asks for several runs: use `grpolab train -m`, or a study's factors")
        else:
            return override
        return None

    def _choose_groups(self, parsed: list[Override], problems: list[str]) -> dict[str, str]:
        choices = {}
        for override in parsed:
            group, value = override.key_or_group, show(override.value())
            if group in self.groups and value in self.groups[group]:
                choices[group] = value
            elif group in self.groups:
                known, near = ", ".join(self.groups[group]), near_matches(value, self.groups[group])
                by_path = ", or one of your own as module:Class or path/to/file.py:Class" if group == "task" else ""
                problems.append(f"{group}={value} is not allowed: {group} is one of {known}{near}{by_path}")
        return {group: option for group, option in choices.items() if option != "null"}

    def _base(self, choices: dict[str, str]) -> bytes:
        """Return what Hydra makes of a choice of groups, pickled: unpickling is several times faster than copying."""
        key = tuple(sorted(choices.items()))
        if key not in self._bases:
            for group, option in ({**self.defaults, **choices}).items():
                find_file(CONF_FOLDER, group, f"{option}.yaml")  # raises RequestError for a name that two have
            try:
                with initialize_config_dir(str(self.conf), version_base="1.3"):
                    path = ",".join(f"file://{conf.resolve()}" for conf in self.own_confs if conf.is_dir())
                    searched = [f"hydra.searchpath=[{path}]"] * bool(path)
                    config = hydra_compose(CONFIG_NAME, searched + [f"{group}={option}" for group, option in key])
                    self._bases[key] = pickle.dumps(config)
            except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
                raise RequestError(f"{self.conf} cannot be composed: {_one_line(error)}") from error
        return self._bases[key]


def _apply(override: Override, config: DictConfig, problems: list[str]) -> None:
    try:
        # force_add lets an unknown key in: pydantic refuses it with a better sentence.
        OmegaConf.update(config, override.key_or_group, override.value(), merge=True, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError, RecursionError) as error:
        why = "its brackets are nested too deeply" if isinstance(error, RecursionError) else _one_line(error)
        problems.append(f"{show(override.input_line)} cannot be applied: {why}")


def _name_secrets(resolved: Any, written: Any, key: str, problems: list[str]) -> Any:
    """Return the `resolved` values, but each secret as `written`: a reference to an environment variable.

    Append a sentence for each secret that is not a reference.
    """
    if isinstance(written, dict):
        return {name: _name_secrets(resolved[name], item, f"{key}.{name}", problems) for name, item in written.items()}
    if isinstance(written, list):
        return [_name_secrets(*pair, key, problems) for pair in zip(resolved, written, strict=True)]
    names = [match[1] for match in REFERENCE.finditer(written)] if isinstance(written, str) else []
    is_secret = reveals(key.rpartition(".")[2], resolved) or any(map(is_secret_name, names))
    if is_secret and not names:
        problems.append(
            f"{key} is a secret, and would be written down with every run: set NAME=... in the environment, and give"
            f" {key}='${{oc.env:NAME}}'"
        )
    return written if is_secret else resolved


def _resolve_values(config: DictConfig, problems: list[str]) -> dict[str, Any]:
    """Return the values with interpolations resolved; append a sentence to `problems` for each key without a value.

    Raises RequestError if an interpolation cannot be resolved.
    """
    try:
        container = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        problem = f"{error.full_key}: an interpolation cannot be resolved: {_one_line(error)}"
        raise RequestError([*problems, problem]) from error
    task = container.get("task") if isinstance(container, dict) else None
    if isinstance(task, dict) and task.get("options"):
        # A user's own task options may hold secrets: keep the reference to the environment variable, not its value.
        written = OmegaConf.to_container(config.task.options)
        task["options"] = _name_secrets(task["options"], written, "task.options", problems)

    def clean(node: Any, key: str) -> Any:
        if node == NO_VALUE:
            problems.append(f"{key} has no value: give {key}=...")
        if isinstance(node, dict):
            return {name: clean(item, f"{key}.{name}" if key else str(name)) for name, item in node.items()}
        return _INFINITIES.get(node, node) if isinstance(node, str) else node

    return clean(container, "")


def _expand_task(text: str) -> list[str]:
    """Write `task=my_tasks.py:Parity` as `task=custom task.path=my_tasks.py:Parity`."""
    key, _, value = text.partition("=")
    return ["task=custom", f"task.path={value}"] if key == "task" and re.fullmatch(r"[^,]*[\w/]:\w+", value) else [text]


def key_of(text: str) -> str:
    """Return the key of an override, unchecked."""
    return text.partition("=")[0].lstrip("+")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).partition("full_key:")[0].split())[:200]
