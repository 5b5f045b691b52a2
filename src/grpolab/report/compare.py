"""Comparison of two results folders: bit for bit if both have a run, else within margins.

Finding no difference is not agreement. A row `agrees` if the whole interval of its difference lies within a margin,
which is a share of what training changes. Other rows name the difference that these runs would have shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.report.load import NOT_RECORDED, StudyRuns, kind_of_cpu, load
from grpolab.report.measures import at, is_share, measure
from grpolab.report.plans import outcome_at, studies_of
from grpolab.report.statistics import tests
from grpolab.report.statistics.looks import POWER, detectable_difference
from grpolab.report.statistics.tests import Difference
from grpolab.report.style import cell_names
from grpolab.report.text import BITS, NONE, count, estimate, listing, markdown_table, number, probability, signed
from grpolab.vocabulary import DAMAGED

ALPHA = 0.05
# Quantity -> the quantity that says how much training changes it in the baseline (gained accuracy, clipping, lost
# entropy). Values agree within MARGIN_SHARE of that change; counts of lost runs, within the same share of all runs.
QUANTITIES = {"final_score": "gain", "clip/active": "clip/active", "entropy_last": "entropy_drop"}
LOST, MARGIN_SHARE = "lost", 0.2
AGREES, DIFFERS, OPEN = "agrees", "DIFFERS", "no difference found"
_RULES = (
    "agrees: the whole 95% interval of the difference lies within the margin. Margins:"
    f" {MARGIN_SHARE:g} times what training changes in the baseline there (its gain; its clip fraction; its fall of"
    f" entropy), for lost runs {MARGIN_SHARE:g} of all runs. no difference found: the interval reaches beyond the"
    " margin and the test finds no difference; behind it stands how large a true one it would have found with power"
    f" {POWER:g}, after Holm's correction."
)


@dataclass
class QuantityComparison:
    """One quantity of one variant, compared between the runs here and there (by seed)."""

    variant: str
    quantity: str
    here: pd.Series
    there: pd.Series
    how: str  # paired by seed, unpaired, or counts (of runs)
    difference: Difference
    margin: float
    largest: float  # difference that is possible
    holm_p: float = np.nan  # after Holm's correction over all comparisons
    verdict: str = OPEN

    def record(self) -> dict[str, Any]:
        """Return the comparison for a program: means, the difference with its interval, the verdict in a word."""
        effect, low, high = self.difference[:3]
        return {
            **{"variant": self.variant, "quantity": self.quantity, "how": self.how, "runs": self.difference.n},
            **{"here": float(self.here.mean()), "there": float(self.there.mean())},
            **{"difference": effect, "low": low, "high": high, "margin": self.margin, "holm_p": self.holm_p},
            "verdict": in_a_word(self.verdict),
        }


def in_a_word(verdict: str) -> str:
    """Return agrees, differs or undecided."""
    return {AGREES: "agrees", DIFFERS: "differs"}.get(verdict, "undecided")


def compare(results: Results, folder: Path, study: str | None = None) -> tuple[str, str, list[QuantityComparison]]:
    """Compare the studies that both folders know (or `study` alone); return a text, the whole's verdict, and the rows.

    The verdict is DIFFERS if a comparison differs, OPEN if not all agree or a run is damaged, else AGREES. `folder` is
    a results folder or an exported reference. Raises RequestError if nothing can be compared.
    """
    other = outcome_at(folder)
    here, there = results.planned(), studies_of(other)
    names = [name for name in here if name in there and study in (None, name)]
    if not names:
        raise RequestError(
            f"{f'study={study} is not' if study else 'no study is'} both planned in {results.root} and known in"
            f" FOLDER={folder} (here: {', '.join(here) or 'none'}; there: {', '.join(there) or 'none'})"
        )
    rows, parts = list[QuantityComparison](), list[str]()
    n_variants = n_damaged = 0
    for name in names:
        sides = ours, theirs = load(results, name)[-1], load(other, name)[-1]
        keys = ["facet", "arm", "seed", "signature", "journal_sha256"]
        same = ours.done[keys].merge(theirs.done[keys], on=keys[:-1])
        same["is_equal"] = same["journal_sha256_x"] == same["journal_sha256_y"]
        places = ours.done[["facet", "arm"]].merge(theirs.done[["facet", "arm"]]).drop_duplicates()
        for facet, arm in places.itertuples(index=False):
            rows += _compare_variant(ours, theirs, same, facet, arm)
        parts.append(_summarize(ours, theirs, same))
        n_variants += len(places)
        n_damaged += sum(int((side.cells["outcome"] == DAMAGED).sum()) for side in sides)
    if not n_variants:
        lack = f"FOLDER={folder}: no variant of {', '.join(names)} has a result both there and here"
        raise RequestError([lack, *parts] if n_damaged else lack)
    _decide(rows)
    n = len(rows)
    n_differ, n_agree = (sum(row.verdict == word for row in rows) for word in (DIFFERS, AGREES))
    tally = f"{n_differ} of {count(n, 'test')} differ (Holm over all of them, p < {ALPHA:g})"
    if n:
        parts += [_tabulate(rows), f"{tally}; {n_agree} agree; {n - n_differ - n_agree} stay open.", _RULES]
    else:
        parts.append(f"{tally}.")
    return "\n\n".join(parts), DIFFERS if n_differ else OPEN if n_damaged or n_agree < n else AGREES, rows


def _compare_variant(
    here: StudyRuns, there: StudyRuns, same: pd.DataFrame, facet: str, arm: str
) -> Iterator[QuantityComparison]:
    """Compare every quantity of a variant: by seed over the runs that both sides have, else by means.

    A variant whose runs are all bit-identical needs no comparison.
    """
    equal = same[(same["facet"] == facet) & (same["arm"] == arm)].set_index("seed")["is_equal"]
    if len(equal) and equal.all():
        return
    variant = f"{here.name} {arm}" + (f" in {facet}" if facet else "")
    how, subtract = ("paired", tests.paired_difference) if len(equal) else ("unpaired", tests.welch_difference)
    for quantity, change in QUANTITIES.items():
        ours, theirs = (at(measure(side, quantity), facet, arm) for side in (here, there))
        if len(equal):
            ours, theirs = ours[ours.index.isin(equal.index)], theirs[theirs.index.isin(equal.index)]
        if ours.empty or theirs.empty:  # not every journal has every metric
            continue
        changed = float(at(measure(there, change), facet, there.baseline).mean())
        margin = MARGIN_SHARE * max(changed, 0.0) if np.isfinite(changed) else 0.0
        largest = 1.0 if is_share(here, quantity) else np.inf
        yield QuantityComparison(variant, quantity, ours, theirs, how, subtract(ours, theirs), margin, largest)
    ours, theirs = (at(measure(side, LOST), facet, arm) for side in (here, there))
    difference = tests.rate_difference(int(ours.sum()), len(ours), int(theirs.sum()), len(theirs))
    yield QuantityComparison(variant, LOST, ours, theirs, "counts", difference, MARGIN_SHARE, 1.0)


def _decide(rows: Sequence[QuantityComparison]) -> None:
    """Set each verdict: agrees if the whole confidence interval lies within the margin, even when it excludes 0.

    Otherwise it differs if Holm's p is below ALPHA, and is open if not.
    """
    for row, p in zip(rows, tests.holm([row.difference.p for row in rows]), strict=True):
        row.holm_p = float(p)
        is_within = -row.margin <= row.difference.low and row.difference.high <= row.margin
        row.verdict = AGREES if is_within else DIFFERS if p < ALPHA else OPEN
    n_left = sum(row.verdict != DIFFERS for row in rows)  # Holm's next step divides ALPHA by this number
    for row in rows:
        if row.verdict == OPEN:
            detectable = _find_detectable(row, ALPHA / n_left)
            runs = count(row.difference.n, "run" if row.how == "counts" else "seed")
            power = f"{runs}; would have found {number(detectable)}" if detectable else f"{runs}: too few to find any"
            row.verdict = f"{OPEN} ({power})"


def _find_detectable(row: QuantityComparison, level: float) -> float | None:
    """Return the true difference that the row's own test would have found; None if these runs could find none."""
    if row.how == "counts":
        return tests.detectable_rate_difference(len(row.here), int(row.there.sum()), len(row.there), level)
    n = row.difference.n
    if n < 2:
        return None
    paired = row.difference.sd / np.sqrt(n), n - 1
    error, freedom = tests.welch_error(row.here, row.there) if row.how == "unpaired" else paired
    detectable = detectable_difference(error, freedom, level) if np.isfinite(error) else np.inf
    return detectable if detectable < row.largest else None


