"""A model and tokenizer from a folder are trained as the tiny ones are, in float32 and in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import pretrained, records, run_folder, tiny_settings
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from grpolab.grpo.loading import character_tokenizer
from grpolab.paths import Results
from grpolab.run.train import run
from grpolab.vocabulary import SAMPLED_EVALUATION


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with tied embeddings and grouped heads, saved in bfloat16 as models on the hub are."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = character_tokenizer("0123456789+= QA:\n")
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_dropout": 0.5}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=True)
    LlamaForCausalLM(config).bfloat16().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("warm_steps", [0, 2])
def test_two_rollout_steps(dtype: str, warm_steps: int, folder: Path, results: Results) -> None:
    shape = {"rollout_steps": 2, "micro_batch_size": 4, "warm_start": {"max_steps": warm_steps}}
    settings = tiny_settings(model=pretrained(folder), dtype=dtype, **shape)
    outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome["error"]
    run_path = run_folder(settings, results)
    start, end = load_file(folder / "model.safetensors"), load_file(run_path / "policy.safetensors")
    assert end.keys() == start.keys()  # tied weights once
    assert any((end[name] != weight.float()).any() for name, weight in start.items())
    rollouts, updates = records(run_path, "rollout"), records(run_path, "update")
    assert all(rollout["gap/first_pass"] == 0 for rollout in rollouts)
    assert [u["clip/out_of_range"] == 0 for u in updates if u["iteration"] == 0] == [True, True]
    gap = max(rollout["gap/sampler_trainer"] for rollout in rollouts)
    assert gap <= (1e-4 if dtype == "float32" else 0.1)


def test_jsonl_prompts_with_a_chat_template(folder: Path, results: Results, tmp_path: Path) -> None:
    """A user's files, prompts of different lengths, an answer behind `Q: ... A:`."""
    sums = [(a, b) for a in range(4) for b in range(8, 12)]
    for name, chosen in (("train", sums[:12]), ("evaluation", sums[12:])):
        lines = "".join(f'{{"question": "{a}+{b}=", "answer": "{a + b}"}}\n' for a, b in chosen)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    files = {f"{name}_file": str(tmp_path / f"{name}.jsonl") for name in ("train", "evaluation")}
    keys = {"prompt_key": "question", "answer_key": "answer", "template": "Q: {prompt}\nA:", "chat": True}
    keys |= {"system": "Add.", **dict.fromkeys(("stop", "format", "verifier"))}
    settings = tiny_settings(task={"name": "jsonl", **files, **keys}, model=pretrained(folder), rollout_steps=2)
    outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome["error"]
    assert set(outcome["final"]) == {*SAMPLED_EVALUATION, "eval/maj_at_k"}


class Deterministic(TorchDispatchMode):
    """Refuses what `torch.use_deterministic_algorithms` refuses on a GPU, as far as a run could call it."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.split(".")[0]
        refused = name in ("histc", "median", "kthvalue", "put_", "nll_loss_forward") or (
            name == "cumsum" and args[0].is_floating_point()
        )
        assert not refused, f"a deterministic GPU has no {name} of {args[0].dtype}"
        return function(*args, **(kwargs or {}))


def test_a_run_on_a_gpu_asks_for_nothing_that_is_not_deterministic(
    folder: Path, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    with Deterministic():
        outcome = run(tiny_settings(model=pretrained(folder), warm_start={"max_steps": 2}, num_minibatches=2), results)
    assert outcome["outcome"] == "completed", outcome["error"]
