"""The page says what the journals say: sentences, tables and notebooks change when the runs do."""

import csv
import dataclasses
import json
import os
import re
import runpy
import shutil

import numpy as np
import pytest
import report_results
from report_results import rewrite, whole_of, write_run, write_study

from grpolab.cli import main
from grpolab.cli.common import study_of
from grpolab.doctor import CAUSES
from grpolab.doctor.section import assess
from grpolab.paths import REFERENCE_STUDY, REPORT_FILES, SWEEP_STUDY, Results, project_root, write_json_atomic
from grpolab.report import brief, claims, notebook, page, questions, sentences, tables
from grpolab.report.export import export_reference
from grpolab.report.figures import draw
from grpolab.report.load import load
from grpolab.report.measures import by_cell, stability_table
from grpolab.report.plans import default_study
from grpolab.report.registered import CONFIRMATORY
from grpolab.report.sentences import findings
from grpolab.report.text import number
from grpolab.studies.command_line import cell_of
from grpolab.sweep.compose import compose

TWO_ARMS = {"clip": ["symmetric", "no_clip"], "task": ["addition"]}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    results = write_study(root, placebo=[["symmetric", "clip_higher"]], figures=["F1", "F2"])
    write_study(root, "num_iterations", {"mu": ["1", "2", "4"], "task": ["addition"]}, baseline="4", figures=["F18"])
    whole_of(results, "both", ["clip_range", "num_iterations"])
    return results


@pytest.fixture(scope="module")
def whole(results):
    """The report of the collection, and what was said while it was written."""
    said = []
    return page.write(results, "both", said.append), said


def edit_journal(results, signature, change):
    """Change every record of a run's journal by what `change(record)` returns."""
    path = results.run(signature) / "journal.jsonl"
    records = [json.loads(line) for line in path.open()]
    rewrite(path, "".join(json.dumps(record | change(record)) + "\n" for record in records))


def edit_updates(results, signature, **changes):
    edit_journal(results, signature, lambda record: changes if record["kind"] == "update" else {})


def test_a_collection_is_one_report_with_claims_first(whole):
    path, said = whole
    text = path.read_text()
    order = [
        *("# both", "Whole?", "Of 2 questions 2 inconclusive. Exploratory:", "- **clip_range**"),
        *("- **num_iterations**", "**Not to be concluded:**", "**Compute:**", "## The studies, a page each"),
        *("## Provenance", "## What is missing", "## Verdicts", "## Checks"),
    ]
    places = [text.index(title) for title in order]
    assert places == sorted(places)
    assert "27 of 27 planned cells completed." in text
    assert "c0ffee" in text
    (stressed,) = [line for line in text.splitlines() if line.startswith("| clip_range H6 ") and "stressed" in line]
    assert "no_clip - symmetric in stressed" in stressed
    assert "| inconclusive | exploratory |" in stressed  # three seeds: no look yet
    for name, figures in (("num_iterations", ["batch_reuse"]), ("clip_range", ["learning_curves", "clip_fraction"])):
        files = [f"{name}_{figure}" for figure in figures]
        page_of = (path.parent / "pages" / f"{name}.md").read_text()
        assert all(f"(../figures/{name}/{file}.png)" in page_of for file in files)
        written = {f"{file}.{end}" for file in files for end in ("png", "pdf", "json")}
        assert set(os.listdir(path.parent / "figures" / name)) == written
        assert len(os.listdir(path.parent / "tables" / name)) == 12
    assert page_of.startswith("# clip_range\n")
    assert re.findall("^## .*", page_of, re.MULTILINE) == ["## Verdicts", "## Checks", "## What the runs show"]
    assert "Student's t, of shares Wilson's" in page_of
    assert "student's" not in page_of  # a name keeps its capital within a sentence
    assert said[0] == "figure 1/3: clip_range F1"
    assert said[-1].startswith("\nOf 2 questions 2 inconclusive.")
    assert "**" not in said[-1]


