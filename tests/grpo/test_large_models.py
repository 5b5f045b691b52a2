"""What a large model asks for: logits in chunks, layers computed again, completions sorted by length, a float32 head.

The numbers and gradients are those of a small model's own way.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import gradient_of, pretrained, tiny_parts
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Gemma2Config, Gemma2ForCausalLM

from grpolab.errors import RequestError
from grpolab.grpo import model as model_module
from grpolab.grpo.batch import TrainingBatch
from grpolab.grpo.loading import has_bare_head
from grpolab.grpo.model import Policy, old_log_probs, token_log_probs
from grpolab.run.assembly import RunParts
from grpolab.run.warm_start import make_supervised_optimizer, supervised_step

CHUNK = 16  # places
by_reach = pytest.mark.parametrize("break_even", [None, math.inf], ids=["each completion", "prefix tree"])


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
    monkeypatch.setattr(model_module, "MOST_LOGITS", CHUNK * policy.vocabulary)


def sampled(**changes: Any) -> tuple[RunParts, TrainingBatch]:
    """A tiny run with a few of its completions, which end at different tokens."""
    parts = tiny_parts(max_completion_length=6, beta=0.1, **changes)
    policy = parts.state.policy
    with torch.no_grad():
        policy.model.lm_head.weight *= 20
        policy.model.model.embed_tokens.weight += 0.1
    batch = parts.learner.collect(parts.state).batch
    assert batch.mask_BT.sum(1).unique().numel() > 1
    return parts, batch


def off_policy(policy: Policy, batch: TrainingBatch, spread: float = 0.3) -> TrainingBatch:
    """The batch with old log-probs that are not the policy's, and advantages of both signs."""
    old_BT, entropy_BT = old_log_probs(policy, batch, 4)
    noise_BT = spread * torch.randn(old_BT.shape, generator=torch.Generator().manual_seed(1))
    advantages_B = torch.linspace(-1, 1, len(batch))
    return replace(batch, old_log_probs_BT=old_BT + noise_BT, old_entropy_BT=entropy_BT, advantages_B=advantages_B)


@pytest.mark.parametrize("entropy", [False, True])
@by_reach
def test_log_probs_entropies_and_gradients_are_those_at_once(
    monkeypatch: pytest.MonkeyPatch, break_even: float | None, entropy: bool
) -> None:
    parts, batch = sampled()
    policy = parts.state.policy
    policy.model.double()  # so that what differs is no rounding
    weight_BT = torch.randn(batch.mask_BT.shape, generator=torch.Generator().manual_seed(0)) * batch.mask_BT
    results = []
    for chunked in (False, True):
        if chunked:
            in_chunks(monkeypatch, policy)
        log_probs_BT, entropy_BT = token_log_probs(policy, batch.with_trees(len(batch), break_even), entropy)
        policy.model.zero_grad()
        ((log_probs_BT + entropy_BT if entropy else log_probs_BT) * weight_BT).sum().backward()
        results.append((log_probs_BT[batch.mask_BT], entropy_BT[batch.mask_BT], gradient_of(policy)))
    for whole, pieces in zip(*results, strict=True):
        assert whole.norm() > 0
        assert (whole - pieces).norm() <= 1e-6 * whole.norm()
    assert not log_probs_BT[~batch.mask_BT].any()  # nothing was computed there


