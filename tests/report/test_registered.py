"""A verdict is confirmatory only on runs that began after its hypothesis was registered; the tool says which are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report_results import write_run

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.paths import Results, project_root
from grpolab.report import registered as labels
from grpolab.report.plans import read_plan
from grpolab.report.registered import CONFIRMATORY, EXPLORATORY, label
from grpolab.sweep import registration
from grpolab.sweep.compose import Composer
from grpolab.sweep.plan import Plan, expand, plans
from grpolab.sweep.registration import find_registrations, hypothesis_texts, register
from grpolab.sweep.study import Hypothesis, Study, load
from grpolab.vocabulary import CONFIRMATION_SEEDS, DIVERGED, MISSING, REGISTRY

FRESH = [CONFIRMATION_SEEDS + number for number in range(20)]
LOOKS = [5, 10, 15, 20]
REFERENCE = project_root() / "results" / "reference"


@pytest.fixture(scope="module")
def plan() -> Plan:
    study = load("clip_range")
    assert isinstance(study, Study)
    return expand(study, Composer(), seeds=FRESH[:1])


@pytest.fixture
def said(plan: Plan) -> dict[str, str]:
    """What the study says of each hypothesis."""
    return plan.hypotheses


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is a git repository of one commit, without a registry."""
    monkeypatch.setattr(labels, "project_root", lambda: tmp_path)
    monkeypatch.setattr(registration, "project_root", lambda: tmp_path)
    monkeypatch.setattr(registration, "roots", lambda: [tmp_path])
    labels.registry_at.cache_clear()
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "clip_range.yaml").write_text("question: ?\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def study_of(plan: Plan) -> Study:
    assert isinstance(plan.study, Study)
    return plan.study


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True, text=True).stdout


def commit(root: Path) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "?")
    return git(root, "rev-parse", "HEAD").strip()


def write_down(said: dict[str, str], seeds: list[int] = FRESH, trained: set[int] | None = None) -> str:
    """Register with a margin of .02 everywhere."""
    margins, kinds = {name: {"addition/healthy": 0.02} for name in said}, dict.fromkeys(said, "question")
    time = "2026-11-22T18:00:00+00:00"
    return register("clip_range", said, seeds, LOOKS, margins, kinds, trained or set(), [0, 1], time)


def labelled(said: dict[str, str], commits: list[str | None], **columns: Any) -> tuple[str, str]:
    """Label of the study's first hypothesis, for runs of some commits."""
    entry = find_registrations("clip_range", said).get(next(iter(said)))
    seeds = FRESH[: len(commits)]
    runs = pd.DataFrame({"outcome": [DIVERGED] * len(commits), "commit": commits, "seed": seeds, **columns})
    return label(entry, {"clip_range"}, runs)


def test_runs_of_a_commit_with_the_registration_are_confirmatory(said: dict[str, str], repository: Path) -> None:
    before = git(repository, "rev-parse", "HEAD").strip()
    line = json.loads(write_down(said))
    assert (line["commit"], line["seeds"], line["looks"]) == (before, FRESH, LOOKS)
    assert line["hypotheses"].keys() == line["margins"].keys() == said.keys()
    assert labelled(said, [before])[0] == EXPLORATORY, "an uncommitted registry registers nothing"
    commit_of = commit(repository)
    assert labelled(said, [commit_of, commit_of]) == (CONFIRMATORY, "")
    (repository / "experiments" / "later.yaml").write_text("question: ?\n")
    assert labelled(said, [commit_of, commit(repository)]) == (CONFIRMATORY, "")
    found = labelled(said, [commit_of, before])
    assert found == (EXPLORATORY, f"runs of commit {before[:8]} began without its registration")
    assert labelled(said, [None])[0] == EXPLORATORY
    assert labelled(said, ["0" * 40])[0] == EXPLORATORY


def test_runs_that_began_before_the_line_are_exploratory_whatever_their_commit(
    said: dict[str, str], repository: Path
) -> None:
    """A run that was killed and goes on has the commit of its second life; runs of older programs do not say it."""
    write_down(said)
    commits: list[str | None] = [commit(repository)] * 2
    after, before = "2026-11-22T18:00:01+00:00", "2026-11-22T17:59:59+00:00"
    assert labelled(said, commits, began=[after, None]) == (CONFIRMATORY, "")
    why = f"1 run began before it was registered, the first at {before}"
    assert labelled(said, commits, began=[after, before]) == (EXPLORATORY, why)


