"""Replays verl: policy losses, `ppo_loss`, aggregations, KL penalties, rollout correction and advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpolab.learn.aggregation import Totals
from grpolab.learn.conformance.common import loss_inputs, replay_loss
from grpolab.learn.conformance.replay import Peer, Replay
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.conformance.verl_advantages import ADVANTAGES
from grpolab.learn.conformance.verl_rejection import batch_factor, rejection
from grpolab.learn.dialects.verl import DIALECT
from grpolab.learn.dialects.verl_rollout import correction_metrics, weight_metrics, weights
from grpolab.learn.objective import LossInputs, Objective, SamplerCorrection, policy_loss
from grpolab.learn.ratios import masked_log_ratio
from grpolab.peer_defaults import VERL

Options = Mapping[str, Any]
Inputs = Mapping[str, Any]
AS_GIVEN = SamplerCorrection("token", "truncate", 0.0, torch.inf)


def totals(mask_BT: Tensor, batch: Options) -> Totals:
    """What `agg_loss` divides by: counts of the global batch, or this one's tokens and sequences that are not empty."""
    own = Totals.of(mask_BT, batch.get("loss_scale_factor"))
    sequences = batch.get("global_batch_size", own.nonempty_sequences)
    return replace(own, tokens=batch.get("batch_num_tokens", own.tokens), sequences=sequences)


def times(replayed: Replayed, factor: float) -> Replayed:
    """The loss for a trainer that averages gradients over `dp_size` ranks."""
    assert replayed.loss is not None
    return replace(replayed, loss=replayed.loss * factor, scale=replayed.scale * factor)


def of_mode(options: Options, mode: str) -> Objective:
    """The objective of a loss mode."""
    return DIALECT.objective({**options, "policy_loss": {**(options.get("policy_loss") or {}), "loss_mode": mode}})


def replay_mode(mode: str, options: Options, inputs: Inputs) -> Replayed:
    """`compute_policy_loss_<mode>`; weights that are given are written as the sampler's log-probs that have them."""
    batch = options.get("global_batch_info") or {}
    if mode == "geo_mean":  # torch.mean over all rows
        batch = {"global_batch_size": len(inputs["mask"])}
    objective, found = of_mode(options, mode), replace(loss_inputs(inputs), totals=totals(inputs["mask"], batch))
    if "rollout_is_weights" in inputs:
        objective = replace(objective, sampler_correction=AS_GIVEN)
        found = replace(found, sampler_log_probs_BT=found.old_log_probs_BT - inputs["rollout_is_weights"].log())
    if mode == "clip_cov":
        found = replace(found, noise_BT=drawn_like_verl(objective, found, options.get("torch_manual_seed", 0)))
    return times(replay_loss(DIALECT, objective, found), batch.get("dp_size", 1))


@torch.no_grad()
def drawn_like_verl(objective: Objective, inputs: LossInputs, seed: int) -> Tensor:
    """Noise that is smallest at the tokens that verl draws: the first ones of a random permutation of the eligible."""
    everything = replace(objective, kernel_options={**objective.kernel_options, "share": 1.0})
    noise_BT = torch.zeros_like(inputs.log_probs_BT)
    eligible_BT = policy_loss(everything, replace(inputs, noise_BT=noise_BT), DIALECT.stages).kernel.dropped
    order_N = torch.randperm(int(eligible_BT.sum()), generator=torch.Generator().manual_seed(seed))
    noise_BT[eligible_BT] = order_N.argsort().to(noise_BT.dtype)
    return noise_BT


def bypass_mode(options: Options, inputs: Inputs) -> Replayed:
    """`compute_policy_loss_bypass_mode`: `old_logprobs` are the sampler's; tokens that are rejected leave the mask."""
    rule, mask_BT = VERL["rollout_correction"] | dict(options["rollout_correction"]), inputs["mask"]
    now_BT, sampler_BT = inputs["logprobs"].detach(), inputs["old_logprobs"]
    log_ratio_BT, kept_BT = masked_log_ratio(now_BT, sampler_BT, mask_BT), mask_BT
    rejected: dict[str, float] = {}
    refuse_without_weights(sampler_rule(rule), log_ratio_BT, mask_BT)
    if rule.get("rollout_rs"):
        kept_BT, rejected = rejection(rule["rollout_rs"], rule["rollout_rs_threshold"], log_ratio_BT, mask_BT)
    found = {f"rollout_corr/{name}": value for name, value in rejected.items()}
    found |= correction_metrics(sampler_rule(rule), now_BT, sampler_BT, mask_BT)
    given = loss_inputs({**inputs, "mask": kept_BT})
    given = replace(given, totals=totals(kept_BT, options.get("global_batch_info") or {}))
    if rule["loss_type"] == "reinforce":  # the weight is the current policy's
        given = replace(given, old_log_probs_BT=now_BT, sampler_log_probs_BT=sampler_BT)
    replayed = replay_loss(DIALECT, of_mode(options, "bypass_mode"), given)
    return replace(replayed, metrics={**(replayed.metrics or {}), **found})


