"""What an update is said to have done is what it did: counted here a second time, token by token."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_settings

from grpolab import meanings, vocabulary
from grpolab.frameworks.objectives import make_objective
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, surrogate
from grpolab.grpo.metrics import UpdateTensors, histograms, update_metrics
from grpolab.grpo.ratios import sequence_ratio, token_ratio
from grpolab.meanings import CLIP_METRIC, convention
from grpolab.paths import project_root

ALL_ON = tiny_settings().diagnostics
ALL_OFF = tiny_settings(diagnostics={"quantiles": False, "counterfactual": False}).diagnostics
CONVENTIONS = {convention(framework) for framework in CLIP_METRIC}  # the learner's
UPDATE_NAMES = {name for name, metric in meanings.METRICS.items() if metric.kind == "update"} - CONVENTIONS
LEVELS_AND_SIGNS = list(itertools.product(vocabulary.LEVELS, (("pos", 1), ("neg", -1))))


def test_the_page_of_metrics_is_what_the_vocabulary_says() -> None:
    """Else: `grpolab vocabulary > docs/metrics.md`."""
    assert (project_root() / "docs" / "metrics.md").read_text() == meanings.page()
    rows = [line for line in meanings.page().splitlines() if line.startswith("| `")]
    assert {line.count("|") for line in rows} == {3, 5}, "a | within a cell would end it"
    # In logs of other programs alone; of other tasks; of tasks whose answers can be counted.
    of_others = {"eval/reward", "eval/other_accuracy", "eval/maj_at_k"}
    evaluations = {name for name, metric in meanings.METRICS.items() if metric.kind == "evaluation"} - of_others
    passes = {f"eval/pass_at_{k}" for k in vocabulary.PASS_AT}
    assert evaluations - passes == {*vocabulary.EXACT_EVALUATION, *vocabulary.SAMPLED_EVALUATION}


def update_of(level: str = "token", **changes: Any) -> UpdateTensors:
    """Sequences of one to nine tokens; a third of the advantages is zero."""
    draw = torch.Generator().manual_seed(1)
    lengths_B = torch.tensor([9, 3, 5, 1, 7, 2, 9, 4, 6, 8, 1, 2]).repeat(4)
    mask_BT = torch.arange(9) < lengths_B[:, None]
    A_B1 = torch.tensor([1.0, -0.5, 0.0, 2.0, -1.0, 0.0, 0.7, -0.1, 0.0, 0.3, -2.0, 0.0]).repeat(4)[:, None]
    log_ratio_BT = torch.where(mask_BT, 0.6 * torch.randn(48, 9, generator=draw), 0.0)
    old_BT, entropy_BT = -torch.rand(48, 9, generator=draw) * 3, torch.rand(48, 9, generator=draw)
    inputs = LossInputs(old_BT + log_ratio_BT, old_BT, A_B1, mask_BT, Totals.of(mask_BT), entropy_BT=entropy_BT)
    inputs = replace(inputs, **changes)
    ratio = {"token": token_ratio, "sequence": sequence_ratio}[level](log_ratio_BT, mask_BT)
    objective = make_objective(level, "clipped", 0.2, 0.28, None, "min_positive", "sequence_mean", 0.0)
    return UpdateTensors(inputs, log_ratio_BT, surrogate(objective, inputs, log_ratio_BT, ratio))


def tokens_of(update: UpdateTensors, level: str) -> list[tuple[int, int, float, float]]:
    """(row, position, ratio at the level, advantage) of every token."""
    found = []
    for row, T in enumerate(update.inputs.mask_BT.sum(1).tolist()):
        logs = update.log_ratio_BT[row, :T].double()
        for position in range(T):
            log_ratio = logs[position] if level == "token" else logs.mean()
            found.append((row, position, math.exp(log_ratio), update.inputs.advantages[row, 0].item()))
    return found


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_clip_fractions(level: str) -> None:
    update = update_of(level)
    found, tokens = update_metrics(update, ALL_ON), tokens_of(update, level)
    low = [r < 0.8 and A < 0 for _, _, r, A in tokens]
    high = [r > 1.28 and A > 0 for _, _, r, A in tokens]
    active, nonzero = np.logical_or(low, high), sum(A != 0 for *_, A in tokens)
    assert any(low)
    assert any(high)
    for name, mask in {"active_low": low, "active_high": high, "active": active}.items():
        assert found[f"clip/{name}"] == pytest.approx(np.mean(mask))
        assert found[f"clip/{name}_nz"] == pytest.approx(sum(mask) / nonzero)
    assert found["clip/out_of_range"] == pytest.approx(np.mean([r < 0.8 or r > 1.28 for _, _, r, _ in tokens]))
    assert found["clip/out_of_range"] > found["clip/active"]
    rows = [row for (row, *_), clipped in zip(tokens, active, strict=True) if clipped]
    shares = [rows.count(row) / T for row, T in enumerate(update.inputs.mask_BT.sum(1).tolist())]
    assert found["clip/active_sequences"] == pytest.approx(np.mean(shares))
    assert found["clip/outer"] == found["clip/capped"] == 0


def test_counterfactuals_say_what_another_clip_would_have_done() -> None:
    update = update_of()
    found = update_metrics(update, ALL_ON)
    for level, epsilons in vocabulary.COUNTERFACTUAL_EPSILONS.items():
        for epsilon in epsilons:
            tokens = tokens_of(update, level)
            clipped = [(r > 1 + epsilon and A > 0) or (r < 1 - epsilon and A < 0) for _, _, r, A in tokens]
            assert found[vocabulary.counterfactual(level, epsilon)] == pytest.approx(np.mean(clipped))
    assert found["cf/token_0.1"] > found["cf/token_0.2"] > found["cf/token_0.28"] > 0


def test_ratios_divergences_and_probabilities() -> None:
    update = update_of(reference_log_probs_BT=update_of().inputs.log_probs_BT + math.log(2))
    found = update_metrics(update, ALL_ON)
    mask_BT, tokens = update.inputs.mask_BT, tokens_of(update, "token")
    r_N = np.array([r for _, _, r, _ in tokens])
    assert found["ratio/ess"] == pytest.approx(r_N.sum() ** 2 / (len(r_N) * (r_N**2).sum()))
    assert found["ratio/token_mean"] == pytest.approx(r_N.mean())
    assert (found["ratio/token_min"], found["ratio/token_max"]) == pytest.approx((r_N.min(), r_N.max()))
    assert found["kl_old/k1"] == pytest.approx(-np.log(r_N).mean(), abs=1e-6)
    assert found["kl_old/k3"] == pytest.approx((r_N - 1 - np.log(r_N)).mean(), rel=1e-4)
    assert found["kl_ref/k3"] == pytest.approx(2 - 1 - math.log(2), rel=1e-6)
    assert update.inputs.entropy_BT is not None
    assert found["entropy/current"] == pytest.approx(update.inputs.entropy_BT[mask_BT].mean().item())
    rows = {row: (r, A) for row, _, r, A in tokens_of(update, "sequence")}
    assert found["ratio/sequence_max"] == pytest.approx(max(r for r, _ in rows.values()))
    assert found["ratio/sequence_mean_pos"] == pytest.approx(np.mean([r for r, A in rows.values() if A > 0]))
    assert found["ratio/sequence_mean_neg"] == pytest.approx(np.mean([r for r, A in rows.values() if A < 0]))
    p_old = update.inputs.old_log_probs_BT.exp()
    assert found["p_old/all"] == pytest.approx(p_old[mask_BT].mean().item())
    up = [p_old[row, t].item() for row, t, r, A in tokens if r > 1.28 and A > 0]
    assert found["p_old/up_clipped"] == pytest.approx(np.mean(up))


def test_quantiles_by_level_and_sign() -> None:
    update = update_of()
    found = update_metrics(update, ALL_ON)
    for level, (sign, factor) in LEVELS_AND_SIGNS:
        chosen = [(row, r) for row, _, r, A in tokens_of(update, level) if factor * A > 0]
        logs = np.log([r for _, r in chosen] if level == "token" else list(dict(chosen).values()))
        for name, at in vocabulary.QUANTILES.items():
            assert found[f"ratio/{level}_{name}_{sign}"] == pytest.approx(np.exp(np.quantile(logs, at)), rel=1e-5)


def test_names_are_the_vocabularys_and_what_cannot_be_measured_is_absent() -> None:
    names = update_metrics(update_of(reference_log_probs_BT=torch.zeros(48, 9)), ALL_ON).keys()
    elsewhere = {name for name in UPDATE_NAMES if name.startswith("rejection/")} | {"grad_cosine"}
    assert names == UPDATE_NAMES - {"loss", "grad_norm", "learning_rate"} - elsewhere
    idle = update_metrics(update_of(advantages=torch.zeros(48, 1)), ALL_ON)
    assert not {"clip/active_nz", "p_old/up_clipped", "ratio/sequence_mean_pos", "ratio/token_p50_neg"} & idle.keys()
    assert all(math.isfinite(value) for value in idle.values())
    cheap = update_metrics(update_of(), ALL_OFF).keys()
    assert not any(name.startswith("cf/") or "_p50_" in name for name in cheap)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_histograms(level: str) -> None:
    update = update_of(level)
    found, tokens = histograms(update), tokens_of(update, level)
    assert found.keys() == meanings.HISTOGRAM_FIELDS.keys() - {"gap/count", "gap/abs_log_ratio", "gap/ratio"}
    edges = np.array([0.0, *vocabulary.EXCESS_EDGES])
    for at, (sign, factor) in LEVELS_AND_SIGNS:
        excess = [(r - 1) * factor for _, _, r, A in tokens_of(update, at) if factor * A > 0]
        expected = np.bincount(np.searchsorted(edges, excess), minlength=len(edges) + 1).tolist()
        assert found[f"excess/{at}_{sign}"] == expected
    clipped = {(row, t) for row, t, r, A in tokens if (r > 1.28 and A > 0) or (r < 0.8 and A < 0)}
    lengths_B = update.inputs.mask_BT.sum(1).tolist()
    for name, place in (("position", lambda row, t: t), ("position_end", lambda row, t: lengths_B[row] - 1 - t)):
        counts, active, sums = np.zeros((3, 9))
        for row, t, r, _ in tokens_of(update, "token"):
            counts[place(row, t)] += 1
            active[place(row, t)] += (row, t) in clipped
            sums[place(row, t)] += abs(math.log(r))
        assert found[f"{name}/count"] == counts.tolist()
        assert found[f"{name}/active"] == active.tolist()
        assert found[f"{name}/abs_log_ratio"] == pytest.approx(sums.tolist(), rel=1e-5)
    p_old_N = update.inputs.old_log_probs_BT[update.inputs.mask_BT].exp()
    assert found["probability/counts"] == np.histogram(p_old_N, bins=10, range=(0, 1))[0].tolist()
