"""TRL's dialect: each of its own ways matters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_batches import ByOptions
from tiny import tiny_parts

from grpolab.frameworks.trl import FRAMEWORK, as_float32, reward_metrics
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs


@pytest.mark.parametrize(
    "option",
    [{"loss_type": "gmpo"}, {"importance_sampling_level": "segment"}, {"vllm_importance_sampling_mode": "row_mask"}],
)
def test_what_trl_does_not_have_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        FRAMEWORK.objective({"use_vllm": True, **option})


def batch(log_ratio: list[list[float]], mask: list[list[int]], A: list[float], **more: Any) -> LossInputs:
    """Sequences with these log ratios and one advantage each; the current log-probs are -1."""
    mask_BT, log_ratio_BT = torch.tensor(mask, dtype=torch.bool), torch.tensor(log_ratio, dtype=torch.double)
    now_BT = torch.full_like(log_ratio_BT, -1.0)
    given: dict[str, Any] = {
        "log_probs_BT": now_BT.clone().requires_grad_(),
        "old_log_probs_BT": now_BT - log_ratio_BT,
        "advantages": torch.tensor(A, dtype=torch.double)[:, None],
        "mask_BT": mask_BT,
        "totals": Totals.of(mask_BT),
        "reference_log_probs_BT": torch.full_like(log_ratio_BT, -1.7),
        "entropy_BT": torch.ones_like(log_ratio_BT),
    }
    return LossInputs(**{**given, **more})


RAGGED = batch([[0.3, -0.4, 9.0], [0.5, 9.0, 9.0], [9.0] * 3], [[1, 1, 0], [1, 0, 0], [0, 0, 0]], [1.0, -2.0, 3.0])
TRL = ByOptions(FRAMEWORK)
loss_of, core_loss_of, metrics_of = TRL.loss, TRL.core_loss, TRL.metrics


def test_cap_of_cispo_is_epsilon_high_itself() -> None:
    """Ratios 1.35, .67 and 1.65, all above .2; the loss is .2 A, because log pi is -1."""
    assert loss_of({"loss_type": "cispo"}, RAGGED).item() == pytest.approx(0.2 * (1 + 1 - 2) / 3, abs=1e-15)
    capped = loss_of({"loss_type": "cispo", "epsilon_high": 1.5}, RAGGED)
    assert capped.item() == pytest.approx((math.exp(0.3) + math.exp(-0.4) - 2 * 1.5) / 3)
    assert core_loss_of({"loss_type": "cispo", "epsilon_high": 1.5}, RAGGED).item() != pytest.approx(capped.item())
    assert metrics_of({"loss_type": "cispo", "epsilon_high": 1.5}, RAGGED)["cispo_clip_ratio"] == 0
    assert metrics_of({"loss_type": "cispo"}, RAGGED)["cispo_clip_ratio"] == pytest.approx(2 / 3)


def test_temperatures_of_sapo_are_float32() -> None:
    one = batch([[0.7]], [[1]], [-1.0])
    tau = as_float32(1.05)
    expected = 4 / tau / (1 + math.exp(-tau * (math.exp(0.7) - 1)))
    assert loss_of({"loss_type": "sapo"}, one).item() == pytest.approx(expected, rel=1e-14)
    assert core_loss_of({"loss_type": "sapo"}, one).item() != pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dirt", [math.nan, -math.inf, -2000.0])
def test_what_is_not_finite_at_padding_poisons_the_loss(dirt: float) -> None:
    old_BT = torch.where(RAGGED.mask_BT, RAGGED.old_log_probs_BT, dirt)
    poisoned = replace(RAGGED, old_log_probs_BT=old_BT)
    assert loss_of({}, poisoned).isnan()
    assert core_loss_of({}, poisoned).isfinite()


def test_k3_is_multiplied_with_the_ratio_and_its_gradient() -> None:
    """q = ref - new = -.7; the gradient of beta r k3 is beta r (k3 + 1 - e^q), that is beta r times -q."""
    inputs = batch([[0.3]], [[1]], [0.0])
    k3, r = math.exp(-0.7) + 0.7 - 1, math.exp(0.3)
    for corrected, value, gradient in ((True, r * k3, r * 0.7), (False, k3, 1 - math.exp(-0.7))):
        loss = loss_of({"beta": 0.5, "use_bias_correction_kl": corrected}, inputs)
        assert loss.item() == pytest.approx(0.5 * value)
        assert torch.autograd.grad(loss, inputs.log_probs_BT)[0].item() == pytest.approx(0.5 * gradient)
        assert metrics_of({"beta": 0.5, "use_bias_correction_kl": corrected}, inputs)["kl"] == pytest.approx(value)


def test_the_entropy_bonus_is_a_mean_of_its_own_over_the_tokens_that_are_learnt_from() -> None:
    entropy_BT = torch.tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]], dtype=torch.double)
    for loss_type in ("grpo", "dapo", "dr_grpo", "luspo"):
        for share, mean in ((1.0, 7 / 3), (0.5, 3.0), (0.2, 4.0)):
            options = {"loss_type": loss_type, "top_entropy_quantile": share}
            inputs = replace(RAGGED, entropy_BT=entropy_BT)
            bonus = loss_of(options, inputs) - loss_of({**options, "entropy_coef": 0.1}, inputs)
            assert bonus.item() == pytest.approx(0.1 * mean)
    assert "policy_loss" not in metrics_of({}, inputs)
    found = metrics_of({"entropy_coef": 0.1}, inputs)
    assert found["policy_loss"] == pytest.approx(loss_of({}, inputs).item())
    assert (found["entropy_coef"], found["entropy"]) == pytest.approx((0.1, 7 / 3))


def test_the_entropy_quantile_is_float32_and_can_leave_out_the_token_that_it_is() -> None:
    """1.1 in float32 is more than 1.1, .9 in float32 is less than .9."""
    for entropy, kept in ((1.1, 0.0), (0.9, 1.0)):
        inputs = batch([[0.0]], [[1]], [-1.0], entropy_BT=torch.full((1, 1), entropy, dtype=torch.double))
        assert loss_of({"top_entropy_quantile": 0.2}, inputs).item() == kept


def test_row_means_and_token_counts_of_every_loss_type() -> None:
    """Terms of the rows: -e^.3 clipped to -1.2, -e^-.4; 2 e^.5; nothing."""
    first, second, third = -1.2, -math.exp(-0.4), 2 * math.exp(0.5)
    together = first + second + third
    expected = {
        "grpo": ((first + second) / 2 + third) / 3,
        "bnpo": together / 3,
        "dapo": together / 3,
        "dr_grpo": together / (3 * 3),
        "luspo": together / 3,
    }
    for loss_type, value in expected.items():
        assert loss_of({"loss_type": loss_type}, RAGGED).item() == pytest.approx(value), loss_type


def test_the_token_count_is_float32() -> None:
    third = replace(RAGGED, totals=replace(RAGGED.totals, rollout_tokens=10 / 3))
    assert loss_of({}, third).item() == pytest.approx(
        core_loss_of({}, third).item() * (10 / 3) / as_float32(10 / 3), 1e-14
    )


def test_clip_shares_count_tokens_or_sequences_by_the_level_of_the_ratio() -> None:
    """One clipped row and one without a token: half of the sequences, all of the tokens."""
    inputs = batch([[0.5, 0.5], [0.5, 0.5]], [[1, 1], [0, 0]], [1.0, 1.0])
    for level, share in (("sequence", 0.5), ("token", 1.0)):
        found = metrics_of({"importance_sampling_level": level}, inputs)
        assert found["clip_ratio/region_mean"] == found["clip_ratio/high_mean"] == share
        assert (found["clip_ratio/high_max"], found["clip_ratio/low_min"]) == (1, 0)


def test_completions_of_one_token_are_counted_without_their_mask() -> None:
    """The example of TRL's own defect: entropy 3 and share 1/2, where the masked means are 1 and 1/3."""
    entropy_BT = torch.tensor([[1.0], [1.0], [1.0], [9.0]], dtype=torch.double)
    inputs = batch([[1.0], [0.01], [0.01], [1.0]], [[1], [1], [1], [0]], [1.0] * 4, entropy_BT=entropy_BT)
    found = metrics_of({}, inputs)
    assert (found["entropy"], found["clip_ratio/region_mean"]) == (3.0, 0.5)
    assert metrics_of({}, batch([[0.01], [1.0]], [[1], [0]], [1.0, 1.0]))["clip_ratio/high_max"] == 1  # a masked row's


