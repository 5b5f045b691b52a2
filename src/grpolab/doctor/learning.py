"""Rules: training breaks down, or goes nowhere."""

from __future__ import annotations

import numpy as np
import pandas as pd

from grpolab.doctor.evidence import (
    CELL_RATIO,
    CELL_SHARE,
    DROP,
    ENTROPY_GROWTH,
    ENTROPY_HALVED,
    ENTROPY_LEFT,
    EQUAL_GROUPS,
    KL_DOMINATES,
    KL_HUGE,
    MISCOUNTED,
    MOST,
    ROUNDING,
    SMALL_FRACTION,
    SPIKE,
    STARVED_GROUPS,
    STARVED_PART,
    TAIL,
    TINY_ADVANTAGE,
    TRUNCATED,
    ZERO_LOSS,
    Confidence,
    Evidence,
    Finding,
    Floats,
    distance_from_one,
    largest,
    middle,
)
from grpolab.doctor.ratio import USUAL, ratio_is_off, step_fraction
from grpolab.report.journals import column
from grpolab.report.stability import DEFAULT, collapsed, final_score
from grpolab.report.text import count, number, percent
from grpolab.vocabulary import counterfactual

UNCLIPPED = "ratio"  # the kernel that is the surrogate without a clip


def fall(run: Evidence) -> str | None:
    """That the run ended with less than it had, with the numbers; None where it did not, or nothing says so."""
    metric, score = _score(run)
    if len(score) < 2:
        return None
    start, peak, end = float(score[0]), float(score.max()), final_score(score, TAIL)
    if metric == "reward/mean":  # a mean over one batch's samples: its first value and its peak are partly chance
        start, end = run.ends(metric)
        if not start - end >= _doubt(metric, score):
            return None
        return f"{metric} fell from {number(start)} (first tenth of the run) to {number(end)} (last tenth)"
    if end < start and number(end) != number(start):
        best = f" (peak {number(peak)})" if peak > start else ""
        return f"{metric} fell from {number(start)} at the start{best} to {number(end)} at the end"
    if peak - end >= DEFAULT.collapse_drop:
        return f"{metric} fell from its peak of {number(peak)} to {number(end)} at the end (start {number(start)})"
    return None


def has_score(run: Evidence) -> bool:
    """Whether accuracy or reward is there at all."""
    return len(_score(run)[1]) > 0


def unclipped(run: Evidence) -> Finding | None:
    """No clip acts on a reused batch, ratios leave the usual range, and what the policy could do was lost."""
    said, metric, score = fall(run), *_score(run)
    if not said or run.is_still or not len(run.reach) or not _nothing_clips(run):
        return None
    if metric != "reward/mean" and not (collapsed(score) or score[0] - final_score(score, TAIL) > _error(run, score)):
        return None
    kernel = run.settings.get("kernel")
    would = column(run.later, counterfactual("token", USUAL["token"]))
    evidence = [
        f"kernel={kernel}: it has no clip" if kernel == UNCLIPPED else "no token was clipped in any update",
        said,
        f"on used batches the ratio is off 1 by {number(float(np.median(run.reach)))} (median over"
        f" {count(len(run.reach), 'update')}), at most by {number(float(run.reach.max()))}",
    ]
    if len(would):
        evidence.append(
            f"a range of {USUAL['token']:g} would have clipped {percent(float(would.mean()))} of the tokens"
        )
    return Finding("unclipped", "likely", tuple(evidence))


def _nothing_clips(run: Evidence) -> bool:
    if run.settings.get("delta") or run.settings.get("dual_clip"):
        return False
    acted = [column(run.later, f"clip/{what}") for what in ("active", "outer", "capped")]
    return run.settings.get("kernel") == UNCLIPPED or (len(acted[0]) > 0 and not any(map(np.any, acted)))


def _error(run: Evidence, score: Floats) -> float:
    """What an accuracy must lie below its start to count as fallen, by the report's definition of `below_start`."""
    items, start = run.settings.get("evaluation.items"), float(score[0])
    if not items:
        return DEFAULT.collapse_drop
    return DEFAULT.below_start_errors * float(np.sqrt(start * (1 - start) / items))


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


