"""The short versions of `make test-all WHAT=kill-storm`."""

from __future__ import annotations

from pathlib import Path

import pytest
from kill_storm import differences, main, outcomes


@pytest.mark.slow
@pytest.mark.timeout(900)  # two sweeps with all their processes
def test_one_kill_of_a_worker_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["tiny", "--kills", "1", "--jobs", "1", "--folder", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "   0 left" in said
    assert "  worker   " in said
    assert "nothing is lost: kills: 1; every file equals the undisturbed sweep's" in said
    calm, stormy = (outcomes(tmp_path / name) for name in ("tiny-calm", "tiny-storm-1"))
    assert len(calm) == 3, "a warm start and two runs"
    assert {"journal.jsonl", "policy.safetensors", "outcome.json"} < set().union(*calm.values())
    name = next(iter(stormy))
    stormy[name]["outcome.json"] += b" "
    assert differences(calm, stormy) == [f"{name}/outcome.json differs"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_kills_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A worker, the command and the mirror of the smoke sweep are killed once; two workers first, then one."""
    assert main(["smoke", "--kills", "3", "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {role} " in said for role in ("worker", "parent"))
    assert "nothing is lost: kills: 3" in said
