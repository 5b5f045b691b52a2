"""`sweep --until-decided`: seeds are added only for what is open, and what was decided stays so."""

from __future__ import annotations

import json
import math
import shutil
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from fake_sweep import FakeSweep

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.paths import Results, project_root, read_json, write_json_atomic
from grpolab.report.claims import decide
from grpolab.report.export import export_reference
from grpolab.report.load import load
from grpolab.report.plans import read_plan
from grpolab.studies import drawing
from grpolab.studies import looks as looks_module
from grpolab.studies.looks import Answer, Looks, summarize
from grpolab.sweep import registration
from grpolab.sweep.ledger import status
from grpolab.sweep.plan import Plan, plans
from grpolab.sweep.registration import register
from grpolab.sweep.study import Study
from grpolab.vocabulary import CONFIRMATION_SEEDS

FRESH = list(range(CONFIRMATION_SEEDS, CONFIRMATION_SEEDS + 20))


def claim(name: str, of: str, **changes: Any) -> dict[str, Any]:
    """That an arm has another score than `low`, by more than a constant."""
    fields = {"id": name, "says": "x", "source": "y", "metric": "final_score", "direction": "greater", "margin": 0.05}
    return {**fields, "contrast": {"of": of, "minus": "low"}, "budget": "rollouts", **changes}


CLAIMS = [claim("A", "high"), claim("B", "wide"), claim("C", "high", where={"rate": "slow"})]
CLIPS = {"low": ["epsilon=0.1"], "base": [], "high": ["epsilon=0.3"], "wide": ["epsilon=0.4"]}


def write(folder: Path, name: str = "mine", **changes: Any) -> str:
    """A study of four arms at two rates, as a file beside the results; its path."""
    study = {
        **{"question": "What?", "compare": "clip", "baseline": "base", "seeds": 2, "hypotheses": CLAIMS},
        "overrides": ["task=sorting", "rollout_steps=12", "evaluation.every=1", "warm_start.seed=0"],
        "factors": {"clip": CLIPS, "rate": {"slow": ["learning_rate=1e-4"], "fast": ["learning_rate=1e-3"]}},
        "primary_metric": "eval/accuracy_expected",
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**study, **changes}))
    return str(file)


class Oracle:
    """Decides each hypothesis after so many seeds: `A="slow fast"` at once, `B=10` both after ten."""

    def __init__(self, **after: dict[str, int] | int) -> None:
        self.after = after
        self.asked: list[list[int]] = []  # the seeds of each plan that it was asked about

    def __call__(self, _results: Results, documents: list[dict[str, Any]]) -> list[Answer]:
        self.asked += [plan["seeds"] for plan in documents]
        return [
            self.answer(plan, hypothesis["id"], where)
            for plan in documents
            for hypothesis in plan["hypotheses"]
            for where in ([hypothesis["where"]["rate"]] if hypothesis["where"] else ("slow", "fast"))
        ]

    def answer(self, plan: dict[str, Any], name: str, where: str) -> Answer:
        (of,) = (hypothesis["contrast"]["of"] for hypothesis in plan["hypotheses"] if hypothesis["id"] == name)
        seeds = sum(cell["variant"] == f"{of}/{where}" for cell in plan["cells"])
        after = self.after.get(name, 5)
        is_open = seeds < (after[where] if isinstance(after, dict) else after)
        return Answer(plan["study"], name, where, "inconclusive" if is_open else "supported", is_open, seeds)


def planned(results: Results, study: str = "mine") -> dict[str, list[int]]:
    """Seeds of each variant in plan.json, which lists each cell once."""
    document = json.loads(results.plan(study).read_text())
    seeds = defaultdict[str, list[int]](list)
    for cell in document["cells"]:
        seeds[cell["variant"]].append(cell["seed"])
    assert document["seeds"] == sorted({seed for of in seeds.values() for seed in of})
    return dict(seeds)


def trained(jobs: list[list[str]]) -> int:
    """Runs that were begun, each once."""
    runs = [job[1] for job in jobs if job[0] == "run"]
    assert len(set(runs)) == len(runs)
    return len(runs)


# --- which seeds ----------------------------------------------------------------------------------------------------