def _summarize(here: StudyRuns, there: StudyRuns, same: pd.DataFrame) -> str:
    """Say how many runs two results folders share, and name those whose journals are not equal to the bit."""
    text = f"{here.name}: {count(len(here.done), 'run')} here, {len(there.done)} there"
    for where, side in (("here", here), ("there", there)):
        if names := cell_names(side.cells[side.cells["outcome"] == DAMAGED]):
            text += f"; damaged {where} and left out, called neither equal nor different: {listing(names, 3)}"
    if same.empty:
        ours, theirs = (listing(sorted(map(str, side.done["results_version"].unique()))) for side in (here, there))
        reason = f" (results_version {ours} here, {theirs} there)" if ours != theirs else ""
        return f"{text}; none has the same signature{reason}, so means are compared."
    unequal = [f"{run.arm} seed {run.seed}" for run in same[~same["is_equal"]].itertuples()]
    text += f"; {len(same)} of the same signature, {len(same) - len(unequal)} of them with equal journals, bit for bit"
    hardware = (side.done.loc[side.done["signature"].isin(same["signature"]), "hardware"] for side in (here, there))
    mine, others = (sorted({kind_of_cpu(machine) for machine in of.dropna()}) or [NOT_RECORDED] for of in hardware)
    kinds, reason = f"kind of CPU: {'; '.join(mine)} here, {'; '.join(others)} there", ""
    if mine == others and len(mine) == 1 and NOT_RECORDED not in mine:
        kinds = f"the same kind of CPU here and there ({mine[0]})"
        reason = ", which should not be there: the packages or the program differ"
    return f"{text}; {listing(unequal, 3)} differ; {kinds}{reason}. {BITS}" if unequal else f"{text}; {kinds}."


def _tabulate(comparisons: Sequence[QuantityComparison]) -> str:
    rows = [
        {
            **{"variant": row.variant, "quantity": row.quantity},
            **{"here": number(float(row.here.mean())), "there": number(float(row.there.mean()))},
            "difference [95%]": estimate(*row.difference[:3], signed),
            "margin": f"±{number(row.margin)}" if row.margin else NONE,
            **{"runs": row.difference.n, "how": row.how, "Holm p": probability(row.holm_p), "verdict": row.verdict},
        }
        for row in comparisons
    ]
    return markdown_table(pd.DataFrame(rows))
