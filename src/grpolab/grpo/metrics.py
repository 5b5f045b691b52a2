"""What an optimiser step did, and what a rollout batch looks like, in numbers. Names and meanings: `vocabulary.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpolab import vocabulary
from grpolab.grpo.advantages import equal_rewards
from grpolab.grpo.batch import Rollout, TrainingBatch
from grpolab.grpo.loss import SurrogateParts
from grpolab.settings.run import DiagnosticsSettings


@dataclass(frozen=True)
class UpdateTensors:
    """What an optimiser step's metrics are counted from, without gradient. N: the minibatch's tokens, flattened."""

    mask_BT: Tensor
    advantages_B: Tensor
    log_ratio_BT: Tensor
    old_log_probs_BT: Tensor
    entropy_BT: Tensor
    surrogate: SurrogateParts
    kl_ref_BT: Tensor | None

    def tokens(self, values: Tensor) -> Tensor:
        """(B, T) or (B, 1) values as one per token, shape (N,)."""
        return values.expand_as(self.mask_BT)[self.mask_BT]

    @cached_property
    def sequence_log_ratio_B1(self) -> Tensor:
        """Mean log ratio of each sequence."""
        return self.log_ratio_BT.sum(1, keepdim=True) / self.mask_BT.sum(1, keepdim=True).clamp(min=1)


# Metric of a mask of `SurrogateParts`.
MASKS = {
    "active_low": "clip/active_low",
    "active_high": "clip/active_high",
    "out_of_range": "clip/out_of_range",
    "outer": "clip/outer",
    "capped": "clip/capped",
    "dropped": "clip/dropped",
}
QUANTILE_NAMES = {
    (level, sign): [f"ratio/{level}_{name}_{sign}" for name in vocabulary.QUANTILES]
    for level in vocabulary.LEVELS
    for sign in vocabulary.SIGNS
}
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Host:
    """An update in NumPy and float64: for some hundred tokens an operation costs a fraction of torch's."""

    advantages_B: Floats
    lengths_B: NDArray[np.int64]
    sequence_log_ratio_B: Floats
    log_ratio_N: Floats
    old_log_probs_N: Floats
    entropy_N: Floats
    kl_ref_N: Floats | None
    active_B: NDArray[np.int64]  # clipped tokens of each sequence
    masks_KN: Bools  # in the order of MASKS

    @classmethod
    def of(cls, update: UpdateTensors) -> Host:
        """Two transfers from the device."""
        given = [update.log_ratio_BT, update.old_log_probs_BT, update.entropy_BT, update.kl_ref_BT]
        values_FBT = torch.stack([value_BT for value_BT in given if value_BT is not None]).cpu().numpy()
        named = [getattr(update.surrogate, name).expand_as(update.mask_BT) for name in MASKS]
        masks_KBT = torch.stack([*named, update.mask_BT]).cpu().numpy()
        mask_BT = masks_KBT[-1]
        lengths_B = mask_BT.sum(1)
        values_FN = values_FBT[:, mask_BT].astype(np.float64)
        return cls(
            advantages_B=update.advantages_B.cpu().numpy(),
            lengths_B=lengths_B,
            sequence_log_ratio_B=values_FBT[0].sum(1, dtype=np.float64) / lengths_B.clip(1),
            log_ratio_N=values_FN[0],
            old_log_probs_N=values_FN[1],
            entropy_N=values_FN[2],
            kl_ref_N=values_FN[3] if len(values_FN) > 3 else None,
            active_B=((masks_KBT[0] | masks_KBT[1]) & mask_BT).sum(1),
            masks_KN=masks_KBT[:-1, mask_BT],
        )

    @cached_property
    def advantages_N(self) -> Floats:
        """The advantage of each token."""
        return np.repeat(self.advantages_B, self.lengths_B)


