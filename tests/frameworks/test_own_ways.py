"""What each framework does its own way, on batches small enough to compute by hand.

The archive of peers holds their own numbers (`test_conformance.py`); here stands what would surprise a reader.
"""

from __future__ import annotations

import math
from dataclasses import replace
from math import exp
from typing import Any

import pytest
import torch
from tiny import tiny_parts
from torch import Tensor

from grpolab.frameworks.framework import load_framework
from grpolab.frameworks.trl import round_to_float32
from grpolab.frameworks.verl import draw_like_verl
from grpolab.frameworks.verl_correction import reject
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import Loss, LossInputs, policy_loss

Rows = list[list[float]]
NAMES = {"reference": "reference_log_probs_BT", "sampler": "sampler_log_probs_BT", "entropy": "entropy_BT"}


def batch(log_ratio: Rows, mask: Rows, advantages: Rows, **others: Rows) -> LossInputs:
    """Return sequences with these log ratios; the old log-probs are -1. `others` are log-probs, or the entropy."""
    mask_BT, log_ratio_BT = torch.tensor(mask, dtype=torch.bool), torch.tensor(log_ratio, dtype=torch.double)
    given: dict[str, Any] = {NAMES[name]: torch.tensor(rows, dtype=torch.double) for name, rows in others.items()}
    return LossInputs(
        log_probs_BT=(log_ratio_BT - 1).requires_grad_(),
        old_log_probs_BT=torch.full_like(log_ratio_BT, -1.0),
        advantages=torch.tensor(advantages, dtype=torch.double),
        mask_BT=mask_BT,
        totals=Totals.of(mask_BT),
        **given,
    )


def loss_of(name: str, options: dict[str, Any], inputs: LossInputs) -> Loss:
    framework = load_framework(name)
    return policy_loss(framework.objective(options), inputs, framework)


def total(name: str, options: dict[str, Any], inputs: LossInputs) -> float:
    return loss_of(name, options, inputs).total.item()


def core_total(name: str, options: dict[str, Any], inputs: LossInputs) -> float:
    """Return the loss at the same point on our axes without the framework's own ways."""
    return policy_loss(load_framework(name).objective(options), inputs).total.item()


def gradient(name: str, options: dict[str, Any], inputs: LossInputs) -> Tensor:
    return torch.autograd.grad(loss_of(name, options, inputs).total, inputs.log_probs_BT)[0]


@torch.no_grad()
def compute_metrics(name: str, options: dict[str, Any], inputs: LossInputs) -> dict[str, float]:
    framework = load_framework(name)
    return framework.metrics(framework.objective(options), inputs, loss_of(name, options, inputs))


def mode(name: str, **options: Any) -> dict[str, Any]:
    """Return verl's options of a loss mode."""
    return {"policy_loss": {"loss_mode": name}, **options}


def corrected(**options: Any) -> dict[str, Any]:
    """Return SkyRL's options of a sampler correction."""
    return {"use_kl_loss": False, "off_policy_correction": options}


