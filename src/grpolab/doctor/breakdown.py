"""Why does training break down, or go nowhere; and why does the clip metric mislead."""

from __future__ import annotations

import numpy as np
import pandas as pd

from grpolab.doctor.causes import Finding, Question, certain, likely
from grpolab.doctor.evidence import TRUNCATED, USUAL_RANGE, Evidence, largest, median, trend
from grpolab.doctor.first_pass import ratio_is_off
from grpolab.doctor.ratio_is_one import constant_reward
from grpolab.quantities import Thresholds
from grpolab.report.journals import column
from grpolab.report.stability import collapsed, final_score
from grpolab.report.text import count, number, percent
from grpolab.vocabulary import DIVERGED, counterfactual

TRAINING_GOES_WRONG = Question("Why does training break down, or go nowhere?")
METRIC_MISLEADS = Question("Why does the clip metric not fit the rest of the log?")

UNCLIPPED = "ratio"  # the `kernel` that is the surrogate without a clip
KL_HUGE = 10.0  # nat per token: a mean of exp(difference), which a few tokens make
KL_FAR = 1.0  # nat per token: a factor of e on every token
COURSE = 10  # rows: fewer have no beginning and end to compare
GRADIENT_GROWTH = 10.0
KL_DOMINATES = 10.0  # beta times KL, in advantages (which are about 1)
CELL_RATIO = 5.0  # of a token with A < 0: the clip would have let a token with A > 0 go at 1.2
CELL_SHARE = 0.2  # of the updates
ENTROPY_HALVED = 0.5  # of the start: enough where a setting asks for it
STARVED_PART = 0.5  # of the run that is looked at: a batch has too few groups to count one alone
THIRD, LONGER = 1 / 3, 2.0  # parts of a run that are compared, and the length of the last over that of the first
SPREAD_GONE = 0.1  # of the standard deviation at the start
# Measure of the distance of sampler and trainer -> what precision alone makes of it: the largest difference in nat, its
# mean, a KL, and the mean difference in probability.
GAPS = {"gap/mean": 0.02, "gap/kl": 5e-3, "gap/probability": 0.02, "gap/sampler_trainer": 0.1}
GAP_GROWTH = 5.0  # the last over the first
MUST_BE_FINITE = ("loss", "grad_norm", "kl_ref/k3", "entropy/behaviour", "reward/mean", "ratio/token_max")
LASTS = 2  # rows: one row may be a gradient that mixed precision skipped
LOST = 0.9  # share of the score at the start that a collapsed run lost: small batches alone can cost three quarters
MISCOUNTED = 0.005  # relative difference of a share from its count


def fall(run: Evidence) -> str | None:
    """That the run ended with less than it had, with the numbers; None where it did not, or nothing says so."""
    metric, score = run.score
    if len(score) < 2:
        return None
    if metric == "reward/mean":  # a mean over one batch's samples: its first value and its peak are partly chance
        start, end = run.ends(metric)
        if not start - end >= _doubt(run) or number(end) == number(start):
            return None
        return f"{metric} fell from {number(start)} (first tenth of the run) to {number(end)} (last tenth)"
    start, peak, end = float(score[0]), float(score.max()), final_score(score, Thresholds.tail)
    if end < start and number(end) != number(start):
        best = f" (peak {number(peak)})" if peak > start else ""
        return f"{metric} fell from {number(start)} at the start{best} to {number(end)} at the end"
    if peak - end >= Thresholds.collapse_drop:
        return f"{metric} fell from its peak of {number(peak)} to {number(end)} at the end (start {number(start)})"
    return None


def _doubt(run: Evidence) -> float:
    """What the score must have lost to be believed: of a mean reward, three times what neighbours differ by."""
    metric, score = run.score
    if metric != "reward/mean":
        return Thresholds.collapse_drop
    return 3 * float(np.std(np.diff(score))) / np.sqrt(2) if len(score) > 2 else np.inf


