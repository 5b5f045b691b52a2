"""Rules: the old policy is not the one that sampled the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from grpolab.doctor.evidence import (
    BFLOAT16_KL,
    CLIPPED_AT_ONCE,
    FEW_MOVED,
    FLATTER,
    FLOAT32_SPACING,
    JUMP,
    MOST,
    NARROW,
    NOISE_DIRECTION,
    ON_GRID,
    ROUNDING,
    SHARPER,
    SMALL_FRACTION,
    STILL_REACH,
    WARM,
    Evidence,
    Finding,
    Floats,
    distance_from_one,
    largest,
    middle,
)
from grpolab.report.journals import column
from grpolab.report.text import count, listing, number, percent
from grpolab.vocabulary import counterfactual


def aliased_old_policy(run: Evidence) -> Finding | None:
    """Every ratio of every later update is exactly 1, while the weights moved: old and new are one forward pass."""
    if not len(run.reach) or run.reach.max() > 0 or not run.has_moved:
        return None
    evidence = (
        f"the ratio is exactly 1 for every token of all {count(len(run.reach), 'update')} that came after another one"
        " on the same batch",
        _movement(run),
    )
    return Finding("aliased_old_policy", "certain", evidence, ("resynchronised_old_policy",))


def resynchronised_old_policy(run: Evidence) -> Finding | None:
    """The same up to rounding: the old log-probs are made anew by another forward pass of the same weights."""
    if not len(run.reach) or not 0 < run.reach.max() < ROUNDING or not run.has_moved:
        return None
    evidence = (
        f"|ratio - 1| is at most {number(run.reach.max())}, which is rounding, in all"
        f" {count(len(run.reach), 'update')} that came after another one on the same batch",
        _movement(run),
    )
    return Finding("resynchronised_old_policy", "certain", evidence)


def recomputed_old_log_probs(run: Evidence) -> Finding | None:
    """The second pass starts at ratio 1, which only the first can do, and the third does not."""
    if run.updates_per_batch < 3:
        return None
    passes = [distance_from_one(part) for _, part in run.updates.groupby("iteration")][:3]
    if len(passes) < 3 or any(not len(each) for each in passes):
        return None
    if passes[1].max() > ROUNDING or passes[2].max() <= max(ROUNDING, JUMP * passes[1].max()):
        return None  # steps of equal size would take the third pass twice as far as the second
    evidence = (
        f"on the second pass over each batch |ratio - 1| is at most {number(passes[1].max())},"
        f" on the third up to {number(passes[2].max())}",
        "the first update has moved the weights by then: the old log-probs were computed after it",
    )
    return Finding("recomputed_old_log_probs", "certain", evidence)


def _movement(run: Evidence) -> str:
    """That the old log-probs ought to differ from the live ones."""
    sentence = f"the weights moved by {number(largest(run.rollouts, 'weights/step_norm'))} (L2) in a rollout step"
    gap = column(run.rollouts, "gap/sampler_trainer")
    if len(gap) and gap.max() > ROUNDING:
        sentence += f"; the old log-probs are up to {number(gap.max())} nat away from the sampler's"
    return sentence


# ----------------------------------------------------------------------------------------------------------------------
# Rules: there is a gradient, but no step, or hardly any.


def frozen_parameters(run: Evidence) -> Finding | None:
    """The weights stay bit for bit what they were, though gradient and learning rate ask for more than rounding."""
    steps = run.steps[(run.steps["norm"] > 0) & (run.steps["rate"] * step_fraction(run) > FLOAT32_SPACING)]
    if steps.empty or _is_coarse(run):
        return None
    if (steps["step_norm"] == 0).mean() < MOST:
        return _partly_frozen(run)
    evidence = (
        f"the weights did not change at all in {count(int((steps['step_norm'] == 0).sum()), 'rollout step')}"
        f" of {len(steps)} that had a gradient",
        f"gradient norm {number(steps['norm'].median())} (median), learning rate"
        f" {number(largest(run.updates, 'learning_rate'))}",
    )
    return Finding("frozen_parameters", "certain", evidence)


def _partly_frozen(run: Evidence) -> Finding | None:
    """Some tensors stayed what they were, though the others made full steps; the policy hardly moved."""
    still = run.weights.still if run.weights else ()
    if not still or not run.is_still or not step_fraction(run) >= SMALL_FRACTION:
        return None
    evidence = (f"{count(len(still), 'tensor')} did not change at all from start to end: {listing(still)}",)
    return Finding("frozen_parameters", "likely", evidence, ("tiny_learning_rate",))


def low_precision_weights(run: Evidence) -> Finding | None:
    """The weights are bfloat16 numbers, and few of them moved."""
    if not run.weights or not _is_coarse(run) or not (run.weights.moved < FEW_MOVED or run.is_still):
        return None
    evidence = (
        f"{percent(run.weights.on_grid)} of the weights are bfloat16 numbers: .4 to .8% of their size apart",
        f"{percent(1 - run.weights.moved)} of them are at the end what they were at the start",
        f"a learning rate of {number(largest(run.updates, 'learning_rate'))} is the most that a step adds to a weight",
    )
    return Finding("low_precision_weights", "certain", evidence)


def gradient_clipping(run: Evidence) -> Finding | None:
    """The clipped gradient of a weight is below Adam's epsilon, the unclipped one is not."""
    norms = column(run.updates, "grad_norm")
    clipped, whole = step_fraction(run), step_fraction(run, norms)
    if not run.is_still or not clipped < SMALL_FRACTION <= whole:
        return None
    limit = float(run.settings["max_grad_norm"])
    evidence = (
        f"max_grad_norm={limit:g} cuts {percent(float(np.mean(norms > limit)))} of the gradients; their norm is"
        f" {number(float(np.median(norms)))} (median) before",
        f"Adam then takes about {percent(clipped)} of its full step, adam_epsilon being {_epsilon(run):g}",
    )
    return Finding("gradient_clipping", "certain", evidence)


