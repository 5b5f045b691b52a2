"""`--json`: standard output is one JSON value, of every command that says something (docs/command_line.md)."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from tiny import VALUES

sys.path.append(str(Path(__file__).parent / "report"))
from report_results import write_study
from test_light_commands import COMPLETION

from grpolab.cli import main, parsers
from grpolab.cli.common import to_json
from grpolab.paths import Results

ROOT = Path(__file__).parents[1]
# Their output is events (--json-lines), a server, or a script.
WITHOUT = {"train", "sweep", "tune", "watch", "ui", "completion"}
ELSEWHERE = {"track verify": "run/tracking/test_verify.py", "conformance": "frameworks/test_conformance.py"}
# Command -> its other words, and keys of its result; FIRST and SECOND are runs, FOLDER is new, EMPTY is there.
EXAMPLES: dict[str, tuple[str, set[str]]] = {
    "status": ("", {"clip_range"}),
    "figures": ("clip_range", {"files"}),
    "report": ("clip_range", {"files"}),
    "report --brief": ("clip_range", {"study", "question", "claims"}),
    "compare": ("RESULTS", {"verdict", "comparisons"}),
    "power": ("--sd 1 --difference 1", {"of", "power", "hypotheses", "looks", "contrasts"}),
    "show": ("FIRST", {"run", "step", "kept", "ratio", "completions"}),
    "diff": ("FIRST SECOND", {"runs", "settings", "outcomes", "final", "effects"}),
    "vocabulary": ("", {"metrics", "quantities", "thresholds", "positions", "histograms", "outcomes", "tags"}),
    "diagnose": ("FIRST", {"run", "causes", "normal", "unknown"}),
    "diagnose --html": ("FIRST", {"files"}),
    "lint": ("num_iterations=1 delta=1.1", set()),
    "lint --rules": ("", {"page"}),
    "import": (
        "EMPTY/run.py",
        {"framework", "overrides", "not_carried", "notes", "defaults", "summary", "counts"},
    ),
    "export": ("--to trl", {"text", "differs", "not_carried"}),
    "dialects": ("--drift EMPTY", set()),
    "plugins": ("", set()),
    "init": ("FOLDER", {"files"}),
    "geometry": ("", {"files"}),
    "register": ("clip_range", {"file", "registration"}),
    "export-reference": ("clip_range", {"files"}),
    "export-paper": ("clip_range", {"files"}),
    "track sync": ("", {"uri", "studies"}),
    "prune-runs": ("--dry-run", {"folders", "deleted"}),
    "runs import": ("EMPTY", {"counts", "refused"}),
    "runs export": ("FIRST FOLDER", {"files"}),
}
# These read no results folder.
NO_RESULTS = {"vocabulary", "lint", "lint --rules", "import", "export", "dialects", "plugins", "init"}


def commands() -> dict[str, argparse.ArgumentParser]:
    """Every command by its name."""
    groups = parsers()[1]
    named = {f"{group} {word}".strip(): parser for group in groups for word, parser in groups[group].choices.items()}
    return {name: parser for name, parser in named.items() if name not in groups}


def test_every_command_that_says_something_has_it_and_an_example() -> None:
    with_json = {name for name, parser in commands().items() if "--json]" in parser.format_usage()}
    assert with_json == commands().keys() - WITHOUT
    assert with_json - ELSEWHERE.keys() == {name.partition(" --")[0] for name in EXAMPLES}
    assert all('"--json"' in (ROOT / "tests" / file).read_text() for file in ELSEWHERE.values())
    table = (ROOT / "docs" / "command_line.md").read_text().partition("| its result |")[2]
    assert {name for name in with_json if f"`{name}`" not in table.partition("\n\n")[0]} == set()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a finished study."""
    factors = {"clip": ["symmetric", "no_clip"], "task": ["addition"]}
    made = write_study(tmp_path_factory.mktemp("study") / "results", figures=[], factors=factors)
    for folder in made.runs.iterdir():
        (folder / "settings.yaml").write_text(yaml.safe_dump(VALUES))
        for file in folder.glob("samples/*.parquet"):
            pd.DataFrame(COMPLETION | {"reward_correct": float("nan")}, index=[0]).to_parquet(file)
    return made.root


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study: Path) -> Results:
    """A copy of it; drawing, MLflow and weights are others' tests."""
    for name in ("ensure_geometry", "draw_all", "assess_runs"):
        monkeypatch.setattr(f"grpolab.studies.drawing.{name}", lambda *_: print("a figure is drawn"))
    monkeypatch.setattr("grpolab.report.page.draw", lambda *_: [Path("a.png")])
    monkeypatch.setattr("grpolab.report.paper.write", lambda *_: [Path("appendix.tex")])
    monkeypatch.setattr("grpolab.run.tracking.check_answer", lambda _: None)
    monkeypatch.setattr("grpolab.run.tracking.synchronise", lambda *_: "")
    monkeypatch.setattr("grpolab.models.hugging_face.write_model", lambda *_: None)
    monkeypatch.setattr("grpolab.studies.housekeeping.available", list)  # to plan every study takes a minute
    monkeypatch.setattr("grpolab.sweep.plan.plans", lambda *_, **__: [])
    monkeypatch.setattr("grpolab.studies.register.register_study", lambda *_: '{"study": "clip_range"}')
    return Results(shutil.copytree(study, tmp_path / "results"))


