"""Whether a new sweep agrees with another outcome: bit for bit where a run is the same one, else within intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.report.load import Study, load
from grpolab.report.measures import at, measure
from grpolab.report.reference import outcome_at, studies_of
from grpolab.report.stability import count_lost, stability_table
from grpolab.report.statistics import Difference, fisher, holm, paired_difference, welch_difference, wilson
from grpolab.report.text import count, estimate, listing, markdown_table, number, probability, signed

ALPHA = 0.05
QUANTITIES = ("final_score", "clip/active", "entropy_last")  # and how many runs were lost
EQUAL, AGREES, DIFFERS, OPEN = "bit-equal", "agrees", "DIFFERS", "too few runs"
HARDWARE = "other hardware or packages can do that, so the intervals decide"


@dataclass(frozen=True)
class Row:
    """One quantity of one variant in both outcomes. `how`: paired by seed, unpaired, counted, or the same bits."""

    variant: str
    quantity: str
    here: float
    there: float
    difference: Difference
    how: str
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


def compare(results: Results, folder: Path, study: str | None = None) -> tuple[str, bool]:
    """What there is to say of the studies that both know (of `study` alone), and whether the outcomes agree.

    `folder` is a results folder or an exported reference. Raises RequestError where nothing can be compared.
    """
    other = outcome_at(folder)
    names = _shared(results, other, study)
    pairs = [Pair(load(results, name)[-1], load(other, name)[-1]) for name in names]
    rows = _judged([row for pair in pairs for variant in pair.variants for row in _rows(pair, *variant)])
    if not rows:
        raise RequestError(f"FOLDER={folder}: no variant of {', '.join(names)} has a result both there and here")
    unequal = [row for row in rows if row.verdict != EQUAL]
    differ = sum(row.verdict == DIFFERS for row in rows)
    tested = sum(row.verdict in (AGREES, DIFFERS) for row in rows)
    end = f"{differ} of {count(tested, 'test')} differ (Holm over all of them, p < {ALPHA:g})."
    return "\n\n".join([*map(_summary, pairs), *([_shown(unequal)] if unequal else []), end]), not differ


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
            yield Row(name, quantity, float(own.mean()), float(other.mean()), difference, how)
    if how != "bits":
        yield _lost(pair, facet, arm, name)


def _lost(pair: Pair, facet: str, arm: str, name: str) -> Row:
    """Runs that collapsed, diverged or were stopped: counts, so Fisher's exact test."""
    counts = [count_lost(stability_table(study), facet, arm) for study in (pair.here, pair.there)]
    own, other = (wilson(*runs) for runs in counts)
    nothing = float("nan")
    p, n = fisher(*counts[0], *counts[1]), min(own.n, other.n)
    return Row(name, "lost", own.mean, other.mean, Difference(own.mean - other.mean, nothing, nothing, p, n), "counts")


def _judged(rows: Sequence[Row]) -> list[Row]:
    """Each row with its verdict: Holm's correction over all that is not equal to the bit."""
    unequal = [row for row in rows if row.how != "bits"]
    adjusted = dict(zip(map(id, unequal), holm([row.difference.p for row in unequal]), strict=True))
    return [_with_verdict(row, adjusted[id(row)]) if row.how != "bits" else row for row in rows]


def _with_verdict(row: Row, p: float) -> Row:
    verdict = OPEN if pd.isna(p) else DIFFERS if p < ALPHA else AGREES
    return replace(row, verdict=verdict, difference=row.difference._replace(p=p))


def _summary(pair: Pair) -> str:
    """How many runs are the same ones, and which of them are not the same to the bit."""
    same, here, there = pair.same, pair.here, pair.there
    text = f"{here.name}: {count(len(here.done), 'run')} here, {len(there.done)} there"
    if same.empty:
        return f"{text}; none has the same signature, so means are compared."
    unequal = [f"{run.arm} seed {run.seed}" for run in same[~same["bits"]].itertuples()]
    text += f"; {len(same)} of the same signature, {len(same) - len(unequal)} of them with equal journals, bit for bit"
    return f"{text}; {listing(unequal, 3)} differ: {HARDWARE}." if unequal else f"{text}."


def _shown(rows: Sequence[Row]) -> str:
    columns = {
        "variant": [row.variant for row in rows],
        "quantity": [row.quantity for row in rows],
        "here": [number(row.here) for row in rows],
        "there": [number(row.there) for row in rows],
        "difference [95%]": [estimate(*row.difference[:3], signed) for row in rows],
        "runs": [row.difference.n for row in rows],
        "how": [row.how for row in rows],
        "Holm p": [probability(row.difference.p) for row in rows],
        "verdict": [row.verdict for row in rows],
    }
    return markdown_table(pd.DataFrame(columns))
