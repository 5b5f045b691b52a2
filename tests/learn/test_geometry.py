"""The table behind the analytic figures comes from the kernels that train."""

from __future__ import annotations

import math

import pytest

from grpolab.learn.geometry import CURVES, table


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str | float]]:
    return table(points=300, largest=3.0)


def test_one_row_per_curve_advantage_and_ratio(rows: list[dict[str, str | float]]) -> None:
    assert {row["curve"] for row in rows} == set(CURVES)
    assert len(rows) == len(CURVES) * 2 * 300
    assert rows[0].keys() == {"curve", "advantage", "ratio", "objective", "weight"}


def test_values_by_hand(rows: list[dict[str, str | float]]) -> None:
    for row in rows:
        kernel, epsilon, epsilon_high, delta = CURVES[str(row["curve"])]
        r, A = float(row["ratio"]), float(row["advantage"])
        if kernel == "cispo":
            assert row["weight"] == pytest.approx(min(r, 1 + epsilon_high) * A)
            assert row["objective"] == pytest.approx(min(r, 1 + epsilon_high) * A * math.log(0.25 * r))
            continue
        dead = kernel == "clipped" and ((A > 0 and r > 1 + epsilon_high) or (A < 0 and r < 1 - epsilon))
        capped = delta is not None and r > delta
        assert row["weight"] == pytest.approx(0 if dead or capped else r * A)
        bounded = min(r, delta or math.inf)
        if kernel == "clipped":
            bounded = min(bounded, 1 + epsilon_high) if A > 0 else max(bounded, 1 - epsilon)
        assert row["objective"] == pytest.approx(bounded * A)
