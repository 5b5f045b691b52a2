"""Causes of a ratio that stays at or near 1.

The old policy follows the live one, the gradient vanishes, the weights do not move, or a strong KL or a narrow clip
range holds the policy back.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from grpolab.doctor.causes import Finding, certain, likely, rule
from grpolab.doctor.evidence import MOST, ROUNDING, STILL_DEVIATION, USUAL_RANGE, Evidence, median, ratio_deviations
from grpolab.report.journals import column
from grpolab.report.text import count, listing, number, percent
from grpolab.vocabulary import counterfactual

JUMP = 10.0  # |ratio - 1| of the third pass over that of the second; for steps of equal size this is 2
EQUAL_GROUPS = 0.99  # share of groups with equal rewards that leaves no signal at all
WARM_ROWS = 10  # of a log, which may be all warm-up
FEW_ROWS = 3  # of a log: in fewer, equal rewards may be chance
# A hundredth of 1e-6, at which language models are usually trained: 10,000 steps move a weight by 1e-4.
TINY_RATE = 1e-8
TINY_ADVANTAGE = 1e-2  # size of advantages over that of centred rewards; division by the right std gives far more
SMALL_FRACTION = 0.1  # of Adam's full step, g / (g + epsilon); reached if g is a ninth of adam_epsilon
FLOAT32_SPACING = 6e-8  # of a weight of size 1: a smaller step is rounded to nothing
ON_GRID = 0.999  # share of weights that are exact bfloat16 numbers; for float32 weights it is 2^-16
FEW_MOVED = 0.5  # share of the weights that moved, where rounding swallows updates
WARM = 0.1  # share of the peak learning rate that a warm-up should at least have reached
CLIPPED_AT_ONCE = 0.3  # clipped share of the tokens with an advantage, from the second update on; at most about 0.5
NARROW = 0.25  # share that the usual range would have clipped, over the share that was clipped


@rule
def aliased_old_policy(run: Evidence) -> Finding | None:
    """On reused batches every ratio is exactly 1 although the weights moved: one pass gives old and new log-probs."""
    if not run.largest_deviation <= 0 or not run.has_moved:  # true for NaN too: no batch is reused
        return None
    evidence = f"the ratio is exactly 1 for every token in all {count(len(run.deviations), 'update')} on a used batch"
    return certain(evidence, _say_movement(run), instead=("resynchronised_old_policy",))


@rule
def resynchronised_old_policy(run: Evidence) -> Finding | None:
    """The ratio is 1 up to rounding: the old log-probs come from another forward pass with the live weights."""
    if not 0 < run.largest_deviation < ROUNDING or not run.has_moved:
        return None
    most, updates = number(run.largest_deviation), count(len(run.deviations), "update")
    rounding = f"|ratio - 1| is at most {most}, which is rounding, in all {updates} on a used batch"
    return certain(rounding, _say_movement(run))


def _say_movement(run: Evidence) -> str:
    sentence = f"the weights moved by up to {number(run.largest('weights/step_norm'))} (L2) in a rollout step"
    if (gap := run.largest("gap/sampler_trainer")) > ROUNDING:
        sentence += f"; the old log-probs are up to {number(gap)} nat away from the sampler's"
    return sentence


@rule
def recomputed_old_log_probs(run: Evidence) -> Finding | None:
    """The second pass has ratio 1, which only a first pass can have, but the third does not."""
    if run.updates_per_batch < 3:
        return None
    passes = [ratio_deviations(updates) for _, updates in run.updates.groupby("iteration")][1:3]
    if len(passes) < 2 or not all(len(deviations) for deviations in passes):
        return None
    second, third = (deviations.max() for deviations in passes)
    if second > ROUNDING or third <= max(ROUNDING, JUMP * second):
        return None
    return certain(
        f"|ratio - 1| is at most {number(second)} on the second pass over each batch, up to {number(third)} on the"
        " third: the weights moved before the old log-probs were computed"
    )


@rule
def constant_reward(run: Evidence) -> Finding | None:
    """From the first batch on, all rewards of each group are equal, although its completions differ."""
    equal, unique = run.equal_groups, run.values("completions/unique")
    if not len(equal) or equal[0] < EQUAL_GROUPS or np.mean(equal >= EQUAL_GROUPS) < MOST:
        return None
    if len(unique) and unique[0] <= 1 / run.setting("num_generations", 1):
        return None
    norm = run.median("grad_norm")
    return (certain if len(equal) >= FEW_ROWS else likely)(
        f"all rewards of a group are equal in {percent(equal.mean())} of the groups, from the first batch on",
        f"the mean reward is {number(run.median('reward/mean'))}, the gradient norm {number(norm)}",
        f"{percent(unique[0])} of a prompt's completions are distinct at the start" if len(unique) else "",
        "the gradient that is left comes from other terms (KL, entropy)" if norm > 0 else "",
        side=run.why_equal,
    )


@rule
def overscaled_advantages(run: Evidence) -> Finding | None:
    """Advantages are at most a hundredth of the centred rewards, so something else than the std divides them."""
    reward, advantage = _spreads(run.samples)
    if not run.is_still or not reward > 0 or advantage >= TINY_ADVANTAGE * reward:
        return None
    divisor = f"scale_epsilon={run.settings['scale_epsilon']:g}" if "scale_epsilon" in run.settings else "their scale"
    return certain(
        f"rewards differ by {number(reward)} within a group (root mean square), the advantages made of them by"
        f" {number(advantage)}: look at {divisor}",
        _say_gradient(run),
    )


@rule
def weak_signal(run: Evidence) -> Finding | None:
    """A weight's gradient is below Adam's epsilon even unclipped, although advantages fit the rewards."""
    fraction, reward = _step_fraction(run, is_clipped=False), _spreads(run.samples)[0]
    if not run.is_still or not fraction < SMALL_FRACTION or overscaled_advantages(run):
        return None
    return certain(
        _say_gradient(run),
        f"Adam then takes about {percent(fraction)} of its full step",
        f"rewards differ by only {number(reward)} within a group (root mean square)" if reward > 0 else "",
    )


def _spreads(samples: pd.DataFrame) -> tuple[float, float]:
    """Return the root mean square of rewards about their group's mean, and of advantages; NaN without completions."""
    if samples.empty:
        return np.nan, np.nan
    group = ["rollout_step", "prompt_index"]
    completions = samples.drop_duplicates([*group, "sample"])
    centred = completions["reward"] - completions.groupby(group)["reward"].transform("mean")
    return float(np.sqrt((centred**2).mean())), float(np.sqrt((completions["advantage"] ** 2).mean()))