def test_the_committed_report_begins_with_the_findings(tmp_path):
    """Each of their studies keeps its own seeds, and shows the figure and the verdicts that the collection chooses."""
    seeds = {"clip_range": [7, 8], "num_iterations": [0]}
    figures = ["F2", "F27"]
    results = write_study(tmp_path, factors=TWO_ARMS, seeds=seeds["clip_range"], title="Clip", figures=figures)
    mu = {"mu": ["1", "4"], "task": ["addition"]}
    write_study(tmp_path, "num_iterations", mu, seeds=seeds["num_iterations"], figures=["F1"])
    whole_of(results, REFERENCE_STUDY, ["num_iterations"], shown=["num_iterations.F1"])
    without = page.write(results, REFERENCE_STUDY).read_text()
    assert "practitioners" not in without
    whole_of(results, "findings", ["clip_range"], shown=["clip_range.F27"], said=["clip_range.H6"])
    text = page.write(results, REFERENCE_STUDY).read_text()
    above, below = text.split("## Published claims")
    assert re.findall("^##.*", above, re.MULTILINE) == ["## What practitioners ask", "### Clip"]
    assert "- **inconclusive**, exploratory: Without clipping, accuracy is lower" in above
    assert re.findall(r"\]\((.*)\)", above) == ["figures/clip_range/clip_range_final_accuracy.png"]
    assert (tmp_path / "figures/clip_range/clip_range_final_accuracy.png").is_file()
    assert "clip_range" not in below


def test_every_verdict_has_its_sentence_and_the_screen_is_the_same_without_drawing(whole, results, capsys):
    sentence = (
        "- clip_range H6 is inconclusive (exploratory) in healthy: `final_score` of no_clip - symmetric (3 of the 5"
    )
    assert sentence in whole[0].read_text()
    assert main(["report", "both", "--brief", "--results", str(results.root)]) == 0
    screen = capsys.readouterr().out
    assert screen.startswith("Whole?\n\nOf 2 questions 2 inconclusive. Exploratory:")
    scores = "symmetric (baseline) 0.501, clip_higher 0.497, no_clip 0.106"
    open_ = "Without clipping, accuracy is lower, at one learning rate"
    for line in (
        f"  - not decided: {open_} (healthy); {open_} (stressed)\n",
        f"  - final accuracy (addition, stressed): {scores}",
        "Looks: planned after 5, 10, 15, 20 seeds, with wider intervals until the last; open after fewer than 5: clip",
        "Limits: 27 runs of tiny transformers on addition, seeds 0 to 2;",
    ):
        assert line in screen
    assert len(screen.splitlines()) < 40


def test_the_page_says_what_was_tested_and_the_appendix_what_was_registered(tmp_path):
    """Words of the page alone: verdict and numbers stay; and what each arm's own rate says stands beside it."""
    (claim,) = report_results.HYPOTHESES
    arms = TWO_ARMS | {"regime": ["stressed"]}
    words = {"tested": "Without clipping, it ends lower.", "also": ["clip_tuned.H6"]}
    plain, said = (
        write_study(tmp_path / n, factors=arms, hypotheses=[claim | of], seeds=5) for n, of in (("a", {}), ("b", words))
    )
    write_study(tmp_path / "b", "clip_tuned", arms, seeds=5)
    whole_of(said, "both", ["clip_range", "clip_tuned"])
    before, after, both = load(plain, "clip_range"), load(said, "clip_range"), load(said, "both")
    assert [c.verdict for c in claims.decide(before)] == [c.verdict for c in claims.decide(after)] != []
    screen = brief.screen(after, claims.decide(after))
    assert (
        "Without clipping, it ends lower, at one learning rate (stressed): accuracy `symmetric` -> `no_clip`: 0.5"
        in screen
    )
    assert claim["says"].rstrip(".") not in screen
    assert "clip_tuned" not in screen
    beside = brief.screen(both, claims.decide(both))
    assert re.search(r"ends lower, .*\n    - in `clip_tuned`: supported, addition -0\.", beside)
    both[1].plan["tuned"] = [{"study": "rates"}]
    beside = brief.screen(both, claims.decide(both))
    assert "    - each arm at its own learning rate (`clip_tuned`): supported, addition -0." in beside
    alone = brief.screen(after, claims.decide(after), claims.decide_elsewhere(said, after))
    assert "    - in `clip_tuned`: supported, addition -0." in alone
    text = page.write(said, "clip_range").read_text()
    assert f"- clip_range H6: {claim['says']}" in text.split("## Verdicts")[1].split("As registered")[1]
    assert "As registered" not in page.write(plain, "clip_range").read_text()


