"""A sweep of 10,000 variants x 10 seeds on 200 simulated nodes: what it costs, and whether a cell is lost.

Plan, schedule, leases, journals and outcomes are the program's own, in a real folder; nodes and training are not
(docs/beyond_one_machine.md has the numbers). The nodes of two commands share the folder and know nothing of each other.
The exit code is 1 if a cell is lost, differs from the undisturbed run, or has had its outcome replaced.

A command sees a folder's outcome or lease only after a delay, and a lease looks older by it. Three things are exact, as
over NFS: one process makes a file that must not exist, who makes a file in a folder sees that folder as it is, and who
opens a file reads what was written. With `--harsh` the last two are late too.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import math
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from grpolab.paths import Results, read_json, write_atomic
from grpolab.run.folder import Heartbeat, Journal, Outcome, conclude, line
from grpolab.run.lease import BEAT_SECONDS, Host, Lease, LeaseLost, is_taken
from grpolab.sweep.compose import Composer
from grpolab.sweep.jobs import Job, Request, Schedule
from grpolab.sweep.plan import expand
from grpolab.sweep.study import Study
from grpolab.vocabulary import COMPLETED

STEPS = 4  # of a simulated run, each with journal, heartbeat and checkpoint
STEP_SECONDS = (10.0, 40.0)
LOOK_SECONDS = 20.0  # between two looks of a node that has nothing to do or waits for another
NOTICE_SECONDS = 60.0  # until a command knows that its node died
DOWN_SECONDS = (60.0, 3600.0)
FROZEN_SECONDS = (30.0, 1800.0)
HOUR = 3600.0
BEGIN = 1_800_000_000.0  # unix seconds
WRONG = ("cells that were lost", "cells that differ from the undisturbed run", "outcomes that were replaced")
COUNTED = {  # Python's audit events -> what a file system has to do
    **{"open": "open", "os.listdir": "list", "os.mkdir": "make folder", "os.rename": "rename"},
    **{"os.remove": "unlink", "os.link": "link", "os.utime": "touch"},
}


def make_plan(variants: int, seeds: int, root: Path) -> tuple[Request, dict[str, float]]:
    """Plan so many variants of a small task as a command does; return the request and what planning cost."""
    rates, clips = -(-variants // 20), min(variants, 20)
    study = Study(
        name="scale_test",
        question="What does a sweep of this size cost?",
        overrides=[
            *("task=sorting", "task.length=5", "max_completion_length=6", f"rollout_steps={STEPS}"),
            *(f"machine.results={root}", "machine.tracking_uri=null"),
        ],
        factors={
            "rate": {f"r{index}": [f"learning_rate={1e-6 * (index + 1):.9g}"] for index in range(rates)},
            "clip": {f"e{index}": [f"epsilon={0.01 * (index + 1):.3g}"] for index in range(clips)},
        },
        compare="clip",
        baseline="e0",
        seeds=list(range(seeds)),
        primary_metric="eval/accuracy_expected",
        figures=["F1"],
    )
    costs: dict[str, float] = {}
    with timed(costs, "planning: compose and check, CPU s"):
        plan = expand(study, Composer())
    with timed(costs, "planning: signatures and preflight, CPU s"):
        request = Request([plan])
    with timed(costs, "planning: plan.json, CPU s"):
        request.write_plans()
    with timed(costs, "planning: states and jobs, CPU s"):
        request.jobs()
    costs["planning: plan.json, MB"] = request.results.plan(study.name).stat().st_size / 1e6
    costs["planning: peak memory, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return request, costs


@contextmanager
def timed(costs: dict[str, float], name: str) -> Iterator[None]:
    """Write the CPU seconds of what is done meanwhile into `costs`."""
    began = time.process_time()
    yield
    costs[name] = time.process_time() - began


class World:
    """The time, the events to come, and what has happened."""

    def __init__(self, seed: int, stale: tuple[float, float], harsh: bool) -> None:
        self.random, self.stale, self.harsh = random.Random(seed), stale, harsh
        self.time = BEGIN
        self.tally: Counter[str] = Counter()
        self.taken_at: dict[Path, float] = {}  # by folder: when it was last taken
        self.concluded: dict[Path, tuple[float, int]] = {}  # when its first outcome was written, and its inode
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.time + seconds, next(self._order), do))

    def start(self, process: Iterator[float], node: Node | None = None) -> None:
        """Run a generator that yields the seconds to wait. A node's waits while it is frozen, and ends with a kill."""
        life = node and node.life

        def resume() -> None:
            if node and node.life != life:
                return
            if node and node.frozen_until > self.time:
                self.after(node.frozen_until - self.time, resume)
            elif (seconds := next(process, None)) is not None:
                self.after(seconds, resume)

        self.after(0.0, resume)

    def run(self, has_ended: Callable[[], bool]) -> None:
        while not has_ended():
            self.time, _, do = heapq.heappop(self._events)
            do()

    def delay(self) -> float:
        """Return how old what a node sees may be."""
        return self.random.uniform(*self.stale)

    def sees_outcome(self, folder: Path, until: float) -> bool:
        return folder in self.concluded and self.concluded[folder][0] <= until


