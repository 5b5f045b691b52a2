"""One run, from its warm start to its outcome. `training_loop` repeats the GRPO step; the rest is the run's life cycle.

It starts     in `run`, once no other process holds its folder and it has no outcome yet.
It resumes    in `resume`, at the newest sound checkpoint that fits the journal.
It ends       by `Ending`: after its last planned step, when its time is up, or by its early stop.
It diverges   by `Diverged`, where loss, gradient, weights or evaluation are no longer finite.
It is interrupted by a signal (`Interrupted`), at a rollout boundary: it has a checkpoint, and no outcome.
It fails      by any other exception, in `_run_leased`; a full or read-only disk is no failure of the run.

Every random draw is a hash of (seed, purpose, step, prompt, sample, token), so that a killed run repeats its batch
exactly.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from grpolab.grpo.processes import ALONE, Processes
from grpolab.grpo.step import Diverged, EntropyControl, Update, flat_weights, step_norm
from grpolab.paths import Results, is_refusal, plain, read_json, write_json_atomic, write_text_atomic
from grpolab.registry import DATA_PARALLEL, ENVIRONMENT_READ, resolve
from grpolab.run import checkpoint, provenance, warm_start
from grpolab.run.assembly import RunParts, assemble
from grpolab.run.folder import Outcome, conclude, describe_error, find_outcome, record_failure
from grpolab.run.lease import Lease, LeaseLost, leased
from grpolab.run.recorder import Recorder, SilentRecorder, journal_misfit, say_recovery
from grpolab.run.warm_start import OnStep
from grpolab.settings.resolved import Resolved
from grpolab.vocabulary import COMPLETED, DIVERGED, STOPPED

Stop = Callable[[], bool]  # asked at each rollout boundary


class Interrupted(Exception):
    """The run was asked to stop: its checkpoint is saved at a rollout boundary, and it has no outcome."""


def run(
    settings: Resolved, results: Results, *, on_step: OnStep = lambda step: None, stop: Stop = lambda: False
) -> dict[str, Any]:
    """Do one run, or what is left of it, and return its outcome; a finished run is returned as it is.

    A failure of the run itself is an outcome (`failed`), not an exception. Raises Interrupted if `stop()` is true, and
    OSError if the results folder cannot be written: then the run has no outcome, and the next call continues it.
    """
    folder = results.run(settings.signature)
    while not (outcome := find_outcome(folder)):
        with contextlib.suppress(LeaseLost), leased(folder) as lease:  # waits for another process that has the folder
            return find_outcome(folder) or _run_leased(settings, results, lease, on_step, stop)
    return outcome


def _run_leased(settings: Resolved, results: Results, lease: Lease, on_step: OnStep, stop: Stop) -> dict[str, Any]:
    """Do one run while no other process can write to its folder. Raises LeaseLost if another has taken it over."""
    folder = lease.folder
    provenance.set_up_torch(settings)
    gc.collect()
    gc.freeze()  # imported objects stay: later collections need not walk half a million of them again
    parts: RunParts | None = None
    try:
        for part in folder.rglob("*.part"):  # what killed writers left; with the lease no other is at work here
            part.unlink()
        warm = warm_start.ensure(settings, results)
        together = resolve(DATA_PARALLEL)(settings, results) if settings.data_parallel else None
        with together or contextlib.nullcontext(ALONE) as processes:
            parts = assemble(settings, warm.weights(), processes)
            _write_provenance(parts, warm, lease)
            outcome = _train_to_end(parts, lease, on_step, stop)
        lease.check()
        return conclude(folder, outcome)
    except (Interrupted, LeaseLost):
        raise
    except Exception as error:
        lease.check()  # a write may have failed because the folder was taken over, which is no failure of the run
        if is_refusal(error, results.root):
            raise
        finished = parts.state.rollout_step if parts else 0
        return record_failure(folder, describe_error(error), finished, traceback.format_exc())
    finally:
        with contextlib.suppress(OSError, LeaseLost):  # an exception that is being raised says more
            lease.check()
            (folder / "running.json").unlink(missing_ok=True)


def _write_provenance(parts: RunParts, warm: warm_start.WarmStart, lease: Lease) -> None:
    """Write the run's settings and provenance. Raises RequestError if its data or code has changed."""
    settings, folder = parts.settings, lease.folder
    content = settings.content()
    settings.refuse_change()
    lease.check()
    write_text_atomic(folder / "settings.yaml", yaml.safe_dump(plain(settings.model_dump()), sort_keys=False))
    earlier = read_json(folder / "provenance.json") or {}  # of a run that goes on
    record = {
        "began": earlier.get("began") or datetime.now(UTC).isoformat(timespec="seconds"),
        **provenance.of_program(),
        "content": content,
        "environment": resolve(ENVIRONMENT_READ)(settings.model_dump()) if content else {},
        "dataset": parts.dataset,
        "warm_start": {name: getattr(warm, name) for name in ("signature", "sha256", "accuracy", "steps", "seconds")},
    }
    write_json_atomic(folder / "provenance.json", record)


