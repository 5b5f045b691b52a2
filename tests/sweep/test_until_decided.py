"""`sweep --until-decided`: seeds are added only for what is open, and what was decided stays so."""

import json
import math
import shutil
from collections import defaultdict
from itertools import pairwise

import pytest
import yaml

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.paths import Results, project_root, write_json_atomic
from grpolab.report.claims import decide
from grpolab.report.export import export_reference
from grpolab.report.load import load
from grpolab.report.plans import read_plan
from grpolab.studies import drawing
from grpolab.studies import looks as looks_module
from grpolab.studies.looks import Answer, Looks, summarize
from grpolab.sweep import registration
from grpolab.sweep.plan import plans
from grpolab.sweep.registration import register
from grpolab.sweep.study import Study
from grpolab.vocabulary import CONFIRMATION_SEEDS

FRESH = list(range(CONFIRMATION_SEEDS, CONFIRMATION_SEEDS + 20))


def claim(name, of, **changes):
    """That an arm has another score than `low`, by more than a constant."""
    fields = {"id": name, "says": "x", "source": "y", "metric": "final_score", "direction": "greater", "margin": 0.05}
    return {**fields, "contrast": {"of": of, "minus": "low"}, "budget": "rollouts", **changes}


CLAIMS = [claim("A", "high"), claim("B", "wide"), claim("C", "high", where={"rate": "slow"})]
CLIPS = {"low": ["epsilon=0.1"], "base": [], "high": ["epsilon=0.3"], "wide": ["epsilon=0.4"]}


def write(folder, name="mine", **changes):
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
    """Decides each hypothesis after so many seeds: `A={"slow": 10, "fast": 5}`, or `B=10` at both rates."""

    def __init__(self, **after):
        self.after, self.asked = after, []  # the seeds of each plan that it was asked about

    def __call__(self, _results, documents):
        self.asked += [plan["seeds"] for plan in documents]
        return [
            self.answer(plan, hypothesis, where)
            for plan in documents
            for hypothesis in plan["hypotheses"]
            for where in ([hypothesis["where"]["rate"]] if hypothesis["where"] else ("slow", "fast"))
        ]

    def answer(self, plan, hypothesis, where):
        seeds = sum(cell["variant"] == f"{hypothesis['contrast']['of']}/{where}" for cell in plan["cells"])
        after = self.after.get(hypothesis["id"], 5)
        is_open = seeds < (after[where] if isinstance(after, dict) else after)
        verdict = "inconclusive" if is_open else "supported"
        return Answer(plan["study"], hypothesis["id"], where, verdict, is_open, seeds)


def opened(name, where="slow", seeds=5):
    return Answer("mine", name, where, "inconclusive", True, seeds)


def seeds_of(document):
    seeds = defaultdict(list)
    for cell in document["cells"]:
        seeds[cell["variant"]].append(cell["seed"])
    assert document["seeds"] == sorted({seed for of in seeds.values() for seed in of})
    return dict(seeds)


def planned(results, study="mine"):
    """Seeds of each variant in plan.json, which lists each cell once."""
    return seeds_of(json.loads(results.plan(study).read_text()))


def counts(results, study="mine"):
    return set(map(len, planned(results, study).values()))


def grown(looks):
    """The variants that have got a tenth seed."""
    return {cell.variant for cell in looks.plans[0].cells if cell.settings.seed == 9}


def trained(jobs):
    """Runs that were begun, each once."""
    runs = [job[1] for job in jobs if job[0] == "run"]
    assert len(set(runs)) == len(runs)
    return len(runs)


# --- which seeds ----------------------------------------------------------------------------------------------------


def test_seeds_are_added_only_for_what_is_open(fake_sweep, tmp_path, capsys):
    code, jobs = fake_sweep(write(tmp_path), decide=Oracle(A={"slow": 15, "fast": 5}, B={"slow": 5, "fast": 10}))
    assert code == 0
    first = dict.fromkeys((f"{clip}/{rate}" for clip in CLIPS for rate in ("slow", "fast")), 5)
    more = {"low/slow": 15, "high/slow": 15, "low/fast": 10, "wide/fast": 10}
    assert planned(fake_sweep.results) == {variant: list(range(n)) for variant, n in (first | more).items()}
    assert trained(jobs) == 5 * 4 + 15 * 2 + 10 * 2
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("look ")]
    assert [line.partition(", about")[0] for line in lines] == [
        "look 5: 3 of 5 decided (3 supported); open: A (slow), B (fast); next: 10 seeds of 4 variants, 20 runs",
        "look 10: 4 of 5 decided (4 supported); open: A (slow); next: 15 seeds of 2 variants, 10 runs",
        "look 15: 5 of 5 decided (5 supported)",
    ]
    assert all(", about " in line for line in lines[:2]), "by what the runs have taken"