def test_a_void_hypothesis_is_named_with_its_reason(tmp_path):
    condition = {"metric": "clip/active", "of": "no_clip", "above": 9.0}
    hypotheses = [report_results.HYPOTHESES[0] | {"provided": condition}]
    studies = load(write_study(tmp_path, hypotheses=hypotheses, seeds=5), "clip_range")
    screen = brief.screen(studies, claims.decide(studies))
    assert "2 void" in screen
    said = "Without clipping, accuracy is lower, at one learning rate (healthy)"
    assert f"  - void, for nothing can be told apart: {said} (its condition fails in" in screen


def test_provenance_says_how_to_make_it_again(whole, tmp_path):
    text = whole[0].read_text()
    assert "trained from 2023-11-14 22:13 to 2023-11-14 22:13 UTC" in text
    assert "- seeds: clip_range 0, 1, 2; num_iterations 0, 1, 2" in text
    assert "```\ngit checkout c0ffee\ngrpolab sweep both --seeds 3\ngrpolab report both\n```" in text
    other = write_study(tmp_path, factors=TWO_ARMS, seeds=1)
    mu = {"mu": ["1", "2"], "task": ["addition"]}
    write_study(tmp_path, "num_iterations", mu, seeds=2, baseline="1")
    path = next(other.runs.iterdir()) / "provenance.json"
    path.write_text(path.read_text().replace("c0ffee", "decaf"))
    whole_of(other, "both", ["clip_range", "num_iterations"])
    text = page.write(other, "both").read_text()
    assert "commit c0ffee, decaf (**mixed: 2**)" in text
    assert "The runs are of 2 commits" in text
    assert "grpolab sweep both\n" in text  # each study has the seeds of its own file


def test_a_figure_without_anything_to_show_is_a_sentence_and_no_file(tmp_path, capsys):
    results = write_study(tmp_path, factors=TWO_ARMS, seeds=3, figures=["F1", "F5", "F13"])
    text, folder = page.write(results, "clip_range").read_text(), results.output("clip_range") / "figures"
    assert "\n\n**F13.** Not drawn: two factors must move a number each; here: none.\n" in text
    names = ("learning_curves", "log_ratio_spread")
    assert {path.name for path in folder.glob("*.png")} == {f"clip_range_{name}.png" for name in names}
    for path in results.runs.glob("*/journal.jsonl"):  # now nobody has the quantiles
        rewrite(path, path.read_text().replace("_p50_", "_p49_"))
    assert main(["figures", "clip_range", "--seeds", "--results", str(tmp_path)]) == 0
    assert {path.stem for path in folder.iterdir()} == {"clip_range_learning_curves"}
    assert capsys.readouterr().out.splitlines() == [str(folder / "clip_range_learning_curves.png")]
    manifest = json.loads((folder / "clip_range_learning_curves.json").read_text())
    assert manifest["figure"] == "F1"
    assert manifest["statistic"].endswith("; thin lines are seeds")


