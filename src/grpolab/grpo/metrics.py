"""Metrics of an optimiser step and of a rollout batch. `meanings.py` explains their names."""

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
from grpolab.grpo.kl import k3
from grpolab.grpo.loss import LossInputs, SurrogateParts
from grpolab.grpo.ratios import masked_log_ratio
from grpolab.settings.run import DiagnosticsSettings
from grpolab.settings.task import LENGTH, OVERLONG, VERDICT

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class UpdateTensors:
    """The detached tensors of an optimiser step that its metrics read. N: the minibatch's tokens, flattened."""

    inputs: LossInputs  # of the whole minibatch
    log_ratio_BT: Tensor
    surrogate: SurrogateParts

    @property
    def kl_ref_BT(self) -> Tensor | None:
        """The KL to the reference by k3, whatever the objective uses, so that all runs can be compared."""
        inputs, reference_BT = self.inputs, self.inputs.reference_log_probs_BT
        return None if reference_BT is None else k3(masked_log_ratio(reference_BT, inputs.log_probs_BT, inputs.mask_BT))

    def tokens(self, values: Tensor) -> Tensor:
        """Return (B, T) or (B, 1) values as one per token, shape (N,)."""
        return values.expand_as(self.inputs.mask_BT)[self.inputs.mask_BT]


MASKS = ("active_low", "active_high", "out_of_range", "outer", "capped", "dropped")  # of `SurrogateParts`; clip/<name>


@dataclass(frozen=True)
class UpdateArrays:
    """`UpdateTensors` in NumPy and float64: on a few hundred tokens NumPy is several times as fast as torch."""

    advantages_B: Floats
    lengths_B: NDArray[np.int64]
    sequence_log_ratio_B: Floats
    log_ratio_N: Floats
    old_log_probs_N: Floats
    entropy_N: Floats
    kl_ref_N: Floats | None
    active_B: NDArray[np.int64]  # clipped tokens of each sequence
    masks_KN: NDArray[np.bool_]  # in the order of MASKS

    @classmethod
    def of(cls, update: UpdateTensors) -> UpdateArrays:
        """Copy an update from its device, in two transfers."""
        inputs = update.inputs
        columns = [update.log_ratio_BT, inputs.old_log_probs_BT, inputs.entropy_BT, update.kl_ref_BT]
        values_FBT = torch.stack([value_BT for value_BT in columns if value_BT is not None]).cpu().numpy()
        masks = [getattr(update.surrogate, name).expand_as(inputs.mask_BT) for name in MASKS]
        masks_KBT = torch.stack([*masks, inputs.mask_BT]).cpu().numpy()
        mask_BT = masks_KBT[-1]
        real_B = mask_BT.any(1)  # a completion that is masked has no ratio
        values_FBT, masks_KBT, mask_BT = values_FBT[:, real_B], masks_KBT[:, real_B], mask_BT[real_B]
        lengths_B = mask_BT.sum(1)
        values_FN = values_FBT[:, mask_BT].astype(np.float64)
        return cls(
            advantages_B=inputs.advantages[:, 0].cpu().numpy()[real_B],
            lengths_B=lengths_B,
            sequence_log_ratio_B=values_FBT[0].sum(1, dtype=np.float64) / lengths_B,
            log_ratio_N=values_FN[0],
            old_log_probs_N=values_FN[1],
            entropy_N=values_FN[2],
            kl_ref_N=values_FN[3] if len(values_FN) > 3 else None,
            active_B=((masks_KBT[0] | masks_KBT[1]) & mask_BT).sum(1),
            masks_KN=masks_KBT[:-1, mask_BT],
        )

    @cached_property
    def advantages_N(self) -> Floats:
        return np.repeat(self.advantages_B, self.lengths_B)


@torch.no_grad()
def update_metrics(tensors: UpdateTensors, switches: DiagnosticsSettings) -> dict[str, float]:
    """Return every metric of kind `update` that the tensors give; one with nothing to measure is left out."""
    update = UpdateArrays.of(tensors)
    metrics = _clip_fractions(update) | _ratios(update)
    metrics["kl_old/k1"] = -_mean(update.log_ratio_N)
    metrics["kl_old/k3"] = metrics["ratio/token_mean"] - 1 + metrics["kl_old/k1"]
    metrics["entropy/current"] = _mean(update.entropy_N)
    if update.kl_ref_N is not None:
        metrics["kl_ref/k3"] = _mean(update.kl_ref_N)
    if switches.counterfactual:
        metrics |= _counterfactual(update)
    if switches.quantiles:
        metrics |= _quantiles(update)
    return {name: float(value) for name, value in metrics.items()}


def _mean(values_N: Floats) -> float:
    """Return the mean; NumPy's own takes three times as long."""
    return values_N.sum() / len(values_N)


