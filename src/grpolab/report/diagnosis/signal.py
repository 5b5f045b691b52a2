"""Rules: no gradient, or hardly any."""

from __future__ import annotations

import numpy as np
import pandas as pd

from grpolab.report.columns import column
from grpolab.report.diagnosis.breakdown import collapse
from grpolab.report.diagnosis.evidence import Evidence, middle
from grpolab.report.diagnosis.finding import Finding
from grpolab.report.diagnosis.step import step_fraction
from grpolab.report.diagnosis.thresholds import (
    EQUAL_GROUPS,
    MOST,
    SMALL_FRACTION,
    STARVED_GROUPS,
    STARVED_PART,
    TINY_ADVANTAGE,
)
from grpolab.report.text import number, percent


def constant_reward(run: Evidence) -> Finding | None:
    """From the first batch on all rewards of a group are equal, although its completions differ."""
    equal = column(run.rollouts, "zero_variance/share")
    if not len(equal) or equal[0] < EQUAL_GROUPS or np.mean(equal >= EQUAL_GROUPS) < MOST:
        return None
    different = column(run.rollouts, "completions/unique")
    if len(different) and different[0] <= 1 / float(run.settings.get("num_generations", 1)):
        return None
    evidence = [
        f"all rewards of a group are equal in {percent(equal.mean())} of the groups, from the first batch on",
        f"the mean reward is {number(middle(run.rollouts, 'reward/mean'))},"
        f" the gradient norm {number(middle(run.updates, 'grad_norm'))}",
    ]
    if len(different):
        evidence.append(f"the completions do differ: {percent(different[0])} of a prompt's are distinct at the start")
    return Finding("constant_reward", "certain", tuple(evidence))


def overscaled_advantages(run: Evidence) -> Finding | None:
    """Advantages are a hundredth of the centred rewards or less: no division by a standard deviation does that."""
    reward, advantage = _spread(run.samples)
    if not run.is_still or not reward > 0 or advantage >= TINY_ADVANTAGE * reward:
        return None
    divisor = f"scale_epsilon={run.settings['scale_epsilon']:g}" if "scale_epsilon" in run.settings else "their scale"
    evidence = (
        f"rewards differ by {number(reward)} within a group (root mean square),"
        f" the advantages made of them by {number(advantage)}: look at {divisor}",
        _gradient(run),
    )
    return Finding("overscaled_advantages", "certain", evidence)


def weak_signal(run: Evidence) -> Finding | None:
    """The gradient of a weight, unclipped, is below Adam's epsilon, though the advantages are what the rewards say."""
    norms = column(run.updates, "grad_norm")
    fraction = step_fraction(run, norms)
    if not run.is_still or not fraction < SMALL_FRACTION or overscaled_advantages(run):
        return None
    reward, _ = _spread(run.samples)
    evidence = [_gradient(run), f"Adam then takes about {percent(fraction)} of its full step"]
    if reward > 0:
        evidence.append(f"rewards differ by only {number(reward)} within a group (root mean square)")
    return Finding("weak_signal", "certain", tuple(evidence))


def starving_variance(run: Evidence) -> Finding | None:
    """Nearly all groups of the second half of the run have equal rewards, most of them because nothing is right."""
    start, end = run.ends("zero_variance/share", STARVED_PART)
    wrong = run.ends("zero_variance/all_wrong", STARVED_PART)[1]
    if not end > STARVED_GROUPS or wrong < end / 2 or constant_reward(run):
        return None
    evidence = (
        f"groups with equal rewards: {percent(start)} in the first half of the run, {percent(end)} in the second",
        f"in the second half {percent(wrong)} of the groups are all wrong; the mean reward is"
        f" {number(run.ends('reward/mean', STARVED_PART)[1])}",
    )
    return Finding("starving_variance", "possible" if collapse(run) else "likely", evidence)


def _spread(samples: pd.DataFrame) -> tuple[float, float]:
    """Root mean square of the rewards about their group's mean, and of the advantages; NaN without completions."""
    if samples.empty:
        return np.nan, np.nan
    group = ["rollout_step", "prompt_index"]
    each = samples.drop_duplicates([*group, "sample"])
    centred = each["reward"] - each.groupby(group)["reward"].transform("mean")
    return float(np.sqrt((centred**2).mean())), float(np.sqrt((each["advantage"] ** 2).mean()))


def _gradient(run: Evidence) -> str:
    return (
        f"the gradient norm is {number(middle(run.updates, 'grad_norm'))} (median), over"
        f" {run.weights.count if run.weights else 'all'} weights"
    )