def test_a_registration_knows_how_often_its_question_was_registered_before(
    said: dict[str, str], repository: Path
) -> None:
    first, *others = said
    write_down({first: "other words"}, seeds=FRESH[::-1])
    gone = {"study": "clip_range", "withdraws": "2026-11-22T17:00:00+00:00", "hypotheses": [first], "seeds": [2000]}
    gone |= {"time": "2026-11-22T19:00:00+00:00", "author": None, "reason": "a mistake", "said": "nothing"}
    file = repository / REGISTRY
    file.write_text(file.read_text().replace("T18:00", "T17:30") + json.dumps(gone) + "\n")
    write_down(said)
    known = find_registrations("clip_range", said)
    assert {name: entry["earlier"] for name, entry in known.items()} == {first: 2, **dict.fromkeys(others, 0)}
    assert registration.find_withdrawn("clip_range") == [gone]
    assert registration.find_withdrawn("ratio_level") == []


def test_a_changed_hypothesis_is_not_the_one_that_was_registered(
    plan: Plan, said: dict[str, str], repository: Path
) -> None:
    write_down(said)
    study, commit_of = study_of(plan), commit(repository)
    variants = {cell.variant: cell.signature for cell in plan.variants}
    first, *others = study.hypotheses
    for changes in ({"margin": 0.5}, {"says": first.says + " Much."}, {"direction": "equal"}):
        changed = study.model_copy(update={"hypotheses": [first.model_copy(update=changes), *others]})
        texts = hypothesis_texts(changed, variants)
        assert labelled(texts, [commit_of]) == (EXPLORATORY, "not registered as it is")
        assert find_registrations("clip_range", texts).keys() == {claim.id for claim in others}, "the others still are"
    for rules in ({"overrides": ["epsilon=0.1"]}, {"baseline": "no_clip"}, {"primary_metric": "reward/mean"}):
        assert find_registrations("clip_range", hypothesis_texts(study.model_copy(update=rules), variants)) == {}
    assert find_registrations("clip_range", hypothesis_texts(study, {})) == {}, "other variants"
    assert find_registrations("ratio_level", said) == {}, "another study"
    added = Hypothesis(**{**first.model_dump(), "id": "H_late"})
    late = hypothesis_texts(study.model_copy(update={"hypotheses": [*study.hypotheses, added]}), variants)
    assert find_registrations("clip_range", late).keys() == said.keys(), "added after its runs"


def test_a_registration_keeps_the_kind_that_was_said_before_the_runs(
    plan: Plan, said: dict[str, str], repository: Path
) -> None:
    """A question that is called a consequence after its data is still counted as the question that it was."""
    assert set(json.loads(write_down(said))["kinds"].values()) == {"question"}
    study, variants = study_of(plan), {cell.variant: cell.signature for cell in plan.variants}
    later = [c.model_copy(update={"kind": "consequence", "because": "as everybody knew"}) for c in study.hypotheses]
    texts = hypothesis_texts(study.model_copy(update={"hypotheses": later}), variants)
    assert {entry["kind"] for entry in find_registrations("clip_range", texts).values()} == {"question"}
    first = study.hypotheses[0].model_dump()
    with pytest.raises(ValueError, match="kind=repetition needs its reason: because is missing"):
        Hypothesis(**{**first, "kind": "repetition"})


def test_what_the_page_says_is_no_part_of_a_registration(plan: Plan, said: dict[str, str], repository: Path) -> None:
    """A sentence that says more than its test is mended on the page: hash, runs and label stay."""
    write_down(said)
    study, commit_of = study_of(plan), commit(repository)
    variants = {cell.variant: cell.signature for cell in plan.variants}
    mended = [claim.model_copy(update={"tested": "It is lower.", "also": ["other.H"]}) for claim in study.hypotheses]
    changed = study.model_copy(update={"hypotheses": mended})
    assert hypothesis_texts(changed, variants) == said
    assert labelled(hypothesis_texts(changed, variants), [commit_of]) == (CONFIRMATORY, "")
    planned = expand(changed, Composer(), seeds=FRESH[:1])
    assert planned.registered.keys() == said.keys()
    assert [cell.signature for cell in planned.cells] == [cell.signature for cell in plan.cells]
    document = planned.document("now", None)
    assert [claim["tested"] for claim in document["hypotheses"]] == ["It is lower."] * len(mended), "on its way"


