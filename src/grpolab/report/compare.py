"""Comparison of two outcomes: bit for bit where they share a run, else within margins.

Finding no difference is not agreement. A row `agrees` where the whole interval of its difference lies within a margin,
a share of what training changes; any other row names the difference that these runs would have shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.report.journals import NOT_RECORDED, kind_of_cpu
from grpolab.report.load import StudyRuns, load
from grpolab.report.measures import at, is_share, measure
from grpolab.report.reference import outcome_at, studies_of
from grpolab.report.statistics.tests import (
    POWER,
    Difference,
    detectable_difference,
    detectable_rate_difference,
    holm,
    paired_difference,
    rate_difference,
    welch_difference,
    welch_error,
)
from grpolab.report.style import cell_names
from grpolab.report.text import BITS, NONE, count, estimate, listing, markdown_table, number, probability, signed
from grpolab.vocabulary import DAMAGED

ALPHA = 0.05
# Each with what training changes of it in the baseline: it gains accuracy, begins to clip, loses entropy. A share of
# that is the margin within which two outcomes agree; of the runs that are lost, the same share of all runs.
QUANTITIES = {"final_score": "gain", "clip/active": "clip/active", "entropy_last": "entropy_drop"}
LOST, MARGIN_SHARE = "lost", 0.2
EQUAL, AGREES, DIFFERS, OPEN = "bit-equal", "agrees", "DIFFERS", "no difference found"

_RULES = (
    "agrees: the whole 95% interval of the difference lies within the margin. Margins:"
    f" {MARGIN_SHARE:g} times what training changes in the baseline there (its gain; its clip fraction; its fall of"
    f" entropy), for lost runs {MARGIN_SHARE:g} of all runs. no difference found: the interval reaches beyond the"
    " margin and the test finds no difference; behind it stands how large a true one it would have found with power"
    f" {POWER:g}, after Holm's correction."
)


@dataclass
class Row:
    """One quantity of one variant, of each run here and there by seed, and what is made of it.

    `how`: paired by seed, unpaired, counts (of runs), or bits where the runs are the same ones to the bit. `largest` is
    the largest difference that there can be. `holm_p` is p after Holm's correction over all rows, but those of bits.
    """

    variant: str
    quantity: str
    here: pd.Series
    there: pd.Series
    how: str
    difference: Difference
    margin: float
    largest: float
    holm_p: float = np.nan
    verdict: str = EQUAL


def compare(results: Results, folder: Path, study: str | None = None) -> tuple[str, str]:
    """Compare the studies that both outcomes know, or `study` alone; return the text and the verdict of the whole.

    It is DIFFERS where a row differs, OPEN where none does and not all agree or a run is damaged, else AGREES.
    `folder` is a results folder or an exported reference. Raises RequestError where nothing can be compared.
    """
    other = outcome_at(folder)
    names = _shared(results, other, study)
    rows: list[Row] = []
    parts: list[str] = []
    unread = 0
    for name in names:
        here, there = load(results, name)[-1], load(other, name)[-1]
        same = _same_runs(here, there)
        rows += _rows(here, there, same)
        parts.append(_summary(here, there, same))
        unread += sum(int((side.cells["outcome"] == DAMAGED).sum()) for side in (here, there))
    if not rows:
        lack = f"FOLDER={folder}: no variant of {', '.join(names)} has a result both there and here"
        raise RequestError([lack, *parts] if unread else lack)
    tested = [row for row in rows if row.how != "bits"]
    _judge(tested)
    differ, agree = (sum(row.verdict == verdict for row in tested) for verdict in (DIFFERS, AGREES))
    tally = f"{differ} of {count(len(tested), 'test')} differ (Holm over all of them, p < {ALPHA:g})"
    if tested:
        parts += [_table(tested), f"{tally}; {agree} agree; {len(tested) - differ - agree} stay open.", _RULES]
    else:
        parts.append(f"{tally}.")
    return "\n\n".join(parts), DIFFERS if differ else OPEN if unread or agree < len(tested) else AGREES


def _shared(results: Results, other: Results, study: str | None) -> list[str]:
    """Return the studies with cells that are planned here and known there."""
    here = results.planned()
    there = studies_of(other)
    shared = [name for name in here if name in there and study in (None, name)]
    if not shared:
        wanted = f"study={study} is not" if study else "no study is"
        raise RequestError(
            f"{wanted} both planned in {results.root} and known in FOLDER={other.root}"
            f" (here: {', '.join(here) or 'none'}; there: {', '.join(there) or 'none'})"
        )
    return shared


def _same_runs(here: StudyRuns, there: StudyRuns) -> pd.DataFrame:
    """Cells with one signature in both: facet, arm, seed, and whether their journals are the same to the `bits`."""
    keys = ["facet", "arm", "seed", "signature"]
    both = here.done[[*keys, "journal_sha256"]].merge(there.done[[*keys, "journal_sha256"]], on=keys)
    return both.assign(bits=both["journal_sha256_x"] == both["journal_sha256_y"])


def _rows(here: StudyRuns, there: StudyRuns, same: pd.DataFrame) -> Iterator[Row]:
    """Every quantity of each variant that has a result in both; cells that are the very same are paired by seed."""
    values = {name: (measure(here, name), measure(there, name)) for name in (*QUANTITIES, LOST)}
    known = set(zip(there.done["facet"], there.done["arm"], strict=True))
    for facet, arm in dict.fromkeys(zip(here.done["facet"], here.done["arm"], strict=True)):
        if (facet, arm) not in known:
            continue
        bits = same[(same["facet"] == facet) & (same["arm"] == arm)].set_index("seed")["bits"]
        how = "unpaired" if bits.empty else "bits" if bits.all() else "paired"
        variant = f"{here.name} {arm}" + (f" in {facet}" if facet else "")
        for quantity, change in QUANTITIES.items():
            ours, theirs = (at(runs, facet, arm) for runs in values[quantity])
            if how != "unpaired":
                ours, theirs = ours[ours.index.isin(bits.index)], theirs[theirs.index.isin(bits.index)]
            if ours.empty or theirs.empty:  # not every journal has every metric
                continue
            difference = (welch_difference if how == "unpaired" else paired_difference)(ours, theirs)
            changed = float(at(measure(there, change), facet, there.baseline).mean())
            margin = MARGIN_SHARE * max(changed, 0.0) if np.isfinite(changed) else 0.0
            largest = 1.0 if is_share(here, quantity) else np.inf
            yield Row(variant, quantity, ours, theirs, how, difference, margin, largest)
        if how != "bits":  # collapsed, diverged or stopped: Newcombe's interval and Fisher's exact test
            ours, theirs = (at(runs, facet, arm) for runs in values[LOST])
            difference = rate_difference(int(ours.sum()), len(ours), int(theirs.sum()), len(theirs))
            yield Row(variant, LOST, ours, theirs, "counts", difference, MARGIN_SHARE, 1.0)


def _judge(rows: Sequence[Row]) -> None:
    """Give each row its verdict: a difference within the margin agrees even where it is sure not to be 0."""
    for row, p in zip(rows, holm([row.difference.p for row in rows]), strict=True):
        row.holm_p, within = float(p), -row.margin <= row.difference.low and row.difference.high <= row.margin
        row.verdict = AGREES if within else DIFFERS if p < ALPHA else OPEN
    left = [row for row in rows if row.verdict != DIFFERS]
    for row in left:
        if row.verdict == OPEN:
            detectable = _detectable(row, ALPHA / len(left))  # what Holm's next step asks of each that is left
            runs = count(row.difference.n, "run" if row.how == "counts" else "seed")
            sight = f"{runs}; would have found {number(detectable)}" if detectable else f"{runs}: too few to find any"
            row.verdict = f"{OPEN} ({sight})"


def _detectable(row: Row, level: float) -> float | None:
    """The true difference that the row's own test would have found; None where these runs could find none."""
    if row.how == "counts":
        return detectable_rate_difference(len(row.here), int(row.there.sum()), len(row.there), level)
    n = row.difference.n
    if n < 2:
        return None
    paired = row.difference.sd / np.sqrt(n), n - 1
    error, freedom = welch_error(row.here, row.there) if row.how == "unpaired" else paired
    detectable = detectable_difference(error, freedom, level) if np.isfinite(error) else np.inf
    return detectable if detectable < row.largest else None