def test_without_a_name_it_is_the_study_that_is_here(tmp_path, capsys):
    results = write_study(tmp_path, factors=TWO_ARMS, seeds=1)
    assert default_study(results) == SWEEP_STUDY
    export_reference(results, "clip_range")
    results.committed_plan("clip_range").rename(results.committed_plan(SWEEP_STUDY))  # as a package brings along
    assert study_of(None, results) == "clip_range", "the only one that is planned here"
    shutil.rmtree(results.reference)
    whole_of(results, "another", ["clip_range"])
    assert main(["report", "--brief", "--results", str(tmp_path)]) == 2
    assert "STUDY is missing: name one of another, clip_range" in capsys.readouterr().err
    for name in (SWEEP_STUDY, REFERENCE_STUDY):  # the larger one before the other
        whole_of(results, name, ["clip_range"])
        assert default_study(results) == name
    export_reference(results, SWEEP_STUDY)
    export_reference(results, REFERENCE_STUDY)
    shutil.rmtree(results.studies)
    assert default_study(results) == REFERENCE_STUDY  # a fresh clone has what was exported last
    path = page.write(results, default_study(results))
    assert path.parent == results.root
    assert {name for name in os.listdir(results.root) if name in REPORT_FILES} == set(REPORT_FILES)
    first = "\n".join(path.read_text().splitlines()[:6])
    assert f"*This is the report of the study `{REFERENCE_STUDY}`, from the committed outcome" in first
    assert "studies/<study>/" in first


def weaken(results, arm, regime, to):
    """Let the accuracy of an arm's runs end `to` above their start."""
    for cell in json.loads(results.plan("clip_range").read_text())["cells"]:
        if (cell["levels"]["clip"], cell["levels"]["regime"]) == (arm, regime):
            scores = iter([0.3 + to * n / 4 + 1e-3 * cell["seed"] * n for n in range(5)])  # of five evaluations
            name = "eval/accuracy_expected"
            edit_journal(results, cell["signature"], lambda r: {name: next(scores)} if name in r else {})  # noqa: B023


def test_preconditions_that_fail_stand_at_the_top_and_at_the_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("grpolab.run.tracking.synchronise", lambda *_: None)  # another's tests
    results = write_study(tmp_path, factors=TWO_ARMS | {"regime": ["healthy", "stressed"]})
    whole_of(results, "both", ["clip_range"])
    assert sentences.find_unmet(load(results, "clip_range")) == []
    text = page.write(results, "both").read_text()
    assert "precondition" not in text
    assert "whose outcome is committed" not in text
    weaken(results, "symmetric", "healthy", 0.05)
    weaken(results, "no_clip", "stressed", 0.1)
    learns, collapses = sentences.find_unmet(load(results, "clip_range"))
    gains = r"^1 NOT met: in addition/healthy .*`symmetric` gains \+0\.05\d .*asked: 0\.1 or more.* noise"
    assert re.search(gains, learns)
    lost = "in addition/stressed 0 of 3 runs of `no_clip` and 0 of 3 of `symmetric` are lost (asked: all, and"
    assert collapses.startswith(f"3 NOT met: {lost}")
    assert main(["report", "both", "--results", str(tmp_path)]) == 0
    files = [str(results.output("both") / name) for name in REPORT_FILES]
    last = [*(f"precondition {sentence}" for sentence in (learns, collapses)), *files]
    assert capsys.readouterr().out.splitlines()[-len(last) :] == last
    top = (results.output("both") / "report.md").read_text().split("## ")[0]
    assert "**2 preconditions not met**" in top
    assert f"- {learns}\n- {collapses}" in top
    shutil.rmtree(results.runs)  # what has not run has not failed
    assert sentences.find_unmet(load(results, "clip_range")) == []


@pytest.mark.slow
def test_every_caption_says_what_was_registered_before_its_runs(tmp_path, monkeypatch):
    results = write_study(tmp_path, figures=["F1"])
    text = page.write(results, "clip_range").read_text()
    assert re.findall(r"^\*\*F1\.\*\* .* Exploratory\. ", text, re.MULTILINE)
    manifest = results.output("clip_range") / "figures" / "clip_range_learning_curves.json"
    assert json.loads(manifest.read_text())["caption"].endswith(" Exploratory.")
    monkeypatch.setattr(questions, "label_of", lambda *_: (CONFIRMATORY, ""))
    text = page.write(results, "clip_range").read_text()
    assert re.findall(
        r"^\*\*F1\.\*\* .* Registered verdicts: H6; all else that it shows is exploratory\. ", text, re.MULTILINE
    )


