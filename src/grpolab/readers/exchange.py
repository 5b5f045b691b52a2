"""Read another framework's config into our settings, and write our settings as one.

A file goes through `given.load_config`, `recognise.identify`, its reader's `read` and `convert` here.

Only the import is a mapping. An export is checked by importing it again, and printed only if the same function returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from grpolab.equalities import Point, differences, rewrite
from grpolab.errors import RequestError, format_value, near_matches
from grpolab.identity import dotted
from grpolab.readers import flat, trl, verl
from grpolab.readers.given import ConfigFile, Given, Options, load_config
from grpolab.readers.recognise import ON_TRL, TITLES, find_family, identify
from grpolab.readers.summary import find_deciding_keys, summarise
from grpolab.settings.objective import Objective, ObjectiveSettings
from grpolab.settings.run import RunSettings

Compose: TypeAlias = Callable[[list[str]], RunSettings]  # the run that some overrides ask for

WRITERS = {"trl": trl, "verl": verl}
# What says all values of a run of theirs, and is better than the script that started it.
WHOLE = {
    "trl": "json.dumps(training_args.to_dict(), default=str), or the run's config.yaml of W&B",
    "verl": "the config that verl prints first, .hydra/config.yaml, or the run's config.yaml of W&B",
}


class Reader(Protocol):
    """The functions of a framework's reader: a module, or a table of keys (`flat.py`)."""

    def kind_of(self, name: str, given: Given) -> str: ...
    def resolve_options(self, given: Given) -> Options: ...
    def objective(self, options: Options) -> Objective: ...
    def convert_run(self, options: Options) -> Options: ...
    def explain_unread(self, given: Given, options: Options) -> Iterable[str]: ...
    def explain_left_out(self, options: Options) -> Iterable[str]: ...
    def explain_defaults(self, given: Given, options: Options) -> Iterator[str]: ...


def find_reader(name: str) -> Reader:
    """Return a framework's reader; those that build on TRL's or verl's trainer have theirs."""
    return flat.load_reader(name) if name in flat.FLAT else verl if find_family(name) == "verl" else trl


# Settings besides the objective that a framework's config has: of sampling, batch reuse and the optimiser.
# fmt: off
OF_THE_RUN = {
    "micro_batch_size", "num_generations", "max_completion_length", "temperature", "staleness", "num_iterations",
    "num_minibatches", "prompts_per_step", "learning_rate", "lr_scheduler_type", "min_lr_ratio", "warmup_steps",
    "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm",
}
# fmt: on
EXCHANGED = (ObjectiveSettings.model_fields.keys() | OF_THE_RUN) - {"framework"}
# Guards that hardly act: an export reports a difference in them, and is not refused for it.
GUARDS = {"log_ratio_clamp", "scale_epsilon", "adam_epsilon"}


@dataclass(frozen=True)
class Converted:
    """A framework's options in our settings."""

    options: Options  # with the framework's defaults
    overrides: list[str]
    settings: RunSettings
    counts: str  # how many keys the file has, and what became of them
    unknown: str  # a sentence about the keys that the framework does not have; empty if there are none
    left_out: list[str]  # a sentence for each thing that cannot be carried
    defaults: list[str]  # the framework's own, where the file says nothing


@dataclass(frozen=True)
class Exported:
    """A fragment of a framework's config, and a sentence for each thing that differs a little there."""

    text: str
    options: Options
    remarks: list[str]


def read(asked: str | None, path: str) -> Given:
    """Return what a file says of a framework's options; `asked` None: the one that only its files show.

    Raises RequestError if the file has none, or is another framework's.
    """
    file = load_config(path)
    name, sentence = identify(asked, file)
    whole = flat.load_reader(name).whole if name in flat.FLAT else WHOLE[find_family(name)]
    is_script = file.kind in ("shell", "python")
    return replace(_read(name, file), framework=name, evidence=sentence, whole=whole if is_script else "")


def _read(name: str, file: ConfigFile) -> Given:
    if name in flat.FLAT:
        return flat.load_reader(name).read(file)
    return verl.read(file) if find_family(name) == "verl" else trl.read(file, name if name in ON_TRL else None)


