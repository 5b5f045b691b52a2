"""Logs as people have them, read in one way: formats, names old and new, printed configs, damage and bounds."""

from __future__ import annotations

import json
import time
import tracemalloc
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from made_evidence import diagnose_log

from grpolab.cli import main
from grpolab.doctor import examine, page
from grpolab.doctor.evidence import to_evidence
from grpolab.errors import RequestError
from grpolab.framework_names import LOG_NAMES, LOG_ONLY
from grpolab.meanings import METRICS
from grpolab.readers.log_names import OTHER
from grpolab.readers.logs import read_log, read_rows

BAR = "  3%|▎         | 3/100 [00:04<02:11,  1.36s/it]"
TRL_ROW = "{'loss': 0.0012, 'grad_norm': nan, 'learning_rate': '1e-06', 'reward': np.float64(0.5), 'kl': 0.03}"
WORKER = "\x1b[36m(TaskRunner pid=17)\x1b[0m "
VERL_ROW = "step:{} - actor/pg_loss:np.float64(-0.01) - actor/lr:0.000 - critic/score/mean:0.250 - val/x:0.1"


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_console_of_trl_with_progress_bars_in_the_lines(tmp_path: Path) -> None:
    text = f"Loading\r{BAR}\r{BAR}{TRL_ROW}\n{BAR} {TRL_ROW}\n{{'train_runtime': 5.0, 'reward': 0.9}}\n"
    run = read_log(None, written(tmp_path, "run.log", text))
    assert (run.framework, len(run.updates)) == ("trl", 2)
    assert run.updates["learning_rate"].tolist() == [1e-6, 1e-6]
    assert run.rollouts["reward/mean"].tolist() == [0.5, 0.5], "the summary at the end is no row"
    assert run.not_finite == {"grad_norm": [0, 1]}
    assert "iteration" not in run.updates, "without steps nobody knows how many updates a row stands for"


def test_a_console_of_verl_with_colours_workers_and_its_config(tmp_path: Path) -> None:
    config = [
        f"{WORKER}{{'actor_rollout_ref': {{'actor': {{'optim': {{'lr': 1e-06}},",
        f"{WORKER}                                  'ppo_epochs': 2}},",
        "(WorkerDict pid=18) something else {'between': 1}",
        f"{WORKER}                        'rollout': {{'n': 4}}}},",
        f"{WORKER} 'data': {{'max_response_length': 128}}}}",
    ]
    rows = [f"{WORKER}{VERL_ROW.format(step)}" for step in (7, 8)]
    run = read_log(None, written(tmp_path, "run.log", "\n".join([*config, *rows])))
    assert run.framework == "verl"
    wanted = {"num_generations": 4, "num_iterations": 2, "max_completion_length": 128, "learning_rate": 1e-6}
    assert run.settings == wanted
    assert run.rollouts["rollout_step"].tolist() == [7, 8]
    assert "learning_rate" not in run.updates, "0.000 is any rate below .0005"


def test_arguments_as_transformers_prints_them(tmp_path: Path) -> None:
    text = f"args: GRPOConfig(\nbeta=0.04,\nnum_generations=1,\noutput_dir='x',\n)\n{TRL_ROW}\n"
    run = read_log(None, written(tmp_path, "run.log", text))
    assert run.settings == {"beta": 0.04, "num_generations": 1}


OLD = {"loss": "0.1", "completion_length": "80", "response_clip_ratio": "0.75", "clip_ratio": "0.0"}


def test_names_of_older_versions_and_quoted_numbers(tmp_path: Path) -> None:
    history = [{**OLD, "completions/mean_length": 81, "global_step/max_steps": f"{step}/124"} for step in (1, 2)]
    text = json.dumps({"best": None, "log_history": [*history, OLD], "train_batch_size": 1})
    run = read_log("trl", written(tmp_path, "trainer_state.json", text))
    assert run.rollouts["truncation/share"].tolist() == [0.75] * 3
    assert run.rollouts["length/mean"].tolist() == [81, 81, 80], "of two names in a row the newer counts"
    assert run.rollouts["rollout_step"].tolist() == [1, 2, 2]
    assert run.updates["clip/active"].tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wandb.csv", '"Step","brave-sea-3 - train/loss","brave-sea-3 - train/loss__MAX"\n5,0.5,0.6\n6,0.25,0.3\n'),
        ("history.json", json.dumps([{"_step": 5, "train/loss": 0.5}, {"_step": 6, "train/loss": 0.25}])),
        ("rows.jsonl", '{"step": 5, "metrics": {"train/loss": 0.5}}\n{"step": 6, "metrics": {"train/loss": 0.25}}\n'),
        ("bom.csv", "\ufeffstep,loss\n5,0.5\n6,0.25\n"),
        ("table.tsv", "step\tloss\n5\t0.5\n6\t0.25\n"),
    ],
)
def test_exports_of_trackers(tmp_path: Path, name: str, text: str) -> None:
    run = read_log("trl", written(tmp_path, name, text))
    assert run.updates[["rollout_step", "loss"]].to_numpy().tolist() == [[5, 0.5], [6, 0.25]]


