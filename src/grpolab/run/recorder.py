"""All that a run writes while it goes: journal, timing, samples, item scores, checkpoints, heartbeat."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import psutil

from grpolab.learn.batch import Rollout, joined, sampler_gap
from grpolab.learn.diagnostics import histograms
from grpolab.learn.evaluation import Evaluation
from grpolab.learn.learner import EntropyControl, LearnerState
from grpolab.learn.rollout_metrics import rollout_metrics
from grpolab.learn.update import Step, learning_rate
from grpolab.paths import write_json_atomic
from grpolab.run import checkpoint
from grpolab.run.assembly import Parts
from grpolab.run.ending import Ending
from grpolab.run.heartbeat import Heartbeat
from grpolab.run.journal import Journal, line
from grpolab.run.samples import sample_table, write_samples

MIB = 2**20


class Recorder:
    """Opens a run folder where its last checkpoint left it, and puts the learner's state back to that moment."""

    def __init__(self, folder: Path, parts: Parts) -> None:
        self.folder, self.parts = folder, parts
        self.settings = parts.settings
        state, collector = parts.state, parts.learner.collector
        saved, problems = checkpoint.restore(folder / "checkpoint", state, self._misfit)
        state.waiting = collector.unpacked(state.policy, state.rollout_step, saved.get("waiting", []))
        if "entropy" in saved:
            state.entropy = EntropyControl(*saved["entropy"])
        if problems:
            self._say_recovery(problems)
        self.journal = Journal(folder / "journal.jsonl", saved.get("journal_bytes", 0))
        self.timing = Journal(folder / "timing.jsonl", saved.get("timing_bytes", 0))
        self.final: dict[str, float] = saved.get("final", {})  # metrics of the last finite evaluation
        self.ending = Ending(self.settings, **saved.get("ending", {}))
        self.heartbeat = Heartbeat(folder, self.settings.planned_steps)
        self.heartbeat.beat(state.rollout_step, time.time())  # another machine sees no lock
        self._earlier_seconds = saved.get("seconds", 0.0)
        self._process = psutil.Process()
        self._opened = self._lap_start = self._saved = time.perf_counter()
        self._laps: dict[str, float] = {}
        self._cpu = (self._process.cpu_times(), self._opened)

    @property
    def seconds(self) -> float:
        """Wall seconds of this run, earlier sittings included."""
        return self._earlier_seconds + time.perf_counter() - self._opened

    def lap(self, phase: str) -> None:
        """Credit the wall time since the last lap to `seconds/<phase>`."""
        now = time.perf_counter()
        self._laps[f"seconds/{phase}"] = self._laps.get(f"seconds/{phase}", 0.0) + now - self._lap_start
        self._lap_start = now

    def update(
        self, taken: Step, state: LearnerState, iteration: int, minibatch: int, metrics: Mapping[str, float]
    ) -> None:
        """An optimiser step and what was measured of it."""
        number = state.optimizer_step - 1
        self.journal.append(
            kind="update",
            rollout_step=state.rollout_step,
            iteration=iteration,
            minibatch=minibatch,
            optimizer_step=number,
            loss=taken.loss,
            grad_norm=taken.grad_norm,
            learning_rate=learning_rate(self.settings, number),
            **metrics,
        )

    def rollout(self, rollout: Rollout, last_pass: list[Step], state: LearnerState, **measured: float) -> None:
        """A rollout step after its updates; `measured` are metrics with `__` for `/` that the loop measured itself."""
        step, switches = state.rollout_step, self.settings.diagnostics
        group = self.settings.num_generations
        if switches.histogram_every and step % switches.histogram_every == 0:
            self.journal.append(
                kind="histogram",
                rollout_step=step,
                iteration=self.settings.num_iterations - 1,
                minibatch=len(last_pass) - 1,
                optimizer_step=state.optimizer_step - 1,
                **histograms(last_pass[-1].update),
            )
        if switches.samples_every and step % switches.samples_every == 0:
            write_samples(self.folder, step, sample_table(rollout, last_pass, state.policy, group))
        trained = joined([taken.batch for taken in last_pass])
        if self.settings.old_log_probs == "trainer":  # else the trainer's are not known
            assert trained.old_log_probs_BT is not None
            measured["gap__sampler_trainer"] = sampler_gap(trained, trained.old_log_probs_BT).max().item()
        self.journal.append(
            kind="rollout",
            rollout_step=step,
            optimizer_step=state.optimizer_step,
            completions=(step + 1) * self.settings.batch_size,
            **rollout_metrics(rollout, trained, group),
            **{name.replace("__", "/"): value for name, value in measured.items()},
        )

    def evaluation(self, found: Evaluation, state: LearnerState) -> None:
        """An evaluation after `state.rollout_step` rollout steps."""
        self.final = found.metrics
        self.ending.see_evaluation(state.rollout_step, found.metrics)
        self.journal.append(
            kind="evaluation",
            rollout_step=state.rollout_step,
            optimizer_step=state.optimizer_step,
            completions=state.rollout_step * self.settings.batch_size,
            **found.metrics,
        )
        write_json_atomic(
            self.folder / "evaluation_items.json",
            {"rollout_step": state.rollout_step, "score": [round(score, 6) for score in found.scores_I]},
        )

    def end_of_step(self, state: LearnerState, *, save: bool = False) -> None:
        """Flush; beat; checkpoint if one is due or asked for. `state.rollout_step` counts finished steps."""
        self._append_timing(state.rollout_step - 1)
        self.journal.flush()
        self.heartbeat.beat(state.rollout_step, time.time())
        now = time.perf_counter()
        if save or now - self._saved >= self.settings.machine.checkpoint_seconds:
            self._saved = now
            self._checkpoint(state)

    def close(self) -> None:
        """Everything to the disk."""
        try:
            self.journal.close()
        finally:
            self.timing.close()

    def _misfit(self, position: checkpoint.Position) -> str | None:
        """What a checkpoint expects of the journal, and does not find."""
        journal = self.folder / "journal.jsonl"
        begun = journal.read_bytes()[: position["journal_bytes"]] if journal.exists() else b""
        if hashlib.sha256(begun).hexdigest() == position.get("journal_sha256"):
            return None
        return f"the first {position['journal_bytes']} bytes of journal.jsonl are not what they were"

    def _say_recovery(self, problems: list[str]) -> None:
        """Say, and keep in recovery.jsonl, that the run does not go on from its newest checkpoint."""
        where = f"goes on from rollout step {self.parts.state.rollout_step}"
        sentence = f"{'; '.join(problems)}: the run {where if self.parts.state.rollout_step else 'begins anew'}"
        print(f"run {self.folder.name}: {sentence}", file=sys.stderr, flush=True)
        with (self.folder / "recovery.jsonl").open("ab") as file:
            file.write(line({"time_ms": _unix_ms(), "what": sentence}))

    def _append_timing(self, rollout_step: int) -> None:
        times, now = self._process.cpu_times(), time.perf_counter()
        (earlier, then), self._cpu = self._cpu, (times, now)
        used = times.user + times.system - earlier.user - earlier.system
        row: dict[str, Any] = {
            "time_ms": _unix_ms(),
            **self._laps,
            "seconds/elapsed": self.seconds,
            "system/rss_mib": self._process.memory_info().rss / MIB,
            "system/cpu_percent": 100 * used / max(now - then, 1e-9),
        }
        self._laps = {}
        self.timing.append(rollout_step=rollout_step, **row)
        self.timing.flush()

    def _checkpoint(self, state: LearnerState) -> None:
        checkpoint.save(
            self.folder / "checkpoint",
            state,
            journal_bytes=self.journal.sync(),
            journal_sha256=self.journal.sha256,
            timing_bytes=self.timing.sync(),
            final=self.final,
            ending=self.ending.saved(),
            seconds=self.seconds,
            waiting=self.parts.learner.collector.packed(state.waiting),
            **({"entropy": astuple(state.entropy)} if state.entropy else {}),
        )


def _unix_ms() -> int:
    """Unix time as an integer, because floats are rounded to nine digits."""
    return int(time.time() * 1000)
