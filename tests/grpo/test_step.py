"""One optimiser step: micro-batches and padding are invisible, old log-probs stay, the first ratio is exactly 1."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import gradient_of, tiny_parts
from torch import Tensor
from torch.nn.functional import pad

from grpolab.grpo.batch import Prompts, TrainingBatch
from grpolab.grpo.decoding import sample
from grpolab.grpo.model import old_log_probs
from grpolab.grpo.step import Diverged, flat_weights, step_norm
from grpolab.registry import AGGREGATIONS
from grpolab.run.assembly import RunParts

# A large AdamW epsilon makes the step proportional to the gradient: with a small one its sign is all that matters.
SMOOTH = {"adam_epsilon": 1.0, "max_grad_norm": math.inf, "learning_rate": 1.0}


def ready(**changes: Any) -> tuple[RunParts, TrainingBatch, int]:
    """A run, its first batch and the batch's tokens."""
    parts = tiny_parts(**{"max_completion_length": 5, **changes})
    batch = parts.learner.collector.rollout(parts.state.policy, 0).batch
    lengths_B = batch.mask_BT.sum(1)
    assert lengths_B.min() < lengths_B.max()
    return parts, batch, int(batch.mask_BT.sum())


def moved(parts: RunParts, batch: TrainingBatch, tokens: int, steps: int = 2) -> Tensor:
    """The change of the weights after some updates on a batch."""
    before = flat_weights(parts.state.policy)
    for _ in range(steps):
        batch = parts.learner.update(parts.state, batch, tokens).batch
    return flat_weights(parts.state.policy) - before


def close(found: Tensor, expected: Tensor) -> bool:
    assert expected.abs().max() > 0
    return bool((found - expected).abs().max() <= 2e-5 * expected.abs().max())


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_micro_batches_change_nothing_except_for_bnpo(aggregation: str, level: str) -> None:
    axes = {"aggregation": aggregation, "importance_sampling_level": level, "beta": 0.1, **SMOOTH}
    whole = moved(*ready(**axes))
    for size in (8, 4):  # 2 and 4 micro-batches
        in_pieces = moved(*ready(**axes, micro_batch_size=size))
        assert close(in_pieces, whole) == (aggregation != "token_mean_microbatch")


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_padding_changes_nothing(level: str) -> None:
    axes = {"importance_sampling_level": level, "beta": 0.1, **SMOOTH}
    parts, batch, tokens = ready(**axes)
    expected = moved(parts, batch, tokens)
    parts, batch, tokens = ready(**axes)
    assert batch.reference_log_probs_BT is not None
    tokens_PL = batch.prompts.tokens_PL
    mask_PL = torch.ones_like(tokens_PL, dtype=torch.bool)
    wider = replace(
        batch,
        prompts=Prompts(pad(tokens_PL, (3, 0), value=parts.state.policy.pad), pad(mask_PL, (3, 0))),
        tokens_BT=pad(batch.tokens_BT, (0, 4), value=7),  # not even the padding token
        mask_BT=pad(batch.mask_BT, (0, 4)),
        sampler_log_probs_BT=pad(batch.sampler_log_probs_BT, (0, 4), value=math.nan),
        reference_log_probs_BT=pad(batch.reference_log_probs_BT, (0, 4), value=math.nan),
    )
    assert close(moved(parts, wider, tokens), expected)


def test_every_minibatch_token_weighs_the_same_in_dapo() -> None:
    """Summed over the minibatches the loss is the mean over the rollout batch, times their number."""
    parts, batch, tokens = ready(num_minibatches=4, aggregation="token_mean_rollout", learning_rate=0.0)
    minibatches = parts.learner.minibatches(parts.state.policy, batch, 0)
    losses = [parts.learner.update(parts.state, minibatch, tokens).loss for minibatch in minibatches]
    expected = -(batch.advantages_B[:, None] * batch.mask_BT).sum() / tokens  # every ratio is 1
    assert sum(losses) / 4 == pytest.approx(expected.item(), abs=1e-6)


def test_bnpo_is_the_mean_over_its_micro_batches() -> None:
    parts, batch, tokens = ready(aggregation="token_mean_microbatch", micro_batch_size=4, learning_rate=0.0)
    loss = parts.learner.update(parts.state, batch, tokens).loss
    means = [(m.advantages_B[:, None] * m.mask_BT).sum() / m.mask_BT.sum() for m in batch.split(4)]
    assert loss == pytest.approx(-sum(means).item() / 4, abs=1e-6)  # every ratio is 1