@pytest.mark.slow
def test_it_ends_with_the_last_look_or_with_the_one_that_is_asked_for(fake_sweep, tmp_path):
    oracle, study = Oracle(B=99), write(tmp_path)
    fake_sweep(study, decide=oracle, most_seeds=10)
    assert oracle.asked == [list(range(5)), list(range(10))]
    assert counts(fake_sweep.results) == {5, 10}
    code, jobs = fake_sweep(study, decide=oracle)
    assert (code, trained(jobs)) == (0, 4 * 10), "goes on where it was"
    assert oracle.asked[2:] == [list(range(n)) for n in (5, 10, 15, 20)]
    assert len(planned(fake_sweep.results)["wide/slow"]) == 20
    single = write(tmp_path, "single", looks=[3])
    assert trained(fake_sweep(single, decide=oracle)[1]) == 0, "its three seeds are those of the other study"
    assert counts(fake_sweep.results, "single") == {3}


def test_a_hypothesis_without_a_value_in_some_seed_gets_no_more(tmp_path):
    looks, answers = Looks(plans(write(tmp_path)), decide=Oracle()), [opened("A", seeds=4), opened("B")]
    assert looks.advance(answers) == 2
    assert grown(looks) == {"low/slow", "wide/slow"}
    assert summarize(10, answers) == "look 10: 0 of 2 decided; open: A (slow), B (slow)"


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, "high low"),
        ({"margin": None}, "high low base"),  # a share of the baseline's gain
        ({"margin": None, "metric": "clip/active"}, "high low"),
        ({"scale": "log", "margin": None}, "high low"),
        ({"provided": {"metric": "clip/active", "of": "wide", "above": 0.01}}, "high low wide"),
        ({"contrast": None, "trend": ["low", "high", "wide"], "margin": None}, "low high wide"),
        ({"range_over": "rate"}, "high low high/fast low/fast"),
    ],
)
def test_what_a_hypothesis_needs(changes, needed, tmp_path):
    looks = Looks(plans(write(tmp_path, hypotheses=[claim("A", "high", **changes)])), decide=Oracle())
    variants = {name if "/" in name else f"{name}/slow" for name in needed.split()}
    assert looks.advance([opened("A", "" if "range_over" in changes else "slow")]) == len(variants)
    assert grown(looks) == variants


# --- registered -----------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """An empty one."""
    (tmp_path / "experiments").mkdir()
    monkeypatch.setattr(registration, "project_root", lambda: tmp_path)
    monkeypatch.setattr(registration, "roots", lambda: [tmp_path])


def enter(plan, seeds=FRESH, looks=None):
    """Register what it claims."""
    margins = {name: {"slow/sorting": 0.05, "fast/sorting": 0.05} for name in plan.hypotheses}
    kinds = dict.fromkeys(margins, "question")
    register(plan.study.name, plan.hypotheses, seeds, looks or plan.study.looks, margins, kinds, set(), [], "t")


@pytest.mark.usefixtures("registry")
def test_a_registered_study_is_trained_with_the_seeds_of_its_registration(fake_sweep, tmp_path, capsys):
    study = write(tmp_path, hypotheses=[claim("A", "high", margin=None)])
    enter(plans(study)[-1], [*reversed(FRESH), 3000])
    fake_sweep(study, decide=Oracle(A={"slow": 10, "fast": 5}))
    assert planned(fake_sweep.results)["high/slow"] == FRESH[:10]
    assert planned(fake_sweep.results)["base/slow"] == FRESH[:5], "its margin is a constant of the registry"
    assert "exploratory" not in capsys.readouterr().out


@pytest.mark.usefixtures("registry")
def test_a_study_of_which_only_a_part_is_registered_is_refused(tmp_path):
    enter(plans(write(tmp_path))[-1])
    study = write(tmp_path, hypotheses=[*CLAIMS[:2], {**CLAIMS[2], "margin": 0.1}])
    with pytest.raises(RequestError, match="study mine: C is not registered as it is"):
        Looks(plans(study), decide=Oracle())
    enter(plans(study)[-1], [seed + 100 for seed in FRESH])
    assert Looks(plans(study), decide=Oracle()).plans[-1].seeds[0] == FRESH[0] + 100
    with pytest.raises(RequestError, match="registered with different seeds"):
        Looks(plans(write(tmp_path)), decide=Oracle())


