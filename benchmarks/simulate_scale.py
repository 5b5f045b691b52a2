"""A sweep of 10,000 variants x 10 seeds on 200 nodes, simulated: what it costs, and whether a cell is lost.

Plan, schedule, leases, journals and outcomes are the program's own, in a real folder; nodes and their training are not.
A discrete-event simulation has the nodes of two commands, which share the folder and know nothing of each other. Nodes
are killed and come back, freeze and wake up after their lease, have clocks that are off (`--ahead`), and see late what
others have written (`--stale`). Printed are the planning's cost, the operations and bytes of a run, and what happened
to the cells; 1 where a cell is lost, differs from the undisturbed one, or has had its outcome replaced.

What is late: a folder's outcome or lease is not there for a command before the delay is over, and a lease looks older
by it. As over NFS, three things are exact: a file that must not be there yet is made by one, who has made a file in a
folder sees that folder as it is, and who opens a file reads what was written. With `--harsh` the last two are late too.
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

STEPS = 4  # of a stub run, each with journal, heartbeat and checkpoint
STEP_SECONDS = (10.0, 40.0)
LOOK_SECONDS = 20.0  # between two looks of a node that has nothing to do or waits for another
NOTICE_SECONDS = 60.0  # until a command knows that its node died
DOWN_SECONDS = (60.0, 3600.0)
FROZEN_SECONDS = (30.0, 1800.0)
HOUR = 3600.0
BEGIN = 1_800_000_000.0  # unix seconds
WRONG = ("cells that were lost", "cells that differ from the undisturbed run", "outcomes that were replaced")
COUNTED = {  # of Python's audit events: what a file system has to do
    **{"open": "open", "os.listdir": "list", "os.mkdir": "make folder", "os.rename": "rename"},
    **{"os.remove": "unlink", "os.link": "link", "os.utime": "touch"},
}


def study(variants: int, seeds: int, root: Path) -> Study:
    """So many variants of a small task; their results go below `root`."""
    first, second = -(-variants // 20), min(variants, 20)
    return Study(
        name="scale_test",
        question="What does a sweep of this size cost?",
        overrides=[
            *("task=sorting", "task.length=5", "max_completion_length=6", f"rollout_steps={STEPS}"),
            *(f"machine.results={root}", "machine.tracking_uri=null"),
        ],
        factors={
            "rate": {f"r{index}": [f"learning_rate={1e-6 * (index + 1):.9g}"] for index in range(first)},
            "clip": {f"e{index}": [f"epsilon={0.01 * (index + 1):.3g}"] for index in range(second)},
        },
        compare="clip",
        baseline="e0",
        seeds=list(range(seeds)),
        primary_metric="eval/accuracy_expected",
        figures=["F1"],
    )


def planned(variants: int, seeds: int, root: Path) -> tuple[Request, dict[str, float]]:
    """The plan as a command makes it, and what that costs."""
    began, cost = time.process_time(), dict[str, float]()

    def lap(name: str) -> None:
        nonlocal began
        now = time.process_time()
        cost[f"planning: {name}, CPU s"], began = now - began, now

    plan = expand(study(variants, seeds, root), Composer())
    lap("compose and check")
    request = Request([plan])
    lap("signatures and preflight")
    request.write_plans()
    lap("plan.json")
    request.jobs()
    lap("states and jobs")
    cost["planning: plan.json, MB"] = request.results.plan(plan.study.name).stat().st_size / 1e6
    cost["planning: peak memory, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return request, cost


class World:
    """The time, the events to come, and what has happened."""

    def __init__(self, seed: int, stale: tuple[float, float], harsh: bool) -> None:
        self.random, self.stale, self.harsh = random.Random(seed), stale, harsh
        self.time = BEGIN
        self.tally: Counter[str] = Counter()
        self.taken_at: dict[Path, float] = {}  # by folder: when it was last taken
        self.concluded: dict[Path, float] = {}  # when its first outcome was written
        self.inodes: dict[Path, int] = {}  # of that outcome
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._events, (self.time + seconds, next(self._order), do))

    def run(self, ended: Callable[[], bool]) -> None:
        """Let things happen until it has ended."""
        while not ended():
            self.time, _, do = heapq.heappop(self._events)
            do()

    def between(self, limits: tuple[float, float]) -> float:
        """A moment between two."""
        return self.random.uniform(*limits)

    def delay(self) -> float:
        """How old what a node sees may be."""
        return self.between(self.stale)


class Machine(Host):
    """A simulated machine as leases see it."""

    def __init__(self, world: World, name: str, ahead: float) -> None:
        super().__init__()
        self.world, self.name, self.ahead = world, name, ahead

    def holder(self) -> dict[str, Any]:
        """Its process."""
        token = f"{self.world.random.getrandbits(64):x}"
        return {"token": token, "host": self.name}

    def lives(self, holder: dict[str, Any]) -> bool | None:
        """Its own process is seen, others are not."""
        return holder["token"] in self.held if holder["host"] == self.name else None

    def now(self) -> float:
        """Simulated seconds."""
        return self.world.time - BEGIN

    def file_time(self, folder: Path) -> float:
        """By the file system's clock, or by its own; what it sees is old."""
        return self.world.time + self.ahead + self.world.delay()

    def touch(self, file: Path) -> None:
        """At the simulated time."""
        os.utime(file, (self.world.time + self.ahead,) * 2)


