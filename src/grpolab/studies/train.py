"""`grpolab train`: do one run in this process, from its warm start to its outcome; a failed run is tried again."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import FrameType

from grpolab.paths import Results
from grpolab.studies import drawing
from grpolab.studies.command_line import plan_of_run, refuse_taken_name
from grpolab.studies.facts import average_runs, read_facts, result_lines
from grpolab.studies.progress import Estimate, send, show_progress
from grpolab.studies.session import interruptible, mirrored
from grpolab.studies.summary import say_constant_rewards, say_end, ui_command
from grpolab.sweep.engine import TICK_SECONDS, Engine, Listener
from grpolab.sweep.jobs import WARM_START, Job, Request, Schedule
from grpolab.sweep.plan import Cell
from grpolab.sweep.worker import LEFT, do_job
from grpolab.terminal import say
from grpolab.vocabulary import DAMAGED


def train(cell: Cell, name: str, overrides: Sequence[str]) -> int:
    """Do one run, shown as study `name`. Return the exit code: 0 if it has its outcome, 1 if it failed.

    Raises RequestError before anything starts, and KeyboardInterrupt, also on SIGTERM, after writing a checkpoint.
    """
    refuse_taken_name(name)
    request = Request([plan_of_run(name, cell, overrides)], count_committed=False, single_run=True)
    results, uri, folder = request.results, request.tracking_uri, request.results.run(cell.signature)
    todo = request.jobs(retry_failed=True)
    request.write_plans(retry_failed=True)
    done, warm_starts = int(not todo), max(0, len(todo) - 1)
    counts = {"runs": 1, "done": done, "committed": 0, "to_train": 1 - done, "warm_starts": warm_starts}
    send("plan", studies=[{"study": name, "cells": 1, "seeds": [cell.seed], "done": done}], **counts)
    with interruptible(), mirrored(results, uri, name):
        if todo:
            with show_progress(todo, Estimate(workers=1), results) as progress:
                ThisProcess(results).run(Schedule(todo), progress)
            if uri:
                drawing.assess_runs(results, name)
        else:
            say("0 cells to train: the run has its outcome")
    state = request.states()[cell.signature]
    if state.outcome and state.state != DAMAGED:
        facts, reward = read_facts(folder)
        row = average_runs([(state.outcome, facts)])
        if not send("results", study=name, variants={cell.variant: row}):
            say("\n".join(result_lines(state.outcome, facts)))
        say_constant_rewards({folder.name: reward}, request.labels, results)
    say(f"run folder: {folder}")
    places = [ui_command(name, results)] if uri else []
    return say_end({folder.name: state}, request.labels, results, places)


class ThisProcess(Engine):
    """Does one job after another in this process; Ctrl-C and SIGTERM end a run at its next rollout boundary."""

    def __init__(self, results: Results) -> None:
        super().__init__(results, places=1)
        self._is_leaving = False

    def run(self, schedule: Schedule, listener: Listener) -> None:
        """Do every job. Raises KeyboardInterrupt after the checkpoint of a run that was told to leave."""
        self.schedule, self.listener = schedule, listener
        with interruptible(self._on_signal, signal.SIGINT, signal.SIGTERM):
            while schedule:
                if job := self.next_job():
                    self._do(job)
                else:
                    self.say_waiting()
                    time.sleep(TICK_SECONDS)
                if self._is_leaving and schedule:
                    raise KeyboardInterrupt

    def leave(self, _signature: str = "") -> None:
        self._is_leaving = True

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_leaving:  # asked for the second time
            raise KeyboardInterrupt
        self.leave()

    def _do(self, job: Job) -> None:
        done = 0

        def on_step(step: int) -> None:
            nonlocal done
            done = step
            self.listener.stepped(job, step)
            if job.kind == WARM_START and self._is_leaving:  # it has no checkpoint
                raise KeyboardInterrupt

        self.schedule.hand_out(job)
        self.listener.started(job, 0)
        outcome = do_job(job.kind, job.signature, job.settings, on_step, lambda: self._is_leaving)
        if outcome is LEFT:
            raise KeyboardInterrupt
        self.finish(job, outcome, done)