@torch.no_grad()
def update_metrics(update: UpdateTensors, switches: DiagnosticsSettings) -> dict[str, float]:
    """Every metric of kind `update` that follows from the tensors; absent where nothing is there to be measured."""
    host = Host.of(update)
    found = _clip_fractions(host) | _ratios(host)
    found["kl_old/k1"] = -_mean(host.log_ratio_N)
    found["kl_old/k3"] = found["ratio/token_mean"] - 1 + found["kl_old/k1"]
    found["entropy/current"] = _mean(host.entropy_N)
    if host.kl_ref_N is not None:
        found["kl_ref/k3"] = _mean(host.kl_ref_N)
    if switches.counterfactual:
        found |= _counterfactual(host)
    if switches.quantiles:
        found |= _quantiles(host)
    return {name: float(value) for name, value in found.items()}


def _mean(values_N: Floats) -> float:
    """NumPy's own takes three times as long."""
    return values_N.sum() / len(values_N)


def _clip_fractions(host: Host) -> dict[str, Any]:
    tokens = host.masks_KN.shape[1]
    low_N, high_N = host.masks_KN[:2]
    found: dict[str, Any] = dict(zip(MASKS.values(), host.masks_KN.sum(1) / tokens, strict=True))
    found["clip/active"] = host.active_B.sum() / tokens
    found["clip/active_sequences"] = _mean(host.active_B / host.lengths_B.clip(1))
    nonzero_N = host.advantages_N != 0
    if among := np.count_nonzero(nonzero_N):
        active = {"active_low": low_N, "active_high": high_N, "active": low_N | high_N}
        found |= {f"clip/{name}_nz": np.count_nonzero(mask_N & nonzero_N) / among for name, mask_N in active.items()}
    old_N = np.exp(host.old_log_probs_N)
    found["p_old/all"] = _mean(old_N)
    for name, chosen_N in (("p_old/up_clipped", high_N), ("p_old/down_clipped", low_N)):
        if chosen_N.any():
            found[name] = _mean(old_N[chosen_N])
    return found


def _ratios(host: Host) -> dict[str, Any]:
    ratio_N, sequence_B = np.exp(host.log_ratio_N), np.exp(host.sequence_log_ratio_B)
    total = ratio_N.sum()
    found = {
        "ratio/ess": total**2 / (len(ratio_N) * ratio_N.dot(ratio_N)),
        "ratio/token_mean": total / len(ratio_N),
        "ratio/token_min": ratio_N.min(),
        "ratio/token_max": ratio_N.max(),
        "ratio/sequence_min": sequence_B.min(),
        "ratio/sequence_max": sequence_B.max(),
    }
    for sign, chosen_B in _by_sign(host.advantages_B).items():
        if chosen_B.any():
            found[f"ratio/sequence_mean_{sign}"] = _mean(sequence_B[chosen_B])
    return found


def _by_sign(advantages: Any) -> dict[str, Any]:
    """Where the advantages, of either library, are above and below zero."""
    return {"pos": advantages > 0, "neg": advantages < 0}


def _counterfactual(host: Host) -> dict[str, Any]:
    """Share of tokens that each epsilon would have clipped at each ratio level, whatever this run's rule was."""
    found: dict[str, Any] = {}
    sign_B, lengths_B = np.sign(host.advantages_B), host.lengths_B
    excess = {
        # How far the ratio is out on the side where clipping acts; 0 or less: not out.
        "token": (np.exp(host.log_ratio_N) - 1) * np.repeat(sign_B, lengths_B),
        "sequence": np.repeat((np.exp(host.sequence_log_ratio_B) - 1) * sign_B, lengths_B),
    }
    for level, excess_N in excess.items():
        for epsilon in vocabulary.COUNTERFACTUAL_EPSILONS[level]:
            found[vocabulary.counterfactual(level, epsilon)] = np.count_nonzero(excess_N > epsilon) / len(excess_N)
    return found


