"""What other frameworks call our metrics, and what their logs do not hold.

Names as TRL 1.16, verl and ROLL log them (their code, and `grpolab/peer_metrics.py` for what each one counts). verl and
ROLL log a row a batch, a mean over its updates; TRL a row every `logging_steps` optimiser steps.
"""

from __future__ import annotations

import re

from grpolab.vocabulary import METRICS

# Framework -> its name -> ours.
NAMES: dict[str, dict[str, str]] = {
    "trl": {
        "loss": "loss",
        "grad_norm": "grad_norm",
        "learning_rate": "learning_rate",
        "clip_ratio/region_mean": "clip/active",
        "clip_ratio/low_mean": "clip/active_low",
        "clip_ratio/high_mean": "clip/active_high",
        "clip_ratio": "clip/active",  # before low and high were told apart
        "kl": "kl_ref/k3",
        "entropy": "entropy/behaviour",
        "reward": "reward/mean",
        "reward_std": "reward/std",
        "frac_reward_zero_std": "zero_variance/share",
        "completions/mean_length": "length/mean",
        "completions/clipped_ratio": "truncation/share",  # not the clip of the ratio
        "sampling/sampling_logp_difference/max": "gap/sampler_trainer",
    },
    "verl": {
        "actor/pg_loss": "loss",
        "actor/grad_norm": "grad_norm",
        "actor/lr": "learning_rate",
        "actor/pg_clipfrac": "clip/active",
        "actor/ppo_kl": "kl_old/k1",
        "actor/kl_loss": "kl_ref/k3",
        "actor/entropy": "entropy/behaviour",
        "critic/score/mean": "reward/mean",
        "response_length/mean": "length/mean",
        "response_length/clip_ratio": "truncation/share",  # not the clip of the ratio
    },
    "roll": {
        "actor/pg_loss@sum": "loss",
        "actor_train/grad_norm": "grad_norm",
        "actor/lr": "learning_rate",
        "actor/clipfrac@sum": "clip/active",
        "actor/clipfrac": "clip/active",
        "actor/ratio_mean@sum": "ratio/token_mean",
        "actor/ratio_mean": "ratio/token_mean",
        "actor/ratio_max@max": "ratio/token_max",
        "actor/ratio_max": "ratio/token_max",
        "actor/ratio_min@min": "ratio/token_min",
        "actor/ratio_min": "ratio/token_min",
        "actor/kl_loss@sum": "kl_ref/k3",
        "critic/entropy/mean": "entropy/behaviour",
        "critic/score/mean": "reward/mean",
        "tokens/response_length/mean": "length/mean",
    },
    # A mirror of ours whose folder is not here.
    "grpolab": {metric.name: metric.name for metric in METRICS.values() if metric.kind in ("update", "rollout")},
}

# A column that says what was optimised on a fresh batch: TRL logs it once a batch.
FRESH_BATCH = {"trl": "num_tokens"}
STEPS = ("step", "training/global_step", "system/global_step", "_step")

# Our metric -> what cannot be said without it, or where it is not finite.
NEEDED = {
    "loss": "the loss",
    "grad_norm": "the gradient's size: a weak signal, gradient clipping, spikes",
    "ratio/token_max": "how far the ratio is from 1",
    "ratio/token_max_neg": "large ratios of tokens with A < 0",
    "clip/active": "the clip fraction",
    "cf/token_0.2": "what the usual clip range would have clipped: too small an epsilon, or no clip",
    "kl_old/k3": "what makes the ratio differ from 1 on the first pass: dropout, padding, temperature, mask, precision",
    "weights/step_norm": "whether the weights move: frozen parameters and low precision",
    "zero_variance/share": "groups with equal rewards: a constant reward, and starving variance",
    "entropy/behaviour": "whether the entropy fell or grew",
    "truncation/share": "whether completions grow until they are cut off",
    "reward/mean": "whether the reward fell",
}
SETTINGS = "the settings (epsilon, beta, num_iterations, max_grad_norm, warm-up): they are not in such a log"
COMPLETIONS = "advantages and single tokens: they are not in such a log"


def plain(name: str) -> str:
    """A metric's name as MLflow has it: verl writes `_at_` for `@`, transformers `_`."""
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_"))
