"""Metrics of the distance between sampler and trainer, and of what `sampler_rejection` leaves out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grpolab.grpo.kl import k1, k3
from grpolab.grpo.loss import LossInputs
from grpolab.grpo.ratios import masked_log_ratio, row_mean
from grpolab.grpo.rejection import kept_tokens
from grpolab.settings.objective import SamplerRejection
from grpolab.vocabulary import GAP_EDGES

BOUND = 20.0  # of |log ratio| before an exponential, as in verl
UNLIKELY = 0.1  # probability below which tokens are counted apart


@torch.no_grad()
def mismatch(first_pass: Sequence[LossInputs], policy: str) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the gap of trainer and sampler on a batch: its metrics, and its size by the sampler's probability.

    `policy`: `old`, the trainer's before the update, or `current`, as it was in the first pass, where the old log-probs
    are not its own. The weights are trainer / sampler. KL, chi-squared and perplexities as verl's
    `compute_offpolicy_metrics`; the effective sample size is (sum w)^2 / (N sum w^2), 1 where all weights are equal.
    """
    log_ratios, probabilities = [], []
    for inputs in first_pass:
        assert inputs.sampler_log_probs_BT is not None
        trainer_BT = inputs.old_log_probs_BT if policy == "old" else inputs.log_probs_BT
        log_ratios.append(masked_log_ratio(trainer_BT.double(), inputs.sampler_log_probs_BT.double(), inputs.mask_BT))
        probabilities.append(inputs.sampler_log_probs_BT[inputs.mask_BT].double().exp())
    log_ratio_BT, probability_N = torch.cat(log_ratios), torch.cat(probabilities)
    mask_BT = torch.cat([inputs.mask_BT for inputs in first_pass])
    log_ratio_N, sequence_B = log_ratio_BT[mask_BT], log_ratio_BT.sum(1)[mask_BT.any(1)]
    perplexity_ratio_B = (-row_mean(log_ratio_BT, mask_BT)[:, 0]).exp()[mask_BT.any(1)]
    values = {
        "gap/k1": k1(log_ratio_N).mean(),
        "gap/k3": k3(log_ratio_N.clamp(-BOUND, BOUND)).mean(),
        "gap/chi2": _weights(log_ratio_N).square().mean() - 1,
        "gap/chi2_sequence": _weights(sequence_B).square().mean() - 1,
        "gap/perplexity_ratio": perplexity_ratio_B.mean(),
        "gap/ess": _effective_share(_weights(log_ratio_N)),
        "gap/ess_sequence": _effective_share(_weights(sequence_B)),
    }
    metrics = dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
    edges = torch.tensor(GAP_EDGES, dtype=torch.double, device=mask_BT.device)
    bins_N = torch.bucketize(probability_N, edges, right=True).cpu()  # on a GPU bincount is not deterministic
    sums = {"count": torch.ones_like(log_ratio_N), "abs_log_ratio": log_ratio_N.abs()}
    sums |= {"ratio": _weights(log_ratio_N)}
    lists = {f"gap/{name}": bins_N.bincount(values_N.cpu(), len(edges) + 1).tolist() for name, values_N in sums.items()}
    return metrics, lists


def _weights(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-BOUND, BOUND).exp()


def _effective_share(weight_N: Tensor) -> Tensor:
    return weight_N.sum().square() / (len(weight_N) * weight_N.square().sum())


@torch.no_grad()
def rejection_metrics(rule: SamplerRejection, inputs: LossInputs) -> dict[str, float]:
    """Return how much of a minibatch is rejected: of its tokens, of its sequences, and of what the tokens would teach.

    A token's signal is |A| (1 - p), the size of the gradient of A log pi at its own logit, p its old probability.
    """
    mask_BT, old_BT, sampler_BT = inputs.mask_BT, inputs.old_log_probs_BT, inputs.sampler_log_probs_BT
    assert sampler_BT is not None
    kept_BT = kept_tokens(rule, inputs.advantages, old_BT, inputs.log_probs_BT, sampler_BT, mask_BT)
    rejected_BT = mask_BT & ~kept_BT
    probability_BT = torch.where(mask_BT, old_BT, 0.0).double().exp()
    signal_BT = inputs.advantages.abs() * (1 - probability_BT).clamp(min=0) * mask_BT
    unlikely_BT = mask_BT & (probability_BT < UNLIKELY)
    counts = torch.stack(
        [
            *(rejected_BT.sum(), mask_BT.sum(), (rejected_BT.any(1) & ~kept_BT.any(1)).sum(), mask_BT.any(1).sum()),
            *((rejected_BT & unlikely_BT).sum(), unlikely_BT.sum(), (signal_BT * rejected_BT).sum(), signal_BT.sum()),
        ]
    ).tolist()
    names = "tokens", "sequences", "unlikely", "signal"
    parts = zip(names, counts[::2], counts[1::2], strict=True)
    return {f"rejection/{name}": part / whole for name, part, whole in parts if whole}
