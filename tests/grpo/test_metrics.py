"""What an update is said to have done is what it did: counted here a second time, token by token."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_settings

from grpolab import meanings, vocabulary
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, surrogate
from grpolab.grpo.metrics import UpdateTensors, histograms, update_metrics
from grpolab.grpo.ratios import sequence_ratio, token_ratio
from grpolab.meanings import CLIP_METRIC, convention
from grpolab.paths import project_root
from grpolab.settings.objective import Objective

ALL_ON = tiny_settings().diagnostics
ALL_OFF = tiny_settings(diagnostics={"quantiles": False, "counterfactual": False}).diagnostics
CONVENTIONS = {convention(framework) for framework in CLIP_METRIC}  # the learner's
UPDATE_NAMES = {name for name, metric in meanings.METRICS.items() if metric.kind == "update"} - CONVENTIONS


def test_the_page_of_metrics_is_what_the_vocabulary_says() -> None:
    """Else: `grpolab vocabulary > docs/metrics.md`."""
    assert (project_root() / "docs" / "metrics.md").read_text() == meanings.page()
    rows = [line for line in meanings.page().splitlines() if line.startswith("| `")]
    assert {line.count("|") for line in rows} == {3, 5}, "a | within a cell would end it"
    evaluations = {name for name, metric in meanings.METRICS.items() if metric.kind == "evaluation"}
    assert evaluations == {*vocabulary.EXACT_EVALUATION, *vocabulary.SAMPLED_EVALUATION}


def update_of(
    level: str = "token", kernel: str = "clipped", delta: float | None = None, **changes: Any
) -> UpdateTensors:
    """Sequences of one to nine tokens; a third of the advantages is zero."""
    draw = torch.Generator().manual_seed(1)
    lengths_B = torch.tensor([9, 3, 5, 1, 7, 2, 9, 4, 6, 8, 1, 2]).repeat(4)
    mask_BT = torch.arange(9) < lengths_B[:, None]
    values = {
        "mask_BT": mask_BT,
        "advantages_B": torch.tensor([1.0, -0.5, 0.0, 2.0, -1.0, 0.0, 0.7, -0.1, 0.0, 0.3, -2.0, 0.0]).repeat(4),
        "log_ratio_BT": torch.where(mask_BT, 0.6 * torch.randn(48, 9, generator=draw), 0.0),
        "old_log_probs_BT": -torch.rand(48, 9, generator=draw) * 3,
        "entropy_BT": torch.rand(48, 9, generator=draw),
        "kl_ref_BT": None,
        **changes,
    }
    log_ratio_BT = values["log_ratio_BT"]
    ratio = {"token": token_ratio, "sequence": sequence_ratio}[level](log_ratio_BT, mask_BT)
    A_B1 = values["advantages_B"][:, None]
    old_BT = values["old_log_probs_BT"]
    objective = Objective.of(level, kernel, 0.2, 0.28, delta, "min_positive", "sequence_mean", 0.0)
    inputs = LossInputs(old_BT + log_ratio_BT, old_BT, A_B1, mask_BT, Totals.of(mask_BT))
    return UpdateTensors(**values, surrogate=surrogate(objective, inputs, log_ratio_BT, ratio))


def tokens_of(update: UpdateTensors, level: str) -> list[tuple[int, int, float, float]]:
    """(row, position, ratio at the level, advantage) of every token."""
    found = []
    for row, T in enumerate(update.mask_BT.sum(1).tolist()):
        logs = update.log_ratio_BT[row, :T].double()
        for position in range(T):
            log_ratio = logs[position] if level == "token" else logs.mean()
            found.append((row, position, math.exp(log_ratio), update.advantages_B[row].item()))
    return found


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_clip_fractions(level: str) -> None:
    update = update_of(level)
    found = update_metrics(update, ALL_ON)
    tokens = tokens_of(update, level)
    low = [r < 0.8 and A < 0 for _, _, r, A in tokens]
    high = [r > 1.28 and A > 0 for _, _, r, A in tokens]
    assert any(low)
    assert any(high)
    nonzero = [A != 0 for *_, A in tokens]
    assert found["clip/active_low"] == pytest.approx(np.mean(low))
    assert found["clip/active_high"] == pytest.approx(np.mean(high))
    assert found["clip/active"] == pytest.approx(found["clip/active_low"] + found["clip/active_high"])
    assert found["clip/active_low_nz"] == pytest.approx(sum(low) / sum(nonzero))
    assert found["clip/active_high_nz"] == pytest.approx(sum(high) / sum(nonzero))
    assert found["clip/active_nz"] == pytest.approx((sum(low) + sum(high)) / sum(nonzero))
    assert found["clip/out_of_range"] == pytest.approx(np.mean([r < 0.8 or r > 1.28 for _, _, r, _ in tokens]))
    assert found["clip/out_of_range"] > found["clip/active"]
    clipped_rows = [row for (row, *_), a, b in zip(tokens, low, high, strict=True) if a or b]
    lengths_B = update.mask_BT.sum(1).tolist()
    assert found["clip/active_sequences"] == pytest.approx(
        np.mean([clipped_rows.count(row) / T for row, T in enumerate(lengths_B)])
    )
    assert found["clip/outer"] == found["clip/capped"] == 0


def test_counterfactuals_say_what_another_clip_would_have_done() -> None:
    found = update_metrics(update_of(), ALL_ON)
    for level, epsilons in vocabulary.COUNTERFACTUAL_EPSILONS.items():
        for epsilon in epsilons:
            clipped = [
                (r > 1 + epsilon and A > 0) or (r < 1 - epsilon and A < 0)
                for _, _, r, A in tokens_of(update_of(), level)
            ]
            assert found[vocabulary.counterfactual(level, epsilon)] == pytest.approx(np.mean(clipped))
    assert found["cf/token_0.1"] > found["cf/token_0.2"] > found["cf/token_0.28"] > 0


def test_ratios_divergences_and_probabilities() -> None:
    update = update_of(kl_ref_BT=torch.full((48, 9), 0.25))
    found = update_metrics(update, ALL_ON)
    r_N = np.array([r for _, _, r, _ in tokens_of(update, "token")])
    assert found["ratio/ess"] == pytest.approx(r_N.sum() ** 2 / (len(r_N) * (r_N**2).sum()))
    assert found["ratio/token_mean"] == pytest.approx(r_N.mean())
    assert (found["ratio/token_min"], found["ratio/token_max"]) == pytest.approx((r_N.min(), r_N.max()))
    assert found["kl_old/k1"] == pytest.approx(-np.log(r_N).mean(), abs=1e-6)
    assert found["kl_old/k3"] == pytest.approx((r_N - 1 - np.log(r_N)).mean(), rel=1e-4)
    assert found["kl_ref/k3"] == 0.25
    assert found["entropy/current"] == pytest.approx(update.entropy_BT[update.mask_BT].mean().item())
    rows = {row: r for row, _, r, _ in tokens_of(update, "sequence")}
    A_B = update.advantages_B.tolist()
    assert found["ratio/sequence_max"] == pytest.approx(max(rows.values()))
    assert found["ratio/sequence_mean_pos"] == pytest.approx(np.mean([r for row, r in rows.items() if A_B[row] > 0]))
    assert found["ratio/sequence_mean_neg"] == pytest.approx(np.mean([r for row, r in rows.items() if A_B[row] < 0]))
    p_old = update.old_log_probs_BT.exp()
    up = [p_old[row, t].item() for row, t, r, A in tokens_of(update, "token") if r > 1.28 and A > 0]
    assert found["p_old/up_clipped"] == pytest.approx(np.mean(up))
    assert found["p_old/all"] == pytest.approx(p_old[update.mask_BT].mean().item())


def test_quantiles_by_level_and_sign() -> None:
    update = update_of()
    found = update_metrics(update, ALL_ON)
    for level, (sign, factor) in itertools.product(vocabulary.LEVELS, (("pos", 1), ("neg", -1))):
        chosen = [(row, r) for row, _, r, A in tokens_of(update, level) if factor * A > 0]
        logs = np.log([r for _, r in chosen] if level == "token" else list(dict(chosen).values()))
        for name, at in vocabulary.QUANTILES.items():
            assert found[f"ratio/{level}_{name}_{sign}"] == pytest.approx(np.exp(np.quantile(logs, at)), rel=1e-5)


def test_names_are_the_vocabularys_and_what_cannot_be_measured_is_absent() -> None:
    assert update_metrics(update_of(kl_ref_BT=torch.zeros(48, 9)), ALL_ON).keys() == UPDATE_NAMES - {
        "loss",
        "grad_norm",
        "learning_rate",
    }
    idle = update_metrics(update_of(advantages_B=torch.zeros(48)), ALL_ON)
    assert not {"clip/active_nz", "p_old/up_clipped", "ratio/sequence_mean_pos", "ratio/token_p50_neg"} & idle.keys()
    assert all(math.isfinite(value) for value in idle.values())
    cheap = update_metrics(update_of(), ALL_OFF).keys()
    assert not any(name.startswith("cf/") or "_p50_" in name for name in cheap)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_histograms(level: str) -> None:
    update = update_of(level)
    found = histograms(update)
    assert found.keys() == meanings.HISTOGRAM_FIELDS.keys()
    edges = np.array([0.0, *vocabulary.EXCESS_EDGES])
    for at, (sign, factor) in itertools.product(vocabulary.LEVELS, (("pos", 1), ("neg", -1))):
        excess = [(r - 1) * factor for _, _, r, A in tokens_of(update, at) if factor * A > 0]
        counts = found[f"excess/{at}_{sign}"]
        assert len(counts) == len(edges) + 1
        assert counts == np.bincount(np.searchsorted(edges, excess), minlength=len(edges) + 1).tolist()
    clipped = {(row, t) for row, t, r, A in tokens_of(update, level) if (r > 1.28 and A > 0) or (r < 0.8 and A < 0)}
    lengths_B = update.mask_BT.sum(1).tolist()
    for name, place in (("position", lambda row, t: t), ("position_end", lambda row, t: lengths_B[row] - 1 - t)):
        counts, active, sums = np.zeros(9), np.zeros(9), np.zeros(9)
        for row, t, r, _ in tokens_of(update, "token"):
            counts[place(row, t)] += 1
            active[place(row, t)] += (row, t) in clipped
            sums[place(row, t)] += abs(math.log(r))
        assert found[f"{name}/count"] == counts.tolist()
        assert found[f"{name}/active"] == active.tolist()
        assert found[f"{name}/abs_log_ratio"] == pytest.approx(sums.tolist(), rel=1e-5)
    p_old_N = update.old_log_probs_BT[update.mask_BT].exp()
    assert found["probability/counts"] == np.histogram(p_old_N, bins=10, range=(0, 1))[0].tolist()
