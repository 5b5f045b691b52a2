"""The files of a run in progress: journal, timing, samples, item scores and heartbeat."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from grpolab.grpo.batch import Rollout, TrainingBatch, join_batches, sampler_gap
from grpolab.grpo.evaluation import Evaluation
from grpolab.grpo.metrics import histograms, rollout_metrics
from grpolab.grpo.mismatch import mismatch
from grpolab.grpo.model import Policy
from grpolab.grpo.step import LearnerState, Update, learning_rate
from grpolab.paths import write_atomic, write_json_atomic
from grpolab.run.checkpoint import Position
from grpolab.run.folder import Heartbeat, Journal, line
from grpolab.settings.resolved import Resolved
from grpolab.terminal import say


class Recorder:
    """Writes to a run's folder; opens its files at the length that the checkpoint names."""

    def __init__(self, folder: Path, settings: Resolved, rollout_step: int, saved: Position) -> None:
        """Open the files; `saved` is the checkpoint's position, empty if there is none."""
        self.folder, self.settings = folder, settings
        self.journal = Journal(folder / "journal.jsonl", saved.get("journal_bytes", 0))
        self.timing = Journal(folder / "timing.jsonl", saved.get("timing_bytes", 0))
        self.final: dict[str, float] = saved.get("final", {})  # metrics of the last finite evaluation
        self.heartbeat = Heartbeat(folder, settings.planned_steps)
        self.heartbeat.beat(rollout_step, time.time())  # at once: nothing else shows other machines that the run began
        self._earlier_seconds = saved.get("seconds", 0.0)
        self._process = psutil.Process()
        self._opened = self._lap_start = time.perf_counter()
        self._laps: dict[str, float] = {}
        self._cpu = (self._process.cpu_times(), self._opened)

    @property
    def seconds(self) -> float:
        """Wall seconds of this run, earlier sessions included."""
        return self._earlier_seconds + time.perf_counter() - self._opened

    def lap(self, phase: str) -> None:
        """Credit the wall time since the last lap to `seconds/<phase>`."""
        now = time.perf_counter()
        self._laps[f"seconds/{phase}"] = self._laps.get(f"seconds/{phase}", 0.0) + now - self._lap_start
        self._lap_start = now

    def update(
        self, update: Update, state: LearnerState, iteration: int, minibatch: int, metrics: Mapping[str, float]
    ) -> None:
        """Record an optimiser step and its metrics."""
        number = state.optimizer_step - 1
        place = {"rollout_step": state.rollout_step, "iteration": iteration, "minibatch": minibatch}
        step = {"optimizer_step": number, "loss": update.loss, "grad_norm": update.grad_norm}
        rate = learning_rate(self.settings, number)
        self.journal.append(kind="update", **place, **step, learning_rate=rate, **metrics)

    def rollout(
        self,
        rollout: Rollout,
        first_pass: list[Update],
        updates: list[Update],
        state: LearnerState,
        measured: Mapping[str, float],
    ) -> None:
        """Record a rollout step with the updates of its first and its last pass and the loop's own metrics."""
        settings, step, now = self.settings, state.rollout_step, state.optimizer_step
        switches, group = settings.diagnostics, settings.num_generations
        trained = join_batches([update.batch for update in updates])
        assert trained.old_log_probs_BT is not None
        by_probability: dict[str, list[float]] = {}
        if switches.mismatch:
            policy = "old" if settings.old_log_probs == "trainer" else "current"
            gaps, by_probability = mismatch([update.inputs for update in first_pass], policy)
            measured = {**measured, **gaps}
        if switches.histogram_every and step % switches.histogram_every == 0:
            last = {"iteration": settings.num_iterations - 1, "minibatch": len(updates) - 1, "optimizer_step": now - 1}
            self.journal.append(
                kind="histogram", rollout_step=step, **last, **histograms(updates[-1]), **by_probability
            )
        if switches.samples_every and step % switches.samples_every == 0:
            content = pa.BufferOutputStream()
            pq.write_table(sample_table(rollout, trained, updates, state.policy, group), content, compression="zstd")
            path = self.folder / "samples" / f"step_{step:06d}.parquet"
            write_atomic(path, content.getvalue().to_pybytes(), durable=False)
        if settings.old_log_probs == "trainer":  # else the trainer's are not known
            gap_N = sampler_gap(trained, trained.old_log_probs_BT)
            measured = {**measured, **({"gap/sampler_trainer": gap_N.max().item()} if len(gap_N) else {})}
        place = {"rollout_step": step, "optimizer_step": now, "completions": state.completions}
        self.journal.append(kind="rollout", **place, **rollout_metrics(rollout, trained, group), **measured)

    def evaluation(self, evaluation: Evaluation, state: LearnerState) -> None:
        """Record an evaluation after `state.rollout_step` rollout steps."""
        self.final, step = evaluation.metrics, state.rollout_step
        place = {"rollout_step": step, "optimizer_step": state.optimizer_step}
        self.journal.append(kind="evaluation", **place, completions=state.completions, **evaluation.metrics)
        items = {"rollout_step": step, "score": [round(score, 6) for score in evaluation.scores_I]}
        write_json_atomic(self.folder / "evaluation_items.json", items)

    def end_of_step(self, rollout_step: int) -> None:
        """Write timing and heartbeat of a finished rollout step; hand all records to the operating system."""
        times, now = self._process.cpu_times(), time.perf_counter()
        (earlier, then), self._cpu = self._cpu, (times, now)
        used = times.user + times.system - earlier.user - earlier.system
        system = {
            "seconds/elapsed": self.seconds,
            "system/rss_mib": self._process.memory_info().rss / 2**20,
            "system/cpu_percent": 100 * used / max(now - then, 1e-9),
        }
        self.timing.append(rollout_step=rollout_step, time_ms=_unix_ms(), **self._laps, **system)
        self._laps = {}
        self.journal.flush()  # first, because a row of timing means that its step's records are in the journal
        self.timing.flush()
        self.heartbeat.beat(rollout_step + 1, time.time())

    def sync(self) -> Position:
        """Write everything to the disk itself; return the files' lengths, for a checkpoint."""
        length = self.journal.sync()
        return {"journal_bytes": length, "journal_sha256": self.journal.sha256, "timing_bytes": self.timing.sync()}

    def close(self) -> None:
        """Write everything to the disk and close the files."""
        try:
            self.journal.close()
        finally:
            self.timing.close()


