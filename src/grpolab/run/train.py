"""One run, from its warm start to its outcome. The loop's lines are the steps of GRPO, in order.

What differs from the paper (DeepSeekMath, 2402.03300, algorithm 1):
1. The reference of the KL is the warm start, and there is none where beta = 0; it is never replaced during a run.
2. Any axis can be another: ratio level, clip range, loss form, aggregation, reward scale (`grpo/loss.py`).
3. Every random draw is a hash of (seed, purpose, step, prompt, sample, token): a killed run replays its batch exactly.
4. A run that diverges, or that its early stop finds hopeless, ends, and that is its outcome.
"""

from __future__ import annotations

import contextlib
import gc
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from grpolab.grpo.step import Diverged, flat_weights, step_norm
from grpolab.identity import signature
from grpolab.paths import Results, is_refusal, plain, read_json, remove_parts, write_json_atomic, write_text_atomic
from grpolab.run import provenance, warm_start
from grpolab.run.assembly import Parts, assemble
from grpolab.run.checkpoint import save_weights
from grpolab.run.folder import Outcome, conclude, exclusive, reason_of, record_failure
from grpolab.run.preflight import refuse_another
from grpolab.run.provenance import set_up_torch
from grpolab.run.recorder import Recorder
from grpolab.settings.run import RunSettings
from grpolab.vocabulary import DIVERGED


class Interrupted(Exception):
    """The run was asked to leave off at a rollout boundary; its checkpoint stands, it has no outcome."""


def train(parts: Parts, recorder: Recorder, on_step: Callable[[int], None], stop: Callable[[], bool]) -> None:
    """The loop. Raises Diverged or Interrupted."""
    settings, learner, state = parts.settings, parts.learner, parts.state
    policy, ending = state.policy, recorder.ending
    if state.rollout_step == 0:
        _evaluate(parts, recorder)
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
        if before is not None:
            measured["weights/step_norm"] = step_norm(policy, before)
        ending.see_time(step + 1, recorder.seconds)
        last = ending.reached(step + 1)
        if _due(settings.diagnostics.kl_ref_every, step + 1, last):
            measured["kl_ref/exact"] = learner.kl_to_reference(policy, rollout.batch)
        recorder.rollout(rollout, updates, state, measured)
        recorder.lap("update")
        state.rollout_step = step + 1
        if _due(settings.evaluation.every, step + 1, last):
            _evaluate(parts, recorder)
        on_step(step + 1)
        stopping = stop()
        recorder.end_of_step(state, save=stopping)
        if stopping:
            raise Interrupted


def _evaluate(parts: Parts, recorder: Recorder) -> None:
    """Evaluate and record. Raises Diverged where the weights or the figures are no longer finite; they are not kept."""
    policy = parts.state.policy
    if not all(bool(weight.isfinite().all()) for weight in policy.weights().values()):
        raise Diverged("the weights are no longer finite")
    found = parts.evaluator(policy)
    if not all(math.isfinite(value) for value in found.metrics.values()):
        raise Diverged(f"the evaluation is no longer finite: {found.metrics}")
    recorder.evaluation(found, parts.state)
    recorder.lap("evaluation")


def _due(every: int, finished: int, last: bool) -> bool:
    """Whether something that happens every so many rollout steps, and after the last, happens now."""
    return every > 0 and (finished % every == 0 or last)


def run(
    settings: RunSettings,
    results: Results,
    *,
    on_step: Callable[[int], None] = lambda step: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Do one run, or what is left of it, and return its outcome; a finished one is returned as it stands.

    A failure of the run itself is an outcome (`failed`), not an exception. Raises Interrupted when `stop()` said so,
    and OSError where the results folder cannot be written: the run has no outcome then, and the next call goes on.
    """
    settings = settings.resolved()
    folder = results.run(signature(settings.identity()))
    with exclusive(folder / ".lock"):
        if outcome := read_json(folder / "outcome.json"):
            return outcome
        set_up_torch(settings)
        gc.collect()
        gc.freeze()  # what the imports made lives on: collections need not walk half a million objects again and again
        parts: Parts | None = None
        try:
            remove_parts(folder)
            parts = _begin(settings, results, folder)
            return conclude(folder, _finish(parts, folder, on_step, stop))
        except Interrupted:
            raise
        except Exception as error:
            if is_refusal(error, results.root):
                raise
            finished = parts.state.rollout_step if parts else 0
            return record_failure(folder, reason_of(error), finished, traceback.format_exc())
        finally:
            with contextlib.suppress(OSError):  # the error that is on its way says more
                (folder / "running.json").unlink(missing_ok=True)


def _finish(parts: Parts, folder: Path, on_step: Callable[[int], None], stop: Callable[[], bool]) -> Outcome:
    """Go on from the last checkpoint, if there is one, to the end."""
    recorder, state = Recorder(folder, parts), parts.state
    diverged = None
    try:
        train(parts, recorder, on_step, stop)
    except Diverged as error:
        diverged = f"{error}, after {state.rollout_step} rollout steps and {state.optimizer_step} optimiser steps"
    finally:
        recorder.close()
    save_weights(folder / "policy.safetensors", state.policy.weights())
    return Outcome(
        outcome=DIVERGED if diverged else recorder.ending.outcome,
        reason=diverged or recorder.ending.reason,
        rollout_steps=state.rollout_step,
        optimizer_steps=state.optimizer_step,
        completions=state.rollout_step * parts.settings.batch_size,
        final=recorder.final,
        policy_sha256=state.policy.fingerprint(),
        journal_sha256=recorder.journal.sha256,
        seconds=recorder.seconds,
    )


def _begin(settings: RunSettings, results: Results, folder: Path) -> Parts:
    """The run as it is before its first rollout step, and what it is made of written down."""
    warm = warm_start.ensure(settings, results)
    content = settings.content()
    parts = assemble(settings, warm)
    refuse_another(folder.name, signature(settings.identity()), settings)  # files and code were read meanwhile
    write_text_atomic(folder / "settings.yaml", yaml.safe_dump(plain(settings.model_dump()), sort_keys=False))
    write_json_atomic(
        folder / "provenance.json",
        {
            **provenance.of_program(),
            "content": content,
            "dataset": parts.dataset,
            "warm_start": {
                "signature": warm.signature,
                "sha256": warm.sha256,
                "accuracy": warm.accuracy,
                "steps": warm.steps,
            },
        },
    )
    return parts
