"""The table behind F11: what the surrogates say on the way from the policy before an update to the one after it.

PPO (1707.06347), figure 2: weights in between (and beyond), the batch of the update, ratios to the policy before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from grpolab.learn.aggregation import Totals
from grpolab.learn.batch import TrainingBatch
from grpolab.learn.kl import exact_kl
from grpolab.learn.learner import Learner
from grpolab.learn.objective import LossInputs, Objective, policy_loss
from grpolab.learn.policy import Policy, completion_logits
from grpolab.settings import RunSettings


def objectives(settings: RunSettings) -> dict[str, Objective]:
    """L_CPI and L_CLIP at the run's ratio level, clip range and aggregation, whatever kernel it trains with."""
    own = Objective.of(settings)
    plain = Objective(
        importance_sampling_level=own.importance_sampling_level,
        kernel="ratio",
        epsilon=own.epsilon,
        epsilon_high=own.epsilon_high,
        delta=None,
        loss_form="min_positive",
        aggregation=own.aggregation,
        beta=0.0,
    )
    return {"l_cpi": plain, "l_clip": replace(plain, kernel="clipped", delta=own.delta, dual_clip=own.dual_clip)}


@torch.no_grad()
def interpolate(
    learner: Learner, before: Policy, after: Policy, batch: TrainingBatch, alphas: Sequence[float]
) -> list[dict[str, float]]:
    """One row per alpha: L_CPI, L_CLIP and the exact KL(before || there) at before + alpha (after - before).

    The batch's advantages are used, its old log-probs are computed from `before`. Neither policy is changed.
    """
    old: list[Tensor] = []  # log-probs of the batch under `before`, a micro-batch each
    new: list[list[Tensor]] = [[] for _ in alphas]
    kl = [0.0] * len(alphas)
    there = before.frozen_copy()
    for micro in batch.split(learner.micro_batch_size):
        before_BTV = _log_probs(before, micro)
        old.append(_of_tokens(before_BTV, micro))
        for at, alpha in enumerate(alphas):
            there.load_weights(_between(before, after, alpha))
            there_BTV = _log_probs(there, micro)
            new[at].append(_of_tokens(there_BTV, micro))
            kl[at] += exact_kl(before_BTV, there_BTV)[micro.mask_BT].double().sum().item()
    inputs = LossInputs(
        log_probs_BT=torch.cat(old),
        old_log_probs_BT=torch.cat(old),
        advantages=batch.advantages_B[:, None],
        mask_BT=batch.mask_BT,
        totals=Totals.of(batch.mask_BT, learner.settings.max_completion_length),
    )
    asked, rows = objectives(learner.settings), []
    for at, alpha in enumerate(alphas):
        there_now = replace(inputs, log_probs_BT=torch.cat(new[at]))
        surrogates = {name: -policy_loss(objective, there_now).total.item() for name, objective in asked.items()}
        rows.append({"alpha": alpha, **surrogates, "kl": kl[at] / inputs.totals.tokens})
    return rows


def _between(before: Policy, after: Policy, alpha: float) -> dict[str, Tensor]:
    ends = after.weights()
    return {name: torch.lerp(start, ends[name], alpha) for name, start in before.weights().items()}


def _log_probs(policy: Policy, batch: TrainingBatch) -> Tensor:
    """Over the vocabulary at every position, (B, T, V)."""
    return completion_logits(policy, *batch.own_prompts(), batch.tokens_BT).log_softmax(-1)


def _of_tokens(log_probs_BTV: Tensor, batch: TrainingBatch) -> Tensor:
    return log_probs_BTV.gather(-1, batch.tokens_BT[..., None]).squeeze(-1)
