"""Which verdicts are confirmatory: the tool says it from hashes and commits, not the author."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from grpolab.paths import git, project_root
from grpolab.report.load import Study
from grpolab.report.text import listing
from grpolab.vocabulary import REGISTRY, RESULTS

CONFIRMATORY, EXPLORATORY = "confirmatory", "exploratory"


def label(study: Study, hypothesis: str, cells: pd.DataFrame) -> tuple[str, str]:
    """Confirmatory, or exploratory and why; `cells` are those of the registered seeds that the verdict is about.

    Confirmatory is a verdict on runs whose recorded commit has the line that registers the hypothesis as it is, while
    neither the study nor the registry had changes that were not committed.
    """
    entry = study.plan.get("registered", {}).get(hypothesis)
    if entry is None:
        return EXPLORATORY, "not registered as it is"
    runs = cells[cells["outcome"].isin(RESULTS)]
    if runs.empty:
        return EXPLORATORY, "none of its registered seeds has a result yet"
    before = [commit for commit in runs["commit"].unique() if not _has(commit, entry["line"])]
    if before:
        commits = listing([str(commit)[:8] for commit in before], 3)
        return EXPLORATORY, f"runs of commit {commits} began without its registration"
    touched = {name for text in runs.get("touched", pd.Series(dtype=str)).dropna() for name in text.split()}
    if edited := touched & {REGISTRY, f"experiments/{study.name}.yaml"}:
        return EXPLORATORY, f"{listing(sorted(edited))} had changes that were not committed when its runs began"
    return CONFIRMATORY, ""


def registered_seeds(study: Study, hypothesis: str) -> list[int]:
    """The seeds that are to decide a hypothesis; none where it is not registered."""
    return study.plan.get("registered", {}).get(hypothesis, {}).get("seeds", [])


def _has(commit: str | None, line: str) -> bool:
    return commit is not None and line in _registry_at(commit)


@lru_cache(maxsize=256)
def _registry_at(commit: str) -> frozenset[str]:
    """The lines of the registry at a commit; none where it, or git, does not know it."""
    text = git(project_root(), "show", f"{commit}:{REGISTRY}")
    return frozenset(text.splitlines() if text else ())
