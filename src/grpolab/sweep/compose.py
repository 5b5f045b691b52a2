"""One run from Hydra overrides: Hydra composes the groups, the keys are laid over them, pydantic checks the whole.

Keys are applied one by one to what Hydra composed, so that everything that is wrong can be said at once, and a study of
a hundred variants composes each choice of groups only once. Neither the working directory nor any Hydra folder is
touched.
"""

from __future__ import annotations

import math
import pickle
import re
import textwrap
from collections.abc import Iterator, Sequence
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

from grpolab.credentials import plain_secrets, secrets_named
from grpolab.errors import RequestError, near_matches
from grpolab.framework_names import our_names
from grpolab.paths import project_root
from grpolab.run.memory import with_micro_batches
from grpolab.settings.run import RunSettings
from grpolab.sweep.schema import Schema, allowed, options, resolve, root, sentences, show, words

CONF_FOLDER, CONFIG_NAME = "conf", "run"
NO_VALUE = "???"
# YAML's way to write infinity, which Hydra's override grammar takes for text.
_INFINITIES = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf}

HEADER = """\
usage: grpolab train [-m] [--name NAME] [--jobs N] [--retry-failed] [--json-lines] [key=value ...]

Trains one run with Hydra overrides; `-m` runs every combination of comma lists: epsilon=0.1,0.2 seed=0,1,2
`grpolab train --help KEY ...` says only what KEY is, a group, a key or a section of keys.
"""

Entry = tuple[str, str, list[str]]  # a group or a key, what is said of it, the words that it may be


def compose(overrides: Sequence[str]) -> RunSettings:
    """The run that `overrides` ask for.

    Raises RequestError with all that is wrong: override syntax, unknown keys and options, values that are missing,
    mistyped or out of range, and values that do not fit together.
    """
    return Composer().compose(overrides)


class Composer:
    """Composes many runs; what Hydra made of each choice of groups is kept."""

    def __init__(self) -> None:
        self.conf = project_root() / CONF_FOLDER
        entries = yaml.safe_load((self.conf / f"{CONFIG_NAME}.yaml").read_text())["defaults"]
        # Each group with the option that it takes when nobody chooses.
        self.defaults: dict[str, str | None] = {
            group: option for entry in entries if isinstance(entry, dict) for group, option in entry.items()
        }
        self.groups: dict[str, list[str]] = {}  # `trl`, or `trl/grpo` for a file in a folder of the group
        for group, option in self.defaults.items():
            files = [file.relative_to(self.conf / group) for file in (self.conf / group).rglob("*.yaml")]
            names = sorted(file.with_suffix("").as_posix() for file in files)
            self.groups[group] = names + ["null"] * (option is None)
        self._bases: dict[tuple[tuple[str, str], ...], bytes] = {}
        self._parser = OverridesParser.create()
        self._parsed: dict[str, Override] = {}  # most overrides are those of every variant

    def compose(self, overrides: Sequence[str]) -> RunSettings:
        """As `compose`."""
        problems: list[str] = []
        written = [part for text in overrides for part in _own_task(text)]
        parsed = [override for text in written if (override := self.parse(text, problems))]
        choices = self._choices(parsed, problems)
        config = pickle.loads(self._base(choices))
        for override in parsed:
            if override.key_or_group not in self.groups:
                _apply(override, config, problems)
        values = _values(config, problems)
        try:
            # Strict: a seed of `true` or an epsilon of '0.2' in quotes is a mistake, not a number.
            settings = RunSettings.model_validate(values, strict=True)
        except ValidationError as error:
            problems += sentences(RunSettings, error, [*self.groups])
            # Rules across fields that the good values break, whatever stands in the bad ones.
            bad = {str(entry["loc"][0]) for entry in error.errors() if entry["loc"]}
            good = {key: value for key, value in values.items() if key not in bad}
            try:
                RunSettings.model_validate({**self.values(choices), **good}, strict=True)
            except ValidationError as misfit:
                across = sentences(RunSettings, misfit)
                problems += [text for text in across if not any(key in text for key in bad)]
        if problems:
            raise RequestError(dict.fromkeys(problems))
        if settings.micro_batch_size != "auto":
            return settings
        return with_micro_batches(settings)

    def values(self, choices: dict[str, str]) -> dict[str, Any]:
        """The plain values of a choice of groups, before any key is set; `???` where one must be given."""
        container = OmegaConf.to_container(pickle.loads(self._base(choices)), resolve=True)
        assert isinstance(container, dict)
        return {str(key): value for key, value in container.items()}

    def parse(self, text: str, problems: list[str], sweep: bool = False) -> Override | None:
        """The parsed override, or None and a sentence in `problems`; several values are allowed where `sweep`."""
        try:
            override = self._parsed.get(text) or self._parser.parse_override(text)
            self._parsed[text] = override
        except (HydraException, ValueError, RecursionError):  # the last two: 5,000 digits, a hundred brackets
            override = None
        if override is None or not override.key_or_group:
            shown = show(repr(text))
            problems.append(f"{shown} cannot be read: write key=value, and quote a value of special characters")
        elif override.is_delete():
            problems.append(f"{text}: a setting cannot be removed, set {override.key_or_group}=null or another value")
        elif override.package is not None:
            problems.append(f"{text}: a group cannot be put at another place with @")
        elif override.is_sweep_override() and not sweep:
            problems.append(f"{text} asks for several runs: use `grpolab train -m`, or a study's factors")
        else:
            return override
        return None

    def _choices(self, parsed: list[Override], problems: list[str]) -> dict[str, str]:
        choices = {}
        for override in parsed:
            group, value = override.key_or_group, show(override.value())
            if group in self.groups and value in self.groups[group]:
                choices[group] = value
            elif group in self.groups:
                known, near = ", ".join(self.groups[group]), near_matches(value, self.groups[group])
                mine = ", or one of your own as module:Class or path/to/file.py:Class" if group == "task" else ""
                problems.append(f"{group}={value} is not allowed: {group} is one of {known}{near}{mine}")
        return {group: option for group, option in choices.items() if option != "null"}

    def _base(self, choices: dict[str, str]) -> bytes:
        """What Hydra makes of a choice of groups, pickled: that is read back several times faster than copied."""
        key = tuple(sorted(choices.items()))
        if key not in self._bases:
            try:
                with initialize_config_dir(str(self.conf), version_base="1.3"):
                    config = hydra_compose(CONFIG_NAME, [f"{group}={option}" for group, option in key])
                    self._bases[key] = pickle.dumps(config)
            except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
                raise RequestError(f"{self.conf} cannot be composed: {_one_line(error)}") from error
        return self._bases[key]


