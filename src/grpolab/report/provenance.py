"""Where a report's numbers come from, how to make them again, and what is missing of what was planned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pandas as pd

from grpolab.report.load import Study
from grpolab.report.style import cell_names
from grpolab.report.text import count, number
from grpolab.vocabulary import COMPLETED, OUTCOMES

SHORT = 12  # digits of a hash that are enough to tell
KIND_OF_CPU = ("cpu", "cpu_capability", "mkl", "float32")  # what of a run's hardware decides the bits of its numbers
NOT_RECORDED = "not recorded"
BITS = (
    "Equality to the bit is promised on one kind of CPU only: one model, and the code that torch and MKL choose there."
    " On another one float32 rounds otherwise, and two runs part within a few rollout steps; a run's final score then"
    " differs by about a seventh of its standard deviation over seeds (measured: docs/faults.md)."
)


def provenance(parts: Sequence[Study]) -> str:
    """Where the numbers come from: every run once, however many studies share it."""
    runs = pd.concat([part.done for part in parts]).drop_duplicates("signature")
    if runs.empty:
        return ""
    asked = sum(len(part.done) for part in parts)
    lines = [
        f"- {count(len(runs), 'run')} for {count(asked, 'cell')},"
        f" {number(runs['seconds'].sum() / 60)} minutes of worker time{_period(parts)}",
        f"- commit {_distinct(runs['commit'])}" + (" (with uncommitted changes)" if runs["dirty"].any() else ""),
        f"- results_version {_distinct(runs['results_version'])}, lock {_distinct(runs['lock_sha256'].str[:SHORT])}",
        f"- Python {_distinct(runs['python'])}, {_distinct(runs['threads'])} thread(s) a run",
        *(f"- hardware: {_hardware(text)}" for text in sorted(runs["hardware"].dropna().unique())),
        *([f"- data and code of the user's: {_distinct(runs['content'])}"] if _has_content(runs) else []),
        f"- seeds: {'; '.join(_seeds(part) for part in parts if len(part.cells))}",
        f"- warm starts: {runs['warm_start'].nunique()}, accuracy {_range(runs['warm_start_accuracy'])}",
    ]
    return "\n\n".join(["## Provenance", "\n".join(lines), BITS, _reproduce(parts, runs)])


def kinds_of_cpu(here: pd.DataFrame, there: pd.DataFrame) -> tuple[bool, str]:
    """Whether the cells of two outcomes are all known to be of one kind of CPU, and which kinds those are, in words."""
    ours, theirs = (sorted({_kind(text) for text in cells["hardware"].dropna()}) for cells in (here, there))
    if ours == theirs and len(ours) == 1 and NOT_RECORDED not in ours:
        return True, f"the same kind of CPU here and there ({ours[0]})"
    return False, f"kind of CPU: {'; '.join(ours) or NOT_RECORDED} here, {'; '.join(theirs) or NOT_RECORDED} there"


def _kind(hardware: str) -> str:
    known = json.loads(hardware)
    if "float32" not in known:  # a run from before it was written down
        return NOT_RECORDED
    return ", ".join(f"{key} {known[key]}" for key in KIND_OF_CPU)


def _has_content(runs: pd.DataFrame) -> bool:
    return "content" in runs and bool(runs["content"].notna().any())


def missing(parts: Sequence[Study]) -> str:
    """Every cell without a result; every run that diverged or was stopped."""
    cells = pd.concat([part.cells for part in parts])
    lines = []
    for outcome, meaning in OUTCOMES.items():
        named = cell_names(cells[cells["outcome"] == outcome]) if outcome != COMPLETED else []
        if named:
            lines.append(f"- {outcome} ({meaning}): {', '.join(named)}")
    done = (cells["outcome"] == COMPLETED).sum()
    head = f"{done} of {count(len(cells), 'planned cell')} completed."
    return "## What is missing\n\n" + "\n".join([head, "", *lines] if lines else [head])


def _reproduce(parts: Sequence[Study], runs: pd.DataFrame) -> str:
    """The commands that make it all again."""
    name, commits = parts[-1].name, runs["commit"].value_counts().index  # the commit of most runs first
    seeds = {tuple(part.plan["seeds"]) for part in parts if len(part.cells)}
    same = seeds.pop() if len(seeds) == 1 else ()  # where studies have seeds of their own, their files say which
    few = str(len(same)) if same == tuple(range(len(same))) else ",".join(map(str, same))
    commands = [
        *(f"git checkout {commit}" for commit in commits[:1]),
        f"make sweep STUDY={name}" + (f" SEEDS={few}" if same else ""),
        f"make report STUDY={name}",
    ]
    note = f" The runs are of {len(commits)} commits; each run's is in its manifest." if len(commits) > 1 else ""
    return f"Reproduce (what has an outcome is not trained again):{note}\n\n```\n" + "\n".join(commands) + "\n```"


def _period(parts: Sequence[Study]) -> str:
    """From when to when the runs were trained, in UTC."""
    times = [part.timings["time_ms"] for part in parts if len(part.timings)]
    if not times:
        return ""
    ends = pd.concat(times).agg(["min", "max"]).astype("float64") / 1000
    first, last = (f"{datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M}" for end in ends)
    return f", trained from {first} to {last} UTC"


def _seeds(part: Study) -> str:
    return f"{part.name} {', '.join(map(str, part.plan['seeds']))}"


def _distinct(column: pd.Series) -> str:
    """The values of a column; more than one is said, not hidden."""
    values = sorted(column.dropna().astype(str).unique()) or ["unknown"]
    return ", ".join(values) + (f" (**mixed: {len(values)}**)" if len(values) > 1 else "")


def _hardware(text: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in json.loads(text).items())


def _range(column: pd.Series) -> str:
    return f"{number(column.min())} to {number(column.max())}"
