"""Provenance of a report's numbers: its runs, their cost, the damaged ones, and the commands that make them again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime

import pandas as pd

from grpolab.report.load import StudyRuns
from grpolab.report.plans import known_collections
from grpolab.report.text import BITS, bullets, count, listing, number
from grpolab.vocabulary import DAMAGED


def runs_of(studies: Sequence[StudyRuns]) -> pd.DataFrame:
    """Return every run that has a result, once, however many studies share it."""
    return pd.concat([study.done for study in studies]).drop_duplicates("signature")


def damaged(studies: Sequence[StudyRuns]) -> str:
    """Name the damaged runs and what to do about them; empty if none is."""
    cells = pd.concat([study.cells for study in studies])
    ill = cells[cells["outcome"] == DAMAGED].drop_duplicates("signature")
    if ill.empty:
        return ""
    names = [f"{cell.study} {cell.variant} seed {cell.seed} ({cell.signature})" for cell in ill.itertuples()]
    again = f"`grpolab sweep {studies[-1].name} --retry-failed` trains them anew"
    return f"{count(len(ill), 'run')}, whose files have changed since they ended: {listing(names, 3)}; {again}"


def compute(runs: pd.DataFrame) -> str:
    """Say how many hours of one worker went into runs and their warm starts, each once; `runs` as from `runs_of`."""
    warm = runs.drop_duplicates("warm_start").get("warm_start_seconds", pd.Series([None])).astype("float64")
    warm_hours = f" and {number(warm.sum() / 3600)} for {count(len(warm), 'warm start')}" if warm.notna().all() else ""
    return f"{number(runs['seconds'].sum() / 3600)} hours of one worker for {count(len(runs), 'run')}{warm_hours}"


def section(studies: Sequence[StudyRuns]) -> list[str]:
    """Write the report's section about provenance, a paragraph each; empty if no run has a result."""
    runs = runs_of(studies)
    if runs.empty:
        return []
    with_cells, accuracy = [study for study in studies if len(study.cells)], runs["warm_start_accuracy"]
    machines = [json.loads(text) for text in sorted(runs["hardware"].dropna().unique())]
    unchecked = int(runs["journal_sha256"].isna().sum())
    content = runs["content"].dropna() if "content" in runs else ()
    lines = [
        f"{count(len(runs), 'run')} for {count(sum(len(study.done) for study in studies), 'cell')},"
        f" {compute(runs)}{_period(studies, runs)}",
        f"commit {_distinct(runs['commit'])}" + (" (with uncommitted changes)" if runs["dirty"].any() else ""),
        _begins(runs),
        unchecked and f"without a recorded hash of the journal, so that it was not checked: {count(unchecked, 'run')}",
        f"results_version {_distinct(runs['results_version'])}, lock {_distinct(runs['lock_sha256'].str[:12])}",
        f"Python {_distinct(runs['python'])}, {_distinct(runs['threads'])} thread(s) a run",
        *("hardware: " + ", ".join(f"{key} {value}" for key, value in machine.items()) for machine in machines),
        len(content) and f"data and code of the user's: {_distinct(content)}",
        "seeds: " + "; ".join(f"{study.name} {', '.join(map(str, study.plan['seeds']))}" for study in with_cells),
        f"warm starts: {runs['warm_start'].nunique()}, accuracy {number(accuracy.min())} to {number(accuracy.max())},"
        " sampled on training prompts where each ended (a run's `start` is its first evaluation, on held-out prompts)",
    ]
    listed = bullets(str(line) for line in lines if line)
    return ["## Provenance", listed, BITS, *_reproduction(studies[-1], with_cells, runs)]


def _begins(runs: pd.DataFrame) -> str:
    """Say when the runs began, and of how many that is not known."""
    known = runs["began"].dropna() if "began" in runs else runs["commit"].iloc[:0]
    unknown = (
        f"when they began was not kept yet: {count(len(runs) - len(known), 'run')}" if len(known) < len(runs) else ""
    )
    first = f"began from {known.min()} to {known.max()}" if len(known) else ""
    return "; ".join(filter(None, (first, unknown)))


def _period(studies: Sequence[StudyRuns], runs: pd.DataFrame) -> str:
    """Say when the runs were trained; empty if the committed outcome lacks the timings of some."""
    timings = pd.concat([study.timings for study in studies if len(study.timings)] or [pd.DataFrame()])
    if timings.empty or not set(runs["signature"]) <= set(timings["signature"]):
        return ""
    ends = timings["time_ms"].agg(["min", "max"]).astype("float64") / 1000
    first, last = (f"{datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M}" for end in ends)
    return f", trained from {first} to {last} UTC"


def _reproduction(whole: StudyRuns, with_cells: Sequence[StudyRuns], runs: pd.DataFrame) -> list[str]:
    """Give the commands that make the report again."""
    commits = runs["commit"].value_counts().index
    commit = whole.plan.get("commit") if len(commits) > 1 else next(iter(commits), None)
    seeds = [{tuple(sorted(of)) for of in study.cells.groupby("variant")["seed"].unique()} for study in with_cells]
    different, option = set().union(*seeds), ""  # studies with seeds of their own have them in their files
    if any(len(of_study) > 1 for of_study in seeds) or (len(different) > 1 and whole.plan.get("looks")):
        option = " --until-decided"
    elif len(different) == 1:
        (same,) = different
        listed = ",".join(map(str, same)) + ("," if len(same) == 1 else "")
        option = f" --seeds {len(same) if same == (*range(len(same)),) else listed}"
    named = shlex.quote(whole.plan.get("file", whole.name))
    commands = [f"grpolab sweep {named}{option}", f"grpolab report {named}"]
    commands = [f"git checkout {commit}", *commands] if commit else commands
    note = f" The runs are of {len(commits)} commits; each run's is in its manifest." if len(commits) > 1 else ""
    return [f"Reproduce (what has an outcome is not trained again):{note}", "\n".join(["```", *commands, "```"])]


def runs_of_others(studies: Sequence[StudyRuns]) -> str:
    """Name another collection that has at least half of the runs of a collection; empty if there is none.

    Two collections of the same runs are one sample: they agree because of that, and the runs are counted once.
    """
    if not studies[-1].plan["includes"]:
        return ""
    results, own = studies[-1].results, {study.name for study in studies}
    runs, most, other = set(runs_of(studies)["signature"]), 0, ""
    for name, of in known_collections(results).items():
        if name not in own and not own <= {plan["study"] for plan in of}:
            shared = len(runs & {cell["signature"] for plan in of for cell in plan["cells"]})
            most, other = max((most, other), (shared, name))
    if not runs or 2 * most < len(runs):
        return ""
    of_them = "all of them are" if most == len(runs) else f"{most:,} of them are"
    return f"{of_them} runs of `{other}` too: one sample, counted once, and no second evidence"


def _distinct(column: pd.Series) -> str:
    """List the values of a column, with a mark if there are several."""
    values = sorted(column.dropna().astype(str).unique()) or ["unknown"]
    return ", ".join(values) + (f" (**mixed: {len(values)}**)" if len(values) > 1 else "")
