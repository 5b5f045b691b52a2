"""The reproducibility checklist of a report: what a paper is asked for, answered from what the runs recorded.

The questions are those of the machine learning reproducibility checklist (Pineau et al., 2021, arXiv 2003.12206, v2.0)
that software can answer; what it leaves to the author says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

import pandas as pd

from grpolab.report.claims import Claim
from grpolab.report.load import Study
from grpolab.report.registered import CONFIRMATORY
from grpolab.report.text import count, listing, markdown_table, number
from grpolab.vocabulary import DAMAGED, OUTCOMES, REGISTRY, RESULTS


def runs_of(studies: Sequence[Study]) -> pd.DataFrame:
    """Every run that has a result, once, however many studies share it."""
    return pd.concat([study.done for study in studies]).drop_duplicates("signature")


def damaged(studies: Sequence[Study]) -> str:
    """How many runs are damaged, which, and what to do about them; empty where none is."""
    cells = pd.concat([study.cells for study in studies])
    ill = cells[cells["outcome"] == DAMAGED].drop_duplicates("signature")
    if ill.empty:
        return ""
    names = listing(
        [f"{cell.study} {cell.variant} seed {cell.seed} ({cell.signature})" for cell in ill.itertuples()], 3
    )
    again = f"`grpolab sweep {studies[-1].name} --retry-failed` trains them anew"
    return f"{count(len(ill), 'run')}, whose files are not those that they ended with: {names}; {again}"


def compute(runs: pd.DataFrame) -> str:
    """Hours of one worker that went into runs and their warm starts, each once; `runs` as `runs_of` has them."""
    warm = runs.drop_duplicates("warm_start").get("warm_start_seconds", pd.Series([None])).astype("float64")
    warm_hours = f" and {number(warm.sum() / 3600)} for {count(len(warm), 'warm start')}" if warm.notna().all() else ""
    return f"{number(runs['seconds'].sum() / 3600)} hours of one worker for {count(len(runs), 'run')}{warm_hours}"


def page(studies: Sequence[Study], claims: Sequence[Claim]) -> str:
    """Markdown: a question, its answer and where to look, line by line."""
    rows = pd.DataFrame(_rows(studies, claims, runs_of(studies)), columns=["asked", "answer", "where"])
    head = (
        "# Reproducibility checklist\n\nAnswered from what the runs recorded; *author* is what a program cannot know."
    )
    return f"{head}\n\n{markdown_table(rows)}\n"


def _rows(studies: Sequence[Study], claims: Sequence[Claim], runs: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
    tested = [claim for claim in claims if claim.is_finding]
    sure = sum(claim.label == CONFIRMATORY for claim in tested)
    verdicts = listing([f"{n} {verdict}" for verdict, n in Counter(claim.verdict for claim in tested).items()])
    yield "Claims", f"{count(len(tested), 'test')} of hypotheses: {verdicts or 'none'}", "tables/verdicts.csv"
    yield "Registered before the runs", f"{sure} of {len(tested)}; the others are exploratory", f"`{REGISTRY}`"
    yield "Assumptions and limits", "the first screen; statistics.md says what the tests assume", "docs/statistics.md"
    yield (
        "Algorithm",
        "the loss of each arm, as settings that are checked before a run",
        "settings.yaml of a run, docs/",
    )
    if runs.empty:
        return
    tasks = sorted(runs["task_title"].astype(str).unique())
    items = sorted(runs["evaluation_items"].dropna().astype(int).unique())
    yield "Data", f"{', '.join(tasks)}: generated from seeds, or the files named", "src/grpolab/tasks"
    yield "Splits", f"disjoint; {listing([str(n) for n in items])} held-out items evaluated", "provenance.json of a run"
    yield "Code", f"commit {_distinct(runs['commit'])}" + _dirty(runs), "provenance.json of a run"
    yield (
        "Dependencies",
        f"Python {_distinct(runs['python'])}, lock {_distinct(runs['lock_sha256'].str[:12])}",
        "requirements/lock.txt",
    )
    yield "Commands", f"`make sweep STUDY={studies[-1].name}`, `make report STUDY={studies[-1].name}`", "README.md"
    seeds = sorted(int(seed) for seed in runs["seed"].unique())
    per_arm = studies[-1].done if len(studies) == 1 else pd.concat([study.done for study in studies])
    of_arm = per_arm.groupby(["study", "variant"])["seed"].nunique()
    yield "Seeds", f"{', '.join(map(str, seeds))}; {of_arm.min()} to {of_arm.max()} a variant", "plan.json of a study"
    tuned = sorted({tuning["study"] for study in studies for tuning in study.plan.get("tuned", [])})
    rates = ", ".join(sorted({f"{rate:g}" for rate in runs["setting/learning_rate"].astype(float)}))
    chosen = f"values tuned in {', '.join(tuned)}, on seeds of their own" if tuned else "no value was tuned in a study"
    yield "Hyperparameters", f"learning rates {rates}; {chosen}; regimes chosen on seeds 900 to 999", "docs/regimes.md"
    yield "Score", "mean of the last quarter of a run's evaluations, in expected accuracy", "docs/statistics.md"
    yield (
        "Variation",
        "intervals over seeds, of the decision where there is one; Holm within a family",
        "docs/statistics.md",
    )
    yield "Compute", f"{compute(runs)}; {number(runs['seconds'].mean())} s a run", "outcome.json of a run"
    machines = [json.loads(text) for text in sorted(runs["hardware"].dropna().unique())]
    shown = [", ".join(f"{key} {value}" for key, value in machine.items() if value) for machine in machines]
    yield "Hardware", "; ".join(shown), "provenance.json of a run"
    cells = pd.concat([study.cells for study in studies]).drop_duplicates("signature")
    left = {outcome: int((cells["outcome"] == outcome).sum()) for outcome in OUTCOMES if outcome not in RESULTS}
    gone = listing([f"{n} {outcome}" for outcome, n in left.items() if n])
    yield (
        "Runs left out",
        gone or "none: every planned run has a result and is counted",
        "What is missing, in the report",
    )
    yield "Is the question worth its compute", "*author*", ""
    yield "Were other analyses tried", "*author*: what was not registered is called exploratory", ""


def _distinct(column: pd.Series) -> str:
    return listing(sorted(column.dropna().astype(str).unique()), 3) or "unknown"


def _dirty(runs: pd.DataFrame) -> str:
    dirty = int(runs["dirty"].astype("boolean").fillna(value=False).sum())
    return f"; {count(dirty, 'run')} with uncommitted changes" if dirty else ", nothing uncommitted"
