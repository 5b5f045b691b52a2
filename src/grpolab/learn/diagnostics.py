"""What an update did, counted once from the parts that the objective returned. Names and meanings: `vocabulary.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from grpolab import vocabulary
from grpolab.learn.kernels.parts import KernelParts
from grpolab.learn.kl import k1, k3
from grpolab.settings import DiagnosticsSettings


@dataclass(frozen=True)
class Update:
    """A minibatch after its backward pass; nothing here takes a gradient. N: its tokens, flattened."""

    mask_BT: Tensor
    advantages_B: Tensor
    log_ratio_BT: Tensor
    old_log_probs_BT: Tensor
    entropy_BT: Tensor
    kernel: KernelParts  # shaped like the ratio
    epsilon: float
    epsilon_high: float
    kl_ref_BT: Tensor | None

    def tokens(self, values: Tensor) -> Tensor:
        """(B, T) or (B, 1) values as one per token, shape (N,)."""
        return values.expand_as(self.mask_BT)[self.mask_BT]

    @cached_property
    def sequence_log_ratio_B1(self) -> Tensor:
        """Mean log ratio of each sequence."""
        return self.log_ratio_BT.sum(1, keepdim=True) / self.mask_BT.sum(1, keepdim=True).clamp(min=1)


@torch.no_grad()
def update_metrics(update: Update, switches: DiagnosticsSettings) -> dict[str, float]:
    """Every metric of kind `update` that follows from the tensors; absent where nothing is there to be measured."""
    advantages_N = update.tokens(update.advantages_B[:, None])
    log_ratio_N = update.tokens(update.log_ratio_BT)
    found = _clip_fractions(update, advantages_N) | _ratios(update, log_ratio_N)
    found["kl_old/k1"] = k1(log_ratio_N).mean()
    found["kl_old/k3"] = k3(log_ratio_N).mean()
    found["entropy/current"] = update.tokens(update.entropy_BT).mean()
    if update.kl_ref_BT is not None:
        found["kl_ref/k3"] = update.tokens(update.kl_ref_BT).mean()
    if switches.counterfactual:
        found |= _counterfactual(update, advantages_N, log_ratio_N)
    numbers = _numbers(found)
    return numbers | _quantiles(update, advantages_N, log_ratio_N) if switches.quantiles else numbers


def _numbers(found: dict[str, Tensor]) -> dict[str, float]:
    """One transfer from the device for all of them; a mean over nothing (NaN from 0/0) was never put in."""
    values = torch.stack([value.double() for value in found.values()]).tolist()
    return dict(zip(found, values, strict=True))


def _clip_fractions(update: Update, advantages_N: Tensor) -> dict[str, Tensor]:
    parts = update.kernel
    ratio = update.log_ratio_BT.exp() if parts.loss.shape[1] > 1 else update.sequence_log_ratio_B1.exp()
    masks = {
        "clip/active_low": parts.active_low,
        "clip/active_high": parts.active_high,
        "clip/active": parts.active_low | parts.active_high,
        "clip/out_of_range": (ratio < 1 - update.epsilon) | (ratio > 1 + update.epsilon_high),
        "clip/outer": parts.outer,
        "clip/capped": parts.capped,
    }
    masks_KN = torch.stack([mask.expand_as(update.mask_BT) for mask in masks.values()])[:, update.mask_BT]
    found = dict(zip(masks, masks_KN.double().mean(1), strict=True))
    active_BT = masks["clip/active"] & update.mask_BT
    lengths_B = update.mask_BT.sum(1).clamp(min=1)
    found["clip/active_sequences"] = (active_BT.sum(1) / lengths_B).double().mean()
    low_N, high_N = masks_KN[:2]
    nonzero_N = advantages_N != 0
    if nonzero_N.any():
        names = ("clip/active_low_nz", "clip/active_high_nz", "clip/active_nz")
        found |= dict(zip(names, masks_KN[:3, nonzero_N].double().mean(1), strict=True))
    old_N = update.tokens(update.old_log_probs_BT).exp()
    found["p_old/all"] = old_N.mean()
    for name, chosen_N in (("p_old/up_clipped", high_N), ("p_old/down_clipped", low_N)):
        if chosen_N.any():
            found[name] = old_N[chosen_N].mean()
    return found


def _ratios(update: Update, log_ratio_N: Tensor) -> dict[str, Tensor]:
    ratio_N = log_ratio_N.double().exp()
    sequence_B = update.sequence_log_ratio_B1.double().squeeze(1).exp()
    found = {
        "ratio/ess": ratio_N.sum().square() / (len(ratio_N) * ratio_N.square().sum()),
        "ratio/token_mean": ratio_N.mean(),
        "ratio/token_min": ratio_N.min(),
        "ratio/token_max": ratio_N.max(),
        "ratio/sequence_min": sequence_B.min(),
        "ratio/sequence_max": sequence_B.max(),
    }
    for sign, chosen_B in _by_sign(update.advantages_B).items():
        if chosen_B.any():
            found[f"ratio/sequence_mean_{sign}"] = sequence_B[chosen_B].mean()
    return found


def _by_sign(advantages: Tensor) -> dict[str, Tensor]:
    return {"pos": advantages > 0, "neg": advantages < 0}


def _levels(update: Update, log_ratio_N: Tensor) -> dict[str, Tensor]:
    """Log ratio of every token at either level, shape (N,) each."""
    return {"token": log_ratio_N, "sequence": update.tokens(update.sequence_log_ratio_B1)}


def _counterfactual(update: Update, advantages_N: Tensor, log_ratio_N: Tensor) -> dict[str, Tensor]:
    """Share of tokens that each epsilon would have clipped at each ratio level, whatever this run's rule was."""
    found: dict[str, Tensor] = {}
    for level, log_N in _levels(update, log_ratio_N).items():
        # How far the ratio is out on the side where clipping acts; 0 or less: not out.
        excess_N = (log_N.exp() - 1) * advantages_N.sign()
        epsilons = vocabulary.COUNTERFACTUAL_EPSILONS[level]
        beyond_EN = excess_N > torch.tensor(epsilons, device=excess_N.device)[:, None]
        names = [vocabulary.counterfactual(level, epsilon) for epsilon in epsilons]
        found |= dict(zip(names, beyond_EN.double().mean(1), strict=True))
    return found


