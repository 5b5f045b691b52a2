"""Configs of other frameworks: read into our settings, and our settings written as theirs.

There is one mapping, that of the import: a framework's `objective` for the loss, its config file's tables for the rest.
The export tries what the framework guesses, imports it again, and prints it only where the function that comes back is
the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from grpolab.errors import RequestError, format_value
from grpolab.frameworks.config_files import File, load
from grpolab.identity import dotted
from grpolab.registry import CONFIGS, resolve
from grpolab.settings.equalities import Point, different, rewritten
from grpolab.settings.objective import Objective, ObjectiveSettings
from grpolab.settings.run import RunSettings

Options: TypeAlias = dict[str, Any]
Compose: TypeAlias = Callable[[list[str]], RunSettings]  # the run that some overrides ask for

# What a framework's config says of a run besides the objective: how it samples, reuses and steps.
# fmt: off
OF_THE_RUN = {
    "micro_batch_size", "num_generations", "max_completion_length", "temperature", "staleness", "num_iterations",
    "num_minibatches", "prompts_per_step", "learning_rate", "lr_scheduler_type", "min_lr_ratio", "warmup_steps",
    "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm",
}
# fmt: on
EXCHANGED = (ObjectiveSettings.model_fields.keys() | OF_THE_RUN) - {"framework"}
# Guards that a run does not meet: a difference is said, and stops nothing.
GUARDS = {"log_ratio_clamp", "scale_epsilon", "adam_epsilon"}

KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int, float), "a number"),
    float: ((int, float), "a number"),
    str: ((str, bool, int, float), "a word"),
}


@dataclass(frozen=True)
class Given:
    """What a config file gives, as far as it can be read without running anything."""

    options: Options
    open: dict[str, str] = field(default_factory=dict)  # key -> what stands there, whose value the file does not say
    notes: list[str] = field(default_factory=list)  # a sentence for each thing that was chosen or passed over
    version: str | None = None  # of the framework, where it is known
    processes: int | None = None  # that train, where it is known
    fork: str | None = None  # which changes the framework's defaults
    overridable: list[str] = field(default_factory=list)  # keys whose values are a script's defaults
    otherwise: Options = field(default_factory=dict)  # what differs where a script's undecided conditions fail


@dataclass(frozen=True)
class Config:
    """How a framework's config file is read and written."""

    objective: Callable[[Options], Objective]  # those of the loss on our axes; ValueError for what it does not have
    read: Callable[[File], Given]  # raises RequestError where the file holds no config of the framework
    options: Callable[[Given], Options]  # checked, and its version's defaults filled in; raises RequestError
    unread: Callable[[Given], Iterator[str]]  # a sentence for each key that is unknown, of another version or open
    defaults: Callable[[Given], Iterator[str]]  # those that were taken, and of which version they are
    loss: Callable[[Options], Options]  # those of the loss, as the framework's `objective` takes them
    run: Callable[[Options], Options]  # what is no loss, by our keys
    left_out: Callable[[Options], Iterator[str]]
    guesses: Callable[[RunSettings], Iterator[Options]]  # options that may say what a run does, likeliest first
    own_way: Callable[[RunSettings], Iterator[str]]  # what it computes differently by the same options
    shown: Callable[[Options], str]


@dataclass(frozen=True)
class Converted:
    """What a framework's options are in our settings."""

    options: Options  # with the framework's defaults
    overrides: list[str]
    settings: RunSettings
    left_out: list[str]  # a sentence for each thing that cannot be carried
    defaults: list[str]  # the framework's own, where the file says nothing


@dataclass(frozen=True)
class Exported:
    """A fragment of a framework's config, and what it does a little differently there."""

    text: str
    options: Options
    remarks: list[str]


def read(name: str, path: str) -> Given:
    """What a file gives of a framework's config. Raises RequestError where it holds none, or is no such file."""
    return _config(name).read(load(path))


def convert(name: str, given: Given | Mapping[str, Any], compose: Compose) -> Converted:
    """Read a framework's options into our settings. Raises RequestError with all that is wrong."""
    config = _config(name)
    given = given if isinstance(given, Given) else Given(dict(given))
    options = config.options(given)
    try:
        objective = config.objective(config.loss(options))
    except (ValueError, TypeError, AttributeError) as error:
        raise RequestError(f"{name}: {error}") from error
    axes: Point = {axis: getattr(objective, axis) for axis in Objective.model_fields}
    del axes["kernel_options"]
    correction = objective.sampler_correction
    axes |= {f"kernel_options.{objective.kernel}.{option}": value for option, value in objective.options.items()}
    axes |= {"sampler_correction": correction and vars(correction), "entropy_coef": objective.entropy_coef or None}
    if not objective.beta:
        axes = {axis: value for axis, value in axes.items() if not axis.startswith("kl_")}
    preset = f"dialect={name}"
    base = dict(dotted(compose([preset]).model_dump()))
    loss = {key: value for key, value in axes.items() if value != base.get(key)}
    overrides = [preset, *(f"{key}={written(value)}" for key, value in {**loss, **config.run(options)}.items())]
    left_out = [*given.notes, *config.unread(given), *config.left_out(options)]
    return Converted(options, overrides, compose(overrides), left_out, list(config.defaults(given)))


def _config(name: str) -> Config:
    config: Config = resolve(CONFIGS[name])
    return config


def written(value: Any) -> str:
    """Return a value as an override has it: a string that is no single word is quoted."""
    is_word = not isinstance(value, str) or value.replace("_", "").isalnum()
    return format_value(value) if is_word else repr(value)


def export(name: str, settings: RunSettings, compose: Compose) -> Exported:
    """Our settings as that framework's options. Raises RequestError with the reasons where it has no such function."""
    config = _config(name)
    wanted = _function(settings)
    tried: list[tuple[set[str], Options, Point]] = []
    for guess in config.guesses(settings):
        try:
            back = _function(convert(name, guess, compose).settings)
        except RequestError:
            continue  # a guess that the framework, or a run, does not have
        tried.append((different(wanted, back), guess, back))
        if tried[-1][0] <= GUARDS:
            break
    if not tried:
        raise RequestError(f"{name} cannot say this run: none of its losses takes these values")
    keys, options, back = min(tried, key=lambda attempt: len(attempt[0] - GUARDS))
    if "kernel" in keys:  # which takes its options along
        raise RequestError([f"{name} has no such function", f"kernel={wanted['kernel']} is in none of its losses"])
    reasons = keys - GUARDS
    remarks = [f"{key}={written(wanted[key])}: {name} has {written(back[key])}" for key in sorted(reasons or keys)]
    if reasons:
        raise RequestError([f"{name} has no such function", *remarks])
    if settings.framework not in (None, name):
        remarks.append(f"framework={settings.framework}: what it computes its own way, {name} does not")
    if settings.framework != name:
        remarks += config.own_way(settings)
    return Exported(config.shown(options), options, remarks)


def _function(settings: RunSettings) -> Point:
    return {key: value for key, value in rewritten(settings).items() if key in EXCHANGED}


def flat(document: Options, prefix: str = "") -> Options:
    """Nested mappings as dotted keys."""
    dotted_keys: Options = {}
    for key, value in document.items():
        nested = isinstance(value, dict) and value
        dotted_keys |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return dotted_keys


def shortened(value: Any) -> str:
    """A value's text, cut to a length that a sentence bears."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


# What every framework's options go through: known names, whole numbers, types.


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
