"""The table behind the analytic figures comes from the kernels that train."""

from __future__ import annotations

import math

import pytest

from grpolab.report.surrogate_tables import CURVES, SURFACES, curve_table, surface_table


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str | float]]:
    return curve_table(points=300, largest=3.0)


def test_values_by_hand(rows: list[dict[str, str | float]]) -> None:
    for row in rows:
        objective = CURVES[str(row["curve"])]
        kernel, options, delta = objective.kernel, objective.options, objective.delta
        epsilon, epsilon_high = objective.epsilon, objective.epsilon_high
        r, A = float(row["ratio"]), float(row["advantage"])
        if kernel == "sapo":
            tau = options["temperature_positive" if A > 0 else "temperature_negative"]
            gate = 1 / (1 + math.exp(-tau * (r - 1)))
            assert row["objective"] == pytest.approx(4 / tau * gate * A)
            assert row["weight"] == pytest.approx(4 * gate * (1 - gate) * r * A)
            continue
        if kernel == "gmpo":
            inside = math.log(r) <= epsilon_high if A > 0 else math.log(r) >= -epsilon
            assert row["objective"] == pytest.approx(r * A if inside else A * math.exp(math.copysign(0.4, A)))
            assert row["weight"] == pytest.approx(r * A if inside else 0)
            continue
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


def test_surfaces_by_hand() -> None:
    """Which weights follow from the ratio, which from the change of the probability, and where there is none."""
    points = {
        (row["rule"], row["advantage"], row["old"], row["new"]): float(row["weight"]) for row in surface_table(points=4)
    }
    assert len(points) == len(SURFACES) * 2 * 4 * 4
    assert {old for _, _, old, _ in points} == {0.125, 0.375, 0.625, 0.875}
    for A in (1.0, -1.0):
        for (old, new), ratio in {(0.375, 0.125): 1 / 3, (0.625, 0.875): 1.4, (0.125, 0.875): 7}.items():
            weights = {rule: points[rule, A, old, new] for rule in SURFACES}
            clipped = ratio > 1.2 if A > 0 else ratio < 0.8
            moved = new - old > 0.2 if A > 0 else new - old < -0.2
            assert weights["no clip"] == pytest.approx(A * ratio, rel=1e-5)
            assert weights["clip 0.2 / 0.2"] == pytest.approx(0 if clipped else A * ratio, rel=1e-5)
            assert weights["cispo, cap 1.28"] == pytest.approx(A * min(ratio, 1.28), rel=1e-5)
            assert weights["dppo, TV 0.2"] == pytest.approx(0 if moved else A * ratio, rel=1e-5)
            held_back = 1 / ratio if A > 0 else ratio
            assert weights["aspo, cap 3"] == pytest.approx(0 if clipped else A * min(held_back, 3), rel=1e-5)
    assert all(weight * float(A) >= 0 for (_, A, _, _), weight in points.items())
