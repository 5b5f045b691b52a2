"""ROLL's metrics under its workers' own names, for `dialects/roll.py`.

`@sum` in a name is ROLL's note for the log: add up over micro-batches, the denominator is already global. The base
worker's names have no such note; rlvr's and the agentic worker's names are the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpolab.learn.kl import k2
from grpolab.learn.objective import Loss, LossInputs, Objective

ROW_MEANS, TOKEN_MEAN = "sequence_mean_nonempty", "token_mean_minibatch"
# Numbers that the base worker reports without the note.
OF_BASE = (
    *("pg_loss@sum", "total_loss@sum", "kl_loss@sum", "approxkl@sum", "policykl@sum", "clipfrac@sum"),
    *("ratio_max@max", "ratio_min@min"),
)
Found = dict[str, Tensor | float]


@dataclass(frozen=True)
class Measured:
    """A minibatch after its loss, as ROLL's metrics see it."""

    objective: Objective
    inputs: LossInputs  # as the dialect prepared them
    loss: Loss
    average: Callable[[Tensor, str], Tensor]  # ROLL's `agg_loss` of per-token values by our name of its mode

    def metrics(self, policy: Tensor, reference_kl_BT: Tensor | None) -> dict[str, float]:
        """All that the workers of this kernel report; `policy` is the loss without KL and entropy."""
        found = self._common(policy, reference_kl_BT) | self._samples()
        for kernels, group in GROUPS:
            if self.objective.kernel in kernels:
                found |= group(self)
        tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
        values = torch.stack([value.double() for value in tensors.values()]).tolist()
        numbers: dict[str, Any] = found | dict(zip(tensors, values, strict=True))
        numbers |= {name.partition("@")[0]: numbers[name] for name in OF_BASE if name in numbers}
        return {f"actor/{name}": value for name, value in numbers.items()}

    @property
    def ratio_BT(self) -> Tensor:
        """The ratio, at padding too: 1, or the sequence's."""
        return self.loss.ratio.expand_as(self.inputs.mask_BT)

    @property
    def out_of_range(self) -> tuple[Tensor, Tensor]:
        """Ratios below and above the clip range, whatever the advantage and at padding too; (B, T) each, 0 or 1."""
        low_BT, high_BT = self.ratio_BT < 1 - self.objective.epsilon, self.ratio_BT > 1 + self.objective.epsilon_high
        return low_BT.float(), high_BT.float()

    def averaged(self, values_BT: Tensor) -> Tensor:
        """By the objective's own mode."""
        return self.average(values_BT, self.objective.aggregation)

    def over_all_rows(self, values_BT: Tensor) -> Tensor:
        """`masked_mean(dim=-1).mean()`: mean of rows' means, where an empty row counts as 0."""
        mask_BT = self.inputs.mask_BT
        means_B = (values_BT * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1)
        return torch.where(mask_BT.any(1), means_B, 0.0).mean()

    def _common(self, policy: Tensor, reference_kl_BT: Tensor | None) -> Found:
        mask_BT, log_ratio_BT = self.inputs.mask_BT, self.inputs.log_probs_BT - self.inputs.old_log_probs_BT
        kl: Found = {} if reference_kl_BT is None else {"kl_loss@sum": self.averaged(reference_kl_BT * mask_BT)}
        return kl | {
            "pg_loss@sum": policy,
            "weighted_pg_loss@sum": policy,
            "total_loss@sum": self.loss.total,
            "approxkl@sum": self.averaged(k2(log_ratio_BT) * mask_BT),
            "policykl@sum": self.averaged(log_ratio_BT * mask_BT),
            "ratio_max@max": (self.ratio_BT * mask_BT).max(),
            "ratio_min@min": (self.ratio_BT * mask_BT + (~mask_BT) * 1e10).min(),
            "ratio_mean@sum": self.average(self.ratio_BT, ROW_MEANS),
            "ratio_mean": self.over_all_rows(self.ratio_BT),
        }

    def _samples(self) -> Found:
        """How many sequences count, and their weights, which are all 1 here."""
        mask_BT = self.inputs.mask_BT
        valid = mask_BT.any(1).sum()
        weights: Found = {f"sample_weights_{name}": 1.0 for name in ("mean", "min", "max")}
        return {
            "valid_samples@sum": valid,
            "total_samples@sum": float(len(mask_BT)),
            "valid_sample_ratio": valid / len(mask_BT),
            "valid_sample_ratio@sum": valid / valid.new_tensor(self.inputs.totals.nonempty_sequences),
            **weights,
            **{f"{name}@{name.rpartition('_')[2]}": value for name, value in weights.items()},
        }


def clip_metrics(measured: Measured) -> Found:
    """Clip fractions: `ppo_ratio_*` by the ratio only, padding in the numerator; `clipfrac` where the loss changed.

    The base worker (no `@sum`) takes the mean over all positions.
    """
    low_BT, high_BT = measured.out_of_range
    found: Found = {}
    for name, clipped_BT in (("high", high_BT), ("low", low_BT), ("", low_BT + high_BT)):
        key = f"ppo_ratio_{name}_clipfrac".replace("__", "_")
        found[key] = clipped_BT.mean()
        found[f"{key}@sum"] = measured.average(clipped_BT, TOKEN_MEAN)
    ratio_BT, A, objective = measured.ratio_BT, measured.inputs.advantages, measured.objective
    clipped_BT = ratio_BT.clamp(1 - objective.epsilon, 1 + objective.epsilon_high)
    return found | {"clipfrac@sum": measured.averaged((clipped_BT * A < ratio_BT * A).float())}


