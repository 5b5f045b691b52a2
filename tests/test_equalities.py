"""The table of equalities is true: where it calls two runs one function, their gradients are equal to rounding."""

from __future__ import annotations

import pytest
import torch

from grpolab import equalities
from grpolab.equalities import AT_EQUAL_LENGTHS, EXACT, explain_equality
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, policy_loss
from grpolab.run.assembly import loss_recipe
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import Composer

ONE = "num_iterations=1"
ON_POLICY = [
    *("kernel=ratio", "kernel=policy_gradient", "kernel=policy_gradient_masked", "kernel=cispo epsilon_high=4"),
    *("kernel=cispo_masked", "kernel=sapo", "kernel=vespo", "kernel=gmpo epsilon=0.4", "kernel=dro"),
    *("importance_sampling_level=sequence epsilon=3e-4", "importance_sampling_level=sequence_token"),
    *("delta=1.1 epsilon=0.05", "dual_clip=3.0 log_ratio_clamp=20"),
]
SEQUENCES, TOKENS_OF_SEQUENCES = "importance_sampling_level=sequence", "importance_sampling_level=sequence_token"
NO_BOUNDS, ONE_TOKEN = "epsilon=1.0 epsilon_high=.inf", "max_completion_length=1"
BY_MINIBATCH = "aggregation=token_mean_minibatch"
PAIRS = [
    (equalities.written_form, "", "loss_form=max_negative"),
    (equalities.switched_off, "", "entropy_coef=0.0 top_entropy_quantile=1.0"),
    (equalities.never_empty, "aggregation=sequence_sum", "aggregation=sequence_sum_nonempty"),
    (equalities.one_micro_batch, "loss_type=bnpo num_minibatches=2", f"{BY_MINIBATCH} num_minibatches=2"),
    (equalities.one_minibatch, BY_MINIBATCH, "loss_type=dapo"),
    (equalities.one_token, ONE_TOKEN, f"{ONE_TOKEN} loss_type=dr_grpo {SEQUENCES} epsilon=.2"),
    *(
        (equalities.ratio_of_one, f"{ONE} loss_type=dapo", f"{ONE} aggregation=token_mean_rollout {arm}")
        for arm in ON_POLICY
    ),
    (equalities.average_of_verl, "dialect=verl/sapo", f"dialect=verl/sapo {BY_MINIBATCH}"),
    (equalities.gspo_token, SEQUENCES, TOKENS_OF_SEQUENCES),
    (equalities.gspo_token, f"{SEQUENCES} aggregation=token_sum", f"{TOKENS_OF_SEQUENCES} aggregation=token_sum"),
    (equalities.delta_outside, "delta=1.5", "dual_clip=1.5"),
    (equalities.unreachable_cap, "log_ratio_clamp=2", "log_ratio_clamp=2 dual_clip=8"),
    (equalities.no_bounds, f"kernel=cispo {NO_BOUNDS}", "kernel=ratio"),
    (equalities.no_bounds, f"kernel=cispo {SEQUENCES} {NO_BOUNDS}", f"kernel=ratio {SEQUENCES}"),
    (equalities.no_bounds, NO_BOUNDS, "kernel=ratio epsilon=0.3"),
    (equalities.range_of_nothing, "kernel=sapo epsilon=0.1", "kernel=sapo"),
    (equalities.equal_lengths, "task=sorting", "task=sorting loss_type=dr_grpo"),
    (equalities.equal_lengths, "task=sorting", "task=sorting loss_type=dapo"),
]
# Near to an equality of the table, and not equal.
UNEQUAL = [
    ("loss_type=dapo", "loss_type=dr_grpo"),
    ("num_minibatches=2 loss_type=dapo", f"num_minibatches=2 {BY_MINIBATCH}"),
    (f"{ONE} dialect=trl/cispo", f"{ONE} dialect=trl"),
    (f"{ONE} kernel=topr kernel_options.topr.negative_weight=0.5", ONE),
    (SEQUENCES, ""),
    ("delta=1.1", "dual_clip=1.1"),
    ("dialect=verl/sapo beta=0.1", f"dialect=verl/sapo {BY_MINIBATCH} beta=0.1"),
    ("log_ratio_clamp=2 dual_clip=7", "log_ratio_clamp=2"),
    (f"kernel=cispo {NO_BOUNDS} epsilon_high=4.0", "kernel=ratio"),
    ("task=sorting max_completion_length=12", "task=sorting max_completion_length=12 loss_type=dr_grpo"),
    (f"{ONE} beta=0.1 kl_gradient=importance_weighted", f"{ONE} beta=0.1 kl_gradient=importance_weighted {SEQUENCES}"),
]


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