def unbounded_cell(run: Evidence) -> Finding | None:
    """Tokens with A < 0 reach large ratios in many updates, where no clip bounds them, and the gradient spikes."""
    if "ratio/token_max_neg" not in run.updates or ratio_is_off(run) or _outer_cap(run):
        return None
    largest_neg = run.updates["ratio/token_max_neg"]
    if "clip/active_nz" in run.updates:  # it is absent where every advantage is 0: there no ratio is large
        largest_neg = largest_neg[largest_neg.notna() | run.updates["clip/active_nz"].isna()]  # else: not measured
    out = largest_neg > CELL_RATIO
    norms = column(run.updates, "grad_norm")
    spike = float(norms.max() / np.median(norms[norms > 0])) if (norms > 0).any() else 0.0
    if not len(out) or out.mean() < CELL_SHARE or spike < SPIKE:
        return None
    worst = run.updates.loc[run.updates["ratio/token_max_neg"].idxmax()]
    evidence = (
        f"in {percent(float(out.mean()))} of the updates a token with A < 0 has a ratio above {CELL_RATIO:g}; the"
        f" largest is {number(worst['ratio/token_max_neg'])}, in rollout step {int(worst['rollout_step'])}",
        f"the largest gradient norm is {number(float(norms.max()))}, {number(spike)} times the median",
        "neither delta nor dual_clip caps such a ratio",
    )
    return Finding("unbounded_cell", "likely", evidence)


def _outer_cap(run: Evidence) -> bool:
    return bool(run.settings.get("delta") or run.settings.get("dual_clip"))


def collapse(run: Evidence) -> Finding | None:
    """The policy lost nearly all that it could at the start, did not win it back, and is not paid for that."""
    metric, score = _score(run)
    before, after = run.ends("reward/mean")
    if not len(score) or after > before:
        return None
    start, end = float(score[0]), final_score(score, TAIL)
    lost = np.flatnonzero(score < (1 - DROP) * start)
    if not end < (1 - DROP) * start or start - end < _doubt(metric, score):
        return None
    evidence = (
        f"{metric} fell from {number(start)} at the start (peak {number(float(score.max()))}) to {number(end)} at the"
        f" end; it was below a tenth of the start first at point {int(lost[0])} of {len(score) - 1}",
    )
    return Finding("collapse", "likely", evidence)


def _score(run: Evidence) -> tuple[str, Floats]:
    """How good the policy is over time: on held-out items where it was evaluated twice, else the mean reward."""
    for metric in ("eval/accuracy_expected", "eval/accuracy_greedy"):
        if len(found := _finite(run.evaluations, metric)) > 1:
            return metric, found
    return "reward/mean", _finite(run.rollouts, "reward/mean")


def _finite(frame: pd.DataFrame, metric: str) -> Floats:
    values = column(frame, metric)
    return values[np.isfinite(values)]


def _doubt(metric: str, score: Floats) -> float:
    """What the score must have lost to be believed: of a mean reward, three times what neighbours differ by."""
    if metric.startswith("eval/"):
        return DEFAULT.collapse_drop
    return 3 * float(np.std(np.diff(score))) / np.sqrt(2) if len(score) > 2 else np.inf


def entropy_explosion(run: Evidence) -> Finding | None:
    """Entropy doubled at least, and the reward fell."""
    start, end = run.ends("entropy/behaviour")
    reward, left = run.ends("reward/mean")
    if not end > ENTROPY_GROWTH * start or not left < reward:
        return None
    evidence = (
        f"entropy rose from {number(start)} to {number(end)} nat per token",
        f"the mean reward fell from {number(reward)} to {number(left)}",
    )
    bonus = float(run.settings.get("entropy_coef") or 0)
    return Finding("entropy_explosion", _confidence(run, is_asked_for=bonus > 0), evidence)


def entropy_collapse(run: Evidence) -> Finding | None:
    """Entropy fell to a quarter of its start (a bonus with the wrong sign: to half) and not because all is right."""
    start, end = run.ends("entropy/behaviour")
    bonus = float(run.settings.get("entropy_coef") or 0)
    wrong, right = (run.ends(f"zero_variance/all_{what}", STARVED_PART)[1] for what in ("wrong", "right"))
    if not end < (ENTROPY_HALVED if bonus < 0 else ENTROPY_LEFT) * start or right > wrong:
        return None
    evidence = [
        f"entropy fell from {number(start)} to {number(end)} nat per token",
        f"in the second half of the run {percent(wrong)} of the groups are all wrong; at its end"
        f" {percent(run.ends('completions/unique')[1])} of a prompt's completions are distinct",
    ]
    if bonus:
        evidence.append(f"entropy_coef={bonus:g}")
    return Finding("entropy_collapse", _confidence(run, is_asked_for=bonus < 0), tuple(evidence))


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


