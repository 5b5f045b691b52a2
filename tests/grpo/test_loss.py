"""The loss algebra: the exact oracles (O5-O8), derivatives, and what padding and float32 may not do to it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny import VALUES
from torch import Tensor
from torch.nn.functional import pad

from grpolab.frameworks.objectives import make_objective
from grpolab.grpo.advantages import Scored, advantages
from grpolab.grpo.aggregation import Totals, aggregate
from grpolab.grpo.loss import Loss, LossInputs, SurrogateParts, policy_loss
from grpolab.registry import AGGREGATIONS, SURROGATES, Surrogate
from grpolab.settings.objective import Objective

GRPO = make_objective("token", "clipped", 0.2, 0.28, None, "min_positive", "sequence_mean", 0.0)
GSPO = GRPO.but(importance_sampling_level="sequence")
DAPO = GRPO.but(aggregation="token_mean_rollout")
CISPO = DAPO.but(kernel="cispo", epsilon=1.0, epsilon_high=4.0)
DR_GRPO = GRPO.but(aggregation="token_sum_constant")
LEVELS = ("token", "sequence", "sequence_token", "segment")
OPTIONS = VALUES["kernel_options"]
POINTS: dict[str, dict[str, Any]] = {
    **{
        name: {"kernel": name, "kernel_options": OPTIONS}
        for name, surrogate in SURROGATES.items()
        if not surrogate.whole_minibatch  # those compare tokens with each other: tests of their own
    },
    "outer cap": {"kernel": "clipped", "epsilon_high": math.inf, "delta": 2.0},
    "dual clip": {"kernel": "clipped", "dual_clip": 2.0},
    "cispo, no lower bound": {"kernel": "cispo", "epsilon": 1.0, "epsilon_high": 4.0},
}
every_kernel = pytest.mark.parametrize("kernel", POINTS)
every_level = pytest.mark.parametrize("level", LEVELS)


def every_average(kernel: str, level: str, betas: tuple[float, ...] = ()) -> Iterator[Objective]:
    """A kernel at a ratio level with every aggregation, with a KL and, for ratios of tokens, also without."""
    for aggregation, beta in itertools.product(AGGREGATIONS, betas or ((0.0, 0.1) if level == "token" else (0.1,))):
        yield GRPO.but(**POINTS[kernel], importance_sampling_level=level, aggregation=aggregation, beta=beta)


def example(seed: int = 0, spread: float = 0.4, dtype: torch.dtype = torch.double) -> dict[str, Tensor]:
    """Random log-probs with ragged rows, one of them empty, advantages of both signs and a zero."""
    draw = torch.Generator().manual_seed(seed)
    old_BT = -torch.rand(8, 6, generator=draw, dtype=torch.double) * 2
    return {
        "log_probs_BT": (old_BT + spread * torch.randn(8, 6, generator=draw, dtype=torch.double)).to(dtype),
        "old_log_probs_BT": old_BT.to(dtype),
        "reference_log_probs_BT": (old_BT + 0.2 * torch.randn(8, 6, generator=draw, dtype=torch.double)).to(dtype),
        "advantages_B": torch.tensor([0.9, -1.3, 0.6, -0.4, 1.0, 0.0, -0.8, 0.5], dtype=dtype),
        "mask_BT": torch.arange(6) < torch.tensor([6, 4, 1, 3, 0, 5, 2, 6])[:, None],
    }


def totals_of(mask_BT: Tensor, micro_batches: int = 1) -> Totals:
    tokens = int(mask_BT.sum())
    return Totals(len(mask_BT), int(mask_BT.any(1).sum()), tokens, tokens, 16, micro_batches)


def inputs_of(given: dict[str, Tensor], totals: Totals | None = None) -> LossInputs:
    return LossInputs(
        **{name: value for name, value in given.items() if name.endswith("log_probs_BT")},
        advantages=given["advantages_B"][:, None],
        rewards_B1=given["advantages_B"][:, None],
        mask_BT=given["mask_BT"],
        totals=totals or totals_of(given["mask_BT"]),
    )


def compute(objective: Objective, given: dict[str, Tensor], totals: Totals | None = None) -> tuple[Loss, Tensor]:
    """The loss, and its gradient on the log-probs."""
    log_probs_BT = given["log_probs_BT"].clone().requires_grad_()
    loss = policy_loss(objective, inputs_of({**given, "log_probs_BT": log_probs_BT}, totals))
    (gradient_BT,) = torch.autograd.grad(loss.total, log_probs_BT)
    return loss, gradient_BT


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> bool:
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


# --- oracles O5 to O8 -------------------------------------------------------------------------------------------------


def test_at_ratio_one_the_objectives_have_one_gradient() -> None:
    given = example(spread=0.0)
    grpo, gspo, dapo, cispo, dr_grpo = (compute(o, given)[1] for o in (GRPO, GSPO, DAPO, CISPO, DR_GRPO))
    assert grpo.abs().max() > 0
    assert close(gspo, grpo)
    assert close(cispo, dapo)
    assert close(dr_grpo, dapo * given["mask_BT"].sum() / (len(dapo) * 16))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("spread", [0.05, 0.4, 2.0])
def test_gspo_is_gspo_token_where_advantages_are_per_sequence(aggregation: str, spread: float) -> None:
    """GSPO-token (2507.18071, eq. 13-14), written out: sg(s_i) pi / sg(pi) as each token's ratio."""
    given = example(spread=spread)
    mask_BT, A_B1 = given["mask_BT"], given["advantages_B"][:, None]
    loss, gradient_BT = compute(GSPO.but(aggregation=aggregation), given)

    log_probs_BT = given["log_probs_BT"].clone().requires_grad_()
    log_ratio_BT = torch.where(mask_BT, log_probs_BT - given["old_log_probs_BT"], 0.0)
    s_B1 = (log_ratio_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)).exp().detach()
    r_BT = s_B1 * (log_probs_BT - log_probs_BT.detach()).exp()
    surrogate_BT = -torch.minimum(r_BT * A_B1, r_BT.clamp(0.8, 1.28) * A_B1)
    total = aggregate(aggregation, surrogate_BT, mask_BT, totals_of(mask_BT))
    (expected_BT,) = torch.autograd.grad(total, log_probs_BT)
    assert abs(loss.total - total) <= 1e-12 * abs(total)
    assert close(gradient_BT, expected_BT)