def _quantiles(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = {}
    at = np.array(list(vocabulary.QUANTILES.values()))
    units = {
        "token": (host.log_ratio_N, host.advantages_N),
        "sequence": (host.sequence_log_ratio_B, host.advantages_B),
    }
    for level, (log_ratios, advantages) in units.items():
        for sign, chosen in _by_sign(advantages).items():
            ordered = np.sort(log_ratios[chosen])
            if len(ordered):
                values = np.exp(np.interp(at * (len(ordered) - 1), np.arange(len(ordered)), ordered))
                found |= dict(zip(QUANTILE_NAMES[level, sign], values, strict=True))
    return found


@torch.no_grad()
def histograms(update: UpdateTensors) -> dict[str, list[float]]:
    """The lists of a histogram record; their meaning stands in `vocabulary.HISTOGRAM_FIELDS`."""
    advantages_N = update.tokens(update.advantages_B[:, None])
    found: dict[str, list[float]] = {}
    levels = {"token": update.log_ratio_BT, "sequence": update.sequence_log_ratio_B1}
    for level, log_N in ((level, update.tokens(log_ratio)) for level, log_ratio in levels.items()):
        excess_N = (log_N.double().exp() - 1) * advantages_N.sign()
        for sign, chosen_N in _by_sign(advantages_N).items():
            found[f"excess/{level}_{sign}"] = _excess_counts(excess_N[chosen_N])
    active_BT = ((update.surrogate.active_low | update.surrogate.active_high) & update.mask_BT).double()
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


def rollout_metrics(rollout: Rollout, trained: TrainingBatch, group: int) -> dict[str, float]:
    """Every metric of kind `rollout` that follows from the batch; `trained` has the old log-probs, in any order."""
    rewards_PG = rollout.rewards_B.view(-1, group)
    right_B = rollout.parts["correct"] > 0.5
    lengths_B = rollout.batch.mask_BT.sum(1).double().cpu()
    scorable_N = rollout.rewards_B[~rollout.rewards_B.isnan()]
    found = {"reward/mean": scorable_N.mean().item(), "reward/std": scorable_N.std().item()}
    found |= {
        f"reward/{name}": rollout.parts[name].nanmean().item()
        for name in ("correct", "format")
        if name in rollout.parts
    }
    found |= _zero_variance(rewards_PG, right_B.view(-1, group)) | _lengths(lengths_B, right_B, rollout.truncated_B)
    texts = [rollout.texts_B[start : start + group] for start in range(0, len(rollout.texts_B), group)]
    found["completions/unique"] = sum(len(set(row)) / group for row in texts) / len(texts)
    return found | _probabilities(trained)


def _zero_variance(rewards_PG: Tensor, right_PG: Tensor) -> dict[str, float]:
    equal_P = equal_rewards(rewards_PG)
    return {
        "zero_variance/share": equal_P.double().mean().item(),
        "zero_variance/all_right": (equal_P & right_PG.all(1)).double().mean().item(),
        "zero_variance/all_wrong": (equal_P & ~right_PG.any(1)).double().mean().item(),
    }


def _lengths(lengths_B: Tensor, right_B: Tensor, truncated_B: Tensor) -> dict[str, float]:
    found = {
        "length/mean": lengths_B.mean().item(),
        "length/std": lengths_B.std().item(),
        "length/p95": lengths_B.quantile(0.95).item(),
        "truncation/share": truncated_B.double().mean().item(),
    }
    for name, chosen_B in (("right", right_B), ("wrong", ~right_B)):
        if chosen_B.any():
            found[f"length/{name}_mean"] = lengths_B[chosen_B].mean().item()
            found[f"length/{name}_p95"] = lengths_B[chosen_B].quantile(0.95).item()
            found[f"truncation/{name}"] = truncated_B[chosen_B].double().mean().item()
    return found


def _probabilities(batch: TrainingBatch) -> dict[str, float]:
    assert batch.old_log_probs_BT is not None
    assert batch.old_entropy_BT is not None
    entropy_N = batch.old_entropy_BT[batch.mask_BT].double()
    old_N = batch.old_log_probs_BT[batch.mask_BT]
    return {
        "entropy/behaviour": entropy_N.mean().item(),
        "entropy/behaviour_p80": entropy_N.quantile(0.8).item(),
        "probability/below_0.1": (old_N.exp() < 0.1).double().mean().item(),
    }
