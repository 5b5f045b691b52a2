"""verl's dialect: each of its own ways matters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpolab.frameworks.verl import FRAMEWORK, draw_like_verl
from grpolab.frameworks.verl_correction import reject
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import CORE, Loss, LossInputs, policy_loss


def mode(name: str, policy: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return {"policy_loss": {"loss_mode": name, **(policy or {})}, **options}


BY_SEQUENCE = {"loss_agg_mode": "seq-mean-token-mean"}


def batch(log_ratio: Any, mask: Any, advantages: Any, **changed: Any) -> LossInputs:
    """Sequences with these log ratios; the old log-probs are -1, and so are the reference's."""
    mask_BT, log_ratio_BT = torch.tensor(mask, dtype=torch.bool), torch.tensor(log_ratio, dtype=torch.double)
    given = LossInputs(
        log_probs_BT=(log_ratio_BT - 1).requires_grad_(),
        old_log_probs_BT=torch.full_like(log_ratio_BT, -1.0),
        advantages=torch.tensor(advantages, dtype=torch.double),
        mask_BT=mask_BT,
        totals=Totals.of(mask_BT),
        reference_log_probs_BT=torch.full_like(log_ratio_BT, -1.0),
        entropy_BT=torch.ones_like(log_ratio_BT),
    )
    return replace(given, **changed)


RAGGED = batch([[0.1, 0.5, 9.0], [-0.4, 9.0, 9.0]], [[1, 1, 0], [1, 0, 0]], [[1.0], [-2.0]])


def loss_of(options: dict[str, Any], inputs: LossInputs) -> Loss:
    return policy_loss(FRAMEWORK.objective(options), inputs, FRAMEWORK.recipe)


def total(options: dict[str, Any], inputs: LossInputs) -> float:
    return loss_of(options, inputs).total.item()


def gradient(options: dict[str, Any], inputs: LossInputs) -> Tensor:
    return torch.autograd.grad(loss_of(options, inputs).total, inputs.log_probs_BT)[0]


@torch.no_grad()
def metrics_of(options: dict[str, Any], inputs: LossInputs) -> dict[str, float]:
    return FRAMEWORK.metrics(FRAMEWORK.objective(options), inputs, loss_of(options, inputs))


@pytest.mark.parametrize("name", ["gspo", "sapo", "geo_mean"])
def test_some_modes_average_by_sequences_but_kl_and_entropy_do_as_asked(name: str) -> None:
    by_token, by_sequence = mode(name), mode(name, **BY_SEQUENCE)
    assert total(by_token, RAGGED) == total(by_sequence, RAGGED)
    k2 = {"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": "mse"}
    assert total(by_token | k2, RAGGED) - total(by_token, RAGGED) == pytest.approx((0.01 + 0.25 + 0.16) / 2 / 3)
    assert total(by_sequence | k2, RAGGED) - total(by_token, RAGGED) == pytest.approx((0.26 / 4 + 0.08) / 2)
    summed = mode(name, loss_agg_mode="token-sum", entropy_coeff=0.5)
    assert total(summed, RAGGED) - total(by_token, RAGGED) == pytest.approx(-0.5 * 3)


@pytest.mark.parametrize(
    ("name", "bound", "low"), [("vanilla", 20.0, True), ("cispo", 20.0, True), ("gspo", 10.0, False)]
)
def test_log_ratios_are_bounded(name: str, bound: float, low: bool) -> None:
    """gspo has a bound only above; a policy gradient keeps its gradient beyond it, a clipped ratio loses it."""
    for sign in (1.0, -1.0)[: 1 + low]:
        at, beyond = (batch([[sign * (bound + more)]], [[1]], [[-1.0]]) for more in (0.0, 1.0))
        ratios = [loss_of(mode(name), inputs).ratio.item() for inputs in (at, beyond)]
        assert ratios == [pytest.approx(math.exp(sign * bound))] * 2
        wide = mode(name, clip_ratio_low=1.0, clip_ratio_high=1e12, clip_ratio_c=1e12)
        assert (gradient(wide, beyond).item() == 0) == (name != "cispo")
        assert gradient(wide, at).item() != 0


