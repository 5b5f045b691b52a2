"""slime (THUDM/slime, 624b824, v0.3.1+38): slime/backends/megatron_utils/loss.py, slime/utils/ppo_utils.py.

Loss and metrics are sums over samples, as in slime, whose engine later divides them by the number of samples or tokens.
Its own way: samples end at their last token, and a NaN in a masked gap before it reaches the loss; the KL is computed
in float32; OPSM's sequence mask is decided by the old policy; an empty sample counts as one token.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.openrlhf import float32_kl  # slime's own is adapted from it
from grpolab.frameworks.options import slime
from grpolab.grpo import loss as core
from grpolab.grpo.advantages import advantages
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import Loss, LossInputs
from grpolab.grpo.ratios import bounded_weight, row_mean
from grpolab.settings.objective import Objective, SamplerCorrection


def prepare(objective: Objective, inputs: LossInputs) -> LossInputs:
    """Put 0 after each sample's last token, where slime has no positions; masked gaps before it stay as they are.

    An empty sample keeps one position.
    """
    inside_BT = inputs.mask_BT.flip(1).int().cumsum(1).flip(1) > 0
    inside_BT[:, 0] = True
    ended = replace(inputs, mask_BT=inside_BT).without_padding()
    return replace(ended, mask_BT=inputs.mask_BT, advantages=torch.where(inside_BT, ended.advantages, 0.0))


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the core's ratio; a sequence's ratio leaves out masked gaps."""
    sequence = objective.importance_sampling_level == "sequence"
    return core.importance_ratio(objective, log_ratio_BT * mask_BT if sequence else log_ratio_BT, mask_BT)


def find_masked_tokens(objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the tokens that the off-policy sequence mask (OPSM) drops, decided by the old policy; (B, T) bool."""
    assert objective.off_policy_mask_threshold is not None
    drift_B1 = row_mean(inputs.old_log_probs_BT - inputs.log_probs_BT.detach(), inputs.mask_BT)
    return (inputs.advantages < 0) & (drift_B1 > objective.off_policy_mask_threshold)


def mask(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Mask as the core does, but decide the off-policy mask by the old policy."""
    if objective.off_policy_mask_threshold is not None:
        per_token = per_token * ~find_masked_tokens(objective, inputs)
    return core.mask(objective.but(off_policy_mask_threshold=None), inputs, per_token)


def importance_weight(rule: SamplerCorrection, objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the sampler's bounded weight, at padding too, (B, T)."""
    return bounded_weight(rule, shared.sampler_log_ratio(inputs).exp())


def kl(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor:
    """Return each token's KL in float32, (B, T): times the token's own ratio (even in GSPO), then clamped."""
    kl_BT = float32_kl(objective, inputs)
    if objective.kl_gradient == "importance_weighted":
        kl_BT = core.log_ratio(objective, inputs).exp() * kl_BT
    bound = objective.kl_output_clamp
    return kl_BT if bound is None else kl_BT.clamp(-bound, bound)


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Sum the samples' means and divide by the number of samples, or sum tokens and divide by their number."""
    if objective.aggregation not in ("sequence_mean", "token_mean_minibatch"):
        return shared.average_with_padding(objective, inputs, per_token)
    of_samples_B = (per_token * inputs.mask_BT).sum(1)
    if objective.aggregation == "sequence_mean":
        of_samples_B = of_samples_B / inputs.mask_BT.sum(1).clamp(min=1)
    return of_samples_B.sum() / divisor(objective, inputs.totals)


def divisor(objective: Objective, totals: Totals) -> float:
    """Return what the engine divides by."""
    if objective.aggregation == "sequence_mean":
        return totals.sequences
    return totals.tokens + totals.sequences - totals.nonempty_sequences


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """Return slime's metrics, each averaged as the loss is."""
    inputs = prepare(objective, inputs)
    mask_BT, r, rule = inputs.mask_BT, loss.ratio, objective.sampler_correction
    clipped = shared.find_clipped_losses(objective, inputs.advantages, r)
    per_token = {
        "pg_loss": mask(objective, inputs, loss.surrogate.loss),
        "pg_clipfrac": r.clamp(objective.low, objective.high) != r if objective.kernel == "cispo" else clipped,
        "ppo_kl": -r.log() if objective.importance_sampling_level == "sequence" else -loss.log_ratio_BT,
    }
    if inputs.entropy_BT is not None:
        per_token["entropy_loss"] = inputs.entropy_BT
    if loss.kl_ref_BT is not None:
        per_token["kl_loss"] = loss.kl_ref_BT
    if inputs.sampler_log_probs_BT is not None:
        per_token["train_rollout_logprob_abs_diff"] = shared.sampler_log_ratio(inputs).abs()
    if rule is not None:
        weight_BT, bounded_BT = shared.sampler_log_ratio(inputs).exp(), importance_weight(rule, objective, inputs)
        per_token["pg_loss"] = per_token["pg_loss"] * bounded_BT
        changed_BT, distance_BT = bounded_BT != weight_BT, (weight_BT - 1).abs()
        per_token |= {"ois": r, "tis": weight_BT, "tis_clipfrac": changed_BT, "tis_abs": distance_BT}
    numbers = {name: float(average(objective, inputs, values.expand_as(mask_BT))) for name, values in per_token.items()}
    if objective.off_policy_mask_threshold is not None:
        shares_B = find_masked_tokens(objective, inputs).sum(1) / mask_BT.sum(1).clamp(min=1)
        numbers["opsm_clipfrac"] = float(shares_B.sum() / divisor(objective, inputs.totals))
    return numbers | {"loss": float(loss.total)}


UNDIVIDED = Totals(1, 1, 1, 1, 1, 1)  # the engine divides later: until then, loss and metrics are sums


def replay_loss(options: Options, inputs: Inputs) -> Replayed:
    """Replay the loss before the engine's division. The float32 KL is summed before it is added to the loss."""
    point, batch = slime(options), shared.make_loss_inputs(inputs, totals=UNDIVIDED)
    replayed, prepared = shared.replay_loss(FRAMEWORK, point, batch), prepare(point, batch)
    if not point.beta or batch.reference_log_probs_BT is None:
        return replayed
    without = core.policy_loss(point.but(beta=0.0), batch, FRAMEWORK)
    loss = without.total + point.beta * average(point, prepared, kl(point, prepared, torch.ones_like(batch.mask_BT)))
    return replace(replayed, loss=loss).with_metrics({"loss": loss})


def replay_advantages(options: Options, inputs: Inputs) -> Replayed:
    """Replay rewards minus their group's mean, in float32; without groups of one size, the batch is one group."""
    rewards_B, size = inputs["rewards"].float(), inputs["group_size"] or len(inputs["rewards"])
    if not options["rewards_normalization"] or options["advantage_estimator"] in ("ppo", "reinforce_plus_plus"):
        return Replayed(tensors={"advantages": rewards_B})
    scaled = options["grpo_std_normalization"] and options["advantage_estimator"] != "reinforce_plus_plus_baseline"
    scored, scale = shared.score_groups(rewards_B, size), "group" if scaled else "none"
    return Replayed(tensors={"advantages": advantages(scored, "group_mean", scale, 1e-6)})


FRAMEWORK = Framework(
    objective=slime,
    prepare=prepare,
    ratio=ratio,
    mask=mask,
    importance_weight=importance_weight,
    kl=kl,
    average=average,
    average_entropy=average,
    metrics=metrics,
    replays={"policy_loss_function": replay_loss, "RolloutManager._post_process_rewards": replay_advantages},
)
