"""The rules about a `GRPOConfig`: traps of which TRL 1.16 does not warn. Subject: its options, all filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpolab.lint.rules import Rules, dropout_of

Options = Mapping[str, Any]
TRL_RULES = Rules[Options]("A GRPOConfig of TRL 1.16")
REUSE = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
# Options that change the sampler and not the log-probs that training takes for the sampler's.
TRUNCATES = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


def on_policy(options: Options) -> bool:
    """Whether no optimiser step follows another on one generation batch: every ratio is then 1."""
    window: int = options["steps_per_generation"] * options["num_iterations"]
    return bool(options["gradient_accumulation_steps"] % window == 0)


def staleness(options: Options) -> str:
    """Optimiser steps per generation batch, with the numbers that they follow from."""
    mu, slices, window = (options[key] for key in REUSE)
    return (
        f"optimiser steps per generation batch: {' * '.join(REUSE[:2])} / {REUSE[2]} = {mu} * {slices} / {window}"
        + (f" = {mu * slices / window:g}")
    )


@TRL_RULES.rule("warning", "num_iterations or steps_per_generation")
def clip_cannot_bind(options: Options) -> Iterator[str]:
    """No more than one optimiser step per generation batch: every ratio is 1 and clip_ratio is always 0. This is
    TRL's default.
    """
    cap = options["epsilon"] if options["epsilon_high"] is None else options["epsilon_high"]
    clips = options["loss_type"] not in ("sapo", "vespo") and (options["loss_type"] != "cispo" or cap >= 1)
    if clips and on_policy(options):
        yield f"{staleness(options)}; every ratio is 1, epsilon={options['epsilon']:g} cannot act, clip_ratio is 0"


@TRL_RULES.rule("warning", "gradient_accumulation_steps")
def reuse_is_no_op(options: Options) -> Iterator[str]:
    """All passes over a batch fall into one accumulation window: num_iterations counts the same batch again in one
    step, and there is no off-policy step at all.
    """
    if options["num_iterations"] > 1 and on_policy(options):
        yield f"{staleness(options)}; the passes add up in one step, num_iterations > 1 does nothing"


@TRL_RULES.rule("note", "steps_per_generation")
def hidden_staleness(options: Options) -> Iterator[str]:
    """More slices of a generation batch than accumulation steps: later slices are off-policy even with
    num_iterations=1.
    """
    if options["num_iterations"] == 1 and options["steps_per_generation"] > options["gradient_accumulation_steps"]:
        yield f"{staleness(options)}; all but the first are off-policy, although num_iterations is 1"


@TRL_RULES.rule("warning", "disable_dropout")
def dropout_moves_the_ratio(options: Options) -> Iterator[str]:
    """The model has dropout, and TRL keeps it on while sampling and training: the ratio of the first pass is not 1."""
    rates = dropout_of(str(options["model_name_or_path"] or ""))
    if rates and not options["disable_dropout"]:
        yield f"the model's config.json has {rates} and disable_dropout=False: ratios of the first pass are not 1"


@TRL_RULES.rule("warning", "top_p, top_k, min_p or repetition_penalty")
def sampler_is_another_policy(options: Options) -> Iterator[str]:
    """Truncated sampling (top_p, ...): completions come from another policy than the old log-probs say."""
    changed = [f"{name}={options[name]}" for name, off in TRUNCATES.items() if options[name] not in (off, None)]
    if changed:
        yield f"{', '.join(changed)} change the sampler, not its log-probs: the ratio is not that to the sampler"


@TRL_RULES.rule("note", "importance_sampling_level")
def luspo_by_token(options: Options) -> Iterator[str]:
    """LUSPO is GSPO times the length; at TRL's default level it is a plain sum over tokens."""
    if options["loss_type"] == "luspo" and options["importance_sampling_level"] == "token":
        yield "loss_type=luspo at importance_sampling_level=token is a sum over tokens: LUSPO has the sequence ratio"
