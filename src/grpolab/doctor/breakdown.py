"""Why does training break down, or go nowhere: no bound on ratio, KL, entropy or length, or nothing left to learn."""

from __future__ import annotations

import numpy as np
import pandas as pd

from grpolab.doctor.causes import Confidence, Finding, Question
from grpolab.doctor.evidence import USUAL_RANGE, Evidence, Floats, largest, middle
from grpolab.doctor.first_pass import ratio_is_off
from grpolab.doctor.ratio_is_one import constant_reward
from grpolab.quantities import Thresholds
from grpolab.report.journals import column
from grpolab.report.stability import collapsed, final_score
from grpolab.report.text import count, number, percent
from grpolab.vocabulary import counterfactual

TRAINING_GOES_WRONG = Question("Why does training break down, or go nowhere?")


def fall(run: Evidence) -> str | None:
    """That the run ended with less than it had, with the numbers; None where it did not, or nothing says so."""
    metric, score = _score(run)
    if len(score) < 2:
        return None
    if metric == "reward/mean":  # a mean over one batch's samples: its first value and its peak are partly chance
        start, end = run.ends(metric)
        if not start - end >= _doubt(metric, score):
            return None
        return f"{metric} fell from {number(start)} (first tenth of the run) to {number(end)} (last tenth)"
    start, peak, end = float(score[0]), float(score.max()), final_score(score)
    if end < start and number(end) != number(start):
        best = f" (peak {number(peak)})" if peak > start else ""
        return f"{metric} fell from {number(start)} at the start{best} to {number(end)} at the end"
    if peak - end >= Thresholds.collapse_drop:
        return f"{metric} fell from its peak of {number(peak)} to {number(end)} at the end (start {number(start)})"
    return None


def has_score(run: Evidence) -> bool:
    """Whether accuracy or reward is there at all."""
    return len(_score(run)[1]) > 0


def _score(run: Evidence) -> tuple[str, Floats]:
    """How good the policy is over time: on held-out items where it was evaluated twice, else the mean reward."""
    for metric in ("eval/accuracy_expected", "eval/accuracy_greedy"):
        if len(accuracy := _finite(run.evaluations, metric)) > 1:
            return metric, accuracy
    return "reward/mean", _finite(run.rollouts, "reward/mean")


def _finite(frame: pd.DataFrame, metric: str) -> Floats:
    values = column(frame, metric)
    return values[np.isfinite(values)]


def _doubt(metric: str, score: Floats) -> float:
    """What the score must have lost to be believed: of a mean reward, three times what neighbours differ by."""
    if metric.startswith("eval/"):
        return Thresholds.collapse_drop
    return 3 * float(np.std(np.diff(score))) / np.sqrt(2) if len(score) > 2 else np.inf


# ----------------------------------------------------------------------------------------------------------------------
# Nothing bounds the ratio or the KL.


UNCLIPPED = "ratio"  # the `kernel` that is the surrogate without a clip


@TRAINING_GOES_WRONG.cause(
    says="Nothing is clipped although the batch is reused and ratios go far from 1: the policy was driven away from the"
    " one that sampled.",
    remedy="Use a clip range (kernel=clipped, epsilon=0.2), take fewer iterations, or a smaller learning rate.",
)
def unclipped(run: Evidence) -> Finding | None:
    """No clip acts on a reused batch, ratios leave the usual range, and what the policy could do was lost."""
    what_fell, metric, score = fall(run), *_score(run)
    if not what_fell or run.is_still or not len(run.reach) or not _nothing_clips(run):
        return None
    if metric != "reward/mean" and not (collapsed(score) or score[0] - final_score(score) > _error(run, score)):
        return None
    kernel = run.settings.get("kernel")
    evidence = [
        f"kernel={kernel}: it has no clip" if kernel == UNCLIPPED else "no token was clipped in any update",
        what_fell,
        f"on used batches the ratio is off 1 by {number(float(np.median(run.reach)))} (median over"
        f" {count(len(run.reach), 'update')}), at most by {number(float(run.reach.max()))}",
    ]
    usual = USUAL_RANGE["token"]
    if len(would := column(run.later, counterfactual("token", usual))):
        evidence.append(f"a range of {usual:g} would have clipped {percent(float(would.mean()))} of the tokens")
    return Finding("unclipped", "likely", tuple(evidence))