def test_the_committed_outcome_says_what_the_study_files_say() -> None:
    """A fresh clone reports from the plans in results/reference/: a sentence that is mended is mended there too."""
    committed = {plan["study"]: plan for plan in map(read_plan, REFERENCE.glob("plans/*.json"))}
    studies = {name: study for name in committed if isinstance(study := load(name), Study)}
    hypotheses = {name: [claim.model_dump() for claim in study.hypotheses] for name, study in studies.items()}
    assert hypotheses == {name: committed[name]["hypotheses"] for name in hypotheses}
    assert [name for name in hypotheses if hypotheses[name] and not committed[name]["registered"]] == []
    named = {f"{name}.{claim['id']}" for name, of in hypotheses.items() for claim in of}
    assert {also for of in hypotheses.values() for claim in of for also in claim["also"]} <= named


@pytest.mark.parametrize("name", ["scale", *(pytest.param(n, marks=pytest.mark.slow) for n in ("claims", "reference"))])
def test_the_committed_outcome_has_the_registrations_of_the_study_files(name: str) -> None:
    assert plans(name, seeds=FRESH[:1])[-1].registered == read_plan(REFERENCE / "plans" / f"{name}.json")["registered"]


def test_a_registry_that_was_edited_afterwards_registers_nothing(said: dict[str, str], repository: Path) -> None:
    write_down(said)
    registry = repository / REGISTRY
    for key, value in (("seeds", FRESH[:5]), ("looks", [5]), ("margins", {name: {"addition": 9.0} for name in said})):
        edited = json.loads(registry.read_text()) | {key: value}
        registry.write_text(json.dumps(edited) + "\n")
        assert find_registrations("clip_range", said) == {}, key


def test_an_edit_that_was_not_committed_makes_it_exploratory(said: dict[str, str], repository: Path) -> None:
    write_down(said)
    commit_of = commit(repository)
    for file in (REGISTRY, "experiments/clip_range.yaml"):
        kind, why = labelled(said, [commit_of], touched=[f"experiments/a.yaml {file}"])
        assert kind == EXPLORATORY
        assert why == f"{file} had changes that were not committed when its runs began"
    assert labelled(said, [commit_of], touched=["experiments/another.yaml"]) == (CONFIRMATORY, "")


def test_seeds_that_are_not_fresh_are_refused(said: dict[str, str], repository: Path) -> None:
    with pytest.raises(RequestError) as caught:
        write_down(said, [3, *FRESH], {FRESH[0]})
    assert caught.value.problems == [
        f"seeds={FRESH[0]} of study clip_range are trained already: register seeds that are not",
        "seeds=3 are for exploring, choosing regimes and tuning: confirm with seeds from 2000 on"
        " (--seeds 2000,2001,...)",
    ]
    with pytest.raises(RequestError, match=r"seeds=2000,2001 are 2: study clip_range looks at 5,10,15,20 of them"):
        write_down(said, FRESH[:2])
    with pytest.raises(RequestError, match=r"^seeds=0,1,2,...,1999 are for exploring"):  # `--seeds 2000` counts them
        write_down(said, range(2000))
    with pytest.raises(RequestError, match="has no hypothesis"):
        write_down({})
    assert not (repository / REGISTRY).exists()
    write_down(said)
    with pytest.raises(RequestError, match="is registered with these seeds and as it is: nothing to add"):
        write_down(said)
    more = [*FRESH, FRESH[-1] + 1]
    write_down(said, more)
    assert find_registrations("clip_range", said)[next(iter(said))]["seeds"] == more
    assert len((repository / REGISTRY).read_text().splitlines()) == 2, "append-only"


