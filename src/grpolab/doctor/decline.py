"""Causes that show in the policy during a breakdown: entropy, length, lost skill, equal rewards, NaN and infinity."""

from __future__ import annotations

import numpy as np

from grpolab.doctor.breakdown import BREAKDOWN, COURSE, UNCLIPPED, believable_fall, describe_fall
from grpolab.doctor.causes import Finding, certain, likely, possible, say_change
from grpolab.doctor.evidence import HALF, REWARD, TRUNCATED, Evidence, median, trend
from grpolab.doctor.ratio_is_one import choose_prompts, constant_reward
from grpolab.quantities import Thresholds
from grpolab.report.journals import final_score
from grpolab.report.text import begun, count, number, percent
from grpolab.vocabulary import DIVERGED

ENTROPY_HALVED = 0.5  # of the start: enough where a setting asks for it
THIRD, LONGER = 1 / 3, 2.0  # parts of a run that are compared, and the length of the last over that of the first
SPREAD_GONE = 0.1  # of the standard deviation at the start
# Measure of the distance of sampler and trainer -> what precision alone makes of it: the largest difference in nat, its
# mean, a KL, and the mean difference in probability.
GAPS = {"gap/mean": 0.02, "gap/kl": 5e-3, "gap/probability": 0.02, "gap/sampler_trainer": 0.1}
GAP_GROWTH = 5.0  # the last over the first
MUST_BE_FINITE = ("loss", "grad_norm", "kl_ref/k3", "entropy/behaviour", REWARD, "ratio/token_max")
LASTS = 2  # rows: one row may be a gradient that mixed precision skipped
LOST = 0.9  # share of the start that is nearly all of it: small batches alone can cost three quarters


@BREAKDOWN.cause(
    "Entropy grew out of bounds: the policy turned to noise.",
    "Lower entropy_coef where there is a bonus, and check its sign; else take a smaller learning rate or fewer"
    " iterations.",
)
def entropy_explosion(run: Evidence) -> Finding | None:
    """Entropy doubled at least, and the reward fell."""
    start, end = run.ends("entropy/behaviour")
    rewards, bonus = run.ends(REWARD), run.setting("entropy_coef")
    if not end > Thresholds.entropy_explosion * start or not rewards[1] < rewards[0]:
        return None
    evidence = (
        f"entropy rose from {number(start)} to {number(end)} nat per token",
        f"the mean reward fell from {number(rewards[0])} to {number(rewards[1])}",
    )
    if bonus > 0:
        remedy = "Lower entropy_coef: the bonus outweighs the reward."
        return certain(*evidence, f"entropy_coef={bonus:g}", remedy=remedy)
    remedy = "Take a smaller learning rate, fewer iterations, or a KL: no entropy bonus asked for it."
    return (possible if _is_destroyed(run) else likely)(*evidence, remedy=remedy if run.settings else "")


@BREAKDOWN.cause(
    "Entropy fell to a fraction of its start, and not because all is right: samples of a prompt differ less and less,"
    " so less and less is left to compare.",
    "Raise epsilon_high, add an entropy bonus or a KL, or lower the learning rate.",
)
def entropy_collapse(run: Evidence) -> Finding | None:
    """Entropy fell to a quarter of its start (a bonus with the wrong sign: to half) and not because all is right."""
    start, end = run.ends("entropy/behaviour")
    bonus, unique = run.setting("entropy_coef"), run.ends("completions/unique")[1]
    right, wrong = (run.ends(f"zero_variance/all_{which}", HALF)[1] for which in ("right", "wrong"))
    if not end < (ENTROPY_HALVED if bonus < 0 else Thresholds.entropy_ratio) * start or right > wrong:
        return None
    evidence = (
        f"entropy fell from {number(start)} to {number(end)} nat per token",
        "" if np.isnan(wrong) else f"in the second half of the run {percent(wrong)} of the groups are all wrong",
        "" if np.isnan(unique) else f"at its end {percent(unique)} of a prompt's completions are distinct",
    )
    if bonus < 0:
        remedy = "Set entropy_coef to 0 or more: below 0 it rewards certainty."
        return certain(*evidence, f"entropy_coef={bonus:g}", remedy=remedy)
    if np.isnan(wrong) and run.reward_went == "up":  # nothing says what is right, and it learns
        return possible(
            *evidence,
            "the mean reward rose",
            says="Entropy fell to a fraction of its start while the reward rose: what pays is sampled more and more"
            " surely, and little is left to explore.",
            remedy="Nothing as long as the reward rises; where it stops, raise epsilon_high or add an entropy bonus.",
        )
    has_no_upper_clip = run.settings.get("kernel") == UNCLIPPED or run.setting("epsilon_high") == np.inf
    widen = "" if has_no_upper_clip else "raise epsilon_high, "
    explore = f"raise entropy_coef (it is {bonus:g})" if bonus > 0 else "add an entropy bonus"
    remedy = begun(f"{widen}{explore}, add a KL, or lower the learning rate.")
    return (possible if _is_destroyed(run) else likely)(*evidence, remedy=remedy)