def _nothing_clips(run: Evidence) -> bool:
    if run.has_outer_cap:
        return False
    active, outer, capped = (column(run.later, f"clip/{part}") for part in ("active", "outer", "capped"))
    return run.settings.get("kernel") == UNCLIPPED or (
        len(active) > 0 and not (active.any() or outer.any() or capped.any())
    )


def _error(run: Evidence, score: Floats) -> float:
    """What an accuracy must lie below its start to count as fallen, by the report's definition of `below_start`."""
    items, start = run.settings.get("evaluation.items"), float(score[0])
    if not items:
        return Thresholds.collapse_drop
    return Thresholds.below_start_errors * float(np.sqrt(start * (1 - start) / items))


KL_HUGE = 10.0  # nat per token: a mean of exp(difference), which a few tokens make
KL_DOMINATES = 10.0  # beta times KL, in advantages (which are about 1)


@TRAINING_GOES_WRONG.cause(
    says="The KL term overflows: a few tokens that the reference finds far likelier dominate loss and gradient.",
    remedy="Clamp the KL's input, or use another estimator (k1, k2) or a smaller beta.",
)
def kl_overflow(run: Evidence) -> Finding | None:
    """The KL to the reference is huge, and the penalty outweighs every advantage."""
    beta = float(run.settings.get("beta", 1))  # of a log without settings: the KL has to be huge anyway
    worst = largest(run.updates, "kl_ref/k3")
    if not worst > KL_HUGE or not beta * worst > KL_DOMINATES:
        return None
    where = run.updates.loc[run.updates["kl_ref/k3"].idxmax()]
    evidence = (
        f"KL to the reference (k3) reached {number(worst)} nat per token in rollout step {int(where['rollout_step'])}:"
        f" times beta={beta:g} that is {number(beta * worst)}, where advantages are about 1",
        f"its median is {number(middle(run.updates, 'kl_ref/k3'))}",
        f"the loss reached {number(largest(run.updates, 'loss'))}",
    )
    return Finding("kl_overflow", "certain", evidence)


CELL_RATIO = 5.0  # of a token with A < 0: the clip would have let a token with A > 0 go at 1.2
CELL_SHARE = 0.2  # of the updates


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
    out = ratios > CELL_RATIO
    norms = column(run.updates, "grad_norm")
    spike = float(norms.max() / np.median(norms[norms > 0])) if (norms > 0).any() else 0.0
    if not len(out) or out.mean() < CELL_SHARE or spike < Thresholds.spike_factor:
        return None
    worst = run.updates.loc[run.updates["ratio/token_max_neg"].idxmax()]
    evidence = (
        f"in {percent(float(out.mean()))} of the updates a token with A < 0 has a ratio above {CELL_RATIO:g}; the"
        f" largest is {number(worst['ratio/token_max_neg'])}, in rollout step {int(worst['rollout_step'])}",
        f"the largest gradient norm is {number(float(norms.max()))}, {number(spike)} times the median",
        "neither delta nor dual_clip caps such a ratio",
    )
    return Finding("unbounded_cell", "likely", evidence)


# ----------------------------------------------------------------------------------------------------------------------
# The policy turned to noise, to one answer, to endless answers, or is lost; or nothing is left to learn from.


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
    return Finding("entropy_explosion", _confidence(run, is_asked_for=_entropy_bonus(run) > 0), evidence)


ENTROPY_HALVED = 0.5  # of the start: enough where a setting asks for it
STARVED_PART = 0.5  # of the run that is looked at: a batch has too few groups to count one alone