def _clip_fractions(update: UpdateArrays) -> dict[str, Any]:
    tokens = update.masks_KN.shape[1]
    low_N, high_N = update.masks_KN[:2]
    shares = update.masks_KN.sum(1) / tokens
    metrics: dict[str, Any] = {f"clip/{name}": share for name, share in zip(MASKS, shares, strict=True)}
    metrics["clip/active"] = update.active_B.sum() / tokens
    metrics["clip/active_sequences"] = _mean(update.active_B / update.lengths_B)
    nonzero_N = update.advantages_N != 0
    if count := np.count_nonzero(nonzero_N):
        active = {"active_low": low_N, "active_high": high_N, "active": low_N | high_N}
        metrics |= {f"clip/{name}_nz": np.count_nonzero(mask_N & nonzero_N) / count for name, mask_N in active.items()}
    old_N = np.exp(update.old_log_probs_N)
    metrics["p_old/all"] = _mean(old_N)
    for name, clipped_N in (("p_old/up_clipped", high_N), ("p_old/down_clipped", low_N)):
        if clipped_N.any():
            metrics[name] = _mean(old_N[clipped_N])
    return metrics


def _ratios(update: UpdateArrays) -> dict[str, Any]:
    ratio_N, sequence_B = np.exp(update.log_ratio_N), np.exp(update.sequence_log_ratio_B)
    total = ratio_N.sum()
    metrics = {
        "ratio/ess": total**2 / (len(ratio_N) * ratio_N.dot(ratio_N)),
        "ratio/token_mean": total / len(ratio_N),
        "ratio/token_min": ratio_N.min(),
        "ratio/token_max": ratio_N.max(),
        "ratio/sequence_min": sequence_B.min(),
        "ratio/sequence_max": sequence_B.max(),
    }
    for sign, rows_B in _by_sign(update.advantages_B).items():
        if rows_B.any():
            metrics[f"ratio/sequence_mean_{sign}"] = _mean(sequence_B[rows_B])
    return metrics


def _by_sign(advantages: Any) -> dict[str, Any]:
    """Return masks of the advantages above and below zero, as NumPy arrays or tensors."""
    return {"pos": advantages > 0, "neg": advantages < 0}


def _counterfactual(update: UpdateArrays) -> dict[str, Any]:
    """Return the share of tokens that each epsilon would have clipped at each ratio level, had the run used them."""
    metrics: dict[str, Any] = {}
    sign_B, lengths_B = np.sign(update.advantages_B), update.lengths_B
    excess = {
        # ratio - 1, signed so that it is positive on the side where clipping acts.
        "token": (np.exp(update.log_ratio_N) - 1) * np.repeat(sign_B, lengths_B),
        "sequence": np.repeat((np.exp(update.sequence_log_ratio_B) - 1) * sign_B, lengths_B),
    }
    for level, excess_N in excess.items():
        for epsilon in vocabulary.COUNTERFACTUAL_EPSILONS[level]:
            metrics[vocabulary.counterfactual(level, epsilon)] = np.count_nonzero(excess_N > epsilon) / len(excess_N)
    return metrics


def _quantiles(update: UpdateArrays) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    shares = np.array(list(vocabulary.QUANTILES.values()))
    units = {
        "token": (update.log_ratio_N, update.advantages_N),
        "sequence": (update.sequence_log_ratio_B, update.advantages_B),
    }
    for level, (log_ratios, advantages) in units.items():
        for sign, members in _by_sign(advantages).items():
            ordered = np.sort(log_ratios[members])
            if len(ordered):
                values = np.exp(np.interp(shares * (len(ordered) - 1), np.arange(len(ordered)), ordered))
                names = [f"ratio/{level}_{name}_{sign}" for name in vocabulary.QUANTILES]
                metrics |= dict(zip(names, values, strict=True))
    return metrics


@torch.no_grad()
def histograms(update: UpdateTensors) -> dict[str, list[float]]:
    """Return the lists of a histogram record; `meanings.HISTOGRAM_FIELDS` explains them."""
    mask_BT, log_ratio_BT = update.inputs.mask_BT, update.log_ratio_BT
    advantages_N = update.tokens(update.inputs.advantages)
    lists: dict[str, list[float]] = {}
    sequence_B1 = log_ratio_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
    for level, log_ratio in {"token": log_ratio_BT, "sequence": sequence_B1}.items():
        excess_N = (update.tokens(log_ratio).double().exp() - 1) * advantages_N.sign()
        for sign, members_N in _by_sign(advantages_N).items():
            lists[f"excess/{level}_{sign}"] = _excess_counts(excess_N[members_N])
    absolute_BT = log_ratio_BT.abs().double()
    active_BT = ((update.surrogate.active_low | update.surrogate.active_high) & mask_BT).double()
    # Positions count backwards from each sequence's last token.
    columns_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B1 = mask_BT.sum(1, keepdim=True) - 1
    backwards_BT, real_BT = (last_B1 - columns_T).clamp(min=0), columns_T <= last_B1
    from_end = (values_BT.gather(1, backwards_BT) * real_BT for values_BT in (absolute_BT, active_BT))
    positions = {"position": (mask_BT, absolute_BT, active_BT), "position_end": (real_BT, *from_end)}
    for name, columns in positions.items():
        for field, values_BT in zip(("count", "abs_log_ratio", "active"), columns, strict=True):
            lists[f"{name}/{field}"] = values_BT.sum(0).tolist()
    probability_N = update.tokens(update.inputs.old_log_probs_BT).exp().clamp(0, 1 - 1e-7)
    lists["probability/counts"] = torch.bincount((probability_N * 10).long(), minlength=10).tolist()
    return lists


