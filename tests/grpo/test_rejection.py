"""Rejection beside the sampler's weight, against verl, prime-rl, SkyRL, AReaL and M2PO on random tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tiny import tiny_parts, tiny_settings
from torch import Tensor

from grpolab.frameworks.objectives import make_objective
from grpolab.frameworks.verl_correction import reject
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, policy_loss
from grpolab.grpo.mismatch import rejection_metrics
from grpolab.grpo.rejection import kept_tokens
from grpolab.settings.objective import SamplerRejection
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import Composer

B, T = 12, 9


def random_inputs(seed: int = 0, noise: float = 0.3) -> LossInputs:
    draw = torch.Generator().manual_seed(seed)
    mask_BT = torch.arange(T) < torch.randint(1, T + 1, (B, 1), generator=draw)
    sampler_BT = -3 * torch.rand(B, T, generator=draw, dtype=torch.double)
    old_BT = sampler_BT + noise * torch.randn(B, T, generator=draw, dtype=torch.double)
    new_BT = old_BT + noise * torch.randn(B, T, generator=draw, dtype=torch.double)
    return LossInputs(
        log_probs_BT=torch.where(mask_BT, new_BT, torch.nan).requires_grad_(),  # padding may hold anything
        old_log_probs_BT=torch.where(mask_BT, old_BT, torch.inf),
        advantages=torch.randn(B, 1, generator=draw, dtype=torch.double),
        mask_BT=mask_BT,
        totals=Totals.of(mask_BT),
        sampler_log_probs_BT=torch.where(mask_BT, sampler_BT, torch.nan),
    )


def rule(policy: str = "old", m2_budget: float | None = None, **bounds: list[float]) -> SamplerRejection:
    return SamplerRejection.model_validate({"policy": policy, "bounds": bounds or None, "m2_budget": m2_budget})


def kept(of: SamplerRejection, inputs: LossInputs) -> Tensor:
    assert inputs.sampler_log_probs_BT is not None
    old, new, sampler = inputs.old_log_probs_BT, inputs.log_probs_BT, inputs.sampler_log_probs_BT
    return kept_tokens(of, inputs.advantages, old, new, sampler, inputs.mask_BT)


def log_ratio_of(policy: str, inputs: LossInputs) -> Tensor:
    assert inputs.sampler_log_probs_BT is not None
    trainer_BT = inputs.old_log_probs_BT if policy == "old" else inputs.log_probs_BT.detach()
    return trainer_BT - inputs.sampler_log_probs_BT


VERL: dict[
    str, tuple[str, dict[str, Any]]
] = {  # `rollout_rs` -> `rollout_rs_threshold`, bounds of sampler / trainer, and ours, of trainer / sampler
    "token_k1": ("0.8_1.6", {"token": [1 / 1.6, 1 / 0.8]}),
    "seq_sum_k1": ("0.5_2.5", {"sequence": [1 / 2.5, 1 / 0.5]}),
    "seq_mean_k1": ("0.9_1.08", {"geometric": [1 / 1.08, 1 / 0.9]}),
    "token_k1,seq_mean_k1": ("0.5_2.0,0.9_1.1", {"token": [0.5, 2.0], "geometric": [1 / 1.1, 1 / 0.9]}),
}


@pytest.mark.parametrize("options", VERL)
def test_verl_keeps_the_same_tokens(options: str) -> None:
    thresholds, bounds = VERL[options]
    for seed in range(5):
        inputs = random_inputs(seed)
        log_ratio_BT = torch.where(inputs.mask_BT, log_ratio_of("old", inputs), 0.0)
        theirs_BT, metrics = reject(options, thresholds, log_ratio_BT, inputs.mask_BT)
        assert torch.equal(kept(rule(**bounds), inputs), theirs_BT)
        assert 0 < metrics["rollout_rs_masked_fraction"] < 1
        ours = rejection_metrics(rule(**bounds), inputs)
        assert ours["rejection/tokens"] == pytest.approx(metrics["rollout_rs_masked_fraction"])


def test_prime_rl_and_skyrl_drop_tokens_and_sequences_by_the_same_ratios() -> None:
    """prime-rl f870f3cb (`default_loss_fn`, current policy); SkyRL a9564572 (`off_policy_correction`, old policy)."""
    bounds: dict[str, Any] = {
        "token": [0.6, 1.7],
        "geometric": [0.85, 1.2],
        "worst": [0.4, 2.5],
        "sequence": [0.3, 3.0],
    }
    for seed, policy in enumerate(("current", "old", "current", "old")):
        inputs = random_inputs(seed)
        kept_BT = kept(rule(policy, **bounds), inputs)
        for row, mask_T in enumerate(inputs.mask_BT):
            ratio_N = log_ratio_of(policy, inputs)[row][mask_T].exp()
            product, mean = ratio_N.prod(), ratio_N.prod() ** (1 / len(ratio_N))
            stays = 0.85 <= mean <= 1.2 and ratio_N.min() >= 0.4 and ratio_N.max() <= 2.5 and 0.3 <= product <= 3.0
            expected_N = (ratio_N >= 0.6) & (ratio_N <= 1.7) & bool(stays)
            assert torch.equal(kept_BT[row][mask_T], expected_N)
        assert not kept_BT[~inputs.mask_BT].any()


def algorithm_1(squares_N: list[float], counts_N: list[bool], budget: float) -> list[bool]:
    """M2PO (2510.01161), word for word: while the mean is above the budget, leave out the largest."""
    kept_N, left = [True] * len(squares_N), {n for n, counts in enumerate(counts_N) if counts}
    while left and math.fsum(squares_N[n] for n in left) / len(left) > budget:
        worst = max(left, key=lambda n: squares_N[n])
        kept_N[worst] = False
        left.remove(worst)
    return kept_N


@pytest.mark.parametrize("policy", ["current", "old"])
@pytest.mark.parametrize("budget", [1e-9, 0.01, 0.04, 10.0])
def test_m2po_leaves_out_the_tokens_that_algorithm_1_leaves_out(policy: str, budget: float) -> None:
    inputs = random_inputs(3)
    log_ratio_N, mask_BT = log_ratio_of(policy, inputs)[inputs.mask_BT], inputs.mask_BT
    moved_N = log_ratio_N * inputs.advantages.expand_as(mask_BT)[mask_BT] > 0
    counts_N = moved_N if policy == "current" else torch.ones_like(moved_N)  # AReaL's `m2_threshold` counts all
    expected = algorithm_1(log_ratio_N.square().tolist(), counts_N.tolist(), budget)
    found = kept(rule(policy, budget), inputs)[mask_BT].tolist()
    assert found == expected
    assert (all(found), any(found)) == (budget == 10.0, policy == "current" or budget > 1e-9)


def test_a_rejected_token_gives_no_gradient_and_counts_in_the_denominator() -> None:
    inputs, rejection = random_inputs(1), rule(token=[0.8, 1.25])
    gradients: list[Tensor] = []
    for objective in (make_objective(), make_objective(sampler_rejection=rejection)):
        inputs.log_probs_BT.grad = None
        policy_loss(objective, inputs).total.backward()
        assert inputs.log_probs_BT.grad is not None
        gradients.append(inputs.log_probs_BT.grad.clone())
    kept_BT = kept(rejection, inputs)
    assert 0 < kept_BT.sum() < inputs.mask_BT.sum()
    torch.testing.assert_close(gradients[1], torch.where(kept_BT, gradients[0], 0.0), rtol=0, atol=0)


def test_what_rejection_costs_is_counted() -> None:
    mask_BT = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    old_BT = torch.tensor([[0.05, 0.5, 0.5, 1.0], [0.5, 0.05, 1.0, 1.0]]).double().log()
    gap_BT = torch.tensor([[1.0, 0.0, 0.0, 0.0], [-1.0, 1.0, 5.0, 5.0]]).double()
    inputs = LossInputs(
        *(old_BT, old_BT, torch.tensor([[2.0], [-1.0]]).double(), mask_BT, Totals.of(mask_BT)),
        sampler_log_probs_BT=old_BT - gap_BT,
    )
    found = rejection_metrics(rule(token=[0.5, 2.0]), inputs)
    assert found["rejection/tokens"] == 3 / 6
    assert found["rejection/sequences"] == 1 / 2
    assert found["rejection/unlikely"] == 1.0
    signal = [2 * 0.95, 2 * 0.5, 2 * 0.5, 0.0, 0.5, 0.95]
    assert found["rejection/signal"] == pytest.approx((signal[0] + signal[4] + signal[5]) / sum(signal))


def test_a_run_records_its_rejections_and_only_where_it_has_a_rule() -> None:
    for rejection in (None, {"policy": "current", "bounds": {"token": [0.9, 1.1]}, "m2_budget": None}):
        parts = tiny_parts(old_log_probs="sampler", sampler_noise=0.3, sampler_rejection=rejection)
        rollout = parts.learner.collect(parts.state)
        (minibatch,) = parts.learner.minibatches(parts.state.policy, rollout.batch, 0)
        metrics = parts.learner.metrics(parts.learner.update(parts.state, minibatch, 10))
        assert ("rejection/tokens" in metrics) == (rejection is not None)
    assert 0 < metrics["rejection/tokens"] < 1


REFUSED: dict[str, dict[str, Any]] = {
    "nothing is rejected": {"sampler_rejection": {"policy": "old", "bounds": None, "m2_budget": None}},
    "the first must be less": {"sampler_rejection": {"policy": "old", "bounds": {"token": [2, 1]}, "m2_budget": None}},
    "policy=old compares the sampler with itself": {
        "old_log_probs": "sampler",
        "sampler_rejection": {"policy": "old", "bounds": {"token": [0.5, 2]}, "m2_budget": None},
    },
    "sampler_rejection.m2_budget compares the tokens of a minibatch": {
        "micro_batch_size": 8,
        "sampler_rejection": {"policy": "current", "bounds": None, "m2_budget": 0.04},
    },
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_rule_that_cannot_be_meant_is_refused(sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        tiny_settings(**REFUSED[sentence])


def gradient_of_paper(name: str, inputs: LossInputs) -> Tensor:
    """The gradient of a preset's loss by the current log-probs, 0 at padding."""
    objective = resolve_run(Composer().compose([f"paper={name}"])).objective
    inputs.log_probs_BT.grad = None
    policy_loss(objective, inputs).total.backward()
    assert inputs.log_probs_BT.grad is not None
    return inputs.log_probs_BT.grad


