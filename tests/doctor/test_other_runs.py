"""Runs that others made: found in folders, grouped into arms and seeds, compared; and what their logs lack."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from grpolab.cli import main
from grpolab.doctor import evidence
from grpolab.doctor.evidence import pieces
from grpolab.doctor.other_runs import find_gaps, find_runs, make_study
from grpolab.doctor.page import examine
from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.readers import log_folders
from grpolab.readers.log_folders import find_all
from grpolab.report.measures import stability_table

STEPS = 40


def rows(level: float, seed: int, steps: int = STEPS) -> list[dict]:
    """A log of TRL whose reward rises from `level`, with noise that two arms share where they share the seed."""
    noise = np.random.default_rng(seed).normal(0, 0.02, steps)
    return [
        {
            **{"step": step, "loss": 0.01, "grad_norm": 0.5, "learning_rate": 1e-6, "kl": 0.01, "entropy": 1.0},
            **{"reward": level + 0.01 * step + float(noise[step]), "clip_ratio/region_mean": 0.02, "num_tokens": step},
        }
        for step in range(steps)
    ]


def write_state(folder: Path, level: float, seed: int, steps: int = STEPS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows(level, seed, steps)}))


def write_runs(root: Path, seeds: tuple[int, ...] = (1, 2, 3), config: bool = True) -> Path:
    """Two values of beta; the config beside each log, as ms-swift writes it, or the folder's name says the seed."""
    for beta, level in ((0.0, 0.1), (0.04, 0.3)):
        for seed in seeds:
            run = root / f"beta{beta:g}_seed{seed}"
            write_state(run, level, seed)
            if config:
                (run / "args.json").write_text(json.dumps({"beta": beta, "seed": seed, "output_dir": str(run)}))
    return root


def report(tmp_path: Path, *words: object) -> tuple[int, str]:
    """The exit code of `grpolab report`, and what report.md says; empty where there is none."""
    out = tmp_path / "out"
    code = main(["report", *map(str, words), "--out", str(out), "--results", str(tmp_path / "results")])
    page = out / "report.md"
    return code, page.read_text() if page.is_file() else ""


def test_arms_by_config_and_seeds_make_paired_differences(tmp_path: Path) -> None:
    code, text = report(tmp_path, "--from", "trl", write_runs(tmp_path / "runs"))
    assert code == 0
    assert not (tmp_path / "out" / "figures").exists()
    assert {file.suffix for file in (tmp_path / "out" / "tables").iterdir()} == {".csv", ".md"}
    assert "- paired by seed" in text
    assert "what differs between the configs" in text
    # With the same noise in both arms the difference is exact: .2, without any width.
    assert "against it `beta=0.04` +0.200 [+0.200, +0.200]" in text
    assert "no log" in text.split("What the logs lack")[1].split("##")[0]
    assert "`ratio/token_max` is in no log" in text
    assert (tmp_path / "out" / "report.html").is_file()
    assert report(tmp_path, "--from", "trl", tmp_path / "runs", "--figures")[0] == 0
    assert sorted(path.name for path in (tmp_path / "out" / "figures").glob("*.png")) == [
        *("out_final_accuracy.png", "out_gradient_norm.png", "out_logged_curves.png")
    ]
    clipped = (tmp_path / "out" / "tables" / "clipping.csv").read_text().splitlines()[1]
    assert clipped.split(",")[2:4] == ["3", "0.02"]


