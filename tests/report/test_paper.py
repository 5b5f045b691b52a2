"""`grpolab export-paper`: the appendix has the report's verdicts and numbers, and is LaTeX that hangs together."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from report_results import HYPOTHESES, write_study

from grpolab.cli import main
from grpolab.paths import Results
from grpolab.report import tables
from grpolab.report.claims import decide
from grpolab.report.latex import cited, escape, latex, markdown, table
from grpolab.report.load import load
from grpolab.report.text import NONE

COMMITTED = Path(__file__).parents[2] / "results" / "reference"
STUDY = "equal_updates"
UGLY = "50%_of {all} & $x^2 ~ #1 \\ [a] ≥ 雪"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results as in a fresh clone: the committed outcome alone."""
    results = Results.open(tmp_path_factory.mktemp("fresh"))
    shutil.copytree(COMMITTED, results.reference)
    for file in (results.geometry, results.surface):  # no figure here draws them, and they take seconds
        file.write_text("")
    return results


@pytest.fixture(scope="module")
def paper(fresh: Results) -> Path:
    """The folder of the appendix."""
    assert main(["export-paper", STUDY, "--results", str(fresh.root)]) == 0
    return fresh.studies / STUDY / "paper"


def check_latex(folder: Path) -> str:
    """Braces and environments close in their order, and what is drawn or cited is there; return the text."""
    text = (folder / "appendix.tex").read_text()
    bare = re.sub(r"\\begin\{verbatim\}.*?\\end\{verbatim\}", "", text, flags=re.S)
    bare = re.sub(r"(?m)^%.*$", "", bare)
    open_environments, depth = list[str](), 0
    for found in re.finditer(r"\\(begin|end)\{(\w+)\}|\\.|[{}]|[^\x00-\x7f]", bare):
        token, step, name = found[0], found[1], found[2]
        if step == "begin":
            open_environments.append(name)
        elif step == "end":
            assert open_environments.pop() == name
        depth += (token == "{") - (token == "}")
        assert depth >= 0
        assert token[0] < "\u0180", f"pdflatex does not know {token}"
    assert (open_environments, depth) == ([], 0)
    outside = re.sub(r"\\[&%$#_{}]|\\includegraphics\[.*?\]\{.*?\}|\\(label|cite)\{.*?\}", "", bare)
    outside = re.sub(r"(?s)\\begin\{tabular\}.*?\\end\{tabular\}", lambda t: t[0].replace("&", ""), outside)
    outside = outside.replace("{!}{%\n", "").replace("\\ensuremath{^2}", "")
    assert re.findall(r"[%$#_&^~]", outside) == [], "not escaped"
    for row in re.findall(r"(?s)\\begin\{tabular\}\{(.*?)\}\n(.*?)\\end\{tabular\}", bare):
        columns = len(re.findall(r"p\{[\d.]+cm|l", row[0] + "}"))
        lines = [line for line in row[1].split("\n") if line.endswith("\\\\")]
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {columns}
    pictures = re.findall(r"\\includegraphics\[.*?\]\{(.*?)\}", text)
    assert all((folder / name).read_bytes().startswith(b"%PDF") for name in pictures)
    keys = {key for of in re.findall(r"\\cite\{(.*?)\}", text) for key in of.split(",")}
    entries = re.findall(r"(?m)^@\w+\{(.*?),$", (folder / "references.bib").read_text())
    assert sorted(keys) == sorted(entries)
    return text


