"""DeepSpeed-Chat 83757d9 (2025-02): `applications/DeepSpeed-Chat/dschat/rlhf/ppo_trainer.py`, `DeepSpeedPPOTrainer`.

Its own way: the log ratio is masked before the exponential, so that padding has ratio 1; the mask is a factor, so that
what is not finite at padding poisons the loss; the loss of no token at all is NaN. It reports no metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from grpolab.learn.dialects import Dialect, unmasked
from grpolab.learn.objective import LossInputs, Objective, Stages

# Fields of the trainer, set in `__init__`.
DEFAULTS: dict[str, Any] = {"cliprange": 0.2, "kl_ctl": 0.1, "clip_reward_value": 5, "gamma": 1.0, "lam": 0.95}


def objective(options: Mapping[str, Any]) -> Objective:
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
    return unmasked.log_ratio(objective, inputs) * inputs.mask_BT


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Sum over the mask, over the number of tokens, 0/0 included."""
    if objective.aggregation != "token_mean_minibatch":
        return unmasked.average(objective, inputs, per_token)
    return (per_token * inputs.mask_BT).sum() / inputs.totals.tokens


DIALECT = Dialect(objective, Stages(prepare=unmasked.as_given, log_ratio=log_ratio, average=average))