class LateLease(Lease):
    """A lease whose holder may learn late that another has taken the folder over."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        super().__init__(folder, machine)
        self.world = machine.world

    def attempt(self) -> bool:
        """As always; the moment is noted."""
        if taken := super().attempt():
            self.host.touch(self._file)  # its file was made at the time of this machine
            self.world.taken_at[self.folder] = self.world.time
        return taken

    def check(self) -> None:
        """As always, only late."""
        try:
            super().check()
        except LeaseLost:
            if not self.world.harsh or self.world.time - self.world.taken_at[self.folder] >= self.world.delay():
                raise
            self.world.tally["checks that saw a lost lease as held"] += 1


class StubRun:
    """A job in its folder without a model: the same files in the same order, the same bytes whoever writes them."""

    def __init__(self, job: Job, folder: Path, host: str) -> None:
        self.job, self.folder = job, folder
        saved = read_json(folder / "checkpoint" / "latest.json") or {"step": 0, "journal_bytes": 0, "sha256": ""}
        journal = folder / "journal.jsonl"
        kept = journal.read_bytes()[: saved["journal_bytes"]] if journal.exists() else b""
        if hashlib.sha256(kept).hexdigest() != saved["sha256"]:
            saved = {"step": 0, "journal_bytes": 0}
        write_atomic(folder / "settings.yaml", json.dumps(job.settings["task"]).encode())
        write_atomic(folder / "provenance.json", json.dumps({"host": host}).encode())
        self.step: int = saved["step"]
        self.journal = Journal(journal, saved["journal_bytes"])
        self.heartbeat = Heartbeat(folder, STEPS)

    def take_step(self, now: float) -> None:
        """A rollout step with its checkpoint. Raises LeaseLost where the journal is another's."""
        self.journal.append(**row(self.job.signature, self.step))
        self.step += 1
        self.heartbeat.beat(self.step, now)
        length = self.journal.sync()
        saved = {"step": self.step, "journal_bytes": length, "sha256": self.journal.sha256}
        write_atomic(self.folder / "checkpoint" / "latest.json", json.dumps(saved).encode())

    def conclude(self, host: str) -> bool:
        """Write the outcome; False where another one stands. Raises LeaseLost as a step."""
        self.journal.close()
        sha256 = self.journal.sha256
        mine = Outcome(COMPLETED, None, STEPS, final={"eval/accuracy_expected": 0.5}, journal_sha256=sha256, error=host)
        return bool(conclude(self.folder, mine)["error"] == host)


def row(signature: str, step: int) -> dict[str, Any]:
    """What a run's journal says of a step."""
    return {"kind": "rollout", "rollout_step": step, "reward/mean": random.Random(f"{signature} {step}").random()}


def journal_sha256(signature: str) -> str:
    """Of the run that nothing disturbed."""
    return hashlib.sha256(b"".join(line(row(signature, step)) for step in range(STEPS))).hexdigest()


class Command:
    """One of the commands that share the folder: it hands out what nobody else does, as far as it can see."""

    def __init__(self, world: World, results: Results, jobs: Sequence[Job]) -> None:
        self.world, self.results = world, results
        self.schedule = Schedule(jobs)
        self.host = Machine(world, "a command's", 0.0)

    def next(self) -> Job | None:
        """The next job for a node, as `sweep/engine.py` chooses it."""
        for job in self.schedule.ready():
            folder = job.folder(self.results)
            seen_until = self.world.time - self.world.delay()
            if self.world.concluded.get(folder, math.inf) <= seen_until:
                self.schedule.finished(job, True)
            elif self.world.taken_at.get(folder, math.inf) > seen_until or not is_taken(folder, self.host):
                return job
            else:
                self.schedule.pass_over(job)
        return None


