"""The doctor on files: whole, unfinished and damaged run folders, logs from elsewhere, and wrong input."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from made_evidence import SETTINGS, diagnose, diagnose_log, sound
from mlflow import MlflowClient
from mlflow.entities import Metric
from safetensors.numpy import save_file

from grpolab.cli import main
from grpolab.doctor import examine, page
from grpolab.doctor.evidence import to_evidence
from grpolab.doctor.run_folder import compare_weights, read_run
from grpolab.errors import RequestError
from grpolab.readers.logs import read_log, read_rows

LOGS = Path(__file__).parent / "logs"


def write_run(folder: Path, steps: int = 12, outcome: bool = True, **settings: object) -> Path:
    """A run folder with the journal of a sound run of 12 steps, repeated up to `steps`."""
    folder.mkdir(parents=True)
    (folder / "settings.yaml").write_text(yaml.safe_dump(SETTINGS | settings))
    run = sound()
    lines = []
    for step in range(steps):
        for kind, frame in (("update", run.updates), ("rollout", run.rollouts)):
            rows = frame[frame["rollout_step"] == step % 12].assign(rollout_step=step)
            lines += [json.dumps({"kind": kind, **row}) for row in rows.to_dict("records")]
    (folder / "journal.jsonl").write_text("".join(line + "\n" for line in lines))
    if outcome:
        (folder / "outcome.json").write_text(json.dumps({"outcome": "completed", "reason": None}))
    return folder


def causes(diagnosis: page.Diagnosis) -> list[str]:
    return [finding.cause for finding in diagnosis.findings]


def test_sound_folder(tmp_path: Path) -> None:
    diagnosis = diagnose(write_run(tmp_path / "run"))
    assert diagnosis.findings == ()
    assert diagnosis.state == "completed after 12 rollout steps"
    assert "No cause found" in page.text(diagnosis)


def line(place: int, write: Callable[[str], str]) -> Callable[[Path], None]:
    """Write a line of the journal anew."""

    def damage(folder: Path) -> None:
        lines = (folder / "journal.jsonl").read_text().splitlines()
        lines[place] = write(lines[place])
        (folder / "journal.jsonl").write_text("\n".join(lines) + "\n")

    return damage


def forge_hash(folder: Path) -> None:
    outcome = json.loads((folder / "outcome.json").read_text())
    (folder / "outcome.json").write_text(json.dumps(outcome | {"journal_sha256": "0" * 64}))


@pytest.mark.parametrize(
    ("damage", "state", "unknown", "named"),
    [
        (forge_hash, "; damaged: its files are not those", "not the journal that outcome.json was written for", []),
        (line(20, lambda text: text[:30]), "4 rollout steps", "the journal from line 21 of 60 on", []),
        (
            line(7, lambda text: json.dumps(json.loads(text) | {"loss": "nan", "grad_norm": "inf"})),
            "12 rollout steps",
            "the loss: loss is not finite in 1 record",
            ["not_finite"],
        ),
        (
            line(7, lambda text: json.dumps(json.loads(text) | {"loss": "a word"})),
            "0 rollout steps",
            "the journal is damaged: loss of a record is no number",
            [],
        ),
        (lambda folder: (folder / "journal.jsonl").unlink(), "0 rollout steps", "the journal: there is none", []),
    ],
)
def test_damage_is_said_and_what_is_whole_is_read(
    damage: Callable[[Path], None], state: str, unknown: str, named: list[str], tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "run")
    damage(folder)
    diagnosis = diagnose(folder)
    assert state in diagnosis.state
    assert any(unknown in sentence for sentence in diagnosis.unknown)
    assert causes(diagnosis) == named


@pytest.mark.parametrize(
    ("signature", "said"),
    [
        ("../../elsewhere", "'../../elsewhere' is not a warm start's signature"),
        ("/etc", "'/etc' is not a warm start's signature"),
        (7, "its warm_start.signature is 7"),
    ],
)
def test_weights_are_compared_with_no_file_outside_of_the_results(tmp_path: Path, signature: Any, said: str) -> None:
    folder = write_run(tmp_path / "results" / "runs" / ("a" * 16))
    provenance = {"warm_start": {"signature": signature}, "dataset": {"evaluation_items": 100}}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    assert any(said in sentence for sentence in diagnose(folder).unknown)


def test_planted_fault_is_not_read_from_the_settings(tmp_path: Path) -> None:
    """Neither its name nor the module of a planted reward reaches a rule: the check would be worth nothing."""
    reward = {"function": "grpolab.doctor.faults:always_the_same"}
    run = read_run(write_run(tmp_path / "run", fault="dropout", reward=reward))
    assert not [key for key, value in run.settings.items() if "fault" in key or "faults" in str(value)]


def test_run_that_still_goes_is_diagnosed_so_far(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=5, outcome=False)
    (folder / "running.json").write_text(json.dumps({"rollout_steps": 12}))
    with (folder / "journal.jsonl").open("a") as file:
        file.write('{"kind": "update", "rollo')  # being written just now
    diagnosis = diagnose(folder)
    assert diagnosis.state == "still going, after 5 rollout steps of 12: this is a diagnosis so far"
    assert not [text for text in diagnosis.unknown if "damaged" in text]


def test_unreadable_settings_are_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "settings.yaml").write_text("[")
    with pytest.raises(RequestError, match=r"settings\.yaml cannot be read"):
        diagnose(folder)


@pytest.mark.slow
def test_a_thousand_steps_take_less_than_five_seconds(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=1000)
    start = time.process_time()
    diagnose(folder)
    assert time.process_time() - start < 5


def test_weights_beside_their_start(tmp_path: Path) -> None:
    start = {"a": np.linspace(0.1, 1, 1000, dtype=np.float32), "b": np.ones((4, 4), dtype=np.float32)}
    coarse = {"a": (start["a"].view(np.uint32) & 0xFFFF0000).view(np.float32), "b": start["b"]}
    save_file(start, tmp_path / "start.safetensors")
    save_file(coarse, tmp_path / "end.safetensors")
    weights = compare_weights(tmp_path / "end.safetensors", tmp_path / "start.safetensors")
    assert weights
    assert (weights.count, weights.on_grid, weights.still) == (1016, 1.0, ("b",))
    assert compare_weights(tmp_path / "none.safetensors", tmp_path / "start.safetensors") is None


# --- logs from elsewhere; the TRL files are from real GRPOTrainers (TRL 1.16, 12 steps, logging_steps=1) --------------
# Their tiny untrained models never end an answer, which is the one thing that is wrong with them.


@pytest.mark.parametrize(
    ("iterations", "notes"), [(1, ["no_reuse", "zero_first_loss"]), (4, ["zero_first_loss", "negative_loss"])]
)
def test_trl_logs_of_one_and_of_four_iterations(iterations: int, notes: list[str]) -> None:
    diagnosis = diagnose_log("trl", LOGS / f"trl_mu{iterations}.json")
    assert causes(diagnosis) == ["truncated_from_the_start"]
    assert [note.cause for note in diagnosis.notes] == notes
    assert any("ratio/token_max is missing" in text for text in diagnosis.unknown)


def test_trl_with_equal_rewards(tmp_path: Path) -> None:
    state = json.loads((LOGS / "trl_mu4.json").read_text())
    for row in state["log_history"]:
        row |= {"grad_norm": 0.0, **({"frac_reward_zero_std": 1.0} if "reward" in row else {})}
        row |= {"completions/clipped_ratio": 0.0, "completions/min_length": 3.0}
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert causes(diagnose_log("trl", tmp_path / "state.json"))[0] == "constant_reward"


VERL = {"actor/pg_clipfrac": 0.0, "actor/ppo_kl": 0.0, "actor/grad_norm": 0.5, "actor/lr": 1e-6}
ROLL = {"actor/clipfrac@sum": 0.1, "actor/ratio_max@max": 1.5, "actor/ratio_min@min": 0.6, "critic/score/mean": 0.3}


def diagnose_lines(framework: str, tmp_path: Path, rows: list[dict]) -> page.Diagnosis:
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return diagnose_log(framework, tmp_path / "log.jsonl")


def test_verl_without_clipping_is_left_open_with_its_readings(tmp_path: Path) -> None:
    rows = [{"step": step, "data": {**VERL, "critic/score/mean": 0.1}} for step in range(20)]
    diagnosis = diagnose_lines("verl", tmp_path, rows)
    assert diagnosis.findings == ()
    assert diagnosis.unknown[0].startswith("why the clip fraction is 0 in all 20 rows: one update per batch")


def test_verl_that_collapsed_is_named_and_a_loss_that_is_not_finite_said(tmp_path: Path) -> None:
    score = np.linspace(0.5, 0.0, 30)
    frame = pd.DataFrame({"step": range(30), **VERL, "actor/pg_clipfrac": 0.1, "critic/score/mean": score})
    frame.to_csv(tmp_path / "log.csv", index=False)
    assert causes(diagnose_log("verl", tmp_path / "log.csv")) == ["destroyed_policy"]
    (tmp_path / "log.csv").write_text("step,actor/pg_loss,critic/score/mean\n0,0.1,0.5\n1,nan,0.5\n")
    assert "the loss: loss is not finite in 1 record" in diagnose_log("verl", tmp_path / "log.csv").unknown


def test_roll_logs_ratios(tmp_path: Path) -> None:
    diagnosis = diagnose_lines("roll", tmp_path, [ROLL] * 5)
    assert diagnosis.findings == ()
    assert not any("ratio/token_max is missing" in text for text in diagnosis.unknown)


NO_METRIC, NO_ROWS = "holds no metric that trl logs", "holds no rows of a log; one is a trainer_state.json"
CUT_OFF = "holds no whole row of a log: the first is cut off, or no JSON; one is a trainer_state.json"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("state.json", "{}", NO_METRIC),
        ("state.json", "not json", CUT_OFF),
        ("state.json", '{"log_history": [{"loss": 0.1, "rewa', CUT_OFF),
        ("log.jsonl", '{"loss": 0.1, "rewa', CUT_OFF),
        ("log.csv", "a,b\n1,2\n", NO_METRIC),
        ("log.jsonl", '{"accuracy": 1}\n', NO_METRIC),
        ("log.csv", "", "cannot be read as a log: it is empty"),
        ("log.csv", "step,loss\n", NO_ROWS),
        ("log.txt", "Once upon a time.\n", NO_ROWS),
        ("log.csv", "a,b\n1,2,3\n", NO_METRIC),
        ("log.jsonl", "[1]\n", NO_ROWS),
        ("state.json", '{"log_history": [1]}', NO_ROWS),
        ("train.py", "row = {'loss': 0.1, 'reward': 1, 'kl': 2}\n", "it is a script or a config, which `grpolab lint "),
    ],
)
def test_wrong_logs_are_refused_in_one_sentence(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RequestError, match=re.escape(says)) as error:
        diagnose_log("trl", tmp_path / name)
    assert len(error.value.problems) == 1


def test_a_missing_log_and_tracked_names_of_nobody_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read as a log"):
        diagnose_log("verl", tmp_path / "none.csv")
    with pytest.raises(RequestError, match="holds no metric of an update"):
        read_rows("abc", [{"step": 0, "accuracy": 0.5}])


# --- the command ------------------------------------------------------------------------------------------------------


def test_command_in_words_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "0123456789abcdef", num_iterations=4)
    assert main(["diagnose", "0123", "--results", str(tmp_path)]) == 0
    assert "run 0123456789abcdef: completed after 12 rollout steps" in capsys.readouterr().out
    assert main(["diagnose", "0123", "--results", str(tmp_path), "--json"]) == 0
    diagnosis = json.loads(capsys.readouterr().out)
    assert diagnosis["causes"] == []
    assert main(["diagnose", str(tmp_path / "runs" / "0123456789abcdef" / "journal.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == diagnosis, "a run's journal is its run, with its settings"
    assert main(["diagnose", "ffff", "--results", str(tmp_path)]) == 2
    assert "run ffff is unknown" in capsys.readouterr().err


def test_command_on_the_folder_that_a_trainer_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, step, log in (("a", 8, "trl_mu1.json"), ("a", 12, "trl_mu4.json"), ("b", 9, "trl_mu1.json")):
        checkpoint = tmp_path / run / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        shutil.copy(LOGS / log, checkpoint / "trainer_state.json")
    whole = examine(replace(to_evidence(read_log(None, LOGS / "trl_mu4.json")), run="a"))
    for place in (tmp_path / "a", tmp_path / "a" / "checkpoint-12"):
        assert main(["diagnose", str(place)]) == 0
        assert capsys.readouterr().out == f"{page.text(whole)}\n", "of the last checkpoint"
    monkeypatch.chdir(tmp_path / "a")
    assert main(["diagnose", "--from", "trl", "."]) == 0
    assert capsys.readouterr().out == f"{page.text(whole)}\n"
    assert main(["diagnose", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"reads one of {tmp_path / 'a'}, {tmp_path / 'b'}, `grpolab report --from trl {tmp_path}`" in error


UNKNOWN = "; `grpolab status --json` lists signatures"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nothere.json", UNKNOWN),
        ("outputs/checkpoint-8", UNKNOWN),
        ("./rum.log", " (did you mean run.log?)"),
        ("--from trl below/runn.log", " (did you mean run.log?)"),
    ],
)
def test_command_on_a_file_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("below").mkdir()
    for folder in ("below", "."):
        Path(folder, "run.log").touch()
    assert main(["diagnose", *name.split()]) == 2
    assert f"RUN={name.split()[-1]}: there is no such file or folder{hint}\n" in capsys.readouterr().err


@pytest.mark.usefixtures("tracked_results")
def test_command_on_a_run_of_mlflow_by_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(uri)
    run_id = client.create_run(client.create_experiment("trl", artifact_location=str(tmp_path))).info.run_id
    rows = json.loads((LOGS / "trl_mu1.json").read_text())["log_history"]
    names = ("clip_ratio/region_mean", "reward", "num_tokens", "grad_norm", "loss")
    client.log_batch(run_id, [Metric(name, row[name], 0, row["step"]) for row in rows for name in names if name in row])
    assert main(["diagnose", run_id, "--uri", uri, "--results", str(tmp_path)]) == 0
    assert "a log of trl with 12 rows" in capsys.readouterr().out
    assert main(["diagnose", "0" * 32, "--uri", uri, "--results", str(tmp_path)]) == 2
    assert main(["diagnose", run_id, "--uri", f"sqlite:///{tmp_path}/none.db", "--results", str(tmp_path)]) == 2


@pytest.mark.parametrize("words", [["diagnose"], ["diagnose", "--from", "trl"], ["compare"]])
def test_a_name_too_long_for_a_path_is_a_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "z" * 5000]) == 2
    assert capsys.readouterr().err.startswith("grpolab: ")