def endless_warmup(run: Evidence) -> Finding | None:
    """The learning rate rises to the end and stays far below its peak."""
    rates = column(run.updates, "learning_rate")
    warm_up = run.settings.get("warmup_steps", 0)
    if not run.is_still or not warm_up or not len(rates) or rates.max() >= WARM * run.settings["learning_rate"]:
        return None
    evidence = (
        f"warmup_steps={warm_up}, and the run took {count(len(rates), 'optimiser step')}",
        f"the learning rate came to {number(rates.max())} of a peak of {number(run.settings['learning_rate'])}",
        f"|ratio - 1| stayed below {number(_reach(run))}",
    )
    return Finding("endless_warmup", "certain", evidence)


def tiny_learning_rate(run: Evidence) -> Finding | None:
    """Gradients are there and nothing shrinks the steps but the learning rate itself; the ratio never went far."""
    rates = column(run.updates, "learning_rate")
    shrunk = (frozen_parameters, low_precision_weights, endless_warmup)
    full = step_fraction(run) >= SMALL_FRACTION
    if not run.is_still or run.has_moved or _reach(run) >= STILL_REACH or not len(rates) or not full:
        return None
    if any(rule(run) for rule in shrunk):
        return None
    evidence = (
        f"the learning rate is {number(rates.max())} at most, and |ratio - 1| stayed below {number(_reach(run))}",
        f"gradient norm {number(middle(run.updates, 'grad_norm'))} (median), and Adam took its full step",
    )
    return Finding("tiny_learning_rate", "likely", evidence)


def step_fraction(run: Evidence, norms: Floats | None = None) -> float:
    """The share of Adam's full step that gradients of these norms (given: the clipped ones) leave; NaN without any.

    Adam divides a weight's gradient g by about |g| + epsilon; |g| is taken as the norm spread over all weights. Where
    their number is not known the whole norm is, which no weight's gradient can exceed. Gradients of 0 say nothing.
    """
    norms = run.clipped_norm if norms is None else norms
    positive = norms[norms > 0]
    if not len(positive):
        return np.nan
    each = float(np.median(positive)) / np.sqrt(run.weights.count if run.weights else 1)
    return each / (each + _epsilon(run))


def _epsilon(run: Evidence) -> float:
    return float(run.settings.get("adam_epsilon", 1e-8))


def _is_coarse(run: Evidence) -> bool:
    return run.weights is not None and run.weights.on_grid >= ON_GRID


def _reach(run: Evidence) -> float:
    return float(run.reach.max()) if len(run.reach) else np.nan


# ----------------------------------------------------------------------------------------------------------------------
# Rules: the trust region is too tight.


# The field's clip range at each ratio level: PPO's and GRPO's, and GSPO's.
USUAL = {"token": 0.2, "sequence": 3e-4}


