"""Rules: the ratio is not 1 on the first pass over a fresh batch, where old and new policy are one.

What tells the causes apart: where the old log-probs are those of the policy that sampled, the mean ratio is 1 and
KL(old || new) is the same by k1 and k3; where both passes are equally noisy, k1 is 0; where tokens are mixed up, the
log-probs do not go together at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from grpolab.report.columns import column
from grpolab.report.diagnosis.evidence import Evidence, Floats, distance_from_one, middle
from grpolab.report.diagnosis.finding import Finding
from grpolab.report.diagnosis.thresholds import BFLOAT16_KL, FLATTER, MOST, NOISE_DIRECTION, ROUNDING, SHARPER
from grpolab.report.text import number


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