def test_zero_clip_sentences_are_computed(tmp_path):
    results = write_study(tmp_path, "once", {"mu": ["1", "2"], "task": ["addition"]}, seeds=2)
    study = load(results, "once")[-1]
    said = " ".join(findings(study))
    assert "At the first update on a batch the clip fraction is exactly 0 in all 48 updates of 4 runs." in said
    once = "With one update per batch (`1`) the clip fraction is"
    assert f"{once} exactly 0 in all 24 updates of 2 runs." in said
    edit_updates(results, study.cells["signature"].iloc[0], **{"clip/out_of_range": 0.25})
    said = " ".join(findings(load(results, "once")[-1]))
    assert f"{once} not 0 in 12 of 24 updates of 2 runs (largest 0.250)" in said


def test_ratio_levels_are_compared_as_factors(tmp_path):
    results = write_study(tmp_path, "levels", {"ratio": ["token", "sequence"], "task": ["addition"]}, num_iterations=2)
    for cell in load(results, "levels")[-1].cells.itertuples():
        edit_updates(results, cell.signature, **{"clip/active": 0.3 if cell.arm == "sequence" else 0.03})
    said = " ".join(findings(load(results, "levels")[-1]))
    assert "`sequence` clips 10.0 [10.0, 10.0] times the share of tokens that `token` clips in addition." in said
    assert "a sequence ratio at epsilon .2 would clip 0.667" in said


def test_score_table_is_paired_and_describes(results):
    table = tables.scores(load(results, "clip_range")[-1])
    numbers = table.numbers.set_index(["facet", "arm"])
    stressed = numbers.loc["addition/stressed", "no_clip"]
    assert stressed["difference_high"] < 0
    assert not [name for name in table.numbers if name.startswith("p_") or name == "p"]  # verdicts have one place
    baseline = numbers.loc["addition/stressed", "symmetric"]
    assert stressed["difference"] == pytest.approx(stressed["final_score"] - baseline["final_score"])
    assert numbers["n"].eq(3).all()


def test_no_table_or_sentence_gives_a_share_an_interval_outside_0_and_1(tmp_path):
    """Three runs of which one clips nearly everything and one is always right."""
    results = write_study(tmp_path)
    for cell in json.loads(results.plan("clip_range").read_text())["cells"]:
        wild, shares = (0.0, 0.02, 1.0)[cell["seed"]], ("clip/", "cf/", "eval/accuracy")
        edit_journal(results, cell["signature"], lambda r: {n: wild for n in r if n.startswith(shares)})  # noqa: B023
    study = load(results, "clip_range")[-1]
    scores, clipping, stability = (make(study).numbers for make in (tables.scores, tables.clipping, tables.stability))
    for frame in (
        scores[["final_low", "final_high"]],
        clipping[[name for name in clipping if name.endswith((" low", " high"))]],
        stability[[name for name in stability if name.endswith(("_low", "_high"))]],
    ):
        assert frame.min(axis=None) >= 0
        assert frame.max(axis=None) <= 1
    shares = [share for said in findings(study) for share in re.findall(r"\[(-?[\d.]+)%, ([\d.]+)%\]", said)]
    assert shares
    assert all(0 <= float(low) <= float(high) <= 100 for low, high in shares)


def test_tables_come_as_csv_markdown_and_latex(results, tmp_path):
    for table in tables.tables(load(results, "clip_range")[-1]):
        table.write(tmp_path)
        rows = list(csv.DictReader((tmp_path / f"{table.name}.csv").open()))
        assert [row["arm"] for row in rows] == table.shown["arm"].to_list()
        markdown = (tmp_path / f"{table.name}.md").read_text().splitlines()
        assert {line.count("|") for line in markdown if line.startswith("|")} == {table.shown.shape[1] + 1}
        latex = (tmp_path / f"{table.name}.tex").read_text()
        assert r"clip\_higher & 3" in latex
        assert latex.count(r"\\") == len(rows) + 1
        assert "%" not in latex.replace(r"\%", "")