@every_kernel
@every_level
def test_splitting_a_minibatch_changes_nothing_except_for_bnpo(kernel: str, level: str) -> None:
    given = example()
    totals = totals_of(given["mask_BT"], 4)
    micros = [dict(zip(given, rows, strict=True)) for rows in zip(*(v.chunk(4) for v in given.values()), strict=True)]
    for objective in every_average(kernel, level):
        whole, gradient_BT = compute(objective, given)
        parts = [compute(objective, micro, totals) for micro in micros]
        total = sum(loss.total.detach() for loss, _ in parts)
        same = abs(total - whole.total.detach()) <= 1e-12 and close(torch.cat([g for _, g in parts]), gradient_BT)
        assert same == (objective.aggregation != "token_mean_microbatch"), objective


@every_kernel
@every_level
def test_what_stands_at_padding_changes_nothing(kernel: str, level: str) -> None:
    given = example()
    mask_BT = pad(given["mask_BT"], (0, 3))
    garbage_3 = torch.tensor([1e30, -math.inf, math.nan], dtype=torch.double)
    garbage_BT = torch.stack([garbage_3.roll(row).repeat(3) for row in range(8)])  # each kind in each column
    names = [name for name in given if name.endswith("log_probs_BT")]
    dirty = {name: torch.where(mask_BT, pad(given[name], (0, 3)), garbage_BT) for name in names}
    for objective in every_average(kernel, level):
        loss, gradient_BT = compute(objective, {**given, **dirty, "mask_BT": mask_BT})
        expected, expected_BT = compute(objective, given)
        torch.testing.assert_close(loss.total, expected.total, rtol=1e-14, atol=1e-15)
        torch.testing.assert_close(gradient_BT[:, :6], expected_BT, rtol=1e-14, atol=1e-15)
        assert (gradient_BT[~mask_BT] == 0).all(), objective


PENALISED = ("dro", "dppo_ratio", "ipo", "oapl")  # their penalty acts on any token


