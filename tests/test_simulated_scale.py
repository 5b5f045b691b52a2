"""Many nodes on one folder, in small (`make bench WHAT=scale`): no cell is lost, none has its outcome replaced."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from simulate_scale import WRONG, make_plan, simulate

from grpolab.run.lease import Lease

CHANCE = {"nodes": 20, "kills": 0.5, "freezes": 0.5, "seed": 1}


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is flushed to a disk: that would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def test_kills_freezes_and_late_views_lose_no_cell_and_run_none_twice(tmp_path: Path) -> None:
    request, cost = make_plan(20, 10, tmp_path)
    found = simulate(request, **CHANCE)
    assert [found[name] for name in WRONG] == [0, 0, 0]
    assert "second outcomes, refused" not in found
    assert found["runs that were killed"] > 5
    assert found["runs left because another node had taken them over"] > 0
    assert {state.state for state in request.states().values()} == {"completed"}
    assert found["operations of a run: all"] < 120
    assert cost["planning: plan.json, MB"] < 0.43


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [{"harsh": True}, {"ahead": 600.0}], ids=["late in everything", "clocks"])
def test_worse_file_systems_cost_work_and_nothing_else(trouble: dict, tmp_path: Path) -> None:
    request, _ = make_plan(10, 10, tmp_path)
    found = simulate(request, **CHANCE, **trouble)
    assert [found[name] for name in WRONG] == [0, 0, 0]


def test_without_leases_the_same_simulation_sees_cells_begun_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can see what it looks for."""

    def take_without_asking(lease: Lease) -> bool:
        lease.folder.mkdir(parents=True, exist_ok=True)
        lease._file = lease.folder / ".lease-1"
        lease._file.touch()
        return True

    monkeypatch.setattr(Lease, "check", lambda lease: None)
    monkeypatch.setattr(Lease, "attempt", take_without_asking)
    request, _ = make_plan(10, 10, tmp_path)
    found = simulate(request, **CHANCE)
    assert found["begun"] > 2 * found["cells"]