def test_geo_mean_takes_the_geometric_mean_of_a_sequences_weights() -> None:
    weights_BT = torch.tensor([[0.5, 0.9, 1.0], [0.7, 1.0, 1.0]], dtype=torch.double)
    objective = FRAMEWORK.objective(mode("geo_mean", rollout_correction={"rollout_is": "token"}))
    inputs = replace(RAGGED, sampler_log_probs_BT=RAGGED.old_log_probs_BT - weights_BT.log())
    loss = [-math.exp((0.1 + 0.2) / 2), 2 * math.exp(-0.2)]
    expected = (loss[0] * math.sqrt(0.5 * 0.9) + loss[1] * 0.7) / 2
    assert policy_loss(objective, inputs, FRAMEWORK.recipe).total.item() == pytest.approx(expected, rel=1e-8)
    assert policy_loss(objective, inputs).total.item() != pytest.approx(expected, rel=1e-3)  # an arithmetic mean


def test_padding_that_is_not_finite_is_dropped_by_tokens_and_poisons_sequences() -> None:
    bad = replace(RAGGED, old_log_probs_BT=torch.where(RAGGED.mask_BT, -1.0, torch.nan))
    assert total({}, bad) == total({}, RAGGED)
    assert math.isnan(total(BY_SEQUENCE, bad))
    assert policy_loss(FRAMEWORK.objective(BY_SEQUENCE), bad).total.item() == total(BY_SEQUENCE, RAGGED)
    kl = {"use_kl_loss": True, "kl_loss_type": "kl"}
    bad_reference = replace(RAGGED, reference_log_probs_BT=bad.old_log_probs_BT)
    assert total(kl, bad_reference) == total(kl, RAGGED)
    assert math.isnan(total(BY_SEQUENCE | kl, bad_reference))
    empty_row = replace(bad, mask_BT=torch.tensor([[False] * 3, [False] * 3]))
    assert total(BY_SEQUENCE, empty_row) == 0  # sequences without a token are not added up


def test_a_batch_without_tokens_has_no_token_mean() -> None:
    mask_BT = torch.zeros(2, 3, dtype=torch.bool)
    empty = replace(RAGGED, mask_BT=mask_BT, totals=Totals.of(mask_BT))
    assert math.isnan(total({}, empty))
    assert total({"loss_agg_mode": "token-sum"}, empty) == 0
    assert total(mode("gspo"), empty) == 0  # by sequences, of which there are two
    assert math.isnan(total(mode("gspo", entropy_coeff=0.5), empty))
    assert policy_loss(FRAMEWORK.objective({}), empty, CORE).total.item() == 0


# Ratios .5, 1.1, 1.5 and 4 with A > 0 in the first row and A < 0 in the second, eight tokens.
SPREAD = [math.log(r) for r in (0.5, 1.1, 1.5, 4.0)]
EIGHT = batch([SPREAD, SPREAD], [[1] * 4] * 2, [[1.0], [-1.0]])


@pytest.mark.parametrize(
    ("name", "clipped", "lower"),
    [
        ("vanilla", 3, 1),  # gated: two too high, one too low; dual clip: 4 > 3
        ("sapo", 0, 0),
        ("cispo", 6, 0),  # whatever A is
        ("geo_mean", 3, 3),  # outside with A > 0, and with A < 0
        ("dppo_tv", 1, 1),  # e^-1 moved by more than .2: up with A > 0 at ratio 4; kept and capped with A < 0
        ("clip_cov", 0, None),  # none is drawn, PPO's clips do not count
        ("gpg", None, None),
        ("dro", None, None),
    ],
)
def test_clip_fractions_have_a_meaning_of_their_own_in_each_mode(name: str, clipped: int, lower: int) -> None:
    inputs = replace(EIGHT, noise_BT=torch.zeros(2, 4))
    found = metrics_of(mode(name, {"dro_beta": 0.1}), inputs)
    for metric, count in (("actor/pg_clipfrac", clipped), ("actor/pg_clipfrac_lower", lower)):
        assert found.get(metric) == (None if count is None else count / 8)