def _say_gradient(run: Evidence) -> str:
    weights = run.weights.count if run.weights else "all"
    return f"the gradient norm is {number(run.median('grad_norm'))} (median), over {weights} weights"


def _step_fraction(run: Evidence, is_clipped: bool = True) -> float:
    """Return the share of Adam's full step that gradients, clipped as in the run or not, lead to; NaN without any.

    Adam divides a weight's gradient g by about |g| + epsilon. |g| is estimated as the norm spread evenly over all
    weights or, if their number is unknown, by the whole norm, which bounds it. Gradients of 0 are left out.
    """
    norms = np.minimum(run.values("grad_norm"), run.setting("max_grad_norm", np.inf) if is_clipped else np.inf)
    gradient = median(norms[norms > 0]) / np.sqrt(run.weights.count if run.weights else 1)
    return gradient / (gradient + run.setting("adam_epsilon", 1e-8))


@rule
def gradient_clipping(run: Evidence) -> Finding | None:
    """A weight's gradient is below Adam's epsilon after clipping, but not before."""
    limit, epsilon = run.setting("max_grad_norm"), run.setting("adam_epsilon", 1e-8)
    fraction = _step_fraction(run)
    if not run.is_still or not fraction < SMALL_FRACTION <= _step_fraction(run, is_clipped=False):
        return None
    return certain(
        f"max_grad_norm={limit:g} cuts {percent(float(np.mean(run.values('grad_norm') > limit)))} of the gradients;"
        f" their norm is {number(run.median('grad_norm'))} (median) before",
        f"Adam then takes about {percent(fraction)} of its full step (adam_epsilon={epsilon:g})",
    )


@rule
def frozen_parameters(run: Evidence) -> Finding | None:
    """All weights, or whole tensors, are bit for bit unchanged, although the steps are larger than rounding."""
    if not {"rollout_step", "learning_rate", "grad_norm"} <= set(run.updates):
        return None
    if "weights/step_norm" not in run.rollouts or (run.weights and run.weights.on_grid >= ON_GRID):
        return None
    by_step = run.updates.groupby("rollout_step")
    steps = pd.DataFrame({"rate": by_step["learning_rate"].sum(), "norm": by_step["grad_norm"].max()}).reset_index()
    steps = steps.merge(run.rollouts[["rollout_step", "weights/step_norm"]].dropna(), on="rollout_step")
    fraction = _step_fraction(run)
    steps = steps[(steps["norm"] > 0) & (steps["rate"] * fraction > FLOAT32_SPACING)]
    if steps.empty:
        return None
    unmoved, still = steps["weights/step_norm"] == 0, run.weights.still if run.weights else ()
    if unmoved.mean() >= MOST:
        norm, rate = number(steps["norm"].median()), number(run.largest("learning_rate"))
        rows = f"{count(int(unmoved.sum()), 'rollout step')} of {len(steps)}"
        return certain(
            f"the weights did not change at all in {rows} that had a gradient",
            f"gradient norm {norm} (median), learning rate {rate}",
        )
    if not still or not run.is_still or not fraction >= SMALL_FRACTION:
        return None
    evidence = f"{count(len(still), 'tensor')} did not change at all from start to end: {listing(still)}"
    return likely(evidence, instead=("tiny_learning_rate",), side="some tensors")