@pytest.fixture
def collection(tmp_path, monkeypatch):
    """`all` of a project of its own includes `mine`, `other`, which has one look at three seeds, and `silent`."""
    shutil.copytree(project_root() / "conf", tmp_path / "conf")
    experiments = tmp_path / "experiments"
    experiments.mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)
    write(experiments)
    write(experiments, "other", hypotheses=[claim("A", "wide")], looks=[3])
    write(experiments, "silent", hypotheses=[], overrides=["task=addition"])

    def write_all(**changes):
        whole = {"question": "?", "includes": ["mine", "other", "silent"], **changes}
        (experiments / "all.yaml").write_text(yaml.safe_dump(whole))

    return write_all


def test_the_studies_of_a_collection_are_decided_each_at_its_own_looks(fake_sweep, collection, capsys):
    collection()
    assert fake_sweep("all", decide=Oracle(A=10))[0] == 0
    seeds = {name: counts(fake_sweep.results, name) for name in ("mine", "other", "silent")}
    assert seeds == {"mine": {5, 10}, "other": {3}, "silent": {2}}, "the last claims nothing, and has its own seeds"
    assert json.loads(fake_sweep.results.plan("all").read_text())["seeds"] == list(range(10))
    out = capsys.readouterr().out
    assert "look 5: 3 of 7 decided (3 supported); open: mine.A (slow), mine.A (fast), other.A (slow), other.A" in out
    assert "look 10: 5 of 7 decided (5 supported); open: other.A (slow), other.A (fast); that was the last" in out


@pytest.mark.usefixtures("registry")
def test_a_collection_with_primary_hypotheses_has_one_registration(collection):
    collection(primary=["mine.A"], looks=[4])
    enter(plans("all")[-1], FRESH[:4])
    looks = Looks(plans("all"), decide=Oracle())
    assert [plan.seeds for plan in looks.plans] == [FRESH[:4]] * 4
    assert looks.advance([opened("A", seeds=4)]) == 0, "a single look is the last"


# --- stops, and goes on ---------------------------------------------------------------------------------------------


def test_after_an_interruption_it_goes_on_where_it_was(fake_sweep, tmp_path):
    def interrupt(results, documents):
        if max(documents[0]["seeds"]) > 5:
            raise KeyboardInterrupt
        return Oracle(B=15)(results, documents)

    study, results = write(tmp_path), fake_sweep.results
    with pytest.raises(KeyboardInterrupt):
        fake_sweep(study, decide=interrupt)
    assert trained(fake_sweep.begun()) == 5 * 8 + 5 * 4
    for cell in json.loads(results.plan("mine").read_text())["cells"]:
        if cell["variant"] == "wide/slow" and cell["seed"] > 6:
            (results.run(cell["signature"]) / "outcome.json").unlink()
    code, jobs = fake_sweep(study, decide=Oracle(B=15))
    assert (code, trained(jobs)) == (0, 3 + 5 * 4)
    files = [results.plan("mine"), results.output("mine") / "report.md"]
    before = [file.read_bytes() for file in files]
    assert fake_sweep(study, decide=Oracle(B=15)) == (0, [])
    assert [file.read_bytes() for file in files] == before, "nothing is new: no other plan meanwhile, not drawn again"


@pytest.mark.slow
def test_a_look_waits_for_every_run(fake_sweep, tmp_path, capsys):
    study, oracle = write(tmp_path), Oracle(B=10)
    assert fake_sweep(study, decide=oracle, misdeeds={"3": ["fail"]})[0] == 1
    assert oracle.asked == []
    assert "look 5 waits: 8 of 40 runs have no result" in capsys.readouterr().out
    assert fake_sweep(study, decide=oracle) == (1, []), "it waits still"
    code, jobs = fake_sweep(study, decide=oracle, retry_failed=True)
    assert (code, trained(jobs)) == (0, 8 + 5 * 4)


def test_runs_that_must_not_be_compared_decide_nothing(fake_sweep, tmp_path, capsys):
    def refuse(*_):
        raise RequestError("study=mine mixes runs")

    fake_sweep(write(tmp_path), decide=refuse)
    assert "not decided: study=mine mixes runs" in capsys.readouterr().out
    assert counts(fake_sweep.results) == {5}


# --- by the report's own decisions ----------------------------------------------------------------------------------


def accuracy(variant, seed):
    """High is far better than low at first, and far worse in all later seeds; wide is one or the other."""
    noise = 0.01 * math.sin(12.9898 * (seed + 1) * (1 + len(variant)))
    arms = {"high": 0.6 if seed < 5 else 0.1, "wide": 0.6 + 0.2 * math.sin(7 * seed)}
    return noise + arms.get(variant.partition("/")[0], 0.35)