@BREAKDOWN.cause(
    "More and more completions are cut off at max_completion_length, or they grow to a multiple of what they were while"
    " the reward falls.",
    "Check what rewards length (a missing end penalty, sum aggregation); mask truncated completions.",
)
def length_blow_up(run: Evidence) -> Finding | None:
    """Most completions are cut off at the end of the run and far fewer were at its start, or length does not pay."""
    start, end = run.ends("truncation/share")
    is_cut_off = end > TRUNCATED and start < TRUNCATED * end
    part = Thresholds.tail if is_cut_off else THIRD
    lengths, (before, after) = run.ends("length/mean", part), run.ends(REWARD, part)
    is_longer = lengths[1] > LONGER * lengths[0] and after < before and len(run.values("length/mean")) >= COURSE
    if not is_cut_off and not is_longer:
        return None
    limit = run.settings.get("max_completion_length", "unknown")
    evidence = (
        ""
        if np.isnan(end)
        else f"{percent(start)} of the completions were cut off at the start, {percent(end)} at the end",
        f"{say_change('their mean length', lengths)} tokens (max_completion_length={limit})",
    )
    if not is_cut_off:
        change, error = trend(run.values(REWARD))
        return (likely if change < -2 * error else possible)(
            *evidence,
            f"the mean reward fell from {number(before)} to {number(after)} (thirds of the run)",
            says="Completions grow to a multiple of what they were while the reward falls: length does not pay.",
            remedy="Check what the loss makes of length (a mean over each completion lets long wrong ones off lightly:"
            " loss_type=dr_grpo or dapo); then a length penalty, or a smaller learning rate.",
        )
    if not after > before:  # cut off because it is broken, not because length pays
        return possible(
            *evidence,
            say_change("the mean reward", (before, after)),
            instead=("destroyed_policy",),
            says="More and more completions are cut off at max_completion_length and the reward did not rise: the"
            " policy no longer ends its answers.",
            remedy="Go back to before it; a smaller learning rate, fewer iterations, or a KL. These numbers do not say"
            " that length is rewarded.",
        )
    return likely(
        *evidence,
        f"the mean reward rose to {number(after)} all the same",
        says="More and more completions are cut off at max_completion_length while the reward rises: length pays, or"
        " does not cost.",
    )


@BREAKDOWN.cause(
    "Next to nothing is left of what the policy could at its start, and the ratio says little since then.",
    "Go back to before it; a smaller learning rate, fewer iterations, or a KL.",
)
def destroyed_policy(run: Evidence) -> Finding | None:
    """A run that reports count as collapsed, with less than a tenth of its start at the end, and not paid for that."""
    fall = describe_fall(run)
    if not run.is_collapsed or not _is_destroyed(run) or not fall:
        return None
    below = run.course < (1 - LOST) * float(run.course[0])
    first = f"it was below a tenth of the start first at point {np.argmax(below)} of {len(run.course) - 1}"
    if not _pays_for_something_else(run):
        return likely(fall, first if below.any() else "")
    return likely(
        fall,
        first if below.any() else "",
        say_change("the mean reward", run.ends(REWARD)),
        says="Next to nothing is left of what the policy could at its start, and the reward did not fall with it: what"
        " is rewarded is not what is evaluated.",
        remedy="Check the reward: it pays for something other than right answers (length, format, chance). A smaller"
        " learning rate only gets there later.",
    )


def _is_destroyed(run: Evidence) -> bool:
    """Return whether nearly all of the starting score was lost and the reward did not rise.

    Other causes follow from that, so they are less sure.
    """
    score = run.score[1]
    before, after = run.ends(REWARD)
    if not len(score) or after > before:
        return False
    start, end = float(score[0]), final_score(score, Thresholds.tail)
    return end < (1 - LOST) * start and start - end >= believable_fall(run)


def _pays_for_something_else(run: Evidence) -> bool:
    """Return whether the reward rose while accuracy was lost, or surely fell less than half as much."""
    if run.score[0] == REWARD or run.reward_went in ("unknown", "down"):
        return False
    rewards = run.values(REWARD)
    change, error = trend(rewards)
    lost = 1 - run.final_score / float(run.course.max())
    return run.reward_went == "up" or change - 2 * error > -lost / 2 * float(rewards.mean())


