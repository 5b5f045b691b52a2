"""What is known to be wrong before anything starts is said then, all at once."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import pretrained, run_folder, tiny_settings
from transformers import LlamaConfig, LlamaForCausalLM

from grpolab.errors import RequestError
from grpolab.grpo.loading import character_tokenizer
from grpolab.paths import Results, plain, read_json
from grpolab.run import memory, preflight, train
from grpolab.settings.resolved import Resolved, resolve_run
from grpolab.studies import train as command
from grpolab.studies.command_line import cell_of
from grpolab.sweep import jobs
from grpolab.sweep.compose import compose
from grpolab.sweep.worker import Worker
from grpolab.tasks import make_task
from grpolab.tasks.generated import CharCount
from grpolab.tasks.imports import load_object


def jsonl(train: Path, evaluation: Path, template: str = "{prompt}") -> dict[str, Any]:
    keys = {"prompt_key": "question", "answer_key": "answer", "template": template, "chat": False}
    keys |= dict.fromkeys(("system", "stop", "format", "verifier"))
    return {"name": "jsonl", "train_file": str(train), "evaluation_file": str(evaluation), **keys}


def test_a_sound_run_has_no_problem(results: Results) -> None:
    assert preflight.check(tiny_settings(), results) == []
    assert list(results.root.iterdir()) == [results.root / "format.json"]


def test_everything_that_is_wrong_is_said(results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5 * 2**20))
    (tmp_path / "train.jsonl").write_text('{"question": "a", "answer": "1"}\nnot json\n')
    settings = tiny_settings(task=jsonl(tmp_path / "train.jsonl", tmp_path / "absent.jsonl", template="x"))
    disk, line, absent, template = preflight.check(settings, results)
    assert "5 MiB left" in disk
    assert "train.jsonl, line 2: not JSON" in line
    assert absent == f"task.evaluation_file={tmp_path}/absent.jsonl: no such file"
    assert "task.template" in template


def reward_of(function: str | None, part: str) -> dict[str, Any]:
    return {"reward": {"function": function, "weights": {part: 1.0}}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"task": {"name": "custom", "path": "own_task:Absent", "options": {}}}, "task.path=own_task:Absent cannot"),
        ({"task": {"name": "custom", "path": "own_task:Fragile", "options": {}}}, "do not fit own_task:Fragile"),
        (reward_of("own_task:absent", "correct"), "reward.function=own_task:absent"),
        # A reward is tried on one completion: what would end every run at its first rollout needs no model.
        (reward_of(None, "corect"), "reward.weights: no part called corect"),
        (reward_of("own_task:only_parts", "short"), "correct"),
        (reward_of("own_task:fails", "correct"), "reward.function=own_task:fails raises KeyError"),
    ],
)
def test_what_a_user_wrote_is_tried(changes: dict[str, Any], says: str, results: Results) -> None:
    (problem,) = preflight.check(tiny_settings(**changes), results)
    assert says in problem


def test_compiling_without_a_compiler_is_said(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert preflight.check(tiny_settings(compile=False), results) == []
    (problem,) = preflight.check(tiny_settings(compile=True), results)
    assert problem.startswith("compile=true needs a C++ compiler")


def test_a_model_that_nobody_knows_is_said(results: Results, tmp_path: Path) -> None:
    """Tests are offline: the hub cannot be asked."""
    (broken := tmp_path / "broken").mkdir()
    (broken / "config.json").write_text('{"vocab_size": ')
    no_config = "has no config.json with an object"
    folders = {f"{tmp_path}/absent": "there is no such folder", str(tmp_path): no_config, str(broken): no_config}
    for path, says in {**folders, "no/model": "the local cache"}.items():
        (problem,) = preflight.check(tiny_settings(model=pretrained(path)), results)
        assert problem.startswith(f"model.path={path} is neither a folder with a model nor a model of the hub")
        assert says in problem


# --- A model that cannot read the task's prompts ----------------------------------------------------------------------

CHAT = {"name": "char_count", "min_length": 5, "max_length": 6, "chat": True}


def saved_model(folder: Path, positions: int = 256, **tokens: Any) -> dict[str, Any]:
    """A model in a folder, as settings name it; `tokens`: what its tokenizer lacks, as None."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, intermediate_size=16, max_position_embeddings=positions)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = character_tokenizer(CharCount.alphabet)
    for name, token in tokens.items():
        setattr(tokenizer, name, token)
    tokenizer.save_pretrained(folder)
    return pretrained(folder)


def test_a_prompt_that_the_tokenizer_cannot_wrap_is_said(results: Results, tmp_path: Path) -> None:
    model = saved_model(tmp_path / "model", chat_template=None)
    (problem,) = preflight.check(tiny_settings(task=CHAT, model=model), results)
    assert problem.startswith(f"task.chat=true: the tokenizer of model.path={tmp_path}/model has no chat template")
    assert preflight.check(tiny_settings(task={**CHAT, "chat": False}, model=model), results) == []


