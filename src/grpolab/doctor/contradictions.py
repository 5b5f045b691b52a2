"""Numbers of a log that contradict each other: identities that hold whatever a run does.

Rows may be means over several steps, so only what a mean keeps is asked: orders, and sums of products with a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from grpolab.doctor.causes import Finding, certain, likely, rule
from grpolab.doctor.evidence import MOST, Evidence
from grpolab.framework_names import LOG_NAMES
from grpolab.report.text import count, number

# The first is never above the second.
ORDERS = [
    *((f"{of}/min", f"{of}/mean") for of in ("length", "reward")),
    *((f"{of}/mean", f"{of}/max") for of in ("length", "reward")),
    *(("ratio/token_min", "ratio/token_mean"), ("ratio/token_mean", "ratio/token_max")),
    *(("clip/active_low", "clip/active"), ("clip/active_high", "clip/active")),
]
ROUNDED = 0.01  # relative, and a fifth of it absolute: logs have three digits or more
BROKEN = 0.5  # share of the rows with both numbers
FEW = 5  # rows
ABOUT = 0.9  # of the cap: an end token or a prompt's tokens may be counted with it
SPREAD = 16  # tokens from the mean length to the largest, over which the largest of a batch is not the same by chance
NEGATIVE = -0.1  # nat: bfloat16 rounds logits of 30 by that


class Contradiction(NamedTuple):
    """A pair of numbers that cannot both hold."""

    side: str
    says: str
    rows: pd.Series  # by rollout step: whether it is broken there
    is_certain: bool


def find_contradictions(run: Evidence) -> Iterator[Contradiction]:
    """Yield the contradictions in a log, the most telling first. Names that are read by likeness promise nothing."""
    if not _has_our_names(run):
        return
    yield from _lengths(run)
    for low, high in ORDERS:
        a, b = _columns(run, low, high)
        yield from _broken("", f"{low} is above {high}", a > b + _slack(a, b), (a, b))
    (entropy,) = _columns(run, "entropy/behaviour")
    yield from _broken("negative", "entropy/behaviour is below 0", entropy < NEGATIVE, (entropy,))
    spread, share = _columns(run, "reward/std", "zero_variance/share")
    says = "reward/std is 0, so all rewards are equal, and zero_variance/share is not 1"
    yield from _broken("", says, share < MOST, (spread.where(spread == 0), share))


def _has_our_names(run: Evidence) -> bool:
    return run.framework in LOG_NAMES or run.framework == "grpolab"


def _lengths(run: Evidence) -> Iterator[Contradiction]:
    share, mean, most, least, ended = _columns(
        run, "truncation/share", "length/mean", "length/max", "length/min", "length/terminated_min"
    )
    says = "length/min is below completions/min_terminated_length, although those that are cut off are the longest"
    yield from _broken("left out", says, least < ended - _slack(least, ended), (least, ended))
    says = "truncation/share times length/max, which is the cap if any is cut off, is above length/mean"
    yield from _broken("too short", says, ABOUT * share * most > mean, (share, most, mean), is_certain=False)
    if (cap := run.setting("max_completion_length")) and run.framework == "verl":  # whose rows are one batch each
        says = f"truncation/share is above 0 and no completion has max_completion_length={cap:g} tokens"
        yield from _broken("below the cap", says, most < ABOUT * cap, (share.where(share > 0), most))
    known = (share + most + mean).notna()
    if known.sum() >= FEW and (share[known] == 0).all() and (most - mean)[known].median() > SPREAD:
        says, is_capped = "truncation/share is 0, and length/max the same number: a cap", most == most[known].mode()[0]
        if is_capped[known].mean() >= MOST:
            yield from _broken("not seen", says, is_capped, (share, most), is_certain=False)
    if most.nunique() > len(most) / 2 and len(most) >= FEW and (least == most).all():
        says = "length/min is length/max in every row, but not the same from row to row"
        yield from _broken("padding", says, least == most, (least, most), is_certain=False)


def _columns(run: Evidence, *names: str) -> list[pd.Series]:
    """Return metrics of a batch, or of an update, by row; NaN where they are not logged."""
    table = run.updates if names[0] in run.updates else run.rollouts
    empty = pd.Series(np.nan, index=table.index)
    index = table.get("rollout_step", empty)
    return [pd.Series(table.get(name, empty).to_numpy(dtype=np.float64), index=index) for name in names]


def _slack(a: pd.Series, b: pd.Series) -> pd.Series:
    return ROUNDED * np.maximum(np.maximum(a.abs(), b.abs()), 0.2)


def _broken(
    side: str, says: str, rows: pd.Series, values: tuple[pd.Series, ...], is_certain: bool = True
) -> Iterator[Contradiction]:
    """Yield the contradiction if at least half of the rows with these values have it, with the values of the first."""
    known = ~np.isnan([value.to_numpy() for value in values]).any(axis=0)
    broken = rows.to_numpy()[known]
    if broken.any() and broken.mean() >= BROKEN:  # few runs come here
        table = pd.concat([rows, *values], axis=1, ignore_index=True)[known]
        rows = table[0].astype(bool)
        step, (_, *first) = rows.idxmax(), table[rows].iloc[0]
        numbers = ", ".join(number(float(value)) for value in first)
        says = f"{says}: in {int(rows.sum())} of {count(len(rows), 'row')}, first at step {step} ({numbers})"
        yield Contradiction(side, says, rows, is_certain)


def lengths_deny_truncation(run: Evidence) -> bool:
    """Return True if completions that count as cut off are too short for that."""
    return _has_our_names(run) and any(one.side in ("too short", "left out") for one in _lengths(run))


@rule
def metrics_contradict(run: Evidence) -> Finding | None:
    """An identity is broken in at least half of the rows that have its numbers."""
    if not (found := list(find_contradictions(run))):
        return None
    first = found[0]
    return (certain if first.is_certain else likely)(*(one.says for one in found), side=first.side)