def _train_to_end(parts: RunParts, lease: Lease, on_step: OnStep, stop: Stop) -> Outcome:
    """Run the loop from the last checkpoint, or from the start; save the weights at its end."""
    ending, recorder = resume(parts, lease.folder)
    state, divergence = parts.state, None
    try:
        training_loop(parts, ending, recorder, lease.checked(on_step), stop)
    except Diverged as error:
        divergence = f"{error}, after {state.rollout_step} rollout steps and {state.optimizer_step} optimiser steps"
    finally:
        recorder.close()
    lease.check()
    checkpoint.save_weights(lease.folder / "policy.safetensors", state.policy.weights())
    return Outcome(
        outcome=DIVERGED if divergence else ending.outcome,
        reason=divergence or ending.reason,
        rollout_steps=state.rollout_step,
        optimizer_steps=state.optimizer_step,
        completions=state.completions,
        final=recorder.final,
        policy_sha256=state.policy.fingerprint(),
        journal_sha256=recorder.journal.sha256,
        seconds=recorder.seconds,
    )


def training_loop(parts: RunParts, ending: Ending, recorder: Recorder, on_step: OnStep, stop: Stop) -> None:
    """Repeat GRPO steps, evaluations and checkpoints from `parts.state` on. Raises Diverged or Interrupted."""
    settings, learner, state = parts.settings, parts.learner, parts.state
    policy, processes, saved = state.policy, learner.processes, time.perf_counter()
    processes.check_equal(policy.weights().values(), state.rollout_step)
    if state.rollout_step == 0:
        evaluate(parts, ending, recorder)
    while not ending.reached(step := state.rollout_step):
        before = flat_weights(policy) if settings.diagnostics.step_norm else None
        rollout = learner.collect(state)  # prompts -> completions -> rewards -> advantages
        minibatches = learner.minibatches(policy, rollout.batch, step)
        tokens = int(rollout.batch.mask_BT.sum())
        recorder.lap("rollout")
        measured = state.stream.metrics()
        first_pass: list[Update] = []
        for iteration in range(settings.num_iterations):
            updates = []
            for index, minibatch in enumerate(minibatches):
                update = learner.update(state, minibatch, tokens)  # log-probs -> ratio -> loss -> backward -> weights
                if iteration == index == 0:
                    measured["gap/first_pass"] = learner.check(update)
                recorder.update(update, state, iteration, index, learner.metrics(update))
                updates.append(update)
            first_pass = first_pass if iteration else updates
            minibatches = [update.batch for update in updates]  # now with their old log-probs
        processes.check_equal(policy.weights().values(), step)
        if before is not None:
            measured["weights/step_norm"] = step_norm(policy, before)
            before = None  # as large as the weights
        state.completions += len(rollout.texts_B)
        ending.see_used(step + 1, processes.from_first(lambda: recorder.seconds), state.completions)
        last = ending.reached(step + 1)
        if _is_due(settings.diagnostics.kl_ref_every, step + 1, last):
            measured["kl_ref/exact"] = learner.kl_to_reference(policy, rollout.batch)
        recorder.rollout(rollout, first_pass, updates, state, measured)
        recorder.lap("update")
        state.rollout_step = step + 1
        if _is_due(settings.evaluation.every, step + 1, last):
            evaluate(parts, ending, recorder)
        on_step(step + 1)
        stopping = processes.from_first(stop)
        recorder.end_of_step(step)
        due = stopping or time.perf_counter() - saved >= settings.machine.checkpoint_seconds
        if processes.from_first(partial(bool, due)):
            saved = time.perf_counter()
            save_checkpoint(parts, ending, recorder)
        if stopping:
            raise Interrupted


def _is_due(every: int, finished: int, last: bool) -> bool:
    """Return True after each `every` rollout steps and after the last one."""
    return every > 0 and (finished % every == 0 or last)