def _apply(override: Override, config: DictConfig, problems: list[str]) -> None:
    # force_add: an unknown key is let in here, as with Hydra's `+`, because pydantic refuses it with a better sentence.
    try:
        OmegaConf.update(config, override.key_or_group, override.value(), merge=True, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        problems.append(f"{show(override.input_line)} cannot be applied: {_one_line(error)}")
    except RecursionError:
        problems.append(f"{show(override.input_line)} cannot be applied: its brackets are nested too deeply")


def _values(config: DictConfig, problems: list[str]) -> dict[str, Any]:
    """Plain values, interpolations resolved; what has no value yet is said and left out."""
    try:
        container = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        where = f"{error.full_key}: an interpolation cannot be resolved: {_one_line(error)}"
        raise RequestError([*problems, where]) from error
    _name_secrets(container, config, problems)

    def clean(node: Any, key: str) -> Any:
        if node == NO_VALUE:
            problems.append(f"{key} has no value: give {key}=...")
        if isinstance(node, dict):
            return {name: clean(item, f"{key}.{name}" if key else str(name)) for name, item in node.items()}
        return _INFINITIES.get(node, node) if isinstance(node, str) else node

    return clean(container, "")


def _name_secrets(container: Any, config: DictConfig, problems: list[str]) -> None:
    """In a user's own options, which are free, a secret stays the name of the variable that holds it."""
    task = container.get("task")
    if not (isinstance(task, dict) and task.get("options")):
        return
    task["options"] = secrets_named(task["options"], OmegaConf.to_container(config.task.options))
    problems += [
        f"{key} is a secret, and would be written down with every run: set NAME=... in the environment, and give"
        f" {key}='${{oc.env:NAME}}'"
        for key in plain_secrets(task["options"], "task.options")
    ]


def _own_task(text: str) -> list[str]:
    """`task=my_tasks.py:Parity` is short for `task=custom task.path=my_tasks.py:Parity`."""
    key, _, value = text.partition("=")
    return ["task=custom", f"task.path={value}"] if key == "task" and re.fullmatch(r"[^,]*[\w/]:\w+", value) else [text]


def key_of(text: str) -> str:
    """The key of an override, read without checking anything."""
    return text.partition("=")[0].lstrip("+")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).partition("full_key:")[0].split())[:200]


# `grpolab train --help`: every group and every key, read from conf/ and settings/.


# What most runs set, in the order in which a reader asks.
USUAL_KEYS = (
    *("seed", "rollout_steps", "prompts_per_step", "num_generations", "num_iterations", "num_minibatches"),
    *("learning_rate", "max_grad_norm", "temperature", "max_completion_length", "importance_sampling_level", "kernel"),
    *("epsilon", "epsilon_high", "delta", "aggregation", "beta", "scale_rewards", "warm_start.target_accuracy"),
    *("evaluation.every", "diagnostics.samples_every", "micro_batch_size", "device", "dtype", "machine.results"),
)
GROUPS = {
    "task": "what is learnt",
    "model": "what learns it",
    "loss_type": "kernel, aggregation and clip range under their usual name",
    "paper": "a paper's values",
    "dialect": "a framework's own loss, defaults and metrics, with its modes as NAME/MODE",
    "scale": "what suits a machine",
    "launcher": "who runs a sweep's cells beyond this machine",
    "fault": "an error that is planted on purpose, for the doctor to find",
}
HELP_WIDTH = 120