@TRAINING_GOES_WRONG.cause(
    says="Nothing is clipped although the batch is reused and ratios go far from 1: the policy was driven away from the"
    " one that sampled.",
    remedy="Use a clip range (kernel=clipped, epsilon=0.2), take fewer iterations, or a smaller learning rate.",
)
def unclipped(run: Evidence) -> Finding | None:
    """No clip acts on a reused batch, ratios leave the usual range, and what the policy could do was lost."""
    kernel = run.settings.get("kernel")
    clips = [column(run.later, f"clip/{part}") for part in ("active", "outer", "capped")]
    idle = len(clips[0]) > 0 and not any(clip.any() for clip in clips)
    if run.has_outer_cap or not (kernel == UNCLIPPED or idle):
        return None
    what_fell, (metric, score) = fall(run), run.score
    if not what_fell or run.is_still or not len(run.reach):
        return None
    if metric != "reward/mean" and not collapsed(score):  # then by the report's definition of `below_start`
        start, items = float(score[0]), run.settings.get("evaluation.items")
        error = Thresholds.collapse_drop
        if items:
            error = Thresholds.below_start_errors * float(np.sqrt(start * (1 - start) / items))
        if not start - final_score(score, Thresholds.tail) > error:
            return None
    evidence = [
        f"kernel={kernel}: it has no clip" if kernel == UNCLIPPED else "no token was clipped in any update",
        what_fell,
        f"on used batches the ratio is off 1 by {number(float(np.median(run.reach)))} (median over"
        f" {count(len(run.reach), 'update')}), at most by {number(run.farthest)}",
    ]
    usual = USUAL_RANGE["token"]
    if len(would := column(run.later, counterfactual("token", usual))):
        evidence.append(f"a range of {usual:g} would have clipped {percent(float(would.mean()))} of the tokens")
    return likely(*evidence)


@TRAINING_GOES_WRONG.cause(
    says="The KL term overflows: a few tokens that the reference finds far likelier dominate loss and gradient.",
    remedy="Clamp the KL's input, or use another estimator (k1, k2) or a smaller beta.",
)
def kl_overflow(run: Evidence) -> Finding | None:
    """The KL to the reference is huge, and the penalty outweighs every advantage."""
    beta = run.setting("beta", 1)  # of a log without settings: the KL has to be huge anyway
    worst = largest(run.updates, "kl_ref/k3")
    if not worst > KL_HUGE or not beta * worst > KL_DOMINATES:
        return None
    where = run.updates.loc[run.updates["kl_ref/k3"].idxmax()]
    return certain(
        f"KL to the reference (k3) reached {number(worst)} nat per token in rollout step {int(where['rollout_step'])}:"
        f" times beta={beta:g} that is {number(beta * worst)}, where advantages are about 1",
        f"its median is {number(median(run.updates, 'kl_ref/k3'))}",
        f"the loss reached {number(largest(run.updates, 'loss'))}",
    )


