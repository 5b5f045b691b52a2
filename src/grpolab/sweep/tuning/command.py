"""`grpolab tune`: the trials that are missing are done and told of, and what came out is written and said."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from rich.console import Console

from grpolab.errors import RequestError
from grpolab.sweep.engine import WORKER_COMMAND, Engine, WorkerStartError
from grpolab.sweep.jobs import RUN, Job, Request
from grpolab.sweep.launch import Draw, engine_of, interruptible, mirrored
from grpolab.sweep.ledger import Record, duration
from grpolab.sweep.plan import Plan
from grpolab.sweep.progress import SILENCE_SECONDS, outcome_line, print_table
from grpolab.sweep.tuning.arms import Arms, override
from grpolab.sweep.tuning.search import Score, Tuner
from grpolab.sweep.tuning.storage import JOURNAL, SQLITE, ArmTrials, Owner, check_uri, kept_in, open_storage
from grpolab.terminal import say, visible
from grpolab.vocabulary import COMPLETE, FAILED


class TuningProgress:
    """The engine's listener; the tuner hears through it of each step."""

    def __init__(self, tuner: Tuner) -> None:
        self.tuner, self.total = tuner, tuner.open_trials()
        self.ended = 0
        self.busy_seconds = 0.0  # of workers, on jobs
        self.full = self.run = 0  # optimiser steps of the trials that ended: without pruning, and really done
        self._began = self._last_line = time.monotonic()
        self._running: dict[str, tuple[float, str]] = {}  # when a job began, and how far it is, in words
        self._console = Console(highlight=False, soft_wrap=True)
        tuner.ended = self.trial_ended

    @property
    def saved(self) -> float:
        """Share of the optimiser steps that pruning has saved."""
        return 1 - self.run / self.full if self.full else 0.0

    def trial_ended(self, label: str, record: Record) -> None:
        """A line about it."""
        self.ended += 1
        self.full += record["optimizer_steps"]["full"]
        self.run += record["timing"]["optimizer_steps"]
        means = {metric: score["mean"] for metric, score in record["scores"].items()}
        about = [f"{metric} {mean:.4g}" for metric, mean in means.items() if isinstance(mean, float)]
        about += [record["reason"]] if record["state"] != COMPLETE else []
        left = (time.monotonic() - self._began) / self.ended * (self.total - self.ended)
        saved = f", pruning saved {self.saved:.0%} of the steps" if self.full > self.run else ""
        rest = f"(about {duration(left)} left{saved})"
        self.note(f"[{self.ended}/{self.total}] {label} {record['state']}: {', '.join(about)} {rest}")

    def started(self, job: Job, slot: int) -> None:
        """A worker got the job."""
        self._running[job.signature] = time.monotonic(), f"{job.label} begins"

    def stepped(self, job: Job, step: int) -> None:
        """The job has done so many steps: the tuner looks at what it says."""
        began, _ = self._running.get(job.signature, (time.monotonic(), ""))
        self._running[job.signature] = began, f"{job.label} at step {step}/{job.steps}"
        if job.kind == RUN:
            self.tuner.look(job.signature)
        if time.monotonic() - self._last_line > SILENCE_SECONDS:
            self.note(
                f"[{self.ended}/{self.total}] running: {', '.join(how_far for _, how_far in self._running.values())}"
            )

    def returned(self, job: Job, reason: str) -> None:
        """The worker died, and the job is on the list again."""
        self._stop_clock(job)
        self.note(f"{job.label}: {reason}; it is tried again")

    def finished(self, job: Job, outcome: dict[str, Any]) -> None:
        """The job is done, or was left."""
        self._stop_clock(job)
        if outcome["outcome"] == FAILED or outcome.get("disk_full"):
            self.note(outcome_line(job, outcome))

    def note(self, text: str) -> None:
        """Something to be said at once."""
        self._last_line = time.monotonic()
        self._console.print(visible(text), markup=False)

    def _stop_clock(self, job: Job) -> None:
        if job.signature in self._running:
            began, _ = self._running.pop(job.signature)
            self.busy_seconds += time.monotonic() - began