def test_the_verdicts_and_numbers_are_those_of_the_report(fresh: Results, paper: Path) -> None:
    text = check_latex(paper)
    studies = load(fresh, STUDY)
    claims = decide(studies)
    rows = tables.verdicts(claims).shown.to_dict("records")
    assert len(rows) == 3
    for row in rows:
        shown = (
            row[name] for name in ("claim", "of", "effect [interval of the decision]", "seeds", "verdict", "label")
        )
        pattern = ".*".join(re.escape(latex(cell)) for cell in shown)
        assert re.search(pattern, text), row["claim"]
    for row in tables.scores(studies[-1]).shown.to_dict("records"):
        assert latex(row["final score"]) in text
    (line,) = {entry["line"] for entry in studies[-1].plan["registered"].values()}
    registered = json.loads(line)
    for word in (registered["time"], registered["commit"], *registered["hypotheses"].values()):
        assert word in text
    for title in ("Methods", "Deviations from the plan, and limits", "Results", "Compute and versions", "Checklist"):
        assert f"\\subsection{{{title}}}" in text
    assert "\\includegraphics" in text
    assert "@misc{grpolab," in (paper / "references.bib").read_text()
    assert "\\input{appendix}" in (paper / "main.tex").read_text()


def test_words_of_a_study_are_escaped_and_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study of one's own: nothing is registered, a source is unknown, and one run has no result."""
    monkeypatch.setattr("grpolab.studies.drawing.ensure_geometry", lambda _: None)
    source = "Somebody, section 2 (2599.12345)"
    hypotheses = [{**HYPOTHESES[0], "says": UGLY, "source": source}]
    factors = {"clip": ["symmetric", "no_clip"], "task": ["addition"]}
    results = write_study(tmp_path / "results", "my_study", factors, question=UGLY, hypotheses=hypotheses, figures=[])
    shutil.rmtree(min(results.runs.iterdir()))
    words = ["export-paper", "my_study", "--results", str(results.root), "--out", str(tmp_path / "paper")]
    assert main([*words, "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [Path(file).name for file in files] == ["appendix.tex", "main.tex", "references.bib"]
    text = check_latex(tmp_path / "paper")
    assert escape(UGLY) in text
    assert "my\\_study" in text
    assert "No hypothesis of it was registered." in text
    assert "5 of 6 planned cells completed." in text
    assert "not registered as it is" in text
    assert "title = {arXiv:2599.12345}" in (tmp_path / "paper" / "references.bib").read_text()


def test_an_unknown_study_is_refused(fresh: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "paper"
    assert main(["export-paper", "equal_update", "--results", str(fresh.root), "--out", str(out)]) == 2
    assert "equal_update" in capsys.readouterr().err
    assert not out.exists()


def test_markdown_as_latex() -> None:
    assert escape(UGLY) == (
        "50\\%\\_of \\{all\\} \\& \\$x\\textasciicircum{}2 \\textasciitilde{} \\#1 \\textbackslash{} [a]"
        " \\ensuremath{\\geq} [U+96EA]"
    )
    assert latex("**a_b**: `c%` -> d") == "\\textbf{a\\_b}: \\texttt{c\\%} \\ensuremath{\\rightarrow} d"
    assert markdown("## T\n\nx:\n- a\n- [b]").split("\n") == [
        *("\\subsubsection*{T}", "", "x:", "\\begin{itemize}", "\\item{} a", "\\item{} [b]", "\\end{itemize}")
    ]
    kept = table(pd.DataFrame({"arm": ["token"], "n": [3], "later": [NONE], "share": ["0.1"]}), "Shares.")
    assert "arm & n & share" in kept
    assert "later" not in kept, "a column without any value"
    assert cited("DAPO, table 1 (2503.14476): .5") == "DAPO, table 1 \\cite{arxiv:2503.14476}: .5"


def test_a_long_command_is_broken_where_a_shell_goes_on() -> None:
    command = f"grpolab sweep clip_range --seeds {','.join(map(str, range(2000, 2040)))} machine.tracking_uri=null"
    shown = markdown(f"```\n{command}\n```").split("\n")[1:-1]
    assert max(map(len, shown)) <= 76
    again = subprocess.run(["sh", "-c", "echo " + "\n".join(shown)], capture_output=True, text=True, check=True)
    assert again.stdout == f"{command}\n"