class SilentRecorder(Recorder):
    """Writes nothing; for all processes of a run except the first."""

    def __init__(self) -> None:
        pass

    def lap(self, *arguments: Any) -> None:
        pass

    update = rollout = evaluation = end_of_step = close = lap  # type: ignore[assignment]


def journal_misfit(folder: Path, position: Position) -> str | None:
    """Return how a run's journal differs from what a checkpoint expects; None if it fits."""
    journal = folder / "journal.jsonl"
    begun = journal.read_bytes()[: position["journal_bytes"]] if journal.exists() else b""
    if hashlib.sha256(begun).hexdigest() == position.get("journal_sha256"):
        return None
    return f"the first {position['journal_bytes']} bytes of journal.jsonl are not what they were"


def say_recovery(folder: Path, rollout_step: int, problems: list[str]) -> None:
    """Print, and append to recovery.jsonl, that the run does not resume at its newest checkpoint."""
    how = f"goes on from rollout step {rollout_step}" if rollout_step else "begins anew"
    sentence = f"{'; '.join(problems)}: the run {how}"
    say(f"run {folder.name}: {sentence}", error=True, flush=True)
    with (folder / "recovery.jsonl").open("ab") as file:
        file.write(line({"time_ms": _unix_ms(), "what": sentence}))


def _unix_ms() -> int:
    """Return Unix time as an integer, because the journal rounds floats to nine digits."""
    return int(time.time() * 1000)


def sample_table(
    rollout: Rollout, trained: TrainingBatch, updates: list[Update], policy: Policy, group: int
) -> pa.Table:
    """Return one row per completion token; ratio and clipping are from `updates`, the last pass over the batch."""
    assert trained.old_entropy_BT is not None
    assert trained.old_log_probs_BT is not None
    order_B = torch.argsort(trained.rows_B)
    mask_BT = trained.mask_BT[order_B].cpu()
    row_N, position_N = mask_BT.nonzero(as_tuple=True)
    rows = trained.rows_B[order_B][row_N].tolist()  # of the rollout

    def in_order(values_BT: torch.Tensor) -> list[Any]:
        return values_BT[order_B].cpu()[mask_BT].tolist()

    def of_tokens(pieces: list[torch.Tensor]) -> list[Any]:
        shaped = [piece.expand_as(update.batch.mask_BT) for piece, update in zip(pieces, updates, strict=True)]
        return in_order(torch.cat(shaped))

    low_N = of_tokens([update.surrogate.active_low for update in updates])
    high_N = of_tokens([update.surrogate.active_high for update in updates])
    columns = {
        "prompt_index": [row // group for row in rows],
        "sample": [row % group for row in rows],
        "prompt": [rollout.examples_B[row].prompt for row in rows],
        "completion": [rollout.texts_B[row] for row in rows],
        "reward": rollout.rewards_B[rows].tolist(),
        **{f"reward_{name}": values_B[rows].tolist() for name, values_B in rollout.parts.items()},
        "advantage": rollout.batch.advantages_B.cpu()[row_N].tolist(),
        "position": position_N.tolist(),
        "token": policy.tokenizer.convert_ids_to_tokens(of_tokens([update.batch.tokens_BT for update in updates])),
        "old_log_prob": of_tokens([update.inputs.old_log_probs_BT for update in updates]),
        "ratio": of_tokens([update.log_ratio_BT.exp() for update in updates]),
        "entropy": in_order(trained.old_entropy_BT),  # of the policy that sampled
        # 0 where the sampler's are the old ones.
        "gap": in_order(trained.sampler_log_probs_BT - trained.old_log_probs_BT),
        "clipped": ["low" if low else "high" if high else "" for low, high in zip(low_N, high_N, strict=True)],
    }
    return pa.table(columns)