class SimulatedHost(Host):
    """A simulated machine, as leases see it."""

    def __init__(self, world: World, name: str, ahead: float) -> None:
        super().__init__()
        self.world, self.name, self.ahead = world, name, ahead

    def holder(self) -> dict[str, Any]:
        return {"token": f"{self.world.random.getrandbits(64):x}", "host": self.name}

    def lives(self, holder: dict[str, Any]) -> bool | None:
        return holder["token"] in self.held if holder["host"] == self.name else None

    def now(self) -> float:
        return self.world.time - BEGIN

    def file_time(self, folder: Path) -> float:
        return self.world.time + self.ahead + self.world.delay()

    def touch(self, file: Path) -> None:
        os.utime(file, (self.world.time + self.ahead,) * 2)


class LateLease(Lease):
    """A lease whose holder may learn late that another has taken the folder over."""

    def __init__(self, folder: Path, host: SimulatedHost) -> None:
        super().__init__(folder, host)
        self.world, self.is_kept = host.world, True

    def attempt(self) -> bool:
        if is_mine := super().attempt():
            self.host.touch(self._file)  # its file was made at this machine's time
            self.world.taken_at[self.folder] = self.world.time
        return is_mine

    def release(self) -> None:
        self.is_kept = False
        super().release()

    def check(self) -> None:
        try:
            super().check()
        except LeaseLost:
            if not self.world.harsh or self.world.time - self.world.taken_at[self.folder] >= self.world.delay():
                raise
            self.world.tally["checks that saw a lost lease as held"] += 1


class SimulatedRun:
    """A job without a model: the same files in the same order, with the same bytes whoever writes them."""

    def __init__(self, job: Job, folder: Path, host: str) -> None:
        self.job, self.folder, self.host = job, folder, host
        saved = read_json(folder / "checkpoint" / "latest.json") or {"step": 0, "journal_bytes": 0, "sha256": ""}
        journal = folder / "journal.jsonl"
        kept = journal.read_bytes()[: saved["journal_bytes"]] if journal.exists() else b""
        if hashlib.sha256(kept).hexdigest() != saved["sha256"]:
            saved = {"step": 0, "journal_bytes": 0}
        self.write("settings.yaml", job.settings["task"])
        self.write("provenance.json", {"host": host, "dataset": {"evaluation_items": 1}})
        self.step: int = saved["step"]
        self.journal = Journal(journal, saved["journal_bytes"])
        self.heartbeat = Heartbeat(folder, STEPS)

    def write(self, name: str, content: Any) -> None:
        write_atomic(self.folder / name, json.dumps(content).encode())

    def take_step(self, now: float) -> None:
        """Take a rollout step with its checkpoint. Raises LeaseLost if the journal is another's."""
        self.journal.append(**row(self.job.signature, self.step))
        self.step += 1
        self.heartbeat.beat(self.step, now)
        length = self.journal.sync()
        saved = {"step": self.step, "journal_bytes": length, "sha256": self.journal.sha256}
        self.write("checkpoint/latest.json", saved)

    def conclude(self) -> bool:
        """Write the outcome; return False if there is another one. Raises LeaseLost."""
        self.journal.close()
        final, sha256 = {"eval/accuracy_expected": 0.5}, self.journal.sha256
        mine = Outcome(COMPLETED, None, STEPS, final=final, journal_sha256=sha256, error=self.host)
        return bool(conclude(self.folder, mine)["error"] == self.host)