def test_names_tell_where_no_config_does(tmp_path: Path) -> None:
    found, _ = find_runs("trl", find_all([str(write_runs(tmp_path, config=False))]))
    study, *_ = make_study(Results(tmp_path), "x", found, {}, None)
    assert study.arms == ["beta0", "beta0.04"]
    assert study.is_paired
    assert sorted(study.cells["seed"].unique()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "config", "beta"),
    [
        ("diagnose run", "run/args.json", "beta=0.04"),
        ("diagnose run/trainer_state.json", "run/args.json", "beta=0.04"),
        ("diagnose rows/log.jsonl", "rows/log.yaml", "beta=0.3"),
        ("diagnose run --config other.json", "other.json", "beta=0.5"),
        ("diagnose rows/log.jsonl --config other.json", "other.json", "beta=0.5"),
    ],
)
def test_diagnose_says_which_config_it_read(
    words: str, config: str, beta: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_state(Path("run"), 0.1, 1)
    Path("rows").mkdir()
    Path("rows/log.jsonl").write_text("\n".join(json.dumps(row) for row in rows(0.1, 1)))
    for name, value in (("run/args.json", 0.04), ("rows/log.yaml", 0.3), ("other.json", 0.5)):
        Path(name).write_text(json.dumps({"beta": value}))
    assert main(words.split()) == 0
    said = capsys.readouterr().out
    assert f"read: its config is {config}.\n" in said
    assert f"settings other than {beta}, which are written there" in said


def test_two_logs_of_one_name_have_two_reports(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for place in ("a", "b", "a"):
        write_state(tmp_path / place, 0.1, 1)
        log = tmp_path / place / "trainer_state.json"
        assert main(["report", "--from", "trl", str(log), "--results", str(results)]) == 0
    reports = sorted(page.read_text() for page in (results / "imported").glob("trainer_state-*/report.md"))
    assert [place for text in reports for place in "ab" if str(tmp_path / place) in text] in (["a", "b"], ["b", "a"])


def test_power_takes_folders_of_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, words = write_runs(tmp_path / "runs"), ["--difference", "0.05", "--results", str(tmp_path / "results")]
    assert main(["power", "--from", str(folder), *words]) == 0
    paired, unpaired = capsys.readouterr().out.splitlines()[3:5]
    assert paired.split()[:4] == ["beta=0.04", "3", "+0.200", "0.050"]
    assert "paired" in paired  # the same noise in both arms: two seeds are enough
    assert "unpaired" in unpaired
    shutil.rmtree(folder)
    for file in write_runs(tmp_path / "runs").glob("*/args.json"):  # one seed for all says that nothing is paired
        file.write_text(json.dumps(json.loads(file.read_text()) | {"seed": 42}))
    assert main(["power", "--from", str(folder), *words]) == 0
    assert "which are not paired" in capsys.readouterr().out


def test_one_seed_for_all_is_no_pairing_and_welch_compares(tmp_path: Path) -> None:
    for folder, level in (("a", 0.1), ("b", 0.3)):
        for number in range(3):
            write_state(tmp_path / folder / f"run{number}", level, number)
            (tmp_path / folder / f"run{number}" / "args.json").write_text('{"seed": 42}')
    code, text = report(tmp_path, "--from", "trl", tmp_path / "a", tmp_path / "b", "--baseline", "b")
    assert code == 0
    assert "unpaired: a has several runs with seed 42" in text
    assert "(Welch, unpaired)" in text
    assert "paired by seed" not in text
    line = next(line for line in text.splitlines() if "against it `a` -0.200 [-0.2" in line)
    assert "+0.000" not in line, "the interval has the width of the runs' noise"


def test_first_folders_below_a_root_are_arms_and_runs_pair_by_the_seeds_of_their_configs(tmp_path: Path) -> None:
    for arm, level in (("base", 0.1), ("low", 0.3)):
        for seed in (1, 2):
            write_state(tmp_path / "runs" / arm / f"run{seed}", level, seed)
            (tmp_path / "runs" / arm / f"run{seed}" / "args.json").write_text(json.dumps({"seed": seed}))
    _, text = report(tmp_path, "--from", "trl", tmp_path / "runs")
    assert f"- arms: the first folders below {tmp_path / 'runs'}" in text
    assert "- paired by seed" in text
    assert "against it `low` +0.200" in text


def test_charts_of_many_runs_are_joined_by_run_and_step(tmp_path: Path) -> None:
    names = ["base seed1", "base seed2", "low seed1", "low seed2"]
    for place, metric in enumerate(("loss", "reward")):
        lines = [",".join(["Step", *(f"{name} - train/{metric},{name} - train/{metric}__MAX" for name in names)])]
        for step in range(20):
            lines.append(",".join([str(step), *(f"{place * (step / 100 + at)},99" for at in range(4))]))
        (tmp_path / f"{metric}.csv").write_text("\n".join(lines))
    for folders in ([tmp_path], [tmp_path / "loss.csv", tmp_path / "reward.csv"]):
        found, _ = find_runs("trl", find_all(list(map(str, folders))))
        assert [run.log.name for run in found] == names
        assert found[1].evidence.rollouts["reward/mean"].iloc[3] == pytest.approx(1.03)
        assert len(found[1].evidence.updates) == 20
    _, text = report(tmp_path, "--from", "wandb-export", tmp_path / "loss.csv", tmp_path / "reward.csv")
    assert "against it `low` +2" in text


def test_evaluations_in_every_log_are_the_score(tmp_path: Path) -> None:
    for seed in (1, 2):
        lines = [f"step:{n} - critic/score/mean:0.9 - val-core/a/acc/mean@1:{0.2 + n / 100}" for n in range(0, 40, 4)]
        (tmp_path / f"seed{seed}.log").write_text("\n".join(lines))
    _, text = report(tmp_path, "--from", "verl", tmp_path)
    assert "score: eval/accuracy_expected, evaluated while training: `val-core/a/acc/mean@1`" in text
    assert "held-out evaluations" not in text
    assert "gain over the start" in text, "they have no warm start"
    assert "nothing is decided" in text


def test_told_arms_and_the_last_checkpoint(tmp_path: Path) -> None:
    write_state(tmp_path / "one" / "checkpoint-9", 0.1, 0, 9)
    write_state(tmp_path / "one" / "checkpoint-20", 0.1, 0, 20)
    write_state(tmp_path / "two", 0.1, 0)
    arms = ["--arm", f"short={tmp_path / 'one'}", "--arm", f"long={tmp_path / 'two'}"]
    code, text = report(tmp_path, "--from", "trl", *arms)
    assert code == 0
    assert "| short | 0 |" in text
    assert "| 20 | " in text, "of a run's checkpoints the last counts"
    assert "1 log of 2 did not get to the longest one's step 39" in text
    assert "a second seed of short, long" in text, "one run decides nothing, and the report says so"


def test_wandb_folder_with_values_and_a_log_half_written(tmp_path: Path) -> None:
    for seed in (1, 2):
        files = tmp_path / "wandb" / f"run-2026-{seed}" / "files"
        files.mkdir(parents=True)
        lines = [json.dumps(row) for row in rows(0.1, seed)]
        (files / "output.log").write_text("\n".join(lines) + '\n{"reward": 0.5, "lo')
        (files / "config.yaml").write_text(f"_wandb:\n  value: {{t: {seed}}}\nseed:\n  value: {seed}\n")
        (files / "wandb-summary.json").write_text('{"reward": 1}')
    found, _ = find_runs(None, find_all([str(tmp_path / "wandb")]))
    study, runs, _ = make_study(Results(tmp_path), "x", found, {}, None)
    assert sorted(run.seed for run in runs) == [1, 2]
    assert study.arms == ["wandb"]
    assert any("half written" in gap for gap in find_gaps(runs))


def test_gradients_that_are_not_finite_at_the_end_are_a_divergence(tmp_path: Path) -> None:
    root = write_runs(tmp_path / "runs")
    ill = rows(0.1, 1)
    ill[-1]["grad_norm"] = float("nan")
    (root / "beta0_seed1" / "trainer_state.json").write_text(json.dumps({"log_history": ill}))
    found, _ = find_runs("trl", find_all([str(root)]))
    study, *_ = make_study(Results(tmp_path), "x", found, {}, None)
    cells = study.cells
    assert cells.loc[cells["outcome"] == "diverged", ["arm", "seed"]].values.tolist() == [["beta=0.0", 1]]
    assert report(tmp_path, "--from", "trl", root)[0] == 0, "its end is marked in the page"


def test_noise_is_no_collapse_and_a_fall_is(tmp_path: Path) -> None:
    write_runs(tmp_path)
    fallen = [{**row, "reward": 0.5 if step < 20 else 0.05} for step, row in enumerate(rows(0.1, 1))]
    fallen[0]["reward"] = 0.1
    (tmp_path / "beta0_seed1" / "trainer_state.json").write_text(json.dumps({"log_history": fallen}))
    _, text = report(tmp_path, "--from", "trl", tmp_path)
    stability = text.split("stability per variant")[1]
    assert "| beta=0.0 | 3 | 1/3 | 0/3 |" in stability
    assert "| beta=0.04 | 3 | 0/3 | 0/3 |" in stability
    assert "below start" not in stability.split("\n")[2], "no log says of how many items a score is"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--from", "trl"], "--from=trl needs FOLDERs"),
        (["--from", "trl", "nowhere"], "FOLDER=nowhere is not there"),
        (["--from", "trl", "EMPTY"], "holds no log of a run"),
        (["--from", "verl", "TRL"], "its names are trl's"),
        (["--from", "wandb-export", "TRL", "VERL"], "the runs are of trl (2 runs) and verl (1 run)"),
        (["--from", "trl", "TRL", "--baseline", "x"], "--baseline=x is none of the arms"),
        (["--from", "trl", "--arm", "x"], "--arm=x is not NAME=FOLDER,FOLDER"),
        (["--from", "trl", "TRL", "--arm", "x=EMPTY"], "is not in exactly one --arm"),
        (["--from", "mlflow", "EMPTY"], "mlflow.db is not there"),
        (["one", "--arm", "x=y"], "--arm needs --from"),
    ],
)
def test_wrong_requests_are_one_sentence(
    tmp_path: Path, words: list[str], says: str, capsys: pytest.CaptureFixture
) -> None:
    write_runs(tmp_path / "TRL", (1,))
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "VERL").mkdir()
    (tmp_path / "VERL" / "run.log").write_text("step:1 - actor/pg_loss:0.1 - critic/score/mean:0.5\n")
    for place in ("TRL", "EMPTY", "VERL"):
        words = [word.replace(place, str(tmp_path / place)) for word in words]
    code, _ = report(tmp_path, *words)
    said = capsys.readouterr().err
    assert code == 2
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.usefixtures("tracked_results")
def test_mlflow_params_are_the_config(tmp_path: Path) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.create_experiment("theirs", artifact_location=str(tmp_path))
    for beta, level in ((0.0, 0.1), (0.04, 0.3)):
        for seed in (1, 2):
            run = client.create_run(experiment).info.run_id
            points = [
                Metric(f"train/{name}", value, 0, row["step"])
                for row in rows(level, seed)
                for name, value in row.items()
            ]
            client.log_batch(run, points, [Param("beta", str(beta)), Param("seed", str(seed))])
    code, text = report(tmp_path, "--from", "mlflow", tmp_path)
    assert code == 0
    assert "against it `beta=0.04` +0.200" in text
    assert "- paired by seed" in text


