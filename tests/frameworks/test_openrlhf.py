"""OpenRLHF's dialect: each of its own ways matters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from grpolab.frameworks.openrlhf import FRAMEWORK
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import Loss, LossInputs, policy_loss

CORRECTED = {"enable_vllm_is_correction": True}


def batch(**changed: Any) -> LossInputs:
    """Sequences of two, one and no tokens; log ratios .1, -.3 and .5, the reference .2 above the policy."""
    mask_BT = torch.tensor([[1, 1], [1, 0], [0, 0]], dtype=torch.bool)
    log_probs_BT = torch.tensor([[-0.9, -1.3], [-0.5, -1], [-1, -1]], dtype=torch.double)
    given: dict[str, Any] = {
        "log_probs_BT": log_probs_BT.clone().requires_grad_(),
        "old_log_probs_BT": torch.full_like(log_probs_BT, -1.0),
        "advantages": torch.tensor([[1.0], [-2.0], [3.0]], dtype=torch.double),
        "mask_BT": mask_BT,
        "totals": Totals.of(mask_BT),
        "reference_log_probs_BT": log_probs_BT + 0.2,
        "sampler_log_probs_BT": torch.tensor([[-1.5, -0.5], [-1.2, -1], [-1, -1]], dtype=torch.double),
        "entropy_BT": torch.tensor([[0.3, 0.6], [1.5, 9], [9, 9]], dtype=torch.double),
    }
    return LossInputs(**{**given, **changed})


def loss_of(options: dict[str, Any], inputs: LossInputs) -> Loss:
    return policy_loss(FRAMEWORK.objective(options), inputs, FRAMEWORK.recipe)


def test_kl_and_entropy_are_means_over_tokens_where_the_loss_is_one_over_sequences() -> None:
    for options in ({"policy_loss_type": "gspo"}, {"token_level_loss": False}, {}):
        plain = loss_of(options, batch()).total.item()
        k3 = math.exp(0.2) - 1.2
        with_kl = loss_of({**options, "kl_use_loss": True, "kl_init_coef": 0.5, "kl_estimator": "k3"}, batch())
        assert with_kl.total.item() - plain == pytest.approx(0.5 * k3, rel=1e-5)
        uneven = batch(reference_log_probs_BT=torch.tensor([[-0.7, -1.1], [0.5, 0], [0, 0]], dtype=torch.double))
        with_kl = loss_of({**options, "kl_use_loss": True, "kl_init_coef": 0.5, "kl_estimator": "k1"}, uneven)
        assert with_kl.total.item() - plain == pytest.approx(0.5 * -(0.2 + 0.2 + 1.0) / 3, rel=1e-5)
        with_entropy = loss_of({**options, "entropy_coef": 0.1}, batch()).total.item()
        assert with_entropy - plain == pytest.approx(-0.1 * (0.3 + 0.6 + 1.5) / 3, rel=1e-9)


def test_kl_is_float32_within_ten_for_every_estimator() -> None:
    far = batch(reference_log_probs_BT=torch.full((3, 2), 40.0, dtype=torch.double))
    for estimator, value in (("k1", -10.0), ("k2", 10.0), ("k3", 10.0)):
        kl_BT = loss_of({"kl_use_loss": True, "kl_estimator": estimator}, far).kl_ref_BT
        assert kl_BT is not None
        assert kl_BT.dtype == torch.float
        assert kl_BT.unique().tolist() == [value]


def test_log_ratio_is_cut_at_20_but_not_in_gspo() -> None:
    far = batch(old_log_probs_BT=torch.full((3, 2), -31.0, dtype=torch.double))
    assert loss_of({}, far).ratio.max().item() == math.exp(20)
    assert loss_of({"policy_loss_type": "gspo"}, far).ratio.max().item() == pytest.approx(math.exp(30.5))


def test_padding_that_is_not_finite_poisons_the_loss() -> None:
    bad = batch(old_log_probs_BT=torch.tensor([[-1, -1], [-1, math.nan], [-1, -1]], dtype=torch.double))
    assert loss_of({}, bad).total.isnan()
    assert policy_loss(FRAMEWORK.objective({}), bad).total.isfinite()


def test_nothing_to_average_is_nan() -> None:
    empty = torch.zeros(3, 2, dtype=torch.bool)
    for options in ({}, {"token_level_loss": False}):
        assert loss_of(options, batch(mask_BT=empty, totals=Totals.of(empty))).total.isnan()


def test_corrections() -> None:
    """Weights e^.5, e^-.5 in the first row, e^.2 in the second: a row's mean of 1, its tokens out of bounds."""
    plain_BT = loss_of({}, batch()).per_token
    bounds = {**CORRECTED, "vllm_is_truncated_threshold": (0.9, 1.25)}
    expected = {
        "tis": [1.25, 0.9, math.exp(0.2)],
        "icepop": [0.0, 0.0, math.exp(0.2)],
        "seq-mask-tis": [math.exp(0.5), math.exp(-0.5), math.exp(0.2)],
    }
    for kind, weights in expected.items():
        found_BT = loss_of({**bounds, "vllm_is_correction_type": kind}, batch()).per_token
        assert (found_BT / plain_BT)[batch().mask_BT].tolist() == pytest.approx(weights)


@torch.no_grad()
def test_metrics() -> None:
    found = FRAMEWORK.metrics(FRAMEWORK.objective(CORRECTED), batch(), loss_of(CORRECTED, batch()))
    # Ratios 1.1, .7 with A = 1 and 1.6 with A = -2: the clip would act on the other side of each.
    assert found["ppo_clip_ratio"] == 0
    assert found["ppo_kl"] == pytest.approx(-(0.1 - 0.3 + 0.5) / 3)  # the sign is the other way round
    assert found["vllm_kl"] == pytest.approx(-(0.5 - 0.5 + 0.2) / 3)
    turned = batch(advantages=-batch().advantages)
    assert FRAMEWORK.metrics(FRAMEWORK.objective({}), turned, loss_of({}, turned)) == pytest.approx(
        {"ppo_clip_ratio": 2 / 3, "ppo_kl": -0.1}
    )


def test_global_counts_are_the_totals() -> None:
    twice = replace(batch().totals, tokens=6, nonempty_sequences=4)
    for options in ({}, {"token_level_loss": False}):
        whole = loss_of(options, batch()).total.item()
        assert loss_of(options, batch(totals=twice)).total.item() == pytest.approx(whole / 2, rel=1e-12)


def test_values_that_it_does_not_have_are_refused() -> None:
    for options in ({"policy_loss_type": "cispo"}, {"vllm_is_correction_type": "rs"}, {"dual_clip": 1.0}):
        with pytest.raises(ValueError, match=r"OpenRLHF has no|dual_clip"):
            FRAMEWORK.objective(options)
