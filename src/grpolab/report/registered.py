"""Which verdicts are confirmatory: the tool says it from hashes and commits, not the author."""

from __future__ import annotations

from functools import lru_cache
from string import hexdigits
from typing import TYPE_CHECKING, Any

from grpolab.paths import git, project_root
from grpolab.report.text import listing
from grpolab.vocabulary import REGISTRY, RESULTS

if TYPE_CHECKING:
    import pandas as pd

CONFIRMATORY, EXPLORATORY = "confirmatory", "exploratory"


def label(entry: dict[str, Any] | None, studies: set[str], cells: pd.DataFrame) -> tuple[str, str]:
    """Confirmatory, or exploratory and why; `cells` are those that the hypothesis is about, `entry` its registration.

    Confirmatory is a verdict on runs whose recorded commit has the line that registers the hypothesis as it is, while
    neither the registry nor the `studies` that it is of had changes that were not committed.
    """
    if entry is None:
        return EXPLORATORY, "not registered as it is"
    runs = cells[cells["outcome"].isin(RESULTS) & cells["seed"].isin(entry["seeds"])]
    if runs.empty:
        return EXPLORATORY, "none of its registered seeds has a result yet"
    before = [commit for commit in runs["commit"].unique() if not _has(commit, entry["line"])]
    if before:
        commits = listing([str(commit)[:8] for commit in before], 3)
        return EXPLORATORY, f"runs of commit {commits} began without its registration"
    said = runs["touched"].dropna() if "touched" in runs else ()
    touched = {name for text in said for name in text.split()}
    if edited := touched & {REGISTRY, *(f"experiments/{name}.yaml" for name in studies)}:
        return EXPLORATORY, f"{listing(sorted(edited))} had changes that were not committed when its runs began"
    return CONFIRMATORY, ""


def _has(commit: str | None, line: str) -> bool:
    return commit is not None and line in registry_at(commit)


@lru_cache(maxsize=256)
def registry_at(commit: str) -> frozenset[str]:
    """The lines of the registry at a commit; none where it, or git, does not know it."""
    if not set(commit) <= set(hexdigits):  # of a file that anybody may have written: git would read an option
        return frozenset()
    text = git(project_root(), "show", f"{commit}:{REGISTRY}")
    return frozenset(text.splitlines() if text else ())
