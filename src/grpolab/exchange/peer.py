"""What the exchange knows of a framework, and the two directions that follow from it.

There is one mapping, that of the import: `learn/dialects/` for the loss, a peer's tables for the rest. The export tries
what a peer guesses, imports it again, and prints it only where the function that comes back is the one that was asked
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpolab.errors import RequestError
from grpolab.identity import dotted
from grpolab.lint.equalities import Point, different, rewritten
from grpolab.settings import RunSettings
from grpolab.settings.objective import ObjectiveSettings
from grpolab.sweep.compose import Composer

if TYPE_CHECKING:
    from grpolab.learn.objective import Objective

Options = dict[str, Any]
# What else of a run is the other framework's to say: how it samples, reuses and steps.
# fmt: off
OF_THE_RUN = {
    "micro_batch_size", "num_generations", "max_completion_length", "temperature", "staleness", "num_iterations",
    "num_minibatches", "prompts_per_step", "learning_rate", "lr_scheduler_type", "warmup_steps", "adam_beta1",
    "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm",
}
# fmt: on
EXCHANGED = (ObjectiveSettings.model_fields.keys() | OF_THE_RUN) - {"framework"}
# Guards that a run does not meet: a difference is said, and stops nothing.
GUARDS = {"log_ratio_clamp", "scale_epsilon", "adam_epsilon"}
SWITCHES = {"entropy_coef": 0.0}  # an Objective says 0 where the settings say null


@dataclass(frozen=True)
class Converted:
    """What a framework's options are in our settings."""

    options: Options  # with the framework's defaults
    overrides: list[str]
    settings: RunSettings
    left_out: list[str]  # a sentence for each thing that cannot be carried


@dataclass(frozen=True)
class Peer:
    """A framework of the exchange."""

    name: str
    options: Callable[[Options], Options]  # checked, and its defaults filled in; raises RequestError
    loss: Callable[[Options], Options]  # what `learn/dialects/` takes
    run: Callable[[Options], Options]  # what is no loss, by our keys
    left_out: Callable[[Options], Iterator[str]]
    guesses: Callable[[RunSettings], Iterator[Options]]  # options that may say what a run does, likeliest first
    own_way: Callable[[RunSettings], Iterator[str]]  # what it computes differently by the same options
    shown: Callable[[Options], str]


def convert(peer: Peer, given: Mapping[str, Any], composer: Composer | None = None) -> Converted:
    """Read a framework's options into our settings. Raises RequestError with all that is wrong."""
    from grpolab.learn.dialects import dialect  # here, because it imports torch

    composer, options = composer or Composer(), peer.options(dict(given))
    try:
        objective = dialect(peer.name).objective(peer.loss(options))
    except (ValueError, TypeError, AttributeError) as error:
        raise RequestError(f"{peer.name}: {error}") from error
    preset = f"dialect={peer.name}"
    base = composer.compose([preset])
    loss = {key: value for key, value in _axes(objective).items() if value != _value(base, key)}
    overrides = [preset, *(f"{key}={written(value)}" for key, value in {**loss, **peer.run(options)}.items())]
    return Converted(options, overrides, composer.compose(overrides), list(peer.left_out(options)))


def _axes(objective: Objective) -> Point:
    """The keys of the objective, those of the kernel's options dotted."""
    values = {name: getattr(objective, name) for name in objective.__dataclass_fields__}
    options, correction = values.pop("kernel_options"), values["sampler_correction"]
    values |= {f"kernel_options.{objective.kernel}.{name}": value for name, value in options.items()}
    values |= {key: None for key, off in SWITCHES.items() if values[key] == off}
    if not objective.beta:
        values = {key: value for key, value in values.items() if not key.startswith("kl_")}
    return values | {"sampler_correction": correction and vars(correction)}


def _value(settings: RunSettings, key: str) -> Any:
    return dict(dotted(settings.model_dump())).get(key)


def written(value: Any) -> str:
    """A value as an override has it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{written(item)}" for key, item in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if value == float("inf"):
        return ".inf"
    return repr(value) if isinstance(value, str) and not value.replace("_", "").isalnum() else str(value)


@dataclass(frozen=True)
class Exported:
    """A fragment of a framework's config, and what it does a little differently there."""

    text: str
    options: Options
    remarks: list[str]


def export(peer: Peer, settings: RunSettings) -> Exported:
    """Our settings as that framework's options. Raises RequestError with the reasons where it has no such function."""
    composer, wanted = Composer(), _function(settings)
    tried: list[tuple[set[str], Options, Point]] = []
    for guess in peer.guesses(settings):
        try:
            found = _function(convert(peer, guess, composer).settings)
        except RequestError:
            continue  # a guess that the framework, or a run, does not have
        tried.append((different(wanted, found), guess, found))
        if tried[-1][0] <= GUARDS:
            break
    if not tried:
        raise RequestError(f"{peer.name} cannot say this run: none of its losses takes these values")
    keys, options, found = min(tried, key=lambda one: len(one[0] - GUARDS))
    if reasons := keys - GUARDS:
        raise RequestError([f"{peer.name} has no such function", *_differences(peer, reasons, wanted, found)])
    said = _differences(peer, keys, wanted, found)
    if settings.framework not in (None, peer.name):
        said.append(f"framework={settings.framework}: what it computes its own way, {peer.name} does not")
    if settings.framework != peer.name:
        said += peer.own_way(settings)
    return Exported(peer.shown(options), options, said)


def _differences(peer: Peer, keys: set[str], wanted: Point, found: Point) -> list[str]:
    """A sentence for each key; a kernel that the framework does not have takes its options along."""
    if "kernel" in keys:
        return [f"kernel={wanted['kernel']} is in none of its losses"]
    return [f"{key}={written(wanted[key])}: {peer.name} has {written(found[key])}" for key in sorted(keys)]


def _function(settings: RunSettings) -> Point:
    return {key: value for key, value in rewritten(settings).items() if key in EXCHANGED}