def _excess_counts(excess_N: Tensor) -> list[float]:
    """Count values up to 0, between EXCESS_EDGES, and above. One on an edge counts below it: clipping starts beyond."""
    edges = torch.tensor((0.0, *vocabulary.EXCESS_EDGES), dtype=torch.double, device=excess_N.device)
    return torch.bincount(torch.bucketize(excess_N, edges), minlength=len(edges) + 1).tolist()


def rollout_metrics(rollout: Rollout, trained: TrainingBatch, group: int) -> dict[str, float]:
    """Return every metric of kind `rollout`; `trained` is the batch with old log-probs, its rows in any order.

    Rewards, groups and lengths are those of all sampled completions, probabilities and entropies of those that train.
    """
    right_B = rollout.parts["correct"] > 0.5
    lengths_B = rollout.completions.mask_BT.sum(1).double().cpu()
    scorable_N = rollout.rewards_B[~rollout.rewards_B.isnan()]
    metrics = {"reward/mean": scorable_N.mean().item(), "reward/std": scorable_N.std().item()}
    for name in ("correct", "format", VERDICT, OVERLONG, LENGTH):
        if name in rollout.parts:
            metrics[f"reward/{name}"] = rollout.parts[name].nanmean().item()
    right_PG, equal_P = right_B.view(-1, group), equal_rewards(rollout.rewards_B.view(-1, group))
    groups = {"share": equal_P, "all_right": equal_P & right_PG.all(1), "all_wrong": equal_P & ~right_PG.any(1)}
    metrics |= {f"zero_variance/{name}": groups_P.double().mean().item() for name, groups_P in groups.items()}
    metrics |= _lengths(lengths_B, right_B, rollout.truncated_B)
    if (differ_P := rollout.differ_P) is not None:
        passed, trained_groups = int(differ_P.sum()), len(rollout.batch.prompt_of_B.unique())
        metrics |= {"filter/sampled": float(len(rollout.texts_B)), "filter/passed": passed / len(differ_P)}
        metrics["filter/groups"] = float(min(passed, trained_groups))
    if "so_far_B4" in rollout.compared:
        metrics["prompts/again"] = (rollout.compared["so_far_B4"][:, 0] > 1).double().mean().item()
        metrics["advantages/nonzero"] = (trained.advantages_B != 0).double().mean().item()
    if (mass_BT := rollout.completions.mass_BT) is not None:
        metrics["sampling/kept_mass"] = mass_BT[rollout.completions.mask_BT].exp().mean().item()
    texts = [rollout.texts_B[start : start + group] for start in range(0, len(rollout.texts_B), group)]
    metrics["completions/unique"] = sum(len(set(row)) / group for row in texts) / len(texts)
    assert trained.old_log_probs_BT is not None
    assert trained.old_entropy_BT is not None
    entropy_N, old_N = trained.old_entropy_BT[trained.mask_BT].double(), trained.old_log_probs_BT[trained.mask_BT]
    if not len(old_N):  # all completions are cut off and masked
        return metrics
    return metrics | {
        "entropy/behaviour": entropy_N.mean().item(),
        "entropy/behaviour_p80": entropy_N.quantile(0.8).item(),
        "probability/below_0.1": (old_N.exp() < 0.1).double().mean().item(),
    }


def _lengths(lengths_B: Tensor, right_B: Tensor, truncated_B: Tensor) -> dict[str, float]:
    metrics = {
        "length/mean": lengths_B.mean().item(),
        "length/std": lengths_B.std().item(),
        "length/p95": lengths_B.quantile(0.95).item(),
        "truncation/share": truncated_B.double().mean().item(),
    }
    for name, rows_B in (("right", right_B), ("wrong", ~right_B)):
        if rows_B.any():
            metrics[f"length/{name}_mean"] = lengths_B[rows_B].mean().item()
            metrics[f"length/{name}_p95"] = lengths_B[rows_B].quantile(0.95).item()
            metrics[f"truncation/{name}"] = truncated_B[rows_B].double().mean().item()
    return metrics
