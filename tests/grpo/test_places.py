"""Log-probs in chunks of places: the same numbers and gradients as at once, and never more than a chunk in memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import tiny_parts
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Gemma2Config, Gemma2ForCausalLM

from grpolab.grpo import places
from grpolab.grpo.batch import TrainingBatch
from grpolab.grpo.model import Policy, has_bare_head, old_log_probs, token_log_probs
from grpolab.run.train import Parts
from grpolab.run.warm_start import make_supervised_optimizer, supervised_step

CHUNK = 16  # places


class MostPlaces(TorchDispatchMode):
    """The most places whose logits any tensor holds that an operation makes."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.places = vocabulary, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, Tensor) and value.shape[-1:] == (self.vocabulary,):
                self.places = max(self.places, value.numel() // self.vocabulary)
        return found


def in_chunks(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> None:
    monkeypatch.setattr(places, "LARGEST", CHUNK * policy.vocabulary)


def sampled() -> tuple[Parts, TrainingBatch]:
    """A tiny run with a few of its completions, which end at different tokens."""
    parts = tiny_parts(max_completion_length=6, beta=0.1)
    policy = parts.state.policy
    with torch.no_grad():
        policy.model.lm_head.weight *= 20
        policy.model.model.embed_tokens.weight += 0.1
    batch = parts.learner.collect(parts.state).batch
    assert batch.mask_BT.sum(1).unique().numel() > 1
    return parts, batch


def gradient_of(policy: Policy) -> Tensor:
    return torch.cat([weight.grad.flatten() for weight in policy.weights().values() if weight.grad is not None])


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("reach", [None, math.inf], ids=["each completion", "prefix tree"])
def test_log_probs_entropies_and_gradients_are_those_at_once(
    monkeypatch: pytest.MonkeyPatch, reach: float | None, entropy: bool
) -> None:
    parts, batch = sampled()
    policy = parts.state.policy
    policy.model.double()  # so that what differs is no rounding
    weight_BT = torch.randn(batch.mask_BT.shape, generator=torch.Generator().manual_seed(0)) * batch.mask_BT
    results = []
    for chunked in (False, True):
        if chunked:
            in_chunks(monkeypatch, policy)
        log_probs_BT, entropy_BT = token_log_probs(policy, batch.with_trees(len(batch), reach), entropy)
        policy.model.zero_grad()
        ((log_probs_BT + entropy_BT if entropy else log_probs_BT) * weight_BT).sum().backward()
        results.append((log_probs_BT[batch.mask_BT], entropy_BT[batch.mask_BT], gradient_of(policy)))
    for whole, pieces in zip(*results, strict=True):
        assert whole.norm() > 0
        assert (whole - pieces).norm() <= 1e-6 * whole.norm()
    assert not log_probs_BT[~batch.mask_BT].any()  # nobody asked for them, and nothing was computed


@pytest.mark.parametrize("reach", [None, math.inf], ids=["each completion", "prefix tree"])
def test_a_backward_pass_never_holds_more_logits_than_a_chunk(
    monkeypatch: pytest.MonkeyPatch, reach: float | None
) -> None:
    parts, batch = sampled()
    policy = parts.state.policy
    policy.model.resize_token_embeddings(2000)
    policy = replace(policy)  # its new head
    batch = batch.with_trees(len(batch), reach)
    hidden = policy.model.config.hidden_size  # the head's transposed weight is a (hidden, vocabulary) too

    def most_places() -> tuple[int, int]:
        """Made by any operation of a forward and backward pass, and kept between the two."""
        kept: list[int] = [0]

        def keep(value: Tensor) -> Tensor:
            kept.append(value.numel() // 2000 if value.shape[-1:] == (2000,) and len(value) != hidden else 0)
            return value

        with MostPlaces(2000) as made:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
                log_probs_BT, _ = token_log_probs(policy, batch)
            log_probs_BT.sum().backward()
        return made.places, max(kept)

    made, kept = most_places()
    assert made >= kept > 2 * hidden
    in_chunks(monkeypatch, policy)
    assert most_places() == (hidden, 0)


def test_an_update_its_kl_and_an_evaluation_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for chunked in (False, True):
        parts, batch = sampled()
        policy = parts.state.policy
        if chunked:
            in_chunks(monkeypatch, policy)
        old_BT, entropy_BT = old_log_probs(policy, batch, len(batch))
        batch = replace(batch, old_log_probs_BT=old_BT - 0.1, old_entropy_BT=entropy_BT)
        batch = replace(batch, advantages_B=torch.linspace(-1, 1, len(batch)))
        update = parts.learner.update(parts.state, batch, int(batch.mask_BT.sum()))
        metrics = parts.learner.metrics(update)
        kl = parts.learner.kl_to_reference(policy, batch)
        optimizer = make_supervised_optimizer(policy, 0.01)
        loss = supervised_step(policy, optimizer, ["1+2=", "3+4="], ["3", "7"], False)
        results.append({**metrics, "kl": kl, "sft": loss, **parts.evaluator(policy).metrics})
    whole, pieces = results
    assert whole["kl"] > 0
    assert pieces == pytest.approx(whole, rel=1e-4, abs=1e-6, nan_ok=True)


def test_logits_that_are_more_than_the_heads_product_are_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 2 caps its logits: the head's product with its hidden states would be another distribution."""
    parts, batch = sampled()
    llama = parts.state.policy
    config = Gemma2Config(
        vocab_size=llama.vocabulary,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=32,
        final_logit_softcapping=2.0,
        pad_token_id=llama.pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = replace(llama, model=Gemma2ForCausalLM(config).eval(), bare_head=False, reach=None)
    with torch.no_grad():
        policy.model.lm_head.weight *= 50  # tied; far beyond the cap
    assert has_bare_head(llama)
    assert not has_bare_head(policy)
    whole_BT, _ = token_log_probs(policy, batch)
    in_chunks(monkeypatch, policy)
    pieces_BT, _ = token_log_probs(policy, batch)
    torch.testing.assert_close(pieces_BT[batch.mask_BT], whole_BT[batch.mask_BT], rtol=1e-5, atol=1e-5)
    assert (whole_BT[batch.mask_BT] >= -4 - math.log(policy.vocabulary)).all()
