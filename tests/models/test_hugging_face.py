"""A run's policy as a folder that transformers reads, and that scores what the run scored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny import pretrained, records, run_folder, tiny_settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpolab.errors import Damaged, RequestError
from grpolab.models.hugging_face import model_card, write_model
from grpolab.paths import Results
from grpolab.run.train import run
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import compose

LORA = {"rank": 2, "alpha": 6, "targets": ["q_proj", "down_proj"]}


ADAPTERS = pytest.param({"lora": LORA, "warm_start": {"max_steps": 4}}, id="adapters", marks=pytest.mark.optional)


@pytest.mark.parametrize("changes", [pytest.param({}, id="weights"), ADAPTERS])
def test_a_folder_scores_what_the_run_scored(tmp_path: Path, changes: dict[str, Any]) -> None:
    results = Results.open(tmp_path / "results")
    settings = tiny_settings(**changes)
    outcome = run(settings, results)
    write_model(results, run_folder(settings, results), tmp_path / "model")
    again = tiny_settings(model=pretrained(tmp_path / "model"), warm_start={"max_steps": 0}, rollout_steps=1)
    run(again, results)
    first = records(run_folder(again, results), "evaluation")[0]
    for metric, value in outcome["final"].items():
        assert first[metric] == pytest.approx(value, rel=1e-5)
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"run `{settings.signature}`" in card
    assert f"| `eval/accuracy_expected` | {outcome['final']['eval/accuracy_expected']:.6g} |" in card
    assert "\nlearning_rate: 0.01\n" in card
    for file in (tmp_path / "model").glob("*.*"):
        assert str(tmp_path).encode() not in file.read_bytes(), file


def test_others_load_and_sample_it(tmp_path: Path) -> None:
    results, settings = Results.open(tmp_path / "results"), tiny_settings()
    run(settings, results)
    write_model(results, run_folder(settings, results), tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    inputs = tokenizer(["1+1="], return_tensors="pt")
    torch.manual_seed(0)
    tokens = model.generate(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask)
    assert tokens.shape[1] <= inputs.input_ids.shape[1] + settings.max_completion_length
    assert set(tokenizer.decode(tokens[0], skip_special_tokens=True)) <= set("0123456789+=")


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    results, settings = Results.open(tmp_path / "results"), tiny_settings()
    folder = run_folder(settings, results)
    folder.mkdir(parents=True)
    with pytest.raises(RequestError, match="has no final weights"):
        write_model(results, folder, tmp_path / "model")
    run(settings, results)
    with pytest.raises(RequestError, match="is there already"):
        write_model(results, folder, tmp_path)
    weights = folder / "policy.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(Damaged, match="policy_sha256"):
        write_model(results, folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_card_names_files_without_their_place_and_keeps_every_value(tmp_path: Path) -> None:
    system = f"Think | then\n```\nanswer in {tmp_path}/notes/plan.txt, /no_think"
    words = {
        **{"model": "pretrained", "model.path": f"{tmp_path}/base", "task": "jsonl", "task.chat": "true"},
        **{"task.train_file": f"{tmp_path}/data/train.jsonl", "task.evaluation_file": "'~/test.jsonl'"},
        **{"task.format": "'a|b'", "task.stop": "['|', '`']", "task.verifier": "code"},
        **{"reward.sandbox": f"{{command: 'nice {tmp_path}/bin/sandbox --net=none', seconds: 5}}"},
        "reward.function": f"{tmp_path}/my/reward.py:score",
    }
    plain = compose([f"{key}={value}" for key, value in words.items()])
    settings = resolve_run(plain.model_copy(update={"task": plain.task.model_copy(update={"system": system})}))
    card = model_card(settings, "0123", {"outcome": "completed", "final": {}})
    assert str(tmp_path) not in card
    assert "base_model" not in card
    assert "\n# base, trained by GRPO on jsonl\n" in card
    fence = "````"
    values = yaml.safe_load(card.partition(f"{fence}yaml\n")[2].partition(fence)[0])
    assert (values["model.path"], values["reward.function"]) == ("base", "reward.py:score")
    assert (values["task.train_file"], values["task.evaluation_file"]) == ("train.jsonl", "test.jsonl")
    assert (values["task.format"], values["task.stop"]) == ("a|b", ["|", "`"])
    assert values["reward.sandbox.command"] == "nice sandbox --net=none"
    assert values["task.system"] == "Think | then\n```\nanswer in plan.txt, /no_think"
    hub = settings.model_copy(update={"model": settings.model.model_copy(update={"path": "org/name"})})
    assert "\nbase_model: org/name\n" in model_card(hub, "0123", {"outcome": "completed", "final": {}})


def test_a_card_says_which_other_policy_sampled() -> None:
    def card(**changes: Any) -> str:
        return model_card(tiny_settings(**changes), "0123", {"outcome": "completed", "final": {}})

    said = "\nThey learnt from completions that another policy sampled: "
    assert said not in card() + card(sampler_dtype="float32")
    assert f"{said}`top_k=5`, `sampler_dtype=int8`, `sampler_noise=0.1`." in card(
        sampler_dtype="int8", sampler_noise=0.1, top_k=5
    )
    assert f"{said}`staleness=1`, `sampler_engine=continuous`." in card(sampler_engine="continuous", staleness=1)


def test_a_run_that_diverged_is_written_if_its_last_weights_are_finite(tmp_path: Path) -> None:
    results, switches = Results.open(tmp_path / "results"), {"max_grad_norm": math.inf, "num_iterations": 1}
    lost = tiny_settings(**switches, learning_rate=1e38)
    assert run(lost, results)["outcome"] == "diverged"
    with pytest.raises(RequestError, match=r"diverged \(.*, and the weights it kept are not finite"):
        write_model(results, run_folder(lost, results), tmp_path / "model")
    assert not (tmp_path / "model").exists()
    kept = tiny_settings(**switches | {"num_iterations": 3}, learning_rate=1e12)
    assert run(kept, results)["outcome"] == "diverged"
    write_model(results, run_folder(kept, results), tmp_path / "model")
    assert "\nThey are those of its last finite optimiser step (loss " in (tmp_path / "model" / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert all(bool(weight.isfinite().all()) for weight in model.parameters())


def test_a_run_from_before_a_key_is_written_and_one_with_an_unknown_key_refused(tmp_path: Path) -> None:
    results, settings = Results.open(tmp_path / "results"), tiny_settings()
    run(settings, results)
    file = run_folder(settings, results) / "settings.yaml"
    values = yaml.safe_load(file.read_text())
    del values["lora"], values["reward"]["sandbox"]
    file.write_text(yaml.safe_dump(values))
    write_model(results, file.parent, tmp_path / "model")
    file.write_text(yaml.safe_dump({**values, "of_tomorrow": 1}))
    with pytest.raises(RequestError, match="was made by another version: of_tomorrow"):
        write_model(results, file.parent, tmp_path / "other")


@pytest.mark.optional
def test_adapters_need_the_warm_start_that_they_had(tmp_path: Path) -> None:
    results, settings = Results.open(tmp_path / "results"), tiny_settings(lora=LORA, warm_start={"max_steps": 4})
    run(settings, results)
    (folder,) = results.warm_starts.iterdir()
    (folder / "outcome.json").unlink()
    with pytest.raises(RequestError, match="is not there as it was"):
        write_model(results, run_folder(settings, results), tmp_path / "model")
