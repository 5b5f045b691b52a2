"""What a sweep costs besides its work: `make bench WHAT=overhead`. What the parts are: README.md here.

    python benchmarks/overhead.py [STUDY] [--seeds N] [--jobs N] [key=value ...]

Sweeps a study into an empty folder that is deleted afterwards, and times it: 8 runs of the reference unless given.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

Event = dict[str, Any]

PHASES = ("seconds/rollout", "seconds/update", "seconds/evaluation")
ROOT = Path(__file__).parents[1]
TARGET = 0.15
POLL_SECONDS = 0.5


class Watched(NamedTuple):
    """A sweep that has ended."""

    began: float  # unix seconds, as in the events
    ended: float
    events: list[Event]
    cpu: dict[str, float]  # CPU seconds of the processes beside the workers, up to the last look


def watch(command: list[str]) -> Watched:
    """Run a sweep with --json-lines. Raises CalledProcessError where it fails."""
    began, cpu = time.time(), dict[str, float]()
    with tempfile.TemporaryFile("w+") as said, subprocess.Popen(command, stdout=said) as child:
        while child.poll() is None:
            cpu |= _cpu_seconds(child.pid)
            time.sleep(POLL_SECONDS)
        ended = time.time()
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, command)
        said.seek(0)
        return Watched(began, ended, [json.loads(line) for line in said], cpu)


def _cpu_seconds(pid: int) -> dict[str, float]:
    """Of the command itself and of its mirror."""
    found = {}
    try:
        command = psutil.Process(pid)
        for process in (command, *command.children()):
            if process == command or "grpolab.run.tracking" in process.cmdline():
                times = process.cpu_times()
                found["command" if process == command else "mirror"] = times.user + times.system
    except psutil.Error:  # it has just ended
        pass
    return found


def parts_of(watched: Watched, results: Path, workers: int) -> tuple[Counter[str], Counter[str]]:
    """Worker-seconds of the work and of everything else; together they are workers x wall time."""
    started, finished = (
        {event["signature"]: event for event in watched.events if event["event"] == name}
        for name in ("started", "finished")
    )
    lanes: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for name, event in started.items():
        lanes[event["worker"]].append((event["time"], finished[name]["time"]))
    busy = sum(end - begin for lane in lanes.values() for begin, end in lane)
    first, last = min(lane[0][0] for lane in lanes.values()), max(lane[-1][1] for lane in lanes.values())
    planned = next(event["time"] for event in watched.events if event["event"] == "plan")
    drawn = _drawn(watched, results) or last
    work = _work(results, [event for event in finished.values() if event["kind"] == "warm_start"])
    tails = sum(last - lane[-1][1] for lane in lanes.values()) + (workers - len(lanes)) * (last - first)
    rest = Counter(
        {
            "start: the command imports and plans": workers * (planned - watched.began),
            "start: workers and mirror import": workers * (first - planned),
            "in jobs: putting together, journal, samples, checkpoints, weights": busy - work.total(),
            "between jobs": workers * (last - first) - busy - tails,
            "idle workers while the last jobs run": tails,
            "end: figures, tables, report": workers * (drawn - last),
            "end: the mirror's last synchronisation": workers * (watched.ended - drawn),
        }
    )
    return work, rest


def _work(results: Path, warm_starts: list[Event]) -> Counter[str]:
    """Pure seconds, from the runs' own clocks."""
    work = Counter({"warm starts": sum(event["seconds"] for event in warm_starts)})
    for file in results.glob("runs/*/timing.jsonl"):
        for line in file.read_text().splitlines():
            work.update({phase.removeprefix("seconds/"): json.loads(line).get(phase, 0.0) for phase in PHASES})
    return work


def _drawn(watched: Watched, results: Path) -> float | None:
    """When the report was written; None where nothing was drawn."""
    reports = [file.stat().st_mtime for file in (*results.glob("report.md"), *results.glob("studies/*/report.md"))]
    return max(reports, default=None)


def print_parts(title: str, parts: Counter[str], share: Callable[[float], str]) -> None:
    """One line for each part, and one for their sum."""
    print(title)
    for name, seconds in [*parts.items(), ("together", parts.total())]:
        print(f"  {seconds:8.1f} s  {share(seconds):>6}  {name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, and print where the time went; 1 where the whole reference, which the target is for, is above it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="ratio_level")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_intermixed_args(arguments)  # STUDY, options, key=value
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        shutil.copy(ROOT / "results" / "geometry.csv", folder)  # committed, so no sweep pays for it
        options = ["--seeds", given.seeds, "--jobs", str(given.jobs), "--json-lines"]
        command = [sys.executable, "-P", "-m", "grpolab", "sweep", given.study, *options, *given.overrides]
        watched = watch([*command, f"machine.results={folder}"])
        work, rest = parts_of(watched, Path(folder), given.jobs)
    pure, wall = work.total(), watched.ended - watched.began
    runs = sum(event["event"] == "finished" and event["kind"] == "run" for event in watched.events)
    print(f"{given.study}: {runs} runs on {given.jobs} workers, {wall:.1f} s; shares are of the work")
    print_parts("work, by the runs' own clocks", work, lambda seconds: f"{seconds / pure:.1%}")
    print_parts("everything else, in worker-seconds", rest, lambda seconds: f"{seconds / pure:.1%}")
    beside = ", ".join(f"{name} {seconds:.1f} CPU s" for name, seconds in watched.cpu.items())
    print(f"beside the workers, on the same cores: {beside}")
    overhead = wall * given.jobs / pure - 1
    print(f"overhead: {overhead:.1%} (target: at most {TARGET:.0%} for the whole reference on 2 cores)")
    return 1 if given.study == "reference" and overhead > TARGET else 0


if __name__ == "__main__":
    sys.exit(main())
