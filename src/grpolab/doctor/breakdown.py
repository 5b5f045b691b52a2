"""Causes of a breakdown of training: no clip, or a term that outgrows the rest. `decline.py` has the policy's side."""

from __future__ import annotations

import numpy as np

from grpolab.doctor.causes import Finding, Symptom, certain, likely, say_change
from grpolab.doctor.evidence import REWARD, STILL_REACH, USUAL_RANGE, Evidence, median
from grpolab.doctor.first_pass import ratio_is_off
from grpolab.quantities import Thresholds
from grpolab.report.journals import column
from grpolab.report.text import count, number, percent
from grpolab.vocabulary import counterfactual

BREAKDOWN = Symptom("Why does training break down, or go nowhere?")

UNCLIPPED = "ratio"  # the `kernel` that is the surrogate without a clip
KL_HUGE = 10.0  # nat per token: a mean of exp(difference), which a few tokens make
KL_FAR = 1.0  # nat per token: a factor of e on every token
COURSE = 10  # rows: fewer have no beginning and end to compare
GRADIENT_GROWTH = 10.0
KL_DOMINATES = 10.0  # beta times KL, in advantages (which are about 1)
CELL_RATIO = 5.0  # of a token with A < 0: the clip would have let a token with A > 0 go at 1.2
CELL_SHARE = 0.2  # of the updates


def describe_fall(run: Evidence) -> str | None:
    """Say from where to where the score fell; None where it did not, or nothing says so."""
    metric, score = run.score
    if len(score) < 2:
        return None
    if metric == REWARD and not run.is_collapsed:  # of single batches: the first value and the peak are partly chance
        start, end = run.ends(metric)
        if not start - end >= believable_fall(run) or number(end) == number(start):
            return None
        return f"{metric} fell from {number(start)} (first tenth of the run) to {number(end)} (last tenth)"
    start, peak, end = float(run.course[0]), float(run.course.max()), run.final_score
    if end < start and number(end) != number(start):
        best = f" (peak {number(peak)})" if peak > start else ""
        return f"{metric} fell from {number(start)} at the start{best} to {number(end)} at the end"
    if run.is_collapsed or peak - end >= Thresholds.collapse_drop:
        return f"{metric} fell from its peak of {number(peak)} to {number(end)} at the end (start {number(start)})"
    return None


def believable_fall(run: Evidence) -> float:
    """Return the least fall of the score that is believed: of a mean reward, three times what neighbours differ by."""
    metric, score = run.score
    if metric != REWARD:
        return Thresholds.collapse_drop
    return 3 * float(np.std(np.diff(score))) / np.sqrt(2) if len(score) > 2 else np.inf


@BREAKDOWN.cause(
    "Nothing is clipped although the batch is reused and ratios go far from 1: the policy was driven away from the one"
    " that sampled.",
    "Use a clip range that acts (epsilon=0.2), take fewer iterations, or a smaller learning rate.",
)
def unclipped(run: Evidence) -> Finding | None:
    """No clip acts on a reused batch, ratios leave the usual range, and what the policy could do was lost.

    Of a run whose updates are not kept, and that has no clip, its numbers say how far the ratio went.
    """
    has_no_clip, farthest = run.settings.get("kernel") == UNCLIPPED, run.numbers.get("ratio_max", np.nan)
    clips = [column(run.later, f"clip/{part}") for part in ("active", "outer", "capped")]
    is_idle = len(clips[0]) > 0 and not any(clip.any() for clip in clips)
    if run.has_outer_cap or not (has_no_clip or is_idle):
        return None
    fall, (metric, score), reach = describe_fall(run), run.score, run.reach
    if not fall or (run.is_still if len(reach) else not farthest - 1 > STILL_REACH):
        return None
    if metric != REWARD and not run.is_collapsed:  # then by the report's definition of `below_start`
        start, items = float(score[0]), run.settings.get("evaluation.items")
        error = Thresholds.below_start_errors * np.sqrt(start * (1 - start) / items) if items else None
        if not start - run.final_score > (Thresholds.collapse_drop if error is None else error):
            return None
    usual = USUAL_RANGE["token"]
    would = column(run.later, counterfactual("token", usual))
    return likely(
        f"kernel={UNCLIPPED}: it has no clip" if has_no_clip else "no token was clipped in any update",
        fall,
        f"on used batches the ratio is off 1 by {number(median(reach))} (median over {count(len(reach), 'update')}), at"
        f" most by {number(run.farthest)}"
        if len(reach)
        else f"the largest ratio of a token is {number(farthest)}",
        f"a range of {usual:g} would have clipped {percent(float(would.mean()))} of the tokens" if len(would) else "",
        remedy="Use a kernel with a clip range (kernel=clipped, epsilon=0.2), take fewer iterations, or a smaller"
        " learning rate."
        if has_no_clip
        else "",
    )


