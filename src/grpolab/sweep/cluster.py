"""Jobs on other machines. What Ray and Slurm share: the task that a node does, the probe before the first, the loop.

The shared file system is the only meeting point. How far a run is, its driver reads in the run's folder; that a run is
to leave, the run reads there. An engine is asked no more than whether a task has ended.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
import signal
import socket
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from grpolab import RESULTS_VERSION, __version__
from grpolab.errors import RequestError
from grpolab.paths import Results, commit, read_json, write_json_atomic, write_text_atomic
from grpolab.run.lease import HERE, end_of_session
from grpolab.settings.run import RayLauncher, SlurmLauncher
from grpolab.sweep.engine import (
    GRACE_SECONDS,
    TICK_SECONDS,
    Death,
    Engine,
    Listener,
    Outcome,
    WorkerStartError,
    passed_limit,
)
from grpolab.sweep.jobs import RUN, WARM_START, Job, Schedule
from grpolab.sweep.ledger import Record, last_row
from grpolab.sweep.worker import LEFT, do
from grpolab.vocabulary import MISSING

LEAVE = "leave"  # in a run's folder: the session that it is to leave
TAKEN = {"outcome": MISSING, "reason": "another command does it"}
LOOK_SECONDS = 1.0  # between two looks of a run at whether it is to leave
REQUEUE_SECONDS = 45  # a pre-empted run that has not reached a rollout boundary by then goes on from its checkpoint
CLOCK_SECONDS = 5.0  # by which clocks may differ: runs say when they began and ended
VISIBLE_SECONDS = 15.0  # until a file that another machine has written must be seen
MOST_REFUSALS, REFUSAL_SECONDS = 10, 30.0  # of submissions in a row, and between two


@dataclass(frozen=True)
class Task:
    """A job for a node, to be pickled and called there. It is done as a worker of the pool does it."""

    job: Job
    folder: str  # the driver's working directory: relative paths of settings are below it
    session: str

    def __call__(self) -> Outcome:
        """The job's outcome; TAKEN where somebody else has begun it since it was handed out."""
        os.chdir(self.folder)
        HERE.session = self.session
        results = Results.open(self.job.settings["machine"]["results"])
        if self.job.is_taken(results):
            return TAKEN
        note, looked, asked = self.job.folder(results) / LEAVE, 0.0, False
        requeue, preempted = signal.getsignal(signal.SIGUSR2), list[int]()

        def on_preemption(number: int, frame: FrameType | None) -> None:
            assert callable(requeue)
            if self.job.kind == WARM_START:  # it has no boundary to leave at
                requeue(number, frame)
            preempted.append(number)
            signal.signal(signal.SIGALRM, requeue)
            signal.alarm(REQUEUE_SECONDS)

        def stop() -> bool:
            nonlocal looked, asked
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                with suppress(OSError):  # opened, because a shared file system tells of a file by its name too late
                    asked = note.read_text() == self.session
            return asked or bool(preempted)

        if callable(requeue):  # submitit's
            signal.signal(signal.SIGUSR2, on_preemption)
        outcome = do(self.job.kind, self.job.signature, self.job.settings, lambda step, steps: None, stop)
        signal.alarm(0)
        if asked:
            note.unlink(missing_ok=True)
        elif outcome is LEFT and callable(requeue):
            requeue(preempted[0], None)
        return outcome

    def checkpoint(self) -> Any:
        """What submitit puts into the queue again after a pre-emption: a run goes on from its own checkpoint."""
        return importlib.import_module("submitit.helpers").DelayedSubmission(self)


@dataclass(frozen=True)
class Probe:
    """Goes to a node before the first job: what is different there."""

    place: str  # a folder below the results
    folder: str  # the driver's working directory

    def __call__(self) -> Record:
        """What the node is; the same is left in `place`, where the node can see it."""
        name, there = socket.gethostname(), Path(self.place)
        seen = (read_json(there / "question.json") or {}).get("nonce")
        facts = {"node": name, "nonce": seen, "folder": Path(self.folder).is_dir(), "program": program()}
        if seen:
            write_json_atomic(there / f"{name}-{os.getpid()}.answer.json", facts)
        return {**facts, "time": time.time()}

    def checkpoint(self) -> Any:
        """As Task's."""
        return importlib.import_module("submitit.helpers").DelayedSubmission(self)


def program() -> dict[str, Any]:
    """What must be the same on every machine, lest one study's runs are of two programs."""
    return {
        "grpolab": __version__,
        "commit": commit(Path(__file__).parents[3]),
        "results_version": RESULTS_VERSION,
        "torch": importlib.metadata.version("torch"),
    }


