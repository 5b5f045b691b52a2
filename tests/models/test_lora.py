"""Adapters: they begin as the model without them, alone are trained, and their gradient is that of the product."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import pretrained, records, run_folder, tiny_parts, tiny_policy, tiny_settings
from transformers import GPT2Config, GPT2LMHeadModel

from grpolab.errors import RequestError
from grpolab.grpo.model import Policy, old_log_probs, token_log_probs
from grpolab.grpo.sampler import refresh_sampler
from grpolab.models.int8 import round_to_int8
from grpolab.models.lora import find_problems, merged
from grpolab.paths import Results
from grpolab.run.assembly import RunParts
from grpolab.run.train import Interrupted, run

needs_peft = pytest.mark.optional
LORA = {"rank": 2, "alpha": 6, "targets": None}
SCALE = 3.0


def step(parts: RunParts) -> None:
    batch = parts.learner.collect(parts.state).batch
    for _ in range(2):
        (minibatch,) = parts.learner.minibatches(parts.state.policy, batch, parts.state.rollout_step)
        parts.learner.update(parts.state, minibatch, int(batch.mask_BT.sum()))
    parts.state.rollout_step += 1


def disturb(policy: Policy) -> None:
    """Move the second matrices away from 0, so that the adapters do something."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in policy.weights().items():
            if "lora_B" in name:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))


def plain(policy: Policy, **changes: Any) -> Policy:
    """A model without adapters that has the merged weights."""
    other = tiny_policy(**changes)
    other.load_weights(merged(policy))
    return other


@pytest.fixture
def gpt2(tmp_path: Path) -> dict[str, Any]:
    """A model whose linear layers are transformers' Conv1D, with weights (I, O)."""
    tokenizer = tiny_policy().tokenizer
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2, **ends)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    return {"model": pretrained(tmp_path / "gpt2")}


@needs_peft
def test_a_policy_begins_as_the_model_without_adapters() -> None:
    with_them, without = tiny_parts(lora=LORA), tiny_parts()
    batches = [parts.learner.collect(parts.state).batch for parts in (with_them, without)]
    assert torch.equal(batches[0].tokens_BT, batches[1].tokens_BT)
    log_probs = [token_log_probs(parts.state.policy, batches[0])[0] for parts in (with_them, without)]
    torch.testing.assert_close(*log_probs, rtol=0, atol=1e-6)  # the head's product rounds by where its input lies
    with_them.learner.check(with_them.learner.update(with_them.state, batches[0], int(batches[0].mask_BT.sum())))


@needs_peft
def test_only_adapters_are_trained() -> None:
    parts = tiny_parts(lora=LORA)
    model = parts.state.policy.model
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    step(parts)
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed == set(parts.state.policy.weights()) == {name for name in before if "lora_" in name}
    layers, sizes = 7, {name: tuple(weight.shape) for name, weight in parts.state.policy.weights().items()}
    assert len(sizes) == 2 * layers
    assert all(2 in size for size in sizes.values())