def test_runs_that_are_absent_or_were_stopped_are_named_in_the_report(tmp_path):
    results = write_study(tmp_path, factors=TWO_ARMS, seeds=2, figures=["F1"])
    first, *others = load(results, "clip_range")[-1].plan["cells"]
    (results.run(others[-1]["signature"]) / "outcome.json").unlink()
    write_run(results, first, outcome="stopped", last_step=6)
    text = page.write(results, "clip_range").read_text()
    assert "2 of 4 planned cells completed." in text
    assert "missing (planned, and not run yet): no_clip/addition seed 1" in text
    assert re.search(r"- stopped \(its early stop found it hopeless.*\): symmetric/addition seed 0", text)
    assert "**1 cell missing.**" in text
    for cell in (first, *others[:-1]):  # a study that has not run yet
        (results.run(cell["signature"]) / "outcome.json").unlink()
    text = page.write(results, "clip_range").read_text()
    assert "0 of 4 planned cells completed." in text
    assert "No run of this study has a result yet." in text
    assert "H6 is not run (exploratory): `final_score` of no_clip - symmetric (0 of the 5 seeds" in text


NOTEBOOKS = sorted(path.stem for path in project_root().glob("notebooks/*.py"))


@pytest.mark.parametrize(
    "name", [n if n == "why_is_my_ratio_one" else pytest.param(n, marks=pytest.mark.slow) for n in NOTEBOOKS]
)
def test_notebooks_run_as_scripts(results, name, monkeypatch, capsys):
    monkeypatch.setenv("GRPOLAB_RESULTS", str(results.root))
    monkeypatch.setenv("GRPOLAB_STUDY", "num_iterations")
    runpy.run_path(str(project_root() / "notebooks" / f"{name}.py"), run_name="__main__")
    assert ("Figure" if name == "why_is_my_ratio_one" else "Picture") in capsys.readouterr().out


def test_a_notebook_reads_what_was_swept_last_and_says_which(tmp_path, monkeypatch):
    monkeypatch.delenv("GRPOLAB_STUDY", raising=False)
    results = Results.open(tmp_path)
    cells = {"factors": {"clip": ["symmetric", "no_clip"]}, "seeds": 1, "trained": False}
    write_study(tmp_path, "claims", created="2026-01-01T00:00:00+00:00", **cells)
    assert notebook.choose_study(results, "claims")[0] == "claims"
    write_study(tmp_path, "smoke", created="2026-02-01T00:00:00+00:00", **cells)
    write_study(tmp_path, "part", created="2026-03-01T00:00:00+00:00", **cells)
    write_study(tmp_path, "whole", created="2026-03-01T00:00:00+00:00", **{**cells, "includes": ["part"], "cells": []})
    one = {**cells, "factors": {"clip": ["symmetric"]}}
    write_study(tmp_path, "adhoc", created="2026-04-01T00:00:00+00:00", **one)
    name, sentence = notebook.choose_study(results)
    assert name == "whole"
    assert "`whole`**, the study that was swept last here (planned 2026-03-01 00:00 UTC)" in sentence
    assert "`GRPOLAB_STUDY=NAME make notebooks` reads another" in sentence
    assert "smoke" in sentence
    monkeypatch.setenv("GRPOLAB_STUDY", "smoke")
    assert notebook.choose_study(results)[0] == "smoke"


def test_what_the_store_is_told_of_each_run(tmp_path):
    results = write_study(tmp_path, factors=TWO_ARMS, seeds=2)
    first = load(results, "clip_range")[-1].plan["cells"][0]
    write_run(results, first, outcome="stopped", last_step=6)
    studies = load(results, "clip_range")
    assess(results, studies)
    said = json.loads(results.assessment("clip_range").read_text())
    assert said.keys() == {*studies[-1].done["signature"]}
    table = stability_table(studies[-1]).assign(signature=list(studies[-1].done["signature"])).set_index("signature")
    for signature, of in said.items():
        row = table.loc[signature]
        assert all(of["metrics"][name] == float(row[name]) for name in ("final_score", "gain", "lost"))
        assert (of["tags"]["lost"] == "no") == (not row["lost"])
        assert of["tags"]["cause"] in {*(name.replace("_", " ") for name in CAUSES), "none known"}
    assert said[first["signature"]]["tags"]["lost"] == "stopped"


