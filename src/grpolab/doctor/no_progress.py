"""Causes of a reward that does not rise although nothing breaks down: no signal, or no gradient from it."""

from __future__ import annotations

import numpy as np

from grpolab.doctor.causes import Finding, certain, likely, possible, rule
from grpolab.doctor.contradictions import lengths_deny_truncation
from grpolab.doctor.evidence import MOST, REWARD, TRUNCATED, Evidence, Floats, median, trend
from grpolab.report.journals import both
from grpolab.report.text import count, number, percent

SAME = 1e-4  # relative: frameworks divide by a standard deviation + 1e-6 or 1e-4 even where it is 1
NO_BASELINE = ("gae", "remax", "opo", "rloo", "given")  # estimators that do not subtract a group's mean
# Share of the rewards' std (reward/std): the reward is flat if the 95% interval of its change lies within it.
UNMOVED = 0.25
ALL_OF_THEM = 0.99  # share of completions cut off; if sampling can stop at an end token, some end by chance
FEW_ROWS = 5
FLAT_ROWS = 50  # rows of a log; a shorter run may simply not have started to learn


@rule
def group_of_one(run: Evidence) -> Finding | None:
    """The settings say so, or advantages equal rewards: their extremes in each batch, or token by token."""
    estimator = str(run.settings.get("advantage_estimator", ""))
    if estimator.startswith(NO_BASELINE):
        return None
    size, stated = run.settings.get("num_generations"), f"advantage_estimator={estimator or '?'}"
    extremes = [both(run.rollouts, f"reward/{end}", f"advantage/{end}") for end in ("max", "min")]
    rewards, advantages = extremes[-1]
    tokens = both(run.samples, "reward", "advantage")
    evidence = []
    if size == 1:
        evidence.append(f"the group has one completion (num_generations=1, {stated})")
    if all(_are_same(*pair) for pair in extremes):
        evidence.append(
            f"the largest and the least advantage are the largest and the least reward in all"
            f" {count(len(rewards), 'row')}, to {number(float(np.abs(advantages - rewards).max()))}"
        )
    if _are_same(*tokens):
        evidence.append(f"the advantage is the reward in all {count(len(tokens[0]), 'token')} that were kept")
    if not evidence or not size:
        return certain(*evidence) if evidence else None
    if size == 1:
        return certain(*evidence, side="alone")
    return certain(f"num_generations={size:g}, {stated}", *evidence, side="not centred")


def _are_same(rewards: Floats, advantages: Floats) -> bool:
    """Return True if each advantage equals its reward, and some reward is not 0."""
    size = np.abs(rewards).max(initial=0)
    return bool(size > 0 and np.abs(advantages - rewards).max() <= SAME * size)


@rule
def truncated_from_the_start(run: Evidence) -> Finding | None:
    """More than half of the completions are cut off, at the start and at the end of the run."""
    start, end = run.ends("truncation/share")
    shortest, longest = both(run.rollouts, "length/min", "length/max")
    if np.isnan(end) and len(longest) > 1 and (shortest == longest).all() and len(set(longest)) == 1:
        rows = count(len(longest), "row")
        return likely(f"all completions of all {rows} have {number(longest[0])} tokens: a cap", side="none ends")
    if not min(start, end) > TRUNCATED or lengths_deny_truncation(run):
        return None
    shares = run.values("truncation/share")
    return (certain if np.mean(shares > TRUNCATED) >= MOST else likely)(
        f"{percent(start)} of the completions are cut off at the start and {percent(end)} at the end, more than half in"
        f" {int((shares > TRUNCATED).sum())} of {count(len(shares), 'row')}",
        f"their mean length is {number(run.median('length/mean'))} tokens (median)",
        side="none ends" if np.median(shares) >= ALL_OF_THEM else "some end",
    )


@rule
def zero_gradient(run: Evidence) -> Finding | None:
    """The gradient is 0 in nearly all updates, although rewards differ within groups."""
    norms, spread, equal = run.values("grad_norm"), run.median("reward/std"), median(run.equal_groups)
    if not len(norms) or np.mean(norms == 0) < MOST or not spread > 0 or equal >= 1:
        return None
    cut_off = run.median("truncation/share")
    return certain(
        f"the gradient norm is 0 in {int((norms == 0).sum())} of {count(len(norms), 'row')}",
        "" if np.isnan(cut_off) else f"{percent(cut_off)} of the completions are cut off (median)",
        f"rewards differ by {number(spread)} (median standard deviation)"
        + ("" if np.isnan(equal) else f"; {percent(equal)} of the groups have equal ones"),
        side="" if np.isnan(cut_off) else "all cut off" if cut_off >= ALL_OF_THEM else "some end",
    )


@rule
def reward_hides_parts(run: Evidence) -> Finding | None:
    """The mean reward is one number in every row, and a part of it is not."""
    for name, (part, reward) in run.reward_parts.items():
        reaches = [np.ptp(values) > SAME * np.abs(values).max() for values in (part, reward) if len(part) >= FEW_ROWS]
        if reaches == [True, False]:
            return likely(
                f"reward/mean is {number(float(reward[0]))} in all {count(len(reward), 'row')}, {name} goes from"
                f" {number(float(part.min()))} to {number(float(part.max()))}"
            )
    return None


@rule
def plateau(run: Evidence) -> Finding | None:
    """The reward is flat, and not only noisy: the 95% interval of its change lies within +-1/4 of reward/std.

    'Not significant' alone would fit every short or noisy run. If accuracy was evaluated, it must not have risen.
    """
    rewards, spread = run.values(REWARD), run.median("reward/std")
    if len(rewards) < FLAT_ROWS or not spread > 0 or run.is_still:
        return None
    metric, score = run.score
    if metric != REWARD and (rise := trend(score))[0] > 2 * rise[1]:
        return None
    change, error = trend(rewards)
    if not abs(change) + 2 * error < UNMOVED * spread:
        return None
    sizes = {"largest learning rate": run.peak_rate, "median gradient norm": run.median("grad_norm")}
    moves = len(run.deviations) > 0  # `is_still` says that it does
    movement = f"the policy does move: on used batches the ratio is off 1 by {number(median(run.deviations))} (median)"
    return possible(
        f"reward/mean changed by {number(change)} ± {number(2 * error)} over {count(len(rewards), 'row')} (mean"
        f" {number(float(rewards.mean()))}), where rewards differ by {number(spread)} (median reward/std)",
        ", ".join(f"{name} {number(size)}" for name, size in sizes.items() if not np.isnan(size)),
        movement if moves else "",
        side="policy moves" if moves else "",
    )