def test_minirl_is_its_equation() -> None:
    """-1/G sum_t M sg(pi / mu) A log pi, the part old / mu of the weight at most 5, M by the ratio pi / old."""
    for seed, noise in enumerate((0.1, 0.3, 1.5)):
        inputs = random_inputs(seed, noise)
        mask_BT, A, of_sampler_BT = inputs.mask_BT, inputs.advantages, log_ratio_of("old", inputs).exp()
        ratio_BT = (inputs.log_probs_BT.detach() - inputs.old_log_probs_BT).exp()
        M_BT = ~((A > 0) & (ratio_BT > 1.27) | (A < 0) & (ratio_BT < 0.8))
        expected_BT = -A * M_BT * ratio_BT * of_sampler_BT.clamp(max=5) / B
        torch.testing.assert_close(gradient_of_paper("minirl", inputs), torch.where(mask_BT, expected_BT, 0.0))


def test_m2po_is_its_equation_5() -> None:
    inputs = random_inputs(2)
    assert inputs.sampler_log_probs_BT is not None
    inputs = LossInputs(**{**vars(inputs), "old_log_probs_BT": inputs.sampler_log_probs_BT})  # old_log_probs=sampler
    kept_BT, ratio_BT = kept(rule("current", 0.04), inputs), log_ratio_of("current", inputs).exp()
    assert 0 < kept_BT.sum() < inputs.mask_BT.sum()
    expected_BT = -inputs.advantages * kept_BT * ratio_BT / inputs.mask_BT.sum(1, keepdim=True) / B
    found_BT = gradient_of_paper("m2po", inputs)
    torch.testing.assert_close(found_BT, torch.where(inputs.mask_BT, expected_BT, 0.0))


def test_mis_po_gives_what_it_keeps_the_weight_1() -> None:
    inputs = random_inputs(4, noise=0.02)
    kept_BT = kept(rule(token=[0.5, 2.0], geometric=[0.996, 1.001]), inputs)
    assert 0 < kept_BT.sum() < inputs.mask_BT.sum()
    expected_BT = -inputs.advantages * kept_BT / inputs.mask_BT.sum()
    torch.testing.assert_close(gradient_of_paper("mis_po", inputs), expected_BT)
