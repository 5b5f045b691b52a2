"""prime-rl 559b4477 (v0.8.1.dev67): `src/prime_rl/trainer/rl/loss.py`, `default_loss_fn` and `ipo_loss_fn`.

There is no old policy: the ratio is to the sampler, whose log-probs serve as the old ones. The metrics are means over
each sequence, then over sequences.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.options import PRIME_RL_LOSSES, prime_rl
from grpolab.grpo import loss as core
from grpolab.grpo.kl import k3
from grpolab.grpo.loss import Loss, LossInputs, SurrogateParts
from grpolab.grpo.ratios import row_mean
from grpolab.settings.objective import Objective


def surrogate(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """Return the core's surrogate, but multiply dropped tokens by 0, so that an infinite ratio becomes NaN."""
    parts = core.surrogate(objective, inputs, log_ratio_BT, ratio)
    return replace(parts, loss=parts.loss + torch.where(parts.out_of_range, ratio * 0, 0.0))


def measure_sequences(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, Tensor]:
    """Return the metrics that a loss function returns for each sequence, (B,) each."""
    mask_BT, A, parts = inputs.mask_BT, inputs.advantages, loss.surrogate
    dropped_BT, mismatch_BT = parts.active_low | parts.active_high, k3(loss.log_ratio_BT)
    counted = {  # what is averaged, over which tokens
        "masked_mismatch_kl": (mismatch_BT, mask_BT & dropped_BT),
        "unmasked_mismatch_kl": (mismatch_BT, mask_BT & ~dropped_BT),
        "is_masked": (dropped_BT, mask_BT),
    }
    if objective.kernel != "ipo":
        counted |= {
            "is_masked_low": (parts.active_low & (A < 0), mask_BT),  # the loss drops those of A = 0 too
            "is_masked_high": (parts.active_high, mask_BT),
            "masked_advantage_positive": ((A > 0).expand_as(mask_BT), mask_BT & dropped_BT),
            "masked_advantage_negative": ((A < 0).expand_as(mask_BT), mask_BT & dropped_BT),
        }
    return {name: row_mean(torch.where(over, values, 0), over)[:, 0] for name, (values, over) in counted.items()}


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """Average the metrics of sequences."""
    return {name: float(values_B.mean()) for name, values_B in measure_sequences(objective, inputs, loss).items()}


def replay(kind: str, options: Options, inputs: Inputs) -> Replayed:
    """Replay the loss over the batch's tokens, and the metrics of sequences; `old_logprobs` are the sampler's."""
    point, batch = prime_rl({**options, "type": kind}), shared.make_loss_inputs(inputs)
    loss = core.policy_loss(point, batch, FRAMEWORK)
    return replace(shared.replay_loss(FRAMEWORK, point, batch), metrics=measure_sequences(point, batch, loss))


FRAMEWORK = Framework(
    objective=prime_rl,
    prepare=shared.keep_padding,
    surrogate=surrogate,
    average=shared.average_with_padding,
    metrics=metrics,
    replays={f"compute_loss + {kind}_loss_fn": functools.partial(replay, kind) for kind in PRIME_RL_LOSSES},
)
