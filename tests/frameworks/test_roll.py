"""ROLL's dialect: each of its own ways matters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_batches import ByOptions

from grpolab.frameworks.roll import FRAMEWORK
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, policy_loss

PG = {name: {"pg_variant": name} for name in ("vanilla", "ppo", "tis", "topr", "cispo", "kimi15")}


def batch(log_ratio: list[list[float]], mask: list[list[int]], advantages: list[list[float]]) -> LossInputs:
    """Sequences with these log ratios; the old log-probs are -1."""
    mask_BT, log_ratio_BT = torch.tensor(mask, dtype=torch.bool), torch.tensor(log_ratio, dtype=torch.double)
    return LossInputs(
        log_probs_BT=(log_ratio_BT - 1).requires_grad_(),
        old_log_probs_BT=torch.full_like(log_ratio_BT, -1.0),
        advantages=torch.tensor(advantages, dtype=torch.double),
        mask_BT=mask_BT,
        totals=Totals.of(mask_BT),
        reference_log_probs_BT=torch.full_like(log_ratio_BT, -1.0),
        rewards_B1=torch.ones(len(mask), 1, dtype=torch.double),
        entropy_BT=torch.ones_like(log_ratio_BT),
    )


RAGGED = batch(
    [[0.1, 0.5, 9.0], [-0.4, 9.0, 9.0], [9.0, 9.0, 9.0]], [[1, 1, 0], [1, 0, 0], [0, 0, 0]], [[1], [-2], [3]]
)
ROLL = ByOptions(FRAMEWORK)
loss_of, metrics_of = ROLL.loss, ROLL.metrics


def core_loss(options: dict[str, Any], inputs: LossInputs) -> float:
    return ROLL.core_loss(options, inputs).item()


def test_token_mean_adds_up_padding() -> None:
    """The ratio is 1 there, so that an advantage of its own at padding enters as it is."""
    options = {"loss_agg_mode": "token-mean"}
    per_token = replace(RAGGED, advantages=torch.tensor([[1.0, 1, 7], [-2, 0, 0], [0, 0, 0]], dtype=torch.double))
    extra = loss_of(options, per_token).item() - core_loss(options, per_token)
    assert extra == pytest.approx(-7 / 3, rel=1e-12)
    # A sequence's advantage is ROLL's times the mask: nothing to add.
    assert loss_of(options, RAGGED).item() == pytest.approx(core_loss(options, RAGGED), rel=1e-12)


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_sequences_are_divided_by_their_number_and_1e_8(mode: str) -> None:
    ratio = loss_of({"loss_agg_mode": mode}, RAGGED).item() / core_loss({"loss_agg_mode": mode}, RAGGED)
    expected = 1.0 if mode.endswith("norm") else 2 / (2 + 1e-8)  # two sequences have a token
    assert ratio == pytest.approx(expected, rel=1e-12)


def test_entropy_is_averaged_as_the_loss_is() -> None:
    """The mean over two sequences of an entropy of 1."""
    bonus = loss_of({}, RAGGED).item() - loss_of({"entropy_loss_coef": 1.0}, RAGGED).item()
    assert bonus == pytest.approx(2 / (2 + 1e-8), rel=1e-12)


def test_a_batch_without_tokens() -> None:
    empty = replace(RAGGED, mask_BT=torch.zeros(3, 3, dtype=torch.bool), totals=Totals(3, 0, 0, 0, 3, 1))
    assert loss_of({}, empty).item() == 0
    for level, undefined in (("token", True), ("seq", False)):
        found = loss_of({"loss_agg_mode": "token-mean", "importance_sampling": level}, empty)
        assert found.isnan()
        gradient_BT = torch.autograd.grad(found, empty.log_probs_BT)[0]
        assert gradient_BT.isnan().all() if undefined else (gradient_BT == 0).all()


def test_padding_that_is_not_finite_poisons_the_loss() -> None:
    nan_BT = torch.where(RAGGED.mask_BT, -1.0, torch.nan)
    for bad in (replace(RAGGED, old_log_probs_BT=nan_BT), replace(RAGGED, reference_log_probs_BT=nan_BT)):
        options = {"use_kl_loss": True, "kl_loss_coef": 0.1}
        assert loss_of(options, bad).isnan()
        assert policy_loss(FRAMEWORK.objective(options), bad).total.isfinite()


def test_a_segment_ratio_is_1_at_padding_whatever_stands_there() -> None:
    bad = replace(RAGGED, old_log_probs_BT=torch.where(RAGGED.mask_BT, -1.0, torch.nan))
    ratio_BT = policy_loss(FRAMEWORK.objective({"ratio_type": "segment"}), bad, FRAMEWORK.recipe).ratio
    assert (ratio_BT[~RAGGED.mask_BT] == 1).all()


def test_dual_clip_follows_pg_clip_even_beside_the_range() -> None:
    options = {"dual_clip_loss": True, "pg_clip": 0.5, "use_pg_clip_range": True, "pg_clip_high": 0.28}
    objective = FRAMEWORK.objective(options)
    assert (objective.dual_clip, objective.epsilon, objective.epsilon_high) == (2.0, 0.2, 0.28)


def test_kl_is_cut_at_ten_and_then_has_no_gradient() -> None:
    options = {"use_kl_loss": True, "kl_loss_coef": 0.5}
    near, far = batch([[0.0]], [[1]], [[0.0]]), batch([[-30.0]], [[1]], [[0.0]])
    assert loss_of(options, near).item() == 0
    found = loss_of(options, far)
    assert found.item() == pytest.approx(0.5 * 10, rel=1e-7)
    assert torch.autograd.grad(found, far.log_probs_BT)[0].item() == 0
    assert metrics_of({}, far)["actor/kl_loss@sum"] == pytest.approx(10, rel=1e-7)  # reported though it is off


ONE_TOKEN = batch([[1.0, 0, 0, 0]], [[1, 0, 0, 0]], [[1.0]])  # ratio e, three positions of padding


def test_clip_fractions_of_the_workers() -> None:
    """rlvr divides what it counts everywhere by the tokens, the base worker by all positions; `clipfrac` is gated."""
    token, sequence = metrics_of({}, ONE_TOKEN), metrics_of({"importance_sampling": "seq"}, ONE_TOKEN)
    assert token["actor/ppo_ratio_clipfrac@sum"] == token["actor/ppo_ratio_high_clipfrac@sum"] == 1
    assert token["actor/ppo_ratio_clipfrac"] == 0.25
    assert sequence["actor/ppo_ratio_clipfrac@sum"] == 4  # a share above 1
    negative = metrics_of({}, replace(ONE_TOKEN, advantages=-ONE_TOKEN.advantages))
    assert negative["actor/ppo_ratio_clipfrac@sum"] == 1
    assert (token["actor/clipfrac@sum"], negative["actor/clipfrac@sum"]) == (pytest.approx(1), 0)


def test_clipfrac_is_averaged_as_the_loss_is() -> None:
    rows = batch([[1.0, 1.0], [0.0, 0.0]], [[1, 1], [1, 0]], [[1.0], [1.0]])
    found = {
        mode: metrics_of({"loss_agg_mode": mode}, rows)["actor/clipfrac@sum"]
        for mode in ("token-mean", "seq-mean-token-sum")
    }
    assert found["token-mean"] == pytest.approx(2 / 3)
    assert found["seq-mean-token-sum"] == pytest.approx(1)  # two tokens in two sequences: a sum, no share


def test_distances_to_the_old_policy() -> None:
    found = metrics_of({"loss_agg_mode": "token-mean"}, RAGGED)
    assert found["actor/policykl@sum"] == pytest.approx((0.1 + 0.5 - 0.4) / 3)  # + log ratio: verl's ppo_kl is - it
    assert found["actor/approxkl@sum"] == pytest.approx((0.01 + 0.25 + 0.16) / 6)
    assert found["actor/ratio_max@max"] == pytest.approx(torch.tensor(0.5).exp().item())
    assert found["actor/ratio_min@min"] == pytest.approx(torch.tensor(-0.4).exp().item())
    means = ((torch.tensor([0.1, 0.5]).exp().mean() + torch.tensor(-0.4).exp()) / 2).item()
    assert found["actor/ratio_mean@sum"] == pytest.approx(means)
    assert found["actor/ratio_mean"] == pytest.approx(means * 2 / 3)  # base: the empty sequence counts


def test_the_pg_worker_counts_all_positions() -> None:
    tis, cispo = metrics_of(PG["tis"], ONE_TOKEN), metrics_of(PG["cispo"], ONE_TOKEN)
    assert tis["actor/tis_upper_clipfrac"] == 0.25
    assert cispo["actor/cispo_cispo_clip_upper"] == pytest.approx(1.1)
    masked = metrics_of({"pg_variant": "cispo", "cispo_use_unified_mask": True}, ONE_TOKEN)
    assert masked["actor/cispo_cispo_masked_positive_tokens"] == 0.25
    assert masked["actor/cispo_cispo_kept_tokens"] == 0.75
    topr = metrics_of(PG["topr"], replace(ONE_TOKEN, rewards_B1=-torch.ones(1, 1, dtype=torch.double)))
    assert topr["actor/topr_negative_upper_clipfrac"] == 0.25
    kimi = metrics_of(PG["kimi15"], ONE_TOKEN)
    assert kimi["actor/kimi15_kimi15_log_ratio_mean"] == pytest.approx(0.25)


def test_pg_losses_by_hand() -> None:
    """The gradient of one token is minus its weight; kimi's penalty takes tau times the log ratio from it."""
    weights = {"vanilla": 1.0, "tis": 1.0, "topr": 1.0, "cispo": 1.1, "kimi15": 1 - 0.1, "ppo": 0.0}
    masked: dict[str, Any] = {"pg_variant": "cispo", "cispo_use_unified_mask": True}  # PPO's clip would act here
    for options, weight in [(masked, 0.0), *((PG[name], weight) for name, weight in weights.items())]:
        found = loss_of(options, ONE_TOKEN)
        gradient_BT = torch.autograd.grad(found, ONE_TOKEN.log_probs_BT)[0]
        assert gradient_BT.tolist()[0] == pytest.approx([-weight, 0, 0, 0], rel=1e-7)


def test_values_that_roll_does_not_have_are_refused() -> None:
    for options in ({"loss_agg_mode": "mean"}, {"importance_sampling": "sequence"}, {"pg_variant": "reinforce"}):
        with pytest.raises(ValueError, match="ROLL has no"):
            FRAMEWORK.objective(options)
    for unplaced in ({"rl_loss_coef": 0.5}, {"is_weight": {"weight_type": "segment"}}):
        with pytest.raises(ValueError, match="no place on our axes"):
            FRAMEWORK.objective(unplaced)
