"""slime's dialect: each of its own ways matters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from grpolab.frameworks.slime import FRAMEWORK
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import Loss, LossInputs, policy_loss


def batch(**changed: Any) -> LossInputs:
    """Sequences of tokens 0 and 2 (a gap between), one and no token; log ratios .1, -.3 and .5."""
    mask_BT = torch.tensor([[1, 0, 1], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    log_probs_BT = torch.tensor([[-0.9, -1, -1.3], [-0.5, -1, -1], [-1, -1, -1]], dtype=torch.double)
    given: dict[str, Any] = {
        "log_probs_BT": log_probs_BT.clone().requires_grad_(),
        "old_log_probs_BT": torch.full_like(log_probs_BT, -1.0),
        "advantages": torch.tensor([[1.0], [-2.0], [3.0]], dtype=torch.double),
        "mask_BT": mask_BT,
        "totals": Totals.of(mask_BT),
        "reference_log_probs_BT": log_probs_BT + 0.2,
        "sampler_log_probs_BT": torch.full_like(log_probs_BT, -2.0),
        "entropy_BT": torch.ones_like(log_probs_BT),
    }
    return LossInputs(**{**given, **changed})


def loss_of(arguments: dict[str, Any], inputs: LossInputs) -> Loss:
    return policy_loss(FRAMEWORK.objective(arguments), inputs, FRAMEWORK.recipe)


def metrics_of(arguments: dict[str, Any], inputs: LossInputs) -> dict[str, float]:
    return FRAMEWORK.metrics(FRAMEWORK.objective(arguments), inputs, loss_of(arguments, inputs))


def test_an_empty_sample_counts_as_a_sample_and_as_a_token() -> None:
    terms = [-math.exp(0.1), -math.exp(-0.3), 2 * math.exp(0.5)]
    assert loss_of({}, batch()).total.item() == pytest.approx(((terms[0] + terms[1]) / 2 + terms[2]) / 3)
    assert loss_of({"calculate_per_token_loss": True}, batch()).total.item() == pytest.approx(sum(terms) / (3 + 1))


def test_samples_end_at_their_last_token_and_gaps_poison() -> None:
    nan, old = math.nan, -1.0
    behind = torch.tensor([[old, old, old], [old, nan, nan], [old, nan, nan]], dtype=torch.double)
    assert loss_of({}, batch(old_log_probs_BT=behind)).total.item() == loss_of({}, batch()).total.item()
    gap = torch.tensor([[old, nan, old], [old, old, old], [old, old, old]], dtype=torch.double)
    assert loss_of({}, batch(old_log_probs_BT=gap)).total.isnan()
    assert policy_loss(FRAMEWORK.objective({}), batch(old_log_probs_BT=gap)).total.isfinite()


def test_a_gap_is_no_part_of_the_sequence_ratio() -> None:
    gap = torch.tensor([[-1.0, -3.0, -1.0], [-1, -1, -1], [-1, -1, -1]], dtype=torch.double)
    ratio = loss_of({"advantage_estimator": "gspo"}, batch(old_log_probs_BT=gap)).ratio
    assert ratio[:2, 0].tolist() == pytest.approx([math.exp(-0.1), math.exp(0.5)])


def test_entropy_is_averaged_as_the_loss_is() -> None:
    for arguments, mean in (({}, 2 / 3), ({"calculate_per_token_loss": True}, 3 / 4)):
        bonus = loss_of(arguments, batch()).total - loss_of({**arguments, "entropy_coef": 1.0}, batch()).total
        assert bonus.item() == pytest.approx(mean)


def kl_terms(kind: str, inputs: LossInputs, **more: Any) -> torch.Tensor:
    arguments = {"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": kind, **more}
    kl_BT = loss_of(arguments, inputs).kl_ref_BT
    assert kl_BT is not None
    return kl_BT.detach()


def test_only_low_var_kl_is_cut_and_the_ratio_comes_before_the_cut() -> None:
    far = batch(reference_log_probs_BT=torch.full((3, 3), 5.0, dtype=torch.double))
    assert kl_terms("k3", far).max() > 100
    assert kl_terms("low_var_kl", far).max() == 10
    assert kl_terms("k3", far).dtype == torch.float
    near = batch()
    weighted_BT = kl_terms("low_var_kl", near, use_unbiased_kl=True, advantage_estimator="gspo")
    k3 = math.exp(0.2) - 1.2
    # The ratio is the token's, in GSPO too.
    assert weighted_BT[near.mask_BT].tolist() == pytest.approx([math.exp(x) * k3 for x in (0.1, -0.3, 0.5)], rel=1e-5)
    assert kl_terms("low_var_kl", far, use_unbiased_kl=True).max() == 10


def test_k1_in_the_loss_has_the_gradient_one() -> None:
    inputs = batch(advantages=torch.zeros(3, 1, dtype=torch.double))
    total = loss_of({"use_kl_loss": True, "kl_loss_coef": 1.0, "calculate_per_token_loss": True}, inputs).total
    gradient_BT = torch.autograd.grad(total, inputs.log_probs_BT)[0]
    assert gradient_BT[inputs.mask_BT].tolist() == pytest.approx([1 / 4] * 3)


def test_the_off_policy_mask_looks_at_the_old_policy() -> None:
    """By the sampler's numbers row 1 did not drift, by the old policy it fell by .3 at A < 0."""
    arguments = {"use_opsm": True, "opsm_delta": 0.05}
    drifted = batch(old_log_probs_BT=torch.tensor([[-1.0, -1, -1], [-0.2, -1, -1], [-1, -1, -1]], dtype=torch.double))
    assert loss_of(arguments, drifted).per_token[1].tolist() == [0, 0, 0]
    core = policy_loss(FRAMEWORK.objective(arguments), drifted)
    assert core.per_token[1, 0] != 0
    assert metrics_of(arguments, drifted)["opsm_clipfrac"] == pytest.approx(1 / 3)  # one token of one sample of three


def test_metrics_are_averaged_as_the_loss_is() -> None:
    turned = batch(advantages=-batch().advantages)
    means = metrics_of({}, turned)
    assert means["pg_clipfrac"] == pytest.approx((1 / 2 + 1) / 3)
    assert means["ppo_kl"] == pytest.approx(-((0.1 - 0.3) / 2 + 0.5) / 3)
    assert metrics_of({"calculate_per_token_loss": True}, turned)["pg_clipfrac"] == pytest.approx(2 / 4)
    # cispo counts a cut weight whatever the advantage is.
    arguments = {"advantage_estimator": "cispo"}
    assert metrics_of(arguments, batch())["pg_clipfrac"] == metrics_of(arguments, turned)["pg_clipfrac"] != 0
    tis = metrics_of({"use_tis": True}, batch())
    assert (tis["tis"], tis["tis_clipfrac"]) == pytest.approx((math.e * 2 / 3, 2 / 3))  # two samples that have tokens
    assert tis["train_rollout_logprob_abs_diff"] == pytest.approx(2 / 3)


def test_values_that_it_does_not_have_are_refused() -> None:
    for arguments in ({"advantage_estimator": "rloo"}, {"kl_loss_type": "abs"}, {"eps_clip_c": 0.5}):
        with pytest.raises(ValueError, match=r"slime has no|eps_clip_c"):
            FRAMEWORK.objective(arguments)
