"""A completion ends where a stop string does: what is cut, what trains, and that nothing else changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import pretrained, tiny_parts, tiny_policy, tiny_settings
from transformers import LlamaConfig, LlamaForCausalLM

from grpolab.grpo.batch import decode, encode, prompt_tensors
from grpolab.grpo.decoding import sample, sampling_noise
from grpolab.grpo.loading import character_tokenizer
from grpolab.grpo.model import Policy, old_log_probs
from grpolab.paths import Results
from grpolab.run import preflight

STOP = ("12", "7", "+=")


def sampled(policy: Policy, length: int = 24) -> tuple[Any, list[str]]:
    prompts = prompt_tensors(policy.tokenizer, ["1+2=", "3+4="], False, policy.device)
    completions = sample(policy, prompts, 32, sampling_noise(3, "rollout", 0, 2, 32, length))
    return completions, decode(policy.tokenizer, completions.tokens_BT, completions.mask_BT, policy.stop)


@pytest.mark.parametrize(("pad_is_end", "on_gpu"), [(False, False), (True, False), (True, True)])
def test_a_completion_ends_with_the_first_stop_string_and_is_the_same_up_to_it(
    pad_is_end: bool, on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the sampler's way on a GPU too, where rows that have ended go on with padding."""
    monkeypatch.setattr(Policy, "on_gpu", on_gpu)
    policy = tiny_policy()
    if pad_is_end:
        policy.tokenizer.pad_token = policy.tokenizer.eos_token
    plain, texts = sampled(policy)
    cut, cut_texts = sampled(replace(policy, stop=STOP))
    places = [min((text.find(stop) + len(stop) for stop in STOP if stop in text), default=None) for text in texts]
    assert {place is None for place in places} == {True, False}
    assert cut_texts == [text[:place] for text, place in zip(texts, places, strict=True)]
    for row, place in enumerate(places):
        length = int(cut.mask_BT[row].sum())
        ends = [
            decode(policy.tokenizer, cut.tokens_BT[[row], :to], cut.mask_BT[[row], :to])[0]
            for to in (length, length - 1)
        ]
        assert ends[0] == cut_texts[row], "one token a character"
        assert length == plain.mask_BT[row].sum() if place is None else not any(stop in ends[1] for stop in STOP)
        assert cut.tokens_BT[row, :length].equal(plain.tokens_BT[row, :length])
        assert (cut.tokens_BT[row, length:] == policy.pad).all()
    kept = cut.log_probs_BT[cut.mask_BT]
    torch.testing.assert_close(kept, plain.log_probs_BT[:, : cut.mask_BT.shape[1]][cut.mask_BT], rtol=0, atol=1e-5)


def lines(folder: Path, name: str, count: int) -> str:
    rows = [{"question": f"{name}{number}=", "answer": "12"} for number in range(count)]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / f"{name}.jsonl")


def task_of(folder: Path, **changes: Any) -> dict[str, Any]:
    keys = {"prompt_key": "question", "answer_key": "answer", "template": "{prompt}", "chat": False}
    files = {"train_file": lines(folder, "a", 8), "evaluation_file": lines(folder, "b", 4)}
    return {"name": "jsonl", **files, **keys, **dict.fromkeys(("system", "stop", "format", "verifier")), **changes}


def test_a_stopped_completion_is_not_truncated_and_its_log_probs_are_the_trainers(tmp_path: Path) -> None:
    stop = list("abcdefgABCDEFG")
    parts = tiny_parts(task=task_of(tmp_path, stop=stop), max_completion_length=8, prompts_per_step=8)
    policy = parts.state.policy
    rollout = parts.learner.collector.rollout(policy, 0)
    stopped_B = torch.tensor([text.endswith(tuple(stop)) for text in rollout.texts_B])
    ended_B = (rollout.completions.tokens_BT == policy.end).any(1)
    assert stopped_B.any()
    assert rollout.truncated_B.any()
    assert rollout.truncated_B.equal(~(stopped_B | ended_B))
    trainer_BT, _ = old_log_probs(policy, rollout.batch, 8)
    gap_BT = (trainer_BT - rollout.batch.sampler_log_probs_BT).abs()
    assert gap_BT[rollout.batch.mask_BT].max() < 1e-5
    assert parts.evaluator().metrics["eval/length_mean"] < 8
    unset = tiny_settings(task=task_of(tmp_path))
    assert "stop" not in unset.identity()["task"], "where it is unset a run's signature is as it was"


def test_a_system_prompt_stands_before_the_users_turn_and_must_be_shown(tmp_path: Path, results: Results) -> None:
    tokenizer = character_tokenizer("".join(map(chr, range(32, 127))))
    tokenizer.chat_template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    (ids,) = encode(tokenizer, ["1+2="], chat="Be brief.")
    assert tokenizer.decode(ids) == "[system]Be brief.[user]1+2="
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "model")
    task = task_of(tmp_path, chat=True, system="Be brief.")

    def problems(template: str) -> list[str]:
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path / "model")
        return preflight.check(tiny_settings(task=task, model=pretrained(tmp_path / "model")), results)

    assert problems(tokenizer.chat_template) == []
    (left_out,) = problems("{{ messages[-1]['content'] }}")
    assert left_out.startswith("task.system='Be brief.': the chat template of model.path=")
    assert "leaves the system prompt out" in left_out
    (refused,) = problems("{{ raise_exception('System role not supported') }}")
    assert "refuses a system prompt (System role not supported)" in refused
    assert preflight.check(tiny_settings(task=task), results) == [], "a tiny model reads it too"
