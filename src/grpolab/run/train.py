"""One run, from its warm start to its outcome. `training_loop` repeats the GRPO step; around it, what makes it a run.

What differs from the paper (DeepSeekMath, 2402.03300, algorithm 1):
1. The reference of the KL is the warm start, and there is none where beta = 0; it is never replaced during a run.
2. Any axis can be another: ratio level, clip range, loss form, aggregation, reward scale (`grpo/loss.py`).
3. Every random draw is a hash of (seed, purpose, step, prompt, sample, token): a killed run replays its batch exactly.
4. A run that diverges, or that its early stop ends, has that as its outcome.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from grpolab.frameworks.framework import clip_conventions, metrics_of, recipe_of
from grpolab.grpo.evaluation import Evaluator
from grpolab.grpo.model import make_policy
from grpolab.grpo.parallel import ALONE, Processes
from grpolab.grpo.rewards import make_score
from grpolab.grpo.rollout import Collector
from grpolab.grpo.step import (
    Diverged,
    EntropyControl,
    Learner,
    LearnerState,
    Update,
    flat_weights,
    make_optimizer,
    step_norm,
)
from grpolab.identity import environment_read
from grpolab.paths import Results, is_refusal, plain, remove_parts, write_json_atomic, write_text_atomic
from grpolab.registry import FAULTS, resolve
from grpolab.run import checkpoint, parallel, provenance, warm_start
from grpolab.run.folder import Outcome, conclude, reason_of, record_failure, standing_outcome
from grpolab.run.lease import Lease, LeaseLost, leased
from grpolab.run.recorder import Recorder, Silent, journal_misfit, say_recovery
from grpolab.run.warm_start import TRAINING_ITEMS, WarmStart
from grpolab.settings.resolved import Resolved
from grpolab.tasks import make_task
from grpolab.tasks.base import content_hash
from grpolab.vocabulary import CLIP_METRIC, COMPLETED, DIVERGED, STOPPED, convention


class Interrupted(Exception):
    """The run was asked to leave off at a rollout boundary; its checkpoint stands, it has no outcome."""


def training_loop(
    parts: Parts, ending: Ending, recorder: Recorder, on_step: Callable[[int], None], stop: Callable[[], bool]
) -> None:
    """GRPO steps, evaluations and checkpoints, from where `parts.state` is on. Raises Diverged or Interrupted."""
    settings, learner, state = parts.settings, parts.learner, parts.state
    policy, processes, saved = state.policy, learner.processes, time.perf_counter()
    processes.check_equal(policy.weights().values(), state.rollout_step)
    if state.rollout_step == 0:
        _evaluate(parts, ending, recorder)
    while not ending.reached(step := state.rollout_step):
        before = flat_weights(policy) if settings.diagnostics.step_norm else None
        rollout = learner.collect(state)  # prompts -> completions -> rewards -> advantages
        minibatches = learner.minibatches(policy, rollout.batch, step)
        tokens = int(rollout.batch.mask_BT.sum())
        recorder.lap("rollout")
        measured: dict[str, float] = {}
        for iteration in range(settings.num_iterations):
            updates = []
            for index, minibatch in enumerate(minibatches):
                update = learner.update(state, minibatch, tokens)  # log-probs -> ratio -> loss -> backward -> weights
                if iteration == index == 0:
                    measured["gap/first_pass"] = learner.check(update)
                recorder.update(update, state, iteration, index, learner.metrics(update))
                updates.append(update)
            minibatches = [update.batch for update in updates]  # their old log-probs are known now
        processes.check_equal(policy.weights().values(), step)
        if before is not None:
            measured["weights/step_norm"] = step_norm(policy, before)
        ending.see_time(step + 1, processes.from_first(lambda: recorder.seconds))
        last = ending.reached(step + 1)
        if _due(settings.diagnostics.kl_ref_every, step + 1, last):
            measured["kl_ref/exact"] = learner.kl_to_reference(policy, rollout.batch)
        recorder.rollout(rollout, updates, state, measured)
        recorder.lap("update")
        state.rollout_step = step + 1
        if _due(settings.evaluation.every, step + 1, last):
            _evaluate(parts, ending, recorder)
        on_step(step + 1)
        stopping = processes.from_first(stop)
        recorder.end_of_step(step)
        now = time.perf_counter()
        if processes.rank == 0 and (stopping or now - saved >= settings.machine.checkpoint_seconds):
            saved = now
            save_checkpoint(parts, ending, recorder)
        if stopping:
            raise Interrupted


def _evaluate(parts: Parts, ending: Ending, recorder: Recorder) -> None:
    """Evaluate and record. Raises Diverged where the weights or the figures are no longer finite; they are not kept."""
    state = parts.state
    if not all(bool(weight.isfinite().all()) for weight in state.policy.weights().values()):
        raise Diverged("the weights are no longer finite")
    evaluation = parts.evaluator(state.policy)
    if not all(math.isfinite(value) for value in evaluation.metrics.values()):
        raise Diverged(f"the evaluation is no longer finite: {evaluation.metrics}")
    ending.see_evaluation(state.rollout_step, evaluation.metrics)
    recorder.evaluation(evaluation, state)
    recorder.lap("evaluation")


def _due(every: int, finished: int, last: bool) -> bool:
    """Whether something that happens every so many rollout steps, and after the last, happens now."""
    return every > 0 and (finished % every == 0 or last)


@dataclass
class Ending:
    """When a run ends: after its last planned rollout step, when its time is up, or when its early stop says so.

    As long as there is no reason, it goes on. A checkpoint keeps it, so that a resumed run ends where the straight one
    does.
    """

    settings: Resolved
    outcome: str = COMPLETED
    reason: str | None = None
    bad_evaluations: int = 0  # in a row, by the early stop

    def reached(self, finished: int) -> bool:
        """Whether the run is over after so many rollout steps."""
        return self.reason is not None or finished >= self.settings.planned_steps

    def see_time(self, finished: int, seconds: float) -> None:
        """The run has taken so many seconds, for so many rollout steps."""
        limit, planned = self.settings.max_seconds, self.settings.planned_steps
        if limit is not None and seconds >= limit and finished < planned:
            self.reason = f"max_seconds={limit:g} ended it after {finished} of {planned} rollout steps"

    def see_evaluation(self, finished: int, metrics: dict[str, float]) -> None:
        """It was evaluated after so many rollout steps; after the last one nothing is left to be stopped."""
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


def run(
    settings: Resolved,
    results: Results,
    *,
    on_step: Callable[[int], None] = lambda step: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Do one run, or what is left of it, and return its outcome; a finished one is returned as it stands.

    A failure of the run itself is an outcome (`failed`), not an exception. Raises Interrupted when `stop()` said so,
    and OSError where the results folder cannot be written: the run has no outcome then, and the next call goes on.
    """
    folder = results.run(settings.signature)
    while not (outcome := standing_outcome(folder)):
        with contextlib.suppress(LeaseLost), leased(folder) as lease:  # who has it now is waited for, as from the start
            outcome = standing_outcome(folder)
            return outcome or _run(settings, results, lease, on_step, stop)
    return outcome