def help_text(wanted: Sequence[str] = ()) -> str:
    """What it says of some groups and keys, or of `all`, or the page: usual keys, groups, names of all other keys.

    Defaults are those of conf/run.yaml. Raises RequestError for a word that is neither a group, a key nor a section of
    keys.
    """
    composer = Composer()
    groups, keys = list(_groups(composer)), list(_keys(composer))
    if not wanted:
        return "\n".join(_page(groups, keys))
    if list(wanted) == ["all"]:
        return "\n".join(text for _, text, _ in (*groups, *keys))
    lines, problems = list[str](), list[str]()
    for word in wanted:
        name = word.partition("=")[0]
        texts = [text for key, text, _ in (*groups, *keys) if key == name or key.startswith(f"{name}.")]
        lines += texts
        if not texts:
            near = near_matches(name, {key for key, _, _ in (*groups, *keys)})
            hint = f": write {ours}" if (ours := our_names(name)) else near
            problems.append(f"{name} is unknown{hint}; `grpolab train --help` lists every key")
    if problems:
        raise RequestError(problems)
    return "\n".join(lines)


def _page(groups: Sequence[Entry], keys: Sequence[Entry]) -> Iterator[str]:
    yield f"{HEADER}\nThe usual keys, each with its default"
    said = {name: text for name, text, _ in keys}
    for name in USUAL_KEYS:
        values, _, meaning = said[name].partition("\n")
        head = f"  {name}={values.rpartition('; default ')[2]}"
        yield f"{head:<42} {textwrap.shorten(meaning, HELP_WIDTH - max(len(head), 42) - 1, placeholder=' ...')}"
    yield "\nGroups, each a set of keys: GROUP=NAME"
    for group, means in GROUPS.items():
        names = [word for name, _, words_ in groups if name == group for word in words_ if "/" not in word]
        listed = ", ".join(name for name in names if name != "null")
        yield textwrap.fill(
            f"{means}: {listed}", HELP_WIDTH, initial_indent=f"  {group:<10} ", subsequent_indent=" " * 13
        )
    yield "\nAll other keys"
    others = [name for name in said if name not in USUAL_KEYS and name not in GROUPS]
    sections = dict[str, list[str]]()
    for name in others:
        sections.setdefault(name.rpartition(".")[0], []).append(name)
    for names in sections.values():
        yield textwrap.fill(" ".join(names), HELP_WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield "\nWhat a name means: `grpolab train --help dialect`, or another group, key or section; `--help all`: all"


def key_for(word: str) -> str:
    """The key or group that a word most likely means: itself, another framework's, the end of one; empty: none."""
    names = list(choices())
    ends = [name for name in names if name.endswith(f".{word}")]
    theirs = our_names(word).partition(" ")[0].rstrip(",")
    return word if word in names else theirs or (ends[0] if len(ends) == 1 else "")


def choices() -> dict[str, list[str]]:
    """Every group and key with the words that it may be, where they can be listed."""
    composer, words_of = Composer(), dict[str, list[str]]()
    for name, _, may_be in (*_groups(composer), *_keys(composer)):
        words_of.setdefault(name, []).extend(word for word in may_be if word not in words_of[name])
    return words_of


def _groups(composer: Composer) -> Iterator[Entry]:
    for group, names in composer.groups.items():
        for option in names:
            mark = " (default)" if option == str(composer.defaults[group] or "null") else ""
            file, says = composer.conf / group / f"{option}.yaml", "No preset: the keys below hold."
            if file.exists():  # its first comment, after Hydra's
                comments = [line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#")]
                says = next((line for line in comments if not line.startswith("@package")), "")
            yield group, f"  {f'{group}={option}':<24} {says}{mark}", [option]


def _keys(composer: Composer) -> Iterator[Entry]:
    defaults = composer.values({})

    def key(name: str, field: Schema, default: Any) -> Entry:
        value = "no default" if default == NO_VALUE else f"default {show(default)}"
        text = f"  {name:<34} {allowed(RunSettings, field)}; {value}\n      {field['description']}"
        return name, text, words(RunSettings, field)

    def section(prefix: str, part: Schema, values: dict[str, Any]) -> Iterator[Entry]:
        for name, field in part["properties"].items():
            if "description" in field:
                yield key(f"{prefix}.{name}", field, values[name])
            for option, member in options(RunSettings, resolve(RunSettings, field)).items():
                inner, chosen = f"{prefix}.{name}", composer.values({name: option})[prefix][name]
                yield inner, f"  with {name}={option}: {member['description'].splitlines()[0]}", []
                yield from section(inner, member, chosen)

    for name, field in root(RunSettings)["properties"].items():
        inner = resolve(RunSettings, field)
        if members := options(RunSettings, inner):
            for option, member in members.items():
                yield name, f"  with {name}={option}: {member['description'].splitlines()[0]}", []
                yield from section(name, member, composer.values({name: option})[name])
        elif "properties" in inner:
            if defaults[name] is None:  # switched off; where it is set, all of its keys are
                yield key(name, field, None)
            yield from section(name, inner, defaults[name] or dict.fromkeys(inner["properties"], NO_VALUE))
        else:
            yield key(name, field, defaults[name])
