"""Whether the tracking store says of a run what its folder says: the points, and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from grpolab.run.tracking.folder import Point
from grpolab.vocabulary import METRICS

TIMED = {metric.name for metric in METRICS.values() if metric.kind == "timing"}
Stored = dict[tuple[str, int], list[float]]  # (metric, rollout step) -> values; more than one: it was written twice


@dataclass
class Difference:
    """What is not equal, one sentence each."""

    wrong: list[str] = field(default_factory=list)  # cannot be put right by adding points
    missing: list[str] = field(default_factory=list)


def compare(expected: Sequence[Point], stored: Stored, final: bool) -> Difference:
    """Points that a folder makes (`History`) against those that the store has.

    A run that is not `final` may have been set back to its checkpoint: what the store has beyond the last point of the
    folder is then no difference, because the run will take those steps again and come to the same values. The times of
    points and what the clock measured are not compared: a run that was resumed has new ones.
    """
    found = Difference()
    values = {(point.name, point.step): point.value for point in expected}
    last = dict(sorted(values))  # step of each metric's last point
    for (name, step), value in values.items():
        have = stored.get((name, step))
        if have is None:
            found.missing.append(f"{name} at step {step} is missing")
        elif name not in TIMED and any(one != value for one in have):
            found.wrong.append(f"{name} at step {step} is {have[0]}, the journal says {value}")
    for (name, step), have in stored.items():
        if len(have) > 1:
            found.wrong.append(f"{name} at step {step} is there {len(have)} times")
        if (name, step) not in values and (final or step <= last.get(name, -1)):
            found.wrong.append(f"{name} at step {step} is in no journal")
    return found