@dataclass
class Out:
    """A job that the cluster has."""

    job: Job
    handle: Any
    slot: int
    before: Record | None  # what its folder said of its progress when it was handed out: another session's
    began: float | None = None  # when it was first seen to go on
    heard: float = 0.0  # when it was last seen to
    last: Record | None = None
    step: int = 0
    verdict: Death | None = None  # why we end it
    deadline: float = 0.0


class Cluster(Engine):
    """An engine that hands jobs to a cluster."""

    def __init__(self, results: Results, settings: RayLauncher | SlurmLauncher, places: int, logs: Path) -> None:
        super().__init__(results, places, attempts=1 + settings.retries)
        self.settings, self.logs = settings, logs  # where what tasks print is written, where it is
        self.session = uuid.uuid4().hex
        self._out: dict[str, Out] = {}  # by signature
        self._ending: list[Any] = []  # handles whose job has its outcome
        self._refusals, self._not_before = 0, 0.0

    @abstractmethod
    def connect(self) -> None:
        """Reach the cluster; `places` is known then. Raises RequestError."""

    @abstractmethod
    def disconnect(self) -> None:
        """Give back what `connect` took."""

    @abstractmethod
    def probe(self, probe: Probe) -> list[Any]:
        """Send the probe to the nodes that can be chosen, or to one; handles."""

    @abstractmethod
    def submit(self, tasks: Sequence[Task | Probe]) -> list[Any]:
        """Hand tasks over; a handle for each. Raises WorkerStartError where the cluster does not take them."""

    @abstractmethod
    def ended(self, handle: Any) -> Any:
        """None while it waits or goes on; what it returned, or a Death."""

    @abstractmethod
    def cancel(self, handles: Sequence[Any], waiting_only: bool = False) -> None:
        """End tasks at once, or only those that still wait for a place."""

    def wait(self, handles: Sequence[Any]) -> None:
        """Until something may have happened."""
        time.sleep(TICK_SECONDS)

    def __enter__(self) -> Self:
        """Reach the cluster, and ask nodes what they are."""
        try:
            self.connect()
            self._ask_nodes()
        except BaseException:
            self.disconnect()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the cluster."""
        self.disconnect()

    def run(self, schedule: Schedule, listener: Listener) -> None:
        """As every engine does. Interrupted, it asks runs to leave, and takes back what waits in the queue."""
        self.begin(schedule, listener)
        try:
            while schedule:
                self._hand_out()
                self.wait([out.handle for out in self._out.values()])
                for out in list(self._out.values()):
                    self._look(out)
            self._let_end(self._ending, VISIBLE_SECONDS)
        except BaseException:
            self._abandon()
            raise

    def leave(self, signature: str) -> None:
        """As every engine does."""
        if signature in self._out:
            write_text_atomic(self.results.run(signature) / LEAVE, self.session)

    def _hand_out(self) -> None:
        jobs = list[Job]()
        if time.monotonic() >= self._not_before:
            while len(self._out) + len(jobs) < self.places and (job := self.next()):
                self.schedule.hand_out(job)
                jobs.append(job)
        if jobs:
            before = [self._progress(job) for job in jobs]
            try:
                handles = self.submit([Task(job, os.getcwd(), self.session) for job in jobs])
                self._refusals = 0
            except WorkerStartError as error:
                self._refusals += 1
                if self._refusals == MOST_REFUSALS:
                    raise
                for job in jobs:
                    self.schedule.put_back(job)
                self._not_before = time.monotonic() + REFUSAL_SECONDS
                self.listener.note(f"{error}; tried again in {REFUSAL_SECONDS:.0f} s")
                return
            for job, handle, said in zip(jobs, handles, before, strict=True):
                slot = min(set(range(len(self._out) + 1)) - {out.slot for out in self._out.values()})
                self._out[job.signature] = Out(job, handle, slot, said)
        elif not self._out:
            self.say_waiting()

    def _progress(self, job: Job) -> Record | None:
        """What a job's folder says of how far it is: a run's heartbeat, a warm start's last step."""
        folder = job.folder(self.results)
        return read_json(folder / "running.json") if job.kind == RUN else last_row(folder / "journal.jsonl")

    def _look(self, out: Out) -> None:
        """See how far a job is, and whether it has ended."""
        job, now = out.job, time.monotonic()
        outcome, result = job.outcome(self.results), self.ended(out.handle)
        said = self._progress(job)
        if said and said not in (out.before, out.last):
            out.last, out.heard = said, now
            self._started(out)
            step = int(said["rollout_step" if job.kind == RUN else "step"])
            if step > out.step:
                out.step = step
                self.listener.stepped(job, step)
        if outcome is None and result is None:
            self._watch(out, now)
            return
        del self._out[job.signature]
        (job.folder(self.results) / LEAVE).unlink(missing_ok=True)
        if result is None:
            self._ending.append(out.handle)
        if outcome is None and isinstance(result, Death):
            self._bury(out, result)
        elif outcome is None and result == TAKEN:
            self.schedule.put_back(job)
        else:
            self._started(out)
            self.finish(job, outcome or result, out.step)

    def _started(self, out: Out) -> None:
        if out.began is None:
            out.began = out.heard = time.monotonic()
            self.listener.started(out.job, out.slot)

    def _watch(self, out: Out, now: float) -> None:
        """End a job that has passed a limit."""

        def mib() -> float | None:
            row = last_row(out.job.folder(self.results) / "timing.jsonl") or {}
            return row.get("system/rss_mib")

        if out.began is None:
            return
        verdict = passed_limit(out.job, now - out.began, now - out.heard, mib)
        if verdict and out.verdict is None:
            out.verdict, out.deadline = verdict, now + (GRACE_SECONDS if verdict.gently else 0)
            self.leave(out.job.signature)
        if out.verdict and now >= out.deadline:
            self.cancel([out.handle])

    def _bury(self, out: Out, death: Death) -> None:
        """A task has died: its process is no more, whatever its lease says."""
        end_of_session(out.job.folder(self.results), self.session)
        self._started(out)
        self.lost(out.job, out.verdict or death, out.step)

    def _abandon(self) -> None:
        """Have all end that is out: a run with a checkpoint."""
        outs = list(self._out.values())
        runs = [out for out in outs if out.job.kind == RUN]
        for out in runs:
            self.leave(out.job.signature)
        self.cancel([out.handle for out in runs], waiting_only=True)
        self.cancel([out.handle for out in outs if out.job.kind == WARM_START])
        self._let_end([out.handle for out in outs], GRACE_SECONDS)
        for out in runs:
            if self.ended(out.handle) is not None:
                (self.results.run(out.job.signature) / LEAVE).unlink(missing_ok=True)

    def _let_end(self, handles: Sequence[Any], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(self.ended(handle) is None for handle in handles) and time.monotonic() < deadline:
            self.wait(handles)

    def _ask_nodes(self) -> None:
        """Raises RequestError where no node answers in time, or one differs from this machine."""
        nonce, ours = uuid.uuid4().hex, program()
        place = self.results.root / f".probe-{nonce}"
        self.logs, logs = place, self.logs
        try:
            write_json_atomic(place / "question.json", {"nonce": nonce})
            sent, answers = time.time(), dict[int, Record]()
            handles = self.probe(Probe(str(place), os.getcwd()))
            while len(answers) < len(handles):
                if time.time() - sent > self.settings.answer_seconds:
                    self.cancel(handles)
                    raise self.refusal(
                        f"{len(handles) - len(answers)} of {len(handles)} nodes that were asked have not answered"
                        f" within answer_seconds={self.settings.answer_seconds:g}"
                    )
                self.wait(handles)
                for index, handle in enumerate(handles):
                    if index not in answers and (answer := self.ended(handle)) is not None:
                        if isinstance(answer, Death):
                            raise self.refusal(f"a node could not answer: {answer.reason}")
                        answers[index] = {**answer, "heard": time.time()}
            for answer in answers.values():
                if problems := list(_differences(answer, ours, nonce, sent, place)):
                    raise self.refusal(f"on node {answer['node']} {problems[0]}")
        except WorkerStartError as error:
            raise self.refusal(str(error)) from error
        finally:
            self.logs = logs
            shutil.rmtree(place, ignore_errors=True)

    def refusal(self, sentence: str) -> RequestError:
        """The sentence, about this launcher."""
        return RequestError(f"machine.launcher.name={self.settings.name}: {sentence}")


def _differences(answer: Record, ours: Record, nonce: str, sent: float, place: Path) -> Iterator[str]:
    """What of a node's answer is not as it must be."""
    results = place.parent
    if answer["nonce"] != nonce:
        yield f"{results} is not the folder that it is here: machine.results must be on a file system that all share"
    elif not _seen(lambda: any(place.glob(f"{answer['node']}-*.answer.json"))):
        yield f"what is written to {results} does not appear here: machine.results must be shared"
    if not answer["folder"]:
        yield f"there is no {os.getcwd()}, the working directory of this command, which must be shared too"
    for key, value in ours.items():
        if answer["program"].get(key) != value:
            yield f"{key} is {answer['program'].get(key)}, and here {value}: they must be the same"
    off = max(sent - answer["time"], answer["time"] - answer["heard"])
    if off > CLOCK_SECONDS:
        yield f"the clock is off by {off:.0f} s: at most {CLOCK_SECONDS:g} s are allowed, because runs are dated by it"


def _seen(there: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not there():
        if time.monotonic() > deadline:
            return False
        time.sleep(TICK_SECONDS)
    return True
