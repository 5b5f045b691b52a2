"""Compare a run's clip fraction, entropy, KL and length with those of healthy runs with the same objective.

`make_expected.py` makes their table. A run outside of a band is no finding: the sentence says what would explain it.
The learning rate is no key of the table: with each doubling of it, a token ratio's share at 0.2 grew 1.3 to 1.9 times
(medians of a task's runs), which the band holds, and GSPO's hardly changed: any step leaves a range of 3e-4.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from grpolab.doctor.evidence import Evidence
from grpolab.report.journals import mean
from grpolab.report.text import count, listing, number, percent

# Of a row: one ratio per token or per sequence, kernel, clip range below and above 1, updates on a batch, its age
KEYS = ("level", "kernel", "low", "high", "updates", "staleness")
CLOSE = 1.5  # factor between two clip ranges that are still compared
COURSE = 10  # rows of a log: fewer have no beginning and end to compare
ANY = "any"  # level and kernel of the row over all objectives, for a run whose objective is not known
KERNELS = {**dict.fromkeys(("grpo", "dr_grpo", "bnpo", "dapo", "vanilla", "gspo"), "clipped"), "cispo": "cispo"}
LEVELS = {"vanilla": "token", "gspo": "sequence"}  # verl's, whose loss says it
# Level, kernel and range that a log which says none of them is likely to have: GRPO's and GSPO's.
USUAL = [("token", "clipped", 0.2, 0.2), ("sequence", "clipped", 3e-4, 4e-4)]
WHOSE = (
    "Normally: in 90% of healthy runs of ours, which are models of 0.13M to 135M parameters, with short answers and no"
    " KL penalty. A sound run of a large model may lie outside."
)
# What a log may not say of the objective.
_OPEN = {"level": "its ratio level", "kernel": "its loss", "low": "its clip range", "updates": "its updates a batch"}
# Measure -> what it is called, and what would explain a value above and below its band.
MEASURES = {
    "clip": (
        "clip fraction",
        "a larger learning rate, an older batch, or a sampler whose log-probs differ",
        "a smaller learning rate, groups with equal rewards (an advantage of 0 is never clipped), or longer answers",
    ),
    "entropy": (
        "entropy, end over start",
        "few steps, or a policy that turns to noise",
        "many steps, or a policy that grew certain",
    ),
    "kl": ("KL to the start, at the end", "many steps, or a large learning rate", "few steps, or a small rate"),
    "length": ("length, end over start", "a task that longer answers solve", "a task that shorter answers solve"),
}


@dataclass(frozen=True)
class Row:
    """An objective with the bands of its healthy runs (measure -> low, high), or with one number of a paper."""

    keys: Mapping[str, Any]
    bands: Mapping[str, tuple[float, float]]
    runs: int
    tasks: int
    source: str  # of a paper's number; empty for our runs


@dataclass(frozen=True)
class Place:
    """One number of a run and its place in the band; `unknown` if the log does not say which band applies."""

    measure: str
    value: float
    place: Literal["inside", "above", "below", "unknown"]
    says: str
    of: str  # whose band it is; empty if it is unknown


def find_places(run: Evidence) -> tuple[Place, ...]:
    """Return where a run's numbers lie; nothing of a number that is not logged, or of an objective without rows."""
    known = _describe(run)
    lacking = [word for key, word in _OPEN.items() if known[key] is None]
    near = _nearest(known, lacking)
    own = [row for row in near if row.keys["updates"] in (known["updates"], None)]
    is_known = sum(not row.source for row in own) == 1 and not lacking
    clips, places = run.values("clip/capped" if known["kernel"] == "cispo" else "clip/active"), list[Place]()
    if near and len(clips) and known["kernel"] != "ratio":  # which clips nothing
        places.append(_place_clip(mean(clips), own) if is_known else _list_clips(mean(clips), near, lacking))
    of_any = next(row for row in _table() if row.keys["level"] == ANY)
    for measure, other in _other_numbers(run):
        # Runs that are kept as numbers gave their row a clip fraction alone.
        row = own[0] if is_known and measure in own[0].bands else of_any
        if measure == "length" and row is of_any:  # lengths are the task's
            continue
        low, high = row.bands[measure]
        head = f"{MEASURES[measure][0]}: {number(other)}, normally {number(low)} to {number(high)}"
        places.append(_judge(measure, other, (low, high), head, row))
    return tuple(places)


def _nearest(known: Mapping[str, Any], lacking: Sequence[str]) -> list[Row]:
    """Return the rows of an objective, whatever their updates: ours first, with the range that is nearest to its own.

    Of an objective that is not fully known, those of USUAL that it may be.
    """
    rows = [row for row in _table() if row.keys["level"] != ANY and _distance(row, known) <= math.log(CLOSE)]
    if set(lacking) - {_OPEN["updates"]}:
        usual = [dict(zip(KEYS, one, strict=False)) | {"staleness": 0} for one in USUAL]
        return [row for one in usual for row in rows if _distance(row, one) == 0]
    least = min((_distance(row, known) for row in rows if not row.source), default=0.0)
    return [row for row in rows if row.source or _distance(row, known) == least]