def _run(
    settings: Resolved, results: Results, lease: Lease, on_step: Callable[[int], None], stop: Callable[[], bool]
) -> dict[str, Any]:
    """`run` in a folder that nobody else works in. Raises LeaseLost where another process has taken it over."""
    folder = lease.folder
    provenance.set_up_torch(settings)
    gc.collect()
    gc.freeze()  # what the imports made lives on: collections need not walk half a million objects again and again
    parts: Parts | None = None
    try:
        remove_parts(folder)
        warm = warm_start.ensure(settings, results)
        with parallel.together(settings, results) as processes:
            parts = _begin(settings, warm, lease, processes)
            outcome = _to_the_end(parts, lease, on_step, stop)
        lease.check()
        return conclude(folder, outcome)
    except (Interrupted, LeaseLost):
        raise
    except Exception as error:
        lease.check()  # in a folder that is another's any write may fail, which is no failure of the run
        if is_refusal(error, results.root):
            raise
        finished = parts.state.rollout_step if parts else 0
        return record_failure(folder, reason_of(error), finished, traceback.format_exc())
    finally:
        with contextlib.suppress(OSError, LeaseLost):  # the error that is on its way says more
            lease.check()
            (folder / "running.json").unlink(missing_ok=True)


def follow(settings: Resolved, results: Results, processes: Processes) -> None:
    """Do this process's share of a run whose first process is in `run`; nothing is written."""
    provenance.set_up_torch(settings)
    parts = assemble(settings, warm_start.ensure(settings, results), processes)
    ending, recorder = _resume(parts, results.run(settings.signature))
    with contextlib.suppress(Diverged, Interrupted):
        training_loop(parts, ending, recorder, lambda step: None, lambda: False)


def _begin(settings: Resolved, warm: WarmStart, lease: Lease, processes: Processes) -> Parts:
    """The run as it is before its first rollout step, and what it is made of written down."""
    content, folder = settings.content(), lease.folder
    parts = assemble(settings, warm, processes)
    settings.refuse_change()
    lease.check()
    write_text_atomic(folder / "settings.yaml", yaml.safe_dump(plain(settings.model_dump()), sort_keys=False))
    made_of = {
        **provenance.of_program(),
        "content": content,
        "environment": environment_read(settings.model_dump()),
        "dataset": parts.dataset,
        "warm_start": {name: getattr(warm, name) for name in ("signature", "sha256", "accuracy", "steps", "seconds")},
    }
    write_json_atomic(folder / "provenance.json", made_of)
    return parts


