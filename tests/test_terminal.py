"""Data of others is shown on a terminal, and never obeyed; a name is no markup."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from grpolab.cli import main
from grpolab.paths import Results, write_json_atomic, write_text_atomic
from grpolab.studies.progress import Estimate, Progress, print_table
from grpolab.sweep.jobs import RUN, Job
from grpolab.terminal import visible

SOURCE = Path(__file__).parents[1] / "src" / "grpolab"
# Clears the screen, sets the window's title, writes to the clipboard, turns the line round, goes back to its start.
ESCAPES = "\x1b[2J\x1b]0;mine\x07\x1b]52;c;aGk=\x07‮abc\r\x9b31m\x00"


@pytest.mark.parametrize("char", [char for char in ESCAPES if not char.isprintable()])
def test_nothing_that_a_terminal_obeys_is_left(char: str) -> None:
    assert visible(f"a{char}b") == f"a{ascii(char)[1:-1]}b"


def test_what_can_be_read_stays() -> None:
    text = "Ġthe\tä→∅ 12 \n日本語"
    assert visible(text) == text


def run_with(results: Results, text: str) -> str:
    """A run folder that failed for a reason, and kept a completion, both of this text."""
    name = "0123456789abcdef"
    folder = results.run(name)
    write_text_atomic(folder / "settings.yaml", "task: {name: addition}\n")
    outcome = {"outcome": "failed", "reason": text, "rollout_steps": 0, "final": {}, "error": None}
    write_json_atomic(folder / "outcome.json", outcome)
    cell = {"variant": f"a{text}", "seed": 0, "signature": name, "levels": {}, "overrides": []}
    plan = {"study": "mine", "includes": [], "cells": [cell], "hypotheses": []}
    write_json_atomic(results.plan("mine"), plan)
    columns = {
        "prompt_index": [0], "sample": [0], "prompt": [text], "completion": [text], "reward": [0.0], "advantage": [0.0],
        "position": [0], "token": [f"t{text}"], "old_log_prob": [0.0], "ratio": [1.0], "clipped": [""],
    }  # fmt: skip
    (folder / "samples").mkdir()
    pq.write_table(pa.table(columns), folder / "samples" / "step_000000.parquet")
    return name


@pytest.mark.parametrize("words", [["show"], ["status"]])
def test_a_command_prints_escapes_spelled_out(
    results: Results, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = run_with(results, ESCAPES)
    assert main([*words, "mine" if words == ["status"] else name, "--results", str(results.root)]) in (0, 1)
    said = capsys.readouterr().out
    assert "\\x1b" in said
    assert [char for char in said if char not in "\n\t" and not char.isprintable()] == []


@pytest.mark.parametrize("words", [["prune-runs"], ["sweep", "--jobs"]])
def test_a_word_that_is_refused_is_spelled_out(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, ESCAPES]) == 2
    said = capsys.readouterr().err
    assert "\\x1b" in said
    assert [char for char in said if char != "\n" and not char.isprintable()] == []


def test_an_error_that_nobody_expected_is_masked_and_spelled_out() -> None:
    code = (
        "import grpolab.cli, sys\n"
        "sys.modules['grpolab.cli'].parse = lambda given: 1 / 0 if not given else exec("
        "\"raise OSError('https://lab:hunter2@host' + chr(27))\")\n"
        "grpolab.cli.main(['x'])"
    )
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stderr
    assert said.rstrip().endswith(r"OSError: https://***@host\x1b")


def job(label: str) -> Job:
    return Job(RUN, "0123456789abcdef", label, {}, 1.0, 1)


def test_names_are_no_markup(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["arm [b]x[/b]", "n"], [["a[red]", "1"], ["b[/]", "2"], [ESCAPES, "3"]])
    said = capsys.readouterr().out
    assert "a[red]" in said
    assert "b[/]" in said
    assert "arm [b]x[/b]" in said
    assert "\x1b" not in said


def test_the_live_table_shows_a_name_as_it_is(results: Results) -> None:
    one = job("a[red]/addition, seed 0\x1b[2J")
    progress = Progress([one], Estimate(1), results, is_live=True)
    progress.started(one, 0)
    screen = io.StringIO()
    Console(file=screen, width=100).print(progress.draw())
    assert "a[red]/addition, seed 0\\x1b[2J" in screen.getvalue()


def test_what_commands_print_goes_through_one_function() -> None:
    """`print` is called in `terminal.py` alone."""
    found = {
        file.name
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert found == {"terminal.py"}
