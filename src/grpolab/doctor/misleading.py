"""What misleads: a clip metric that counts something else, and what looks odd in a sound run and is no cause."""

from __future__ import annotations

import numpy as np
import pandas as pd

from grpolab.doctor.causes import Finding, Question
from grpolab.doctor.evidence import ROUNDING, Evidence, distance_from_one, middle
from grpolab.report.journals import column
from grpolab.report.text import count, number, percent

METRIC_MISLEADS = Question("Why does the clip metric not fit the rest of the log?")

MISCOUNTED = 0.005  # relative difference of a share from its count


@METRIC_MISLEADS.cause(
    says="The clip fraction counts padding: it is diluted by tokens that do not exist.",
    remedy="Average the clip mask over completion tokens only.",
)
def padding_in_clip_metric(run: Evidence) -> Finding | None:
    """The logged clip fraction is the one counted on the kept tokens times the share of places that hold a token."""
    steps = _clip_fractions(run)
    steps = steps[(steps["counted"] > 0) & (steps["filled"] < 1 - MISCOUNTED)]
    padded = (steps["logged"] / (steps["counted"] * steps["filled"]) - 1).abs() < MISCOUNTED
    if steps.empty or not padded.all():
        return None
    first = steps.iloc[0]
    evidence = (
        f"at rollout step {int(steps.index[0])} {percent(first['counted'])} of the completion tokens carry a clip mark,"
        f" the log says {percent(first['logged'])}; the same in all {count(len(steps), 'step')} that were kept",
        f"their ratio is {number(first['logged'] / first['counted'])}, and {number(first['filled'])} of the places of"
        " the batch hold a token",
    )
    return Finding("padding_in_clip_metric", "certain", evidence)


def _clip_fractions(run: Evidence) -> pd.DataFrame:
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
# What looks odd in a sound run: said, so that nobody searches for its cause. Each gives its evidence, or None.


def no_reuse(run: Evidence) -> str | None:
    """Each batch has one update, and the ratio is 1 in all of them."""
    off, clipped = distance_from_one(run.first), column(run.first, "clip/active")
    moved = off.max() > ROUNDING if len(off) else not len(clipped) or clipped.max() > 0
    if run.updates_per_batch != 1 or moved:
        return None
    known = "the ratio is 1" if len(off) else "the clip fraction is 0"
    return f"one update per batch in all {count(len(run.first), 'rollout step')}, and {known}, whatever epsilon is"


ZERO_LOSS = 1e-6  # rounding of a mean of centred advantages


def zero_first_loss(run: Evidence) -> str | None:
    """The loss is 0 on a fresh batch, its gradient is not."""
    losses, norm = column(run.first, "loss"), middle(run.first, "grad_norm")
    if not len(losses) or not norm > 0 or np.median(np.abs(losses)) > ZERO_LOSS:
        return None
    return (
        f"|loss| is {number(float(np.median(np.abs(losses))))} on the first update of a batch (median), the gradient"
        f" norm {number(norm)}"
    )


NOTES = {
    no_reuse: (
        "One optimiser step per on-policy batch: the ratio is exactly 1 and nothing can be clipped. This is normal."
    ),
    zero_first_loss: (
        "The loss is 0 at the start because advantages are centred and the ratio is 1; its gradient is not 0."
        " This is normal."
    ),
}