def refuse_constant(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON")


@pytest.mark.parametrize("command", EXAMPLES)
def test_standard_output_is_the_result_alone(
    command: str, results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, keys = EXAMPLES[command]
    other = Results.open(tmp_path / "other").root
    (other / "run.py").write_text("from trl import GRPOConfig\nGRPOConfig(beta=0.1)\n")
    first, second, *_ = sorted(folder.name for folder in results.runs.iterdir())
    places = {"RESULTS": results.root, "FOLDER": tmp_path / "new", "EMPTY": other, "FIRST": first, "SECOND": second}
    for name, place in places.items():
        words = words.replace(name, str(place))
    here = [] if command in NO_RESULTS else ["--results", str(results.root)]
    assert main([*command.split(), *words.split(), "--json", *here]) == 0
    value = json.loads(capsys.readouterr().out, parse_constant=refuse_constant)
    assert isinstance(value, dict if keys else list)
    assert keys <= set(value if keys else ())


def test_the_result_has_the_numbers_that_are_said(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    here = ["--results", str(results.root)]
    assert main(["report", "clip_range", "--brief", "--json", *here]) == 0
    (claim,) = json.loads(capsys.readouterr().out)["claims"]
    assert main(["report", "clip_range", "--brief", *here]) == 0
    assert claim["verdict"] in capsys.readouterr().out
    assert claim["id"] == "H6"
    assert claim["label"] == "exploratory"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("report nope --brief --json", "nope is not planned"),
        ("status clip_rang --json", "clip_rang"),
        ("power --sd 0 --json", "--sd: 0 is not allowed"),
        ("ui --json", "--json is no option"),
        ("prune-runs --json", "give --dry-run or --yes"),
    ],
)
def test_a_wrong_request_is_one_json_value_too(
    words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--results", str(tmp_path)]) == 2
    said = capsys.readouterr()
    (sentence,) = json.loads(said.out)["error"]
    assert says in sentence
    assert said.err == f"grpolab: {sentence}\n"


def test_an_interruption_is_one_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grpolab.meanings.page", interrupt)
    assert main(["vocabulary", "--json"]) == 130
    assert list(json.loads(capsys.readouterr().out)) == ["error"]


def test_numbers_that_json_has_not() -> None:
    value = {"mean": float("nan"), "cap": float("inf"), "n": np.int64(3), "row": np.array([1.0, np.nan])}
    assert json.loads(to_json(value)) == {"mean": None, "cap": "inf", "n": 3, "row": [1.0, None]}