@pytest.mark.parametrize("kernel", [kernel for kernel in POINTS if kernel not in PENALISED])
@every_level
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_exactly_no_gradient(kernel: str, level: str, scale: str) -> None:
    rewards_B = torch.tensor([0.9, 0.9, 0.9, 1.0, 0.0, 0.1])
    assert rewards_B.view(2, 3).mean(1)[0] != rewards_B[0]  # the zero must not depend on rounding
    given = {name: value[:6] for name, value in example().items()}
    given["advantages_B"] = advantages(Scored(rewards_B, torch.arange(len(rewards_B)) // 3), scale=scale).double()
    for objective in every_average(kernel, level, betas=(0.0,)):
        _, gradient_BT = compute(objective, given)
        assert (gradient_BT[:3] == 0).all(), objective
        assert gradient_BT[3:].abs().max() > 0, objective


@pytest.mark.parametrize(
    "kernel", ["clipped", "outer cap", "dual clip", "ratio", "dro", "sapo", "gmpo", "dcpo", "oapl", "icepop"]
)
@pytest.mark.parametrize("level", ["token", "sequence", "segment"])  # GSPO-token holds the sequence's value
def test_gradient_is_the_derivative(kernel: str, level: str) -> None:
    given = example(seed=3, spread=0.6)
    totals = totals_of(given["mask_BT"])
    for objective in every_average(kernel, level):

        def total(log_probs_BT: Tensor, objective: Objective = objective) -> Tensor:
            return policy_loss(objective, inputs_of({**given, "log_probs_BT": log_probs_BT}, totals)).total

        assert torch.autograd.gradcheck(total, given["log_probs_BT"].clone().requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_gradient_of_cispo_is_the_derivative_with_the_weight_held(level: str) -> None:
    given = example(seed=3, spread=1.5)
    objective = CISPO.but(importance_sampling_level=level, epsilon_high=0.3)
    loss, gradient_BT = compute(objective, given)
    mask_BT = given["mask_BT"]
    log_ratio_BT = torch.where(mask_BT, given["log_probs_BT"] - given["old_log_probs_BT"], 0.0)
    if level == "sequence":
        log_ratio_BT = (log_ratio_BT.sum(1) / mask_BT.sum(1).clamp(min=1))[:, None].expand_as(mask_BT)
    expected_BT = -log_ratio_BT.exp().clamp(max=1.3) * given["advantages_B"][:, None] * mask_BT / mask_BT.sum()
    assert loss.surrogate.capped.any()
    assert not loss.surrogate.capped.all()
    assert close(gradient_BT, expected_BT)


def test_kl_is_added_to_each_token_before_averaging() -> None:
    given = example()
    q_BT = given["reference_log_probs_BT"] - given["log_probs_BT"]
    k3_BT = torch.where(given["mask_BT"], q_BT.exp() - q_BT - 1, 0.0)
    for aggregation in AGGREGATIONS:
        objective = GRPO.but(aggregation=aggregation)
        without, _ = compute(objective, given)
        with_kl, _ = compute(objective.but(beta=0.3), given)
        added = 0.3 * aggregate(aggregation, k3_BT, given["mask_BT"], totals_of(given["mask_BT"]))
        assert abs(with_kl.total - without.total - added) <= 1e-12


@every_kernel
@every_level
def test_float32_stays_finite_while_the_ratio_does(kernel: str, level: str) -> None:
    given = example(dtype=torch.float32)
    for objective, log_ratio in itertools.product(every_average(kernel, level), (20.0, 80.0, -20.0, -80.0)):
        given["log_probs_BT"] = given["old_log_probs_BT"] + log_ratio
        given["reference_log_probs_BT"] = given["log_probs_BT"] - log_ratio
        loss, gradient_BT = compute(objective, given)
        assert loss.total.isfinite(), objective
        assert gradient_BT.isfinite().all(), objective


def test_the_clip_hides_an_infinite_ratio_where_it_wins() -> None:
    """exp(100) is inf in float32: with A>0 the clipped branch wins, finite, though its derivative is 0 times inf."""
    given = example(dtype=torch.float32)
    given["log_probs_BT"] = given["old_log_probs_BT"] + 100
    given["advantages_B"] = torch.ones(8)
    loss, _ = compute(GRPO, given)
    assert loss.total.isfinite()


def reinforce(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-A log pi: what a user would write."""
    return SurrogateParts.of(objective, ratio, -inputs.advantages * inputs.log_probs_BT)


def test_a_new_surrogate_is_a_function_and_a_line_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SURROGATES, "reinforce", Surrogate(f"{__name__}:reinforce"))
    given = example()
    _, gradient_BT = compute(DAPO.but(kernel="reinforce"), given)
    mask_BT = given["mask_BT"]
    assert close(gradient_BT, -given["advantages_B"][:, None] * mask_BT / mask_BT.sum())
