"""Find what a config of TRL or verl does unasked that has no place in our settings: sampler, batches, learning rate.

The rules read the keys as they are written in the file, not their defaults: what everybody has is no finding. A rule
whose keys are missing, or hold what no number can be read from, is silent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from grpolab.lint.rules import LintFinding, Rules

Written = Mapping[str, Any]  # keys of a config file, dotted as the framework has them

TRL_CONFIG_RULES = Rules[Written]("A GRPOConfig as it is written")
VERL_CONFIG_RULES = Rules[Written]("A config of verl as it is written")
CONFIG_RULES = {"trl": TRL_CONFIG_RULES, "verl": VERL_CONFIG_RULES}

# Where language models are usually trained with GRPO: TRL's, verl's and most papers' 1e-6; LoRA takes ten times that.
USUAL_RATE, HIGH, LOW = 1e-6, 20, 1 / 50  # and how far from there is worth a word
NARROW = 0.01  # a clip range as GSPO's, which rounding in bfloat16 reaches
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def check_written(framework: str, written: Written) -> list[LintFinding]:
    """Return what the rules find in the keys of a framework's config file."""
    return CONFIG_RULES[framework].findings(written)


def _number(written: Written, key: str) -> float | None:
    """Return a key's number; None where it is absent, open or no number."""
    try:
        return float(written[key])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _is_true(written: Written, key: str) -> bool:
    return str(written.get(key)).lower() == "true"


def _rate(written: Written, key: str, is_lora: bool) -> Iterator[str]:
    rate, usual = _number(written, key), USUAL_RATE * (10 if is_lora else 1)
    kind = "LoRA" if is_lora else "training all weights"
    if rate is not None and rate >= HIGH * usual:
        also = "" if is_lora else " (LoRA takes about ten times that)"
        yield f"{key}={rate:g}: GRPO by {kind} usually takes {usual:g}{also}, and more makes reward collapse late"
    if rate is not None and 0 < rate <= LOW * usual:
        yield f"{key}={rate:g}: GRPO by {kind} usually takes {usual:g}; at this rate nothing moves"


@TRL_CONFIG_RULES.rule("warning", "learning_rate")
def trl_learning_rate(written: Written) -> Iterator[str]:
    """Learning rate 20 times above or 50 times below what GRPO usually takes, LoRA apart."""
    yield from _rate(written, "learning_rate", _is_true(written, "use_peft") or "lora_r" in written)


@TRL_CONFIG_RULES.rule("warning", "use_peft or use_vllm")
def adapter_and_vllm(written: Written) -> Iterator[str]:
    """A LoRA adapter with vLLM as sampler: TRL 0.15 did not send the adapter's weights to it."""
    if _is_true(written, "use_peft") and _is_true(written, "use_vllm"):
        yield (
            "use_peft and use_vllm: in TRL 0.15 the adapter is not synchronised to vLLM, and the reward stays flat; see"
            " that the gap of sampler and trainer does not grow"
        )


@TRL_CONFIG_RULES.rule("note", "num_generations")
def groups_across_processes(written: Written) -> Iterator[str]:
    """num_generations does not divide what one process generates: the number of processes has to make up for it."""
    group, batch = _number(written, "num_generations"), _number(written, "per_device_train_batch_size") or 8.0
    slices = _number(written, "steps_per_generation") or _number(written, "gradient_accumulation_steps") or 1.0
    if not group or "generation_batch_size" in written or not all(n.is_integer() for n in (group, batch, slices)):
        return
    each = int(batch * slices)
    if each > 0 and each % int(group):
        needed = int(group) // math.gcd(int(group), each)
        yield (
            f"num_generations={group:g} must divide the generation batch, and a process generates {batch:g} *"
            f" {slices:g} = {each}: TRL starts with a multiple of {needed} processes only (one GPU less where vLLM has"
            " its own), and unsloth raises the batch instead"
        )


@TRL_CONFIG_RULES.rule("note", "vllm_importance_sampling_mode")
def weight_of_a_sequence(written: Written) -> Iterator[str]:
    """The sampler's weight of a whole sequence is a product over its tokens."""
    mode = str(written.get("vllm_importance_sampling_mode"))
    if mode.startswith("sequence"):
        yield (
            f"vllm_importance_sampling_mode={mode}: the weight is a product over the tokens, so that its variance grows"
            " with length; of long answers many are cut or masked though each token's log-probs hardly differ"
        )