@by_reach
def test_a_backward_pass_never_holds_more_logits_than_a_chunk(
    monkeypatch: pytest.MonkeyPatch, break_even: float | None
) -> None:
    parts, batch = sampled()
    policy = parts.state.policy
    policy.model.resize_token_embeddings(2000)
    policy = replace(policy)  # its new head
    batch = batch.with_trees(len(batch), break_even)
    hidden = policy.model.config.hidden_size  # the head's transposed weight is a (hidden, vocabulary) too

    def most_places() -> tuple[int, int]:
        """Made by any operation of a forward and backward pass, and kept between the two."""
        kept: list[int] = [0]

        def keep(value: Tensor) -> Tensor:
            kept.append(value.numel() // 2000 if value.shape[-1:] == (2000,) and len(value) != hidden else 0)
            return value

        with MostPlaces(2000) as made:
            with saved_tensors_hooks(keep, lambda value: value):
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
        policy, learner = parts.state.policy, parts.learner
        if chunked:
            in_chunks(monkeypatch, policy)
        batch = off_policy(policy, batch)
        metrics = learner.metrics(learner.update(parts.state, batch, int(batch.mask_BT.sum())))
        kl = learner.kl_to_reference(policy, batch)
        optimizer = make_supervised_optimizer(policy, 0.01)
        loss = supervised_step(policy, optimizer, ["1+2=", "3+4="], ["3", "7"], False)
        results.append({**metrics, "kl": kl, "sft": loss, **parts.evaluator().metrics})
    whole, pieces = results
    assert whole["kl"] > 0
    assert pieces == pytest.approx(whole, rel=1e-4, abs=1e-6, nan_ok=True)


def gemma(llama: Policy) -> Gemma2ForCausalLM:
    """A tiny Gemma 2 for the same tokenizer."""
    config = Gemma2Config(
        **{"vocab_size": llama.vocabulary, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "final_logit_softcapping": 2.0},
        **{"pad_token_id": llama.pad, "eos_token_id": llama.end, "bos_token_id": None},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Gemma2ForCausalLM(config).eval()


def test_logits_that_are_more_than_the_heads_product_are_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 2 caps its logits: the head's product with its hidden states would be another distribution."""
    parts, batch = sampled()
    llama = parts.state.policy
    policy = replace(llama, model=gemma(llama), bare_head=False, break_even=None)
    with torch.no_grad():
        policy.model.lm_head.weight *= 50  # tied; far beyond the cap
    assert has_bare_head(llama)
    assert not has_bare_head(policy)
    whole_BT, _ = token_log_probs(policy, batch)
    in_chunks(monkeypatch, policy)
    pieces_BT, _ = token_log_probs(policy, batch)
    torch.testing.assert_close(pieces_BT[batch.mask_BT], whole_BT[batch.mask_BT], rtol=1e-5, atol=1e-5)
    assert (whole_BT[batch.mask_BT] >= -4 - math.log(policy.vocabulary)).all()


def update_of(break_even: float | None, **changes: Any) -> tuple[dict[str, float], Tensor]:
    """Metrics and gradient of an update whose ratios are not 1, in micro-batches of 4; KL and evaluation behind."""
    parts, batch = sampled(**changes, micro_batch_size=4)
    policy, learner = parts.state.policy, parts.learner
    policy.break_even = break_even
    batch = off_policy(policy, batch)
    (minibatch,) = learner.minibatches(policy, batch, 0)
    update = learner.update(parts.state, minibatch, int(batch.mask_BT.sum()))
    return {**learner.metrics(update), "kl": learner.kl_to_reference(policy, batch)}, gradient_of(policy)


@by_reach
@pytest.mark.parametrize("switch", ["gradient_checkpointing", "sort_by_length"])
def test_a_switch_changes_an_update_by_no_more_than_rounding(switch: str, break_even: float | None) -> None:
    (off, off_gradient), (on, on_gradient) = update_of(break_even), update_of(break_even, **{switch: True})
    assert on == pytest.approx(off, rel=1e-4, abs=1e-6, nan_ok=True)
    assert (on_gradient - off_gradient).norm() <= 1e-5 * off_gradient.norm()


@by_reach
def test_layers_that_are_computed_again_keep_less_and_drop_nothing_out(break_even: float | None) -> None:
    kept: dict[bool, int] = {}
    for switch in (False, True):
        parts, batch = sampled(gradient_checkpointing=switch)
        policy = parts.state.policy
        policy.model.model.layers[0].self_attn.attention_dropout = 0.5
        sizes: dict[int, int] = {}

        def keep(value: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[value.data_ptr()] = value.numel()
            return value

        batch = batch.with_trees(len(batch), break_even)
        with saved_tensors_hooks(keep, lambda value: value):
            first_BT, _ = token_log_probs(policy, batch)
        assert torch.equal(first_BT, token_log_probs(policy, batch)[0])
        first_BT.sum().backward()  # the layer runs again
        assert not any(module.training for module in policy.model.modules())
        kept[switch] = sum(sizes.values())
    assert kept[True] < 0.8 * kept[False]


def test_a_head_that_is_more_than_a_product_is_no_float32_head(tmp_path: Path) -> None:
    policy = tiny_parts().state.policy
    gemma(policy).save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(RequestError, match="head_dtype=float32: a model of kind gemma2 has more than a head"):
        tiny_parts(model=pretrained(tmp_path), head_dtype="float32")
