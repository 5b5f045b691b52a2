"""Surrogates of 2025 and 2026 whose official code, or whose equations as a framework states them, we have read.

Their arguments and results are those of `grpo/surrogates.py`; `registry.py` loads them by name. MinPRO (2601.22718) is
left out, because neither its equations nor its code could be read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.grpo.loss import LossInputs, SurrogateParts
from grpolab.grpo.ratios import row_mean
from grpolab.grpo.surrogates import clipped
from grpolab.settings.objective import Objective

FAR_NEGATIVE = (0.8, 1.0)  # range of FIPO's weight where A < 0 and the ratio is beyond `safety`
BAPO_TINY = 1e-8  # added to the negative contribution


def dcpo(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """PPO's clip with bounds of each token's own: |(r - 1) p| <= epsilon, p the new and q the old probability.

    Solved for r: 1/2 + 1/2 sqrt(max(1 - 4 epsilon / q, 0)) <= r <= 1/2 + 1/2 sqrt(1 + 4 epsilon_high / q), at most
    `cap`. An unlikely token may move far more. DCPO (2509.02333), as its README and its code have it (lime-RL/DCPO
    01787b0, `compute_policy_loss_dcpo`, clip_type dynamic), whose dual clip at 10 is `dual_clip`; its smooth advantage
    standardization is advantage_history=smooth.
    """
    r, A, q_BT = ratio, inputs.advantages, inputs.old_log_probs_BT.exp()
    low_BT = (1 + (1 - 4 * objective.epsilon / q_BT).clamp(min=0).sqrt()) / 2
    high_BT = ((1 + (1 + 4 * objective.epsilon_above / q_BT).sqrt()) / 2).clamp(max=objective.options["cap"])
    loss = torch.maximum(-A * r, -A * torch.clamp(r, low_BT, high_BT))
    outer = torch.zeros_like(low_BT, dtype=torch.bool)
    if objective.dual_clip is not None:
        outer = (r.detach() > objective.dual_clip) & (A < 0)
        loss = torch.where(A < 0, torch.minimum(loss, -A * objective.dual_clip), loss)
    low, high = r.detach() < low_BT, r.detach() > high_BT
    masks = {"out_of_range": low | high, "active_low": low & (A < 0), "active_high": high & (A > 0), "outer": outer}
    return SurrogateParts.of(objective, ratio, loss, **masks)


def fipo(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """PPO's clip times sg(f_t), f_t = clip(exp(sum over k >= t of gamma^(k-t) log r_k), least, most).

    f: how much likelier the completion became from token t on, gamma = 2^(-1/half_life). Tokens beyond `delta` do not
    count in the sum; where A < 0 and r > `safety`, f is cut to [.8, 1]. FIPO (2603.19835), as ms-swift 3602360a has it
    (`loss_type=fipo`). Options: `half_life`, `least`, `most`, `safety`.
    """
    parts, options = clipped(objective, inputs, log_ratio_BT, ratio), objective.options
    moved_BT = torch.where(inputs.mask_BT, log_ratio_BT.detach(), 0.0)
    if objective.delta is not None:
        moved_BT = torch.where(ratio.detach() > objective.delta, 0.0, moved_BT)
    ahead_T = torch.arange(moved_BT.shape[1], device=moved_BT.device, dtype=moved_BT.dtype)
    distance_TT = ahead_T[:, None] - ahead_T  # from the token of the column to that of the row
    decay_TT = torch.where(distance_TT >= 0, 2 ** (-distance_TT.clamp(min=0) / options["half_life"]), 0.0)
    weight_BT = (moved_BT @ decay_TT).exp().clamp(options["least"], options["most"])
    far = (inputs.advantages < 0) & (ratio.detach() > options["safety"])
    weight_BT = torch.where(far, weight_BT.clamp(*FAR_NEGATIVE), weight_BT)
    masks = {name: getattr(parts, name) for name in ("out_of_range", "active_low", "active_high", "outer")}
    return SurrogateParts.of(objective, ratio, parts.loss * weight_BT, **masks)


def oapl(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """(beta (log pi(y) - log mu(y)) - A)^2 of each completion, mu the policy that sampled it; a loss of shape (B, 1).

    OAPL (2602.19362, eq. 3), as NeMo-RL's guide states it. A = r - log mean exp(r), eq. 2 with beta_1 = 1, is
    `advantage_estimator=log_mean_exp`. There is no ratio and no clip: its minimum is the same however old mu is.
    Option: `scale`, the paper's beta_2.
    """
    moved_B1 = torch.where(inputs.mask_BT, log_ratio_BT, 0.0).sum(1, keepdim=True)
    A_B1 = row_mean(inputs.advantages.expand_as(log_ratio_BT), inputs.mask_BT)
    loss_B1 = (objective.options["scale"] * moved_B1 - A_B1).square()
    return SurrogateParts.of(objective, ratio, loss_B1, out_of_range=torch.zeros_like(inputs.mask_BT))


# The next two compare the completions of a minibatch with each other, so they need it in one piece.


def real(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """log(1 + sum over right of e^(-s/tau)) + log(1 + sum over wrong of e^(s/tau)) of each group, at each of its rows.

    s is a completion's mean log ratio; right: A > 0. A group without both kinds has loss 0. The mean over the sequences
    is the mean over the groups. REAL (2602.05630), as ms-swift 3602360a has it (`loss_type=real`). Option:
    `temperature`, tau.
    """
    assert inputs.group_B is not None
    score_B = row_mean(log_ratio_BT, inputs.mask_BT)[:, 0] / objective.options["temperature"]
    right_B = inputs.advantages[:, 0] > 0
    same_BB = inputs.group_B[:, None] == inputs.group_B
    terms = []
    for signed_B, kind_B in ((-score_B, right_B), (score_B, ~right_B)):
        of_kind_BB = torch.where(same_BB & kind_B, signed_B, -torch.inf)
        one_B1 = torch.zeros_like(score_B)[:, None]  # log 1
        terms.append(torch.cat([of_kind_BB, one_B1], 1).logsumexp(1))
    has_both_B = (same_BB & right_B).any(1) & (same_BB & ~right_B).any(1)
    loss_B1 = torch.where(has_both_B, terms[0] + terms[1], 0.0)[:, None]
    return SurrogateParts.of(objective, ratio, loss_B1, out_of_range=torch.zeros_like(inputs.mask_BT))


def bapo(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """PPO's clip to [low, high], moved up until tokens with A >= 0 contribute at least `target` times those with A < 0.

    A token with A >= 0 contributes min(r, high) A, another max(r, low) |A|. `low` rises from `low_start` by `low_step`
    to at most `low_end`, then `high` likewise; the search is over the minibatch. BAPO (2510.18927), as its code has it
    (WooooDyy/BAPO 7287044, recipe/bapo/policy_loss.py). Its text calls the target a share of the positive tokens; the
    code divides positive by negative, which is done here. A clipped negative token counts with its bound, so that it is
    the rise of `high` that reaches the target. The code's dual clip at 3 is `dual_clip`.
    """
    o, A, r = objective.options, inputs.advantages, ratio.detach()
    bounds = {"low": o["low_start"], "high": o["high_start"]}
    for end, most, step in (("low", o["low_end"], o["low_step"]), ("high", o["high_end"], o["high_step"])):
        while bounds[end] < most and contributions(inputs.mask_BT, A, r, **bounds) < o["target"]:
            bounds[end] = min(bounds[end] + step, most)
    moved = objective.but(epsilon=1 - bounds["low"], epsilon_high=bounds["high"] - 1)
    return clipped(moved, inputs, log_ratio_BT, ratio)


def contributions(mask_BT: Tensor, advantages: Tensor, ratio: Tensor, low: float, high: float) -> float:
    """Return what tokens with A >= 0 contribute over what the others do; infinity if these contribute nothing."""
    bounded = torch.where(advantages >= 0, ratio.clamp(max=high), ratio.clamp(min=low))
    weighted_BT = torch.where(mask_BT, bounded * advantages, 0.0)
    positive, negative = float(weighted_BT.clamp(min=0).sum()), -float(weighted_BT.clamp(max=0).sum())
    return positive / (negative + BAPO_TINY) if negative > 0 else float("inf")
