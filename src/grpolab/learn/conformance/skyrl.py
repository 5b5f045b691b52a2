"""Replays SkyRL's policy losses and KL estimators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpolab.learn.conformance.common import loss_inputs, replay_kl, replay_loss
from grpolab.learn.conformance.replay import Peer, Replay
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.conformance.verl_advantages import outcome, reinforce_plus_plus
from grpolab.learn.dialects.skyrl import DIALECT
from grpolab.learn.objective import LossInputs

LOSSES = (
    "ppo_policy_loss",
    "sapo_policy_loss",
    "gspo_policy_loss",
    "compute_policy_loss_cispo",
    "rollout_is_policy_loss",
    "dppo_policy_loss",
    "compute_policy_loss_clip_cov",
    "compute_policy_loss_kl_cov",
    "importance_sampling_loss",
)


def policy_loss(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """A policy loss after its reduction; the KL is the worker's."""
    objective = DIALECT.objective({"use_kl_loss": False, **options})
    changed: dict[str, Any] = {"noise_BT": torch.zeros_like(inputs["advantages"])}
    anchored = options["policy_loss_type"] in ("rollout_is", "dppo") and "rollout_logprobs" in inputs
    if anchored or options.get("cispo", {}).get("cispo_anchor") == "rollout":
        changed["old_log_probs_BT"] = inputs["rollout_logprobs"]
    given = loss_inputs(inputs, options["max_seq_len"], **changed)
    if options["loss_reduction"] == "prompt_mean":
        given = replace(given, advantages=of_prompts(given, inputs["prompt_boundaries"]))
    return replay_loss(DIALECT, objective, given)


def of_prompts(inputs: LossInputs, boundaries: list[list[int]]) -> Tensor:
    """Advantages over the tokens of their prompt and over the number of prompts, (B, T)."""
    pieces = []
    for begin, end in boundaries:
        tokens = int(inputs.mask_BT[begin:end].sum())
        pieces.append(inputs.advantages[begin:end] / (len(boundaries) * max(tokens, 1)))
    return torch.cat(pieces)


def compute_approx_kl(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The estimate, 0 at padding."""
    low, high = (20.0, 10.0) if options["kl_estimator_type"] == "k3" else (None, None)
    return replay_kl(inputs, options["kl_estimator_type"], low, high, masked=True)


def grpo(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """verl's, of which SkyRL's estimators are copies."""
    return outcome("group_mean", "group" if options["grpo_norm_by_std"] else "none", options, inputs)


ADVANTAGES: dict[str, Replay] = {
    "grpo": grpo,
    "maxrl": partial(outcome, "group_mean", "group_mean"),
    "rloo": partial(outcome, "leave_one_out", "none", lone_reward=False),
    "reinforce++": reinforce_plus_plus,
}

PEER = Peer(
    functions={
        **dict.fromkeys(LOSSES, policy_loss),
        "compute_approx_kl": compute_approx_kl,
        **ADVANTAGES,
    },
    limits=(
        (
            "clip_cov draws its tokens with torch.randperm from the global generator: where its window fires (1 of 60"
            " random inputs, never in the archive) another token is left out, and the loss differs by as much as 64%."
        ),
        (
            "kl_cov penalises the tokens of the largest covariance: where all are 0 (one advantage for every token),"
            " rounding chooses them, and the loss differs."
        ),
        (
            "its entropy loss, `token_mean_legacy`, `cross_entropy` and two sampler corrections at once are not "
            "carried; `prompt_mean` is replayed but no aggregation of a run."
        ),
    ),
)