def strong_kl(run: Evidence) -> Finding | None:
    """The KL in the loss lets no token's ratio to the reference leave the clip range, whatever its advantage.

    The optimum of A log r - beta KL has |log r| of about |A| / beta (2402.03300, equation 3, for one token).
    """
    beta, epsilon = (float(run.settings.get(key, 0) or 0) for key in ("beta", "epsilon"))
    if not beta or run.settings.get("kl_placement") != "loss":
        return None
    size = _advantage(run)
    if size / beta >= epsilon:
        return None
    evidence = [
        f"beta={beta:g}: an advantage of {number(size)} (the usual size) balances the KL at a log ratio of"
        f" {number(size / beta)} to the reference, inside the clip range of {epsilon:g}",
        f"KL to the reference: {number(middle(run.updates, 'kl_ref/k3'))} nat per token (median)",
        f"clip fraction on used batches: {percent(middle(run.later, 'clip/active'))} (median)",
    ]
    return Finding("strong_kl", "certain" if run.is_still else "likely", tuple(evidence))


def tiny_epsilon(run: Evidence) -> Finding | None:
    """Most tokens that can be clipped are, from the second update on, and a usual range would have clipped few."""
    level = "token" if run.settings.get("importance_sampling_level", "token") == "token" else "sequence"
    usual = USUAL[level]
    if not {"clip/active_nz", counterfactual(level, usual)} <= set(run.later):
        return None
    able = run.later[run.later["clip/active_nz"].notna()]  # some advantage is not 0
    clipped, otherwise = middle(able, "clip/active_nz"), middle(able, counterfactual(level, usual))
    narrow = min(float(run.settings.get(key) or 0) for key in ("epsilon", "epsilon_high"))
    if not clipped >= CLIPPED_AT_ONCE or not otherwise <= NARROW * clipped or narrow >= usual:
        return None
    second = able[able["iteration"] == able["iteration"].min()]
    evidence = (
        f"the clip range of {narrow:g} clips {percent(clipped)} of the tokens with an advantage (median of the later"
        f" updates), {percent(middle(second, 'clip/active_nz'))} in the first of them",
        f"a range of {usual:g} would have clipped {percent(otherwise)}",
    )
    return Finding("tiny_epsilon", "certain", evidence)


def _advantage(run: Evidence) -> float:
    """Root mean square of the advantages; 1, which normalising makes it, where no completions were kept."""
    kept = column(run.samples, "advantage")
    return float(np.sqrt(np.mean(kept**2))) if len(kept) else 1.0


# ----------------------------------------------------------------------------------------------------------------------
# Rules: the ratio is not 1 on the first pass over a fresh batch, where old and new policy are one.
#
# What tells the causes apart: where the old log-probs are those of the policy that sampled, the mean ratio is 1 and
# KL(old || new) is the same by k1 and k3; where both passes are equally noisy, k1 is 0; where tokens are mixed up, the
# log-probs do not go together at all.


def dropout(run: Evidence) -> Finding | None:
    """Noise without a direction: as often up as down, in both passes, so that k1 is 0 while k3 is not."""
    if not ratio_is_off(run) or not abs(_direction(run)) < NOISE_DIRECTION:
        return None
    if mask_mismatch(run) or precision_mismatch(run):
        return None
    evidence = (
        _size(run),
        f"the log ratio has no direction: KL(old || new) is {number(middle(run.first, 'kl_old/k1'))} by k1 and"
        f" {number(middle(run.first, 'kl_old/k3'))} by k3; for two fixed policies both are the same",
    )
    return Finding("dropout", "likely", evidence)


def mask_mismatch(run: Evidence) -> Finding | None:
    """The old log-probs fit the new ones of a neighbouring token better than those of their own."""
    fit = _token_fit(run.samples)
    if not ratio_is_off(run) or fit is None or not fit.own < max(fit.before, fit.after):
        return None
    side = "before" if fit.before > fit.after else "after"
    evidence = (
        _size(run),
        f"the old log-probs go with the new ones of the token {side}"
        f" (correlation {number(max(fit.before, fit.after))}), not with those of their own ({number(fit.own)})",
    )
    return Finding("mask_mismatch", "certain", evidence)


def temperature_mismatch(run: Evidence) -> Finding | None:
    """The one policy is the other made sharper: its entropy is lower, and its logits are larger, or the reverse."""
    pair = _two_policies(run)
    if not _is_directed(run) or mask_mismatch(run) or pair is None:
        return None
    sharper = pair.entropy_ratio < 1 - SHARPER and pair.slope > 1
    flatter = pair.entropy_ratio > 1 / (1 - FLATTER) and pair.slope < 1
    if not sharper and not flatter:
        return None
    evidence = (
        _size(run),
        f"the entropy of the old policy, which sampled, is {number(pair.entropy_ratio)} times the trainer's",
        f"its logits are about {number(pair.slope)} times the trainer's: a temperature of {number(1 / pair.slope)}",
    )
    return Finding("temperature_mismatch", "likely", evidence)