def test_a_log_of_powershell_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(TRL_ROW, encoding="utf-16")
    assert len(read_log(None, path).updates) == 1


def test_of_several_runs_side_by_side_one_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "chart.csv", "Step,a - train/loss,a - train/loss__MAX,b - train/loss\n1,0.1,9,0.2\n")
    with pytest.raises(RequestError, match=r"holds 2 runs side by side: a, b; `--run NAME` chooses one"):
        read_log("trl", path)
    with pytest.raises(RequestError, match="no columns of a run c: its runs are a, b"):
        read_log("trl", path, "c")
    assert read_log("trl", path, "b").updates["loss"].tolist() == [0.2]
    assert main(["diagnose", str(path), "--run", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "a"


def test_the_framework_is_that_of_the_names_and_another_one_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "run.log", "\n".join(VERL_ROW.format(step) for step in range(3)))
    assert diagnose_log(None, path).state == "a log of verl with 3 rows"
    with pytest.raises(RequestError, match=r"holds no metric that trl logs .*; its names are verl's"):
        read_log("trl", path)


def test_rows_of_another_vocabulary_are_counted_and_left_out(tmp_path: Path) -> None:
    text = "\n".join([VERL_ROW.format(1), VERL_ROW.format(2), TRL_ROW])
    run = read_log(None, written(tmp_path, "run.log", text))
    assert len(run.rollouts) == 2
    assert "rows under the names of another framework: 1" in run.problems


def test_a_config_or_a_parameter_is_no_row(tmp_path: Path) -> None:
    path = written(tmp_path, "run.log", "{'learning_rate': 1e-06, 'epochs': 3}\n{'step': 4}\n")
    with pytest.raises(RequestError, match="holds no metric"):
        read_log(None, path)


# --- tables, broken rows, evaluations, likeness ----------------------------------------------------------------------

HEAD = ("Step", "Training Loss", "reward", "completions / mean_length", "kl")
EXAMPLE = "| Step | Training Loss | reward |\n|:---|---:|---|\n| 1 | 0.5 | **0.125** |\n| 2 | 0.5 | 0.25 |\n"


def html_table(count: int, close: bool = True) -> str:
    """What transformers shows in a notebook; tags that a copy cut off are not closed."""
    body = [
        (step, "No log" if step == 1 else "0.012000", f"{step / 10}", "1,234.5", "1,234")
        for step in range(1, count + 1)
    ]
    cells = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in body)
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    table = f"<div><progress value='3'></progress></div><table border='1'><thead><tr>{head}</tr></thead>{cells}</table>"
    return table if close else table.replace("</td>", "").replace("</tr>", "").replace("</table>", "")


def notebook(*outputs: dict) -> str:
    prose = {"cell_type": "markdown", "source": [EXAMPLE * 3]}
    return json.dumps({"cells": [prose, {"cell_type": "code", "outputs": list(outputs)}]})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.ipynb", notebook({"data": {"text/html": [html_table(5)], "text/plain": ["<HTML object>"]}})),
        ("run.html", f"<html><p>{EXAMPLE}</p>{html_table(5)}"),
        ("run.md", f"# A run\n\n{EXAMPLE}\nand\n\n    {html_table(5, close=False)}"),
        ("paste.txt", f"my run:\n{html_table(5)}\nwhy?"),
    ],
)
def test_the_table_of_a_notebook(tmp_path: Path, name: str, text: str) -> None:
    run = read_log(None, written(tmp_path, name, text))
    assert (run.framework, run.rollouts["rollout_step"].tolist()) == ("trl", [1, 2, 3, 4, 5])
    assert run.rollouts["reward/mean"].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert run.rollouts["length/mean"].tolist() == [1234.5] * 5
    assert run.updates["loss"].tolist() == [0.012] * 4, "the first row has no log"
    assert "kl_ref/k3" not in run.updates, "1,234 is 1234 or 1.234"
    assert any("of 2 tables" in text for text in run.readings) == (name in ("run.html", "run.md"))


