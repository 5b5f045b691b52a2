"""prime-rl: `src/prime_rl/trainer/rl/loss.py`, `IPOLoss`, `IcePopLoss`, `PPOLoss`, `CISPOLoss`.

Read as of its pull requests 3418, 3526 and 3586 (2026-09-18), and in a later text whose commit is not known to us: it
took the KL of `ipo` away and capped its ratio. Of 559b4477 (v0.8.1.dev67), which the vectors hold, are
`default_loss_fn` and `ipo_loss_fn`, the kernels in BEFORE: they multiply by their masks, today's choose.

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
from grpolab.frameworks.kernels import capped_ratio
from grpolab.frameworks.options import PRIME_RL, prime_rl
from grpolab.grpo import loss as core
from grpolab.grpo.kl import k3
from grpolab.grpo.loss import Loss, LossInputs, SurrogateParts
from grpolab.grpo.ratios import row_mean
from grpolab.settings.objective import Objective

BEFORE = {"dppo_ratio", "ipo"}


def prepare(objective: Objective, inputs: LossInputs) -> LossInputs:
    """Keep what is stored at padding where the loss multiplies by a mask."""
    return inputs if objective.kernel in BEFORE else core.prepare(objective, inputs)


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the core's ratio; that of `ppo` is capped at 10,000, and keeps its gradient there, (B, T)."""
    if objective.kernel == "clipped" and objective.importance_sampling_level == "token":
        return capped_ratio(log_ratio_BT, PRIME_RL["max_importance_ratio"])
    return core.importance_ratio(objective, log_ratio_BT, mask_BT)


def surrogate(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """Return the core's surrogate; before, dropped tokens were multiplied by 0, so that an infinite ratio is NaN."""
    parts = core.surrogate(objective, inputs, log_ratio_BT, ratio)
    if objective.kernel not in BEFORE:
        return parts
    return replace(parts, loss=parts.loss + torch.where(parts.out_of_range, ratio * 0, 0.0))


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Average as the core does; before, padding was multiplied by 0."""
    rule = shared.average_with_padding if objective.kernel in BEFORE else core.average
    return rule(objective, inputs, per_token)


def measure_sequences(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, Tensor]:
    """Return the metrics that a loss function returns for each sequence, (B,) each."""
    mask_BT, A, parts = inputs.mask_BT, inputs.advantages, loss.surrogate
    dropped_BT, mismatch_BT = parts.active_low | parts.active_high, k3(loss.log_ratio_BT)
    counted = {  # what is averaged, over which tokens
        "masked_mismatch_kl": (mismatch_BT, mask_BT & dropped_BT),
        "unmasked_mismatch_kl": (mismatch_BT, mask_BT & ~dropped_BT),
        "is_masked": (dropped_BT, mask_BT),
    }
    if objective.kernel == "dppo_ratio":
        counted |= {
            "is_masked_low": (parts.active_low & (A < 0), mask_BT),  # the loss drops those of A = 0 too
            "is_masked_high": (parts.active_high, mask_BT),
            "masked_advantage_positive": ((A > 0).expand_as(mask_BT), mask_BT & dropped_BT),
            "masked_advantage_negative": ((A < 0).expand_as(mask_BT), mask_BT & dropped_BT),
        }
    elif objective.kernel in ("clipped", "cispo"):
        far_BT = loss.log_ratio_BT.detach().exp() > PRIME_RL["max_importance_ratio"]
        counted["is_clipped"] = (dropped_BT | parts.capped, mask_BT)
        counted |= {"ratio_capped": (far_BT, mask_BT)} if objective.kernel == "clipped" else {}
    return {name: row_mean(torch.where(over, values, 0), over)[:, 0] for name, (values, over) in counted.items()}


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """Average the metrics of sequences."""
    return {name: float(values_B.mean()) for name, values_B in measure_sequences(objective, inputs, loss).items()}


def replay(kind: str, options: Options, inputs: Inputs) -> Replayed:
    """Replay the loss over the batch's tokens, and the metrics of sequences; `old_logprobs` are the sampler's."""
    point, batch = prime_rl({**options, "type": kind}), shared.make_loss_inputs(inputs)
    loss = core.policy_loss(point, batch, FRAMEWORK)
    return replace(shared.replay_loss(FRAMEWORK, point, batch), metrics=measure_sequences(point, batch, loss))


# Function of a vector file -> `type`. Of today's there are no committed vectors; a test computes them by hand.
FUNCTIONS = {
    **{f"{name}_loss_fn": name for name in ("default", "ipo")},
    **{"IPOLoss": "ipo", "IcePopLoss": "icepop", "PPOLoss": "ppo", "CISPOLoss": "cispo"},
}
FRAMEWORK = Framework(
    objective=prime_rl,
    prepare=prepare,
    ratio=ratio,
    surrogate=surrogate,
    average=average,
    metrics=metrics,
    replays={f"compute_loss + {function}": functools.partial(replay, kind) for function, kind in FUNCTIONS.items()},
)
