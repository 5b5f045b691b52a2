"""A wrong request: exit code 2, one sentence for each problem, no traceback, nothing started and nothing written."""

import shlex
import shutil
import subprocess

import pytest

from grpolab.cli import main
from grpolab.cli.help import list_names
from grpolab.cli.running import only_study
from grpolab.errors import RequestError
from grpolab.framework_names import LOOK_HERE, TRL_NAMES, VERL_NAMES, suggest_our_names
from grpolab.paths import find_file, project_root
from grpolab.sweep import engine
from grpolab.sweep.compose import compose
from grpolab.sweep.plan import plans

WRONG = [
    ("train epsilom=0.2", "epsilom is unknown (did you mean epsilon"),
    ("train epsilon=-0.1", "epsilon=-0.1 is not allowed: it must be a number >= 0"),
    ("train epsilon", "write key=value"),
    ("train epsilon=0.1,0.2", "train -m"),
    ("train '~epsilon'", "cannot be removed"),
    ("train 'epsilon=${nobody}'", "interpolation"),
    ("train delta=0", "delta=0 is not allowed: it must be a number > 0 or null"),
    ("train rollout_steps=null", "set rollout_steps, max_completions or max_optimizer_steps"),
    ("train max_completions=10", "max_completions=10 is less than one rollout step"),
    ("train early_stop.metric=eval/accuracy_expected", "early_stop.at_most is missing: it must be a number"),
    ("train 'early_stop={metric: eval/pass_at_k, at_most: 0, after: 9, evaluations: 1}'", "not measured with task="),
    ("train num_generations=1", "num_generations >= 2"),
    ("train num_minibatches=3", "must divide prompts_per_step * num_generations"),
    ("train micro_batch_size=5", "micro_batch_size=5 must divide the minibatch of 256 sequences"),
    ("train epsilon_high=-0.1", "epsilon_high=-0.1 is not allowed: it must be a number >= 0"),
    ("train gradient_checkpointing=''", "gradient_checkpointing= is not allowed"),
    ("train learning_rate=.nan", "learning_rate=.nan is not allowed"),
    ("train data_parallel=3", "data_parallel=3 must divide the minibatch of 256 sequences"),
    ("train -m data_parallel=2 seed=0,1", "data_parallel=2 is for a single run"),
    ("train kernel=clippd", "did you mean clipped?"),
    ("train loss_type=grp", "loss_type is one of aspo, bapo, bnpo"),
    ("train task=adition", "did you mean addition"),
    ("train task=jsonl", "task.train_file has no value"),
    ("train task=jsonl task.train_file=/no/a task.evaluation_file=/no/b model=pretrained model.path=/no/c", "/no/a"),
    ("train task=custom task.path=nowhere:Task", "nowhere"),
    ("train reward.function=nowhere:reward", "nowhere"),
    ("train model.heads=3", "must divide model.hidden_size"),
    ("train machine.tracking_uri=ftp://x", "ftp://x"),
    ("train machine.tracking_uri=sqlite:////no/such/folder/x.db", "/no/such/folder"),
    ("train --name clip_range", "clip_range"),
    ("train -m 'epsilon=interval(0,1)'", "cannot be swept"),
    ("train -m num_iterations=1 epsilon=0.1,0.2", "clipping can act in no cell"),
    ("train --name 'a\nb'", "name a\\nb is not allowed"),
    ("train --name " + "x" * 200, "length <= 100"),
    ("train -m epsilon=0.1,0.1", "different values"),
    ("sweep clip_rang", "clip_rang is unknown (did you mean clip_range or clip_ends?): name one of the "),
    ("sweep smoke num_iterations=1", "clipping can act in no cell"),
    ("sweep smoke kernel=clipped", "have equal settings"),
    ("sweep reference beta=-1", "beta=-1"),
    # What something is called elsewhere.
    ("train lr=1e-4", "lr is unknown: write learning_rate (verl)"),
    ("train actor_rollout_ref.actor.clip_ratio_high=0.28", "clip_ratio_high is unknown: write epsilon_high (verl)"),
    ("train actor_rollout_ref.rollout.n=8", "actor_rollout_ref.rollout.n is unknown: write num_generations (verl)"),
    ("train per_device_train_batch_size=8", "write micro_batch_size (TRL)"),
    ("train train_batch_size=64", "write prompts_per_step (verl) or num_minibatches"),
    ("train warm_start.lr=1", "warm_start.lr is unknown"),
    # One's own task, reward and study.
    ("train task=nowhere.py:Task", "there is no file"),
    ("train task=custom task.path=my_tasks", "write it as package.module:name or path/to/file.py:name"),
    ("train task=custom task.path=json:dumps2", "has no attribute"),
    ("sweep nowhere/study.yaml", "study nowhere/study.yaml: there is no such file"),
    ("train --help lr", "lr is unknown: write learning_rate (verl)"),
]
WRONG_OPTIONS = [
    ("sweep smoke --seeds 0", "--seeds: 0 is not allowed"),
    ("sweep smoke --seeds 1000000000", "--seeds: 1000000000 is not allowed"),
    ("power --sd 0 --difference 1", "--sd: 0 is not allowed: a number > 0"),
    ("power --sd 1 --correlation 2", "--correlation: 2 is not allowed: a number between -1 and 1"),
    ("sweep smoke --jobs 0", "--jobs: 0 is not allowed: a whole number >= 1"),
    ("sweep smoke --job 2", "--job is no option of `grpolab sweep` (did you mean --jobs?)"),
    ("sweep smoke --seed 2", "did you mean --seeds or --max-seeds?"),
    ("sweep", "STUDY is missing: name one of "),
    ("init /dev/null/x", "init /dev/null/x: the folder cannot be made: Not a directory"),
    ("tune", "the following arguments are required: STUDY (`"),
    ("swep smoke", "swep is no command (did you mean sweep?)"),
    ("track synk", "track synk is no command (did you mean sync?)"),
    ("status smoke more", "more is more than the command takes"),
    ("status --epsilon 2", "--epsilon is no option of `grpolab status`"),
    ("train --epsilon 0.2", "settings are written key=value, here epsilon=0.2"),
    ("train --lr 1e-4 --jobs 1", "here learning_rate=1e-4"),
    ("train --model tiny", "here model=tiny"),
    ("train --results elsewhere", "here machine.results=elsewhere"),
    ("completion fish", "fish"),
    ("", "COMMAND"),
]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    def refuse(*_arguments: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(engine.WorkerProcess, "__init__", refuse)


def test_the_only_study_of_a_project_needs_no_name(tmp_path, monkeypatch):
    for folder in ("conf", "experiments"):
        (tmp_path / folder).mkdir()
    (tmp_path / "experiments" / "mine.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert only_study() == "mine"
    (tmp_path / "experiments" / "another.yaml").touch()
    with pytest.raises(RequestError, match="STUDY is missing: name one of another, mine"):
        only_study()


@pytest.mark.parametrize(("request_", "said"), WRONG)
def test_one_sentence_and_nothing_started(request_, said, tmp_path, capsys):
    assert main([*shlex.split(request_), f"machine.results={tmp_path / 'results'}"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(set(errors)) == len(errors)
    assert any(said in line for line in errors)
    assert all(line.startswith("grpolab: ") and len(line) < 2000 for line in errors)
    # The folder may have been opened, to see whether it can be used; no plan, run or store is there.
    assert {path.name for path in tmp_path.rglob("*")} <= {"results", "format.json"}


@pytest.mark.parametrize("request_", ["train", "train -m seed=0,1", "sweep smoke", "tune tuning"])
def test_a_gpu_that_is_asked_for_by_name_must_be_there(request_, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    assert main([*request_.split(), "device=cuda", f"machine.results={tmp_path / 'results'}"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("grpolab: device=cuda is not possible: torch ")
    assert "is built for the CPU: leave device=auto, or" in sentence
    assert {path.name for path in tmp_path.rglob("*")} == {"results", "format.json"}


@pytest.mark.parametrize(("request_", "said"), WRONG_OPTIONS)
def test_wrong_options_exit_with_two_and_one_sentence(request_, said, capsys):
    assert main(shlex.split(request_)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("grpolab: ")
    assert said in line


def test_what_other_frameworks_call_it_is_a_key_here():
    """The names that hints and exchange share: each stands for a key, or a group, that there is."""
    keys = list_names()
    ours = [*TRL_NAMES.values(), *VERL_NAMES.values(), *(name for names in LOOK_HERE.values() for name in names)]
    assert [name for name in ours if name.partition(" ")[0].rstrip(",") not in keys] == []
    called = [name for names in LOOK_HERE.values() for words in names.values() for name in words.split()]
    theirs = {name.rpartition(".")[2] for name in [*VERL_NAMES, *called]}
    hinted = {name for name in theirs if suggest_our_names(name)}
    assert hinted == theirs


def test_help_of_a_key_a_section_and_a_group(capsys):
    assert main(["train", "--help", "epsilon"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "  epsilon                            a number >= 0; default 0.2",
        "      Clip range below 1 (and above, where epsilon_high is empty).",
    ]
    assert main(["train", "evaluation", "loss_type=grpo", "--help"]) == 0
    said = capsys.readouterr().out
    assert "evaluation.every " in said
    assert "loss_type=dapo " in said
    assert "epsilon" not in [line.split()[0] for line in said.splitlines()]


def test_tab_completion_in_bash(capsys, tmp_path):
    """As bash calls it, which takes = for the end of a word."""
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "mine.yaml").write_text("")
    test = r"""
source ./script
complete_ () {
  COMP_LINE="$1"; COMP_POINT=${#1}; read -ra COMP_WORDS <<< "${1//=/ = }"
  [[ "$1" == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _grpolab; echo "${COMPREPLY[*]}"
}
while read -r line; do complete_ "${line//_/ }"; done
"""
    lines = {
        "grpolab_sw": "sweep",
        "grpolab_track_": "sync verify",
        "grpolab_sweep_zero": "zero_variance",
        "grpolab_sweep_smoke_--ret": "--retry-failed",
        "grpolab_train_epsi": "epsilon= epsilon_high=",
        "grpolab_train_seed=1_weight": "weight_decay=",
        "grpolab_train_task=so": "",
        "grpolab_show_xyz": "",
    }
    given = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(["bash", "-c", test], cwd=tmp_path, input=given, capture_output=True, text=True)
    assert done.stdout.splitlines() == list(lines.values()), done.stderr


def test_a_study_and_a_task_by_path(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.yaml").write_text((project_root() / "experiments" / "smoke.yaml").read_text())
    (tmp_path / "smoke.yaml").write_text((project_root() / "experiments" / "smoke.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    by_path, by_name = plans("mine.yaml"), plans("smoke")
    assert by_path[0].study.name == "mine"
    assert [cell.signature for cell in by_path[0].cells] == [cell.signature for cell in by_name[0].cells]
    assert main(["sweep", "./smoke.yaml"]) == 2
    assert "smoke is a study of experiments/ already: rename the file" in capsys.readouterr().err
    task = compose(["task=below/my_tasks.py:Parity", "task.options={bits: 3}"]).task
    assert (task.name, task.path, task.options) == ("custom", "below/my_tasks.py:Parity", {"bits": 3})


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
    for request in ("status smoke", "show abc", "diff abc def", "ui smoke", "report smoke"):
        assert main([*request.split(), *here]) == 2, request
        assert capsys.readouterr().err.startswith("grpolab: ")


def test_a_results_folder_is_named_from_the_working_directory(tmp_path, monkeypatch):
    for name in ("conf", "experiments", "below"):
        (tmp_path / name).mkdir()
    shutil.copy(find_file("conf", "run.yaml"), tmp_path / "conf")
    monkeypatch.chdir(tmp_path / "below")
    for words in (["--results", "mine"], []):
        assert main(["status", *words]) == 0
    assert [*tmp_path.rglob("format.json")] == [tmp_path / "below/mine/format.json", tmp_path / "results/format.json"]