def test_lines_in_a_notebook_and_a_table_of_markdown_in_a_quotation(tmp_path: Path) -> None:
    text = notebook({"output_type": "stream", "text": [f"{TRL_ROW}\n", f"{BAR} {TRL_ROW}\n"]})
    assert len(read_log(None, written(tmp_path, "lines.ipynb", text)).updates) == 2
    with pytest.raises(RequestError, match="no rows"):
        read_log(None, written(tmp_path, "empty.ipynb", notebook()))
    quoted = "see\n> |a|b|\n> |--|--|\n> |1|2|\n\n" + "".join(f"> {line}\n" for line in EXAMPLE.splitlines())
    assert read_log(None, written(tmp_path, "issue.txt", quoted)).rollouts["reward/mean"].tolist() == [0.125, 0.25]


@pytest.mark.parametrize("separator", ["\t", " | "])
def test_columns_as_a_notebook_is_copied_have_no_rule_below_their_head(tmp_path: Path, separator: str) -> None:
    rows = [
        ("Step", "Training Loss", "reward", "rewards / format / mean"),
        (1, "0.5", "0.125", 0),
        (2, "0.5", "0.25", 1),
    ]
    text = "It looks so:\n" + "\n".join(separator.join(map(str, row)) for row in rows) + "\n\nWhy?\n"
    assert read_log(None, written(tmp_path, "paste.txt", text)).rollouts["reward/mean"].tolist() == [0.125, 0.25]
    words = "a\tb\tc\n1\t2\t3\n"
    with pytest.raises(RequestError, match="holds no rows"):
        read_log(None, written(tmp_path, "words.txt", words))


@pytest.mark.parametrize(
    "row", ["step: {0}  loss: 0.5  reward: 0.{0}  kl: 1e-3", "[{0}/9] loss=0.5, reward=0.{0}, kl=1e-3 3.2s"]
)
def test_pairs_without_brackets_are_a_row(tmp_path: Path, row: str) -> None:
    prints = "reward: 1.0 for this answer\nloss: 3 reward: 1\n"  # two names are too few
    text = prints + "".join(row.format(step) + "\n" for step in (1, 2, 3))
    run = read_log(None, written(tmp_path, "run.log", text))
    assert run.rollouts["reward/mean"].tolist() == [0.1, 0.2, 0.3]
    assert run.updates["kl_ref/k3"].tolist() == [0.001] * 3


def test_beside_a_validation_loss_capital_names_are_evaluations(tmp_path: Path) -> None:
    text = "|Step|Training Loss|Validation Loss|Reward|\n|--|--|--|--|\n|10|0.1|0.2|0.5|\n|1,020|0.1|0.2|0.75|\n"
    run = read_log(None, written(tmp_path, "run.md", text))
    assert run.evaluations.to_numpy().tolist() == [[10, 0.5], [1020, 0.75]]
    assert "reward/mean" not in run.rollouts


LONG = {"loss": 0.0123456, "grad_norm": 0.1250011, "learning_rate": 9.6e-07, "reward": 0.2512345, "kl": 0.000123}
LONG_VERL = (
    "step:{} - actor/kl_loss:0.123 - actor/pg_loss:-0.01234 - critic/score/mean:0.25125"
    " - val-core/a/acc/mean@1:0.5 - response_length/mean:210.5"
)


@pytest.mark.parametrize("prefix", ["", "2026-01-01 10:00:00,123 INFO: ", WORKER, f"{BAR} "])
@pytest.mark.parametrize("width", range(64, 120, 8))
def test_rows_that_a_terminal_broke_are_put_together_and_no_number_is_invented(
    tmp_path: Path, prefix: str, width: int
) -> None:
    for row, trimmed in product((str(LONG), LONG_VERL.format(3)), ("\n", " ")):  # a copy may lose blanks at the end
        text = (prefix + row).replace("\x1b[36m", "").replace("\x1b[0m", "")
        lines = [text[at : at + width].rstrip(trimmed) for at in range(0, len(text), width)]
        path = written(tmp_path, "run.log", "\n".join([*lines, "another line"] * 2))
        run = read_log(None, path)
        reward, loss = (0.2512345, 0.0123456) if row.startswith("{") else (0.25125, -0.01234)
        assert run.rollouts["reward/mean"].tolist() == [reward] * 2
        assert run.updates["loss"].tolist() == [loss] * 2


