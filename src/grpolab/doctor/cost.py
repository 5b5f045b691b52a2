"""The cost of a finding: the part of the run that it affects, the step where it begins, and the hours spent there.

A cause's `cost` in `causes.yaml` is the sentence. It leads the finding, and is left out where no number says it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from grpolab.doctor.breakdown import (
    CELL_RATIO,
    ENTROPY_HALVED,
    GRADIENT_GROWTH,
    KL_FAR,
    KL_HUGE,
    LONGER,
    MUST_BE_FINITE,
    SPREAD_GONE,
    find_new_references,
)
from grpolab.doctor.causes import Finding
from grpolab.doctor.contradictions import find_contradictions
from grpolab.doctor.evidence import MOST, REWARD, TRUNCATED, Evidence, pieces
from grpolab.doctor.sampler_gap import FAR, GAPS
from grpolab.quantities import Thresholds
from grpolab.report.journals import collapse_place
from grpolab.report.text import begun, number, percent

EQUAL = "zero_variance/share"
MOSTLY = 0.5  # share of a row that counts as the row
LONG = 100  # minutes: more are given in hours
# The share of each row that a finding concerns, by rollout step; None where the run does not say it.
Concerned = Callable[[Evidence], pd.Series | None]


def _rows(run: Evidence, metric: str) -> pd.Series | None:
    """Return a metric's values by rollout step; None if it is not logged."""
    for table in (run.updates, run.rollouts):
        if metric in table and table[metric].notna().any():
            return table.set_index("rollout_step")[metric].dropna()
    return None


def _whole(run: Evidence) -> pd.Series | None:
    steps = (run.rollouts if len(run.rollouts) else run.updates).get("rollout_step")
    return None if steps is None else pd.Series(1.0, index=steps)


def _equal_groups(run: Evidence) -> pd.Series | None:
    """Return the share of equal groups; if it is not logged, the steps whose rewards hardly differ at all."""
    if (shares := _rows(run, EQUAL)) is not None:
        return shares
    if (spread := _rows(run, "reward/std")) is not None:
        return spread <= SPREAD_GONE * run.ends("reward/std")[0]
    least, most = (_rows(run, f"reward/{end}") for end in ("min", "max"))
    return None if least is None or most is None or len(least) != len(most) else least == most


def _cut_off(run: Evidence) -> pd.Series | None:
    """Return the share of cut off completions; where few are, or it is not logged, whether they are far longer."""
    shares, lengths = _rows(run, "truncation/share"), _rows(run, "length/mean")
    if shares is not None and shares.max() > TRUNCATED:
        return shares
    long = None if lengths is None else lengths > LONGER * run.ends("length/mean")[0]
    return long if long is not None and long.any() else _whole(run)


def _above(metric: str, limit: Callable[[Evidence], float], run: Evidence) -> pd.Series | None:
    values = _rows(run, metric)
    return None if values is None else values > limit(run)


def _entropy_gone(run: Evidence) -> pd.Series | None:
    values = _rows(run, "entropy/behaviour")
    part = ENTROPY_HALVED if run.setting("entropy_coef") < 0 else Thresholds.entropy_ratio
    return None if values is None else values < part * run.ends("entropy/behaviour")[0]


def _no_gradient(run: Evidence) -> pd.Series | None:
    values = _rows(run, "grad_norm")
    return None if values is None else values == 0


def _reused(run: Evidence) -> pd.Series | None:
    """Return which updates are not the first on their batch."""
    return pd.Series(run.updates.index.isin(run.later.index), index=run.updates["rollout_step"])


def _gap(factor: float, run: Evidence) -> pd.Series | None:
    gaps = (_above(metric, _to(factor * limit), run) for metric, limit in GAPS.items())
    return next((gap for gap in gaps if gap is not None and gap.any()), None)


def _other_reference(run: Evidence) -> pd.Series | None:
    """Return the rows since the KL to the reference fell."""
    values = _rows(run, "kl_ref/k3")
    return None if values is None else pd.Series(np.arange(len(values)) >= find_new_references(run)[0], values.index)


def _odd(run: Evidence) -> pd.Series | None:
    """Return in which rollout steps a number is not finite; in none if the run only ended so."""
    odd = {step for name in MUST_BE_FINITE for step in run.not_finite.get(name, ())}
    steps = _whole(run)
    return None if steps is None or not odd else pd.Series(steps.index.isin(odd), index=steps.index)


