"""DeepSpeed-Chat 83757d9 (2025-02): `applications/DeepSpeed-Chat/dschat/rlhf/ppo_trainer.py`, `DeepSpeedPPOTrainer`.

Its own way: the log ratio is masked before the exponential, so that padding has ratio 1; the mask is a factor, so that
a NaN at padding makes the loss NaN; the loss of a batch without tokens is NaN. It reports no metrics. Its
advantages need a critic: GAE with given values is replayed, the preset has the group mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.options import deepspeed_chat
from grpolab.grpo.loss import LossInputs
from grpolab.settings.objective import Objective


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Divide the sum over the mask by the number of tokens, 0/0 included."""
    if objective.aggregation != "token_mean_minibatch":
        return shared.average_with_padding(objective, inputs, per_token)
    return (per_token * inputs.mask_BT).sum() / inputs.totals.tokens


def replay_loss(options: Options, inputs: Inputs) -> Replayed:
    return shared.replay_loss(FRAMEWORK, deepspeed_chat(options), shared.make_loss_inputs(inputs))


def replay_advantages(options: Options, inputs: Inputs) -> Replayed:
    """Replay rewards of all columns, and GAE over all columns of the answer, without whitening.

    A reward is -kl_ctl (old - ref), in the columns of the prompt too. The clipped score is added one position after a
    row's last token (on it, if the row is full); later positions are 0.
    """
    mask_BT, start, bound = inputs["mask"], options.get("prompt_len", 1) - 1, options.get("clip_reward_value", 5)
    width, gamma, lam = mask_BT.shape[1], options.get("gamma", 1.0), options.get("lam", 0.95)
    columns_T = torch.arange(width, device=mask_BT.device)
    past_B1 = (start + mask_BT[:, start:].sum(1, keepdim=True)).clamp(max=width - 1)
    rewards_BT = -options.get("kl_ctl", 0.1) * (inputs["old_logprobs"] - inputs["ref_logprobs"])
    scored_BT = rewards_BT + inputs["reward_score"][:, None].clamp(-bound, bound)
    rewards_BT = torch.where(columns_T == past_B1, scored_BT, rewards_BT)
    rewards_BT, values_BT = (torch.where(columns_T <= past_B1, x_BT, 0.0) for x_BT in (rewards_BT, inputs["values"]))
    answer_BT = rewards_BT[:, start:]
    every_BT = torch.ones_like(answer_BT, dtype=torch.bool)
    advantages_BT, returns_BT = shared.compute_gae(answer_BT, values_BT[:, start:], every_BT, gamma, lam)
    return Replayed(tensors={"rewards": rewards_BT, "advantages": advantages_BT, "returns": returns_BT})


FRAMEWORK = Framework(
    objective=deepspeed_chat,
    prepare=shared.keep_padding,
    log_ratio=shared.masked_log_ratio,
    average=average,
    replays={
        "DeepSpeedPPOTrainer.actor_loss_fn": replay_loss,
        "DeepSpeedPPOTrainer.compute_rewards + get_advantages_and_returns": replay_advantages,
    },
)