def test_the_screen_tells_levels_of_one_task_apart_and_names_every_model(tmp_path):
    """`sorting` and `long_sorting` are one task of two lengths; a tiny transformer has no name."""
    factors = {"clip": ["symmetric", "no_clip"], "task": ["sorting", "long_sorting"]}
    study = load(write_study(tmp_path, factors=factors), "clip_range")[-1]
    model = np.where(study.cells["seed"], None, "smol")
    cells = study.cells.assign(**{"setting/task": "sorting", "task_title": "sorting", "setting/model": model})
    said = brief.screen([dataclasses.replace(study, cells=cells)], [])
    assert "final accuracy (mean of 2 tasks): `symmetric`" in said
    assert "12 runs of smol, tiny transformers on sorting" in said


def test_a_task_of_ones_own_is_named_by_its_file_and_class(tmp_path):
    files = ["task=jsonl", "task.train_file=data/letters.jsonl", "task.evaluation_file=data/test.jsonl"]
    own = ["task=custom", "task.path=lab/reverse.py:Reverse"]
    cells = [cell_of(compose(overrides), overrides).document() for overrides in (files, own, [])]
    assert [cell.get("task_title") for cell in cells] == ["letters.jsonl", "reverse.py:Reverse", None]
    assert [cell["settings"]["task"] for cell in cells] == ["jsonl", "custom", "addition"]
    results = write_study(tmp_path, trained=False)
    plan = json.loads(results.plan("clip_range").read_text())
    plan["cells"] = [cell | {"task_title": "letters.jsonl"} for cell in plan["cells"][:3]]
    for cell in plan["cells"]:
        write_run(results, cell)
    assert "3 runs of tiny transformers on letters.jsonl, seeds" in brief.screen([load_with(results, plan)], [])


def test_without_a_finished_run_nothing_is_inconclusive(tmp_path):
    study = load(write_study(tmp_path, trained=False), "clip_range")[-1]
    decided = claims.decide([study])
    assert {claim.verdict for claim in decided} == {claims.NOT_RUN}
    said = brief.screen([study], decided)
    assert said.startswith(f"No run has finished, so nothing is decided (hypotheses: {len(decided)}).")
    assert "inconclusive" not in said


def test_arms_with_seeds_of_their_own_are_compared_over_those_that_all_have(tmp_path):
    """A look adds seeds to the arms that are not decided; a mean over others would be of other starts."""
    results = write_study(tmp_path, factors={"clip": ["symmetric", "clip_higher", "no_clip"], "task": ["sorting"]})
    plan = json.loads(results.plan("clip_range").read_text())
    fewer = [cell for cell in plan["cells"] if cell["levels"]["clip"] != "clip_higher" or cell["seed"] < 2]
    every, some = (load_with(results, plan | {"cells": cells}) for cells in (plan["cells"], fewer))
    first_two = every.cells[every.cells["seed"] < 2].assign(score=by_cell(every, "final_score"))
    means = first_two.groupby("arm")["score"].mean()
    said = ", ".join(f"`{arm}`{' (baseline)' * (arm == 'symmetric')} {number(means[arm])}" for arm in every.arms)
    assert f"final accuracy (sorting, 2 seeds): {said}" in brief.screen([some], [])
    assert "Variants have 2 to 3 seeds." in draw(some, "F1")[1].caption
    assert "Variants have" not in draw(every, "F1")[1].caption


def load_with(results, plan):
    write_json_atomic(results.plan("clip_range"), plan)
    return load(results, "clip_range")[-1]