def test_a_number_that_may_go_on_is_left_out(tmp_path: Path) -> None:
    cut = "{'loss': 0.01\n  23, 'reward': 0.5}\n"
    run = read_log(None, written(tmp_path, "run.log", cut))
    assert list(run.updates) == ["rollout_step"] or run.updates.empty
    assert run.rollouts["reward/mean"].tolist() == [0.5]
    text = "step:1 - critic/score/mean:0.5 - actor/pg_loss:0.1\n25\n"
    assert "loss" not in read_log(None, written(tmp_path, "verl.log", text)).updates


def test_evaluations_of_trl_and_verl(tmp_path: Path) -> None:
    history = [
        row for step in range(1, 5) for row in ({"step": step, "loss": 0.1}, {"step": step, "eval_reward": step})
    ]
    history.append({"step": 4, "eval_rewards/accuracy/mean": 0.5, "eval_rewards/accuracy/std": 0.1})
    run = read_log(None, written(tmp_path, "state.json", json.dumps({"log_history": history})))
    assert run.evaluations["eval/reward"].tolist()[:4] == [1, 2, 3, 4]
    assert any("`eval_rewards/accuracy/mean` by likeness: 0.5 at step 4" in text for text in run.readings)
    rows = [
        f"step:{step} - val-core/{data}/acc/mean@4:{value}" for step, data, value in ((0, "a", 0.25), (5, "a", 0.5))
    ]
    rows[1] += " - val-core/b/acc/mean@4:0.75 - val-core/a/acc/best@4/mean:0.9 - critic/score/mean:2.5"
    run = read_log(None, written(tmp_path, "verl.log", "\n".join(rows)))
    assert run.evaluations["eval/accuracy_expected"].tolist() == [0.25, 0.5], "the data set that was evaluated most"
    assert run.evaluations["rollout_step"].tolist() == [0, 5]
    assert "read: evaluations: eval/accuracy_expected is `val-core/a/acc/mean@4`: 0.25 at step 0," in page.text(
        examine(to_evidence(run))
    )


def test_a_reward_is_no_accuracy(tmp_path: Path) -> None:
    rows = [
        {"step": step, "loss": 0.1, "eval_rewards/accuracy/mean": 2.0, "validation/accuracy": 0.5} for step in (1, 2)
    ]
    run = read_log(None, written(tmp_path, "run.json", json.dumps(rows)))
    assert list(run.evaluations) == ["rollout_step", "eval/reward"], "NeMo-RL calls its mean reward accuracy"


def test_names_of_homemade_trainers_are_read_and_told(tmp_path: Path) -> None:
    row = {"step": 1, "mean_reward": 0.5, "policy_loss": 0.1, "clip_fraction": 7.0, "train/approx_kl": 0.01, "lr": 1e-6}
    run = read_log(None, written(tmp_path, "run.json", json.dumps([row, row | {"step": 2, "completionLen": 9}])))
    assert run.framework == OTHER
    assert run.rollouts["reward/mean"].tolist() == [0.5, 0.5]
    assert run.updates[["loss", "kl_old/k3", "learning_rate"]].to_numpy().tolist() == [[0.1, 0.01, 1e-6]] * 2
    assert "clip/active" not in run.updates, "a share is between 0 and 1"
    (told,) = run.readings
    assert "`mean_reward` is read as reward/mean" in told
    assert "read: by likeness: " in page.text(examine(to_evidence(run)))
    exact = read_log(
        None, written(tmp_path, "trl.json", json.dumps([{"loss": 0.1, "reward": 0.5, "mean_reward": 9.0}]))
    )
    assert (exact.framework, exact.readings) == ("trl", ())
    assert exact.rollouts["reward/mean"].tolist() == [0.5]


@pytest.mark.parametrize("framework", [name for name in LOG_NAMES if name != "trl"])
def test_a_log_of_each_framework_is_known_by_its_names(framework: str) -> None:
    names = [name for name, ours in LOG_NAMES[framework].items() if ours != "learning_rate"]
    run = read_rows("a", [{"_step": step, **dict.fromkeys(names, 0.5)} for step in range(3)])
    assert (run.framework, run.rows, run.readings) == (framework, 3, ())


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("state.json", '{"log_history": [{"loss": 1.0, "step": 1}, {"loss": 2.0, "st'),
        ("rows.jsonl", '{"loss": 1.0, "step": 1}\n{"loss": 2.0, "kl": 0.1, "st'),
    ],
)
def test_of_a_half_written_log_the_whole_rows_are_read_and_the_rest_is_said(
    tmp_path: Path, name: str, text: str
) -> None:
    run = read_log("trl", written(tmp_path, name, text))
    assert run.updates["loss"].tolist() == [1.0]
    assert "lines that are half written or cut off: 1" in run.problems


