"""Curves of every run of some studies, in text that is short enough for a page.

A curve has a value a rollout step. Of several updates in one step, extremes keep their extreme and everything else is
the mean, as in the figures. Where all curves together are too long, every k-th step stays, and of each metric its least
and its largest value besides.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from grpolab.meanings import METRICS
from grpolab.report.load import StudyRuns

CHARACTERS = 4  # of a number in `to_text`
MOST_EXACT = 2**16  # the first whole number that its 16 bits of precision may round
X_AXES = ("rollout_step", "optimizer_step", "completions", "tokens", "seconds")
_KEYS = ["signature", "rollout_step"]
_NOT_SHOWN = {"time_ms", "iteration", "minibatch", *X_AXES}
Curve = dict[str, Any]


def to_text(values: ArrayLike) -> str:
    """Return numbers in base64: the upper 24 bits of each one's float32 (4.5 digits), big-endian; NaN is absent."""
    return base64.b64encode(_upper_bytes(values).tobytes()).decode()


def _upper_bytes(values: ArrayLike) -> NDArray[np.uint8]:
    """Return the three upper bytes of each number, rounded to nearest; shape (..., 3)."""
    numbers = np.ascontiguousarray(values, dtype=np.float32)
    bits = numbers.view(np.uint32).astype(np.uint64)
    bits = np.where(np.isfinite(numbers), bits + 0x7F + ((bits >> np.uint64(8)) & np.uint64(1)), bits)
    upper = (bits >> np.uint64(8)).astype(">u4")
    return upper.view(np.uint8).reshape(*numbers.shape, 4)[..., 1:]


def how_joined(metric: str) -> str:
    """Return how the updates of a rollout step become one value: mean, max or min, as figures have it."""
    end = metric.rpartition("/")[2]
    return "max" if metric == "grad_norm" or "_max" in end else "min" if "_min" in end else "mean"


def every(studies: Sequence[StudyRuns], characters: int) -> int:
    """Return k of `every k-th rollout step`: the least with which the curves fit into so many characters."""
    numbers: dict[tuple[str, str], int] = {}  # of a run, which several studies may share, and a table
    for study in studies:
        steps = study.rollouts.groupby("signature").size()
        for name in ("updates", "rollouts", "timings"):
            table = getattr(study, name)
            present = table[["signature", *_metrics(table)]].groupby("signature").any().sum(axis=1)
            numbers |= {(str(run), name): int(steps.get(run, 0) * metrics) for run, metrics in present.items()}
    return max(1, -(-CHARACTERS * sum(numbers.values()) // characters))


def of_runs(study: StudyRuns, k: int, without: Container[str] = ()) -> Iterator[tuple[str, Curve, Curve]]:
    """Yield signature, training curves (none where only evaluations are kept) and evaluations of each run."""
    by_run = dict(iter(_by_step(study).groupby("signature", sort=False)))
    evaluations = dict(iter(study.evaluations.groupby("signature", sort=False)))
    for signature in dict.fromkeys(study.cells["signature"]):
        if signature in without or not (signature in by_run or signature in evaluations):
            continue
        steps, scores = (of.get(signature, pd.DataFrame()) for of in (by_run, evaluations))
        yield signature, _thinned(steps, k), _curve(scores, int(scores.get("carried", pd.Series(dtype=bool)).sum()))


def _by_step(study: StudyRuns) -> pd.DataFrame:
    """Return a row for each run and rollout step: rollouts, its updates joined, and times."""
    names = _metrics(study.updates)
    joined = study.updates.groupby(_KEYS, sort=False).agg({name: how_joined(name) for name in names})
    steps = study.rollouts.set_index(_KEYS)
    steps = steps.join(
        joined[joined.columns.difference(steps.columns, sort=False)], how="outer" if len(joined) else "left"
    )
    if "seconds/elapsed" in study.timings:
        times = study.timings.set_index(_KEYS)
        steps = steps.join(times[_metrics(times)])
        steps["seconds"] = steps["seconds/elapsed"]
    if {"completions", "length/mean"} <= set(steps):
        sampled = steps.groupby("signature", sort=False)["completions"].diff().fillna(steps["completions"])
        steps["tokens"] = (sampled * steps["length/mean"]).groupby("signature", sort=False).cumsum()
    return steps.reset_index().sort_values(_KEYS, ignore_index=True)


def _metrics(table: pd.DataFrame) -> list[str]:
    return [name for name in table if name in METRICS and name not in _NOT_SHOWN]


def _curve(rows: pd.DataFrame, carried: int = 0) -> Curve:
    """Return the numbers of rows: positions as `x`, metrics as `y`; a metric without a value is left out.

    One that never changes is one number.
    """
    axes, metrics = [name for name in X_AXES if name in rows], _metrics(rows)
    values_MT = rows[[*axes, *metrics]].to_numpy(dtype=np.float32).T
    texts = (base64.b64encode(of.tobytes()).decode() for of in _upper_bytes(values_MT))
    curves: Curve = {"x": {}, "y": {}}
    for name, values, text in zip([*axes, *metrics], values_MT, texts, strict=True):
        if name in metrics and (values == values[:1]).all():
            curves["y"][name] = float(f"{values[0]:.5g}") if len(values) else text
        elif not np.isnan(values).all():
            exact = name in axes and np.nanmax(values) >= MOST_EXACT
            curves["y" if name in metrics else "x"][name] = rows[name].tolist() if exact else text
    return curves | ({"carried": carried} if carried else {})


def _thinned(rows: pd.DataFrame, k: int) -> Curve:
    """Return every k-th row and the last one as a curve, with the peaks that this leaves out."""
    if k == 1 or rows.empty:
        return _curve(rows)
    kept = (rows["rollout_step"] % k == 0).to_numpy(copy=True)
    kept[-1] = True
    curve = _curve(rows[kept])
    steps, names, peaks = rows["rollout_step"].to_numpy(), list(curve["y"]), dict[str, list[list[float]]]()
    values_MT = rows[names].to_numpy(dtype=np.float32).T
    ends_2M = (of(values_MT, axis=1) for of in (np.nanargmin, np.nanargmax)) if names else ([], [])
    for name, values, *places in zip(names, values_MT, *ends_2M, strict=True):
        if left_out := [[int(steps[at]), float(f"{values[at]:.5g}")] for at in sorted({*places}) if not kept[at]]:
            peaks[name] = left_out
    return curve | {"peaks": peaks}