def row(signature: str, step: int) -> dict[str, Any]:
    """Return what a run's journal says of a step."""
    return {"kind": "rollout", "rollout_step": step, "reward/mean": random.Random(f"{signature} {step}").random()}


class Command:
    """One of the commands that share the folder. It hands out what nobody else does, as far as it can see."""

    def __init__(self, world: World, results: Results, jobs: Sequence[Job]) -> None:
        self.world, self.results, self.schedule = world, results, Schedule(jobs)
        self.host = SimulatedHost(world, "a command's", 0.0)

    def next_job(self) -> Job | None:
        """Choose a node's next job, as `Engine.next_job` does."""
        for job in self.schedule.ready():
            folder = job.folder(self.results)
            seen_until = self.world.time - self.world.delay()
            if self.world.sees_outcome(folder, seen_until):
                self.schedule.finished(job, True)
            elif self.world.taken_at.get(folder, math.inf) > seen_until or not is_taken(folder, self.host):
                return job
            else:
                self.schedule.pass_over(job)
        return None


class Node:
    """A machine with one worker, which does what its command gives it, dies and freezes."""

    def __init__(self, world: World, command: Command, name: str, ahead: float, kills: float, freezes: float) -> None:
        self.world, self.command, self.host = world, command, SimulatedHost(world, name, ahead)
        self.job: Job | None = None
        self.life, self.frozen_until = 0, 0.0
        world.start(self.repeat(kills, self.kill))
        world.start(self.repeat(freezes, self.freeze))
        world.start(self.work(world.random.uniform(0, 60)), self)

    def repeat(self, hours: float, do: Callable[[], None]) -> Iterator[float]:
        """Do something again and again, `hours` apart in the mean; never if 0."""
        while hours:
            yield self.world.random.expovariate(1 / (hours * HOUR))
            do()

    def kill(self) -> None:
        """End the process at once; its command notices a little later, and another process comes after a while."""
        self.world.tally["nodes killed"] += 1
        job, self.job = self.job, None
        self.life, self.frozen_until = self.life + 1, 0.0
        self.host.held.clear()
        if job:
            self.world.tally["runs that were killed"] += 1
            self.world.after(NOTICE_SECONDS, lambda: self.command.schedule.put_back(job))
        self.world.start(self.work(self.world.random.uniform(*DOWN_SECONDS)), self)

    def freeze(self) -> None:
        """Do nothing for a while; then go on as if nothing had been."""
        self.world.tally["nodes frozen"] += 1
        self.frozen_until = self.world.time + self.world.random.uniform(*FROZEN_SECONDS)

    def work(self, seconds: float) -> Iterator[float]:
        """Do one job after another, the first one after a while."""
        yield seconds
        while True:
            if job := self.command.next_job():
                self.job = job
                self.command.schedule.hand_out(job)
                yield from self.do(job)
                self.command.schedule.finished(job, True)
                self.job = None
            else:
                yield LOOK_SECONDS

    def do(self, job: Job) -> Iterator[float]:
        """Take the folder and go on with what is in it; begin again if another node has taken it over."""
        world, folder = self.world, job.folder(self.command.results)
        lease = LateLease(folder, self.host)
        while not world.sees_outcome(folder, world.time - world.delay()):
            if not lease.attempt():
                world.tally["looks at a folder that another had"] += 1
                yield LOOK_SECONDS
                continue
            if world.sees_outcome(folder, world.time - (world.delay() if world.harsh else 0.0)):
                lease.release()
                return
            world.tally["begun"] += 1
            run = SimulatedRun(job, folder, self.host.name)
            world.start(self.beat(lease), self)
            try:
                yield world.random.uniform(*STEP_SECONDS)
                while run.step < STEPS:
                    lease.check()
                    run.take_step(world.time)
                    world.tally["steps"] += 1
                    yield world.random.uniform(*STEP_SECONDS)
                lease.check()
                if run.conclude():
                    world.concluded[folder] = world.time, (folder / "outcome.json").stat().st_ino
                else:
                    world.tally["second outcomes, refused"] += 1
            except LeaseLost:
                world.tally["runs left because another node had taken them over"] += 1
                lease.release()
                lease = LateLease(folder, self.host)
                yield LOOK_SECONDS
            else:
                lease.release()
                return

    def beat(self, lease: LateLease) -> Iterator[float]:
        """Do what the thread of a lease does."""
        while True:
            yield BEAT_SECONDS
            if not lease.is_kept:
                return
            with suppress(LeaseLost):
                lease.beat()


