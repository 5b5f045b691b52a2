"""The cost of a finding: the part of the run that it affects, the step where it begins, and the hours spent there.

A cause's `cost` in `causes.yaml` is the sentence. It leads the finding, and is left out where no number says it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
from grpolab.doctor.sampler_gap import FAR, GAPS, LOST_SIGNAL
from grpolab.quantities import Thresholds
from grpolab.report.journals import collapse_place
from grpolab.report.text import begun, number, percent

EQUAL, ENTROPY = "zero_variance/share", "entropy/behaviour"
MOSTLY = 0.5  # share of a row that counts as the row
LONG = 100  # minutes: more are given in hours
NOWHERE = pd.Series(dtype=np.float64)
# The share of each row that a finding concerns, by rollout step; empty where the run does not say it.
Concerned = Callable[[Evidence], pd.Series]


def _rows(run: Evidence, metric: str) -> pd.Series:
    """Return a metric's values by rollout step; empty if it is not logged."""
    for table in (run.updates, run.rollouts):
        if metric in table and table[metric].notna().any():
            return table.set_index("rollout_step")[metric].dropna()
    return NOWHERE


def _whole(run: Evidence) -> pd.Series:
    return pd.Series(1.0, index=(run.rollouts if len(run.rollouts) else run.updates).get("rollout_step", []))


def _equal_groups(run: Evidence) -> pd.Series:
    """Return the share of equal groups; if it is not logged, the steps whose rewards hardly differ at all."""
    if len(shares := _rows(run, EQUAL)):
        return shares
    if len(spread := _rows(run, "reward/std")):
        return spread <= SPREAD_GONE * run.ends("reward/std")[0]
    least, most = (_rows(run, f"reward/{end}") for end in ("min", "max"))
    return least == most if len(least) == len(most) else NOWHERE


def _cut_off(run: Evidence) -> pd.Series:
    """Return the share of cut off completions; where few are, or it is not logged, whether they are far longer."""
    if (shares := _rows(run, "truncation/share")).max() > TRUNCATED:
        return shares
    long = _rows(run, "length/mean") > LONGER * run.ends("length/mean")[0]
    return long if long.any() else _whole(run)


def _entropy_gone(run: Evidence) -> pd.Series:
    part = ENTROPY_HALVED if run.setting("entropy_coef") < 0 else Thresholds.entropy_ratio
    return _rows(run, ENTROPY) < part * run.ends(ENTROPY)[0]


def _gap(factor: float, run: Evidence) -> pd.Series:
    gaps = (_rows(run, metric) > factor * limit for metric, limit in GAPS.items())
    return next((gap for gap in gaps if gap.any()), NOWHERE)


def _grown(run: Evidence) -> pd.Series:
    norms = run.values("grad_norm")
    return _rows(run, "grad_norm") > GRADIENT_GROWTH * np.median(norms[: len(norms) // 5])


def _other_reference(run: Evidence) -> pd.Series:
    """Return the rows since the KL to the reference fell."""
    values = _rows(run, "kl_ref/k3")
    return pd.Series(np.arange(len(values)) >= find_new_references(run)[0], values.index)


def _odd(run: Evidence) -> pd.Series:
    """Return in which rollout steps a number is not finite; in none if the run only ended so."""
    odd = {step for name in MUST_BE_FINITE for step in run.not_finite.get(name, ())}
    steps = _whole(run).index
    return pd.Series(steps.isin(odd), index=steps)


def _lost(run: Evidence) -> pd.Series:
    """Return the rollout steps since the score fell so far that it is a collapse."""
    if not run.is_collapsed:
        return NOWHERE
    if run.score[0] == REWARD:
        at = [step for step, _ in pieces(run.rollouts)]
    else:
        at = run.evaluations.loc[run.evaluations[run.score[0]].notna(), "rollout_step"].tolist()
    steps = _whole(run).index
    return pd.Series(steps >= at[collapse_place(run.course, run.limits)], index=steps)


CONCERNED: dict[str, Concerned] = {
    **dict.fromkeys(("truncated_from_the_start", "length_blow_up"), _cut_off),
    "zero_gradient": lambda run: _rows(run, "grad_norm") == 0,
    **dict.fromkeys(  # the updates that are not the first on their batch
        ("aliased_old_policy", "resynchronised_old_policy"),
        lambda run: pd.Series(run.updates.index.isin(run.later.index), index=run.updates["rollout_step"]),
    ),
    **dict.fromkeys(("constant_reward", "starving_variance"), _equal_groups),
    "rejection_hits_signal": lambda run: _rows(run, "rejection/signal") >= LOST_SIGNAL,
    "starving_filter": lambda run: _rows(run, "filter/groups") < run.setting("prompts_per_step") / 2,
    "tiny_epsilon": lambda run: _rows(run, "clip/active_nz"),
    **dict.fromkeys(("unclipped", "destroyed_policy"), _lost),
    "kl_overflow": lambda run: _rows(run, "kl_ref/k3") > KL_HUGE,
    "kl_explosion": lambda run: _rows(run, "kl_ref/k3") > KL_FAR,
    "gradient_explosion": _grown,
    "unbounded_cell": lambda run: _rows(run, "ratio/token_max_neg") > CELL_RATIO,
    "entropy_explosion": lambda run: _rows(run, ENTROPY) > Thresholds.entropy_explosion * run.ends(ENTROPY)[0],
    "entropy_collapse": _entropy_gone,
    "growing_sampler_gap": lambda run: _gap(1.0, run),
    **dict.fromkeys(("wide_sampler_gap", "sampler_gap_jump"), lambda run: _gap(FAR, run)),
    "metrics_contradict": lambda run: next((one.rows for one in find_contradictions(run)), NOWHERE),
    "reference_replaced": _other_reference,
    "not_finite": _odd,
}


def add_cost(run: Evidence, finding: Finding, sentence: str) -> Finding:
    """Return the finding with its cost and the step where it begins; `sentence`: of `causes.yaml`, empty for none."""
    rows = CONCERNED.get(finding.cause, _whole)(run) if sentence else NOWHERE
    if not (share := float(rows.mean())) > 0:
        return finding
    by_step = rows.astype(float).groupby(level=0, sort=False).mean()
    concerned = by_step.to_numpy() > min(MOSTLY, by_step.max() / 2)
    places = np.flatnonzero(concerned)
    left = np.cumsum(concerned[::-1])[::-1] / np.arange(len(concerned), 0, -1)
    # The first place since which nearly all are concerned, else the first that is.
    first, last = next((place for place in places if left[place] >= MOST), places[0]), places[-1]
    since, until = int(by_step.index[first]), int(by_step.index[last])
    words = f"since step {since}" if first else "from the first step on"
    if last < len(by_step) - 1:
        words = f"from step {since} to step {until}"
    time = say_duration(share * run.seconds)
    part = f"{'the whole' if share == 1 else f'{percent(share)} of the'} run{time}"
    equal = "groups all rewards were equal" if EQUAL in run.rollouts else "steps rewards hardly differed"
    said = begun(sentence.format(share=percent(share), part=part, time=time, since=words, equal=equal))
    return replace(finding, cost=said, step=since)


def say_duration(seconds: float) -> str:
    """Return ` (about 3.4 hours)`; empty if it is not known, or less than a minute."""
    if not seconds >= 60:
        return ""
    minutes = seconds / 60
    return f" (about {number(minutes)} minutes)" if minutes < LONG else f" (about {number(minutes / 60)} hours)"
