"""Why does the reward not rise, though nothing breaks down: there is nothing to learn from, or nothing arrives."""

from __future__ import annotations

import numpy as np

from grpolab.doctor.causes import Finding, Question, certain, likely, possible
from grpolab.doctor.evidence import MOST, TRUNCATED, Evidence, Floats, median, trend
from grpolab.report.journals import both, column
from grpolab.report.text import count, number, percent

NO_PROGRESS = Question("Why does the reward not rise?")

SAME = 1e-4  # relative: frameworks divide by a standard deviation + 1e-6 or 1e-4 even where it is 1
NO_BASELINE = ("gae", "remax", "opo", "rloo", "given")  # estimators whose advantage is not a group's business
# Of the spread of rewards within a group (reward/std): a change that no larger one hides behind, at 95%.
UNMOVED = 0.25
ALL_OF_THEM = 0.99  # share of completions that are cut off: an end token that is known is met by chance now and then
NEVER_ENDS = (
    "No completion ends by itself from the first steps on: each is cut off, and what is rewarded is its beginning."
)
FIND_THE_END = (
    "Check that the end token is known (chat template, eos_token_id) and that the model can write it; then raise"
    " max_completion_length."
)
FLAT_ROWS = 50  # fewer are a beginning, which may well be flat


@NO_PROGRESS.cause(
    says="Completions are compared with nothing: the advantage is the raw reward, as with groups of one. Whatever is"
    " rewarded at all is pushed up, good or bad.",
    remedy="Sample several completions per prompt (num_generations: 8 or more), and subtract their group's mean.",
)
def group_of_one(run: Evidence) -> Finding | None:
    """The settings say so, or the advantages are the rewards, in their extremes of each batch or token by token."""
    estimator = str(run.settings.get("advantage_estimator", ""))
    if estimator.startswith(NO_BASELINE):
        return None
    evidence, size = [], run.settings.get("num_generations")
    if size == 1:
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
    if not evidence:
        return None
    if size == 1:
        return certain(
            *evidence,
            says="Each prompt has a group of one completion: there is nothing to compare it with, and the advantage is"
            " the raw reward, or 0 where its mean is subtracted.",
            remedy="Sample several completions per prompt (num_generations: 8 or more).",
        )
    if size:
        return certain(
            f"num_generations={size:g}, advantage_estimator={estimator or '?'}",
            *evidence,
            says="Nothing is subtracted from the rewards: the advantage is the raw reward, as if each group had one"
            " completion. Whatever is rewarded at all is pushed up, good or bad.",
            remedy="Subtract the group's mean (look at what computes the advantages, and by which key it groups).",
        )
    return certain(*evidence)


def _same(rewards: Floats, advantages: Floats) -> bool:
    """Whether some reward is not 0, and each advantage is its reward."""
    size = np.abs(rewards).max(initial=0)
    return bool(size > 0 and np.abs(advantages - rewards).max() <= SAME * size)


@NO_PROGRESS.cause(
    says="Most completions are cut off at max_completion_length from the first steps on: what is rewarded is their"
    " beginning.",
    remedy="Raise max_completion_length, shorten what the prompt asks for, or check that the end token is known (chat"
    " template, eos_token_id).",
)
def truncated_from_the_start(run: Evidence) -> Finding | None:
    """More than half are cut off at the start and at the end of the run."""
    start, end = run.ends("truncation/share")
    shortest, longest = both(run.rollouts, "length/min", "length/max")
    if np.isnan(end) and len(longest) > 1 and (shortest == longest).all() and len(set(longest)) == 1:
        sentence = f"all completions of all {count(len(longest), 'row')} have {number(longest[0])} tokens: a cap"
        return likely(sentence, says=NEVER_ENDS, remedy=FIND_THE_END)
    if not min(start, end) > TRUNCATED:
        return None
    shares = column(run.rollouts, "truncation/share")
    evidence = [
        f"{percent(start)} of the completions are cut off at the start and {percent(end)} at the end, more than half in"
        f" {int((shares > TRUNCATED).sum())} of {count(len(shares), 'row')}",
        f"their mean length is {number(median(run.rollouts, 'length/mean'))} tokens (median)",
    ]
    finding = certain if np.mean(shares > TRUNCATED) >= MOST else likely
    if np.median(shares) >= ALL_OF_THEM:
        return finding(*evidence, says=NEVER_ENDS, remedy=FIND_THE_END)
    return finding(
        *evidence,
        remedy="Raise max_completion_length, or shorten what the prompt asks for: those that end show that the end"
        " token is known.",
    )


@NO_PROGRESS.cause(
    says="Rewards differ within the groups, and yet the gradient is exactly 0: what is trained is not what makes the"
    " loss, or nothing of it is left.",
    remedy="Check what the loss masks (truncated completions, the completion mask), that the trained parameters need a"
    " gradient (LoRA attached, nothing detached), and that offloading keeps it.",
)
def zero_gradient(run: Evidence) -> Finding | None:
    """The gradient is 0 in nearly all updates, although rewards of a group differ."""
    norms, spread = column(run.updates, "grad_norm"), column(run.rollouts, "reward/std")
    equal = run.equal_groups
    differ = len(spread) > 0 and bool(np.median(spread) > 0) and (not len(equal) or bool(np.median(equal) < 1))
    if not len(norms) or np.mean(norms == 0) < MOST or not differ:
        return None
    rows, cut_off = int((norms == 0).sum()), median(run.rollouts, "truncation/share")
    says = remedy = ""
    if cut_off >= ALL_OF_THEM:
        says = "Rewards differ within the groups, and yet the gradient is exactly 0: every completion is cut off."
        remedy = (
            "Raise max_completion_length, or let the loss count completions that are cut off"
            " (mask_truncated_completions=false, overlong filtering off)."
        )
    elif not np.isnan(cut_off):
        says = (
            "Rewards differ within the groups, and yet the gradient is exactly 0: what is trained is not what makes the"
            " loss."
        )
        remedy = (
            "Check that the trained parameters need a gradient (LoRA attached, nothing detached), what the completion"
            " mask leaves, and that offloading keeps the gradient."
        )
    return certain(
        f"the gradient norm is 0 in {rows} of {count(len(norms), 'row')}",
        *([] if np.isnan(cut_off) else [f"{percent(cut_off)} of the completions are cut off (median)"]),
        f"rewards differ by {number(float(np.median(spread)))} (median standard deviation)"
        + (f"; {percent(float(np.median(equal)))} of the groups have equal ones" if len(equal) else ""),
        says=says,
        remedy=remedy,
    )


@NO_PROGRESS.cause(
    says="The reward stands still: over the whole run it moved by less than a quarter of what rewards differ by within"
    " a group, although groups do differ.",
    remedy="Check that the reward depends on what the policy can change, and whether the policy moves (KL, ratios):"
    " where it hardly does a larger learning rate, where it does a smaller one; more completions per prompt, or prompts"
    " of another difficulty.",
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
    if not len(run.reach):
        return possible(*evidence)
    return possible(  # `is_still` would have been silent
        *evidence,
        f"the policy does move: on used batches the ratio is off 1 by {number(float(np.median(run.reach)))} (median)",
        remedy="Check that the reward depends on what the policy can change; then more completions per prompt (less"
        " noise), prompts of another difficulty, fewer iterations or a smaller learning rate.",
    )
