"""Causes of a ratio that is not 1 on the first pass over a fresh batch, and of a clip metric that misleads.

The numbers tell the causes apart: where the old log-probs are those of the policy that sampled, the mean ratio is 1 and
KL(old || new) is the same by k1 and k3; where both passes are equally noisy, k1 is 0; where tokens are mixed up, the
log-probs do not go together at all.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from grpolab.doctor.causes import Finding, certain, likely, possible, rule
from grpolab.doctor.evidence import MOST, ROUNDING, Evidence, median
from grpolab.report.journals import column
from grpolab.report.text import count, number, percent

NOISE_DIRECTION = 0.5  # KL(old || new) by k1 over k3: 1 if old is the sampler, 0 if both passes are equally noisy
SHARPER = 0.1  # relative entropy decrease that shows a cooler sampler; a wrong context never lowers the entropy
FLATTER = 0.25  # relative increase that shows a hotter sampler; a wrong context raises the entropy a little
BFLOAT16_KL = 5e-4  # nat, k3: log-probs that are off by .03, twice what bfloat16 did to the tiny model's
MISCOUNTED = 0.005  # relative difference of a share from its count
COMPLETION = ["rollout_step", "prompt_index", "sample"]


def ratio_is_off(run: Evidence) -> bool:
    """Return True if nearly all first updates of on-policy batches have ratios that rounding does not explain."""
    off = run.first_deviations
    return len(off) > 0 and not run.samples_from_another and bool(np.mean(off > ROUNDING) >= MOST)


def _direction(run: Evidence) -> float:
    """Return KL(old || new) by k1 over k3 at first updates; NaN if the log has neither."""
    return float(np.sum(column(run.first, "kl_old/k1")) / np.sum(column(run.first, "kl_old/k3")))


def _first(run: Evidence, metric: str) -> float:
    return median(column(run.first, metric))


def _say_size(run: Evidence) -> str:
    return (
        f"before a batch's first update the ratio is off by up to {number(median(run.first_deviations))} (median over"
        f" {len(run.first_deviations)} batches; KL {number(_first(run, 'kl_old/k3'))} nat per token)"
    )


@rule
def dropout(run: Evidence) -> Finding | None:
    """The log ratio is symmetric noise: both passes are equally noisy, so that k1 is 0 while k3 is not."""
    if not ratio_is_off(run) or not abs(_direction(run)) < NOISE_DIRECTION:
        return None
    if mask_mismatch(run) or precision_mismatch(run):
        return None
    k1, k3 = (number(_first(run, f"kl_old/{name}")) for name in ("k1", "k3"))
    return likely(
        _say_size(run),
        f"the log ratio has no direction: KL(old || new) is {k1} by k1 and {k3} by k3; for two fixed policies both are"
        " the same",
    )


def _differs_as_policies(run: Evidence) -> bool:
    """Return True if k1 and k3 agree on KL(old || new), as they must if the old policy is the sampler."""
    return ratio_is_off(run) and _direction(run) >= NOISE_DIRECTION and not mask_mismatch(run)


@rule
def visible_padding(run: Evidence) -> Finding | None:
    """Sampler and trainer are two sound policies that no other rule tells apart: they read different contexts."""
    if not _differs_as_policies(run) or temperature_mismatch(run) or precision_mismatch(run):
        return None
    evidence = (
        _say_size(run),
        f"the mean ratio is {number(_first(run, 'ratio/token_mean'))}, as for two policies that are each sound and read"
        " the same tokens",
    )
    if not (policies := _compare_policies(run)):
        return possible(*evidence, instead=("temperature_mismatch", "mask_mismatch"))
    return likely(*evidence, f"no temperature explains it: their entropies are as {number(policies[0])} to 1")


@rule
def temperature_mismatch(run: Evidence) -> Finding | None:
    """One policy is a sharper version of the other: its entropy is lower and its logits are larger."""
    if not _differs_as_policies(run) or not (policies := _compare_policies(run)):
        return None
    entropy, logits = policies
    if not (entropy < 1 - SHARPER and logits > 1) and not (entropy > 1 / (1 - FLATTER) and logits < 1):
        return None
    return likely(
        _say_size(run),
        f"the entropy of the old policy, which sampled, is {number(entropy)} times the trainer's",
        f"its logits are about {number(logits)} times the trainer's: a temperature of {number(1 / logits)}",
    )


def _compare_policies(run: Evidence) -> tuple[float, float] | None:
    """Return two ratios of sampler to trainer: of their entropies before the first update, and of their logits' spread.

    The sampler's entropy is minus the mean log-prob of its own samples. The second ratio is rough, because the trainer
    has been trained on the kept completions by then. None if no completions were kept.
    """
    if run.samples.empty or "entropy/behaviour" not in run.rollouts:
        return None
    from scipy.special import logit  # imported late, as in the linter's rules: a quarter of a second

    entropies = run.rollouts.set_index("rollout_step")["entropy/behaviour"]
    trainers = entropies.reindex(run.samples["rollout_step"]).to_numpy(dtype=np.float64)
    old = run.samples["old_log_prob"].to_numpy(dtype=np.float64)
    new = old + np.log(run.samples["ratio"].to_numpy(dtype=np.float64))
    # Clipped, because a float32 probability may round to 0 or 1.
    old_spread, new_spread = (logit(np.exp(log_prob).clip(1e-6, 1 - 1e-6)).std() for log_prob in (old, new))
    return float(-old.mean() / np.nanmean(trainers)), float(old_spread / new_spread)


@rule
def mask_mismatch(run: Evidence) -> Finding | None:
    """The old log-probs correlate better with a neighbouring token's new ones than with their own token's."""
    samples = run.samples
    if not ratio_is_off(run) or samples.empty:
        return None
    old, new = samples["old_log_prob"], samples["old_log_prob"] + np.log(samples["ratio"])
    completions = new.groupby([samples[key] for key in COMPLETION])
    same, before, after = (float(old.corr(other)) for other in (new, completions.shift(1), completions.shift(-1)))
    if not same < max(before, after):
        return None
    return certain(
        _say_size(run),
        f"the old log-probs go with the new ones of the token {'before' if before > after else 'after'}"
        f" (correlation {number(max(before, after))}), not with those of their own ({number(same)})",
    )


@rule
def precision_mismatch(run: Evidence) -> Finding | None:
    """The ratio is off 1 by no more than rounding to bfloat16 explains."""
    if not ratio_is_off(run) or not _first(run, "kl_old/k3") < BFLOAT16_KL:
        return None
    sampler, trainer = (run.settings.get(key) for key in ("sampler_dtype", "dtype"))
    evidence = (_say_size(run), "rounding to bfloat16 makes a KL of about 1e-5 to 5e-4")
    if not sampler or sampler == trainer:
        return possible(*evidence, instead=("dropout",))
    return certain(*evidence, f"sampler_dtype={sampler}, dtype={trainer}", side="by settings")


@rule
def padding_in_clip_metric(run: Evidence) -> Finding | None:
    """On the last pass, the logged clip fraction is the true one times the share of positions that are no padding."""
    if run.samples.empty or not {"clip/active", "iteration"} <= set(run.updates):
        return None
    last = run.updates[run.updates["iteration"] == run.updates["iteration"].max()]
    lengths = run.samples.groupby(COMPLETION).size().groupby("rollout_step")
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
