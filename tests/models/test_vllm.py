"""A run whose completions come from a server that speaks vLLM's addresses (fake_vllm.py); a real one was never here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVllm, served
from tiny import records, run_folder, tiny_policy, tiny_settings

from grpolab.errors import RequestError
from grpolab.models.vllm import Vllm
from grpolab.paths import Results
from grpolab.run.train import run

RUN = {"sampler_engine": "vllm", "diagnostics": {"mismatch": True}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    policy = tiny_policy()
    policy.model.save_pretrained(tmp_path / "served")
    policy.tokenizer.save_pretrained(tmp_path / "served")
    return tmp_path / "served"


def settings_at(url: str, folder: Path, **changes: Any) -> Any:
    engine = {"url": url, "folder": str(folder), "seconds": 60.0}
    return tiny_settings(**RUN, machine={"engine": engine}, **changes)


def test_a_run_samples_there_with_its_own_weights(tmp_path: Path, folder: Path) -> None:
    engine = FakeVllm(folder)
    with served(engine) as url:
        settings, results = settings_at(url, folder, temperature=0.7), Results.open(tmp_path / "results")
        outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome["error"]
    journal = run_folder(settings, results)
    gaps = [record["gap/k3"] for record in records(journal, "rollout")]
    assert len(gaps) == settings.planned_steps == 3
    assert max(gaps) < 1e-9, "the engine had the weights of each step, and its log-probs are at the temperature"
    asked = [address for address, _ in engine.asked]
    assert asked.count("/collective_rpc") == 3
    assert asked.count("/reset_prefix_cache?reset_running_requests=true") == 3
    bodies = [body for address, body in engine.asked if address == "/v1/completions"]
    assert len(bodies) == 3 * settings.prompts_per_step
    assert len({body["seed"] for body in bodies}) == len(bodies)
    assert {body["n"] for body in bodies} == {settings.num_generations}


def test_an_engine_that_keeps_its_weights_shows_in_the_mismatch(tmp_path: Path, folder: Path) -> None:
    with served(FakeVllm(folder, deaf=True)) as url:
        settings, results = settings_at(url, folder), Results.open(tmp_path / "results")
        run(settings, results)
    first, *later = [record["gap/k3"] for record in records(run_folder(settings, results), "rollout")]
    assert first < 1e-9
    assert all(gap > 1e-4 for gap in later)


def test_an_engine_has_one_run_at_a_time(folder: Path) -> None:
    with served(FakeVllm(folder)) as url:
        first, second = (Vllm(settings_at(url, folder)) for _ in range(2))
        first.refresh(tiny_policy())
        with pytest.raises(RequestError, match="serves another run"):
            second.refresh(tiny_policy())


@pytest.mark.slow
def test_two_processes_share_the_prompts_of_one_and_the_first_writes_the_weights(tmp_path: Path, folder: Path) -> None:
    engines, rollouts = [FakeVllm(folder), FakeVllm(folder)], []
    for processes, engine in enumerate(engines, start=1):
        with served(engine) as url:
            settings = settings_at(url, folder, data_parallel=processes)
            outcome = run(settings, results := Results.open(tmp_path / str(processes)))
        assert outcome["outcome"] == "completed", outcome["error"]
        rollouts.append(records(run_folder(settings, results), "rollout"))
    alone, shared = ([body for address, body in engine.asked if "completions" in address] for engine in engines)
    assert len(shared) == len(alone) == 3 * settings.prompts_per_step
    assert sorted(body["seed"] for body in shared) == sorted(body["seed"] for body in alone)
    one, two = ({key: value for key, value in first.items() if key != "kind"} for first, *_ in rollouts)
    assert two == pytest.approx(one, rel=1e-6, abs=1e-7)
    assert [address for address, _ in engines[1].asked].count("/collective_rpc") == 3
    assert max(record["gap/k3"] for record in rollouts[1]) < 1e-9


def test_where_it_stands_is_no_part_of_the_signature(folder: Path) -> None:
    there, elsewhere = settings_at("http://a:1", folder), settings_at("http://b:2", folder / "other")
    assert there.signature == elsewhere.signature != tiny_settings(diagnostics={"mismatch": True}).signature


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ("/collective_rpc", "answers 404 to /collective_rpc: start it with VLLM_SERVER_DEV_MODE=1"),
        ("token_ids", "gives no token_ids"),
    ],
)
def test_a_server_that_lacks_something_ends_the_run_with_a_sentence(
    tmp_path: Path, folder: Path, lacks: str, says: str
) -> None:
    with served(FakeVllm(folder, lacks=lacks)) as url:
        outcome = run(settings_at(url, folder), Results.open(tmp_path / "results"))
    assert outcome["outcome"] == "failed"
    assert says in outcome["reason"] + (outcome["error"] or "")


def test_what_cannot_be_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match="cannot be asked /v1/models"):
        Vllm(settings_at("http://127.0.0.1:9", folder))
    (folder / "model-00002.safetensors").write_bytes(b"")
    with pytest.raises(RequestError, match="it has 2 files of weights"):
        Vllm(settings_at("http://127.0.0.1:9", folder))
    with pytest.raises(ValueError, match=r"needs machine\.engine"):
        tiny_settings(**RUN)
    with pytest.raises(ValueError, match="leave sampler_noise empty"):
        settings_at("http://a:1", folder, sampler_noise=0.1)