@BREAKDOWN.cause(
    "Most groups have equal rewards: few completions teach anything.",
    "Draw prompts that are sometimes right and sometimes wrong, or filter the groups (dynamic sampling); raise"
    " num_generations.",
)
def starving_variance(run: Evidence) -> Finding | None:
    """Nearly all groups of the second half of the run have equal rewards.

    Most of them because nothing is right; or, whatever it is, the reward did not rise. Without a share of groups, their
    standard deviation fell to a tenth.
    """
    start, end = run.ends("zero_variance/share", HALF)
    right, wrong = (run.ends(f"zero_variance/all_{which}", HALF)[1] for which in ("right", "wrong"))
    before, after = run.ends(REWARD, HALF)
    spread, left = run.ends("reward/std")
    if constant_reward(run) or not (wrong >= end / 2 or after <= before):
        return None
    remedy = (
        f"{begun(choose_prompts(run))}; or filter the groups (dynamic sampling, which costs completions), or raise"
        " num_generations."
    )
    if np.isnan(end) and left < SPREAD_GONE * spread:
        return likely(
            f"the standard deviation of the rewards fell from {number(spread)} to {number(left)}",
            f"{say_change('the mean reward', (before, after))} (halves of the run)",
            remedy=remedy,
        )
    if not end > Thresholds.starvation:
        return None
    shares = f"in the second half {percent(wrong)} of the groups are all wrong and {percent(right)} all right; "
    return (possible if _is_destroyed(run) else likely)(
        f"groups with equal rewards: {percent(start)} in the first half of the run, {percent(end)} in the second",
        f"{'' if np.isnan(wrong + right) else shares}the mean reward is {number(after)}",
        remedy=remedy,
    )


@BREAKDOWN.cause(
    "The sampler drifts away from the trainer: it does not get the new weights, or the two compute differently.",
    "Check that weights reach the sampler after every update (sleep mode, LoRA adapters, reloads from disk); then"
    " precision and kernels, and correct with truncated importance weights (sampler_correction).",
)
def growing_sampler_gap(run: Evidence) -> Finding | None:
    """The log-probs of sampler and trainer part more and more, to several times what they began with."""
    if run.settings.get("staleness", 0):
        return None
    for metric, least in GAPS.items():
        start, end = run.ends(metric)
        if not end > least or not end > GAP_GROWTH * start:
            continue
        gaps = run.values(metric)
        thirds = [median(part) for part in np.array_split(gaps, 3) if len(part)]
        is_steady = len(thirds) == 3 and thirds[0] < thirds[1] < thirds[2]
        is_corrected = run.settings.get("sampler_correction.level") or run.settings.get("old_log_probs") == "sampler"
        return (likely if is_steady else possible)(
            f"{metric} grew from {number(start)} to {number(end)} (first and last tenth of {count(len(gaps), 'row')})",
            f"by thirds of the run it is {', '.join(map(number, thirds))} (medians)",
            remedy="Check that weights reach the sampler after every update (sleep mode, LoRA adapters, reloads from"
            " disk); then precision and kernels. The loss corrects for the gap already, and pays in variance."
            if is_corrected
            else "",
        )
    return None


@BREAKDOWN.cause(
    "Numbers are not finite.",
    "Look at the batch before (rewards that are NaN, empty completions, log-probs of -inf); then precision (float16), a"
    " smaller learning rate, a clamp on the KL.",
)
def not_finite(run: Evidence) -> Finding | None:
    """A metric of the loop is NaN or infinite, or that ended the run."""
    odd = {name: steps for name, steps in run.not_finite.items() if name in MUST_BE_FINITE and steps}
    has_ended = run.state.startswith(DIVERGED)
    if not odd and not has_ended:
        return None
    evidence = [
        *(
            f"{name} is not finite in {count(len(rows), 'row')}, first at step {min(rows)}"
            for name, rows in odd.items()
        ),
        f"the run {run.state}" if has_ended else "",
    ]
    if has_ended or any(len(rows) >= LASTS for name, rows in odd.items() if name != "grad_norm"):
        return likely(*evidence, says="Numbers are not finite: from there on loss, gradient and weights mean nothing.")
    return possible(
        *evidence,
        says="Single numbers are not finite, and the run went on: loss scaling leaves out such a step, and so may"
        " clipping.",
        remedy="Nothing where it stays single; where it comes back, look at the batch before it.",
    )
