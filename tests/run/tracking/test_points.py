"""Points of a folder against points of a store: by value, except where the clock measured them."""

from __future__ import annotations

import pytest

from grpolab.run.tracking.points import Point, compare


@pytest.mark.parametrize("name", ["loss", "roll/actor/clipfrac:sum", "trl/clip_ratio/region_mean", "convention/verl"])
def test_another_value_is_named_whoever_s_metric_it_is(name: str) -> None:
    expected = {(name, 0): Point(name, 0.25, 1000, 0)}
    assert compare(expected, {(name, 0): [0.25]}, final=True).wrong == []
    assert compare(expected, {(name, 0): [0.5]}, final=True).wrong == [
        f"{name} at step 0 is 0.5, the journal says 0.25"
    ]
    assert compare(expected, {}, final=True).missing == [f"{name} at step 0 is missing"]


def test_what_the_clock_measured_may_differ() -> None:
    expected = {("seconds/rollout", 0): Point("seconds/rollout", 0.25, 1000, 0)}
    assert compare(expected, {("seconds/rollout", 0): [0.5]}, final=True).wrong == []