def gradient(settings: RunSettings) -> torch.Tensor:
    """Of the loss by log-prob, on random completions: of the run's longest where the task's have one length."""
    draw = torch.Generator().manual_seed(0)
    B, T = 64, settings.max_completion_length
    old_BT = -torch.rand(B, T, generator=draw, dtype=torch.double)
    ratio_one = settings.num_iterations * settings.num_minibatches == 1
    moved_BT = 0.0 if ratio_one else torch.randn(B, T, generator=draw, dtype=torch.double)
    log_probs_BT = (old_BT + moved_BT).requires_grad_()
    longest = settings.task.length + 1 if settings.task.name == "sorting" else None
    lengths_B = torch.randint(1, T + 1, (B,), generator=draw) if longest is None else torch.full((B,), longest)
    mask_BT = torch.arange(T) < lengths_B[:, None]
    tokens = int(mask_BT.sum())
    # Several minibatches: the batch's tokens over their number are not those of this one.
    rollout_tokens = tokens * (1.0 if settings.num_minibatches == 1 else 1.25)
    totals = Totals(B, B, tokens, rollout_tokens, T, 1)
    rewards_B1 = torch.randint(0, 2, (B, 1), generator=draw).double()
    inputs = LossInputs(
        *(log_probs_BT, old_BT, rewards_B1 * 2 - 1, mask_BT, totals),
        reference_log_probs_BT=old_BT - 0.3 * torch.rand(B, T, generator=draw, dtype=torch.double),
        rewards_B1=rewards_B1 - 0.5,
        entropy_BT=torch.rand(B, T, generator=draw, dtype=torch.double),
    )
    loss = policy_loss(resolve_run(settings).objective, inputs, loss_recipe(settings.framework)).total
    return torch.autograd.grad(loss, log_probs_BT)[0] * mask_BT


@pytest.mark.parametrize(("equality", "first", "second"), PAIRS)
def test_what_is_called_equal_has_equal_gradients(composer, equality, first: str, second: str) -> None:
    runs = composer.compose(first.split()), composer.compose(second.split())
    reasons = explain_equality(*runs, AT_EQUAL_LENGTHS)
    assert reasons is not None
    assert equalities.describe(equality) in reasons
    torch.testing.assert_close(gradient(runs[0]), gradient(runs[1]), rtol=1e-12, atol=1e-14)
    without = [other for other in AT_EQUAL_LENGTHS if other is not equality]
    assert explain_equality(*runs, without) is None, "another equality says it too: the pair does not test this one"


@pytest.mark.parametrize(("first", "second"), UNEQUAL)
def test_what_is_not_equal_is_not_called_so(composer: Composer, first: str, second: str) -> None:
    runs = composer.compose(first.split()), composer.compose(second.split())
    assert explain_equality(*runs, AT_EQUAL_LENGTHS) is None
    assert not torch.allclose(gradient(runs[0]), gradient(runs[1]), rtol=1e-6)


def test_every_equality_is_shown() -> None:
    # micro-batching and TRL's cap change the units of a setting: the learner's and the exchange's tests have them
    elsewhere = {equalities.micro_batching, equalities.absolute_caps}
    assert {equality for equality, *_ in PAIRS} | elsewhere == set(AT_EQUAL_LENGTHS)


def test_equal_lengths_are_no_exact_equality(composer: Composer) -> None:
    runs = composer.compose(["task=sorting"]), composer.compose(["task=sorting", "loss_type=dapo"])
    assert explain_equality(*runs, EXACT) is None