def test_seeds_are_added_only_for_what_is_open(
    fake_sweep: FakeSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, jobs = fake_sweep(write(tmp_path), decide=Oracle(A={"slow": 15, "fast": 5}, B={"slow": 5, "fast": 10}))
    assert code == 0
    first = dict.fromkeys((f"{clip}/{rate}" for clip in CLIPS for rate in ("slow", "fast")), 5)
    grown = {"low/slow": 15, "high/slow": 15, "low/fast": 10, "wide/fast": 10}
    expected = {variant: list(range(n)) for variant, n in (first | grown).items()}
    assert planned(fake_sweep.results) == expected
    assert trained(jobs) == sum(map(len, expected.values())) == 5 * 4 + 15 * 2 + 10 * 2
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("look ")]
    assert [line.partition(", about")[0] for line in lines] == [
        "look 5: 3 of 5 decided (3 supported); open: A (slow), B (fast); next: 10 seeds of 4 variants, 20 runs",
        "look 10: 4 of 5 decided (4 supported); open: A (slow); next: 15 seeds of 2 variants, 10 runs",
        "look 15: 5 of 5 decided (5 supported)",
    ]
    assert all(", about " in line for line in lines[:2]), "by what the runs have taken"


def test_it_ends_with_the_last_look_or_with_the_one_that_is_asked_for(fake_sweep: FakeSweep, tmp_path: Path) -> None:
    oracle, study = Oracle(B=99), write(tmp_path)
    fake_sweep(study, decide=oracle, most_seeds=10)
    assert oracle.asked == [list(range(5)), list(range(10))]
    assert {len(seeds) for seeds in planned(fake_sweep.results).values()} == {5, 10}
    code, jobs = fake_sweep(study, decide=oracle)
    assert (code, trained(jobs)) == (0, 4 * 10), "goes on where it was"
    assert oracle.asked[2:] == [list(range(n)) for n in (5, 10, 15, 20)]
    assert len(planned(fake_sweep.results)["wide/slow"]) == 20
    single = write(tmp_path, "single", looks=[3])
    assert trained(fake_sweep(single, decide=oracle)[1]) == 0, "its three seeds are those of the other study"
    assert set(map(len, planned(fake_sweep.results, "single").values())) == {3}


def test_a_hypothesis_without_a_value_in_some_seed_gets_no_more(tmp_path: Path) -> None:
    looks = Looks(plans(write(tmp_path)), decide=Oracle())
    answers = [Answer("mine", name, "slow", "inconclusive", True, seeds) for name, seeds in (("A", 4), ("B", 5))]
    assert looks.advance(answers) == 2
    assert {c.variant for c in looks.plans[0].cells if c.settings.seed == 9} == {"low/slow", "wide/slow"}
    assert summarize(10, answers) == "look 10: 0 of 2 decided; open: A (slow), B (slow)"


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, {"high", "low"}),
        ({"margin": None}, {"high", "low", "base"}),  # a share of the baseline's gain
        ({"margin": None, "metric": "clip/active"}, {"high", "low"}),
        ({"scale": "log", "margin": None}, {"high", "low"}),
        ({"provided": {"metric": "clip/active", "of": "wide", "above": 0.01}}, {"high", "low", "wide"}),
        ({"contrast": None, "trend": ["low", "high", "wide"], "margin": None}, {"low", "high", "wide"}),
        ({"range_over": "rate"}, {"high", "low", "high, fast", "low, fast"}),
    ],
)
def test_what_a_hypothesis_needs(changes: dict[str, Any], needed: set[str], tmp_path: Path) -> None:
    study = write(tmp_path, hypotheses=[claim("A", "high", **changes)])
    looks = Looks(plans(study), decide=Oracle())
    where = "" if "range_over" in changes else "slow"
    assert looks.advance([Answer("mine", "A", where, "inconclusive", True, 5)]) == len(needed)
    variants = {cell.variant for cell in looks.plans[0].cells if cell.settings.seed == 9}
    assert variants == {name.replace(", ", "/") if "," in name else f"{name}/slow" for name in needed}


# --- registered -----------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one."""
    (tmp_path / "experiments").mkdir()
    monkeypatch.setattr(registration, "project_root", lambda: tmp_path)


