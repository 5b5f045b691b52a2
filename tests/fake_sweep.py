"""Sweeps with workers that cost nothing (`sweep/fake_worker.py`): in this process, or as a command of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pytest

from grpolab.paths import Results, read_json, write_text_atomic
from grpolab.studies import drawing
from grpolab.studies.looks import Decide, Looks
from grpolab.studies.sweep import sweep
from grpolab.sweep.plan import plans

FAKE = (sys.executable, str(Path(__file__).parent / "sweep" / "fake_worker.py"))
Found = TypeVar("Found")


def draw(results: Results, study: str) -> None:
    """Instead of the report."""
    write_text_atomic(results.output(study) / "report.md", f"drawn at {time.monotonic()}")


class FakeSweep:
    """Runs studies into one results folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.results = root, Results(root)
        self._log, self._monkeypatch = root / "jobs.txt", monkeypatch
        monkeypatch.setattr(drawing, "draw_all", draw)
        monkeypatch.setattr(drawing, "unmet", lambda *_: [])

    def __call__(
        self,
        name: str = "smoke",
        *overrides: str,
        jobs: int = 1,
        seeds: list[int] | None = None,
        retry_failed: bool = False,
        command: Sequence[str] = FAKE,
        decide: Decide | None = None,
        most_seeds: int | None = None,
        repeat: bool = False,
        **orders: Any,
    ) -> tuple[int, list[list[str]]]:
        """The exit code, and the jobs that were begun: kind, signature, seed, steps, pid, GPUs.

        With `decide` it goes on, look after look, to `most_seeds`.
        """
        self._log.unlink(missing_ok=True)
        self._monkeypatch.setenv("FAKE_WORKER", json.dumps({"log": str(self._log), **orders}))
        asked = plans(name, [*overrides, f"machine.results={self.root}", "machine.tracking_uri=null"], seeds)
        looks = Looks(asked, most_seeds, decide) if decide else None
        first = looks.plans if looks else asked
        code = sweep(first, jobs, retry_failed=retry_failed, command=command, looks=looks, repeat=repeat)
        return code, self.begun()

    def start(self, *arguments: str, **orders: Any) -> subprocess.Popen[str]:
        """`grpolab sweep smoke` as a command, in a process group of its own."""
        given = ["sweep", "smoke", f"machine.results={self.root}", "machine.tracking_uri=null", *arguments]
        code = f"""
import functools, sys
from grpolab.cli import main
from grpolab.studies import drawing, sweep
drawing.draw_all = lambda *_: None
sweep.sweep = functools.partial(sweep.sweep, command={FAKE!r})
sys.exit(main({given!r}))
"""
        environment = {**os.environ, "FAKE_WORKER": json.dumps({"log": str(self._log), **orders})}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=pipe, stderr=pipe, process_group=0, text=True
        )

    def begun(self) -> list[list[str]]:
        """The jobs that were begun since the last call."""
        return [line.split() for line in self._log.read_text().splitlines()] if self._log.exists() else []

    def workers(self) -> list[int]:
        """Processes that have begun a run."""
        return sorted({int(job[4]) for job in self.begun() if job[0] == "run"})

    def outcomes(self) -> list[dict[str, Any]]:
        """Of all runs."""
        return [json.loads(file.read_text()) for file in sorted(self.root.glob("runs/*/outcome.json"))]

    def commit_outcomes(self, journal_sha256: str = "0") -> int:
        """Keep the outcomes in compact form alone, and delete the run folders; return their number."""
        kept = [
            {"signature": run.name, **(read_json(run / "outcome.json") or {})} for run in self.results.runs.iterdir()
        ]
        frame = pd.DataFrame(kept)[["signature", "outcome", "reason"]].assign(journal_sha256=journal_sha256)
        self.results.reference.mkdir()
        frame.to_parquet(self.results.reference / "outcomes.parquet")
        shutil.rmtree(self.results.runs)
        return len(kept)


def wait_for(condition: Callable[[], Found], seconds: float = 90.0) -> Found:
    """What the condition gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found
