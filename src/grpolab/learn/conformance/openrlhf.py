"""Replays OpenRLHF's policy loss, KL estimators and advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpolab.learn.advantages import Scored, advantages, group_std
from grpolab.learn.conformance.common import at_last_token, groups_of, loss_inputs, replay_loss
from grpolab.learn.conformance.replay import Peer
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.dialects.openrlhf import DIALECT, KL_CLAMP, approx_kl, token_mean
from grpolab.learn.returns import discounted_returns


def policy_loss(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """`PolicyLoss.forward`; a batch that is given by its global counts is one of `dp_size` equal parts."""
    objective, given = DIALECT.objective(options), loss_inputs(inputs)
    totals = given.totals
    if (tokens := options.get("batch_num_tokens")) is not None:
        totals = replace(totals, tokens=tokens / options["dp_size"])
    if (sequences := options.get("global_batch_size")) is not None:
        totals = replace(totals, nonempty_sequences=sequences / options["dp_size"])
    given = replace(given, totals=totals)
    if options.get("enable_vllm_is_correction") and objective.importance_sampling_level == "sequence":
        return _against_the_sampler(inputs, replace(given, old_log_probs_BT=inputs["rollout_logprobs"]), objective)
    return replay_loss(DIALECT, objective, given)


def _against_the_sampler(inputs: Mapping[str, Any], given: Any, objective: Any) -> Replayed:
    """GSPO with the correction on: its ratio is to the sampler's policy, its `ppo_kl` still to the old one."""
    found = replay_loss(DIALECT, objective, given)
    drift = token_mean((inputs["old_logprobs"] - inputs["logprobs"]).detach(), inputs["mask"])
    return replace(found, metrics={**(found.metrics or {}), "ppo_kl": drift})


def compute_approx_kl(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """A KL estimate at each position, padding too, in float32."""
    values_BT = approx_kl(inputs["logprobs"], inputs["ref_logprobs"], options["kl_estimator"]).clamp(
        -KL_CLAMP, KL_CLAMP
    )
    masked_BT = values_BT * inputs["mask"]
    return Replayed(masked_BT.sum(), float(masked_BT.detach().abs().sum()), tensors={"per_token": values_BT})


# `algo.advantage.estimator` -> what is subtracted, what divides, and whether advantages of tokens are whitened.
ESTIMATOR = {
    "reinforce": ("none", "none", True),
    "reinforce_baseline": ("group_mean", "none", True),
    "rloo": ("leave_one_out", "none", False),
    "group_norm": ("group_mean", "group", False),
    "dr_grpo": ("group_mean", "none", False),
}


def compute_advantages(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """Rewards less their baseline, summed from each position on; every position is a step. No KL in the reward."""
    if options["estimator"] not in ESTIMATOR:
        raise ValueError(f"estimator={options['estimator']} needs a critic")
    baseline, scale, whitened = ESTIMATOR[options["estimator"]]
    rewards_B, mask_BT, size = inputs["rewards"], inputs["mask"], inputs["group_size"]
    scored = Scored(rewards_B, groups_of(rewards_B, size))
    shaped_B = advantages(scored, baseline, scale, 1e-9)
    gamma = options["gamma"] if options["estimator"] == "reinforce" else 1.0
    returns_BT = discounted_returns(at_last_token(shaped_B, mask_BT), torch.ones_like(mask_BT), gamma)
    found_BT = _whitened(returns_BT, mask_BT, options["no_std_norm"]) if whitened else returns_BT
    metrics = {"group_reward_std": group_std(scored, 0.0).tolist(), "return": shaped_B.tolist()}
    return Replayed(metrics=metrics, tensors={"advantages": found_BT, "returns": returns_BT})


def _whitened(values_BT: Tensor, mask_BT: Tensor, centred_only: bool) -> Tensor:
    """Over all positions; mean and variance (over N, at least 1e-8) are those of the tokens in float32."""
    low_N = torch.where(mask_BT, values_BT.float(), 0.0).flatten()
    mean = low_N.sum() / mask_BT.sum()
    square = torch.where(mask_BT.flatten(), (values_BT.float().flatten() - mean).pow(2), 0.0).sum() / mask_BT.sum()
    return (values_BT - mean) * (1.0 if centred_only else square.clamp(min=1e-8).rsqrt())


PEER = Peer(
    functions={
        "PolicyLoss.forward": policy_loss,
        "compute_approx_kl": compute_approx_kl,
        "RemoteExperienceMaker.compute_advantages_and_returns": compute_advantages,
    },
    limits=(
        (
            "gspo with the sampler correction needs `old_log_probs: sampler` in a run; its `ppo_kl` is then that to "
            "the sampler."
        ),
    ),
)