def test_the_update_kl_is_minus_the_log_ratio_or_its_size() -> None:
    mean = sum(SPREAD) / 4
    assert metrics_of({}, EIGHT)["actor/ppo_kl"] == pytest.approx(-mean)
    assert metrics_of(mode("kl_cov"), EIGHT)["actor/ppo_kl"] == pytest.approx(sum(map(abs, SPREAD)) / 4)
    assert "actor/ppo_kl" not in metrics_of(mode("gpg"), EIGHT)


def test_the_parts_of_the_loss_are_reported_apart() -> None:
    options = {"use_kl_loss": True, "kl_loss_coef": 0.05, "entropy_coeff": 0.01}
    found = metrics_of(options, EIGHT)
    whole = found["actor/pg_loss"] - 0.01 * found["actor/entropy_loss"] + 0.05 * found["kl_loss"]
    assert (whole, found["actor/pg_loss"]) == (pytest.approx(total(options, EIGHT)), pytest.approx(total({}, EIGHT)))
    k3 = sum(1 / math.exp(x) + x - 1 for x in SPREAD) / 4
    assert (found["kl_loss"], found["actor/entropy_loss"]) == (pytest.approx(k3), 1.0)


@pytest.mark.parametrize(
    ("name", "value", "slope"), [("kl", 12, 1), ("k1+", 12, 12), ("low_var_kl", 10, 0), ("k3+", 10, 12)]
)
def test_a_plus_gives_a_kl_the_gradient_of_k2(name: str, value: float, slope: float) -> None:
    """At log(policy / reference) = 12, where k3 is 11 and cut at 10."""
    options = {"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": name}
    inputs = batch([[12.0]], [[1]], [[0.0]])
    assert total(options, inputs) == pytest.approx(value)
    assert gradient(options, inputs).item() == pytest.approx(slope)


def test_dro_needs_its_beta_and_unknown_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="dro_beta"):
        FRAMEWORK.objective(mode("dro"))
    with pytest.raises(ValueError, match="ppo2"):
        FRAMEWORK.objective(mode("ppo2"))


# --- rollout correction -----------------------------------------------------------------------------------------------


def test_the_bounds_of_k1_are_of_the_reciprocal_ratio() -> None:
    ratios = [0.45, 0.6, 0.79, 0.81, 1.0, 1.2, 1.3, 1.9, 2.1]
    log_ratio_BT = torch.tensor([ratios], dtype=torch.double).log()
    kept_BT, found = reject("token_k1", "0.5_1.25", log_ratio_BT, torch.ones(1, 9, dtype=torch.bool))
    assert [r for r, kept in zip(ratios, kept_BT[0], strict=True) if kept] == ratios[3:8]
    assert found["rollout_rs_masked_fraction"] == pytest.approx(4 / 9)


def test_all_rejection_options_must_pass() -> None:
    log_ratio_BT = torch.tensor([[0.1, 1.0], [0.1, 0.1]], dtype=torch.double)
    mask_BT = torch.ones(2, 2, dtype=torch.bool)
    by_token, _ = reject("token_k2", "0.1", log_ratio_BT, mask_BT)
    both, found = reject("token_k2,seq_max_k2", "0.1", log_ratio_BT, mask_BT)
    assert by_token.tolist() == [[True, False], [True, True]]
    assert both.tolist() == [[False, False], [True, True]]
    assert found["rollout_rs_seq_masked_fraction"] == 0.5