@BREAKDOWN.cause(
    "The KL term overflows: the penalty outweighs every advantage, and what is learned is the KL.",
    "Clamp the KL's input, or use another estimator (k1, k2).",
)
def kl_overflow(run: Evidence) -> Finding | None:
    """The KL to the reference is huge, and the penalty outweighs every advantage."""
    beta = run.setting("beta", 1)  # of a log without settings: the KL has to be huge anyway
    worst, usual = run.largest("kl_ref/k3"), run.median("kl_ref/k3")
    if not worst > KL_HUGE or not beta * worst > KL_DOMINATES:
        return None
    step = int(run.updates.loc[run.updates["kl_ref/k3"].idxmax(), "rollout_step"])
    says = "The KL term overflows: a few tokens that the reference finds far likelier dominate the penalty."
    remedy = "Clamp the KL's input, or use another estimator (k1, k2) or a smaller beta."
    if usual > KL_FAR:
        says = (
            "The KL term overflows: the whole policy is far from its reference; the penalty outweighs all advantages."
        )
        remedy = (
            "Take a smaller learning rate or fewer iterations, and check which reference it is; then clamp the KL's"
            " input, or use another estimator (k1, k2)."
        )
    penalty = f": times beta={beta:g} that is {number(beta * worst)}, where advantages are about 1"
    is_weighted = "beta" in run.settings  # else nobody knows what the KL does to the loss
    return (certain if is_weighted else likely)(
        f"KL to the reference (k3) reached {number(worst)} nat per token in rollout step {step}"
        f"{penalty if is_weighted else ''}",
        f"its median is {number(usual)}",
        f"the loss reached {number(run.largest('loss'))}",
        says=says,
        remedy=remedy,
    )


@BREAKDOWN.cause(
    "The KL to the reference exploded: the policy is another one than it was, and nothing holds it.",
    "Take a smaller learning rate, a KL penalty or a larger beta, and check that the reference is the model that"
    " training began with (the base under a LoRA adapter, no merged or other checkpoint).",
)
def kl_explosion(run: Evidence) -> Finding | None:
    """The typical KL of the second half is more than a nat per token, and it did not begin there.

    One nat: under the reference a token is on average e times less likely. Single rows say nothing, since k3 is an
    exponential that one token can make large.
    """
    divergence = run.values("kl_ref/k3")
    end = median(divergence[len(divergence) // 2 :])
    if len(divergence) < COURSE or not end > KL_FAR or not divergence[0] < end / 2:
        return None
    says = remedy = ""
    if "beta" in run.settings:
        beta = run.setting("beta")
        held = f"the penalty does not hold it (beta={beta:g})" if beta else "no penalty holds it (beta=0)"
        says = f"The KL to the reference exploded: the policy is another one than it was, and {held}."
        remedy = (
            f"Take a smaller learning rate or a {'larger beta' if beta else 'KL penalty (beta above 0)'}, and check"
            " that the reference is the model that training began with."
        )
    return likely(
        f"{say_change('the KL to the reference', (float(divergence[0]), end))} nat per token (median of the second"
        f" half), and at most {number(float(divergence.max()))}",
        f"it was above 1 first in row {int(np.argmax(divergence > KL_FAR))} of {count(len(divergence), 'row')}",
        _say_rate(run),
        says=says,
        remedy=remedy,
    )


@BREAKDOWN.cause(
    "The gradient keeps growing.",
    "Take a smaller learning rate, clip the gradient (max_grad_norm), and look for what scales the loss: a reward whose"
    " size grows, a sum over tokens, a penalty that outgrew the rest.",
)
def gradient_explosion(run: Evidence) -> Finding | None:
    """The typical gradient norm of the last fifth is ten times that of the first, where the reward did not rise.

    Where it did it is a hundred times: growth that goes with learning is less.
    """
    norms = run.values("grad_norm")
    fifth = len(norms) // 5
    if fifth < 2 or not np.isfinite(norms).all():
        return None
    start, end = float(np.median(norms[:fifth])), float(np.median(norms[-fifth:]))
    before, after = run.ends(REWARD, 0.2)
    if not 0 < start * GRADIENT_GROWTH ** (2 if after > before else 1) < end:
        return None
    limit = run.setting("max_grad_norm", np.inf)
    clipped = (
        f"It is clipped already (max_grad_norm={limit:g}), so look for what scales the loss: a reward whose size grows,"
        " a sum over tokens, a penalty that outgrew the rest; or take a smaller learning rate."
    )
    return likely(
        f"the gradient norm grew from {number(start)} to {number(end)} (medians of the first and the last fifth), and"
        f" at most {number(float(norms.max()))}",
        say_change("the mean reward", (before, after)),
        _say_rate(run),
        remedy=clipped if end > limit else "",
    )


def _say_rate(run: Evidence) -> str:
    if np.isnan(run.peak_rate):
        return ""
    usual = " (language models are usually trained at about 1e-6, with LoRA at about 1e-5)"
    return f"the learning rate is {number(run.peak_rate)} at most{'' if run.framework == 'grpolab' else usual}"


@BREAKDOWN.cause(
    "Tokens with A<0 and a large ratio are not clipped: their gradient grows with the ratio, and spikes.",
    "Set delta or dual_clip, take fewer iterations, or a smaller learning rate.",
)
def unbounded_cell(run: Evidence) -> Finding | None:
    """Tokens with A < 0 reach large ratios in many updates, where no clip bounds them, and the gradient spikes."""
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
    range_ = "Use a clip range (kernel=clipped), which leaves this cell open, and with it: set"
    remedy = (
        f"{range_ if kernel == UNCLIPPED else 'Set'} delta or dual_clip, take"
        f" {' or '.join(drivers)}{', or ' if drivers else ''}a smaller learning rate."
    )
    return likely(
        f"in {percent(share)} of the updates a token with A < 0 has a ratio above {CELL_RATIO:g}; the largest is"
        f" {number(worst['ratio/token_max_neg'])}, in rollout step {int(worst['rollout_step'])}",
        f"the largest gradient norm is {number(float(norms.max()))}, {number(spike)} times the median",
        "neither delta nor dual_clip caps such a ratio",
        remedy=remedy,
    )
