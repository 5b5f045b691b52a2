"""Rules: the old policy is not the one that sampled the batch."""

from __future__ import annotations

from grpolab.report.columns import column
from grpolab.report.diagnosis.evidence import Evidence, distance_from_one, largest
from grpolab.report.diagnosis.finding import Finding
from grpolab.report.diagnosis.thresholds import JUMP, ROUNDING
from grpolab.report.text import count, number


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
