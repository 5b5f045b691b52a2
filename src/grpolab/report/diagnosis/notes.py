"""What looks odd in a sound run: said, so that nobody searches for its cause."""

from __future__ import annotations

import numpy as np

from grpolab.report.columns import column
from grpolab.report.diagnosis.evidence import Evidence, distance_from_one, middle
from grpolab.report.diagnosis.thresholds import ROUNDING, ZERO_LOSS
from grpolab.report.text import count, number


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
