"""Replays open-instruct's loss and KL estimates; a case's metrics are those of one packed row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from grpolab.learn.conformance.common import loss_inputs, replay_loss
from grpolab.learn.conformance.replay import Peer
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.dialects.open_instruct import CLAMP, DIALECT, ESTIMATORS, rho_correction
from grpolab.learn.kl import kl_penalty


def compute_grpo_loss(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The loss; without `rollout_logprobs` there is no correction, without `ref_logprobs` no KL."""
    corrected = "rollout_logprobs" in inputs and options.get("use_rho_correction", True)
    objective = DIALECT.objective({**options, "use_rho_correction": corrected})
    given, constant = loss_inputs(inputs), options.get("loss_denominator", "token")
    if constant != "token":  # of all rows together
        given = replace(given, totals=replace(given.totals, sequences=1, max_completion_length=int(constant)))
    found = replay_loss(DIALECT, objective, given)
    if objective.sampler_correction is None:
        return found
    weight_N = rho_correction(objective.sampler_correction, given.without_padding()).weight[given.mask_BT]
    return replace(found, metrics={**(found.metrics or {}), "val/rho_weight": weight_N.float().mean().nan_to_num()})


def estimate_kl(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The four estimates at each position; the loss is the sum of the third over the tokens."""
    ratio_BT = (inputs["logprobs"] - inputs["old_logprobs"]).exp()
    log_ratio_BT = inputs["ref_logprobs"] - inputs["logprobs"]
    values_4BT = torch.stack(
        [kl_penalty(log_ratio_BT, *names, CLAMP, None, ratio_BT, ratio_BT) for names in ESTIMATORS]
    )
    summed = values_4BT[2][inputs["mask"]].sum()
    return Replayed(summed, float(summed.detach()), tensors={"per_token": values_4BT})


PEER = Peer(
    functions={"compute_grpo_loss": compute_grpo_loss, "estimate_kl": estimate_kl},
    limits=("a rho mask together with a rho clamp other than 2.0 is not carried.",),
)