def test_clip_shares_look_at_the_ratio_after_delta() -> None:
    inputs = batch([[1.0, -1.0]], [[1, 1]], [1.0])
    assert metrics_of({}, inputs)["clip_ratio/high_mean"] == 0.5
    assert metrics_of({"delta": 1.1}, inputs)["clip_ratio/high_mean"] == 0
    inputs = batch([[0.0]], [[1]], [-1.0])
    assert metrics_of({"delta": 0.7}, inputs)["clip_ratio/low_mean"] == 1


def sampled(*log_weights: float, **more: Any) -> LossInputs:
    """One sequence on policy with these log weights of old against sampler."""
    inputs = batch([[0.0] * len(log_weights)], [[1] * len(log_weights)], [1.0])
    sampler_BT = inputs.old_log_probs_BT - torch.tensor([log_weights], dtype=torch.double)
    return replace(inputs, sampler_log_probs_BT=sampler_BT, **more)


def test_a_token_that_the_sampler_could_not_score_has_weight_one() -> None:
    options = {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"}
    inputs = sampled(0.5, math.nan)
    assert loss_of(options, inputs).item() == pytest.approx(-(math.exp(0.5) + 1) / 2)
    found = metrics_of(options, inputs)
    assert found["sampling/importance_sampling_ratio/min"] == 1
    assert found["sampling/sampling_logp_difference/mean"] == pytest.approx(0.5)  # not counted there
    fell = sampled(0.5, math.nan, advantages=torch.tensor([[-1.0]], dtype=torch.double))
    assert loss_of({"off_policy_mask_threshold": -0.3}, fell).item() == 0  # mean log(sampler / policy) is -.25
    assert loss_of({"off_policy_mask_threshold": -0.2}, fell).item() == 1


def test_the_sampler_enters_vespo_inside_its_product() -> None:
    """W = e^(.5 + .2), and no weight outside."""
    inputs = sampled(0.5, 0.2)
    phi = math.exp(3 + 2 * 0.7 - 3 * math.exp(0.7))
    options = {"loss_type": "vespo", "use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"}
    assert loss_of(options, inputs).item() == pytest.approx(phi, rel=1e-6)  # the sampler's numbers are float32
    assert metrics_of(options, inputs)["vespo/phi_seq_mean"] == pytest.approx(phi, rel=1e-6)
    assert loss_of({"loss_type": "vespo"}, inputs).item() == pytest.approx(1)


def test_a_vespo_row_with_something_that_is_no_number_has_no_weight() -> None:
    inputs = batch([[math.nan, 0.0]], [[1, 1]], [1.0])
    assert loss_of({"loss_type": "vespo"}, inputs).item() == 0


def test_reward_metrics_by_hand() -> None:
    """Groups (1, 0), (2, 2), (3, unscorable): std over all 5 numbers, one group in three without variance."""
    rewards_B = torch.tensor([1, 0, 2, 2, 3, math.nan], dtype=torch.double)
    group_B = torch.tensor([0, 0, 1, 1, 2, 2])
    std = (5.2 / 4) ** 0.5
    expected = {"rewards/f/mean": 1.6, "rewards/f/std": std, "reward": 1.6, "reward_std": std}
    for scale, share in (("group", 1 / 3), ("none", 1 / 3), ("batch", 0.0)):
        found = reward_metrics({"f": rewards_B}, rewards_B, rewards_B, group_B, scale)
        assert found == pytest.approx({**expected, "frac_reward_zero_std": share})


def test_the_sampler_gives_float32() -> None:
    options = {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"}
    weight = math.exp(-1 - as_float32(-1.1))
    assert loss_of(options, sampled(0.1)).item() == pytest.approx(-weight, rel=1e-14)
    assert weight != pytest.approx(math.exp(0.1), rel=1e-9)


def test_a_run_in_this_dialect_measures_no_padding() -> None:
    parts = tiny_parts(framework="trl", aggregation="token_mean_rollout", num_iterations=2, learning_rate=0.1)
    batch = parts.learner.collector.rollout(parts.state.policy, 0).batch
    tokens = int(batch.mask_BT.sum())
    first = parts.learner.update(parts.state, batch, tokens)
    log_ratio_BT = parts.learner.update(parts.state, first.batch, tokens).log_ratio_BT
    assert not batch.mask_BT.all()
    assert (log_ratio_BT[~batch.mask_BT] == 0).all()
    assert (log_ratio_BT[batch.mask_BT] != 0).any()