def _summary(here: StudyRuns, there: StudyRuns, same: pd.DataFrame) -> str:
    """Count the runs that both outcomes have, and name those that are not equal to the bit."""
    text = f"{here.name}: {count(len(here.done), 'run')} here, {len(there.done)} there"
    for where, side in (("here", here), ("there", there)):
        if names := cell_names(side.cells[side.cells["outcome"] == DAMAGED]):
            text += f"; damaged {where} and left out, called neither equal nor different: {listing(names, 3)}"
    if same.empty:
        versions = [listing(sorted(map(str, side.done["results_version"].unique()))) for side in (here, there)]
        reason = f" (results_version {versions[0]} here, {versions[1]} there)" if versions[0] != versions[1] else ""
        return f"{text}; none has the same signature{reason}, so means are compared."
    unequal = [f"{run.arm} seed {run.seed}" for run in same[~same["bits"]].itertuples()]
    text += f"; {len(same)} of the same signature, {len(same) - len(unequal)} of them with equal journals, bit for bit"
    ours, theirs = (_kinds_of_cpu(side.done[side.done["signature"].isin(same["signature"])]) for side in (here, there))
    kinds, reason = f"kind of CPU: {'; '.join(ours)} here, {'; '.join(theirs)} there", ""
    if ours == theirs and len(ours) == 1 and NOT_RECORDED not in ours:
        kinds = f"the same kind of CPU here and there ({ours[0]})"
        reason = ", which should not be there: the packages or the program differ"
    return f"{text}; {listing(unequal, 3)} differ; {kinds}{reason}. {BITS}" if unequal else f"{text}; {kinds}."


def _kinds_of_cpu(cells: pd.DataFrame) -> list[str]:
    """Return every kind of CPU of some runs, in words: it decides the bits of their numbers."""
    return sorted({kind_of_cpu(text) for text in cells["hardware"].dropna()}) or [NOT_RECORDED]


def _table(rows: Sequence[Row]) -> str:
    columns = {
        "variant": [row.variant for row in rows],
        "quantity": [row.quantity for row in rows],
        "here": [number(float(row.here.mean())) for row in rows],
        "there": [number(float(row.there.mean())) for row in rows],
        "difference [95%]": [estimate(*row.difference[:3], signed) for row in rows],
        "margin": [f"±{number(row.margin)}" if row.margin else NONE for row in rows],
        "runs": [row.difference.n for row in rows],
        "how": [row.how for row in rows],
        "Holm p": [probability(row.holm_p) for row in rows],
        "verdict": [row.verdict for row in rows],
    }
    return markdown_table(pd.DataFrame(columns))
