"""Label verdicts as confirmatory or exploratory, from hashes and commits."""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from string import hexdigits
from typing import TYPE_CHECKING, Any

from grpolab.paths import git, project_root
from grpolab.report.text import count, listing
from grpolab.vocabulary import REGISTRY, RESULTS

if TYPE_CHECKING:
    import pandas as pd

CONFIRMATORY, EXPLORATORY = "confirmatory", "exploratory"


def label(entry: dict[str, Any] | None, studies: set[str], cells: pd.DataFrame) -> tuple[str, str]:
    """Return the label and, if exploratory, the reason; `cells`: the hypothesis's cells, `entry`: its registration.

    A verdict is confirmatory if the recorded commit of every run has the line that registers the present hypothesis,
    neither the registry nor the files of its `studies` had uncommitted changes, and no run is known to have begun
    before the line was written.
    """
    if entry is None:
        return EXPLORATORY, "not registered as it is"
    runs = cells[cells["outcome"].isin(RESULTS) & cells["seed"].isin(entry["seeds"])]
    if runs.empty:
        return EXPLORATORY, "none of its registered seeds has a result yet"
    before = [
        commit for commit in runs["commit"].unique() if commit is None or entry["line"] not in registry_at(commit)
    ]
    if before:
        commits = listing([str(commit)[:8] for commit in before], 3)
        return EXPLORATORY, f"runs of commit {commits} began without its registration"
    registered = datetime.fromisoformat(json.loads(entry["line"])["time"])
    begins = runs["began"].dropna() if "began" in runs else ()  # runs of older programs do not say it
    if early := [began for began in begins if datetime.fromisoformat(began) < registered]:
        return EXPLORATORY, f"{count(len(early), 'run')} began before it was registered, the first at {min(early)}"
    names = runs["touched"].dropna() if "touched" in runs else ()
    touched = {name for text in names for name in text.split()}
    if edited := touched & {REGISTRY, *(f"experiments/{name}.yaml" for name in studies)}:
        return EXPLORATORY, f"{listing(sorted(edited))} had changes that were not committed when its runs began"
    return CONFIRMATORY, ""


@lru_cache(maxsize=256)
def registry_at(commit: str) -> frozenset[str]:
    """Return the lines of the registry at a commit; none if git does not know the commit."""
    if not set(commit) <= set(hexdigits):  # anybody may have written the file, and git would read an option
        return frozenset()
    text = git(project_root(), "show", f"{commit}:{REGISTRY}")
    return frozenset(text.splitlines() if text else ())


def has_history() -> bool:
    """Return True if git has the registry; without it (an installed package) what was read in the repository stands."""
    return git(project_root(), "ls-files", "--error-unmatch", REGISTRY) is not None