def test_grad_norm_is_the_one_before_clipping() -> None:
    parts, batch, tokens = ready(max_grad_norm=1e-3)
    step = parts.learner.update(parts.state, batch, tokens)
    assert gradient_of(parts.state.policy).norm().item() == pytest.approx(1e-3, rel=1e-3)
    assert step.grad_norm > 0.1


def test_consecutive_gradients_are_compared_by_their_cosine() -> None:
    parts, batch, tokens = ready(**SMOOTH, diagnostics={"gradient_cosine": True})
    found, gradients = [], []
    for _ in range(3):
        update = parts.learner.update(parts.state, batch, tokens)
        found.append(parts.learner.metrics(update).get("grad_cosine"))
        gradients.append(gradient_of(parts.state.policy).double())
        batch = update.batch
    expected = [torch.nn.functional.cosine_similarity(*pair, dim=0).item() for pair in itertools.pairwise(gradients)]
    assert found[0] is None
    assert found[1:] == pytest.approx(expected, abs=1e-6)
    assert -1 < min(expected) < max(expected) < 1


def test_the_kl_term_has_no_gradient_at_the_warm_start() -> None:
    parts, batch, tokens = ready(beta=0.5)
    idle = replace(batch, advantages_B=torch.zeros_like(batch.advantages_B))
    assert parts.learner.update(parts.state, idle, tokens).grad_norm <= 1e-6


def test_old_log_probs_are_those_before_the_first_update() -> None:
    parts, batch, tokens = ready(num_minibatches=4, micro_batch_size=2)
    learner, state = parts.learner, parts.state
    minibatches = learner.minibatches(state.policy, batch, 0)
    assert sorted(torch.cat([m.rows_B for m in minibatches]).tolist()) == list(range(16))
    assert torch.cat([m.rows_B for m in minibatches]).tolist() != list(range(16))
    before_BT, _ = old_log_probs(state.policy, batch, 16)
    kept = [m.old_log_probs_BT.clone() for m in minibatches if m.old_log_probs_BT is not None]
    for minibatch, old_BT in zip(minibatches, kept, strict=True):
        gap_BT = (old_BT - before_BT[minibatch.rows_B]).abs()  # at padding, which nobody reads, trees say anything
        assert gap_BT[minibatch.mask_BT].max() <= 1e-5
    for iteration in range(2):
        for index, minibatch in enumerate(minibatches):
            step = learner.update(state, minibatch, tokens)
            assert torch.equal(step.batch.old_log_probs_BT, kept[index])
            assert torch.equal(step.inputs.old_log_probs_BT, kept[index])
            exactly_one = bool((step.log_ratio_BT == 0).all())
            assert exactly_one == (iteration == index == 0)


def test_one_minibatch_takes_its_old_log_probs_from_the_first_pass() -> None:
    parts, batch, tokens = ready()
    (minibatch,) = parts.learner.minibatches(parts.state.policy, batch, 0)
    assert minibatch.old_log_probs_BT is None
    expected_BT, entropy_BT = old_log_probs(parts.state.policy, batch, 16)
    first = parts.learner.update(parts.state, minibatch, tokens)
    assert torch.equal(first.batch.old_log_probs_BT, expected_BT)
    assert torch.equal(first.batch.old_entropy_BT, entropy_BT)
    second = parts.learner.update(parts.state, first.batch, tokens)
    assert torch.equal(second.batch.old_log_probs_BT, expected_BT)
    assert (second.log_ratio_BT != 0).any()