def test_a_folder_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"step": 1, "loss": 0.1, "grad_norm": 0.5, "reward": 0.2, "clip_ratio/region_mean": 0.0})
    for number in range(60):
        (tmp_path / f"{number}.jsonl").write_text(line)
    assert len(find_runs("trl", find_all([str(tmp_path)]))[0]) == 60
    monkeypatch.setattr(log_folders, "MOST_FILES", 59)
    with pytest.raises(RequestError, match="more than 59 files"):
        find_runs("trl", find_all([str(tmp_path)]))


def test_what_a_log_costs_does_not_grow_with_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are grouped once for all logs, and not for each of them: 7,000 take seconds."""

    def asked(count: int) -> tuple[int, int]:
        root = write_runs(tmp_path / str(count), tuple(range(count)))
        found, _ = find_runs("trl", find_all([str(root)]))
        grouped, cut = [], []
        with monkeypatch.context() as patch:
            for kind in (pd.DataFrame, pd.Series):
                group = kind.groupby
                patch.setattr(kind, "groupby", lambda *a, group=group, **k: grouped.append(1) or group(*a, **k))
            study, runs, _ = make_study(Results(tmp_path), "x", found, {}, None)
            stability_table(study)
            patch.setattr(evidence, "pieces", lambda log: cut.append(1) or pieces(log))
            for run in runs:
                examine(replace(run.evidence, thresholds=study.thresholds, metric=evidence.REWARD))
        return len(grouped), len(cut)

    few, many = asked(2), asked(4)
    assert few[0] == many[0]
    assert many[1] == 2 * few[1] <= 2 * 4, "at most once for each of the eight runs"
