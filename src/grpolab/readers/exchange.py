"""Read another framework's config into our settings, and write our settings as one.

A file goes through `given.load_config`, `recognise.identify`, its reader's `read` and `convert` here. Only the import
is a mapping: an export is checked by importing it again, and printed only if the same function returns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from grpolab.equalities import Point, differences, rewrite
from grpolab.errors import RequestError, format_value, near_matches
from grpolab.identity import dotted
from grpolab.readers import flat, trl, verl
from grpolab.readers.given import ConfigFile, Given, Options, load_config
from grpolab.readers.recognise import TITLES, find_family, identify
from grpolab.settings.objective import Objective
from grpolab.settings.run import RunSettings
from grpolab.settings.selection import SelectionSettings

Compose: TypeAlias = Callable[[list[str]], RunSettings]  # the run that some overrides ask for

WRITERS = {"trl": trl, "verl": verl}


class Reader(Protocol):
    """The functions of a framework's reader: a module, or a table of keys (`flat.py`)."""

    whole: str  # what says all values of a run of theirs, and is better than the script that started it

    def read(self, file: ConfigFile, name: str) -> Given: ...
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
    "micro_batch_size", "num_generations", "max_completion_length", "temperature", "staleness", "sampler_refresh",
    "num_iterations", "num_minibatches", "prompts_per_step", "learning_rate", "lr_scheduler_type", "min_lr_ratio",
    "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm",
}
# fmt: on
OF_SAMPLING = {"top_k", "top_p", "min_p", "keep_sampling_mask"}
EXCHANGED = (SelectionSettings.model_fields.keys() | OF_THE_RUN | OF_SAMPLING | {"lora"}) - {"framework"}
# Lines of a summary: what each is called -> ours.
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
# Settings that no export has -> where they belong there.
ELSEWHERE = {
    "task.stop": "the end token alone ends a completion there; where vLLM samples for TRL, generation_kwargs takes it",
    "task.system": "a system prompt is the first message of each prompt in the data there",
    "reward.weights.overlong": "the reward is no part of an export",
    "reward.weights.length": "the reward is no part of an export",
}
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
    """A fragment of a framework's config, and a sentence for each thing that differs a little there or is not in it."""

    text: str
    options: Options
    remarks: list[str]
    left_out: list[str]  # a sentence for each setting that it cannot say


def read(asked: str | None, path: str) -> Given:
    """Return what a file says; `asked` None: whose it is shows. Raises RequestError if it is nobody's, or another's."""
    file = load_config(path)
    name, sentence = identify(asked, file)
    reader = find_reader(name)
    whole = reader.whole if file.kind in ("shell", "python") else ""
    return replace(reader.read(file, name), framework=name, evidence=sentence, whole=whole)


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
    counts = Counter(kinds.values())
    words = ", ".join(f"{counts[kind]} {kind}" for kind in ("carried", "not carried", "no effect", "unknown"))
    better = f" (where all are: {given.whole})" if given.whole else ""
    still_open = f"; without a value in the file: {len(given.open)}{better}" if given.open else ""
    said = f"keys of the file: {len(kinds)} ({words}{still_open})"
    defaults = list(reader.explain_defaults(given, options))
    return Converted(options, overrides, compose(overrides), said, has_none, left_out, defaults)


def find_deciding(name: str, options: Options) -> dict[str, set[str]]:
    """Return, for each of our settings, the framework's keys that decide its value, found by changing one at a time."""
    reader = find_reader(name)

    def values_of(options: Options) -> Options:
        objective = reader.objective(options)
        axes = {axis: getattr(objective, axis) for axis in ("epsilon", "epsilon_high", "beta")}
        return axes | reader.convert_run(options)

    deciding, usual = defaultdict[str, set[str]](set), values_of(options)
    for key, value in options.items():
        for other in OTHERS.get(type(value), lambda _: [])(value):
            with suppress(RequestError, ValueError, TypeError, AttributeError, KeyError, ArithmeticError):
                changed = values_of(options | {key: other})
                for ours in usual.keys() | changed.keys():
                    if usual.get(ours) != changed.get(ours):
                        deciding[ours].add(key)
    return deciding


def summarise_file(given: Given, converted: Converted) -> Iterator[str]:
    """Yield a line for each of SHOWN, with where its value is from: keys of the file, or a default."""
    settings = dict(dotted(converted.settings.model_dump()))
    settings["epsilon_high"] = settings["epsilon"] if settings["epsilon_high"] is None else settings["epsilon_high"]
    written, deciding = {*dict(dotted(given.options))}, find_deciding(given.framework, converted.options)
    if written & verl.keys.FORKS_GROUP.keys():  # a fork's, by which the group is multiplied
        written.add(verl.GROUP)
    told = "\n".join(converted.left_out)
    for name, ours in SHOWN.items():
        keys = {key for each in ours for key in deciding.get(each, ())}
        said, is_open = sorted(keys & written), sorted(keys & given.open.keys())
        where = f"{', '.join(said[:SHOWN_KEYS])}{', ..' if len(said) > SHOWN_KEYS else ''}" if said else "a default"
        if is_open:
            where = f"not in the file: {', '.join(is_open[:SHOWN_KEYS])}"
        elif any(each in told for each in ours):
            where = f"{where}; see below"
        texts = [format_value(settings.get(each)) for each in ours]
        shown = texts[0] if name == "clip range" and texts[0] == texts[1] else ", ".join(texts)
        yield f"{name:24} {shown:16} {where}"


def find_caveats(given: Given, converted: Converted) -> tuple[tuple[str, float] | None, bool]:
    """Return key and value of the learning rate, of a flat reader alone, and whether the reuse of a batch is open."""
    is_flat = given.framework in flat.FLAT
    deciding = find_deciding(given.framework, converted.options)
    reuse = set[str]().union(*(deciding.get(ours, set()) for ours in ("num_iterations", "num_minibatches")))
    told = "\n".join(converted.left_out)
    is_open = bool(reuse & given.open.keys()) or (
        is_flat and (converted.settings.old_log_probs == "sampler" or "how many optimiser steps" in told)
    )
    rates = {key: given.options.get(key) for key in deciding.get("learning_rate", ()) if is_flat}
    return next(((key, float(rate)) for key, rate in rates.items() if isinstance(rate, int | float)), None), is_open


def _override(value: Any) -> str:
    """Return a value as an override has it: a string that is no single word is quoted."""
    if isinstance(value, dict) and isinstance(value.get("targets"), list):  # names of layers, without spaces
        value = value | {"targets": f"[{','.join(value['targets'])}]"}
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
            values = dict(dotted(settings.model_dump()))
            said = {key: values[key] for key in ELSEWHERE if values.get(key) is not None}
            left_out = [f"{key}={_override(value)}: {ELSEWHERE[key]}" for key, value in said.items()]
            return Exported(reader.format_options(options), options, [*lines, *own_way], left_out)
        reasons = min(lines, reasons or lines, key=len)
    raise RequestError(
        [f"{name} has no such function", *(reasons or [f"kernel={settings.kernel} is in none of its losses"])]
    )


def _function(settings: RunSettings) -> Point:
    return {key: value for key, value in rewrite(settings).items() if key in EXCHANGED}
