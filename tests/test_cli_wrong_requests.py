"""A wrong request: exit code 2, one sentence for each problem, no traceback, nothing started and nothing written."""

import json
from pathlib import Path

import pytest

from grpolab.cli import main
from grpolab.sweep import pool

WRONG = [
    (["train", "epsilom=0.2"], "epsilom is unknown (did you mean epsilon"),
    (["train", "+epsilom=0.2"], "epsilom is unknown"),
    (["train", "epsilon=-0.1"], "epsilon=-0.1 is not allowed: it must be a number >= 0"),
    (["train", "epsilon_high=-1"], "epsilon_high=-1 is not allowed"),
    (["train", "epsilon=nan"], "epsilon=nan"),
    (["train", "epsilon=big"], "epsilon=big"),
    (["train", "epsilon="], "epsilon="),
    (["train", "epsilon"], "write key=value"),
    (["train", "epsilon=[0.1"], "write key=value"),
    (["train", "=1"], "write key=value"),
    (["train", "epsilon=0.1,0.2"], "train -m"),
    (["train", "~epsilon"], "cannot be removed"),
    (["train", "epsilon=${nobody}"], "interpolation"),
    (["train", "delta=0"], "delta=0 is not allowed: it must be a number > 0 or null"),
    (["train", "seed=-1"], "seed=-1"),
    (["train", "seed=true"], "seed=true"),
    (["train", "rollout_steps=1.5"], "rollout_steps=1.5"),
    (["train", "rollout_steps=null"], "set rollout_steps, max_completions or max_optimizer_steps"),
    (["train", "max_completions=10"], "max_completions=10 is less than one rollout step"),
    (["train", "early_stop.metric=eval/accuracy_expected"], "early_stop.at_most is missing: it must be a number"),
    (["train", "early_stop={metrc: 1}"], "did you mean early_stop.metric"),
    (["train", "early_stop={metric: eval/pass_at_k, at_most: 0, after: 9, evaluations: 1}"], "not measured with task="),
    (["train", "num_generations=1"], "num_generations >= 2"),
    (["train", "num_minibatches=3"], "must divide prompts_per_step * num_generations"),
    (["train", "micro_batch_size=5"], "micro_batch_size=5 must divide"),
    (["train", "kernel=clippd"], "did you mean clipped?"),
    (["train", "loss_type=grp"], "loss_type is one of aspo, bnpo, cispo"),
    (["train", "task=adition"], "did you mean addition?"),
    (["train", "task=sorting", "task.digits=2"], "task.digits is unknown"),
    (["train", "task=jsonl"], "task.train_file has no value"),
    (["train", "task=jsonl", "task.train_file=/no/a", "task.evaluation_file=/no/b"], "/no/a"),
    (["train", "task=custom", "task.path=nowhere:Task"], "nowhere"),
    (["train", "reward.function=nowhere:reward"], "nowhere"),
    (["train", "model.heads=3"], "must divide model.hidden_size"),
    (["train", "machine.tracking_uri=ftp://x"], "ftp://x"),
    (["train", "machine.tracking_uri=sqlite:////no/such/folder/x.db"], "/no/such/folder"),
    (["train", "hydra.run.dir=x"], "hydra is unknown"),
    (["train", "--name", "clip_range"], "clip_range"),
    (["train", "--name", "a/b"], "a/b"),
    (["train", "-m", "epsilon=interval(0,1)"], "cannot be swept"),
    (["train", "-m", "seed=1,x"], "seed=1,x"),
    (["train", "-m", "num_iterations=1", "epsilon=0.1,0.2"], "clipping can act in no cell"),
    (["train", "beta=inf"], "beta=inf is not allowed"),
    (["train", f"seed={'9' * 5000}"], "cannot be read"),
    (["train", f"epsilon={'[' * 300}1{']' * 300}"], "nested too deeply"),
    (["train", "epsilon=${oc.env:NOBODY}"], "epsilon: an interpolation cannot be resolved"),
    (["train", "--name", "a\nb"], "name=a\\nb is not allowed"),
    (["train", "--name", "x" * 101], "length <= 100"),
    (["train", "-m", "epsilon=range(0,1,0)"], "cannot be swept"),
    (["train", "-m", "epsilon=range(1,0)"], "cannot be swept"),
    (["train", "-m", "epsilon=range(0,1e9)"], "cannot be swept"),
    (["train", "-m", "epsilon=0.1,0.1"], "different values"),
    (["sweep", "clip_rang"], "did you mean clip_range?"),
    (["sweep", "smoke", "epsilom=1"], "epsilom is unknown"),
    (["sweep", "smoke", "num_iterations=1"], "clipping can act in no cell"),
    (["sweep", "smoke", "kernel=clipped"], "have equal settings"),
    (["sweep", "smoke", "seed=4"], "--seeds"),
    (["sweep", "reference", "beta=-1"], "beta=-1"),
]
WRONG_OPTIONS = [
    ["sweep", "smoke", "--seeds", "0"],
    ["sweep", "smoke", "--seeds", "1,x"],
    ["sweep", "smoke", "--seeds", "1000000000"],
    ["sweep", "smoke", "--jobs", "0"],
    ["sweep", "smoke", "--job", "2"],
    ["sweep"],
    ["swep", "smoke"],
    ["status", "smoke", "more"],
    [],
]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    def refuse(*_arguments: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(pool.Worker, "__init__", refuse)


@pytest.mark.parametrize(("request_", "said"), WRONG, ids=[" ".join(request) for request, _ in WRONG])
def test_one_sentence_and_nothing_started(request_, said, tmp_path, capsys):
    command, *rest = request_
    assert main([command, *rest, f"machine.results={tmp_path / 'results'}"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(set(errors)) == len(errors)
    assert any(said in line for line in errors)
    assert all(line.startswith("grpolab: ") for line in errors)
    # The folder may have been opened, to see whether it can be used; no plan, run or store is there.
    assert {path.name for path in tmp_path.rglob("*")} <= {"results", "format.json"}


@pytest.mark.parametrize("request_", [["train"], ["train", "-m", "seed=0,1"], ["sweep", "smoke"], ["tune", "tuning"]])
def test_a_gpu_that_is_asked_for_by_name_must_be_there(request_, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    assert main([*request_, "device=cuda", f"machine.results={tmp_path / 'results'}"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("grpolab: device=cuda is not possible: torch ")
    assert (
        "is built for the CPU: leave device=auto, or delete .venv and run `make setup TORCH_BACKEND=cu130`" in sentence
    )
    assert {path.name for path in tmp_path.rglob("*")} == {"results", "format.json"}


@pytest.mark.parametrize("request_", WRONG_OPTIONS, ids=" ".join)
def test_wrong_options_exit_with_two(request_, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(request_)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_results_of_another_format_are_refused_and_left_alone(tmp_path, capsys):
    marker = tmp_path / "format.json"
    marker.write_text('{"format": 0}')
    assert main(["sweep", "smoke", f"machine.results={tmp_path}"]) == 2
    assert "has format 0" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["format.json"]
    assert marker.read_text() == '{"format": 0}'


def test_results_that_cannot_be_written_are_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["sweep", "smoke", f"machine.results={tmp_path / 'file' / 'below'}"]) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_malformed_jsonl_names_file_and_line(tmp_path, capsys):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text('{"question": "a", "answer": "b"}\n')
    bad.write_text('{"question": "c", "answer": "d"}\n{"question": \n')
    files = [f"task.train_file={bad}", f"task.evaluation_file={good}"]
    assert main(["train", "task=jsonl", *files, f"machine.results={tmp_path / 'results'}"]) == 2
    errors = capsys.readouterr().err
    assert "bad.jsonl" in errors
    assert "2" in errors.replace(str(tmp_path), "")


def test_reading_commands_name_what_is_not_there(tmp_path, capsys):
    here = ["--results", str(tmp_path)]
    for request in (["status", "smoke"], ["show", "abc"], ["diff", "abc", "def"], ["ui", "smoke"], ["report", "smoke"]):
        assert main([*request, *here]) == 2, request
        assert capsys.readouterr().err.startswith("grpolab: ")


def test_status_of_nothing_is_no_error(tmp_path, capsys):
    assert main(["status", "--json", "--results", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {}


def test_the_list_is_long_enough():
    assert len(WRONG) >= 25
    assert Path(__file__).exists()