def enter(plan: Plan, seeds: list[int] = FRESH, looks: list[int] | None = None) -> None:
    """Register what it claims."""
    margins = {name: {"slow/sorting": 0.05, "fast/sorting": 0.05} for name in plan.hypotheses}
    register(plan.study.name, plan.hypotheses, seeds, looks or plan.study.looks, margins, set(), [], "t")


@pytest.mark.usefixtures("registry")
def test_a_registered_study_is_trained_with_the_seeds_of_its_registration(
    fake_sweep: FakeSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write(tmp_path, hypotheses=[claim("A", "high", margin=None)])
    enter(plans(study)[-1], [*reversed(FRESH), 3000])
    fake_sweep(study, decide=Oracle(A={"slow": 10, "fast": 5}))
    assert planned(fake_sweep.results)["high/slow"] == FRESH[:10]
    assert planned(fake_sweep.results)["base/slow"] == FRESH[:5], "its margin is a constant of the registry"
    assert "exploratory" not in capsys.readouterr().out


@pytest.mark.usefixtures("registry")
def test_a_study_of_which_only_a_part_is_registered_is_refused(tmp_path: Path) -> None:
    enter(plans(write(tmp_path))[-1])
    changed = [*CLAIMS[:2], {**CLAIMS[2], "margin": 0.1}]
    study = write(tmp_path, hypotheses=changed)
    with pytest.raises(RequestError, match="study mine: C is not registered as it is, other hypotheses are"):
        Looks(plans(study), decide=Oracle())
    enter(plans(study)[-1], [seed + 100 for seed in FRESH])
    assert Looks(plans(study), decide=Oracle()).plans[-1].seeds[0] == FRESH[0] + 100
    with pytest.raises(RequestError, match="study mine: its hypotheses are registered with different seeds"):
        Looks(plans(write(tmp_path)), decide=Oracle())


def collection(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """`all` of a project of its own includes `mine`, and `other`, which has one look at three seeds."""
    shutil.copytree(project_root() / "conf", folder / "conf")
    (folder / "experiments").mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    write(folder / "experiments")
    write(folder / "experiments", "other", hypotheses=[claim("A", "wide")], looks=[3])
    write(folder / "experiments", "silent", hypotheses=[], overrides=["task=addition"])
    whole = {"question": "?", "includes": ["mine", "other", "silent"], **changes}
    (folder / "experiments" / "all.yaml").write_text(yaml.safe_dump(whole))


def test_the_studies_of_a_collection_are_decided_each_at_its_own_looks(
    fake_sweep: FakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collection(tmp_path, monkeypatch)
    assert fake_sweep("all", decide=Oracle(A=10))[0] == 0
    counts = {name: set(map(len, planned(fake_sweep.results, name).values())) for name in ("mine", "other", "silent")}
    assert counts == {"mine": {5, 10}, "other": {3}, "silent": {2}}, "the last claims nothing, and has its own seeds"
    assert json.loads(fake_sweep.results.plan("all").read_text())["seeds"] == list(range(10))
    out = capsys.readouterr().out
    assert "look 5: 3 of 7 decided (3 supported); open: mine.A (slow), mine.A (fast), other.A (slow), other.A" in out
    assert (
        "look 10: 5 of 7 decided (5 supported); open: other.A (slow), other.A (fast); that was the last look\n" in out
    )


@pytest.mark.usefixtures("registry")
def test_a_collection_with_primary_hypotheses_has_one_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection(tmp_path, monkeypatch, primary=["mine.A"], looks=[4])
    enter(plans("all")[-1], FRESH[:4])
    looks = Looks(plans("all"), decide=Oracle())
    assert [plan.seeds for plan in looks.plans] == [FRESH[:4]] * 4
    assert looks.advance([Answer("mine", "A", "slow", "inconclusive", True, 4)]) == 0, "a single look is the last"


# --- stops, and goes on ---------------------------------------------------------------------------------------------


def test_after_an_interruption_it_goes_on_where_it_was(fake_sweep: FakeSweep, tmp_path: Path) -> None:
    class Interrupted(Oracle):
        def __call__(self, results: Results, documents: list[dict[str, Any]]) -> list[Answer]:
            if max(documents[0]["seeds"]) > 5:
                raise KeyboardInterrupt
            return super().__call__(results, documents)

    study = write(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fake_sweep(study, decide=Interrupted(B=15))
    assert trained(fake_sweep.begun()) == 5 * 8 + 5 * 4
    for cell in json.loads(fake_sweep.results.plan("mine").read_text())["cells"]:
        if cell["variant"] == "wide/slow" and cell["seed"] > 6:
            (fake_sweep.results.run(cell["signature"]) / "outcome.json").unlink()
    code, jobs = fake_sweep(study, decide=Oracle(B=15))
    assert (code, trained(jobs)) == (0, 3 + 5 * 4)
    files = [fake_sweep.results.plan("mine"), fake_sweep.results.output("mine") / "report.md"]
    before = [file.read_bytes() for file in files]
    assert fake_sweep(study, decide=Oracle(B=15)) == (0, [])
    assert [file.read_bytes() for file in files] == before, "nothing is new: no other plan meanwhile, not drawn again"


def test_a_look_waits_for_every_run(fake_sweep: FakeSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, oracle = write(tmp_path), Oracle(B=10)
    assert fake_sweep(study, decide=oracle, misdeeds={"3": ["fail"]})[0] == 1
    assert oracle.asked == []
    assert "look 5 waits: 8 of 40 runs have no result" in capsys.readouterr().out
    assert fake_sweep(study, decide=oracle) == (1, []), "it waits still"
    code, jobs = fake_sweep(study, decide=oracle, retry_failed=True)
    assert (code, trained(jobs)) == (0, 8 + 5 * 4)


def test_runs_that_must_not_be_compared_decide_nothing(
    fake_sweep: FakeSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> list[Answer]:
        raise RequestError("study=mine mixes runs")

    fake_sweep(write(tmp_path), decide=refuse)
    assert "not decided: study=mine mixes runs" in capsys.readouterr().out
    assert set(map(len, planned(fake_sweep.results).values())) == {5}


def test_committed_outcomes_count(fake_sweep: FakeSweep, tmp_path: Path) -> None:
    results, study = fake_sweep.results, write(tmp_path)
    fake_sweep(study, decide=Oracle(B=10))
    kept = [{"signature": run.name, **(read_json(run / "outcome.json") or {})} for run in results.runs.iterdir()]
    results.reference.mkdir()
    pd.DataFrame(kept)[["signature", "outcome", "reason"]].assign(journal_sha256="0").to_parquet(
        results.reference / "outcomes.parquet"
    )
    shutil.rmtree(results.runs)
    shutil.rmtree(results.studies)
    code, jobs = fake_sweep(study, decide=Oracle(B=15))
    assert (code, trained(jobs)) == (0, 5 * 4)
    (counted,) = status(results, "mine", 0.0).values()
    assert (counted["planned"], counted["states"], counted["committed"]) == (80, {"completed": 80}, 60)


# --- by the report's own decisions ----------------------------------------------------------------------------------


def accuracy(variant: str, seed: int) -> float:
    """High is far better than low at first, and far worse in all later seeds; wide is one or the other."""
    noise = 0.01 * math.sin(12.9898 * (seed + 1) * (1 + len(variant)))
    arms = {"high": 0.6 if seed < 5 else 0.1, "wide": 0.6 + 0.2 * math.sin(7 * seed)}
    return noise + arms.get(variant.partition("/")[0], 0.35)


def train_all(results: Results, study: str, seeds: int = 20) -> None:
    """A run folder of each cell, with evaluations alone."""
    for cell in plans(study, seeds=list(range(seeds)))[0].cells:
        final, folder = accuracy(cell.variant, cell.settings.seed), results.run(cell.signature)
        folder.mkdir(parents=True)
        rows = [(step, 0.3 if step < 4 else final) for step in range(13)]
        records = [{"kind": "evaluation", "rollout_step": s, "eval/accuracy_expected": value} for s, value in rows]
        (folder / "journal.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        write_json_atomic(folder / "provenance.json", {"dataset": {"evaluation_items": 2000}})
        write_json_atomic(folder / "outcome.json", {"outcome": "completed", "reason": None, "rollout_steps": 12})


def test_what_was_decided_stays_whatever_is_trained_for_other_hypotheses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, seen = Results.open(tmp_path / "results"), list[dict[tuple[str, str], str]]()
    # A needs the first arm of B: seeds that are added for that turn its difference round.
    claims = [claim("A", "high"), claim("B", "high", contrast={"of": "wide", "minus": "high"})]
    study = write(tmp_path, hypotheses=claims)
    train_all(results, study)

    def note(found: Results, documents: list[dict[str, Any]]) -> list[Answer]:
        answers = originally(found, documents)
        seen.append({(answer.hypothesis, answer.where): answer.verdict for answer in answers if not answer.is_open})
        return answers

    originally = looks_module.report_decides
    monkeypatch.setattr(looks_module.Looks.__init__, "__defaults__", (None, note))
    monkeypatch.setattr(drawing, "draw_all", lambda *_: None)
    given = [study, f"machine.results={results.root}", "machine.tracking_uri=null"]
    assert main(["sweep", *given, "--until-decided"]) == 0
    assert seen[0][("A", "slow")] == "supported"
    assert len(seen) > 1, "something else was open"
    for earlier, later in pairwise(seen):
        assert earlier.items() <= later.items()
    reported = {(found.id, found.where): found.verdict for found in decide(load(results, "mine"))}
    assert seen[-1].items() <= reported.items()
    assert reported["A", "slow"] == "supported", "though later seeds say the opposite"
    assert len(planned(results)["high/slow"]) > 5
    assert "0 cells to train" in capsys.readouterr().out
    assert main(["sweep", *given, "--until-decided", "--max-seeds", "10", "--json-lines"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [event for event in events if event["event"] == "look"]
    assert [event["seeds"] for event in told] == [5, 10]
    assert told[0]["verdicts"] == {"supported": 2}
    assert told[0]["open"] == ["B (fast)", "B (slow)"]


def test_a_plan_with_more_seeds_of_some_variants_is_exported(tmp_path: Path) -> None:
    results, study = Results.open(tmp_path / "results"), write(tmp_path)
    train_all(results, study, seeds=10)
    looks = Looks(plans(study), decide=Oracle())
    looks.advance([Answer("mine", "B", "slow", "inconclusive", True, 5)])
    write_json_atomic(results.plan("mine"), looks.plans[0].document("2026-01-01T00:00:00", None))
    (last,) = (c for c in looks.plans[0].cells if (c.variant, c.settings.seed) == ("wide/slow", 9))
    outcome = results.run(last.signature) / "outcome.json"
    outcome.rename(tmp_path / "kept")
    export_reference(results, "mine", append=True)
    kept = read_plan(results.reference / "plans" / "mine.json")
    assert kept["seeds"] == list(range(9)), "that of which a variant is not finished waits"
    assert len(kept["cells"]) == 8 * 5 + 2 * 4
    (tmp_path / "kept").rename(outcome)
    export_reference(results, "mine", append=True)
    seeds = defaultdict[str, list[int]](list)
    for cell in read_plan(results.reference / "plans" / "mine.json")["cells"]:
        seeds[cell["variant"]].append(cell["seed"])
    assert seeds == planned(results)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["smoke", "--max-seeds", "10"], "--max-seeds needs --until-decided"),
        (["smoke", "--until-decided", "--seeds", "3"], "--seeds and --until-decided exclude each other"),
        (["smoke", "--until-decided", "--max-seeds", "7"], "--max-seeds 7 is not allowed: study smoke is looked at"),
        (["silent.yaml", "--until-decided"], "study silent has no hypothesis to decide"),
        (["late.yaml", "--until-decided"], "seeds=890 of study late leave fewer than 20 to explore with"),
        (["tuned.yaml", "--until-decided"], "seeds=17 chose the values of tuned=tuning"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "silent", hypotheses=[claim("A", "high", by_construction=True)])
    write(tmp_path, "late", seeds=[890])
    write(tmp_path, "tuned")
    if "tuned.yaml" in given:  # its own seeds are others
        monkeypatch.setattr(Study, "tunings", [{"study": "tuning", "seeds": [17]}])
    file = [str(tmp_path / word) if word.endswith(".yaml") else word for word in given]
    assert main(["sweep", *file, f"machine.results={tmp_path / 'results'}"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert said in sentence
    assert not list(tmp_path.rglob("plan.json"))