def train_all(results, study, seeds=20):
    """A run folder of each cell, with evaluations alone."""
    for cell in plans(study, seeds=list(range(seeds)))[0].cells:
        final, folder = accuracy(cell.variant, cell.settings.seed), results.run(cell.signature)
        rows = [(step, 0.3 if step < 4 else final) for step in range(13)]
        records = [{"kind": "evaluation", "rollout_step": s, "eval/accuracy_expected": value} for s, value in rows]
        write_json_atomic(folder / "provenance.json", {"dataset": {"evaluation_items": 2000}})
        (folder / "journal.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        write_json_atomic(folder / "outcome.json", {"outcome": "completed", "reason": None, "rollout_steps": 12})


@pytest.mark.slow
def test_what_was_decided_stays_whatever_is_trained_for_other_hypotheses(tmp_path, monkeypatch, capsys):
    results, seen = Results.open(tmp_path / "results"), []
    # A needs the first arm of B: seeds that are added for that turn its difference round.
    study = write(
        tmp_path, hypotheses=[claim("A", "high"), claim("B", "high", contrast={"of": "wide", "minus": "high"})]
    )
    train_all(results, study)
    report_decides = looks_module.report_decides

    def note(results, documents):
        answers = report_decides(results, documents)
        seen.append({(answer.hypothesis, answer.where): answer.verdict for answer in answers if not answer.is_open})
        return answers

    monkeypatch.setattr(looks_module.Looks.__init__, "__defaults__", (None, note))
    monkeypatch.setattr(drawing, "draw_all", lambda *_: None)
    sweep = ["sweep", study, f"machine.results={results.root}", "machine.tracking_uri=null", "--until-decided"]
    assert main(sweep) == 0
    assert seen[0][("A", "slow")] == "supported"
    assert len(seen) > 1, "something else was open"
    for earlier, later in pairwise(seen):
        assert earlier.items() <= later.items()
    reported = {(answer.id, answer.where): answer.verdict for answer in decide(load(results, "mine"))}
    assert seen[-1].items() <= reported.items()
    assert reported["A", "slow"] == "supported", "though later seeds say the opposite"
    assert len(planned(results)["high/slow"]) > 5
    assert "0 cells to train" in capsys.readouterr().out
    assert main([*sweep, "--max-seeds", "10", "--json-lines"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    looks = [event for event in events if event["event"] == "look"]
    assert [event["seeds"] for event in looks] == [5, 10]
    assert (looks[0]["verdicts"], looks[0]["open"]) == ({"supported": 2}, ["B (fast)", "B (slow)"])


def test_a_plan_with_more_seeds_of_some_variants_is_exported(tmp_path):
    results, study = Results.open(tmp_path / "results"), write(tmp_path)
    train_all(results, study, seeds=10)
    looks = Looks(plans(study), decide=Oracle())
    looks.advance([opened("B")])
    write_json_atomic(results.plan("mine"), looks.plans[0].document("2026-01-01T00:00:00", None))
    (last,) = (c for c in looks.plans[0].cells if (c.variant, c.settings.seed) == ("wide/slow", 9))
    outcome = results.run(last.signature) / "outcome.json"
    outcome.rename(tmp_path / "kept")
    export_reference(results, "mine", append=True)
    kept = read_plan(results.committed_plan("mine"))
    assert kept["seeds"] == list(range(9)), "that of which a variant is not finished waits"
    assert len(kept["cells"]) == 8 * 5 + 2 * 4
    (tmp_path / "kept").rename(outcome)
    export_reference(results, "mine", append=True)
    assert seeds_of(read_plan(results.committed_plan("mine"))) == planned(results)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["smoke", "--max-seeds", "10"], "--max-seeds needs --until-decided"),
        (["smoke", "--until-decided", "--seeds", "3"], "--seeds and --until-decided exclude each other"),
        (["smoke", "--until-decided", "--max-seeds", "7"], "--max-seeds 7 is not allowed: study smoke is looked at"),
        (["silent.yaml", "--until-decided"], "study silent has no hypothesis to decide"),
        (["late.yaml", "--until-decided"], "seeds=890 of study late leave fewer than 20 to explore with"),
        (["tuned.yaml", "--until-decided"], "seeds=17 chose the values of tuned=tuning"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(words, says, tmp_path, capsys, monkeypatch):
    write(tmp_path, "silent", hypotheses=[claim("A", "high", by_construction=True)])
    write(tmp_path, "late", seeds=[890])
    write(tmp_path, "tuned")
    if "tuned.yaml" in words:  # its own seeds are others
        monkeypatch.setattr(Study, "tunings", [{"study": "tuning", "seeds": [17]}])
    file = [str(tmp_path / word) if word.endswith(".yaml") else word for word in words]
    assert main(["sweep", *file, f"machine.results={tmp_path / 'results'}"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert says in sentence
    assert not list(tmp_path.rglob("plan.json"))