# Ratios e^.1 and 1.2 of e^.5, cut, with A = 1; .8 of e^-.4, cut, with A = -2; a sequence without tokens.
RAGGED = batch(
    [[0.1, 0.5, 9], [-0.4, 9, 9], [9, 9, 9]],
    [[1, 1, 0], [1, 0, 0], [0, 0, 0]],
    [[1], [-2], [3]],
    reference=[[-0.7, -0.3, 9], [-1.2, 9, 9], [9, 9, 9]],  # .2 above the policy
    entropy=[[1, 2, 9], [4, 9, 9], [9, 9, 9]],
)
NO_ADVANTAGE = replace(RAGGED, advantages=torch.zeros(3, 1, dtype=torch.double))
FIRST, SECOND, THIRD = -exp(0.1), -1.2, 1.6
SUM = FIRST + SECOND + THIRD
K3 = exp(0.2) - 1.2
ONE = batch([[0.1]], [[1]], [[1]], reference=[[-0.7]], sampler=[[-1.5]])
TWO = [[1, 1], [1, 1]]
WEIGHED = batch([[0, 0], [0, 0]], TWO, [[1], [1]], sampler=[[-1.4, -0.6], [-1.2, -1.2]])  # e^.4, e^-.4; e^.2 twice
WIDE = batch([[0, 0], [0, 0]], TWO, [[1], [1]], sampler=[[-1.0, -1.3], [-3.0, 0.0]])  # 1, e^.3; e^2, e^-1
MOVED = batch([[0.5, -0.9, 0.1]], [[1, 1, 1]], [[1]])  # probabilities of 1/e changed by .24, -.22 and .04
FALLEN = replace(MOVED, advantages=-MOVED.advantages)
SQUARES = 0.25 + 0.81 + 0.01
NEMO = {"reference_policy_kl_penalty": 0.0}
NO_KL = {"use_kl_loss": False}
VLLM = {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"}
MASK_TIS = {
    "use_importance_sampling_correction": True,
    **{f"truncated_importance_sampling_{name}": value for name, value in
       {"type": "seq-mask-tis", "ratio_min": 0.999, "ratio": 1.002}.items()},
}  # fmt: skip

# Framework, its options, the batch, its loss.
LOSSES: list[tuple[str, dict[str, Any], LossInputs, float]] = [
    # TRL: a sequence without tokens counts
    ("trl", {"loss_type": "grpo"}, RAGGED, ((FIRST + SECOND) / 2 + THIRD) / 3),
    ("trl", {"beta": 0.5}, batch([[0.3]], [[1]], [[0]], reference=[[-0.5]]), 0.5 * exp(0.3) * K3),
    # a token that the sampler could not score has weight 1; the others' log-probs are float32
    ("trl", VLLM, batch([[0, 0]], [[1, 1]], [[1]], sampler=[[-1.5, math.nan]]), -(exp(0.5) + 1) / 2),
    ("trl", VLLM, batch([[0]], [[1]], [[1]], sampler=[[-1.1]]), -exp(-1 - round_to_float32(-1.1))),
    # verl: some modes average by sequences, KL and entropy as asked
    ("verl", mode("sapo", loss_agg_mode="token-sum", entropy_coeff=0.5), NO_ADVANTAGE, -0.5 * 7),
    ("verl", {"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": "mse"}, NO_ADVANTAGE, 0.02),
    # ROLL: sequences are divided by their number + 1e-8, empty ones left out
    ("roll", {"loss_agg_mode": "seq-mean-token-sum"}, RAGGED, SUM / (2 + 1e-8)),
    # DeepSpeed-Chat: the mean over the tokens
    ("deepspeed_chat", {}, RAGGED, SUM / 3),
    # OpenRLHF: KL and entropy are means over tokens where the loss is one over sequences
    ("openrlhf", {"token_level_loss": False, "entropy_coef": 0.1}, NO_ADVANTAGE, -0.7 / 3),
    ("openrlhf", {"policy_loss_type": "gspo", "kl_use_loss": True, "kl_init_coef": 0.5, "kl_estimator": "k3"},
     NO_ADVANTAGE, 0.5 * K3),
    # slime: an empty sample counts as a sample and as a token; GSPO's KL has the token's ratio
    ("slime", {}, RAGGED, ((FIRST + SECOND) / 2 + THIRD) / 3),
    ("slime", {"calculate_per_token_loss": True}, RAGGED, SUM / 4),
    ("slime", {"entropy_coef": 1.0, "calculate_per_token_loss": True}, RAGGED, SUM / 4 - 7 / 4),
    ("slime", {"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": "k3", "use_unbiased_kl": True,
               "advantage_estimator": "gspo"}, replace(ONE, advantages=ONE.advantages * 0), exp(0.1) * K3),
    # AReaL: a bound that clamps keeps rejected tokens
    ("areal", {"rejection_sampling": {"action": "clamp", "upper": 1.2}}, WIDE, -(1 + 1.2 + 1.2 + exp(-1)) / 4),
    ("areal", {"use_cispo_loss": True, "eps_clip": 1.0, "eps_clip_higher": 1.0},
     batch([[1.2, 0.1]], [[1, 1]], [[1]]), -(2 * 0.2 + exp(0.1) * -0.9) / 2),
    # NeMo-RL: seq-mask-tis keeps rows by their mean, tokens with their weight
    ("nemo_rl", NEMO | MASK_TIS, WEIGHED, -(exp(0.4) + exp(-0.4)) / 4),
    ("nemo_rl", NEMO | {"use_importance_sampling_correction": True},
     batch([[0, 0]], [[1, 1]], [[1]], sampler=[[-1, -2000]]), -0.5),  # an infinite weight counts as 0
    # open-instruct: rho is cut at 2 after its mask, its logarithm at 10
    ("open_instruct", {"rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 10.0}, WIDE, -(1 + exp(0.3) + 2) / 4),
    ("open_instruct", {"rho_clamp_upper_bound": 0.0}, batch([[0]], [[1]], [[1]], sampler=[[-40]]), -exp(10)),
    ("open_instruct", {"rho_mask_sequence_level": True, "rho_mask_lower_bound": 0.9, "rho_mask_upper_bound": 1.1},
     WEIGHED, -2 / 4),  # rows by their geometric mean, 1 and e^.2
    ("open_instruct", {"rho_mask_tv_divergence": True, "rho_mask_upper_bound": 0.1}, WEIGHED, -exp(-0.4) / 4),
    # prime-rl drops by probability for either sign; a ratio of 36,000 to a very unlikely token counts as 10,000
    ("prime_rl", {}, MOVED, -(exp(0.5) + exp(-0.9) + exp(0.1)) / 3),
    ("prime_rl", {"eps": 0.21}, MOVED, -exp(0.1) / 3),
    ("prime_rl", {"eps": 0.21}, FALLEN, exp(0.1) / 3),
    ("prime_rl", {}, replace(batch([[-0.5]], [[1]], [[1]]), old_log_probs_BT=torch.tensor([[-12.0]]).double()), -1e4),
    ("prime_rl", {"type": "icepop"}, batch([[2.0, 0.1, -2.0]], [[1, 1, 1]], [[1]]), -exp(0.1) / 3),  # [.2, 5]
    ("prime_rl", {"type": "ppo"}, batch([[0.5, 0.1]], [[1, 1]], [[1]]), -(1.2 + exp(0.1)) / 2),
    ("prime_rl", {"type": "cispo"}, batch([[2.0, 0.1]], [[1, 1]], [[1]]), -(5 * 1.0 + exp(0.1) * -0.9) / 2),
    # until August 2026 a dropped token kept the square of its log ratio
    ("prime_rl", {"type": "default"}, MOVED, (-exp(-0.9) - exp(0.1) + 1e-3 * SQUARES) / 3),
    ("prime_rl", {"type": "default"}, FALLEN, (exp(0.5) + exp(0.1) + 1e-3 * SQUARES) / 3),
    ("prime_rl", {"ipo_threshold": 0.21}, FALLEN, (exp(0.1) + 1e-3 * SQUARES) / 3),
    # SkyRL: the KL is a mean of row means; a sampler's mask is no weight; one that is too far takes its row
    ("skyrl", {"kl_loss_coef": 1.0}, NO_ADVANTAGE, 2 * K3 / 3),
    ("skyrl", corrected(sequence_mask_metric="geometric"), WEIGHED, -0.5),
    ("skyrl", corrected(outlier_token_is_threshold_high=1.3), WEIGHED, -0.5),
    ("skyrl", corrected(token_mask_is_threshold_low=0.9, token_mask_is_threshold_high=1.3), WEIGHED, -0.5),
    ("skyrl", corrected(tis_ratio_type="sequence", sequence_tis_ratio_clip_high=1.2), WEIGHED, -(1 + 1.2) / 2),
    ("skyrl", NO_KL | {"policy_loss_type": "dppo"}, batch([[0.1, 0.9]], [[1, 1]], [[1]]), -exp(0.1) / 2),
    # torchtune: the completion loss has one ratio and one KL for the whole batch, empty rows too
    ("torchtune", {"loss": "GRPOCompletionLoss", "epsilon": 0.9, "kl_coeff": 0.0}, RAGGED, -(1 - 2 + 3) * exp(0.2) / 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "inputs", "expected"), LOSSES)
def test_losses_by_hand(name: str, options: dict[str, Any], inputs: LossInputs, expected: float) -> None:
    assert total(name, options, inputs) == pytest.approx(expected, rel=1e-5, abs=1e-8)  # some are float32


# Framework, its options, the batch, some of its metrics.
METRICS: list[tuple[str, dict[str, Any], LossInputs, dict[str, float]]] = [
    ("slime", {"use_tis": True}, batch([[0], [0]], [[1], [0]], [[1], [1]], sampler=[[-2], [-2]]),
     {"tis": math.e / 2, "tis_clipfrac": 0.5}),
    ("areal", {"rejection_sampling": {}}, WIDE, {"rs_filtered_fraction": 0.25, "importance_weight": 1.0}),
    ("openrlhf", {"is_correction_level": "token"}, WIDE, {"is_filter_ratio": 0.5}),  # e^2 and e^-1
    ("openrlhf", {"is_correction_level": "seq", "is_correction_threshold": [1.1]}, WIDE, {"is_filter_ratio": 1.0}),
    ("prime_rl", {"type": "ppo"}, batch([[0.5, 0.1]], [[1, 1]], [[1]]), {"is_clipped": 0.5, "ratio_capped": 0.0}),
    ("prime_rl", {"eps": 0.21}, FALLEN, {"is_masked": 2 / 3}),
    ("nemo_rl", NEMO | {"disable_ppo_ratio": True}, RAGGED, {"probs_ratio_max": -0.5}),  # the log-prob
    ("open_instruct", {"rho_mask_upper_bound": 5.0},
     batch([[1.0, 1.0]], [[1, 1]], [[1]], sampler=[[-1, -9]]), {"policy/clipfrac_avg": 0.5}),  # not where it is dropped
    ("open_instruct", {"loss_fn": "cispo"}, batch([[1.0, 2.0]], [[1, 1]], [[-1]], sampler=[[-1, -1]]),
     {"policy/clipfrac_avg": 1}),  # ratio-only
    ("open_instruct", {"beta": 0.0}, batch([[0.5]], [[1]], [[0]], reference=[[-0.8]], sampler=[[-1]]),
     {f"objective/kl{i}_avg": value for i, value in
      enumerate([0.3, 0.045, exp(-0.3) + 0.3 - 1, exp(0.5) * 0.3])}),
    ("skyrl", {"policy_loss_type": "rollout_is"}, MOVED, {"clip_ratio": 2 / 3}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "inputs", "expected"), METRICS)
def test_metrics_by_hand(name: str, options: dict[str, Any], inputs: LossInputs, expected: dict[str, float]) -> None:
    logged = compute_metrics(name, options, inputs)
    assert {metric: logged[metric] for metric in expected} == pytest.approx(expected, rel=1e-5, abs=1e-7)


POISONED = {
    **{name: {} for name in ("trl", "roll", "deepspeed_chat", "openrlhf", "torchtune")},
    "prime_rl": {"type": "default"},
    **{"verl": {"loss_agg_mode": "seq-mean-token-mean"}, "nemo_rl": NEMO, "skyrl": NO_KL},
}


@pytest.mark.parametrize("name", POISONED)
def test_what_is_not_finite_at_padding_poisons_the_loss_of_frameworks_that_multiply_by_a_mask(name: str) -> None:
    old_BT = torch.tensor([[-1, math.nan]], dtype=torch.double)
    dirty = replace(batch([[0.1, 0.1]], [[1, 0]], [[1]]), old_log_probs_BT=old_BT)
    assert math.isnan(total(name, POISONED[name], dirty))
    assert math.isfinite(core_total(name, POISONED[name], dirty))


def test_padding_that_is_not_added_up_is_invisible() -> None:
    clean = batch([[0.1, 0.1], [0.2, 0.3]], [[1, 0], [1, 1]], [[1], [-1]], sampler=[[-1, -1], [-1, -1]])
    old_BT = torch.tensor([[-1, math.nan], [-1, -1]], dtype=torch.double)
    for name in ("areal", "slime", "open_instruct", "verl"):
        assert total(name, {}, replace(clean, old_log_probs_BT=old_BT)) == total(name, {}, clean)
    gap = replace(
        batch([[0.1, 0, 0.1]], [[1, 0, 1]], [[1]]), old_log_probs_BT=torch.tensor([[-1, math.nan, -1]]).double()
    )
    assert math.isnan(total("slime", {}, gap)), "samples end at their last token, a gap before it is added up"


def test_the_loss_of_no_token() -> None:
    empty = replace(RAGGED, mask_BT=torch.zeros(3, 3, dtype=torch.bool), totals=Totals(3, 0, 0, 0, 3, 1))
    undefined = [("verl", {}), ("deepspeed_chat", {}), ("openrlhf", {}), ("roll", {"loss_agg_mode": "token-mean"})]
    for name, options in undefined:
        assert math.isnan(total(name, options, empty)), name
        assert core_total(name, options, empty) == 0
    for name, options in (("verl", mode("sapo")), ("verl", {"loss_agg_mode": "token-sum"}), ("roll", {}), ("trl", {})):
        assert total(name, options, empty) == 0, name


BOUNDED = [
    ("verl", {}, 20), ("verl", mode("gspo"), 10), ("openrlhf", {}, 20), ("skyrl", NO_KL, 20),
    ("skyrl", NO_KL | {"policy_loss_type": "gspo"}, 10),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "bound"), BOUNDED)
def test_log_ratios_are_bounded_and_end_the_gradient_there(name: str, options: dict[str, Any], bound: int) -> None:
    far = batch([[bound + 1]], [[1]], [[-1]])
    assert loss_of(name, options, far).ratio.item() == pytest.approx(exp(bound), rel=1e-6)
    assert gradient(name, options, far).item() == 0


def test_some_exponentials_are_float32() -> None:
    assert total("skyrl", NO_KL, ONE) == -torch.tensor(0.1).exp().double().item() != -exp(0.1)
    behind = batch([[0.0]], [[1]], [[1]], sampler=[[-0.5]])
    assert total("areal", {"rejection_sampling": {}}, behind) == -torch.tensor(-0.5).exp().double().item()
    tau = round_to_float32(1.05)
    fallen = batch([[0.7]], [[1]], [[-1]])
    expected = 4 / tau / (1 + exp(-tau * (exp(0.7) - 1)))
    assert total("trl", {"loss_type": "sapo"}, fallen) == pytest.approx(expected, rel=1e-14)


def kl_at(name: str, q: float, **options: Any) -> tuple[float, float]:
    """Return KL and gradient of one token whose reference is this much likelier."""
    one = batch([[0.0]], [[1]], [[0.0]], reference=[[q - 1]], sampler=[[-1.5]])
    return total(name, options, one), gradient(name, options, one).item()


def test_clamps_of_the_kl() -> None:
    roll = {"use_kl_loss": True, "kl_loss_coef": 1.0}
    assert kl_at("roll", 30.0, **roll) == pytest.approx((10, 0))
    for estimator, value in (("k1", -10.0), ("k2", 10.0), ("k3", 10.0)):
        assert kl_at("openrlhf", 41.0, kl_use_loss=True, kl_init_coef=1.0, kl_estimator=estimator) == (value, 0)
    assert kl_at("slime", 6.0, **roll, kl_loss_type="k3")[0] > 100, "only low_var_kl is cut"
    assert kl_at("slime", 6.0, **roll, kl_loss_type="low_var_kl") == (10, 0)
    for name, value, slope in (("kl", 12, 1), ("k1+", 12, 12), ("low_var_kl", 10, 0), ("k3+", 10, 12)):
        assert kl_at("verl", -12.0, **roll, kl_loss_type=name) == pytest.approx((value, slope))  # +: k2's gradient
    nemo = {"reference_policy_kl_penalty": 1.0}
    assert kl_at("nemo_rl", 0.5, **nemo)[1] == pytest.approx(-0.5)  # k3's score function: the reverse KL's
    on_policy = kl_at("nemo_rl", 0.5, **nemo, use_on_policy_kl_approximation=True)[1]
    assert on_policy == pytest.approx(-0.5 * exp(0.5))  # over the sampler's probability
    assert kl_at("nemo_rl", 25.0, **nemo, kl_output_clamp_value=None)[1] == 0, "beyond the input clamp"


def test_slimes_off_policy_mask_looks_at_the_old_policy() -> None:
    fallen = batch([[-0.3]], [[1]], [[-1]], sampler=[[-1.3]])
    options = {"use_opsm": True, "opsm_delta": 0.05}
    assert total("slime", options, fallen) == 0 != core_total("slime", options, fallen)
    assert compute_metrics("slime", options, fallen)["opsm_clipfrac"] == 1


def test_skyrl_scales_the_advantages_that_clip_cov_and_kl_cov_look_at() -> None:
    spread = replace(batch([[3.0, 0, 0, 0]], [[1] * 4], [[8.0, -1, -1, -1]]), noise_BT=torch.zeros(1, 4))
    for low, share in ((1.0, 0.25), (6.0, 0)):  # the covariance of the first, unscaled 15, is above 1 and not above 6
        window = {"clip_cov_lb": low, "clip_cov_ub": 99.0}
        options = {**NO_KL, "policy_loss_type": "clip_cov", "eps_clip_high": 99.0, "clip_cov": window}
        assert compute_metrics("skyrl", options, spread)["clip_ratio"] == share
    with_kl, without = (
        total("skyrl", {**NO_KL, "policy_loss_type": kind}, spread) for kind in ("kl_cov", "importance_sampling")
    )
    assert with_kl - without == pytest.approx(3.0), "|log r| of one token in four, not over four"


def test_trls_entropy_quantile_is_float32_and_vespo_drops_a_row_with_a_nan() -> None:
    for entropy, kept in ((1.1, 0.0), (0.9, 1.0)):  # 1.1 in float32 is more than 1.1
        one = batch([[0.0]], [[1]], [[-1]], entropy=[[entropy]])
        assert total("trl", {"top_entropy_quantile": 0.2}, one) == kept
    lost = replace(batch([[0.0, 0.0]], [[1, 1]], [[1]]), old_log_probs_BT=torch.tensor([[math.nan, -1]]).double())
    assert total("trl", {"loss_type": "vespo"}, lost) == 0


def test_a_run_in_trls_dialect_measures_no_padding() -> None:
    parts = tiny_parts(framework="trl", aggregation="token_mean_rollout", num_iterations=2, learning_rate=0.1)
    batch = parts.learner.collector.rollout(parts.state.policy, 0).batch
    tokens = int(batch.mask_BT.sum())
    first = parts.learner.update(parts.state, batch, tokens)
    log_ratio_BT = parts.learner.update(parts.state, first.batch, tokens).log_ratio_BT
    assert not batch.mask_BT.all()
    assert (log_ratio_BT[~batch.mask_BT] == 0).all()
    assert (log_ratio_BT[batch.mask_BT] != 0).any()


def test_verls_rejection_needs_every_option_to_pass() -> None:
    log_ratio_BT, mask_BT = torch.tensor([[0.1, 1.0], [0.1, 0.1]]).double(), torch.ones(2, 2, dtype=torch.bool)
    kept_BT, logged = reject("token_k2,seq_max_k2", "0.1", log_ratio_BT, mask_BT)
    assert kept_BT.tolist() == [[False, False], [True, True]]
    assert logged["rollout_rs_seq_masked_fraction"] == 0.5


def test_clip_cov_leaves_out_what_verls_seed_draws() -> None:
    log_ratio = torch.rand(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.double).tolist()
    inputs = batch(log_ratio, [[1] * 6] * 4, [[1.0], [-1.0], [2.0], [-2.0]])
    policy = {"loss_mode": "clip_cov", "clip_cov_ratio": 0.1, "clip_cov_lb": 0.0, "clip_cov_ub": 9.0}
    objective = load_framework("verl").objective({"policy_loss": policy, "clip_ratio_high": 9.0})
    A_BT, log_probs_BT = inputs.advantages.expand(4, 6), inputs.log_probs_BT.detach()
    covariance_BT = (A_BT - A_BT.mean()) * (log_probs_BT - log_probs_BT.mean())
    eligible = ((covariance_BT > 0) & (covariance_BT < 9)).nonzero()
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        expected = sorted(eligible[torch.randperm(len(eligible))[:2]].tolist())  # int(.1 * 24)
    assert len(eligible) > 4
    given = replace(inputs, noise_BT=draw_like_verl(objective, inputs, 1234))
    drawn_BT = policy_loss(objective, given, load_framework("verl")).surrogate.dropped
    assert sorted(drawn_BT.nonzero().tolist()) == expected


def verl_advantages(name: str, options: dict[str, Any], rewards: list[float], groups: list[int]) -> list[float]:
    by_token_BT = torch.tensor([[reward, 0.0] for reward in rewards], dtype=torch.double)
    inputs = {
        "token_level_rewards": by_token_BT,
        "group_ids": groups,
        "mask": torch.tensor([[True, False]] * len(rewards)),
    }
    replay = load_framework("verl").replays[f"compute_{name}_outcome_advantage"]
    return replay(options, inputs).tensors["advantages"][:, 0].tolist()


def test_verls_advantages() -> None:
    """A completion without a group keeps its reward except in rloo_vectorized; grpo_vectorized is float32."""
    rewards, groups = [3.0, 1.0, 2.0], [7, 4, 4]
    assert verl_advantages("rloo", {}, rewards, groups) == [3, -1, 1]
    assert verl_advantages("rloo_vectorized", {}, rewards, groups) == [0, -1, 1]
    rewards, options = [1e4, 1e4 + 1e-4], {"norm_adv_by_std_in_grpo": False, "epsilon": 1e-6}
    assert verl_advantages("grpo", options, rewards, [0, 0]) == pytest.approx([-5e-5, 5e-5], rel=1e-6)
    assert verl_advantages("grpo_vectorized", options, rewards, [0, 0]) == pytest.approx([0, 1e-4], rel=1e-6)
    with pytest.raises(ValueError, match="two"):
        verl_advantages("grpo_passk", {}, [3.0, 1.0, 2.0], groups)
    with pytest.raises(ValueError, match="whitened"):
        verl_advantages("reinforce_plus_plus_baseline", {}, [1.0], [0])


REFUSED = [
    ("trl", {"loss_type": "gmpo"}, "loss_type"),
    ("trl", {"importance_sampling_level": "segment"}, "importance_sampling_level"),
    ("trl", {"use_vllm": True, "vllm_importance_sampling_mode": "row_mask"}, "vllm_importance_sampling_mode"),
    ("verl", mode("ppo2"), "ppo2"),
    ("verl", mode("dro"), "dro_beta"),
    ("roll", {"loss_agg_mode": "mean"}, "loss_agg_mode=mean: of ROLL's values, known here are token-mean"),
    ("roll", {"pg_variant": "reinforce"}, "pg_variant=reinforce"),
    ("roll", {"rl_loss_coef": 0.5}, "no place on our axes"),
    ("roll", {"is_weight": {"enabled": True, "weight_type": "segment"}}, "is_weight.weight_type=segment"),
    ("openrlhf", {"policy_loss_type": "cispo"}, "policy_loss_type=cispo: .* ppo, gspo"),
    ("openrlhf", {"dual_clip": 1.0}, "dual_clip"),
    ("slime", {"advantage_estimator": "rloo"}, "advantage_estimator=rloo"),
    ("slime", {"eps_clip_c": 0.5}, "eps_clip_c"),
    ("skyrl", corrected(tis_ratio_type="token", sequence_mask_metric="geometric"), "one correction"),
    ("skyrl", corrected(tis_ratio_type="geometric"), "off_policy_correction.tis_ratio_type=geometric"),
    ("skyrl", {"policy_loss_type": ["regular"]}, "known here are regular, dual_clip"),
    ("areal", {"rejection_sampling": {"metric": "kl"}}, "rejection_sampling.metric=kl: .* ratio, kl_k1"),
    ("openrlhf", {"is_correction_level": "token", "is_correction_gating": "tv"}, "is_correction_gating=tv: .* ratio"),
    ("openrlhf", {"is_correction_level": "seq", "is_correction_mode": "clip"}, "needs is_correction_level=token"),
    ("areal", {"use_cispo_loss": True}, "eps_clip_higher above 0"),
    ("prime_rl", {"type": "custom"}, "type=custom"),
    ("prime_rl", {"type": "icepop", "adv_tau": 0.5}, "adv_tau=0.5 has no place"),
    ("prime_rl", {"score_centering": True}, "score_centering=True"),
    ("nemo_rl", {"use_importance_sampling_correction": True, "truncated_importance_sampling_type": "tis"}, "needs"),
    ("open_instruct", {"rho_mask_upper_bound": 1.5, "rho_clamp_upper_bound": 3.0}, "only .0.0, 2.0. has a place"),
]


@pytest.mark.parametrize(("name", "options", "says"), REFUSED)
def test_options_that_a_framework_does_not_have_are_refused(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load_framework(name).objective(options)