def weight_metrics(measured: Measured) -> Found:
    """How often the weight was cut, over all positions; the pg worker's names of tis and cispo, for both."""
    low_BT, high_BT = measured.out_of_range
    objective = measured.objective
    least, most = 1 - objective.epsilon, 1 + objective.epsilon_high
    cut_BT = measured.ratio_BT.clamp(least, most)
    shares = {"lower": low_BT, "upper": high_BT, "total": low_BT + high_BT}
    found: Found = {f"tis_{name}_clipfrac": share_BT.mean() for name, share_BT in shares.items()}
    found |= {f"cispo_cispo_{name}_clipfrac": share_BT.mean() for name, share_BT in shares.items()}
    found |= {
        "tis_lower_bound": least,
        "tis_upper_bound": most,
        "cispo_cispo_epsilon_low": objective.epsilon,
        "cispo_cispo_epsilon_high": objective.epsilon_high,
        "cispo_cispo_clip_lower": least,
        "cispo_cispo_clip_upper": most,
        "cispo_cispo_use_unified_mask": float(objective.kernel == "cispo_masked"),
    }
    found["tis_clipped_ratio_mean@sum"] = measured.average(cut_BT, ROW_MEANS)
    found["cispo_clipped_ratio_mean"] = measured.over_all_rows(cut_BT)
    return found


def masked_metrics(measured: Measured) -> Found:
    """Shares of all positions that the unified mask left out and kept."""
    kernel = measured.loss.kernel
    return {
        "cispo_cispo_masked_positive_tokens": kernel.active_high.float().mean(),
        "cispo_cispo_masked_negative_tokens": kernel.active_low.float().mean(),
        "cispo_cispo_kept_tokens": (~(kernel.active_high | kernel.active_low)).float().mean(),
    }


def topr_metrics(measured: Measured) -> Found:
    """TOPR's two kinds of sequences, by their score: how many, how often cut, and the loss of each."""
    inputs, options, ratio_BT = measured.inputs, measured.objective.kernel_options, measured.ratio_BT
    assert inputs.rewards_B1 is not None
    scores_B1 = inputs.rewards_B1
    positive_B1, negative_B1 = scores_B1 > 0, scores_B1 <= 0
    gradient_BT = -inputs.advantages * inputs.log_probs_BT
    loss = {
        "positive": measured.averaged(gradient_BT * positive_B1),
        "negative": measured.averaged(ratio_BT.clamp(0, 1) * gradient_BT * negative_B1),
    }
    found: Found = {}
    for name, chosen_B1 in (("positive", positive_B1), ("negative", negative_B1)):
        found[f"topr_{name}_samples@sum"] = chosen_B1.sum()
        found[f"topr_{name}_ratio"] = chosen_B1.sum() / (len(scores_B1) + 1e-8)
        found[f"topr_{name}_weight"] = options[f"{name}_weight"]
        found[f"topr_{name}_loss"] = loss[name]
        found[f"topr_weighted_{name}_loss"] = options[f"{name}_weight"] * loss[name]
    cut = {"lower": (ratio_BT < 0) & negative_B1, "upper": (ratio_BT > 1) & negative_B1}
    found |= {f"topr_negative_{name}_clipfrac": cut_BT.float().mean() for name, cut_BT in cut.items()}
    found["topr_negative_total_clipfrac"] = (cut["lower"] | cut["upper"]).float().mean()
    return found | {"topr_scores_mean": scores_B1.mean(), "topr_scores_std": sample_std(scores_B1)}


def sample_std(values: Tensor) -> Tensor:
    """torch's std, NaN for a single value without its warning."""
    return ((values - values.mean()).square().sum() / (values.numel() - 1)).sqrt()


def kimi_metrics(measured: Measured) -> Found:
    """Sizes of the policy gradient and of the penalty, over all positions, from log(ratio + 1e-8)."""
    tau = measured.objective.kernel_options["coefficient"]
    log_ratio_BT = (measured.ratio_BT + 1e-8).log()
    gradient = (measured.inputs.advantages * log_ratio_BT).abs().mean()
    penalty = (tau * log_ratio_BT.square() * 0.5).mean()
    return {
        "kimi15_kimi15_tau": tau,
        "kimi15_kimi15_log_ratio_mean": log_ratio_BT.mean(),
        "kimi15_kimi15_log_ratio_std": sample_std(log_ratio_BT),
        "kimi15_kimi15_log_ratio_abs_mean": log_ratio_BT.abs().mean(),
        "kimi15_kimi15_policy_grad_magnitude": gradient,
        "kimi15_kimi15_kl_reg_magnitude": penalty,
        "kimi15_kimi15_reg_ratio": penalty / (gradient + 1e-8),
    }


# Kernels -> what the workers that have them report beside the common metrics.
GROUPS: tuple[tuple[set[str], Callable[[Measured], Found]], ...] = (
    ({"clipped"}, clip_metrics),
    ({"cispo", "cispo_masked"}, weight_metrics),
    ({"cispo_masked"}, masked_metrics),
    ({"topr"}, topr_metrics),
    ({"dro"}, kimi_metrics),
)