def test_steps_that_go_back_are_said(tmp_path: Path) -> None:
    rows = "".join(f'{{"loss": 0.1, "step": {step}}}\n' for step in (1, 2, 3, 2, 3, 4))
    assert any("falls 1 times" in text for text in read_log("trl", written(tmp_path, "l.jsonl", rows)).problems)


def test_what_is_no_text_or_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04\x00\x00")
    for name, says in (("model.pt", "it is no text"), ("none.log", "there is no such file"), (".", "it is no file")):
        with pytest.raises(RequestError, match=says):
            read_log(None, tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 300_000,
        "{'" * 300_000 + "step:1 - " * 1000,
        "{'a': {\n" * 50_000,
        "(pid=" + "(" * 300_000,
        '{"log_history": [' + "[" * 300_000,
        "step:1 - " + "a:1 - " * 300_000,
        "GRPO" * 100_000 + "(" * 1000,
        "<td>" * 100_000,
        "<table><tr><td>" * 30_000 + "<td " * 30_000,
        "|--|--|\n" * 100_000,
        "{'loss': 1\n" * 50_000,
        '{"cells": [{"outputs": [{"data": {"text/html": "' + "<td>" * 100_000 + '"}}]}]}',
    ],
)
@pytest.mark.parametrize("name", ["run.log", "run.json", "run.md", "run.ipynb"])
def test_a_hostile_log_costs_no_time(tmp_path: Path, name: str, text: str) -> None:
    start = time.process_time()
    with pytest.raises(
        RequestError, match=r"holds no metric|holds no rows|holds no whole row|is empty|is no whole notebook"
    ):
        read_log(None, written(tmp_path, name, text))
    assert time.process_time() - start < 5


def test_a_large_log_needs_little_memory_and_seconds(tmp_path: Path) -> None:
    """10 MB of console, of which 2,000 rows are kept: what a log of 100 MB costs in time, and its rows in memory."""
    line = "sample: a completion {with braces} and some text " * 100 + "\n"
    text = "".join(f"{line}{BAR}\r{TRL_ROW}\n" for _ in range(2000))
    path = written(tmp_path, "run.log", text)
    start = time.process_time()
    tracemalloc.start()
    run = read_log(None, path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(run.updates) == 2000
    assert peak < len(text.encode())
    assert time.process_time() - start < 10


def test_control_characters_of_a_name_are_spelled_out(tmp_path: Path) -> None:
    path = written(tmp_path, "run\x1b[31m.log", TRL_ROW)
    assert "\x1b" not in page.text(diagnose_log(None, path))


def test_every_name_of_a_log_has_a_meaning_here() -> None:
    ours = {name for names in LOG_NAMES.values() for name in names.values()}
    assert ours - METRICS.keys() == LOG_ONLY.keys()


# --- what it says ----------------------------------------------------------------------------------------------------


def test_a_group_of_one_is_seen_in_the_extremes_of_a_log() -> None:
    draw = np.random.default_rng(0)
    rows = [
        {"critic/score/max": most, "critic/score/min": least, "actor/pg_loss": 0.1}
        for least, most in np.sort(draw.random((20, 2)))
    ]
    raw = [
        row | {f"critic/advantages/{end}": row[f"critic/score/{end}"] / (1 + 1e-6) for end in ("max", "min")}
        for row in rows
    ]
    centred = [row | {"critic/advantages/max": 1.0, "critic/advantages/min": -1.0} for row in rows]
    assert read_rows("a", raw).framework == "verl"
    assert [cause.cause for cause in examine(to_evidence(read_rows("a", raw))).findings] == ["group_of_one"]
    assert examine(to_evidence(read_rows("a", centred))).findings == ()


def test_what_is_missing_is_said_under_the_name_that_the_framework_has_for_it(tmp_path: Path) -> None:
    unknown = diagnose_log(None, written(tmp_path, "run.log", TRL_ROW)).unknown
    assert "groups with equal rewards: a constant reward, and starving variance: zero_variance/share is missing," in (
        next(text for text in unknown if "zero_variance" in text)
    )
    assert any(text.endswith("which trl logs as frac_reward_zero_std") for text in unknown)
    assert any(text.endswith("ratio/token_max is missing, which trl does not log") for text in unknown)


def test_command_reads_a_log_without_being_told_whose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "run.log", "\n".join([TRL_ROW.replace("nan", "0.5")] * 3))
    assert main(["diagnose", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "a log of trl with 3 rows"
    assert main(["diagnose", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "a log of trl with 3 rows", "of the one log in the folder"
    (tmp_path / "empty").mkdir()
    assert main(["diagnose", str(tmp_path / "empty")]) == 2
