"""Why does the reward not rise, though nothing breaks down: there is nothing to learn from, or nothing arrives."""

from __future__ import annotations

import numpy as np

from grpolab.doctor.causes import Finding, Question, certain, likely
from grpolab.doctor.evidence import MOST, TRUNCATED, Evidence, Floats, median, trend
from grpolab.report.journals import both, column
from grpolab.report.text import count, number, percent

NO_PROGRESS = Question("Why does the reward not rise?")

SAME = 1e-4  # relative: frameworks divide by a standard deviation + 1e-6 or 1e-4 even where it is 1
NO_BASELINE = ("gae", "remax", "opo", "rloo", "given")  # estimators whose advantage is not a group's business
# Of the spread of rewards within a group (reward/std): a change that no larger one hides behind, at 95%.
UNMOVED = 0.25
FLAT_ROWS = 50  # fewer are a beginning, which may well be flat


@NO_PROGRESS.cause(
    says="Each prompt has a group of one completion: there is nothing to compare it with, and the advantage is the raw"
    " reward. Whatever is rewarded at all is pushed up, good or bad.",
    remedy="Sample several completions per prompt (num_generations, rollout.n: 8 or more).",
)
def group_of_one(run: Evidence) -> Finding | None:
    """The settings say so, or the advantages are the rewards, in their extremes of each batch or token by token."""
    estimator = str(run.settings.get("advantage_estimator", ""))
    if estimator.startswith(NO_BASELINE):
        return None
    evidence = []
    if run.settings.get("num_generations") == 1:
        evidence.append(f"the group has one completion (num_generations=1, advantage_estimator={estimator or '?'})")
    for end in ("max", "min"):
        rewards, advantages = both(run.rollouts, f"reward/{end}", f"advantage/{end}")
        if not _same(rewards, advantages):
            break
    else:
        evidence.append(
            f"the largest and the least advantage are the largest and the least reward in all"
            f" {count(len(rewards), 'row')}, to {number(float(np.abs(advantages - rewards).max()))}"
        )
    rewards, advantages = both(run.samples, "reward", "advantage")
    if _same(rewards, advantages):
        evidence.append(f"the advantage is the reward in all {count(len(rewards), 'token')} that were kept")
    return certain(*evidence) if evidence else None


def _same(rewards: Floats, advantages: Floats) -> bool:
    """Whether some reward is not 0, and each advantage is its reward."""
    size = np.abs(rewards).max(initial=0)
    return bool(size > 0 and np.abs(advantages - rewards).max() <= SAME * size)


@NO_PROGRESS.cause(
    says="Most completions are cut off at max_completion_length from the first steps on: they end before their answer,"
    " and what is rewarded is the beginning.",
    remedy="Raise max_completion_length, shorten what the prompt asks for, or check that the end token is known (chat"
    " template, eos_token_id).",
)
def truncated_from_the_start(run: Evidence) -> Finding | None:
    """More than half are cut off at the start and at the end of the run."""
    start, end = run.ends("truncation/share")
    shortest, longest = both(run.rollouts, "length/min", "length/max")
    if np.isnan(end) and len(longest) > 1 and (shortest == longest).all() and len(set(longest)) == 1:
        return likely(f"all completions of all {count(len(longest), 'row')} have {number(longest[0])} tokens: a cap")
    if not min(start, end) > TRUNCATED:
        return None
    shares = column(run.rollouts, "truncation/share")
    evidence = [
        f"{percent(start)} of the completions are cut off at the start and {percent(end)} at the end, more than half in"
        f" {int((shares > TRUNCATED).sum())} of {count(len(shares), 'row')}",
        f"their mean length is {number(median(run.rollouts, 'length/mean'))} tokens (median)",
    ]
    return (certain if np.mean(shares > TRUNCATED) >= MOST else likely)(*evidence)


@NO_PROGRESS.cause(
    says="Rewards differ within the groups, and yet the gradient is exactly 0: what is trained is not what makes the"
    " loss.",
    remedy="Check what the loss masks (truncated completions, the completion mask), that the trained parameters need a"
    " gradient (LoRA attached, nothing detached), and that offloading keeps it.",
)
def zero_gradient(run: Evidence) -> Finding | None:
    """The gradient is 0 in nearly all updates, although rewards of a group differ and not all are cut off."""
    norms, spread = column(run.updates, "grad_norm"), column(run.rollouts, "reward/std")
    equal = run.equal_groups
    differ = len(spread) > 0 and bool(np.median(spread) > 0) and (not len(equal) or bool(np.median(equal) < 1))
    if not len(norms) or np.mean(norms == 0) < MOST or not differ:
        return None
    rows = int((norms == 0).sum())
    return certain(
        f"the gradient norm is 0 in {rows} of {count(len(norms), 'row')}",
        f"rewards differ by {number(float(np.median(spread)))} (median standard deviation)"
        + (f"; {percent(float(np.median(equal)))} of the groups have equal ones" if len(equal) else ""),
    )


@NO_PROGRESS.cause(
    says="The reward stands still: over the whole run it moved by less than a quarter of what rewards differ by within"
    " a group, although groups do differ.",
    remedy="Check that the reward depends on what the policy can change; then a larger learning rate, more completions"
    " per prompt, or prompts of another difficulty.",
)
def plateau(run: Evidence) -> Finding | None:
    """The trend of the reward is known to be small: its 95% interval lies within a quarter of reward/std.

    A mere 'not significant' would accuse every short or noisy run. Where it was evaluated, the accuracy did not rise.
    """
    rewards, spread = column(run.rollouts, "reward/mean"), median(run.rollouts, "reward/std")
    if len(rewards) < FLAT_ROWS or not spread > 0 or run.is_still:
        return None
    metric, score = run.score
    if metric != "reward/mean" and (rise := trend(score))[0] > 2 * rise[1]:
        return None
    change, error = trend(rewards)
    if not abs(change) + 2 * error < UNMOVED * spread:
        return None
    evidence = [
        f"reward/mean changed by {number(change)} ± {number(2 * error)} over {count(len(rewards), 'row')} (mean"
        f" {number(float(rewards.mean()))}), where rewards differ by {number(spread)} (median reward/std)"
    ]
    sizes = {"largest learning rate": run.peak_rate, "median gradient norm": median(run.updates, "grad_norm")}
    if told := [f"{name} {number(size)}" for name, size in sizes.items() if not np.isnan(size)]:
        evidence.append(", ".join(told))
    return Finding("possible", tuple(evidence))