def precision_mismatch(run: Evidence) -> Finding | None:
    """The ratio is off by what rounding to bfloat16 does, and no more."""
    size = middle(run.first, "kl_old/k3")
    if not ratio_is_off(run) or not size < BFLOAT16_KL:
        return None
    sampler, trainer = (run.settings.get(key) for key in ("sampler_dtype", "dtype"))
    evidence = [_size(run), "rounding to bfloat16 makes a KL of about 1e-5 to 5e-4"]
    if sampler and sampler != trainer:
        evidence.append(f"sampler_dtype={sampler}, dtype={trainer}")
        return Finding("precision_mismatch", "certain", tuple(evidence))
    return Finding("precision_mismatch", "possible", tuple(evidence), ("dropout",))


def visible_padding(run: Evidence) -> Finding | None:
    """The two passes are two sound policies that differ in no simple way: they read different contexts."""
    if not _is_directed(run) or any(rule(run) for rule in (mask_mismatch, temperature_mismatch, precision_mismatch)):
        return None
    evidence = [
        _size(run),
        f"the mean ratio is {number(middle(run.first, 'ratio/token_mean'))}, as for two policies that are each sound"
        " and read the same tokens",
    ]
    if pair := _two_policies(run):
        evidence.append(f"no temperature explains it: their entropies are as {number(pair.entropy_ratio)} to 1")
        return Finding("visible_padding", "likely", tuple(evidence))
    return Finding("visible_padding", "possible", tuple(evidence), ("temperature_mismatch", "mask_mismatch"))


def ratio_is_off(run: Evidence) -> bool:
    """Whether nearly all first updates of on-policy batches have ratios that rounding does not explain."""
    off = distance_from_one(run.first)
    return len(off) > 0 and not run.settings.get("staleness", 0) and bool(np.mean(off > ROUNDING) >= MOST)


def _is_directed(run: Evidence) -> bool:
    """Off, and as KL demands: the old log-probs are those of the policy that sampled."""
    return ratio_is_off(run) and _direction(run) >= NOISE_DIRECTION


def _direction(run: Evidence) -> float:
    """KL(old || new) by k1 over k3 at first updates; NaN where the log has neither."""
    return float(np.sum(column(run.first, "kl_old/k1")) / np.sum(column(run.first, "kl_old/k3")))


def _size(run: Evidence) -> str:
    off = distance_from_one(run.first)
    return (
        f"before the first update of a batch the ratio is off by up to {number(float(np.median(off)))} (median over"
        f" {len(off)} batches; KL {number(middle(run.first, 'kl_old/k3'))} nat per token), where it should be 1"
    )


@dataclass(frozen=True)
class _Fit:
    """Correlation of the old log-probs with the new ones of the same, the preceding and the following token."""

    own: float
    before: float
    after: float


def _token_fit(samples: pd.DataFrame) -> _Fit | None:
    if samples.empty:
        return None
    new = samples["old_log_prob"] + np.log(samples["ratio"])
    rows = new.groupby([samples["rollout_step"], samples["prompt_index"], samples["sample"]])
    return _Fit(*(float(samples["old_log_prob"].corr(other)) for other in (new, rows.shift(1), rows.shift(-1))))


@dataclass(frozen=True)
class _Pair:
    """The policy that sampled against the trainer's before the first update."""

    entropy_ratio: float  # -mean log-prob of its own samples, over the trainer's entropy
    slope: float  # spread of its logits over that of the trainer's


def _two_policies(run: Evidence) -> _Pair | None:
    """None where no completions were kept; the trainer has been trained on them by then, so the slope is rough."""
    if run.samples.empty or "entropy/behaviour" not in run.rollouts:
        return None
    entropies = run.rollouts.set_index("rollout_step")["entropy/behaviour"]
    theirs = entropies.reindex(run.samples["rollout_step"]).to_numpy(dtype=np.float64)
    old = run.samples["old_log_prob"].to_numpy(dtype=np.float64)
    new = old + np.log(run.samples["ratio"].to_numpy(dtype=np.float64))
    return _Pair(float(-old.mean() / np.nanmean(theirs)), float(_logit(old).std() / _logit(new).std()))


def _logit(log_prob: Floats) -> Floats:
    """log p - log(1 - p), p kept off 0 and 1 by what float32 can hold."""
    p = np.exp(log_prob).clip(1e-6, 1 - 1e-6)
    return np.log(p) - np.log1p(-p)
