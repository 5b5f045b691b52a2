"""Read another framework's config into our settings, and write our settings as one.

Only the import is a mapping. An export is checked by importing it again, and printed only if the same function returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from grpolab.equalities import Point, differences, rewrite
from grpolab.errors import RequestError, format_value
from grpolab.identity import dotted
from grpolab.readers import trl, verl
from grpolab.readers.given import Given, Options, load_config
from grpolab.settings.objective import Objective, ObjectiveSettings
from grpolab.settings.run import RunSettings

Compose: TypeAlias = Callable[[list[str]], RunSettings]  # the run that some overrides ask for

READERS = {"trl": trl, "verl": verl}
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
    left_out: list[str]  # a sentence for each thing that cannot be carried
    defaults: list[str]  # the framework's own, where the file says nothing


@dataclass(frozen=True)
class Exported:
    """A fragment of a framework's config, and a sentence for each thing that differs a little there."""

    text: str
    options: Options
    remarks: list[str]


def read(name: str, path: str) -> Given:
    """Return a framework's options in a file. Raises RequestError if the file has none."""
    given: Given = READERS[name].read(load_config(path))
    return given


def convert(name: str, given: Given | Mapping[str, Any], compose: Compose) -> Converted:
    """Read a framework's options into our settings. Raises RequestError with all that is wrong."""
    reader = READERS[name]
    given = given if isinstance(given, Given) else Given(dict(given))
    options = reader.resolve_options(given)
    try:
        objective: Objective = reader.objective(options)
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
    values = {**loss, **reader.convert_run(options)}
    overrides = [preset, *(f"{key}={_override(value)}" for key, value in values.items())]
    left_out = [*given.notes, *reader.explain_unread(given, options), *reader.explain_left_out(options)]
    return Converted(options, overrides, compose(overrides), left_out, list(reader.explain_defaults(given, options)))


def _override(value: Any) -> str:
    """Return a value as an override has it: a string that is no single word is quoted."""
    is_word = not isinstance(value, str) or value.replace("_", "").isalnum()
    return format_value(value) if is_word else repr(value)


def export(name: str, settings: RunSettings, compose: Compose) -> Exported:
    """Write our settings as that framework's options. Raises RequestError with reasons if it cannot do such a run."""
    reader, wanted = READERS[name], _function(settings)
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