def _quantiles(update: Update, advantages_N: Tensor, log_ratio_N: Tensor) -> dict[str, float]:
    """In NumPy: torch.quantile takes longer than all the other metrics."""
    found: dict[str, float] = {}
    at = np.array(list(vocabulary.QUANTILES.values()))
    units = {
        "token": (log_ratio_N, advantages_N),
        "sequence": (update.sequence_log_ratio_B1.squeeze(1), update.advantages_B),
    }
    for level, (log_ratios, advantages) in units.items():
        for sign, chosen in _by_sign(advantages).items():
            ordered = np.sort(log_ratios[chosen].double().cpu().numpy())
            if len(ordered):
                values = np.exp(np.interp(at * (len(ordered) - 1), np.arange(len(ordered)), ordered))
                names = [f"ratio/{level}_{name}_{sign}" for name in vocabulary.QUANTILES]
                found |= dict(zip(names, values.tolist(), strict=True))
    return found


@torch.no_grad()
def histograms(update: Update) -> dict[str, list[float]]:
    """The lists of a histogram record; their meaning stands in `vocabulary.HISTOGRAM_FIELDS`."""
    advantages_N = update.tokens(update.advantages_B[:, None])
    found: dict[str, list[float]] = {}
    for level, log_N in _levels(update, update.tokens(update.log_ratio_BT)).items():
        excess_N = (log_N.double().exp() - 1) * advantages_N.sign()
        for sign, chosen_N in _by_sign(advantages_N).items():
            found[f"excess/{level}_{sign}"] = _excess_counts(excess_N[chosen_N])
    active_BT = ((update.kernel.active_low | update.kernel.active_high) & update.mask_BT).double()
    absolute_BT = update.log_ratio_BT.abs().double()
    found |= _by_position("position", update.mask_BT, absolute_BT, active_BT)
    # Rolled so that each sequence's last token stands at the end, then read backwards.
    shift_BT = torch.arange(update.mask_BT.shape[1], device=update.mask_BT.device)
    last_B1 = update.mask_BT.sum(1, keepdim=True) - 1
    index_BT = (last_B1 - shift_BT).clamp(min=0)
    from_end_BT = shift_BT <= last_B1
    found |= _by_position(
        "position_end",
        from_end_BT,
        absolute_BT.gather(1, index_BT) * from_end_BT,
        active_BT.gather(1, index_BT) * from_end_BT,
    )
    probability_N = update.tokens(update.old_log_probs_BT).exp().clamp(0, 1 - 1e-7)
    found["probability/counts"] = torch.bincount((probability_N * 10).long(), minlength=10).tolist()
    return found


def _excess_counts(excess_N: Tensor) -> list[float]:
    """Counts: not out at all, by EXCESS_EDGES (a value on an edge falls below it: clipping is strict), the rest."""
    edges = torch.tensor((0.0, *vocabulary.EXCESS_EDGES), dtype=torch.double, device=excess_N.device)
    return torch.bincount(torch.bucketize(excess_N, edges), minlength=len(edges) + 1).tolist()


def _by_position(name: str, mask_BT: Tensor, absolute_BT: Tensor, active_BT: Tensor) -> dict[str, list[float]]:
    return {
        f"{name}/count": mask_BT.sum(0).tolist(),
        f"{name}/abs_log_ratio": absolute_BT.sum(0).tolist(),
        f"{name}/active": active_BT.sum(0).tolist(),
    }