@needs_peft
@pytest.mark.parametrize(("kind", "layers"), [("llama", 7), ("gpt2", 4)])
def test_the_gradient_is_that_of_the_product(kind: str, layers: int, gpt2: dict[str, Any]) -> None:
    """W' = W + scale B A, so dL/dB = scale dL/dW' A^T and dL/dA = scale B^T dL/dW'; GPT-2 keeps the transpose of W."""
    changes = gpt2 if kind == "gpt2" else {}
    parts = tiny_parts(lora=LORA, **changes)
    policy = parts.state.policy
    disturb(policy)
    batch, whole = parts.learner.collect(parts.state).batch, plain(policy, **changes)
    for each in (policy, whole):
        log_probs_BT, _ = token_log_probs(each, batch)
        log_probs_BT[batch.mask_BT].sum().backward()
    weights, compared = policy.weights(), 0
    for name, weight in whole.weights().items():
        if (first := name.replace(".weight", ".lora_A.default.weight")) in weights:
            a_RI, b_OR = weights[first], weights[first.replace("lora_A", "lora_B")]
            assert weight.grad is not None
            grad_OI = weight.grad.T if kind == "gpt2" else weight.grad
            torch.testing.assert_close(b_OR.grad, SCALE * grad_OI @ a_RI.T, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(a_RI.grad, SCALE * b_OR.T @ grad_OI, rtol=1e-4, atol=1e-4)
            compared += 1
    assert compared == layers


@needs_peft
def test_gpt2_has_its_own_names_of_layers(gpt2: dict[str, Any], recwarn: pytest.WarningsRecorder) -> None:
    (problem,) = find_problems(tiny_settings(lora={**LORA, "targets": ["attn.c_proj", "q_proj"]}, **gpt2))
    assert problem.endswith("called q_proj: it must be one of c_attn, c_fc, c_proj")
    names = set(tiny_parts(lora={**LORA, "targets": ["attn.c_proj"]}, **gpt2).state.policy.weights())
    assert names == {f"transformer.h.0.attn.c_proj.lora_{part}.default.weight" for part in "AB"}
    assert not [warning for warning in recwarn if "fan_in_fan_out" in str(warning.message)]


@needs_peft
def test_an_int8_sampler_rounds_what_lies_below_adapters_and_once() -> None:
    """As an engine has a quantised model and serves an adapter beside it: what is trained is not rounded."""
    parts = tiny_parts(lora=LORA, sampler_dtype="int8")
    trainer, sampler = parts.state.policy, parts.state.sampler
    assert sampler is not None
    disturb(trainer)
    for _ in range(2):  # rounding what is rounded could move it, and a run that is resumed begins anew
        refresh_sampler(sampler, trainer, parts.settings)
    rounded = 0
    for (name, mine), theirs in zip(sampler.model.named_parameters(), trainer.model.parameters(), strict=True):
        is_below = ".base_layer." in name
        assert torch.equal(mine, round_to_int8(theirs.detach()) if is_below else theirs), name
        rounded += is_below
    assert rounded == 7


@needs_peft
def test_an_int8_sampler_of_a_model_without_linear_layers_is_refused(gpt2: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="a model of kind gpt2 has no linear layers"):
        tiny_parts(lora=LORA, sampler_dtype="int8", **gpt2)


@needs_peft
def test_with_the_adapters_off_it_is_the_reference() -> None:
    parts = tiny_parts(lora=LORA, beta=0.1)
    start, policy = copy.deepcopy(tiny_policy()), parts.state.policy
    reference = parts.learner.collector.reference
    assert reference is not None
    assert reference.model is policy.model  # no copy
    disturb(policy)
    batch = parts.learner.collect(parts.state).batch
    of_start, _ = old_log_probs(start, batch, 4)
    of_reference, _ = old_log_probs(reference, batch, 4)
    assert torch.equal(of_start, of_reference)
    assert not torch.allclose(old_log_probs(policy, batch, 4)[0], of_start)
    assert batch.reference_log_probs_BT is not None
    assert torch.equal(batch.reference_log_probs_BT[batch.mask_BT], of_start[batch.mask_BT])
    step(parts)  # the gradient flows though the adapters were off in between
    assert parts.learner.kl_to_reference(policy, batch) > 0


@needs_peft
def test_merged_weights_are_the_policy() -> None:
    parts = tiny_parts(lora=LORA)
    disturb(parts.state.policy)
    batch = parts.learner.collect(parts.state).batch
    log_probs = [token_log_probs(each, batch)[0] for each in (parts.state.policy, plain(parts.state.policy))]
    torch.testing.assert_close(*log_probs, rtol=1e-4, atol=1e-5)


@needs_peft
def test_a_killed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    settings = tiny_settings(lora=LORA, beta=0.1, warm_start={"max_steps": 4})
    whole, cut = (Results.open(tmp_path / name) for name in ("whole", "cut"))
    finished = run(settings, whole)
    with pytest.raises(Interrupted):
        run(settings, cut, stop=lambda: True)
    assert run(settings, cut)["policy_sha256"] == finished["policy_sha256"]
    assert records(run_folder(settings, cut)) == records(run_folder(settings, whole))


def test_arms_share_the_warm_start_and_runs_without_are_what_they_were() -> None:
    with_them, without = tiny_settings(lora=LORA), tiny_settings(lora=None)
    assert with_them.warm_start_signature == without.warm_start_signature == tiny_settings().warm_start_signature
    assert with_them.signature != without.signature == tiny_settings().signature


@needs_peft
def test_seeds_draw_other_adapters() -> None:
    weights = [tiny_parts(lora=LORA, seed=seed).state.policy.weights() for seed in (0, 0, 1)]
    first = next(iter(weights[0]))
    assert torch.equal(weights[0][first], weights[1][first])
    assert not torch.equal(weights[0][first], weights[2][first])


@needs_peft
def test_what_cannot_be_is_refused() -> None:
    (problem,) = find_problems(tiny_settings(lora={**LORA, "targets": ["q_proj", "qproj"]}))
    assert "qproj" in problem
    assert "down_proj, gate_proj" in problem
    assert "lm_head" not in problem
    with pytest.raises(ValueError, match="compile=true"):
        tiny_settings(lora=LORA, compile=True)


def test_without_peft_a_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (problem,) = find_problems(tiny_settings(lora=LORA))
    assert "make extras WHAT=lora" in problem
