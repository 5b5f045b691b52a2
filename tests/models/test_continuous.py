"""transformers' continuous batching as the sampler, with a tiny Llama on a CPU; no GPU was ever asked."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import pretrained, records, run_folder, tiny_policy, tiny_settings
from torch import Tensor
from transformers import Gemma2Config

from grpolab.errors import RequestError
from grpolab.grpo.batch import Completions, Prompts, TrainingBatch, prompt_tensors
from grpolab.grpo.decoding import prompt_rows
from grpolab.grpo.model import Policy, token_log_probs
from grpolab.grpo.step import Diverged
from grpolab.models import continuous
from grpolab.models.continuous import Continuous
from grpolab.paths import Results
from grpolab.run.memory import Sizes, count_bytes
from grpolab.run.train import Interrupted, run
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import compose

ENGINE = {"sampler_engine": "continuous"}
JSONL = {
    **{"name": "jsonl", "train_file": "train.jsonl", "evaluation_file": "test.jsonl"},
    **{"prompt_key": "question", "answer_key": "answer", "template": "{prompt}", "chat": False},
    **{"system": None, "stop": ["</a>"], "format": None, "verifier": None},
}
TEXTS = "1+2=", "17+30=", "9" * 40 + "+1="  # the last fills more than two pages


@pytest.fixture(scope="module", autouse=True)
def imported_objects_stay() -> Iterator[None]:
    """As in a run: the sampler collects garbage after each batch, and half a million imported objects take a second."""
    gc.freeze()
    yield
    gc.unfreeze()


def sampled(
    policy: Policy, texts: tuple[str, ...] = TEXTS, step: int = 0, **changes: Any
) -> tuple[Prompts, Completions]:
    engine = Continuous(tiny_settings(**ENGINE, **changes))
    engine.refresh(policy)
    prompts = prompt_tensors(policy.tokenizer, texts, False, policy.device)
    return prompts, engine.sample(policy, prompts, step, 0)


def gaps(policy: Policy, prompts: Prompts, completions: Completions) -> Tensor:
    """|log-prob of the sampler - of the trainer| of each token."""
    group = len(completions.tokens_BT) // len(prompts.tokens_PL)
    batch = TrainingBatch.of(prompts, prompt_rows(prompts, group), completions)
    with torch.no_grad():
        log_probs_BT, _ = token_log_probs(policy, batch)
    return (log_probs_BT - completions.log_probs_BT)[completions.mask_BT].abs()


@pytest.mark.parametrize(
    ("texts", "at_once", "changes"),
    [
        (TEXTS, 64, {"temperature": 0.5}),
        (TEXTS, 2, {"max_completion_length": 20}),  # most requests wait, and completions fill pages
        (("1", "2"), 64, {}),  # prompts of one token, which cannot be forked behind all but their last
        (TEXTS, 64, {"num_generations": 1, "advantage_estimator": "none", "scale_rewards": "none"}),
    ],
    ids=["temperature", "waiting", "one token", "one completion"],
)
def test_log_probs_are_the_trainers_and_completions_end(
    monkeypatch: pytest.MonkeyPatch, texts: tuple[str, ...], at_once: int, changes: dict[str, Any]
) -> None:
    monkeypatch.setitem(continuous.AT_ONCE, False, at_once)
    settings, policy = tiny_settings(**changes), tiny_policy(**changes)
    before = torch.get_rng_state()
    prompts, completions = sampled(policy, texts, **changes)
    assert torch.equal(torch.get_rng_state(), before), "the program's own random state is left as it was"
    assert len(completions.tokens_BT) == len(texts) * settings.num_generations
    assert gaps(policy, prompts, completions).max() < 1e-5
    for tokens, mask in zip(completions.tokens_BT, completions.mask_BT, strict=True):
        kept = tokens[mask].tolist()
        assert mask[: len(kept)].all()
        assert policy.end not in kept[:-1]
        assert kept[-1] == policy.end or len(kept) == settings.max_completion_length
        assert set(tokens[~mask].tolist()) <= {policy.pad}


def test_draws_are_the_policys_and_repeat_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(continuous.AT_ONCE, False, 500)
    policy = tiny_policy()
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(20)  # far from uniform
    prompts, completions = sampled(policy, ("1+2=",), num_generations=500, max_completion_length=1)
    with torch.no_grad():
        log_probs_V = policy.log_softmax(policy.model(prompts.tokens_PL).logits[0, -1])
    shares_V = completions.tokens_BT[:, 0].bincount(minlength=policy.vocabulary) / 500
    assert (shares_V - log_probs_V.exp()).abs().max() < 0.08
    first, again, next_step = (sampled(policy, step=step)[1].tokens_BT for step in (0, 0, 1))
    assert torch.equal(first, again)
    assert first.shape != next_step.shape or not torch.equal(first, next_step)


def test_rare_tokens_can_be_left_out() -> None:
    policy = tiny_policy()
    prompts, completions = sampled(policy, ("1+2=",), num_generations=50, max_completion_length=1, top_k=3)
    with torch.no_grad():
        kept = policy.log_softmax(policy.model(prompts.tokens_PL).logits[0, -1]).topk(3)
    assert set(completions.tokens_BT.flatten().tolist()) == set(kept.indices.tolist())
    expected = dict(zip(kept.indices.tolist(), kept.values.log_softmax(0).tolist(), strict=True))
    for token, log_prob in zip(completions.tokens_BT[:, 0].tolist(), completions.log_probs_BT[:, 0], strict=True):
        assert log_prob.item() == pytest.approx(expected[token], abs=1e-5)


@pytest.mark.parametrize("head_dtype", [None, "float32"])
def test_bfloat16_samples_from_a_copy_that_follows_the_weights(head_dtype: str | None) -> None:
    changes = {"dtype": "bfloat16", "head_dtype": head_dtype, "max_completion_length": 20}
    policy, settings = tiny_policy(**changes), tiny_settings(**ENGINE, **changes)
    engine, prompts = Continuous(settings), prompt_tensors(policy.tokenizer, TEXTS, False, policy.device)
    engine.refresh(policy)
    with torch.no_grad():
        for weight in policy.weights().values():
            weight.mul_(2)
    stale = gaps(policy, prompts, engine.sample(policy, prompts, 0, 0))
    engine.refresh(policy)
    fresh = gaps(policy, prompts, engine.sample(policy, prompts, 0, 0))
    assert fresh.mean() < 0.02 < stale.mean()
    assert (engine.model.dtype, policy.model.dtype) == (torch.bfloat16, torch.float32)


def test_the_memory_of_the_copy_is_said() -> None:
    settings = tiny_settings(**ENGINE, dtype="bfloat16")
    sizes = Sizes.of(tiny_policy().model.config.to_dict())
    assert sizes is not None
    assert count_bytes(sizes, settings, 1)["sampler"] == 2 * sizes.parameters
    assert count_bytes(sizes, tiny_settings(**ENGINE), 1)["sampler"] == 0, "the policy's own module samples"


def test_a_run_trains_and_repeats_itself_and_goes_on_to_the_bit(tmp_path: Path) -> None:
    settings = tiny_settings(
        **ENGINE, rollout_steps=2, diagnostics={"mismatch": True}, machine={"checkpoint_seconds": 0.0}
    )
    straight, stopped = (Results.open(tmp_path / name) for name in ("straight", "stopped"))
    outcome = run(settings, straight)
    assert outcome["outcome"] == "completed", outcome["error"]
    rollouts = records(run_folder(settings, straight), "rollout")
    assert [record["gap/k3"] < 1e-9 for record in rollouts] == [True, True], "each step has the weights of that step"
    assert all(record["weights/step_norm"] > 0 for record in rollouts)
    done = [0]
    with pytest.raises(Interrupted):
        run(settings, stopped, on_step=done.append, stop=lambda: done[-1] >= 1)
    assert run(settings, stopped)["journal_sha256"] == outcome["journal_sha256"]


def test_what_a_gpu_wants_is_rehearsed_here(tmp_path: Path) -> None:
    small = ["prompts_per_step=2", "rollout_steps=2", "warm_start.max_steps=0", "evaluation.items=4"]
    quiet = ["diagnostics.mismatch=true", "machine.tracking_uri=null"]
    settings = resolve_run(compose(["scale=gpu", "device=cpu", *small, *quiet]))
    assert (settings.sampler_engine, settings.dtype, settings.head_dtype) == ("continuous", "bfloat16", "float32")
    results = Results.open(tmp_path)
    outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome["error"]
    assert all(0 < record["gap/k3"] < 1e-3 for record in records(run_folder(settings, results), "rollout"))


def test_weights_that_are_not_finite_are_an_outcome() -> None:
    policy = tiny_policy()
    with torch.no_grad():
        next(iter(policy.weights().values()))[0] = torch.nan
    with pytest.raises(Diverged, match="no longer finite"):
        sampled(policy)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"min_p": 0.1}, "leave min_p=0.1 empty"),
        ({"data_parallel": 2}, "data_parallel=2: sampler_engine=continuous draws all completions of a batch from one"),
        ({"top_p": 0.9, "device": "cuda"}, "no fixed order: leave top_p=0.9 empty"),
        ({"task": JSONL}, r"tokens alone: leave task.stop=\['</a>'\] empty"),
    ],
    ids=["min_p", "data_parallel", "top_p", "stop"],
)
def test_what_it_lacks_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        Continuous(tiny_settings(**ENGINE, **changes))


def test_a_model_without_paged_attention_is_refused(tmp_path: Path) -> None:
    config = Gemma2Config(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, head_dim=8)
    config.save_pretrained(tmp_path)
    with pytest.raises(RequestError, match=r"gemma2 \(model.path=.*\) has not: leave sampler_engine empty"):
        Continuous(tiny_settings(**ENGINE, model=pretrained(tmp_path)))


def test_settings_of_other_samplers_are_refused() -> None:
    with pytest.raises(ValueError, match="leave sampler_noise empty"):
        tiny_settings(**ENGINE, sampler_noise=0.1)
    assert tiny_settings(**ENGINE).signature != tiny_settings().signature