@pytest.mark.parametrize(("threshold", "expected"), [(2.0, [0.25, 2.0, 1.5]), ("0.5_2.0", [0.0, 0.0, 1.5])])
def test_weights_are_truncated_or_zero_outside(threshold: Any, expected: list[float]) -> None:
    rule = {"rollout_is": "token", "rollout_is_threshold": threshold}
    weights_BT = torch.tensor([[0.25, 4.0, 1.5]], dtype=torch.double)
    inputs = batch([[0.0] * 3], [[1] * 3], [[1.0]], sampler_log_probs_BT=-1 - weights_BT.log())
    slopes = gradient(mode("gpg", loss_agg_mode="token-sum", rollout_correction=rule), inputs)[0].tolist()
    assert slopes == pytest.approx([-weight for weight in expected])
    # In bypass mode with a clip the ratio takes the weight's place.
    assert FRAMEWORK.objective(mode("bypass_mode", rollout_correction=rule)).sampler_correction is None


def test_no_weight_at_all_is_refused() -> None:
    replay = FRAMEWORK.replays["compute_rollout_correction_weights"]
    inputs = {"logprobs": torch.tensor([[3.0]]), "old_logprobs": torch.tensor([[0.0]]), "mask": torch.ones(1, 1).bool()}
    with pytest.raises(ValueError, match="weight"):
        replay({"rollout_is": "sequence", "rollout_is_threshold": "0.5_2.0"}, inputs)


# --- what the replay adds ---------------------------------------------------------------------------------------------


def test_clip_cov_leaves_out_what_verls_seed_draws() -> None:
    generator = torch.Generator().manual_seed(3)
    log_ratio = torch.rand(4, 6, generator=generator, dtype=torch.double).tolist()
    inputs = batch(log_ratio, [[1] * 6] * 4, [[1.0], [-1.0], [2.0], [-2.0]])
    options = mode("clip_cov", {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.0, "clip_cov_ub": 9.0}, clip_ratio_high=9.0)
    objective = FRAMEWORK.objective(options)
    A_BT, log_probs_BT = inputs.advantages.expand(4, 6), inputs.log_probs_BT.detach()
    covariance_BT = (A_BT - A_BT.mean()) * (log_probs_BT - log_probs_BT.mean())
    eligible = ((covariance_BT > 0) & (covariance_BT < 9)).nonzero()
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        expected = sorted(eligible[torch.randperm(len(eligible))[:2]].tolist())  # int(.1 * 24)
    assert len(eligible) > 4
    noise_BT = draw_like_verl(objective, inputs, 1234)
    drawn_BT = policy_loss(objective, replace(inputs, noise_BT=noise_BT), FRAMEWORK.recipe).surrogate.dropped
    assert sorted(drawn_BT.nonzero().tolist()) == expected


def advantages_of(name: str, options: dict[str, Any], rewards: list[float], groups: list[int]) -> Tensor:
    by_token_BT = torch.tensor([[reward, 0.0] for reward in rewards], dtype=torch.double)
    mask_BT = torch.tensor([[True, False]] * len(rewards))
    inputs = {"token_level_rewards": by_token_BT, "group_ids": groups, "mask": mask_BT}
    return FRAMEWORK.replays[f"compute_{name}_outcome_advantage"](options, inputs).tensors["advantages"][:, 0]


def test_a_completion_without_a_group_keeps_its_reward_except_in_rloo_vectorized() -> None:
    rewards, groups = [3.0, 1.0, 2.0], [7, 4, 4]
    assert advantages_of("rloo", {}, rewards, groups).tolist() == [3, -1, 1]
    assert advantages_of("rloo_vectorized", {}, rewards, groups).tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match="two"):
        advantages_of("grpo_passk", {}, rewards, groups)


def test_grpo_vectorized_takes_its_statistics_in_float32() -> None:
    rewards, options = [1e4, 1e4 + 1e-4], {"norm_adv_by_std_in_grpo": False, "epsilon": 1e-6}
    exact, rounded = (advantages_of(name, options, rewards, [0, 0]) for name in ("grpo", "grpo_vectorized"))
    assert exact.tolist() == pytest.approx([-5e-5, 5e-5], rel=1e-6)
    assert rounded.tolist() == pytest.approx([0, 1e-4], rel=1e-6)  # both rewards are 1e4 in float32


def test_one_token_cannot_be_whitened() -> None:
    with pytest.raises(ValueError, match="whitened"):
        advantages_of("reinforce_plus_plus_baseline", {}, [1.0], [0])