def simulate(
    request: Request,
    nodes: int,
    seed: int = 0,
    stale: tuple[float, float] = (3.0, 60.0),
    ahead: float = 0.0,
    kills: float = 6.0,
    freezes: float = 12.0,
    harsh: bool = False,
) -> dict[str, float]:
    """Run a planned request on so many nodes, half of them of either command; return what happened.

    `stale`: seconds after which others see what was written. `ahead`: each machine's clock is off by up to so many
    seconds, and dates the files that it writes. `kills`, `freezes`: mean hours of a node between two; 0 for none.
    """
    world, jobs, results = World(seed, stale, harsh), request.jobs(), request.results
    commands = [Command(world, results, jobs) for _ in range(2)]
    for index in range(nodes):
        Node(world, commands[index % 2], f"node {index}", world.random.uniform(-ahead, ahead), kills, freezes)
    with count_operations() as operations:
        world.run(lambda: not any(command.schedule for command in commands))
    folders = [job.folder(results) for job in jobs]
    outcomes = [read_json(folder / "outcome.json") for folder in folders]
    steps, per_job = world.tally.pop("steps"), 1 / len(jobs)
    size = sum(file.stat().st_size for folder in folders for file in folder.iterdir() if file.is_file())
    return {
        "cells": len(request.cells),
        "nodes": nodes,
        "simulated hours": (world.time - BEGIN) / HOUR,
        **dict(sorted(world.tally.items())),
        "steps that were taken again, %": 100 * (steps / STEPS * per_job - 1),
        WRONG[0]: sum(outcome is None for outcome in outcomes),
        WRONG[1]: sum(not is_sound(job, outcome, results) for job, outcome in zip(jobs, outcomes, strict=True)),
        WRONG[2]: sum((f / "outcome.json").stat().st_ino != inode for f, (_, inode) in world.concluded.items()),
        **{f"operations of a run: {name}": number * per_job for name, number in sorted(operations.items())},
        "operations of a run: all": sum(operations.values()) * per_job,
        "files of a run": sum(len(list(folder.rglob("*"))) for folder in folders) * per_job,
        "bytes of a run": size * per_job,
    }


def is_sound(job: Job, outcome: dict[str, Any] | None, results: Results) -> bool:
    """True if journal and outcome are those of a run that nothing disturbed."""
    expected = hashlib.sha256(b"".join(line(row(job.signature, step)) for step in range(STEPS))).hexdigest()
    journal = job.folder(results) / "journal.jsonl"
    written = hashlib.sha256(journal.read_bytes()).hexdigest() if journal.exists() else ""
    return outcome is not None and outcome["journal_sha256"] == expected == written


@contextmanager
def count_operations() -> Iterator[Counter[str]]:
    """Count what the file system is asked meanwhile, by Python's audit events, which leave out looks at names."""
    operations: Counter[str] = Counter()
    is_on = True

    def hook(event: str, _arguments: tuple[object, ...]) -> None:  # it can never be removed
        if is_on and event in COUNTED:
            operations[COUNTED[event]] += 1

    sys.addaudithook(hook)
    yield operations
    is_on = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, simulate and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--ahead", type=float, default=0.0, help="seconds that the machines' clocks are off")
    parser.add_argument("--harsh", action="store_true", help="what a node sees of its own folder is late too")
    parser.add_argument("--folder", type=Path, help="where the results folder is made and deleted; best in memory")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="simulate-scale-", dir=options.folder) as folder:
        request, costs = make_plan(options.variants, options.seeds, Path(folder) / "results")
        with timed(costs, "simulation: CPU s"):
            happened = simulate(request, options.nodes, ahead=options.ahead, harsh=options.harsh)
        with timed(costs, "states of all cells, once: CPU s"):
            request.states()
    for name, value in (costs | happened).items():
        print(f"{name:<56} {value:>12,.{0 if value == int(value) else 2}f}")
    return int(any(happened[name] for name in WRONG))


if __name__ == "__main__":
    sys.exit(main())