# `grpolab tune STUDY`: check all that can be known to be wrong, do the trials that are missing, write what came out.


def tune(
    arms: Arms,
    score: Score,
    draw: Draw,
    tuned: Path,
    jobs: int | None = None,
    storage: str | None = None,
    command: Sequence[str] = WORKER_COMMAND,
) -> int:
    """Do what is left of a study's tuning on `jobs` workers, and `draw` what came out.

    The best values go into the file `tuned` when every arm has its trials. The exit code is 0 where it has, else 1.

    Raises RequestError before anything starts, KeyboardInterrupt (also on SIGTERM) after the workers have ended.
    """
    study = arms.study.model_copy(update={"name": arms.plan_name})
    request = Request([Plan(study, arms.tuning.seeds, arms.base_cells())], count_committed=False)
    results, name = request.results, arms.study.name
    folder = results.trials(name).parent
    uri = storage or f"{JOURNAL}{folder / 'storage.journal'}"
    jobs = check_uri(uri, jobs)
    if uri.startswith(SQLITE) and (others := Owner(folder).others()):
        raise RequestError(f"--storage {uri} serves one command at a time, and {others[0]} is at work on it")
    engine = engine_of(request, jobs, command)
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it says every trial, and that parts of it may change
    quiet = warnings.catch_warnings(action="ignore", category=ExperimentalWarning)
    with quiet, interruptible(), engine, kept_in(uri):  # the engine first: a cluster may be refused
        opened = open_storage(uri, name)
        trials = [ArmTrials(opened, arms, arm, parallel=engine.places > 1) for arm in arms.names]
        tuner = Tuner(arms, trials, results, score, folder, engine.places)
        engine.places = min(engine.places, tuner.open_trials())
        _say_plan(arms, trials, uri, engine.places)
        tuner.book.write()
        with mirrored(results, request.tracking_uri, arms.plan_name), tuner.owner.at_work():
            if engine.places:
                _run(tuner, engine)
            if tuner.book.is_done():
                place = uri.replace(f"{results.root}/", "")  # where the results lie is this machine's
                written = tuner.book.write_tuned(tuned, place)
                say(f"tuned values: {tuned}" if written else "no tuned values: an arm has no complete trial")
            draw(results, name)
        for arm, entry in tuner.book.best(tuner.book.document()):
            values = " ".join(override(key, value) for key, value in entry["values"].items())
            scores = ", ".join(f"{metric} {score['mean']:.4g}" for metric, score in entry["scores"].items())
            say(f"best of {arm.arm}: trial {entry['number']}: {values}: {scores}")
        for arm_name, failed in tuner.failed.items():
            if failed:
                say(f"{arm_name}: {failed} trials failed; the same command makes up for them")
        return 0 if tuner.book.is_done() else 1


def _run(tuner: Tuner, engine: Engine) -> None:
    tuner.leave = engine.leave
    progress = TuningProgress(tuner)
    try:
        engine.run(tuner, progress)
    except WorkerStartError as error:
        say(error)
    if progress.busy_seconds:
        share = tuner.seconds / progress.busy_seconds
        say(
            f"{progress.ended} trials: {duration(progress.busy_seconds)} of workers; the tuner itself took"
            f" {tuner.seconds:.1f} s, {share:.1%} of that; pruning saved {progress.saved:.0%} of the optimiser steps"
        )


def _say_plan(arms: Arms, trials: Sequence[ArmTrials], uri: str, workers: int) -> None:
    rows = [[arm.arm, ", ".join(arm.space), str(arm.tuning.trials), str(arm.finished())] for arm in trials]
    print_table(("arm", "keys", "trials", "done"), rows)
    tuning = arms.tuning
    how = f"sampler {tuning.sampler}, pruner {tuning.pruner.name}, seeds {', '.join(map(str, tuning.seeds))}"
    say(f"{how}; storage {uri}; workers: {workers}" if workers else "0 trials to do: every arm has its own")