def _to_the_end(parts: Parts, lease: Lease, on_step: Callable[[int], None], stop: Callable[[], bool]) -> Outcome:
    """The loop from the last checkpoint, if there is one; the weights at its end, and what the run came to."""
    ending, recorder = _resume(parts, lease.folder)
    state, diverged = parts.state, None

    def checked(step: int) -> None:  # before the step's records and its checkpoint are written
        lease.check()
        on_step(step)

    try:
        training_loop(parts, ending, recorder, checked, stop)
    except Diverged as error:
        diverged = f"{error}, after {state.rollout_step} rollout steps and {state.optimizer_step} optimiser steps"
    finally:
        recorder.close()
    lease.check()
    checkpoint.save_weights(lease.folder / "policy.safetensors", state.policy.weights())
    return Outcome(
        outcome=DIVERGED if diverged else ending.outcome,
        reason=diverged or ending.reason,
        rollout_steps=state.rollout_step,
        optimizer_steps=state.optimizer_step,
        completions=state.rollout_step * parts.settings.batch_size,
        final=recorder.final,
        policy_sha256=state.policy.fingerprint(),
        journal_sha256=recorder.journal.sha256,
        seconds=recorder.seconds,
    )


def save_checkpoint(parts: Parts, ending: Ending, recorder: Recorder) -> None:
    """Keep all that a run which goes on from here needs; `_resume` reads it."""
    state = parts.state
    checkpoint.save_state(
        recorder.folder / "checkpoint",
        state,
        **recorder.sync(),
        final=recorder.final,
        ending={name: value for name, value in vars(ending).items() if name != "settings"},
        seconds=recorder.seconds,
        waiting=parts.learner.collector.state_dict(state.stale_batches),
        **({"entropy": astuple(state.entropy)} if state.entropy else {}),
    )


def _resume(parts: Parts, folder: Path) -> tuple[Ending, Recorder]:
    """Put `parts.state` to the newest sound checkpoint that fits the journal, and open the run's files where it was.

    Without a checkpoint the run begins.
    """
    state, collector = parts.state, parts.learner.collector
    saved, problems = checkpoint.restore_state(folder / "checkpoint", state, partial(journal_misfit, folder))
    state.stale_batches = collector.load_state_dict(state.policy, state.rollout_step, saved.get("waiting", []))
    if "entropy" in saved:
        state.entropy = EntropyControl(*saved["entropy"])
    ending = Ending(parts.settings, **saved.get("ending", {}))
    if parts.learner.processes.rank:
        return ending, Silent()
    if problems:
        say_recovery(folder, state.rollout_step, problems)
    return ending, Recorder(folder, parts.settings, state.rollout_step, saved)


@dataclass(frozen=True)
class Parts:
    """What the loop works with."""

    settings: Resolved
    learner: Learner
    evaluator: Evaluator
    state: LearnerState
    dataset: dict[str, Any]  # content hashes and sizes, for provenance


def assemble(settings: Resolved, warm: WarmStart, processes: Processes = ALONE) -> Parts:
    """Everything as it is before the first rollout step.

    Raises RequestError where a user's task, reward or model cannot be used.
    """
    task = make_task(settings.task)
    policy = make_policy(settings, task)
    weights = warm.weights()
    if weights is not None:
        policy.load_weights(weights)
    score = make_score(settings.reward, task)
    chat = getattr(task, "chat", False)
    train = task.examples("train", TRAINING_ITEMS)
    held_out = task.examples("evaluation", settings.evaluation.items)
    needs_reference = settings.beta > 0 or settings.diagnostics.kl_ref_every > 0
    reference = policy.frozen_copy() if needs_reference else None
    learner = Learner(
        settings=settings,
        objective=settings.objective,
        collector=Collector(settings, train, score, reference, chat, processes),
        recipe=recipe_of(settings.framework),
        framework_metrics=partial(framework_metrics, settings),
        processes=processes,
    )
    evaluator = Evaluator(
        task=task,
        score=score,
        examples_I=held_out,
        tokenizer=policy.tokenizer,
        device=policy.device,
        chat=chat,
        reach=policy.reach,
        batch_size=settings.evaluation.batch_size,
        samples=settings.evaluation.samples,
        length=settings.max_completion_length,
        seed=settings.seed,
        processes=processes,
    )
    dataset: dict[str, Any] = {}
    for split, examples in (("train", train), ("evaluation", held_out)):
        dataset |= {f"{split}_sha256": content_hash(examples), f"{split}_items": len(examples)}
    entropy = EntropyControl(settings.entropy_coef or 0.0) if settings.adaptive_entropy else None
    state = LearnerState(policy, make_optimizer(policy, settings), entropy=entropy)
    if settings.fault:
        learner = resolve(FAULTS[settings.fault]).plant(learner, state)
    return Parts(settings, learner, evaluator, state, dataset)


@torch.no_grad()
def framework_metrics(settings: Resolved, update: Update) -> dict[str, float]:
    """What frameworks log of an optimiser step, by journal name.

    The run's own framework's, and the clip fraction by each framework's definition where the diagnostics ask for it.
    """
    framework = settings.framework
    logged = metrics_of(framework, update.objective, update.inputs, update.whole_loss) if framework else {}
    metrics = {f"{framework}/{name}": value for name, value in logged.items()}
    if settings.diagnostics.clip_conventions:
        shares = clip_conventions(update.objective, update.inputs)
        if framework and (name := CLIP_METRIC.get(framework)) in logged:
            shares[framework] = logged[name]
        metrics |= {convention(name): share for name, share in shares.items()}
    return metrics