def ppo_loss(options: Options, inputs: Inputs) -> Replayed:
    """`ppo_loss`: policy loss, entropy bonus and KL; the global batch is this one, empty rows included."""
    counts = totals(inputs["mask"], {"global_batch_size": len(inputs["mask"])})
    return replay_loss(DIALECT, DIALECT.objective(options), replace(loss_inputs(inputs), totals=counts))


def agg_loss(options: Options, inputs: Inputs) -> Replayed:
    """`agg_loss` of the entropies."""
    values_BT, mask_BT = inputs["entropies"], inputs["mask"]
    given = loss_inputs({**inputs, "logprobs": values_BT})
    given = replace(given, totals=totals(mask_BT, options))
    objective = DIALECT.objective({"loss_agg_mode": options["loss_agg_mode"]})
    aggregated = Replayed(
        DIALECT.stages.average(objective, given, values_BT),
        float(DIALECT.stages.average(objective, given, values_BT.detach().abs())),
    )
    return times(aggregated, options.get("dp_size", 1))


def kl_penalty(options: Options, inputs: Inputs) -> Replayed:
    """`kl_penalty`: the KL at each position, and its sum over the tokens as the loss."""
    objective = DIALECT.objective({"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": options["kl_penalty"]})
    mask_BT = inputs["mask"]
    everywhere = loss_inputs({**inputs, "mask": torch.ones_like(mask_BT)})
    values_BT = DIALECT.stages.kl(objective, everywhere, torch.ones_like(inputs["logprobs"]))
    assert values_BT is not None
    scale = float(values_BT.detach()[mask_BT].abs().sum())
    return Replayed(torch.where(mask_BT, values_BT, 0.0).sum(), scale, tensors={"per_token": values_BT})


def sampler_rule(options: Options) -> SamplerCorrection | None:
    """The sampler correction that `algorithm.rollout_correction` means."""
    return DIALECT.objective({"rollout_correction": options}).sampler_correction


def refuse_without_weights(rule: SamplerCorrection | None, log_ratio_BT: Tensor, mask_BT: Tensor) -> None:
    """Raises ValueError where weights are asked for and no token has one: verl's sample size divides by 0 there."""
    if rule is not None and not weights(rule, log_ratio_BT, mask_BT).any():
        raise ValueError("no token has a sampler weight")


def rollout_weights(options: Options, inputs: Inputs) -> Replayed:
    """`compute_rollout_correction_weights`."""
    rule, mask_BT = sampler_rule(options), inputs["mask"]
    log_ratio_BT = masked_log_ratio(inputs["logprobs"], inputs["old_logprobs"], mask_BT).detach()
    refuse_without_weights(rule, log_ratio_BT, mask_BT)
    assert rule is not None
    weight_BT, metrics = weights(rule, log_ratio_BT, mask_BT), weight_metrics(rule, log_ratio_BT, mask_BT)
    if options["rollout_is_batch_normalize"]:
        factor = metrics["rollout_is_batch_norm_factor"] = batch_factor(rule, weight_BT, mask_BT)
        weight_BT = weight_BT / factor
    return Replayed(metrics=metrics, tensors={"weights": weight_BT})


def rollout_rejection(options: Options, inputs: Inputs) -> Replayed:
    """`compute_rollout_rejection_mask`."""
    mask_BT = inputs["mask"]
    log_ratio_BT = masked_log_ratio(inputs["logprobs"], inputs["old_logprobs"], mask_BT).detach()
    kept_BT, metrics = rejection(options["rollout_rs"], options["rollout_rs_threshold"], log_ratio_BT, mask_BT)
    return Replayed(metrics=metrics, tensors={"modified_mask": kept_BT.double()})


LOSS_MODES = ("vanilla", "gspo", "sapo", "cispo", "geo_mean", "gpg", "clip_cov", "kl_cov", "dro", "dppo_tv", "dppo_kl")
FUNCTIONS: dict[str, Replay] = {
    **{f"compute_policy_loss_{mode}": partial(replay_mode, mode) for mode in LOSS_MODES},
    "compute_policy_loss_bypass_mode": bypass_mode,
    "ppo_loss": ppo_loss,
    "agg_loss": agg_loss,
    "kl_penalty": kl_penalty,
    "compute_rollout_correction_weights": rollout_weights,
    "compute_rollout_rejection_mask": rollout_rejection,
}
PEER = Peer(
    functions={**FUNCTIONS, **ADVANTAGES},
    not_reproduced={
        "adv__*optimal_token_baseline": "its baseline of every token needs the sum of squared probabilities over the"
        " vocabulary, which this learner does not keep; the group mean in its place differs by 47% (median of the"
        " cases) to 100% of the largest advantage",
    },
    limits=(
        (
            "`clip_cov` draws its tokens with torch.randperm: the replay takes the seed of the variant, a run has its"
            " own stateless draw; under another draw none of the 200 cases of the archive changes."
        ),
        (
            "rejection sampling (`rollout_rs`) and the batch normalisation of weights are replayed, but are no axes "
            "of a run; `bypass_reinforce` uses the weight of the policy before the update in a run, verl that of the "
            "current one."
        ),
    ),
)