class Node:
    """A machine with one worker, which does what its command gives it, dies and freezes."""

    def __init__(self, world: World, command: Command, name: str, ahead: float, kills: float, freezes: float) -> None:
        self.world, self.command, self.machine = world, command, Machine(world, name, ahead)
        self.hours = {"killed": kills, "frozen": freezes}  # mean hours between two
        self.job: Job | None = None
        self.life, self.frozen_until = 0, 0.0
        self._misfortune("killed", self.kill)
        self._misfortune("frozen", self.freeze)
        self.soon(world.between((0, 60)), self.ask)

    def _misfortune(self, name: str, do: Callable[[], None]) -> None:
        if self.hours[name]:
            self.world.after(self.world.random.expovariate(1 / (self.hours[name] * HOUR)), do)

    def soon(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something later, if this process lives by then; when it wakes up, if it is frozen."""
        life = self.life

        def when_due() -> None:
            if life == self.life:
                left = self.frozen_until - self.world.time
                self.world.after(left, when_due) if left > 0 else do()

        self.world.after(seconds, when_due)

    def kill(self) -> None:
        """The process is gone at once, and another comes later; the command notices a little later too."""
        self.world.tally["nodes killed"] += 1
        job, self.job = self.job, None
        self.life += 1
        self.frozen_until = 0.0
        self.machine.held.clear()
        if job:
            self.world.tally["runs that were killed"] += 1
            self.world.after(NOTICE_SECONDS, lambda: self.command.schedule.put_back(job))
        self.soon(self.world.between(DOWN_SECONDS), self.ask)
        self._misfortune("killed", self.kill)

    def freeze(self) -> None:
        """Nothing happens here for a while; then everything goes on as if nothing had been."""
        self.world.tally["nodes frozen"] += 1
        self.frozen_until = self.world.time + self.world.between(FROZEN_SECONDS)
        self._misfortune("frozen", self.freeze)

    def ask(self) -> None:
        """Have a job, or ask again later."""
        self.job = self.command.next()
        if self.job is None:
            self.soon(LOOK_SECONDS, self.ask)
            return
        self.command.schedule.hand_out(self.job)
        self.come()

    def come(self) -> None:
        """To the folder of the job."""
        assert self.job
        self.lease = LateLease(self.job.folder(self.command.results), self.machine)
        self.begin()

    def begin(self) -> None:
        """Get the folder, and go on with what is in it."""
        assert self.job
        if self.is_concluded(self.world.delay()):
            self.done()
        elif not self.lease.attempt():
            self.world.tally["looks at a folder that another had"] += 1
            self.soon(LOOK_SECONDS, self.begin)
        elif self.is_concluded(self.world.delay() if self.world.harsh else 0.0):
            self.lease.release()
            self.done()
        else:
            self.world.tally["begun"] += 1
            self.run = StubRun(self.job, self.lease.folder, self.machine.name)
            lease = self.lease
            self.soon(BEAT_SECONDS, lambda: self.beat(lease))
            self.soon(self.world.between(STEP_SECONDS), self.step)

    def is_concluded(self, delay: float) -> bool:
        """Whether this node, whose view of the folder is so old, sees an outcome."""
        return self.world.concluded.get(self.lease.folder, math.inf) <= self.world.time - delay

    def beat(self, lease: Lease) -> None:
        """What the thread of a lease does."""
        if lease is self.lease and self.job:
            with suppress(LeaseLost):
                lease.beat()
                self.soon(BEAT_SECONDS, lambda: self.beat(lease))

    def step(self) -> None:
        """A step, or the outcome after the last one."""
        assert self.job
        try:
            self.lease.check()
            if self.run.step < STEPS:
                self.run.take_step(self.world.time)
                self.world.tally["steps"] += 1
                self.soon(self.world.between(STEP_SECONDS), self.step)
                return
            first = self.run.conclude(self.machine.name)
        except LeaseLost:
            self.world.tally["runs left because another node had taken them over"] += 1
            self.lease.release()
            self.soon(LOOK_SECONDS, self.come)
            return
        if first:
            self.world.concluded[self.lease.folder] = self.world.time
            self.world.inodes[self.lease.folder] = (self.lease.folder / "outcome.json").stat().st_ino
        else:
            self.world.tally["second outcomes, refused"] += 1
        self.lease.release()
        self.done()

    def done(self) -> None:
        """The command hears of it."""
        assert self.job
        self.command.schedule.finished(self.job, True)
        self.job = None
        self.ask()


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
    """What happens to the cells of a planned request on so many nodes, half of them of either command.

    `stale`: seconds after which others see what was written. `ahead`: each machine's clock is off by up to so many
    seconds in either direction, and the file system takes its times from the machines. `kills`, `freezes`: mean hours
    of a node between two; 0 for none.
    """
    world = World(seed, stale, harsh)
    jobs = request.jobs()
    commands = [Command(world, request.results, jobs) for _ in range(2)]
    for index in range(nodes):
        Node(world, commands[index % 2], f"node {index}", world.random.uniform(-ahead, ahead), kills, freezes)
    with counted() as operations:
        world.run(lambda: not any(command.schedule for command in commands))
    results, cells = request.results, len(request.cells)
    outcomes = [read_json(job.folder(results) / "outcome.json") for job in jobs]
    sound = sum(is_sound(job, job.folder(results), outcome) for job, outcome in zip(jobs, outcomes, strict=True))
    replaced = sum((folder / "outcome.json").stat().st_ino != inode for folder, inode in world.inodes.items())
    tally = world.tally
    steps = tally.pop("steps")
    size = sum(file.stat().st_size for job in jobs for file in job.folder(results).iterdir() if file.is_file())
    return {
        "cells": cells,
        "nodes": nodes,
        "simulated hours": (world.time - BEGIN) / HOUR,
        **dict(sorted(tally.items())),
        "steps that were taken again, %": 100 * (steps / (STEPS * len(jobs)) - 1),
        "cells that were lost": sum(outcome is None for outcome in outcomes),
        "cells that differ from the undisturbed run": len(jobs) - sound,
        "outcomes that were replaced": replaced,
        **{f"operations of a run: {name}": number / len(jobs) for name, number in sorted(operations.items())},
        "operations of a run: all": sum(operations.values()) / len(jobs),
        "files of a run": sum(len(list(job.folder(results).rglob("*"))) for job in jobs) / len(jobs),
        "bytes of a run": size / len(jobs),
    }


def is_sound(job: Job, folder: Path, outcome: dict[str, Any] | None) -> bool:
    """Whether journal and outcome are those of the run that nothing disturbed."""
    expected, journal = journal_sha256(job.signature), folder / "journal.jsonl"
    written = hashlib.sha256(journal.read_bytes()).hexdigest() if journal.exists() else ""
    return outcome is not None and outcome["journal_sha256"] == expected == written


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """What the file system is asked meanwhile, by Python's audit events; looks at names (stat) are not among them."""
    operations: Counter[str] = Counter()
    is_on = True

    def hook(event: str, _arguments: tuple[object, ...]) -> None:  # it can never be removed
        if is_on and event in COUNTED:
            operations[COUNTED[event]] += 1

    sys.addaudithook(hook)
    yield operations
    is_on = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, simulate, print; 1 where a cell is lost, differs or has had its outcome replaced."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the simulation's own chance")
    parser.add_argument("--stale", type=float, nargs=2, default=(3.0, 60.0), help="seconds until others see a change")
    parser.add_argument("--ahead", type=float, default=0.0, help="seconds; the machines' clocks date the files")
    parser.add_argument("--kills", type=float, default=6.0, help="mean hours between two of a node; 0: none")
    parser.add_argument("--freezes", type=float, default=12.0, help="the same")
    parser.add_argument("--harsh", action="store_true", help="looking at one's own folder is late too")
    parser.add_argument("--folder", type=Path, help="where the results folder is made and deleted; best in memory")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="simulate-scale-", dir=given.folder) as folder:
        request, costs = planned(given.variants, given.seeds, Path(folder) / "results")
        said(costs)
        began = time.process_time()
        disturbed = {name: getattr(given, name) for name in ("seed", "ahead", "kills", "freezes", "harsh")}
        found = simulate(request, given.nodes, stale=tuple(given.stale), **disturbed)
        said(found | {"simulation: CPU s": time.process_time() - began})
        began = time.process_time()
        request.states()
        said({"states of all cells, once: CPU s": time.process_time() - began})
    return 1 if any(found[name] for name in WRONG) else 0


def said(found: dict[str, float]) -> None:
    """A line for each."""
    for name, value in found.items():
        print(f"{name:<56} {value:>12,.{0 if value == int(value) else 2}f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