def test_registered_seeds_without_a_result_decide_nothing(said: dict[str, str], repository: Path) -> None:
    write_down(said)
    commit_of = commit(repository)
    nothing_yet = (EXPLORATORY, "none of its registered seeds has a result yet")
    assert labelled(said, [commit_of], outcome=[MISSING]) == nothing_yet
    assert labelled(said, [commit_of], seed=[3]) == nothing_yet, "another seed"


def test_a_plan_with_other_settings_is_not_the_registered_one(
    plan: Plan, said: dict[str, str], repository: Path
) -> None:
    write_down(said)
    assert plan.registered.keys() == said.keys()
    assert expand(study_of(plan), Composer(), seeds=[7]).registered == plan.registered, "of any seed"
    assert expand(study_of(plan), Composer(), ["prompts_per_step=16"], FRESH).registered == {}


def test_a_collection_registers_its_primary_hypotheses(repository: Path) -> None:
    whole = plans("reference", seeds=FRESH[:5])[-1]
    assert list(whole.hypotheses) == whole.study.primary  # type: ignore[union-attr]
    margins: dict[str, dict[str, float | None]] = {name: {"addition": None} for name in whole.hypotheses}
    register("reference", whole.hypotheses, FRESH[:5], [5], margins, dict.fromkeys(margins, "question"), set(), [], "t")
    assert plans("reference", seeds=FRESH[:5])[-1].registered.keys() == set(whole.study.primary)  # type: ignore[union-attr]
    assert plans("reference", ["epsilon=0.1"], FRESH[:5])[-1].registered.keys() == set()


def test_margins_are_of_any_run_of_the_baseline_that_explored(repository: Path, tmp_path: Path, capsys: Any) -> None:
    """Runs on the seeds that chose the regimes serve: a study need not be trained before it is registered."""
    results = Results.open(tmp_path / "results")
    (plan,) = plans("clip_range", seeds=[900, 901])
    for cell in plan.cells:
        if cell.levels["clip"] == "symmetric" and cell.levels["regime"] == "stressed":
            write_run(results, {**cell.document(), "rollout_steps": 12})
    seeds = ",".join(map(str, FRESH))
    assert main(["register", "clip_range", "--seeds", seeds, "--results", str(results.root)]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[0])
    assert line["explored"] == [900, 901]
    assert line["margins"]["H6"].keys() == {"stressed/addition", "stressed/sorting"}
    assert all(margin == pytest.approx(0.15 * 0.2, abs=0.01) for margin in line["margins"]["H6"].values())


def test_what_a_study_names_is_there_when_it_is_registered(repository: Path, tmp_path: Path, capsys: Any) -> None:
    """The hash of a model is part of the signatures that are registered: without it the line would never hold."""
    seeds, model = ",".join(map(str, FRESH)), "model.path=./results/models/smollm2-135m-instruct"
    if Path(model.partition("=")[2]).is_dir():
        pytest.skip("this clone has the model")
    assert main(["register", "pretrained", "--seeds", seeds, "--results", str(tmp_path / "results")]) == 2
    assert f"{model} of study pretrained is not here" in capsys.readouterr().err
    assert not (repository / REGISTRY).exists()


def test_blank_lines_of_the_registry_are_passed_over_and_damaged_ones_named(
    repository: Path, said: dict[str, str]
) -> None:
    write_down(said)
    before, file = find_registrations("clip_range", said), repository / REGISTRY
    file.write_text(f"\n{file.read_text()}\n  \n")
    assert find_registrations("clip_range", said) == before != {}
    file.write_text(file.read_text() + "{half\n")
    with pytest.raises(RequestError, match="line 5 is no JSON"):
        find_registrations("clip_range", said)


def test_the_committed_plans_have_the_registrations_of_their_hypotheses() -> None:
    """A plan that is written anew where its model is absent has none: it must not replace a committed one."""
    root = Path(__file__).parents[2]
    lines = [json.loads(text) for text in (root / REGISTRY).read_text().splitlines()]
    known = {(line["study"], name) for line in lines for name in line["hypotheses"]}
    for file in (root / "results" / "reference" / "plans").glob("*.json"):
        plan = json.loads(file.read_text())
        named = {hypothesis["id"] for hypothesis in plan["hypotheses"]}
        assert {name for name in named if (plan["study"], name) in known} <= plan["registered"].keys(), file.name