def test_more_tokens_than_positions_are_said(results: Results, tmp_path: Path) -> None:
    """`How many n are there in word n-i-n-e-s-s?`: 30 characters and 11 of the word, one token each."""
    model = saved_model(tmp_path / "model", positions=64)
    longest = max(len(example.prompt) for example in make_task(tiny_settings(task=CHAT).task).examples("train", 0))
    room = 64 - longest
    assert preflight.check(tiny_settings(task=CHAT, model=model, max_completion_length=room), results) == []
    (problem,) = preflight.check(tiny_settings(task=CHAT, model=model, max_completion_length=room + 1), results)
    assert problem == (
        f"max_completion_length={room + 1} is too long for model.path={tmp_path}/model: behind the longest prompt"
        f" of {longest} tokens its 64 positions leave {room}"
    )
    (problem,) = preflight.check(tiny_settings(max_completion_length=4096), results)
    assert problem.startswith("max_completion_length=4096 is too long for model=tiny: behind the longest prompt of 4")


def test_characters_and_tokens_that_a_model_lacks_are_said(results: Results, tmp_path: Path) -> None:
    model = saved_model(tmp_path / "model", eos_token=None)
    (problem,) = preflight.check(tiny_settings(task=CHAT, model=model), results)
    assert problem == f"model.path={tmp_path}/model: its tokenizer has no end-of-sequence token"
    for name, question in (("train", "na\u00efve?"), ("evaluation", "plain?")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": question, "answer": "\u221a"}) + "\n")
    task = jsonl(tmp_path / "train.jsonl", tmp_path / "evaluation.jsonl")
    (problem,) = preflight.check(tiny_settings(task=task), results)
    assert all(part in problem for part in ("task=jsonl", "model=tiny", "'ï' '√'"))


# --- Data and code that change between plan and run -------------------------------------------------------------------

CHANGED = "has changed since run {} was planned"
AFTER_IMPORT = "was changed after this process had imported it"


@pytest.fixture
def reward(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A reward of one's own; each test has its own module, since a process imports it once."""
    file = tmp_path / f"reward_of_{request.node.name}.py"
    file.write_text("def score(prompt, answer, completion):\n    return 1.0\n")
    return file


@pytest.fixture
def settings(reward: Path, results: Results) -> Resolved:
    function = reward_of(f"{reward}:score", "correct")
    return tiny_settings(**function, rollout_steps=1, machine={"results": str(results.root)})


def change(reward: Path) -> None:
    reward.write_text(reward.read_text().replace("1.0", "0.5"))


def test_a_worker_refuses_what_is_no_longer_what_was_planned(
    reward: Path, settings: Resolved, results: Results
) -> None:
    job = {"job": "run", "signature": settings.signature, "settings": plain(settings.model_dump())}
    change(reward)
    events: list[dict[str, Any]] = []
    Worker(events.append).answer(job)
    (event,) = events
    assert (event["signature"], event["outcome"]["outcome"]) == (job["signature"], "failed")
    said = CHANGED.format(job["signature"])
    assert event["outcome"]["reason"].startswith(f"reward.function={reward}:score {said}")
    assert [folder.name for folder in results.runs.iterdir()] == [job["signature"]]
    assert not list(results.runs.glob("*/journal.jsonl"))


def test_a_run_whose_data_changes_while_it_begins_fails(
    reward: Path, settings: Resolved, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    assemble, planned = train.assemble, run_folder(settings, results)
    monkeypatch.setattr(train, "assemble", lambda *arguments: (assemble(*arguments), change(reward))[0])
    outcome = train.run(settings, results)
    assert outcome["outcome"] == "failed"
    assert CHANGED.format(planned.name) in outcome["reason"]
    assert [folder.name for folder in results.runs.iterdir()] == [planned.name]
    assert not (planned / "journal.jsonl").exists()


def test_a_command_that_waited_while_its_data_changed_fails(
    reward: Path, results: Results, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"reward.function={reward}:score", f"machine.results={results.root}", "machine.tracking_uri=null"]
    words += ["task.digits=1", "warm_start.max_steps=0", "rollout_steps=1"]
    cell = cell_of(compose(words), words)
    cell.signature  # noqa: B018  (as it was planned)
    monkeypatch.setattr(jobs.Job, "is_taken", lambda *_: change(reward))
    assert command.train(cell, "adhoc", words) == 1
    assert AFTER_IMPORT in capsys.readouterr().out
    assert [folder.name for folder in results.runs.iterdir()] != [], "its failure is written down"


def test_code_that_changed_after_its_import_is_not_run_under_a_new_name(reward: Path) -> None:
    assert load_object("reward.function", f"{reward}:score")("", "", "") == 1.0
    change(reward)
    with pytest.raises(RequestError, match=AFTER_IMPORT):
        load_object("reward.function", f"{reward}:score")


def test_provenance_has_the_hashes(reward: Path, settings: Resolved, results: Results) -> None:
    assert train.run(settings, results)["outcome"] == "completed"
    folder = run_folder(settings, results)
    (sources,) = [part["sources"] for part in (read_json(folder / "provenance.json") or {})["content"].values()]
    assert {name: len(digest) for name, digest in sources.items()} == {reward.stem: 64}
    assert str(reward) in (folder / "settings.yaml").read_text()


# --- Memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def smol(tmp_path: Path) -> dict[str, Any]:
    """A model of SmolLM2-135M's sizes, 134.5 million weights that are not there."""
    sizes = {"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536}
    config = {**sizes, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = memory.Sizes.of(config)
    assert found is not None
    assert found.parameters == pytest.approx(134_515_008, rel=1e-3)
    return pretrained(tmp_path)


def test_a_model_that_cannot_fit_is_refused_with_what_each_part_takes(
    smol: dict[str, Any], results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update needs four copies of the weights, or five with a reference."""
    settings = tiny_settings(model=smol, max_completion_length=200, diagnostics={"kl_ref_every": 0})
    monkeypatch.setattr(memory, "memory_of", lambda device: 2 * 2**30)
    (problem,) = memory.find_problems(settings)
    assert problem == (
        f"model.path={smol['path']} does not fit into the 2.0 GiB of device=cpu, even with micro_batch_size=1: it needs"
        " 2.3 GiB (weights 0.5, gradients 0.5, optimiser 1.0, activations 0.3)"
    )
    (five,) = memory.find_problems(settings.model_copy(update={"beta": 0.1}))
    assert five.endswith("reference 0.5, activations 0.3)")
    assert problem in preflight.check(settings, results)
    small = settings.model_copy(update={"gradient_checkpointing": True, "max_completion_length": 4})
    assert memory.find_problems(small) == [problem.replace("2.3 GiB", "2.0 GiB").replace("0.3)", "0.0)")]
    monkeypatch.setattr(memory, "memory_of", lambda device: 3 * 2**30)
    assert memory.find_problems(settings) == []
    (twice,) = memory.find_problems(settings.model_copy(update={"data_parallel": 2}))
    assert "weights 1.0, gradients 1.0" in twice


def test_a_batch_that_cannot_fit_is_refused(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip of the keyboard: of each token at least its id and two log-probs are kept."""
    monkeypatch.setattr(memory, "memory_of", lambda device: 2**30)
    fitting = tiny_settings(prompts_per_step=2, num_generations=2**20, max_completion_length=32)
    assert memory.find_problems(fitting) == []
    (problem,) = preflight.check(fitting.model_copy(update={"num_generations": 10**30}), results)
    assert problem.startswith(f"prompts_per_step=2 * num_generations={10**30} completions of max_completion_length=32")


@pytest.mark.parametrize(
    ("more", "micro"),
    [
        ([], 16),  # half of the 3 GiB beside weights, gradients and optimiser, at 0.08 GiB a completion
        (["machine.threads=2"], 32),  # one worker has all of it
        (["machine.memory_mib=3000"], 4),
        (["machine.memory_mib=1000"], 1),  # the least there is
        (["gradient_checkpointing=true"], 128),
        (["dtype=bfloat16"], 32),
        (["num_generations=6", "num_minibatches=4"], 16),  # of 48
        (["data_parallel=32", "machine.threads=2"], 1),
        (["loss_type=bnpo"], 256),  # its mean is of a micro-batch
        (["kernel=kl_cov"], 256),  # it compares the tokens of a minibatch
        (["model=tiny"], 256),
        (["micro_batch_size=8"], 8),
        (["micro_batch_size=null"], None),
    ],
)
def test_micro_batches_follow_from_the_memory_of_a_worker(
    smol: dict[str, Any], more: list[str], micro: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine of 10 GiB and two cores."""
    monkeypatch.setattr(memory, "memory_of", lambda device: 10 * 2**30)
    monkeypatch.setattr(memory, "cores", lambda: 2)
    words = ["task=char_count", "max_completion_length=48", "diagnostics.kl_ref_every=0", "device=cpu"]
    words += [] if more == ["model=tiny"] else ["model=pretrained", f"model.path={smol['path']}"]
    settings = compose([*words, "micro_batch_size=auto", *more])
    assert settings.micro_batch_size == micro
    if micro:  # one run with the one that names the number
        named = compose([*words, *more, f"micro_batch_size={micro}"])
        assert resolve_run(settings).identity() == resolve_run(named).identity()
