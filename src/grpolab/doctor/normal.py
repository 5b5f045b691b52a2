"""Recognise what looks odd but is normal in a sound run, so that nobody searches for a cause."""

from __future__ import annotations

import numpy as np

from grpolab.doctor.breakdown import starving_variance
from grpolab.doctor.causes import Finding, certain, rule
from grpolab.doctor.cost import say_duration
from grpolab.doctor.evidence import MOST, ROUNDING, Evidence, median
from grpolab.doctor.ratio_is_one import constant_reward
from grpolab.doctor.sampler_gap import GAPS
from grpolab.report.journals import both, column
from grpolab.report.text import count, number, percent

ZERO_LOSS = 1e-6  # rounding of a mean of centred advantages
PRINTED_LOSS = 5e-5  # the largest loss that is printed as 0: transformers rounds to four places
FAR_WEIGHT = 0.5  # of a sequence: a token seldom has one so small
MANY_EQUAL = 1 / 3  # share of the groups: as much of the sampling is worth a sentence
OF_THE_LOSS = 0.1  # relative difference between the loss and beta times KL that is allowed in nine rows of ten


@rule
def no_reuse(run: Evidence) -> Finding | None:
    """Each batch has one update, and the ratio is 1 in all of them."""
    off, clipped = run.first_deviations, column(run.first, "clip/active")
    moved = off.max() > ROUNDING if len(off) else not len(clipped) or clipped.max() > 0
    if run.updates_per_batch != 1 or moved:
        return None
    known = "the ratio is 1" if len(off) else "the clip fraction is 0"
    return certain(f"one update per batch in all {count(len(run.first), 'rollout step')}, and {known}, for any epsilon")


@rule
def zero_first_loss(run: Evidence) -> Finding | None:
    """The loss is 0 on fresh batches (in nearly all rows, if the log does not mark them), but the gradient is not."""
    is_marked, norm = len(run.first) > 0, run.median("grad_norm")
    losses = np.abs(column(run.first if is_marked else run.updates, "loss"))
    if len(run.equal_groups) and run.equal_groups.min() >= 1:
        return None  # every advantage is 0, which is not normal
    if not len(losses) or not norm > 0 or np.quantile(losses, 0.5 if is_marked else MOST) > _zero(run):
        return None
    rows = "on the first update of a batch" if is_marked else f"in {count(len(losses), 'row')}"
    return certain(f"|loss| is {number(median(losses))} {rows} (median), the gradient norm {number(norm)}")


@rule
def loss_is_beta_kl(run: Evidence) -> Finding | None:
    """Nearly every logged loss is the same constant (beta) times the KL of its row."""
    losses, divergence = both(run.updates, "loss", "kl_ref/k3")
    losses, divergence = losses[divergence > 0], divergence[divergence > 0]
    if len(losses) < 3 or not np.median(losses) > _zero(run):
        return None
    beta = float(np.median(losses / divergence))
    fits = np.abs(losses - beta * divergence) <= OF_THE_LOSS * np.abs(losses) + _zero(run)
    if np.mean(fits) < MOST:
        return None
    return certain(
        f"loss / KL is {number(beta)} in {percent(float(fits.mean()))} of {count(len(losses), 'row')}; the loss goes"
        f" from {number(float(losses[0]))} to {number(float(losses[-1]))}"
    )


@rule
def negative_loss(run: Evidence) -> Finding | None:
    """Most losses of a log are below 0."""
    losses = run.values("loss")
    if run.framework == "grpolab" or not len(losses) or not np.median(losses) < -_zero(run):
        return None
    share, least = percent(float(np.mean(losses < 0))), number(float(losses.min()))
    return certain(f"the loss is below 0 in {share} of {count(len(losses), 'row')}, the least is {least}")


@rule
def no_kl_term(run: Evidence) -> Finding | None:
    """The KL to the reference is no number in any row, and everything else is one."""
    if not run.has_no_kl_term:
        return None
    return certain(f"the KL is not a number in {count(len(run.not_finite['kl_ref/k3']), 'row')}, loss and gradient are")


@rule
def norm_before_clipping(run: Evidence) -> Finding | None:
    """The median gradient norm is above the limit that it is clipped to."""
    limit, norm = run.setting("max_grad_norm"), run.median("grad_norm")
    if not 0 < limit < norm:
        return None
    return certain(f"the gradient norm is {number(norm)} (median), max_grad_norm is {limit:g}")


@rule
def sequence_weights(run: Evidence) -> Finding | None:
    """The least weight of a sequence is no smaller than its tokens' small gaps make it, if all have one sign."""
    weight, gap, length = run.median("gap/weight_min"), run.median("gap/mean"), run.median("length/mean")
    if not 0 < weight < FAR_WEIGHT or not gap < GAPS["gap/mean"] or not -np.log(weight) < gap * length:
        return None
    return certain(
        f"the least weight is {number(weight)}, the mean gap {number(gap)} nat per token, over {number(length)} tokens"
    )


def _zero(run: Evidence) -> float:
    return ZERO_LOSS if run.framework == "grpolab" else PRINTED_LOSS


@rule
def equal_groups(run: Evidence) -> Finding | None:
    """A good part of the groups has equal rewards, but too few for a cause."""
    share = float(np.mean(run.equal_groups)) if len(run.equal_groups) else 0.0
    if share < MANY_EQUAL or constant_reward(run) or starving_variance(run):
        return None
    unit = "groups" if len(run.values("zero_variance/share")) else "steps"
    time = say_duration(share * run.seconds)
    return certain(f"in {percent(share)} of the {unit} all rewards are equal: {percent(share)} of the sampling{time}")