@TRAINING_GOES_WRONG.cause(
    says="Entropy fell to almost 0 early: samples of a prompt are all the same, so nothing is left to compare.",
    remedy="Raise epsilon_high, add an entropy bonus or a KL, or lower the learning rate.",
)
def entropy_collapse(run: Evidence) -> Finding | None:
    """Entropy fell to a quarter of its start (a bonus with the wrong sign: to half) and not because all is right."""
    start, end = run.ends("entropy/behaviour")
    bonus = _entropy_bonus(run)
    _, wrong = run.ends("zero_variance/all_wrong", STARVED_PART)
    _, right = run.ends("zero_variance/all_right", STARVED_PART)
    if not end < (ENTROPY_HALVED if bonus < 0 else Thresholds.entropy_ratio) * start or right > wrong:
        return None
    evidence = [
        f"entropy fell from {number(start)} to {number(end)} nat per token",
        f"in the second half of the run {percent(wrong)} of the groups are all wrong; at its end"
        f" {percent(run.ends('completions/unique')[1])} of a prompt's completions are distinct",
    ]
    if bonus:
        evidence.append(f"entropy_coef={bonus:g}")
    return Finding("entropy_collapse", _confidence(run, is_asked_for=bonus < 0), tuple(evidence))


def _entropy_bonus(run: Evidence) -> float:
    return float(run.settings.get("entropy_coef") or 0)


def _confidence(run: Evidence, *, is_asked_for: bool) -> Confidence:
    """Of what a setting asks for; else of what a broken policy shows too."""
    return "certain" if is_asked_for else "possible" if collapse(run) else "likely"


TRUNCATED = 0.5  # share of completions at the end


@TRAINING_GOES_WRONG.cause(
    says="Completions grow until they are cut off at max_completion_length.",
    remedy="Check what rewards length (a missing end penalty, sum aggregation); mask truncated completions.",
)
def length_blow_up(run: Evidence) -> Finding | None:
    """Most completions are cut off at the end of the run, and far fewer were at its start."""
    start, end = run.ends("truncation/share")
    if not end > TRUNCATED or not start < TRUNCATED * end:
        return None
    shorter, longer = run.ends("length/mean")
    evidence = (
        f"{percent(start)} of the completions were cut off at the start, {percent(end)} at the end",
        f"their mean length went from {number(shorter)} to {number(longer)} tokens"
        f" (max_completion_length={run.settings.get('max_completion_length')})",
    )
    before, after = run.ends("reward/mean")
    if not after > before:  # cut off because it is broken, not because length pays
        return Finding("length_blow_up", "possible", evidence, ("collapse",))
    return Finding("length_blow_up", "likely", (*evidence, f"the mean reward rose to {number(after)} all the same"))


LOST = 0.9  # share of the score at the start that a collapsed run lost: small batches alone can cost three quarters


@TRAINING_GOES_WRONG.cause(
    says="The policy collapsed: reward fell and stayed down, and the ratio says little since then.",
    remedy="Go back before the collapse; a smaller learning rate, fewer iterations, or a KL.",
)
def collapse(run: Evidence) -> Finding | None:
    """The policy lost nearly all that it could at the start, did not win it back, and is not paid for that."""
    metric, score = _score(run)
    before, after = run.ends("reward/mean")
    if not len(score) or after > before:
        return None
    start, end, least = float(score[0]), final_score(score), (1 - LOST) * float(score[0])
    if not end < least or start - end < _doubt(metric, score):
        return None
    evidence = (
        f"{metric} fell from {number(start)} at the start (peak {number(float(score.max()))}) to {number(end)} at the"
        f" end; it was below a tenth of the start first at point {int(np.argmax(score < least))} of {len(score) - 1}",
    )
    return Finding("collapse", "likely", evidence)


@TRAINING_GOES_WRONG.cause(
    says="Most groups have equal rewards: few completions teach anything.",
    remedy="Draw harder prompts or filter the groups (dynamic sampling); raise num_generations.",
)
def starving_variance(run: Evidence) -> Finding | None:
    """Nearly all groups of the second half of the run have equal rewards, most of them because nothing is right."""
    start, end = run.ends("zero_variance/share", STARVED_PART)
    _, wrong = run.ends("zero_variance/all_wrong", STARVED_PART)
    if not end > Thresholds.starvation or wrong < end / 2 or constant_reward(run):
        return None
    evidence = (
        f"groups with equal rewards: {percent(start)} in the first half of the run, {percent(end)} in the second",
        f"in the second half {percent(wrong)} of the groups are all wrong; the mean reward is"
        f" {number(run.ends('reward/mean', STARVED_PART)[1])}",
    )
    return Finding("starving_variance", "possible" if collapse(run) else "likely", evidence)