def evaluate(parts: RunParts, ending: Ending, recorder: Recorder) -> None:
    """Evaluate and record. Raises Diverged if weights or metrics are no longer finite; these are not recorded."""
    state = parts.state
    if not all(bool(weight.isfinite().all()) for weight in state.policy.weights().values()):
        raise Diverged("the weights are no longer finite")
    evaluation = parts.evaluator()
    if not all(math.isfinite(value) for value in evaluation.metrics.values()):
        raise Diverged(f"the evaluation is no longer finite: {evaluation.metrics}")
    ending.see_evaluation(state.rollout_step, evaluation.metrics)
    recorder.evaluation(evaluation, state)
    recorder.lap("evaluation")


@dataclass
class Ending:
    """Decides when a run ends: after its last planned step, when its time is up, or by its early stop.

    The run goes on as long as there is no reason. A checkpoint keeps the ending, so that a resumed run ends at the
    same step.
    """

    settings: Resolved
    outcome: str = COMPLETED
    reason: str | None = None
    bad_evaluations: int = 0  # in a row, by the early stop

    def reached(self, finished: int) -> bool:
        """Return True if the run is over after `finished` rollout steps."""
        return self.reason is not None or finished >= self.settings.planned_steps

    def see_used(self, finished: int, seconds: float, completions: int) -> None:
        """End the run if its time is up, or if it has all the completions that it may have: a filter samples more."""
        settings, planned = self.settings, self.settings.planned_steps
        for key, used, limit in (
            ("max_seconds", seconds, settings.max_seconds),
            ("max_completions", completions, settings.max_completions),
        ):
            if limit is not None and used >= limit and finished < planned:
                self.reason = f"{key}={limit:.12g} ended it after {finished} of {planned} rollout steps"

    def see_evaluation(self, finished: int, metrics: dict[str, float]) -> None:
        """Count bad evaluations in a row; end the run after as many as its early stop allows."""
        rule = self.settings.early_stop
        if rule is None or finished < rule.after or self.reached(finished):
            return
        self.bad_evaluations = self.bad_evaluations + 1 if metrics[rule.metric] <= rule.at_most else 0
        if self.bad_evaluations == rule.evaluations:
            self.outcome = STOPPED
            self.reason = (
                f"early_stop: {rule.metric} <= {rule.at_most:g} at {rule.evaluations} evaluations in a row,"
                f" the first {rule.after} rollout steps aside, after {finished} of {self.settings.planned_steps}"
            )


def save_checkpoint(parts: RunParts, ending: Ending, recorder: Recorder) -> None:
    """Save all that `resume` needs to go on from here; every process gives its part."""
    state = parts.state
    optimizer = state.optimizer.state_dict()
    if parts.learner.processes.rank:
        return
    checkpoint.save_state(
        recorder.folder / "checkpoint",
        state,
        optimizer,
        **recorder.sync(),
        final=recorder.final,
        ending={name: value for name, value in vars(ending).items() if name != "settings"},
        seconds=recorder.seconds,
        waiting=parts.learner.collector.state_dict(state.stale_batches),
        stream=state.stream.state_dict(),
        completions=state.completions,
        **({"entropy": astuple(state.entropy)} if state.entropy else {}),
        **({"gradient": state.gradient} if state.gradient is not None else {}),
    )


def resume(parts: RunParts, folder: Path) -> tuple[Ending, Recorder]:
    """Open the run's files at the newest sound checkpoint that fits the journal, or begin the run."""
    state, collector = parts.state, parts.learner.collector
    saved, problems = checkpoint.restore_state(folder / "checkpoint", state, partial(journal_misfit, folder))
    state.stale_batches = collector.load_state_dict(state.policy, state.rollout_step, saved.get("waiting", []))
    drawn = (state.rollout_step + len(state.stale_batches)) * parts.settings.prompts_per_step
    state.stream = replace(state.stream, **saved.get("stream", {"place": drawn}))  # older checkpoints lack it
    state.completions = saved.get("completions", state.rollout_step * parts.settings.batch_size)
    state.gradient = saved.get("gradient")
    if "entropy" in saved:
        state.entropy = EntropyControl(*saved["entropy"])
    ending = Ending(parts.settings, **saved.get("ending", {}))
    if parts.learner.processes.rank:
        return ending, SilentRecorder()
    if problems:
        say_recovery(folder, state.rollout_step, problems)
    return ending, Recorder(folder, parts.settings, state.rollout_step, saved)


def follow(settings: Resolved, results: Results, processes: Processes) -> None:
    """Do this process's share of a run that the first process leads in `run`; write nothing."""
    provenance.set_up_torch(settings)
    parts = assemble(settings, warm_start.ensure(settings, results).weights(), processes)
    ending, recorder = resume(parts, results.run(settings.signature))
    with contextlib.suppress(Diverged, Interrupted):
        training_loop(parts, ending, recorder, lambda step: None, lambda: False)