def _distance(row: Row, known: Mapping[str, Any]) -> float:
    """Return how far a row's range is from one that is known, in logarithms; infinity for another objective."""
    pairs = [(row.keys[key], known[key]) for key in ("level", "kernel", "staleness")]
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        return math.inf
    ends = ("high",) if row.keys["kernel"] == "cispo" else ("low", "high")
    return sum(_apart(row.keys[end], known[end]) for end in ends)


def _apart(one: float, other: float | None) -> float:
    if other is None or one == other:
        return 0.0
    return abs(math.log(one / other)) if 0 < one < math.inf and 0 < other < math.inf else math.inf


def _describe(run: Evidence) -> dict[str, Any]:
    settings, loss = run.settings, str(run.settings.get("loss_type", ""))
    level = settings.get("importance_sampling_level") or LEVELS.get(loss)
    low, high = (_number(settings.get(key)) for key in ("epsilon", "epsilon_high"))
    passes = [_number(settings.get(key)) for key in ("num_iterations", "num_minibatches")]
    updates = run.updates_per_batch or (passes[0] * passes[1] if passes[0] and passes[1] else None)
    return {
        "level": str(level).partition("_")[0] if level else None,
        "kernel": settings.get("kernel") or KERNELS.get(loss, loss or None),
        **{"low": low, "high": low if high is None else high},
        **{"updates": updates, "staleness": _number(settings.get("staleness")) or 0},
    }


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):  # a config that is printed may say `None`
        return None


def _other_numbers(run: Evidence) -> Iterator[tuple[str, float]]:
    """Yield entropy, KL and length as the table has them; the KL only where nothing holds it."""
    for measure, metric in (("entropy", "entropy/behaviour"), ("length", "length/mean")):
        start, end = run.ends(metric)
        if len(run.values(metric)) >= COURSE and start > 0:
            yield measure, end / start
    divergence = run.values("kl_ref/exact")
    if len(divergence) and run.settings.get("beta") == 0:
        yield "kl", float(divergence[-1])


def _place_clip(value: float, rows: Sequence[Row]) -> Place:
    """Return where a clip fraction lies in the band of its own row, which papers may widen."""
    bands = [row.bands["clip"] for row in rows]
    band = min(low for low, _ in bands), max(high for _, high in bands)
    stated = "; ".join(f"{row.source}: {_span(row.bands['clip'])}" for row in rows if row.source)
    head = f"{_say_clip(value)}, normally {_span(band)}{f' ({stated})' if stated else ''}"
    return _judge("clip", value, band, head, rows[0])


def _list_clips(value: float, rows: Sequence[Row], lacking: Sequence[str]) -> Place:
    why = f"the log does not say {listing(lacking)}" if lacking else "no runs of ours have as many updates a batch"
    parts = []
    for objective, of in groupby([row for row in rows if not row.source], key=lambda row: _name(row, False)):
        shares = (f"{_span(row.bands['clip'])} at {row.keys['updates']:g}" for row in of)
        parts.append(f"{objective}: {', '.join(shares)}")
    says = f"{_say_clip(value)}; {why}. By updates a batch, healthy runs of ours clip, with {'; with '.join(parts)}"
    return Place("clip", value, "unknown", says, of="")


def _say_clip(value: float) -> str:
    return f"clip fraction: {percent(value)} of the tokens (mean)"


def _judge(measure: str, value: float, band: tuple[float, float], head: str, row: Row) -> Place:
    """Return the place of a value; it is inside if it is written as one of the band's ends."""
    _, above, below = MEASURES[measure]
    low, high = band
    of = f"{count(row.runs, 'healthy run')} of ours ({count(row.tasks, 'task')}) with {_name(row)}"
    if low <= value <= high or number(value) in (number(low), number(high)):
        return Place(measure, value, "inside", f"{head}: normal", of)
    place: Literal["above", "below"] = "above" if value > high else "below"
    why = above if place == "above" else below
    return Place(measure, value, place, f"{head}: outside of it, {place}, as with {why}", of)


def _name(row: Row, with_updates: bool = True) -> str:
    """Return `one ratio per token, range 0.2, 4 updates a batch`."""
    keys, low, high = row.keys, row.keys["low"], row.keys["high"]
    if keys["level"] == ANY:
        return "any objective"
    kind = "" if keys["kernel"] == "clipped" else f"{keys['kernel']}, "
    ends = f"{high:g} above" if keys["kernel"] == "cispo" else f"{low:g}" if low == high else f"{low:g} and {high:g}"
    stale = f", batches {keys['staleness']:g} steps old" if keys["staleness"] else ""
    reuse = f", {count(int(keys['updates']), 'update')} a batch" if with_updates else ""
    return f"{kind}one ratio per {keys['level']}, range {ends}{stale}{reuse}"


def _span(band: tuple[float, float]) -> str:
    low, high = (number(100 * end) for end in band)
    return f"{low}%" if low == high else f"{low} to {high}%"


@lru_cache(1)
def _table() -> list[Row]:
    with Path(__file__).with_name("expected.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    return [
        Row(
            keys={key: row[key] if key in ("level", "kernel") else _number(row[key]) for key in KEYS},
            bands={one: (float(row[f"{one}_low"]), float(row[f"{one}_high"])) for one in MEASURES if row[f"{one}_low"]},
            **{name: int(row[name] or 0) for name in ("runs", "tasks")},
            source=row["source"],
        )
        for row in rows
    ]