def _lost(run: Evidence) -> pd.Series | None:
    """Return the rollout steps since the score fell so far that it is a collapse."""
    steps = _whole(run)
    if steps is None or not run.is_collapsed:
        return None
    if run.score[0] == REWARD:
        at = [step for step, _ in pieces(run.rollouts)]
    else:
        at = run.evaluations.loc[run.evaluations[run.score[0]].notna(), "rollout_step"].tolist()
    return pd.Series(steps.index >= at[collapse_place(run.course, run.limits)], index=steps.index)


def _first_norm(run: Evidence) -> float:
    norms = run.values("grad_norm")
    return GRADIENT_GROWTH * float(np.median(norms[: max(1, len(norms) // 5)]))


def _to(limit: float) -> Callable[[Evidence], float]:
    return lambda _: limit


CONCERNED: dict[str, Concerned] = {
    "truncated_from_the_start": _cut_off,
    "length_blow_up": _cut_off,
    "zero_gradient": _no_gradient,
    **dict.fromkeys(("aliased_old_policy", "resynchronised_old_policy"), _reused),
    **dict.fromkeys(("constant_reward", "starving_variance"), _equal_groups),
    "tiny_epsilon": lambda run: _rows(run, "clip/active_nz"),
    **dict.fromkeys(("unclipped", "destroyed_policy"), _lost),
    "kl_overflow": partial(_above, "kl_ref/k3", _to(KL_HUGE)),
    "kl_explosion": partial(_above, "kl_ref/k3", _to(KL_FAR)),
    "gradient_explosion": partial(_above, "grad_norm", _first_norm),
    "unbounded_cell": partial(_above, "ratio/token_max_neg", _to(CELL_RATIO)),
    "entropy_explosion": partial(
        _above, "entropy/behaviour", lambda run: Thresholds.entropy_explosion * run.ends("entropy/behaviour")[0]
    ),
    "entropy_collapse": _entropy_gone,
    "growing_sampler_gap": partial(_gap, 1.0),
    **dict.fromkeys(("wide_sampler_gap", "sampler_gap_jump"), partial(_gap, FAR)),
    "metrics_contradict": lambda run: next((one.rows for one in find_contradictions(run)), None),
    "reference_replaced": _other_reference,
    "not_finite": _odd,
}


def add_cost(run: Evidence, finding: Finding, sentence: str) -> Finding:
    """Return the finding with its cost and the step where it begins; `sentence`: of `causes.yaml`, empty for none."""
    rows = CONCERNED.get(finding.cause, _whole)(run) if sentence else None
    if rows is None or not len(rows) or not (share := float(rows.mean())) > 0:
        return finding
    by_step = rows.astype(float).groupby(level=0, sort=False).mean()
    first, last = _span(by_step.to_numpy() > min(MOSTLY, by_step.max() / 2))
    since, until = int(by_step.index[first]), int(by_step.index[last])
    words = f"since step {since}" if first else "from the first step on"
    if last < len(by_step) - 1:
        words = f"from step {since} to step {until}"
    time = say_duration(share * run.seconds)
    part = f"{'the whole' if share == 1 else f'{percent(share)} of the'} run{time}"
    equal = "groups all rewards were equal" if EQUAL in run.rollouts else "steps rewards hardly differed"
    said = begun(sentence.format(share=percent(share), part=part, time=time, since=words, equal=equal))
    return replace(finding, cost=said, step=since)


def _span(concerned: np.ndarray) -> tuple[int, int]:
    """Return the first place since which nearly all are concerned, else the first that is, and the last."""
    places = np.flatnonzero(concerned)
    left = np.cumsum(concerned[::-1])[::-1] / np.arange(len(concerned), 0, -1)
    lasting = [place for place in places if left[place] >= MOST]
    return int((lasting or places)[0]), int(places[-1])


def say_duration(seconds: float) -> str:
    """Return ` (about 3.4 hours)`; empty if it is not known, or less than a minute."""
    if not seconds >= 60:
        return ""
    minutes = seconds / 60
    return f" (about {number(minutes)} minutes)" if minutes < LONG else f" (about {number(minutes / 60)} hours)"