def convert(name: str, given: Given | Mapping[str, Any], compose: Compose) -> Converted:
    """Read a framework's options into our settings. Raises RequestError with all that is wrong."""
    reader = find_reader(name)
    given = given if isinstance(given, Given) else Given(dict(given))
    options = reader.resolve_options(given)
    try:
        objective: Objective = reader.objective(options)
    except (ValueError, TypeError, AttributeError) as error:
        raise RequestError(f"{TITLES[name]}: {error}") from error
    values = reader.convert_run(options)
    axes: Point = {axis: getattr(objective, axis) for axis in Objective.model_fields}
    del axes["kernel_options"]
    correction = objective.sampler_correction
    axes |= {f"kernel_options.{objective.kernel}.{option}": value for option, value in objective.options.items()}
    axes |= {"sampler_correction": correction and vars(correction), "entropy_coef": objective.entropy_coef or None}
    if not values.get("beta", objective.beta):
        axes = {axis: value for axis, value in axes.items() if not axis.startswith("kl_")}
    preset = f"dialect={find_family(name)}"
    base = dict(dotted(compose([preset]).model_dump()))
    loss = {key: value for key, value in axes.items() if value != base.get(key)}
    values = {**loss, **values}
    overrides = [preset, *(f"{key}={_override(value)}" for key, value in values.items())]
    left_out = [*given.notes, *reader.explain_unread(given, options), *reader.explain_left_out(options)]
    kinds = {key: reader.kind_of(key, given) for key in dict(dotted({**given.options, **given.open}))}
    unknown = [f"{key}{near_matches(key, options)}" for key, kind in kinds.items() if kind == "unknown"]
    has_none = f"{TITLES[name]} has no such key: {', '.join(unknown)}" if unknown else ""
    defaults = list(reader.explain_defaults(given, options))
    return Converted(options, overrides, compose(overrides), _count_keys(kinds, given), has_none, left_out, defaults)


def find_deciding(name: str, options: Options) -> dict[str, set[str]]:
    """Return, for each of our settings, the framework's keys that decide its value."""
    reader = find_reader(name)

    def values_of(options: Options) -> Options:
        objective = reader.objective(options)
        axes = {axis: getattr(objective, axis) for axis in ("epsilon", "epsilon_high", "beta")}
        return axes | reader.convert_run(options)

    return find_deciding_keys(options, values_of)


def summarise_file(given: Given, converted: Converted) -> list[str]:
    """Return the run in lines, each with where its value is from."""
    settings = dict(dotted(converted.settings.model_dump()))
    settings["epsilon_high"] = settings["epsilon"] if settings["epsilon_high"] is None else settings["epsilon_high"]
    written = {*dict(dotted(given.options))}
    if written & verl.keys.FORKS_GROUP.keys():  # a fork's, by which the group is multiplied
        written.add(verl.GROUP)
    told = "\n".join(converted.left_out)
    return [*summarise(settings, given, written, find_deciding(given.framework, converted.options), told)]


def find_caveats(given: Given, converted: Converted) -> tuple[tuple[str, float] | None, bool]:
    """Return key and value of the learning rate in a file, and whether it leaves open how often a batch is used.

    The rate only of a framework that is read by a table of keys: the others have rules of their own.
    """
    is_flat = given.framework in flat.FLAT
    deciding = find_deciding(given.framework, converted.options)
    reuse = set[str]().union(*(deciding.get(ours, set()) for ours in ("num_iterations", "num_minibatches")))
    told = "\n".join(converted.left_out)
    is_open = bool(reuse & given.open.keys()) or (
        is_flat and (converted.settings.old_log_probs == "sampler" or "how many optimiser steps" in told)
    )
    rates = {key: given.options.get(key) for key in deciding.get("learning_rate", ()) if is_flat}
    return next(((key, float(rate)) for key, rate in rates.items() if isinstance(rate, int | float)), None), is_open


def _count_keys(kinds: Mapping[str, str], given: Given) -> str:
    """Say how many keys a file has, what became of them, and what would say the values that it leaves open."""
    counts = Counter(kinds.values())
    words = ", ".join(f"{counts[kind]} {kind}" for kind in ("carried", "not carried", "no effect", "unknown"))
    better = f" (where all are: {given.whole})" if given.whole else ""
    still_open = f"; without a value in the file: {len(given.open)}{better}" if given.open else ""
    return f"keys of the file: {len(kinds)} ({words}{still_open})"


def _override(value: Any) -> str:
    """Return a value as an override has it: a string that is no single word is quoted."""
    is_word = not isinstance(value, str) or value.replace("_", "").isalnum()
    return format_value(value) if is_word else repr(value)


def export(name: str, settings: RunSettings, compose: Compose) -> Exported:
    """Write our settings as that framework's options. Raises RequestError with reasons if it cannot do such a run."""
    reader, wanted = WRITERS[name], _function(settings)
    reasons: list[str] = []
    for options in reader.propose_options(settings):
        try:
            back = _function(convert(name, options, compose).settings)
        except RequestError:
            continue  # what the framework, or a run, does not have
        keys = differences(wanted, back).keys()
        lines = [f"{key}={_override(wanted[key])}: {name} has {_override(back[key])}" for key in sorted(keys)]
        if keys <= GUARDS:
            own_way = [*reader.explain_own_way(settings)] if settings.framework != name else []
            if settings.framework not in (None, name):
                own_way.append(f"framework={settings.framework}: what it computes its own way, {name} does not")
            return Exported(reader.format_options(options), options, [*lines, *own_way])
        reasons = min(lines, reasons or lines, key=len)
    raise RequestError(
        [f"{name} has no such function", *(reasons or [f"kernel={settings.kernel} is in none of its losses"])]
    )


def _function(settings: RunSettings) -> Point:
    return {key: value for key, value in rewrite(settings).items() if key in EXCHANGED}
