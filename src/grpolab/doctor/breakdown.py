"""Causes of a breakdown: no clip, a term that outgrows the rest, or a policy that loses entropy, length or skill."""

from __future__ import annotations

import numpy as np

from grpolab.doctor.causes import Finding, certain, likely, possible, rule, say_change
from grpolab.doctor.evidence import HALF, REWARD, STILL_DEVIATION, TRUNCATED, USUAL_RANGE, Evidence, median, trend
from grpolab.doctor.first_pass import ratio_is_off
from grpolab.doctor.ratio_is_one import constant_reward
from grpolab.quantities import Thresholds
from grpolab.report.journals import column, final_score
from grpolab.report.text import begun, count, number, percent
from grpolab.vocabulary import DIVERGED, counterfactual

UNCLIPPED = "ratio"  # the `kernel` that is the surrogate without a clip
KL_HUGE = 10.0  # nat per token: a mean of exp(difference), which a few tokens make
KL_FAR = 1.0  # nat per token: a factor of e on every token
COURSE = 10  # rows of a log: fewer are too short to compare beginning and end
GRADIENT_GROWTH = 10.0
KL_DOMINATES = 10.0  # beta times KL, in advantages (which are about 1)
CELL_RATIO = 5.0  # ratio of a token with A < 0; for A > 0, the clip acts from 1.2 on
CELL_SHARE = 0.2  # of the updates
ENTROPY_HALVED = 0.5  # of the start: enough where a setting asks for it
THIRD, LONGER = 1 / 3, 2.0  # parts of a run that are compared, and the length of the last over that of the first
SPREAD_GONE = 0.1  # of the standard deviation at the start
OF_REWARDS = (REWARD, "reward/std")
MUST_BE_FINITE = (*OF_REWARDS, "loss", "grad_norm", "kl_ref/k3", "entropy/behaviour", "ratio/token_max")
LASTS = 2  # rows: one row may be a gradient that mixed precision skipped
NEAR = 5  # rows before and after a step that are compared
KL_SEEN, KL_GONE = 1e-3, 10.0  # nat per token that logs round to, and the fall of a KL whose reference is another one
LOSS_HUGE = 100.0  # times an advantage: ratios within a clip range, or a dual clip of 3, make a few
LOST = 0.9  # share of the starting score that counts as nearly all; in small batches noise alone costs three quarters


def describe_fall(run: Evidence) -> str | None:
    """Say from which value to which the score fell; None if it did not fall, or is not known."""
    metric, score = run.score
    if len(score) < 2:
        return None
    if metric == REWARD and not run.is_collapsed:  # of single batches: the first value and the peak are partly chance
        start, end = run.ends(metric)
        if not start - end >= run.believable_fall or number(end) == number(start):
            return None
        return f"{metric} fell from {number(start)} (first tenth of the run) to {number(end)} (last tenth)"
    start, peak, end = float(run.course[0]), float(run.course.max()), run.final_score
    if end < start and number(end) != number(start):
        best = f" (peak {number(peak)})" if peak > start else ""
        return f"{metric} fell from {number(start)} at the start{best} to {number(end)} at the end"
    if run.is_collapsed or peak - end >= Thresholds.collapse_drop:
        return f"{metric} fell from its peak of {number(peak)} to {number(end)} at the end (start {number(start)})"
    return None


@rule
def unclipped(run: Evidence) -> Finding | None:
    """No clip acts on a reused batch, ratios (or `ratio_max`, kept of a run) leave the usual range, the score fell."""
    has_no_clip, largest_ratio = run.settings.get("kernel") == UNCLIPPED, run.numbers.get("ratio_max", np.nan)
    clips = [column(run.later, f"clip/{part}") for part in ("active", "outer", "capped")]
    is_idle = len(clips[0]) > 0 and not any(clip.any() for clip in clips)
    if run.has_outer_cap or not (has_no_clip or is_idle):
        return None
    fall, (metric, score), deviations = describe_fall(run), run.score, run.deviations
    if not fall or (run.is_still if len(deviations) else not largest_ratio - 1 > STILL_DEVIATION):
        return None
    if metric != REWARD and not run.is_collapsed:  # then by the report's definition of `below_start`
        start, least = float(score[0]), Thresholds.collapse_drop
        if items := run.settings.get("evaluation.items"):
            least = Thresholds.below_start_errors * np.sqrt(start * (1 - start) / items)
        if not start - run.final_score > least:
            return None
    usual = USUAL_RANGE["token"]
    would = column(run.later, counterfactual("token", usual))
    off = (
        f"on used batches the ratio is off 1 by {number(median(deviations))}"
        f" (median over {count(len(deviations), 'update')}), at most by {number(run.largest_deviation)}"
    )
    return likely(
        f"kernel={UNCLIPPED}: it has no clip" if has_no_clip else "no token was clipped in any update",
        fall,
        off if len(deviations) else f"the largest ratio of a token is {number(largest_ratio)}",
        f"a range of {usual:g} would have clipped {percent(float(would.mean()))} of the tokens" if len(would) else "",
        side="by kernel" if has_no_clip else "",
    )


