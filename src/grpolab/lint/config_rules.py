"""The linter's rules about configs of other frameworks. docs/lint.md explains every rule.

Rules read only the keys that a file sets, because a default is no finding. A rule whose keys are missing, or are not
numbers, reports nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from grpolab.lint.rules import (
    LintFinding,
    Rules,
    Sentences,
    by_severity,
    check_rate,
    check_run,
    dropout_of,
    to_findings,
)
from grpolab.settings.run import RunSettings

Imported: TypeAlias = tuple[Mapping[str, Any], RunSettings]  # another framework's options, and the run they are read as

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}." for part in ("actor", "rollout", "model"))
FILTER = "algorithm.filter_groups."
TRL_RULES: Rules = {
    "groups-do-not-fit": ("error", "num_generations or per_device_train_batch_size"),
    "reuse-is-no-op": ("warning", "gradient_accumulation_steps"),
    "dropout-moves-the-ratio": ("warning", "disable_dropout"),
    "sampler-is-another-policy": ("warning", "repetition_penalty"),
    "clip-cannot-bind": ("warning", "num_iterations or steps_per_generation"),
    "hidden-staleness": ("note", "steps_per_generation"),
    "luspo-by-token": ("note", "importance_sampling_level"),
    "window-of-tokens": ("note", "steps_per_generation"),
    "groups-across-processes": ("note", "num_generations"),
}
FILE_RULES: dict[str, Rules] = {
    "trl": {
        "learning-rate": ("warning", "learning_rate"),
        "truncated-in-denominator": ("note", "mask_truncated_completions"),
        "adapter-and-vllm": ("warning", "use_peft or use_vllm"),
        "weight-of-a-sequence": ("note", "vllm_importance_sampling_mode"),
        "temperature-of-vllm": ("note", "temperature"),
        "kl-without-reward": ("note", "beta"),
    },
    "verl": {
        "verl-learning-rate": ("warning", f"{ACTOR}optim.lr"),
        "micro-batch-above-mini-batch": ("warning", f"{ACTOR}ppo_micro_batch_size_per_gpu"),
        "cache-and-graphs": ("warning", f"{ROLLOUT}enforce_eager"),
        "filter-without-room": ("warning", f"{FILTER}max_num_gen_batches"),
        "filter-groups": ("note", f"{FILTER}enable"),
        "unequal-micro-batches": ("note", f"{ROLLOUT}log_prob_micro_batch_size_per_gpu"),
        "verl-adapter-and-vllm": ("note", f"{MODEL}lora_rank"),
        "entropy-bonus": ("note", f"{ACTOR}entropy_coeff"),
    },
}
# Of every framework's file.
KEY_RULES: Rules = {
    "unknown-key": ("warning", "its spelling, unless a fork of yours reads it"),
    "value-not-in-file": ("note", "the file: give the config that the run wrote"),
    "rate-for-grpo": ("warning", "the learning rate"),
}
CAVEATS = {"unknown-key": "", "value-not-in-file": ": what is found rests on the defaults of these"}
REUSE = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
GROUPS = ("num_generations", "per_device_train_batch_size", "num_processes")
BY_TOKENS_OF_ALL = ("dapo", "cispo", "vespo")  # losses that TRL divides by the tokens of the generation batch
# The usual learning rate of GRPO on language models, as in TRL, verl and most papers; LoRA takes ten times that.
NARROW = 0.01  # a clip range as narrow as GSPO's, which rounding in bfloat16 alone can exceed


def check_config(
    framework: str,
    config: Imported,
    default: Imported,
    written: Mapping[str, Any],
    caveats: Sentences,
    rate: tuple[str, float] | None = None,
    is_reuse_open: bool = False,
) -> list[LintFinding]:
    """Return the findings in another framework's config: in its options, in the run that they describe, in its file.

    `caveats`: rule of KEY_RULES -> the keys that it is about, empty for none. `rate`: key and value of the learning
    rate, if the framework has no rule of its own for it. `is_reuse_open`: the file does not say how often a batch is
    used; then `clip-cannot-bind` is not reported. A finding becomes a note if the framework's `default` config has it
    too (with this config's KL).
    """
    usual = default[0], default[1].model_copy(update={"beta": config[1].beta})
    everybody = {finding.rule for finding in _check_imported(framework, usual)}
    findings = [
        replace(finding, severity="note") if finding.rule in everybody else finding
        for finding in _check_imported(framework, config)
        if not (is_reuse_open and finding.rule == "clip-cannot-bind")
    ]
    sentences = {rule: f"{keys}{CAVEATS[rule]}" for rule, keys in caveats.items() if keys}
    if "loss_type" in config[0]:  # a file that does not say it has the default of its trainer
        written = {**written, "loss_type": config[0]["loss_type"]}
    sentences |= check_rate("rate-for-grpo", *rate, is_lora=False) if rate else {}
    return by_severity([*findings, *check_written(framework, written), *to_findings(KEY_RULES, sentences.items())])


def _check_imported(framework: str, imported: Imported) -> list[LintFinding]:
    options, run = imported
    if run.sampler_rejection is not None:  # a framework's sampler is an engine of its own, which rounds to bfloat16
        run = run.model_copy(update={"sampler_dtype": "bfloat16"})
    # Model and warm start are not in another framework's options: here they are the values of our conf/.
    findings = [finding for finding in check_run(run) if finding.rule != "nothing-to-start-from"]
    if framework != "trl":
        return findings
    return [*check_trl_options(options), *(it for it in findings if it.rule != "clip-cannot-bind")]  # in both


def check_trl_options(options: Mapping[str, Any]) -> list[LintFinding]:
    """Return what the rules find in the options of a `GRPOConfig`, all filled in."""
    sentences, (mu, slices, window) = Sentences(), (options[key] for key in REUSE)
    product = f"{' * '.join(REUSE[:2])} / {REUSE[2]} = {mu} * {slices} / {window} = {mu * slices / window:g}"
    steps, is_on_policy = f"optimiser steps per generation batch: {product}", window % (mu * slices) == 0
    if mu > 1 and is_on_policy:
        sentences["reuse-is-no-op"] = f"{steps}; the passes add up in one step, num_iterations > 1 does nothing"
    rates = dropout_of(str(options["model_name_or_path"] or ""))
    if rates and not options["disable_dropout"]:
        sentences["dropout-moves-the-ratio"] = (
            f"the model's config.json has {rates} and disable_dropout=False: ratios of the first pass are not 1"
        )
    if (penalty := options["repetition_penalty"]) not in (1.0, None):
        sentences["sampler-is-another-policy"] = (
            f"repetition_penalty={penalty} changes the sampler, not its log-probs: the ratio is not that to the sampler"
        )
    loss, cap = options["loss_type"], options["epsilon_high"]
    cap = options["epsilon"] if cap is None else cap
    if is_on_policy and loss not in ("sapo", "vespo") and (loss != "cispo" or cap >= 1):
        sentences["clip-cannot-bind"] = (
            f"{steps}; every ratio is 1 up to rounding, epsilon={options['epsilon']:g} has nothing else to clip:"
            " clip_ratio is 0 or next to it"
        )
    if mu == 1 and slices > window:
        sentences["hidden-staleness"] = f"{steps}; all but the first are off-policy, although num_iterations is 1"
    if loss == "luspo" and options["importance_sampling_level"] == "token":
        sentences["luspo-by-token"] = (
            "loss_type=luspo at importance_sampling_level=token is a sum over tokens: LUSPO has the sequence ratio"
        )
    if loss in BY_TOKENS_OF_ALL and slices != window:
        sentences["window-of-tokens"] = (
            f"loss_type={loss}, steps_per_generation={slices}, gradient_accumulation_steps={window}: before June"
            f" 2026 (#5890) TRL divides by the tokens of the generation batch, so the gradient is {window / slices:g}"
            " times as large as meant; newer versions correct for it"
        )
    group, batch, processes = (options[key] for key in GROUPS)
    if options["version"] != "0.14" and batch * slices * (processes or 1) % group:  # 0.14 counts prompts
        needed, each = group // math.gcd(group, batch * slices), f"{batch} * {slices} = {batch * slices}"
        said = f"num_generations={group} must divide the generation batch, and a process generates {each}: TRL starts"
        sentences["groups-do-not-fit" if processes else "groups-across-processes"] = (
            f"{said} with a multiple of {needed} processes only, and with {processes} it raises a ValueError"
            if processes
            else f"{said} with a multiple of {needed} processes only (one GPU less where vLLM has its own; --processes"
            " says how many there are), and unsloth raises the batch instead"
        )
    return to_findings(TRL_RULES, sentences.items())


def check_written(framework: str, keys: Mapping[str, Any]) -> list[LintFinding]:
    """Return what the rules find in the keys of a framework's config file, dotted as the framework has them."""
    if framework not in FILE_RULES:
        return []
    sentences = _check_trl_file(keys) if framework == "trl" else _check_verl_file(keys)
    return to_findings(FILE_RULES[framework], sentences.items())


def _number(keys: Mapping[str, Any], key: str) -> float | None:
    """Return the key's value as a float; None if it is absent, empty (null, or a placeholder as `???`) or no number."""
    try:
        return float(keys[key])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _is(keys: Mapping[str, Any], key: str, value: str = "true") -> bool:
    return str(keys.get(key)).lower() == value


def _check_trl_file(keys: Mapping[str, Any]) -> Sentences:
    is_lora, has_vllm = _is(keys, "use_peft"), _is(keys, "use_vllm")
    sentences = check_rate(
        "learning-rate", "learning_rate", _number(keys, "learning_rate"), is_lora or "lora_r" in keys
    )
    if is_lora and has_vllm:
        sentences["adapter-and-vllm"] = (
            "use_peft and use_vllm: TRL 0.15 does not send the adapter to vLLM, and the reward stays flat; check that"
            " the gap of sampler and trainer does not grow"
        )
    if (mode := str(keys.get("vllm_importance_sampling_mode"))).startswith("sequence"):
        sentences["weight-of-a-sequence"] = (
            f"vllm_importance_sampling_mode={mode}: the weight is a product over tokens, so its variance grows with"
            " length; many long answers are cut or masked though each token's log-probs hardly differ"
        )
    loss = str(keys.get("loss_type", "dapo"))  # TRL's default since 0.22
    if _is(keys, "mask_truncated_completions") and loss in BY_TOKENS_OF_ALL:
        sentences["truncated-in-denominator"] = (
            f"loss_type={loss}, mask_truncated_completions=True: before July 2026 (#6439) TRL divides by the tokens of"
            " masked completions too, so the gradient shrinks with the share that is cut off"
        )
    temperature = _number(keys, "temperature")
    if has_vllm and temperature not in (None, 1):
        sentences["temperature-of-vllm"] = (
            f"temperature={temperature:g} and use_vllm: vLLM's log-probs are those before the temperature unless its"
            " logprobs_mode is processed_logprobs (newer TRL sets it); else the ratio to the sampler is off"
        )
    if (beta := _number(keys, "beta")) is not None:
        sentences["kl-without-reward"] = (
            f"beta={beta:g}: groups with equal rewards have no advantage, and the KL alone still moves the policy"
            if beta
            else "beta=0: no KL holds the policy at its reference; watch held-out prompts, it may over-fit its own"
        )
    return sentences


def _check_verl_file(keys: Mapping[str, Any]) -> Sentences:
    rank = _number(keys, f"{MODEL}lora_rank") or _number(keys, f"{MODEL}lora.rank")
    rate = f"{ACTOR}optim.lr"
    sentences = check_rate("verl-learning-rate", rate, _number(keys, rate), bool(rank))
    mini, micro = (_number(keys, f"{ACTOR}ppo_{size}") for size in ("mini_batch_size", "micro_batch_size_per_gpu"))
    group, parallel = _number(keys, f"{ROLLOUT}n") or 1, _number(keys, f"{ACTOR}ulysses_sequence_parallel_size") or 1
    gpus = (_number(keys, "trainer.n_gpus_per_node") or 8) * (_number(keys, "trainer.nnodes") or 1)
    if mini is not None and micro is not None and not _is(keys, f"{ACTOR}use_dynamic_bsz"):
        share = mini * group * parallel / gpus
        if micro > share:
            sentences["micro-batch-above-mini-batch"] = (
                f"ppo_micro_batch_size_per_gpu={micro:g}: a GPU's share of a mini batch is {mini:g} prompts * {group:g}"
                f" completions / {gpus:g} GPUs = {share:g} sequences"
            )
    if _is(keys, f"{ROLLOUT}free_cache_engine") and _is(keys, f"{ROLLOUT}enforce_eager", "false"):
        sentences["cache-and-graphs"] = (
            "free_cache_engine=True with enforce_eager=False: older verl asserts that enforce_eager is True then"
        )
    if _is(keys, f"{FILTER}enable"):
        sentences["filter-groups"] = (
            "algorithm.filter_groups.enable=True: DAPO's own trainer (recipe.dapo) samples again, verl.trainer.main_ppo"
            " ignored it until 0.9; check that train/num_gen_batches or filter_groups/evicted_samples is logged"
        )
        prompts, most = _number(keys, "data.train_batch_size"), _number(keys, f"{FILTER}max_num_gen_batches")
        size = _number(keys, "data.gen_batch_size") or prompts
        if prompts and size and most and 0 < most * size <= prompts:
            sentences["filter-without-room"] = (
                f"max_num_gen_batches={most:g} of {size:g} prompts: where one group of train_batch_size={prompts:g} has"
                " equal rewards, DAPO's trainer ends with an error"
            )
    merged = f"{MODEL}lora.merge"
    adapter = f"lora_rank={rank:g}" if rank else "lora.merge=True" if _is(keys, merged) else ""
    is_vllm = _is(keys, f"{ROLLOUT}name", "vllm") or f"{ROLLOUT}name" not in keys
    if adapter and is_vllm and not _is(keys, f"{ROLLOUT}free_cache_engine", "false"):
        sentences["verl-adapter-and-vllm"] = (
            f"{adapter} with vLLM, which sleeps between rollouts (free_cache_engine): some versions wake it"
            " with base weights that are gone, and load or merge the adapter alone; check in the first steps that"
            " training/rollout_probs_diff_mean does not jump (calculate_log_probs=True)"
        )
    if (bonus := _number(keys, f"{ACTOR}entropy_coeff")) and bonus > 0:
        sentences["entropy-bonus"] = (
            f"entropy_coeff={bonus:g}: the bonus goes on when the reward is learnt; if actor/entropy keeps growing,"
            " take 0, which is verl's default today"
        )
    old = _number(keys, f"{ROLLOUT}log_prob_micro_batch_size_per_gpu")
    narrow = _number(keys, f"{ACTOR}clip_ratio_high") or _number(keys, f"{ACTOR}clip_ratio") or 0.2
    if old and micro and old != micro and narrow < NARROW:
        sentences["unequal-micro-batches"] = (
            f"log_prob_micro_batch_size_per_gpu={old:g}, ppo_micro_batch_size_per_gpu={micro:g}: bfloat16 rounds the"
            f" two passes differently, and a clip range of {narrow:g} may clip that in the first update"
        )
    return sentences
