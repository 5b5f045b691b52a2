"""Whether a new sweep agrees with another outcome: bit for bit where a run is the same one, else within margins.

Not to find a difference is no agreement. `agrees` is said where the whole interval of a difference lies within a margin
that is a share of what training changes; else it is said what difference these runs would have shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.report.load import Study, load
from grpolab.report.measures import at, is_share, measure
from grpolab.report.reference import outcome_at, studies_of
from grpolab.report.stability import count_lost, stability_table
from grpolab.report.statistics.power import POWER, detectable_difference, detectable_rate_difference
from grpolab.report.statistics.tests import (
    Difference,
    holm,
    paired_difference,
    rate_difference,
    welch_difference,
    welch_error,
)
from grpolab.report.text import BITS, NONE, count, estimate, listing, markdown_table, number, probability, signed

ALPHA = 0.05
# Each with what training changes of it in the baseline: it gains accuracy, begins to clip, loses entropy. A share of
# that is the margin within which two outcomes agree; of the runs that are lost, the same share of all runs.
QUANTITIES = {"final_score": "gain", "clip/active": "clip/active", "entropy_last": "entropy_drop"}
LOST, MARGIN_SHARE = "lost", 0.2
EQUAL, AGREES, DIFFERS, OPEN = "bit-equal", "agrees", "DIFFERS", "no difference found"
KIND_OF_CPU = ("cpu", "cpu_capability", "mkl", "float32")  # what of a run's hardware decides the bits of its numbers
NOT_RECORDED = "not recorded"
SHOULD_NOT = "which should not be there: the packages or the program differ"

_RULES = (
    "agrees: the whole 95% interval of the difference lies within the margin. Margins:"
    f" {MARGIN_SHARE:g} times what training changes in the baseline there (its gain; its clip fraction; its fall of"
    f" entropy), for lost runs {MARGIN_SHARE:g} of all runs. no difference found: the interval reaches beyond the"
    " margin and the test finds no difference; behind it stands how large a true one it would have found with power"
    f" {POWER:g}, after Holm's correction."
)


@dataclass(frozen=True)
class Row:
    """One quantity of one variant in both outcomes. `how`: paired by seed, unpaired, counted, or the same bits.

    `detectable` is the difference that would have been found at a level; None where these runs could find none.
    """

    variant: str
    quantity: str
    here: float
    there: float
    difference: Difference
    how: str
    margin: float
    detectable: Callable[[float], float | None]
    verdict: str = EQUAL


@dataclass(frozen=True)
class Pair:
    """One study in both outcomes."""

    here: Study
    there: Study

    @cached_property
    def same(self) -> pd.DataFrame:
        """Cells with one signature in both: facet, arm, seed, and whether their journals are the same to the bit."""
        keys = ["facet", "arm", "seed", "signature"]
        sides = [study.done[[*keys, "journal_sha256"]] for study in (self.here, self.there)]
        both = sides[0].merge(sides[1], on=keys)
        return both.assign(bits=both["journal_sha256_x"] == both["journal_sha256_y"])

    @cached_property
    def values(self) -> dict[str, list[pd.Series]]:
        """Each quantity of every run, here and there."""
        return {quantity: [measure(study, quantity) for study in (self.here, self.there)] for quantity in QUANTITIES}

    @property
    def variants(self) -> list[tuple[str, str]]:
        """(facet, arm) with a result in both, in the order of the plan here."""
        known = set(zip(self.there.done["facet"], self.there.done["arm"], strict=True))
        ours = zip(self.here.done["facet"], self.here.done["arm"], strict=True)
        return [variant for variant in dict.fromkeys(ours) if variant in known]


def compare(results: Results, folder: Path, study: str | None = None) -> tuple[str, str]:
    """What there is to say of the studies that both know (of `study` alone), and the verdict of the whole.

    It is DIFFERS where a row differs, OPEN where none does and not all agree, else AGREES. `folder` is a results folder
    or an exported reference. Raises RequestError where nothing can be compared.
    """
    other = outcome_at(folder)
    names = _shared(results, other, study)
    pairs = [Pair(load(results, name)[-1], load(other, name)[-1]) for name in names]
    rows = _judged([row for pair in pairs for variant in pair.variants for row in _rows(pair, *variant)])
    if not rows:
        raise RequestError(f"FOLDER={folder}: no variant of {', '.join(names)} has a result both there and here")
    unequal = [row for row in rows if row.verdict != EQUAL]
    differ, agree = (sum(row.verdict == verdict for row in unequal) for verdict in (DIFFERS, AGREES))
    tally = f"{differ} of {count(len(unequal), 'test')} differ (Holm over all of them, p < {ALPHA:g})"
    tally += f"; {agree} agree; {len(unequal) - differ - agree} stay open." if unequal else "."
    parts = [*map(_summary, pairs), *([_shown(unequal), tally, _RULES] if unequal else [tally])]
    verdict = DIFFERS if differ else OPEN if agree < len(unequal) else AGREES
    return "\n\n".join(parts), verdict


def _shared(results: Results, other: Results, study: str | None) -> list[str]:
    """Studies with cells that are planned here and known there."""
    here = [file.parent.name for file in sorted(results.studies.glob("*/plan.json"))]
    shared = [name for name in here if name in studies_of(other) and study in (None, name)]
    if not shared:
        wanted = f"study={study} is not" if study else "no study is"
        raise RequestError(
            f"{wanted} both planned in {results.root} and known in FOLDER={other.root}"
            f" (here: {', '.join(here) or 'none'}; there: {', '.join(studies_of(other)) or 'none'})"
        )
    return shared


def _rows(pair: Pair, facet: str, arm: str) -> Iterator[Row]:
    """Every quantity of one variant. Cells that are the very same are compared in pairs, seed by seed."""
    same = pair.same
    bits = same[(same["facet"] == facet) & (same["arm"] == arm)].set_index("seed")["bits"]
    how = "unpaired" if bits.empty else "bits" if bits.all() else "paired"
    name = f"{pair.here.name} {arm}" + (f" in {facet}" if facet else "")
    for quantity, sides in pair.values.items():
        own, other = (at(values, facet, arm) for values in sides)
        if how != "unpaired":
            own, other = own[own.index.isin(bits.index)], other[other.index.isin(bits.index)]
        if len(own) and len(other):  # not every journal has every metric
            difference = welch_difference(own, other) if how == "unpaired" else paired_difference(own, other)
            most = 1.0 if is_share(pair.here, quantity) else np.inf
            detectable = partial(_detectable, own, other, difference, how, most)
            means = float(own.mean()), float(other.mean())
            yield Row(name, quantity, *means, difference, how, _margin(pair.there, quantity, facet), detectable)
    if how != "bits":
        yield _lost(pair, facet, arm, name)


def _margin(there: Study, quantity: str, facet: str) -> float:
    """MARGIN_SHARE of what training changes in the baseline of the other outcome; 0 where it changes nothing."""
    change = float(at(measure(there, QUANTITIES[quantity]), facet, there.baseline).mean())
    return MARGIN_SHARE * max(change, 0.0) if np.isfinite(change) else 0.0


def _detectable(
    own: pd.Series, other: pd.Series, difference: Difference, how: str, most: float, level: float
) -> float | None:
    """The true difference of means that the row's own t-test would have found; None above `most`."""
    if difference.n < 2:
        return None
    n = difference.n
    error, freedom = welch_error(own, other) if how == "unpaired" else (difference.sd / np.sqrt(n), n - 1)
    detectable = detectable_difference(error, freedom, level) if np.isfinite(error) else np.inf
    return detectable if detectable < most else None