@TRAINING_GOES_WRONG.cause(
    says="The KL to the reference exploded: the policy is another one than it was, and the penalty does not hold it.",
    remedy="Take a smaller learning rate or a larger beta, and check that the reference is the model that training"
    " began with (the base under a LoRA adapter, no merged or other checkpoint).",
)
def kl_explosion(run: Evidence) -> Finding | None:
    """The typical KL of the second half is more than a nat per token, and it did not begin there.

    One nat: under the reference a token is on average e times less likely. Single rows say nothing, since k3 is an
    exponential that one token can make large.
    """
    divergence = column(run.updates, "kl_ref/k3")
    half = divergence[len(divergence) // 2 :]
    if len(divergence) < COURSE or not np.median(half) > KL_FAR or not divergence[0] < np.median(half) / 2:
        return None
    first = int(np.argmax(divergence > KL_FAR))
    return likely(
        f"the KL to the reference went from {number(float(divergence[0]))} to {number(float(np.median(half)))} nat per"
        f" token (median of the second half), and at most {number(float(divergence.max()))}",
        f"it was above 1 first in row {first} of {count(len(divergence), 'row')}",
        _rate(run),
    )


@TRAINING_GOES_WRONG.cause(
    says="The gradient grows without bound.",
    remedy="Take a smaller learning rate, clip the gradient (max_grad_norm), and look for what scales the loss: a"
    " reward whose size grows, a sum over tokens, a penalty that outgrew the rest.",
)
def gradient_explosion(run: Evidence) -> Finding | None:
    """The typical gradient norm of the last fifth is ten times that of the first, where the reward did not rise.

    Where it did it is a hundred times: growth that goes with learning is less.
    """
    norms = column(run.updates, "grad_norm")
    fifth = len(norms) // 5
    if fifth < 2 or not np.isfinite(norms).all():
        return None
    start, end = float(np.median(norms[:fifth])), float(np.median(norms[-fifth:]))
    before, after = run.ends("reward/mean", 0.2)
    if not 0 < start * GRADIENT_GROWTH ** (2 if after > before else 1) < end:
        return None
    return likely(
        f"the gradient norm grew from {number(start)} to {number(end)} (medians of the first and the last fifth), and"
        f" at most {number(float(norms.max()))}",
        f"the mean reward went from {number(before)} to {number(after)}",
        _rate(run),
    )


def _rate(run: Evidence) -> str:
    usual = " (language models are usually trained at about 1e-6, with LoRA at about 1e-5)"
    return f"the learning rate is {number(run.peak_rate)} at most{'' if run.framework == 'grpolab' else usual}"


@TRAINING_GOES_WRONG.cause(
    says="Tokens with A<0 and a ratio above 1+epsilon are not clipped: their gradient grows with the ratio, and"
    " spikes.",
    remedy="Set delta or dual_clip, take fewer iterations, or a smaller learning rate.",
)
def unbounded_cell(run: Evidence) -> Finding | None:
    """Tokens with A < 0 reach large ratios in many updates, where no clip bounds them, and the gradient spikes."""
    if "ratio/token_max_neg" not in run.updates or ratio_is_off(run) or run.has_outer_cap:
        return None
    ratios = run.updates["ratio/token_max_neg"]
    if "clip/active_nz" in run.updates:  # it is absent where every advantage is 0: there no ratio is large
        ratios = ratios[ratios.notna() | run.updates["clip/active_nz"].isna()]  # else: not measured
    norms = column(run.updates, "grad_norm")
    spike = float(norms.max() / np.median(norms[norms > 0])) if (norms > 0).any() else 0.0
    share = float((ratios > CELL_RATIO).mean()) if len(ratios) else 0.0
    if share < CELL_SHARE or spike < Thresholds.spike_factor:
        return None
    worst = run.updates.loc[run.updates["ratio/token_max_neg"].idxmax()]
    return likely(
        f"in {percent(share)} of the updates a token with A < 0 has a ratio above {CELL_RATIO:g}; the"
        f" largest is {number(worst['ratio/token_max_neg'])}, in rollout step {int(worst['rollout_step'])}",
        f"the largest gradient norm is {number(float(norms.max()))}, {number(spike)} times the median",
        "neither delta nor dual_clip caps such a ratio",
    )


@TRAINING_GOES_WRONG.cause(
    says="Entropy grew out of bounds: the policy turned to noise.",
    remedy="Lower entropy_coef; check the sign of the entropy bonus.",
)
def entropy_explosion(run: Evidence) -> Finding | None:
    """Entropy doubled at least, and the reward fell."""
    start, end = run.ends("entropy/behaviour")
    before, after = run.ends("reward/mean")
    if not end > Thresholds.entropy_explosion * start or not after < before:
        return None
    evidence = (
        f"entropy rose from {number(start)} to {number(end)} nat per token",
        f"the mean reward fell from {number(before)} to {number(after)}",
    )
    asked_for = run.setting("entropy_coef") > 0
    return Finding("certain" if asked_for else "possible" if collapse(run) else "likely", evidence)


@TRAINING_GOES_WRONG.cause(
    says="Entropy fell to almost 0 early: samples of a prompt are all the same, so nothing is left to compare.",
    remedy="Raise epsilon_high, add an entropy bonus or a KL, or lower the learning rate.",
)
def entropy_collapse(run: Evidence) -> Finding | None:
    """Entropy fell to a quarter of its start (a bonus with the wrong sign: to half) and not because all is right."""
    start, end = run.ends("entropy/behaviour")
    bonus = run.setting("entropy_coef")
    _, wrong = run.ends("zero_variance/all_wrong", STARVED_PART)
    _, right = run.ends("zero_variance/all_right", STARVED_PART)
    if not end < (ENTROPY_HALVED if bonus < 0 else Thresholds.entropy_ratio) * start or right > wrong:
        return None
    evidence = (
        f"entropy fell from {number(start)} to {number(end)} nat per token",
        f"in the second half of the run {percent(wrong)} of the groups are all wrong; at its end"
        f" {percent(run.ends('completions/unique')[1])} of a prompt's completions are distinct",
        *([f"entropy_coef={bonus:g}"] if bonus else []),
    )
    return Finding("certain" if bonus < 0 else "possible" if collapse(run) else "likely", evidence)


@TRAINING_GOES_WRONG.cause(
    says="Completions grow until they are cut off at max_completion_length, or to a multiple of what they were while"
    " the reward falls.",
    remedy="Check what rewards length (a missing end penalty, sum aggregation); mask truncated completions.",
)
def length_blow_up(run: Evidence) -> Finding | None:
    """Most completions are cut off at the end of the run and far fewer were at its start, or length does not pay."""
    start, end = run.ends("truncation/share")
    cut_off = end > TRUNCATED and start < TRUNCATED * end
    part = Thresholds.tail if cut_off else THIRD
    shorter, longer = run.ends("length/mean", part)
    before, after = run.ends("reward/mean", part)
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
        change, error = trend(column(run.rollouts, "reward/mean"))
        return Finding("likely" if change < -2 * error else "possible", tuple(evidence))
    if not after > before:  # cut off because it is broken, not because length pays
        return Finding("possible", tuple(evidence), ("collapse",))
    return likely(*evidence, f"the mean reward rose to {number(after)} all the same")


@TRAINING_GOES_WRONG.cause(
    says="The policy collapsed: reward fell and stayed down, and the ratio says little since then.",
    remedy="Go back before the collapse; a smaller learning rate, fewer iterations, or a KL.",
)
def collapse(run: Evidence) -> Finding | None:
    """The policy lost nearly all that it could at the start, did not win it back, and is not paid for that."""
    metric, score = run.score
    before, after = run.ends("reward/mean")
    if not len(score) or after > before:
        return None
    start, end, least = float(score[0]), final_score(score, Thresholds.tail), (1 - LOST) * float(score[0])
    if not end < least or start - end < _doubt(run):
        return None
    return likely(
        f"{metric} fell from {number(start)} at the start (peak {number(float(score.max()))}) to {number(end)} at the"
        f" end; it was below a tenth of the start first at point {int(np.argmax(score < least))} of {len(score) - 1}"
    )


@TRAINING_GOES_WRONG.cause(
    says="Most groups have equal rewards: few completions teach anything.",
    remedy="Draw harder prompts or filter the groups (dynamic sampling); raise num_generations.",
)
def starving_variance(run: Evidence) -> Finding | None:
    """Nearly all groups of the second half of the run have equal rewards, most of them because nothing is right.

    A log does not say what is right: there the reward did not rise. Without a share of groups, their standard deviation
    fell to a tenth.
    """
    start, end = run.ends("zero_variance/share", STARVED_PART)
    _, wrong = run.ends("zero_variance/all_wrong", STARVED_PART)
    before, after = run.ends("reward/mean", STARVED_PART)
    spread, left = run.ends("reward/std")
    if constant_reward(run) or (np.isnan(wrong) and not after <= before):
        return None
    if np.isnan(end) and left < SPREAD_GONE * spread:
        return likely(
            f"the standard deviation of the rewards fell from {number(spread)} to {number(left)}",
            f"the mean reward went from {number(before)} to {number(after)} (halves of the run)",
        )
    if not end > Thresholds.starvation or wrong < end / 2:
        return None
    all_wrong = "" if np.isnan(wrong) else f"in the second half {percent(wrong)} of the groups are all wrong; "
    evidence = (
        f"groups with equal rewards: {percent(start)} in the first half of the run, {percent(end)} in the second",
        f"{all_wrong}the mean reward is {number(after)}",
    )
    return Finding("possible" if collapse(run) else "likely", evidence)


@TRAINING_GOES_WRONG.cause(
    says="The sampler drifts away from the trainer: it does not get the trainer's weights, or the two compute"
    " differently and training widens it. The ratio is then not that to the policy which sampled.",
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
        return likely(*evidence) if steady else Finding("possible", evidence)
    return None


@TRAINING_GOES_WRONG.cause(
    says="Numbers are not finite: from there on loss, gradient and weights mean nothing.",
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
    return likely(*evidence) if lasts or run.state.startswith(DIVERGED) else Finding("possible", tuple(evidence))


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