@rule
def kl_overflow(run: Evidence) -> Finding | None:
    """The KL to the reference is huge, and the penalty outweighs every advantage."""
    beta = run.setting("beta", 1)  # of a log without settings: the KL has to be huge anyway
    worst, usual = run.largest("kl_ref/k3"), run.median("kl_ref/k3")
    if not worst > KL_HUGE or not beta * worst > KL_DOMINATES:
        return None
    step = int(run.updates.loc[run.updates["kl_ref/k3"].idxmax(), "rollout_step"])
    penalty = f": times beta={beta:g} that is {number(beta * worst)}, where advantages are about 1"
    is_weighted = "beta" in run.settings  # else nobody knows what the KL does to the loss
    return (certain if is_weighted else likely)(
        f"KL to the reference (k3) reached {number(worst)} nat per token in rollout step {step}"
        f"{penalty if is_weighted else ''}",
        f"its median is {number(usual)}",
        f"the loss reached {number(run.largest('loss'))}",
        side="whole policy" if usual > KL_FAR else "few tokens",
    )


@rule
def kl_explosion(run: Evidence) -> Finding | None:
    """The median KL of the second half of the run is above one nat per token, and was lower at the start.

    At one nat a token is on average e times less likely under the reference. Single rows are no evidence, because k3 is
    an exponential, which a single token can make large.
    """
    divergence, beta = run.values("kl_ref/k3"), run.setting("beta")
    end = median(divergence[len(divergence) // 2 :])
    if len(divergence) < COURSE or not end > KL_FAR or not divergence[0] < end / 2:
        return None
    return likely(
        f"{say_change('the KL to the reference', (float(divergence[0]), end))} nat per token (median of the second"
        f" half), and at most {number(float(divergence.max()))}",
        f"it was above 1 first in row {int(np.argmax(divergence > KL_FAR))} of {count(len(divergence), 'row')}",
        _say_rate(run),
        side="" if "beta" not in run.settings else "weak penalty" if beta else "no penalty",
        beta=beta,
    )


@rule
def gradient_explosion(run: Evidence) -> Finding | None:
    """The gradient's median in the last fifth is ten times (reward rose: a hundred times) that in the first fifth."""
    norms, limit = run.values("grad_norm"), run.setting("max_grad_norm", np.inf)
    fifth = len(norms) // 5
    if fifth < 2 or not np.isfinite(norms).all():
        return None
    start, end = float(np.median(norms[:fifth])), float(np.median(norms[-fifth:]))
    before, after = run.ends(REWARD, 0.2)
    if not 0 < start * GRADIENT_GROWTH ** (2 if after > before else 1) < end:
        return None
    return likely(
        f"the gradient norm grew from {number(start)} to {number(end)} (medians of the first and the last fifth), and"
        f" at most {number(float(norms.max()))}",
        say_change("the mean reward", (before, after)),
        _say_rate(run),
        side="clipped already" if end > limit else "",
        limit=limit,
    )


def _say_rate(run: Evidence) -> str:
    if np.isnan(run.peak_rate):
        return ""
    usual = " (language models are usually trained at about 1e-6, with LoRA at about 1e-5)"
    return f"the learning rate is {number(run.peak_rate)} at most{'' if run.framework == 'grpolab' else usual}"


@rule
def unbounded_cell(run: Evidence) -> Finding | None:
    """Ratios of tokens with A < 0, which PPO's clip does not bound, are large in many updates; the gradient spikes."""
    if "ratio/token_max_neg" not in run.updates or ratio_is_off(run) or run.has_outer_cap:
        return None
    kernel = run.settings.get("kernel", "clipped")
    if kernel not in ("clipped", UNCLIPPED) or run.settings.get("importance_sampling_level", "token") != "token":
        return None  # the gradient does not grow with a token's ratio
    ratios = run.updates["ratio/token_max_neg"]
    if "clip/active_nz" in run.updates:  # it is absent where every advantage is 0: there no ratio is large
        ratios = ratios[ratios.notna() | run.updates["clip/active_nz"].isna()]  # else: not measured
    norms = run.values("grad_norm")
    spike = float(norms.max() / np.median(norms[norms > 0])) if (norms > 0).any() else 0.0
    share = float((ratios > CELL_RATIO).mean()) if len(ratios) else 0.0
    if share < CELL_SHARE or spike < Thresholds.spike_factor:
        return None
    worst = run.updates.loc[run.updates["ratio/token_max_neg"].idxmax()]
    # What drove the ratio so far: passes over the batch, or its age.
    drivers = [] if run.updates_per_batch == 1 else ["fewer iterations"]
    drivers += ["fresher batches (staleness)"] if run.setting("staleness") else []
    return likely(
        f"in {percent(share)} of the updates a token with A < 0 has a ratio above {CELL_RATIO:g}; the largest is"
        f" {number(worst['ratio/token_max_neg'])}, in rollout step {int(worst['rollout_step'])}",
        f"the largest gradient norm is {number(float(norms.max()))}, {number(spike)} times the median",
        "neither delta nor dual_clip caps such a ratio",
        side="unclipped" if kernel == UNCLIPPED else "clipped",
        drivers=f"{' or '.join(drivers)}, or " if drivers else "",
    )


@rule
def entropy_explosion(run: Evidence) -> Finding | None:
    """The entropy at least doubled, and the reward fell."""
    start, end = run.ends("entropy/behaviour")
    rewards, bonus = run.ends(REWARD), run.setting("entropy_coef")
    if not end > Thresholds.entropy_explosion * start or not rewards[1] < rewards[0]:
        return None
    evidence = (
        f"entropy rose from {number(start)} to {number(end)} nat per token",
        f"the mean reward fell from {number(rewards[0])} to {number(rewards[1])}",
    )
    if bonus > 0:
        return certain(*evidence, f"entropy_coef={bonus:g}", side="bonus")
    surely = possible if _is_destroyed(run) else likely
    low, high = run.setting("epsilon"), run.setting("epsilon_high")
    if 0 < low < high < np.inf:
        return surely(*evidence, f"epsilon={low:g}, epsilon_high={high:g}", side="high clip", low=low)
    return surely(*evidence, side="no bonus" if run.settings else "")


@rule
def entropy_collapse(run: Evidence) -> Finding | None:
    """Entropy fell to a quarter (to half, if the bonus has the wrong sign), but not because all answers are right."""
    start, end = run.ends("entropy/behaviour")
    bonus, unique = run.setting("entropy_coef"), run.ends("completions/unique")[1]
    right, wrong = run.all_right_and_wrong
    if not end < (ENTROPY_HALVED if bonus < 0 else Thresholds.entropy_ratio) * start or right > wrong:
        return None
    evidence = (
        f"entropy fell from {number(start)} to {number(end)} nat per token",
        "" if np.isnan(wrong) else f"in the second half of the run {percent(wrong)} of the groups are all wrong",
        "" if np.isnan(unique) else f"at its end {percent(unique)} of a prompt's completions are distinct",
    )
    if bonus < 0:
        return certain(*evidence, f"entropy_coef={bonus:g}", side="negative bonus")
    if np.isnan(wrong) and run.reward_went == "up":  # nothing says what is right, and it learns
        return possible(*evidence, "the mean reward rose", side="reward rose")
    has_no_upper_clip = run.settings.get("kernel") == UNCLIPPED or run.setting("epsilon_high") == np.inf
    explore = f"raise entropy_coef (it is {bonus:g})" if bonus > 0 else "add an entropy bonus"
    explore = begun(explore if has_no_upper_clip else f"raise epsilon_high, {explore}")
    return (possible if _is_destroyed(run) else likely)(*evidence, side="reward fell", explore=explore)


@rule
def length_blow_up(run: Evidence) -> Finding | None:
    """Far more completions are cut off at the run's end than at its start, or lengths doubled and the reward fell."""
    start, end = run.ends("truncation/share")
    is_cut_off = end > TRUNCATED and start < TRUNCATED * end
    part = Thresholds.tail if is_cut_off else THIRD
    lengths, (before, after) = run.ends("length/mean", part), run.ends(REWARD, part)
    is_longer = lengths[1] > LONGER * lengths[0] and after < before and len(run.values("length/mean")) >= COURSE
    if not is_cut_off and not is_longer:
        return None
    limit = run.settings.get("max_completion_length", "unknown")
    shares = f"{percent(start)} of the completions were cut off at the start, {percent(end)} at the end"
    evidence = (
        "" if np.isnan(end) else shares,
        f"{say_change('their mean length', lengths)} tokens (max_completion_length={limit})",
    )
    if not is_cut_off:
        change, error = trend(run.values(REWARD))
        fall = f"the mean reward fell from {number(before)} to {number(after)} (thirds of the run)"
        return (likely if change < -2 * error else possible)(*evidence, fall, side="does not pay")
    if not after > before:  # cut off because it is broken, not because length pays
        rewards = say_change("the mean reward", (before, after))
        return possible(*evidence, rewards, instead=("destroyed_policy",), side="no end")
    return likely(*evidence, f"the mean reward rose to {number(after)} all the same", side="pays")


@rule
def destroyed_policy(run: Evidence) -> Finding | None:
    """The run collapsed to less than a tenth of its starting score, and its reward did not rise meanwhile."""
    fall = describe_fall(run)
    if not run.is_collapsed or not _is_destroyed(run) or not fall:
        return None
    below = run.course < (1 - LOST) * float(run.course[0])
    first = f"it was below a tenth of the start first at point {np.argmax(below)} of {len(run.course) - 1}"
    evidence = (fall, first if below.any() else "")
    if not _pays_for_something_else(run):
        return likely(*evidence)
    return likely(*evidence, say_change("the mean reward", run.ends(REWARD)), side="reward held")


def _is_destroyed(run: Evidence) -> bool:
    """Return True if nearly all of the score was lost and the reward did not rise: other symptoms may follow."""
    score = run.score[1]
    before, after = run.ends(REWARD)
    if not len(score) or after > before:
        return False
    start, end = float(score[0]), final_score(score, Thresholds.tail)
    return end < (1 - LOST) * start and start - end >= run.believable_fall


def _pays_for_something_else(run: Evidence) -> bool:
    """Return True if the reward rose while accuracy fell, or surely fell by less than half as much."""
    if run.score[0] == REWARD or run.reward_went in ("unknown", "down"):
        return False
    rewards = run.values(REWARD)
    change, error = trend(rewards)
    lost = 1 - run.final_score / float(run.course.max())
    return run.reward_went == "up" or change - 2 * error > -lost / 2 * float(rewards.mean())


@rule
def starving_filter(run: Evidence) -> Finding | None:
    """In most steps fewer than half of the groups that a batch asks for pass `filter_groups`."""
    groups, wanted = run.values("filter/groups"), run.setting("prompts_per_step")
    if not len(groups) or not np.mean(short := groups < wanted / 2) > HALF:
        return None
    return certain(
        f"of {wanted:g} groups that a batch asks for {number(float(np.median(groups)))} differ and train (median),"
        f" fewer than half in {int(short.sum())} of {count(len(groups), 'step')}",
        f"a step samples {number(run.median('filter/sampled'))} completions (median), of which"
        f" {percent(run.median('filter/passed'))} of the groups differ",
    )


@rule
def starving_variance(run: Evidence) -> Finding | None:
    """Nearly all groups of the second half of the run have equal rewards.

    Also, most of these groups must be all wrong, or the reward must not have risen. If the log lacks the share of such
    groups, the standard deviation of the rewards must have fallen to a tenth.
    """
    start, end = run.ends("zero_variance/share", HALF)
    right, wrong = run.all_right_and_wrong
    before, after = run.ends(REWARD, HALF)
    spread, left = run.ends("reward/std")
    if constant_reward(run) or not (wrong >= end / 2 or after <= before):
        return None
    if np.isnan(end) and left < SPREAD_GONE * spread:
        return likely(
            f"the standard deviation of the rewards fell from {number(spread)} to {number(left)}",
            f"{say_change('the mean reward', (before, after))} (halves of the run)",
            side=run.why_equal,
        )
    if not end > Thresholds.starvation:
        return None
    shares = f"in the second half {percent(wrong)} of the groups are all wrong and {percent(right)} all right; "
    return (possible if _is_destroyed(run) else likely)(
        f"groups with equal rewards: {percent(start)} in the first half of the run, {percent(end)} in the second",
        f"{'' if np.isnan(wrong + right) else shares}the mean reward is {number(after)}",
        side=run.why_equal,
    )


@rule
def not_finite(run: Evidence) -> Finding | None:
    """A metric of the training loop was NaN or infinite, or the run ended as diverged. Says which was so first."""
    odd = {name: steps for name, steps in run.not_finite.items() if name in MUST_BE_FINITE and steps}
    for name, is_none in (("kl_ref/k3", run.has_no_kl_term), ("reward/std", not len(run.values("reward/std")))):
        if is_none:  # no number in any row: no KL term, or a deviation of one completion
            odd.pop(name, None)
    has_ended = run.state.startswith(DIVERGED)
    if not odd and not has_ended:
        return None
    in_order = sorted(odd, key=lambda name: (min(odd[name]), MUST_BE_FINITE.index(name)))
    finite = [name for name in MUST_BE_FINITE if name not in odd and len(run.values(name))]
    is_lasting = any(len(rows) >= LASTS for name, rows in odd.items() if name != "grad_norm")
    is_filtered = run.framework == "trl" and "loss" in finite and {"grad_norm", "kl_ref/k3"} & odd.keys()
    filtered = (
        "the loss may be NaN there too: transformers logs a mean of earlier losses for it (logging_nan_inf_filter)"
    )
    where = {name: f"{count(len(odd[name]), 'row')}, first at step {min(odd[name])}" for name in in_order}
    evidence = [
        *(f"{name} is not finite in {rows}" for name, rows in where.items()),
        f"finite in every row: {', '.join(finite)}" if odd and finite else "",
        filtered if is_filtered else "",
        f"the run {run.state}" if has_ended else "",
    ]
    if in_order and in_order[0] in OF_REWARDS:
        return likely(*evidence, side="rewards")
    if has_ended or is_lasting:
        return likely(*evidence, side="lasting")
    return possible(*evidence, side="single")


def find_new_references(run: Evidence) -> list[int]:
    """Return the rows in which the KL is a tenth of what it was, and from which on it is lower than it was before."""
    divergence = run.values("kl_ref/k3")
    return [
        at
        for at in range(NEAR, len(divergence) - NEAR + 1)
        if (before := median(divergence[at - NEAR : at])) > KL_SEEN
        and divergence[at] < before / KL_GONE
        and divergence[at : at + NEAR].max() < divergence[at - NEAR : at].min()
    ]


@rule
def reference_replaced(run: Evidence) -> Finding | None:
    """Once, the KL to the reference falls to a tenth from one row to the next, and then grows anew.

    The KL adds up over all updates: one update cannot undo it. What falls again and again is a reference that follows
    the policy on purpose.
    """
    falls, divergence = find_new_references(run), run.values("kl_ref/k3")
    if len(falls) != 1:
        return None
    (at,) = falls
    steps = run.updates.loc[run.updates["kl_ref/k3"].notna(), "rollout_step"].to_numpy()
    return likely(
        f"the KL to the reference fell from {number(float(divergence[at - 1]))} to {number(float(divergence[at]))} nat"
        f" per token from step {steps[at - 1]} to step {steps[at]}; {NEAR} rows from there on lie below {NEAR} before",
        "the step counter falls there: a resume" if steps[at] < steps[at - 1] else "",
    )


@rule
def loss_off_scale(run: Evidence) -> Finding | None:
    """Most losses are a hundred times what clipped ratios of about 1 and advantages of about 1 can make.

    Rewards may be larger than 1 and not normalised, and the loss a sum over a completion's tokens (never in TRL).
    """
    losses, rewards = np.abs(run.values("loss")), np.abs(run.values(REWARD))
    scale = max(1.0, rewards.max(initial=0), np.nan_to_num(run.largest("reward/std")))
    if run.framework != "trl":
        scale *= max(1.0, np.nan_to_num(run.largest("length/mean")))
    if not len(losses) or not np.median(losses) > LOSS_HUGE * scale or kl_overflow(run):
        return None
    return likely(
        f"|loss| is {number(median(losses))} (median of {count(len(losses), 'row')}), and at most"
        f" {number(float(losses.max()))}",
        f"rewards, and so advantages, are of the size of {number(scale)} at most" if run.framework == "trl" else "",
        f"the KL to the reference is {number(run.median('kl_ref/k3'))}" if len(run.values("kl_ref/k3")) else "",
    )
