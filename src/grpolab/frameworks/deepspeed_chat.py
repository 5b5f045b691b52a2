"""DeepSpeed-Chat 83757d9 (2025-02): `applications/DeepSpeed-Chat/dschat/rlhf/ppo_trainer.py`, `DeepSpeedPPOTrainer`.

Its own way: the log ratio is masked before the exponential, so that padding has ratio 1; the mask is a factor, so that
what is not finite at padding poisons the loss; the loss of no token at all is NaN. It reports no metrics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks import base
from grpolab.frameworks.base import Framework, Inputs, Options, Replayed
from grpolab.frameworks.replay import loss_inputs, replay_loss
from grpolab.frameworks.returns import generalized_advantages
from grpolab.grpo.loss import LossInputs, LossRecipe, Objective

# Fields of the trainer, set in `__init__`.
DEFAULTS: dict[str, Any] = {"cliprange": 0.2, "kl_ctl": 0.1, "clip_reward_value": 5, "gamma": 1.0, "lam": 0.95}


def objective(options: Options) -> Objective:
    """The point on our axes of the trainer's fields; its KL is in the reward."""
    o = DEFAULTS | dict(options)
    return Objective(
        importance_sampling_level="token",
        kernel="clipped",
        epsilon=o["cliprange"],
        epsilon_high=o["cliprange"],
        delta=None,
        loss_form="max_negative",
        aggregation="token_mean_minibatch",
        beta=0.0,
        kl_estimator="k1",
    )


def log_ratio(objective: Objective, inputs: LossInputs) -> Tensor:
    """log pi_new - log pi_old times the mask."""
    return base.log_ratio(objective, inputs) * inputs.mask_BT


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Sum over the mask, over the number of tokens, 0/0 included."""
    if objective.aggregation != "token_mean_minibatch":
        return base.average(objective, inputs, per_token)
    return (per_token * inputs.mask_BT).sum() / inputs.totals.tokens


RECIPE = LossRecipe(prepare=base.as_given, log_ratio=log_ratio, average=average)


def actor_loss(options: Options, inputs: Inputs) -> Replayed:
    """The loss; there are no metrics."""
    return replay_loss(FRAMEWORK, FRAMEWORK.objective(options), loss_inputs(inputs))


def rewards_and_advantages(options: Options, inputs: Inputs) -> Replayed:
    """Rewards of all columns, and advantages and returns of the answer's."""
    fields = {name: options[name] for name in DEFAULTS if name in options}
    start = options.get("prompt_len", 1) - 1
    rewards_BT, kept_BT = token_rewards(
        inputs["old_logprobs"], inputs["ref_logprobs"], inputs["reward_score"], inputs["mask"], start, **fields
    )
    values_BT = torch.where(kept_BT, inputs["values"], 0.0)
    advantages_BT, returns_BT = advantages_and_returns(rewards_BT[:, start:], values_BT[:, start:], **fields)
    return Replayed(tensors={"rewards": rewards_BT, "advantages": advantages_BT, "returns": returns_BT})


def token_rewards(
    old_log_probs_BT: Tensor,
    reference_log_probs_BT: Tensor,
    scores_B: Tensor,
    mask_BT: Tensor,
    start: int,
    **fields: Any,
) -> tuple[Tensor, Tensor]:
    """`compute_rewards` and the zeros that follow it: each position's reward, and which ones keep it; (B, T) each.

    -kl_ctl (old - ref), and the clipped score one position past a row's last token where there is room, else on it.
    `start`: columns of the prompt, which have the KL too. `fields`: those of DEFAULTS.
    """
    o, width = DEFAULTS | fields, mask_BT.shape[1]
    columns_T = torch.arange(width, device=mask_BT.device)
    past_B1 = (start + mask_BT[:, start:].sum(1, keepdim=True)).clamp(max=width - 1)
    clipped_B1 = scores_B[:, None].clamp(-o["clip_reward_value"], o["clip_reward_value"])
    rewards_BT = -o["kl_ctl"] * (old_log_probs_BT - reference_log_probs_BT)
    rewards_BT = torch.where(columns_T == past_B1, rewards_BT + clipped_B1, rewards_BT)
    kept_BT = columns_T <= past_B1
    return torch.where(kept_BT, rewards_BT, 0.0), kept_BT


def advantages_and_returns(rewards_BT: Tensor, values_BT: Tensor, **fields: Any) -> tuple[Tensor, Tensor]:
    """`get_advantages_and_returns`: GAE over all columns, without whitening; (B, T) each."""
    o = DEFAULTS | fields
    everywhere_BT = torch.ones_like(rewards_BT, dtype=torch.bool)
    return generalized_advantages(rewards_BT, values_BT, everywhere_BT, o["gamma"], o["lam"])


FRAMEWORK = Framework(
    objective=objective,
    recipe=RECIPE,
    replays={
        "DeepSpeedPPOTrainer.actor_loss_fn": actor_loss,
        "DeepSpeedPPOTrainer.compute_rewards + get_advantages_and_returns": rewards_and_advantages,
    },
    limits=("its advantages need a critic: GAE with given values is replayed, the preset has the group mean.",),
)