def _lost(pair: Pair, facet: str, arm: str, name: str) -> Row:
    """Runs that collapsed, diverged or were stopped: counts, so Newcombe's interval and Fisher's exact test."""
    (own, own_n), (other, other_n) = (count_lost(stability_table(side), facet, arm) for side in (pair.here, pair.there))
    difference = rate_difference(own, own_n, other, other_n)
    detectable = partial(detectable_rate_difference, own_n, other, other_n)
    return Row(name, LOST, own / own_n, other / other_n, difference, "counts", MARGIN_SHARE, detectable)


def _judged(rows: Sequence[Row]) -> list[Row]:
    """Each row with its verdict: Holm's correction over all that is not equal to the bit."""
    unequal = [row for row in rows if row.how != "bits"]
    adjusted = holm([row.difference.p for row in unequal])
    verdicts = [_verdict(row, p) for row, p in zip(unequal, adjusted, strict=True)]
    level = ALPHA / max(1, len(unequal) - verdicts.count(DIFFERS))  # what Holm's next step asks of each that is left
    judged = {
        id(row): replace(
            row,
            verdict=f"{OPEN} ({_sight(row, level)})" if verdict == OPEN else verdict,
            difference=row.difference._replace(p=p),
        )
        for row, verdict, p in zip(unequal, verdicts, adjusted, strict=True)
    }
    return [judged.get(id(row), row) for row in rows]


def _verdict(row: Row, p: float) -> str:
    """`p` after Holm's correction. A difference within the margin agrees even where it is sure not to be 0."""
    if -row.margin <= row.difference.low and row.difference.high <= row.margin:
        return AGREES
    return DIFFERS if p < ALPHA else OPEN


def _sight(row: Row, level: float) -> str:
    """What an open row's runs could have shown."""
    runs = count(row.difference.n, "run" if row.how == "counts" else "seed")
    detectable = row.detectable(level)
    return f"{runs}; would have found {number(detectable)}" if detectable else f"{runs}: too few to find any"


def _summary(pair: Pair) -> str:
    """How many runs are the same ones, and which of them are not the same to the bit."""
    same, here, there = pair.same, pair.here, pair.there
    text = f"{here.name}: {count(len(here.done), 'run')} here, {len(there.done)} there"
    if same.empty:
        return f"{text}; none has the same signature, so means are compared."
    unequal = [f"{run.arm} seed {run.seed}" for run in same[~same["bits"]].itertuples()]
    text += f"; {len(same)} of the same signature, {len(same) - len(unequal)} of them with equal journals, bit for bit"
    one_kind, kinds = kinds_of_cpu(
        *(side.done[side.done["signature"].isin(same["signature"])] for side in (here, there))
    )
    if not unequal:
        return f"{text}; {kinds}."
    return f"{text}; {listing(unequal, 3)} differ; {kinds}{f', {SHOULD_NOT}' if one_kind else ''}. {BITS}"


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


def _shown(rows: Sequence[Row]) -> str:
    columns = {
        "variant": [row.variant for row in rows],
        "quantity": [row.quantity for row in rows],
        "here": [number(row.here) for row in rows],
        "there": [number(row.there) for row in rows],
        "difference [95%]": [estimate(*row.difference[:3], signed) for row in rows],
        "margin": [f"±{number(row.margin)}" if row.margin else NONE for row in rows],
        "runs": [row.difference.n for row in rows],
        "how": [row.how for row in rows],
        "Holm p": [probability(row.difference.p) for row in rows],
        "verdict": [row.verdict for row in rows],
    }
    return markdown_table(pd.DataFrame(columns))
