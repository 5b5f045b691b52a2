"""A run's policy as a folder that transformers reads, and that scores what the run scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny import pretrained, records, run_folder, tiny_settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpolab.errors import Damaged, RequestError
from grpolab.models.hugging_face import write_model
from grpolab.paths import Results
from grpolab.run.train import run

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
    assert "| `learning_rate` | `0.01` |" in card


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
