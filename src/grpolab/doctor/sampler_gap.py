"""The gap between the log-probs of sampler and trainer: its shape over the steps tells where it comes from.

Wide from the first step and flat: what they compute differs. Growing: weights do not arrive. A jump: one event. A saw:
weights arrive once in several steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpolab.doctor.causes import Finding, likely, possible, rule
from grpolab.doctor.evidence import Evidence, Floats, median
from grpolab.report.text import count, number, percent

# Measure of the distance between sampler and trainer -> the largest value that precision alone causes.
GAPS = {"gap/mean": 0.02, "gap/kl": 5e-3, "gap/probability": 0.02, "gap/sampler_trainer": 0.1}
GAP_GROWTH = 5.0  # the last over the first; a jump over all before it; a peak over what follows it
FAR = 5.0  # times that: float8 and mixtures of experts come to two or three times (a tenth of every probability)
FLAT = 2.0  # largest over least third of the run
LOST_SIGNAL = 0.2  # share of the gradient: what is left is another objective
MORE_THAN_ITS_SHARE = 2.0  # times that of its tokens
FEW = 5  # rows: fewer have no shape
TEETH = 4  # falls at equal distances; by chance four seldom are


def _means(run: Evidence, rows: int) -> Iterator[tuple[str, float, Floats]]:
    """Yield each gap that is a mean over tokens and has so many rows; a largest one is a single token's."""
    if not run.samples_from_another:
        for metric, least in GAPS.items():
            if metric != "gap/sampler_trainer" and len(gaps := run.values(metric)) >= rows:
                yield metric, least, gaps


def _thirds(gaps: Floats) -> list[float]:
    return [median(part) for part in np.array_split(gaps, 3) if len(part)]


@rule
def rejection_hits_signal(run: Evidence) -> Finding | None:
    """Rejected tokens hold a fifth of the gradient, and more than twice their share of the tokens."""
    rejected, signal, unlikely = (run.values(f"rejection/{name}") for name in ("tokens", "signal", "unlikely"))
    if not len(signal) or not (lost := float(np.mean(signal))) >= LOST_SIGNAL:
        return None
    if not lost > MORE_THAN_ITS_SHARE * (share := float(np.mean(rejected))):
        return None
    of_unlikely = f"of the tokens below a probability of 0.1 it leaves out {percent(float(np.mean(unlikely)))}"
    return likely(
        f"rejection leaves out {percent(share)} of the tokens, which hold {percent(lost)} of the policy gradient at"
        f" their logits, |A| (1 - p) (means over {count(len(signal), 'update')})",
        of_unlikely if len(unlikely) else "",
    )


@rule
def wide_sampler_gap(run: Evidence) -> Finding | None:
    """The gap is five times what precision explains in the first row and in each third of the run, and flat."""
    for metric, least, gaps in _means(run, FEW):
        if (low := min(gaps[0], *(thirds := _thirds(gaps)))) > FAR * least and max(thirds) < FLAT * low:
            return likely(
                f"{metric} is {number(float(gaps[0]))} in the first of {count(len(gaps), 'row')}, and"
                f" {', '.join(map(number, thirds))} by thirds (medians); precision makes {least:g} at most"
            )
    return None


@rule
def sampler_gap_jump(run: Evidence) -> Finding | None:
    """From one row to the next the gap is above five times all that was before, for two rows or more."""
    for metric, least, gaps in _means(run, FEW):
        limits = np.maximum(GAP_GROWTH * np.maximum.accumulate(gaps), FAR * least)
        at = next((at for at in range(3, len(gaps) - 1) if gaps[at : at + 2].min() > limits[at - 1]), None)
        if at is None:
            continue
        steps = run.rollouts.loc[run.rollouts[metric].notna(), "rollout_step"].to_numpy()
        back = [n for n in range(at, len(gaps)) if (gaps[n:] < limits[at - 1]).all()]
        return likely(
            f"{metric} rose from {number(float(gaps[at - 1]))} to {number(float(gaps[at]))} at step {steps[at]};"
            f" before, it was at most {number(float(gaps[:at].max()))}",
            f"it is back below {number(float(limits[at - 1]))} from step {steps[back[0]]} on" if back else "",
            "the step counter falls there: a resume" if steps[at] < steps[at - 1] else "",
            side="back" if back else "",
        )
    return None


@rule
def late_weight_sync(run: Evidence) -> Finding | None:
    """The gap falls to a fifth at equal distances of three rows or more: a saw."""
    for metric, least, gaps in _means(run, 3 * TEETH):
        falls = np.flatnonzero((gaps[:-1] > least) & (gaps[1:] < gaps[:-1] / GAP_GROWTH))
        distances = set(np.diff(falls).tolist())
        if len(falls) >= TEETH and len(distances) == 1 and (rows := distances.pop()) > 2:
            return likely(
                f"{metric} falls to a fifth or less every {rows} rows, {len(falls)} times, from"
                f" {number(median(gaps[falls]))} to {number(median(gaps[falls + 1]))} (medians)",
                rows=rows,
            )
    return None


@rule
def growing_sampler_gap(run: Evidence) -> Finding | None:
    """The gap between the log-probs of sampler and trainer grows to several times its first value."""
    if run.samples_from_another or sampler_gap_jump(run):
        return None
    for metric, least in GAPS.items():
        start, end = run.ends(metric)
        if not end > least or not end > GAP_GROWTH * start:
            continue
        gaps = run.values(metric)
        thirds = _thirds(gaps)
        is_steady = len(thirds) == 3 and thirds[0] < thirds[1] < thirds[2]
        is_corrected = run.settings.get("sampler_correction.level") or run.settings.get("old_log_probs") == "sampler"
        return (likely if is_steady else possible)(
            f"{metric} grew from {number(start)} to {number(end)} (first and last tenth of {count(len(gaps), 'row')})",
            f"by thirds of the run it is {', '.join(map(number, thirds))} (medians)",
            side="corrected" if is_corrected else "",
        )
    return None