@rule
def low_precision_weights(run: Evidence) -> Finding | None:
    """The weights are bfloat16 numbers, and few of them moved."""
    weights = run.weights
    if not weights or weights.on_grid < ON_GRID or not (weights.moved < FEW_MOVED or run.is_still):
        return None
    unmoved = f"{percent(1 - weights.moved)} of them are at the end what they were at the start"
    return certain(
        f"{percent(weights.on_grid)} of the weights are bfloat16 numbers: .4 to .8% of their size apart",
        "" if np.isnan(weights.moved) else unmoved,
        f"a step adds at most the learning rate of {number(run.largest('learning_rate'))} to a weight",
        side="few moved" if weights.moved < FEW_MOVED else "",
    )


@rule
def endless_warmup(run: Evidence) -> Finding | None:
    """The learning rate rises to the end and stays far below its peak."""
    rates, warm_up = run.values("learning_rate"), run.settings.get("warmup_steps", 0)
    if not run.is_still or not warm_up or not len(rates) or rates.max() >= WARM * run.settings["learning_rate"]:
        return None
    return certain(
        f"warmup_steps={warm_up}, and the run took {count(len(rates), 'optimiser step')}",
        f"the learning rate came to {number(rates.max())} of a peak of {number(run.settings['learning_rate'])}",
        _say_distance(run),
    )


def _say_distance(run: Evidence) -> str:
    """Say how far the policy moved: the largest |ratio - 1| on a used batch, else the KL from the start."""
    if len(run.deviations):
        return f"|ratio - 1| is at most {number(run.largest_deviation)}"
    return f"the KL from the start is at most {number(run.largest('kl_ref/exact'))} nat per token"


@rule
def tiny_learning_rate(run: Evidence) -> Finding | None:
    """Only the learning rate makes steps small, the ratio stayed near 1; without ratios, it is tiny for any model."""
    rate = run.largest("learning_rate")
    if run.framework != "grpolab" and not len(run.deviations):
        rows = len(run.values("learning_rate"))
        is_clipped = run.largest("clip/active") > 0  # then the policy moves, and a rate of 0 is a rounded one
        if not rate <= TINY_RATE or rows <= WARM_ROWS or is_clipped:
            return None
        evidence = f"the learning rate is {number(rate)} at most in {count(rows, 'row')}"
        return likely(evidence, side="" if rate > 0 else "zero")
    if not run.is_still or run.has_moved or run.largest_deviation >= STILL_DEVIATION or np.isnan(rate):
        return None
    if not _step_fraction(run) >= SMALL_FRACTION:
        return None
    if frozen_parameters(run) or low_precision_weights(run) or endless_warmup(run):
        return None
    return likely(
        f"the learning rate is {number(rate)} at most, and {_say_distance(run)}",
        f"gradient norm {number(run.median('grad_norm'))} (median), and Adam took its full step",
    )


@rule
def strong_kl(run: Evidence) -> Finding | None:
    """The KL in the loss lets no token's ratio to the reference leave the clip range, whatever its advantage.

    The optimum of A log r - beta KL has |log r| of about |A| / beta (2402.03300, equation 3, for one token). |A| is the
    root mean square of the advantages or, if no completions were kept, 1, its value after normalisation.
    """
    beta, epsilon = run.setting("beta"), run.setting("epsilon")
    advantages = column(run.samples, "advantage")
    size = float(np.sqrt(np.mean(advantages**2))) if len(advantages) else 1.0
    if not beta or run.settings.get("kl_placement") != "loss" or size / beta >= epsilon:
        return None
    clipped = percent(median(column(run.later, "clip/active")))
    return (certain if run.is_still else likely)(
        f"beta={beta:g}: an advantage of {number(size)} (the usual size) balances the KL at a log ratio of"
        f" {number(size / beta)} to the reference, inside the clip range of {epsilon:g}",
        f"KL to the reference: {number(run.median('kl_ref/k3'))} nat per token (median)",
        f"clip fraction on used batches: {clipped} (median)" if len(run.deviations) else "",
        side="still" if run.is_still else "",
    )


@rule
def tiny_epsilon(run: Evidence) -> Finding | None:
    """From the second update on, most tokens that can be clipped are clipped; the usual range would clip few."""
    level = "token" if run.settings.get("importance_sampling_level", "token") == "token" else "sequence"
    usual, narrow = USUAL_RANGE[level], min(run.setting("epsilon"), run.setting("epsilon_high"))
    if not {"clip/active_nz", counterfactual(level, usual)} <= set(run.later):
        return None
    able = run.later[run.later["clip/active_nz"].notna()]  # some advantage is not 0
    clipped, otherwise = (median(column(able, name)) for name in ("clip/active_nz", counterfactual(level, usual)))
    if not clipped >= CLIPPED_AT_ONCE or not otherwise <= NARROW * clipped or narrow >= usual:
        return None
    tight = [key for key in ("epsilon", "epsilon_high") if run.setting(key) < usual]
    second = median(column(able[able["iteration"] == able["iteration"].min()], "clip/active_nz"))
    return certain(
        f"the clip range of {narrow:g} clips {percent(clipped)} of the tokens with an advantage (median of the later"
        f" updates), {percent(second)} in the first of them",
        f"a range of {usual:g} would have clipped {percent(otherwise)}",
        side="narrow",
        keys=" and ".join(tight),
        usual=usual,
        level=level,
    )
