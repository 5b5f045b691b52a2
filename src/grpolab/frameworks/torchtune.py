"""torchtune bd2a0fc7: `torchtune/dev/grpo/loss.py`, `GRPOLoss`, `GRPOSimpleLoss` and `GRPOCompletionLoss`.

Its own way: the completion loss sums over the whole batch instead of each row, so that the batch has one ratio and one
KL, which are combined with every row's advantage, even an empty row's; and the metric `ratios` includes padding.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.options import TORCHTUNE_LOSSES, torchtune
from grpolab.grpo.kl import k3
from grpolab.grpo.loss import Loss, LossInputs, importance_ratio
from grpolab.settings.objective import Objective


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the core's ratio, or the product of all the batch's ratios, (B, 1)."""
    if objective.importance_sampling_level == "token":
        return importance_ratio(objective, log_ratio_BT, mask_BT)
    return (log_ratio_BT * mask_BT).sum().exp().expand(len(mask_BT), 1)


def kl(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor:
    """Return k3 of each token, (B, T), or of the batch's product, (B, 1)."""
    assert inputs.reference_log_probs_BT is not None
    log_ratio_BT = inputs.reference_log_probs_BT - inputs.log_probs_BT
    if objective.importance_sampling_level == "token":
        return k3(log_ratio_BT)
    return k3((log_ratio_BT * inputs.mask_BT).sum()).expand(len(log_ratio_BT), 1)


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Average with padding multiplied by 0; the completion loss averages over all rows, empty ones included."""
    if objective.importance_sampling_level == "token":
        return shared.average_with_padding(objective, inputs, per_token)
    return per_token.sum() / inputs.totals.sequences


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """Return the loss function's other return values; `policy_loss` has the sign of a reward."""
    clipped, ratios = loss.surrogate.active_low | loss.surrogate.active_high, loss.ratio
    if objective.kernel == "clipped" and objective.importance_sampling_level == "token":
        ratios = (inputs.log_probs_BT - inputs.old_log_probs_BT).exp()
    logged = {
        "policy_loss": -average(objective, inputs, loss.surrogate.loss),
        "ratios": ratios.mean(),
        "clipfrac": average(objective, inputs, clipped.double()),
    }
    if objective.kernel == "ratio":
        logged |= {"ratios": torch.ones(()), "clipfrac": torch.zeros(())}
    if inputs.reference_log_probs_BT is not None:  # for beta = 0 too
        logged["kl_loss"] = average(objective, inputs, kl(objective, inputs, loss.ratio))
    return {name: float(value) for name, value in logged.items()}


def replay(loss: str, options: Options, inputs: Inputs) -> Replayed:
    """Replay the loss of a class; the simple one uses the current policy, detached, as the old one."""
    old_BT = inputs["logprobs"].detach() if loss == "GRPOSimpleLoss" else inputs["old_logprobs"]
    batch = shared.make_loss_inputs(inputs, advantages=inputs["seq_advantages"][:, None], old_log_probs_BT=old_BT)
    return shared.replay_loss(FRAMEWORK, torchtune({**options, "loss": loss}), batch)


FRAMEWORK = Framework(
    objective=torchtune,
    prepare=shared.keep_padding,
    ratio=ratio,
    kl=kl,
    average=average,
    metrics=metrics,
    replays={f"{loss}.forward": functools.partial(replay, loss) for loss in TORCHTUNE_LOSSES},
)