@TRL_CONFIG_RULES.rule("note", "temperature")
def temperature_of_vllm(written: Written) -> Iterator[str]:
    """Sampling with vLLM at another temperature than 1, whose log-probs are not scaled in every version."""
    temperature = _number(written, "temperature")
    if _is_true(written, "use_vllm") and temperature not in (None, 1):
        yield (
            f"temperature={temperature:g} and use_vllm: vLLM's log-probs are those before the temperature unless its"
            " logprobs_mode is processed_logprobs (newer TRL sets it); else the ratio to the sampler is off"
        )


@TRL_CONFIG_RULES.rule("note", "beta")
def kl_without_reward(written: Written) -> Iterator[str]:
    """A KL term also moves groups whose rewards are equal; without one nothing holds the policy at its reference."""
    beta = _number(written, "beta")
    if beta:
        yield f"beta={beta:g}: groups with equal rewards have no advantage, and the KL alone still moves the policy"
    elif beta == 0:
        yield "beta=0: no KL holds the policy at its reference; watch held-out prompts, it may over-fit its own"


@VERL_CONFIG_RULES.rule("warning", f"{ACTOR}optim.lr")
def verl_learning_rate(written: Written) -> Iterator[str]:
    """Learning rate 20 times above or 50 times below what GRPO usually takes, LoRA apart."""
    rank = _number(written, "actor_rollout_ref.model.lora_rank")
    yield from _rate(written, f"{ACTOR}optim.lr", bool(rank))


@VERL_CONFIG_RULES.rule("warning", f"{ACTOR}ppo_micro_batch_size_per_gpu")
def micro_batch_above_mini_batch(written: Written) -> Iterator[str]:
    """A GPU's micro batch holds more sequences than its share of a mini batch: weights of the loss are off, or NaN."""
    mini, group = _number(written, f"{ACTOR}ppo_mini_batch_size"), _number(written, f"{ROLLOUT}n") or 1
    micro = _number(written, f"{ACTOR}ppo_micro_batch_size_per_gpu")
    gpus = (_number(written, "trainer.n_gpus_per_node") or 8) * (_number(written, "trainer.nnodes") or 1)
    if mini is None or micro is None or _is_true(written, f"{ACTOR}use_dynamic_bsz"):
        return
    parallel = _number(written, f"{ACTOR}ulysses_sequence_parallel_size") or 1
    share = mini * group * parallel / gpus
    if micro > share:
        yield (
            f"ppo_micro_batch_size_per_gpu={micro:g}: a GPU's share of a mini batch is {mini:g} prompts * {group:g}"
            f" completions / {gpus:g} GPUs = {share:g} sequences"
        )


@VERL_CONFIG_RULES.rule("warning", f"{ROLLOUT}enforce_eager")
def cache_and_graphs(written: Written) -> Iterator[str]:
    """vLLM's cache is to be freed while its CUDA graphs are kept, which verl before 0.4 refuses."""
    frees = _is_true(written, f"{ROLLOUT}free_cache_engine")
    if frees and str(written.get(f"{ROLLOUT}enforce_eager")).lower() == "false":
        yield "free_cache_engine=True with enforce_eager=False: older verl asserts that enforce_eager is True then"


@VERL_CONFIG_RULES.rule("note", "algorithm.filter_groups.enable")
def filter_groups(written: Written) -> Iterator[str]:
    """Groups with equal rewards are to be sampled again, which only the trainers of DAPO do."""
    if _is_true(written, "algorithm.filter_groups.enable"):
        yield (
            "algorithm.filter_groups.enable=True: DAPO's own trainer (recipe.dapo) samples again, verl.trainer.main_ppo"
            " passes over it; see that train/num_gen_batches is logged"
        )


@VERL_CONFIG_RULES.rule("note", f"{ROLLOUT}log_prob_micro_batch_size_per_gpu")
def unequal_micro_batches(written: Written) -> Iterator[str]:
    """Old and new log-probs are computed in batches of different sizes, so that they differ by rounding."""
    old = _number(written, f"{ROLLOUT}log_prob_micro_batch_size_per_gpu")
    new = _number(written, f"{ACTOR}ppo_micro_batch_size_per_gpu")
    narrow = _number(written, f"{ACTOR}clip_ratio_high") or _number(written, f"{ACTOR}clip_ratio") or 0.2
    if old and new and old != new and narrow < NARROW:
        yield (
            f"log_prob_micro_batch_size_per_gpu={old:g}, ppo_micro_batch_size_per_gpu={new:g}: bfloat16 rounds the two"
            f" passes differently, and a clip range of {narrow:g} may clip that in the first update"
        )
