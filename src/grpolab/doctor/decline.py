"""What became of the policy: noise or certainty, length, ruin, groups without a signal, numbers that are none.

And why the clip metric misleads.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from grpolab.doctor.breakdown import COURSE, TRAINING_GOES_WRONG, UNCLIPPED, doubt_of, fall
from grpolab.doctor.causes import Finding, Question, certain, likely, of_difficulty, possible
from grpolab.doctor.evidence import HALF, REWARD, TRUNCATED, Evidence, trend
from grpolab.doctor.ratio_is_one import constant_reward
from grpolab.quantities import Thresholds
from grpolab.report.journals import column
from grpolab.report.scores import final_score
from grpolab.report.text import begun, count, number, percent
from grpolab.vocabulary import DIVERGED

METRIC_MISLEADS = Question("Why does the clip metric not fit the rest of the log?")

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
MISCOUNTED = 0.005  # relative difference of a share from its count


@TRAINING_GOES_WRONG.cause(
    says="Entropy grew out of bounds: the policy turned to noise.",
    remedy="Lower entropy_coef where there is a bonus, and check its sign; else take a smaller learning rate or fewer"
    " iterations.",
)
def entropy_explosion(run: Evidence) -> Finding | None:
    """Entropy doubled at least, and the reward fell."""
    start, end = run.ends("entropy/behaviour")
    before, after = run.ends(REWARD)
    if not end > Thresholds.entropy_explosion * start or not after < before:
        return None
    evidence = (
        f"entropy rose from {number(start)} to {number(end)} nat per token",
        f"the mean reward fell from {number(before)} to {number(after)}",
    )
    bonus = run.setting("entropy_coef")
    if bonus > 0:
        return certain(
            *evidence, f"entropy_coef={bonus:g}", remedy="Lower entropy_coef: the bonus outweighs the reward."
        )
    remedy = "Take a smaller learning rate, fewer iterations, or a KL: no entropy bonus asked for it."
    finding = possible if _is_destroyed(run) else likely
    return finding(*evidence, remedy=remedy if run.settings else "")


@TRAINING_GOES_WRONG.cause(
    says="Entropy fell to a fraction of its start, and not because all is right: samples of a prompt differ less and"
    " less, so less and less is left to compare.",
    remedy="Raise epsilon_high, add an entropy bonus or a KL, or lower the learning rate.",
)
def entropy_collapse(run: Evidence) -> Finding | None:
    """Entropy fell to a quarter of its start (a bonus with the wrong sign: to half) and not because all is right."""
    start, end = run.ends("entropy/behaviour")
    bonus = run.setting("entropy_coef")
    _, wrong = run.ends("zero_variance/all_wrong", HALF)
    _, right = run.ends("zero_variance/all_right", HALF)
    if not end < (ENTROPY_HALVED if bonus < 0 else Thresholds.entropy_ratio) * start or right > wrong:
        return None
    unique = run.ends("completions/unique")[1]
    evidence = [f"entropy fell from {number(start)} to {number(end)} nat per token"]
    if not np.isnan(wrong):
        evidence.append(f"in the second half of the run {percent(wrong)} of the groups are all wrong")
    if not np.isnan(unique):
        evidence.append(f"at its end {percent(unique)} of a prompt's completions are distinct")
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
    ways = [
        *([] if _has_no_upper_clip(run) else ["raise epsilon_high"]),
        f"raise entropy_coef (it is {bonus:g})" if bonus > 0 else "add an entropy bonus",
        "add a KL",
    ]
    remedy = begun(f"{', '.join(ways)}, or lower the learning rate.")
    return (possible if _is_destroyed(run) else likely)(*evidence, remedy=remedy)


def _has_no_upper_clip(run: Evidence) -> bool:
    """Whether the run has no upper clip, so that widening it is no advice."""
    return run.settings.get("kernel") == UNCLIPPED or run.setting("epsilon_high") == np.inf


@TRAINING_GOES_WRONG.cause(
    says="More and more completions are cut off at max_completion_length, or they grow to a multiple of what they were"
    " while the reward falls.",
    remedy="Check what rewards length (a missing end penalty, sum aggregation); mask truncated completions.",
)
def length_blow_up(run: Evidence) -> Finding | None:
    """Most completions are cut off at the end of the run and far fewer were at its start, or length does not pay."""
    start, end = run.ends("truncation/share")
    cut_off = end > TRUNCATED and start < TRUNCATED * end
    part = Thresholds.tail if cut_off else THIRD
    shorter, longer = run.ends("length/mean", part)
    before, after = run.ends(REWARD, part)
    lengths = len(column(run.rollouts, "length/mean"))
    if not cut_off and not (longer > LONGER * shorter and after < before and lengths >= COURSE):
        return None
    limit = run.settings.get("max_completion_length", "unknown")
    evidence = [
        f"their mean length went from {number(shorter)} to {number(longer)} tokens (max_completion_length={limit})"
    ]
    if not np.isnan(end):
        evidence.insert(0, f"{percent(start)} of the completions were cut off at the start, {percent(end)} at the end")
    if not cut_off:
        evidence.append(f"the mean reward fell from {number(before)} to {number(after)} (thirds of the run)")
        change, error = trend(column(run.rollouts, REWARD))
        return (likely if change < -2 * error else possible)(
            *evidence,
            says="Completions grow to a multiple of what they were while the reward falls: length does not pay.",
            remedy="Check what the loss makes of length (a mean over each completion lets long wrong ones off lightly:"
            " loss_type=dr_grpo or dapo); then a length penalty, or a smaller learning rate.",
        )
    if not after > before:  # cut off because it is broken, not because length pays
        return possible(
            *evidence,
            f"the mean reward went from {number(before)} to {number(after)}",
            instead=("destroyed_policy",),
            says="More and more completions are cut off at max_completion_length and the reward did not rise: the"
            " policy no longer ends its answers.",
            remedy="Go back before it; a smaller learning rate, fewer iterations, or a KL. These numbers do not say"
            " that length is rewarded.",
        )
    return likely(
        *evidence,
        f"the mean reward rose to {number(after)} all the same",
        says="More and more completions are cut off at max_completion_length while the reward rises: length pays, or"
        " does not cost.",
    )


@TRAINING_GOES_WRONG.cause(
    says="Next to nothing is left of what the policy could at its start, and the ratio says little since then.",
    remedy="Go back to before it; a smaller learning rate, fewer iterations, or a KL.",
)
def destroyed_policy(run: Evidence) -> Finding | None:
    """A run that reports count as collapsed, with less than a tenth of its start at the end, and not paid for that."""
    what_fell = fall(run)
    if not run.is_collapsed or not _is_destroyed(run) or not what_fell:
        return None
    evidence = [what_fell]
    least = (1 - LOST) * float(run.course[0])
    if (run.course < least).any():
        first = int(np.argmax(run.course < least))
        evidence.append(f"it was below a tenth of the start first at point {first} of {len(run.course) - 1}")
    if not _pays_for_something_else(run):
        return likely(*evidence)
    before, after = run.ends(REWARD)
    return likely(
        *evidence,
        f"the mean reward went from {number(before)} to {number(after)}",
        says="Next to nothing is left of what the policy could at its start, and the reward did not fall with it: what"
        " is rewarded is not what is evaluated.",
        remedy="Check the reward: it pays for something other than right answers (length, format, chance). A smaller"
        " learning rate only gets there later.",
    )


def _is_destroyed(run: Evidence) -> bool:
    """Whether nearly all of the starting score was lost and the reward did not rise; other causes follow from that."""
    score = run.score[1]
    before, after = run.ends(REWARD)
    if not len(score) or after > before:
        return False
    start, end = float(score[0]), final_score(score, Thresholds.tail)
    return end < (1 - LOST) * start and start - end >= doubt_of(run)


def _pays_for_something_else(run: Evidence) -> bool:
    """Whether the reward rose while the accuracy was lost, or surely fell by less than half of what that did."""
    if run.score[0] == REWARD or run.reward_went in ("unknown", "down"):
        return False
    rewards = column(run.rollouts, REWARD)
    change, error = trend(rewards)
    lost = 1 - run.final_score / float(run.course.max())
    return run.reward_went == "up" or change - 2 * error > -lost / 2 * float(rewards.mean())


@TRAINING_GOES_WRONG.cause(
    says="Most groups have equal rewards: few completions teach anything.",
    remedy="Draw prompts that are sometimes right and sometimes wrong, or filter the groups (dynamic sampling); raise"
    " num_generations.",
)
def starving_variance(run: Evidence) -> Finding | None:
    """Nearly all groups of the second half of the run have equal rewards.

    Most of them because nothing is right; or, whatever it is, the reward did not rise. Without a share of groups, their
    standard deviation fell to a tenth.
    """
    start, end = run.ends("zero_variance/share", HALF)
    right, wrong = (run.ends(f"zero_variance/all_{what}", HALF)[1] for what in ("right", "wrong"))
    before, after = run.ends(REWARD, HALF)
    spread, left = run.ends("reward/std")
    if constant_reward(run) or not (wrong >= end / 2 or after <= before):
        return None
    remedy = (
        f"{begun(of_difficulty(run))}; or filter the groups (dynamic sampling, which costs completions), or raise"
        " num_generations."
    )
    if np.isnan(end) and left < SPREAD_GONE * spread:
        return likely(
            f"the standard deviation of the rewards fell from {number(spread)} to {number(left)}",
            f"the mean reward went from {number(before)} to {number(after)} (halves of the run)",
            remedy=remedy,
        )
    if not end > Thresholds.starvation:
        return None
    shares = f"in the second half {percent(wrong)} of the groups are all wrong and {percent(right)} all right; "
    evidence = (
        f"groups with equal rewards: {percent(start)} in the first half of the run, {percent(end)} in the second",
        f"{'' if np.isnan(wrong + right) else shares}the mean reward is {number(after)}",
    )
    return (possible if _is_destroyed(run) else likely)(*evidence, remedy=remedy)


@TRAINING_GOES_WRONG.cause(
    says="The sampler drifts away from the trainer: it does not get the trainer's weights, or the two compute"
    " differently and training widens it.",
    remedy="Check that weights reach the sampler after every update (sleep mode, LoRA adapters, reloads from disk);"
    " then precision and kernels, and correct with truncated importance weights (sampler_correction).",
)
def growing_sampler_gap(run: Evidence) -> Finding | None:
    """The log-probs of sampler and trainer part more and more, to several times what they began with."""
    if run.settings.get("staleness", 0):
        return None
    for metric, least in GAPS.items():
        start, end = run.ends(metric)
        if not end > least or not end > GAP_GROWTH * start:
            continue
        gaps = column(run.rollouts, metric)
        thirds = [float(np.median(part)) for part in np.array_split(gaps, 3) if len(part)]
        steady = len(thirds) == 3 and thirds[0] < thirds[1] < thirds[2]
        evidence = (
            f"{metric} grew from {number(start)} to {number(end)} (first and last tenth of {count(len(gaps), 'row')})",
            f"by thirds of the run it is {', '.join(number(part) for part in thirds)} (medians)",
        )
        remedy = ""
        if run.settings.get("sampler_correction.level") or run.settings.get("old_log_probs") == "sampler":
            remedy = (
                "Check that weights reach the sampler after every update (sleep mode, LoRA adapters, reloads from"
                " disk); then precision and kernels. The loss corrects for the gap already, and pays in variance."
            )
        return (likely if steady else possible)(*evidence, remedy=remedy)
    return None


@TRAINING_GOES_WRONG.cause(
    says="Numbers are not finite.",
    remedy="Look at the batch before it (rewards that are NaN, empty completions, log-probs of -inf); then precision"
    " (float16), a smaller learning rate, a clamp on the KL.",
)
def not_finite(run: Evidence) -> Finding | None:
    """A metric of the loop is NaN or infinite, or that ended the run."""
    odd = {name: steps for name, steps in run.not_finite.items() if name in MUST_BE_FINITE and steps}
    if not odd and not run.state.startswith(DIVERGED):
        return None
    evidence = [
        f"{name} is not finite in {count(len(steps), 'row')}, first at step {min(steps)}" for name, steps in odd.items()
    ]
    if run.state.startswith(DIVERGED):
        evidence.append(f"the run {run.state}")
    lasts = any(len(steps) >= LASTS for name, steps in odd.items() if name != "grad_norm")
    if lasts or run.state.startswith(DIVERGED):
        return likely(*evidence, says="Numbers are not finite: from there on loss, gradient and weights mean nothing.")
    says = (
        "Single numbers are not finite, and the run went on: loss scaling leaves out such a step, and so may clipping."
    )
    return possible(
        *evidence, says=says, remedy="Nothing where it stays single; where it comes back, look at the batch before it."
    )


@METRIC_MISLEADS.cause(
    says="The clip fraction counts padding: it is diluted by tokens that do not exist.",
    remedy="Average the clip mask over completion tokens only.",
)
def padding_in_clip_metric(run: Evidence) -> Finding | None:
    """On the last pass the logged clip fraction is the counted one times the share of places that hold a token."""
    if run.samples.empty or not {"clip/active", "iteration"} <= set(run.updates):
        return None
    last = run.updates[run.updates["iteration"] == run.updates["iteration"].max()]
    lengths = run.samples.groupby(["rollout_step", "prompt_index", "sample"]).size().groupby("rollout_step")
    by_step = {
        "logged": last.groupby("rollout_step")["clip/active"].mean(),
        "counted": (run.samples["clipped"] != "").groupby(run.samples["rollout_step"]).mean(),
        "filled": lengths.mean() / lengths.max(),
    }
    steps = pd.DataFrame(by_step).dropna()
    steps = steps[(steps["counted"] > 0) & (steps["filled"] < 1 - MISCOUNTED)]
    padded = (steps["logged"] / (steps["counted"] * steps["filled"]) - 1).abs() < MISCOUNTED
    if steps.empty or not padded.all():
        return None
    first = steps.iloc[0]
    return certain(
        f"at rollout step {int(steps.index[0])} {percent(first['counted'])} of the completion tokens carry a clip mark,"
        f" the log says {percent(first['logged'])}; the same in all {count(len(steps), 'step')} that were kept",
        f"their ratio is {number(first['logged'] / first['counted'])}, and {number(first['filled'])} of the places of"
        " the batch hold a token",
    )
