"""DeepSpeed-Chat 83757d9 (2025-02): `applications/DeepSpeed-Chat/dschat/rlhf/ppo_trainer.py`, `DeepSpeedPPOTrainer`.

Its own way: the log ratio is masked before the exponential, so that padding has ratio 1; the mask is a factor, so that
what is not finite at padding poisons the loss; the loss of no token at all is NaN. It reports no metrics. Its
advantages need a critic: GAE with given values is replayed, the preset has the group mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.grpo import loss as core
from grpolab.grpo.loss import LossInputs, LossRecipe
from grpolab.settings.objective import Objective

# Fields of the trainer, set in `__init__`.
DEFAULTS: dict[str, Any] = {"cliprange": 0.2, "kl_ctl": 0.1, "clip_reward_value": 5, "gamma": 1.0, "lam": 0.95}


def objective(options: Options) -> Objective:
    """Translate the trainer's fields; its KL is in the reward."""
    return Objective.of(epsilon=(DEFAULTS | dict(options))["cliprange"], loss_form="max_negative", kl_estimator="k1")


def log_ratio(objective: Objective, inputs: LossInputs) -> Tensor:
    """Return log pi_new - log pi_old times the mask."""
    return core.log_ratio(objective, inputs) * inputs.mask_BT


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Divide the sum over the mask by the number of tokens, 0/0 included."""
    if objective.aggregation != "token_mean_minibatch":
        return shared.average_everywhere(objective, inputs, per_token)
    return (per_token * inputs.mask_BT).sum() / inputs.totals.tokens


def replay_loss(options: Options, inputs: Inputs) -> Replayed:
    return shared.replay_loss(FRAMEWORK, objective(options), shared.loss_inputs(inputs))


def replay_advantages(options: Options, inputs: Inputs) -> Replayed:
    """Replay rewards of all columns, and GAE over all columns of the answer, without whitening."""
    o, start = DEFAULTS | dict(options), options.get("prompt_len", 1) - 1
    rewards_BT, kept_BT = token_rewards(
        inputs["old_logprobs"], inputs["ref_logprobs"], inputs["reward_score"], inputs["mask"], start, o
    )
    answer_BT, values_BT = rewards_BT[:, start:], torch.where(kept_BT, inputs["values"], 0.0)[:, start:]
    every_BT = torch.ones_like(answer_BT, dtype=torch.bool)
    advantages_BT, returns_BT = shared.generalized_advantages(answer_BT, values_BT, every_BT, o["gamma"], o["lam"])
    return Replayed(tensors={"rewards": rewards_BT, "advantages": advantages_BT, "returns": returns_BT})


def token_rewards(
    old_log_probs_BT: Tensor,
    reference_log_probs_BT: Tensor,
    scores_B: Tensor,
    mask_BT: Tensor,
    start: int,
    options: Options,
) -> tuple[Tensor, Tensor]:
    """Return each position's reward and which positions keep it, (B, T) each: `compute_rewards` and its zeros.

    -kl_ctl (old - ref), and the clipped score one position past a row's last token where there is room, else on it.
    `start`: columns of the prompt, which have the KL too.
    """
    width, bound = mask_BT.shape[1], options["clip_reward_value"]
    columns_T = torch.arange(width, device=mask_BT.device)
    past_B1 = (start + mask_BT[:, start:].sum(1, keepdim=True)).clamp(max=width - 1)
    rewards_BT = -options["kl_ctl"] * (old_log_probs_BT - reference_log_probs_BT)
    rewards_BT = torch.where(columns_T == past_B1, rewards_BT + scores_B[:, None].clamp(-bound, bound), rewards_BT)
    kept_BT = columns_T <= past_B1
    return torch.where(kept_BT, rewards_BT, 0.0), kept_BT


FRAMEWORK = Framework(
    objective=objective,
    recipe=LossRecipe(prepare=shared.as_given, log_ratio=log_ratio, average=average),
    replays={
        "DeepSpeedPPOTrainer.actor_loss_fn": replay_loss,
        "DeepSpeedPPOTrainer.compute_rewards + get_advantages_and_returns": replay_advantages,
    },
)