def _confidence(run: Evidence, *, is_asked_for: bool) -> Confidence:
    """Of what a setting asks for; else of what a broken policy shows too."""
    return "certain" if is_asked_for else "possible" if collapse(run) else "likely"


# ----------------------------------------------------------------------------------------------------------------------
# Rules: no gradient, or hardly any.


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


# ----------------------------------------------------------------------------------------------------------------------
# Rules: the metric misleads.


def padding_in_clip_metric(run: Evidence) -> Finding | None:
    """The logged clip fraction is the one counted on the kept tokens times the share of places that hold a token."""
    both = _counted(run)
    both = both[(both["counted"] > 0) & (both["filled"] < 1 - MISCOUNTED)]
    padded = (both["logged"] / (both["counted"] * both["filled"]) - 1).abs() < MISCOUNTED
    if both.empty or not padded.all():
        return None
    step, first = int(both.index[0]), both.iloc[0]
    evidence = (
        f"at rollout step {step} {percent(first['counted'])} of the completion tokens carry a clip mark, the log says"
        f" {percent(first['logged'])}; the same in all {count(len(both), 'step')} that were kept",
        f"their ratio is {number(first['logged'] / first['counted'])}, and {number(first['filled'])} of the places of"
        " the batch hold a token",
    )
    return Finding("padding_in_clip_metric", "certain", evidence)


def _counted(run: Evidence) -> pd.DataFrame:
    """By kept rollout step: the last pass's clip fraction as logged, and as counted; the places that hold a token."""
    if run.samples.empty or not {"clip/active", "iteration"} <= set(run.updates):
        return pd.DataFrame({"logged": [], "counted": [], "filled": []})
    counted = (run.samples["clipped"] != "").groupby(run.samples["rollout_step"]).mean()
    last = run.updates[run.updates["iteration"] == run.updates["iteration"].max()]
    logged = last.groupby("rollout_step")["clip/active"].mean()
    lengths = run.samples.groupby(["rollout_step", "prompt_index", "sample"]).size().groupby("rollout_step")
    filled = lengths.mean() / lengths.max()
    return pd.DataFrame({"logged": logged, "counted": counted, "filled": filled}).dropna()


# ----------------------------------------------------------------------------------------------------------------------
# What looks odd in a sound run: said, so that nobody searches for its cause.


def no_reuse(run: Evidence) -> str | None:
    """Each batch has one update, and the ratio is 1 in all of them."""
    off, clipped = distance_from_one(run.first), column(run.first, "clip/active")
    moved = off.max() > ROUNDING if len(off) else not len(clipped) or clipped.max() > 0
    if run.updates_per_batch != 1 or moved:
        return None
    known = "the ratio is 1" if len(off) else "the clip fraction is 0"
    return f"one update per batch in all {count(len(run.first), 'rollout step')}, and {known}, whatever epsilon is"


def undecided(run: Evidence) -> str | None:
    """The log says that nothing is clipped, and not why: the readings that it leaves open."""
    clipped = column(run.updates, "clip/active")
    if not len(clipped) or clipped.max() > 0 or len(distance_from_one(run.updates)) or run.updates_per_batch == 1:
        return None
    rate, norm = middle(run.updates, "learning_rate"), middle(run.updates, "grad_norm")
    return (
        f"why the clip fraction is 0 in all {count(len(clipped), 'row')}: one update per batch (then it is normal), an"
        " old policy that follows the live one, or steps too small to matter; the log has neither the ratio nor the"
        f" updates per batch (learning rate {number(rate)}, gradient norm {number(norm)}, medians)"
    )


def zero_first_loss(run: Evidence) -> str | None:
    """The loss is 0 on a fresh batch, its gradient is not."""
    losses, norm = column(run.first, "loss"), middle(run.first, "grad_norm")
    if not len(losses) or not norm > 0 or np.median(np.abs(losses)) > ZERO_LOSS:
        return None
    return (
        f"|loss| is {number(float(np.median(np.abs(losses))))} on the first update of a batch (median), the gradient"
        f" norm {number(norm)}"
    )