# Where the batch is wrong, and what the check of its first update then says.
MISTAKES: dict[str, tuple[Callable[[TrainingBatch, Tensor], dict[str, Tensor]], str]] = {
    "a stale old policy": (lambda batch, old_BT: {"old_log_probs_BT": old_BT + 1e-6}, "ratio differs from 1"),
    "a temperature": (lambda batch, _: {"sampler_log_probs_BT": batch.sampler_log_probs_BT * 1.01}, "sampler and"),
    "a position": (lambda batch, _: {"sampler_log_probs_BT": batch.sampler_log_probs_BT.roll(1, 1)}, "sampler and"),
    "a mean": (lambda batch, _: {"sampler_log_probs_BT": batch.sampler_log_probs_BT + 3e-5}, "sampler and trainer"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_sampler_that_is_not_the_trainer_is_noticed_and_so_is_a_stale_old_policy(mistake: str) -> None:
    parts, batch, tokens = ready()
    change, says = MISTAKES[mistake]
    old_BT, entropy_BT = old_log_probs(parts.state.policy, batch, 16)
    wrong = replace(batch, old_entropy_BT=entropy_BT, **change(batch, old_BT))
    with pytest.raises(AssertionError, match=says):
        parts.learner.check(parts.learner.update(parts.state, wrong, tokens))


@pytest.mark.parametrize("where", ["loss nan", "gradient norm"])
def test_a_loss_or_gradient_that_is_not_finite_leaves_the_weights_alone(where: str) -> None:
    parts, batch, tokens = ready()
    before = flat_weights(parts.state.policy)
    if where == "loss nan":
        batch = replace(batch, advantages_B=batch.advantages_B.masked_fill(batch.rows_B == 3, math.nan))
    else:
        parts.state.policy.weights()["lm_head.weight"].register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(Diverged, match=where):
        parts.learner.update(parts.state, batch, tokens)
    assert torch.equal(flat_weights(parts.state.policy), before)
    assert parts.state.optimizer_step == 0


def test_non_finite_weights_are_a_divergence() -> None:
    parts = tiny_parts()
    before = flat_weights(parts.state.policy)
    assert step_norm(parts.state.policy, before) == 0
    with torch.no_grad():
        next(iter(parts.state.policy.weights().values()))[0, 0] = math.inf
    with pytest.raises(Diverged, match="weights"):
        step_norm(parts.state.policy, before)


def test_kl_to_the_warm_start_is_exact_and_starts_at_zero() -> None:
    parts, batch, tokens = ready()
    learner, policy = parts.learner, parts.state.policy
    assert learner.collector.reference is not None
    assert learner.kl_to_reference(policy, batch) <= 1e-7
    moved(parts, batch, tokens)
    found = learner.kl_to_reference(policy, batch)
    total, count = 0.0, 0
    models = policy.model, learner.collector.reference.model
    for row in range(len(batch)):
        prompt_L = batch.prompts.tokens_PL[batch.prompt_of_B[row]]
        tokens_T = batch.tokens_BT[row][batch.mask_BT[row]]
        with torch.no_grad():
            text_1L = torch.cat([prompt_L, tokens_T])[None]
            logits = [model(text_1L).logits[0, len(prompt_L) - 1 : -1] for model in models]
            new_TV, reference_TV = (logits_TV.double().log_softmax(-1) for logits_TV in logits)
        total += (new_TV.exp() * (new_TV - reference_TV)).sum().item()
        count += len(tokens_T)
    assert found == pytest.approx(total / count, rel=1e-4)
    assert found > 0


ASKS = ("item", "tolist", "cpu", "numpy", "unique", "nonzero", "equal", "__bool__", "__int__", "__float__")


def test_the_device_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU waits wherever the program reads a number from it: per sampled token twice, per update as listed here."""
    parts, batch, tokens = ready(max_completion_length=9)
    policy, prompts = parts.state.policy, batch.prompts
    batch = batch.with_trees(len(batch), math.inf)
    asked: list[str] = []
    for name in ASKS:
        original = getattr(Tensor, name)

        def counted(self: Tensor, *args: Any, name: str = name, original: Any = original, **options: Any) -> Any:
            asked.append(name)
            return original(self, *args, **options)

        monkeypatch.setattr(Tensor, name, counted)

    def of_sampling(length: int) -> int:
        asked.clear()
        sampled = sample(policy, prompts, 4, torch.full((16, length), 0.5, dtype=torch.double))
        assert sampled.tokens_BT.shape[1] == length
        return len(asked)

    assert of_sampling(9) - of_sampling(5) == 2 * 4  # distinct prefixes; how many go on
    asked.clear()
    update = parts.learner.update(parts.state, batch, tokens)
    assert asked == ["tolist", "tolist"]  # lengths; whether loss and gradient are finite
    asked.clear()
    parts.learner.metrics(update)
    assert asked.count("cpu") == 3
    assert set(asked) == {"cpu", "numpy"}
