"""How far a run is, for those who watch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from grpolab.run.folder import INTERVAL, Heartbeat


def beat(folder: Path, now: float = 1000.0) -> dict:
    Heartbeat(folder, 10).beat(3, now)
    return json.loads((folder / "running.json").read_text())


def test_it_says_who_runs_and_how_far(tmp_path: Path) -> None:
    found = beat(tmp_path)
    assert found["pid"] == os.getpid()
    assert (found["rollout_step"], found["rollout_steps"], found["time"]) == (3, 10, 1000.0)


def test_it_beats_at_most_once_in_an_interval(tmp_path: Path) -> None:
    heart, path = Heartbeat(tmp_path, 10), tmp_path / "running.json"
    heart.beat(0, 1000.0)
    heart.beat(1, 1000.0 + INTERVAL / 2)
    assert json.loads(path.read_text())["rollout_step"] == 0
    heart.beat(2, 1000.0 + INTERVAL)
    assert json.loads(path.read_text())["rollout_step"] == 2


def test_it_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush takes milliseconds, every second of every run; a reader still never sees half a file."""
    monkeypatch.delattr(os, "fsync")
    assert beat(tmp_path)["rollout_step"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["running.json"]
