"""A verdict is confirmatory only on runs that began after its hypothesis was registered; the tool says which are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from grpolab.errors import RequestError
from grpolab.report import registered as labels
from grpolab.report.load import Study as Loaded
from grpolab.report.registered import CONFIRMATORY, EXPLORATORY, label
from grpolab.sweep import registration
from grpolab.sweep.compose import Composer
from grpolab.sweep.plan import expand
from grpolab.sweep.registration import hashes, register, registered, variants_of
from grpolab.sweep.study import Hypothesis, Study, load
from grpolab.vocabulary import CONFIRMATION_SEEDS, DIVERGED, MISSING, REGISTRY

VARIANTS = {"symmetric/addition/healthy": "0123456789abcdef"}
FRESH = [CONFIRMATION_SEEDS + number for number in range(5)]


@pytest.fixture
def study() -> Study:
    found = load("clip_range")
    assert isinstance(found, Study)
    return found


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is a git repository of one commit, without a registry."""
    monkeypatch.setattr(labels, "project_root", lambda: tmp_path)
    monkeypatch.setattr(registration, "project_root", lambda: tmp_path)
    labels._registry_at.cache_clear()
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "clip_range.yaml").write_text("question: ?\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True, text=True).stdout


def commit(root: Path) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "?")
    return git(root, "rev-parse", "HEAD").strip()


def labelled(study: Study, commits: list[str | None], **columns: Any) -> tuple[str, str]:
    """Label of the study's first hypothesis, for runs of some commits."""
    loaded = SimpleNamespace(name=study.name, plan={"registered": registered(study, VARIANTS)})
    runs = pd.DataFrame({"outcome": [DIVERGED] * len(commits), "commit": commits, **columns})
    return label(cast(Loaded, loaded), study.hypotheses[0].id, runs)


def test_runs_of_a_commit_with_the_registration_are_confirmatory(study: Study, repository: Path) -> None:
    before = commit_of = git(repository, "rev-parse", "HEAD").strip()
    line = json.loads(register(study, VARIANTS, FRESH, set(), "2026-11-22T18:00:00+00:00"))
    assert line["commit"] == before
    assert line["seeds"] == FRESH
    assert line["hypotheses"].keys() == {claim.id for claim in study.hypotheses}
    assert labelled(study, [before])[0] == EXPLORATORY, "an uncommitted registry registers nothing"
    commit_of = commit(repository)
    assert labelled(study, [commit_of, commit_of]) == (CONFIRMATORY, "")
    (repository / "experiments" / "later.yaml").write_text("question: ?\n")
    assert labelled(study, [commit_of, commit(repository)]) == (CONFIRMATORY, "")
    said = labelled(study, [commit_of, before])
    assert said == (EXPLORATORY, f"runs of commit {before[:8]} began without its registration")
    assert labelled(study, [None])[0] == EXPLORATORY
    assert labelled(study, ["0" * 40])[0] == EXPLORATORY


def test_a_changed_hypothesis_is_not_the_one_that_was_registered(study: Study, repository: Path) -> None:
    register(study, VARIANTS, FRESH, set(), "t")
    commit_of = commit(repository)
    first, *others = study.hypotheses
    for changes in ({"margin": first.margin + 0.01}, {"says": first.says + " Much."}, {"direction": "equal"}):
        changed = study.model_copy(update={"hypotheses": [first.model_copy(update=changes), *others]})
        assert labelled(changed, [commit_of]) == (EXPLORATORY, "not registered as it is")
        assert registered(changed, VARIANTS).keys() == {claim.id for claim in others}, "the others still are"
    for rules in ({"overrides": ["epsilon=0.1"]}, {"baseline": "no_clip"}, {"primary_metric": "reward/mean"}):
        assert registered(study.model_copy(update=rules), VARIANTS) == {}
    for other in ({"symmetric/addition/healthy": "f" * 16}, {}):  # a default of conf/, a key on the command line
        assert registered(study, other) == {}
    added = Hypothesis(**{**first.model_dump(), "id": "H_late"})
    late = study.model_copy(update={"hypotheses": [*study.hypotheses, added]})
    assert registered(late, VARIANTS).keys() == {claim.id for claim in study.hypotheses}, "added after its runs"


def test_an_edit_that_was_not_committed_makes_it_exploratory(study: Study, repository: Path) -> None:
    register(study, VARIANTS, FRESH, set(), "t")
    commit_of = commit(repository)
    for file in (REGISTRY, "experiments/clip_range.yaml"):
        kind, why = labelled(study, [commit_of], touched=[f"experiments/a.yaml {file}"])
        assert kind == EXPLORATORY
        assert why == f"{file} had changes that were not committed when its runs began"
    assert labelled(study, [commit_of], touched=["experiments/another.yaml"]) == (CONFIRMATORY, "")


def test_seeds_that_are_not_fresh_are_refused(study: Study, repository: Path) -> None:
    with pytest.raises(RequestError) as caught:
        register(study, VARIANTS, [3, *FRESH], {FRESH[0]}, "t")
    assert caught.value.problems == [
        f"seeds={FRESH[0]} of study clip_range are trained already: register seeds that are not",
        "seeds=3 are for exploring, choosing regimes and tuning: confirm with seeds from 2000 on"
        " (--seeds 2000,2001,...)",
    ]
    assert not (repository / REGISTRY).exists()
    register(study, VARIANTS, FRESH, set(), "t")
    with pytest.raises(RequestError, match="is registered with these seeds and as it is: nothing to add"):
        register(study, VARIANTS, FRESH, set(), "t")
    more = [*FRESH, FRESH[-1] + 1]
    register(study, VARIANTS, more, set(), "t")
    assert registered(study, VARIANTS)[study.hypotheses[0].id]["seeds"] == more
    assert len((repository / REGISTRY).read_text().splitlines()) == 2, "append-only"
    assert hashes(study, VARIANTS, FRESH) != hashes(study, VARIANTS, more)


def test_registered_seeds_without_a_result_decide_nothing(study: Study, repository: Path) -> None:
    register(study, VARIANTS, FRESH, set(), "t")
    commit_of = commit(repository)
    found = labelled(study, [commit_of], outcome=[MISSING])
    assert found == (EXPLORATORY, "none of its registered seeds has a result yet")


def test_a_plan_with_other_settings_is_not_the_registered_one(study: Study, repository: Path) -> None:
    plan = expand(study, Composer(), seeds=FRESH[:1])
    variants = variants_of({cell.variant: cell.settings for cell in plan.cells})
    register(study, variants, FRESH, set(), "t")
    assert plan.registered.keys() == {claim.id for claim in study.hypotheses}
    assert expand(study, Composer(), seeds=[7]).registered == plan.registered, "of any seed"
    assert expand(study, Composer(), ["prompts_per_step=16"], FRESH).registered == {}
