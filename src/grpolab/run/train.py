"""One run, from its warm start to its outcome. The loop's lines are the steps of GRPO, in order.

What differs from the paper (DeepSeekMath, 2402.03300, algorithm 1):
1. The reference of the KL is the warm start, and there is none where beta = 0; it is never replaced during a run.
2. Any axis can be another: ratio level, clip range, loss form, aggregation, reward scale (`learn/objective.py`).
3. Every random draw is a hash of (seed, purpose, step, prompt, sample, token): a killed run replays its batch exactly.
4. A run that diverges stops, and that is its outcome.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from grpolab.identity import plain, signature
from grpolab.learn.learner import flat_weights, step_norm
from grpolab.learn.update import Diverged
from grpolab.paths import Results, write_json_atomic, write_text_atomic
from grpolab.run import provenance, warm_start
from grpolab.run.assembly import Parts, assemble
from grpolab.run.locks import exclusive
from grpolab.run.recorder import Recorder
from grpolab.run.weights import save_weights
from grpolab.settings import RunSettings
from grpolab.vocabulary import COMPLETED, DIVERGED, FAILED


class Stopped(Exception):
    """The run was asked to stop at a rollout boundary; its checkpoint stands, it has no outcome."""


def train(parts: Parts, recorder: Recorder, on_step: Callable[[int], None], stop: Callable[[], bool]) -> None:
    """The loop. Raises Diverged or Stopped."""
    settings, learner, state = parts.settings, parts.learner, parts.state
    policy = state.policy
    if state.rollout_step == 0:
        _evaluate(parts, recorder)
    for step in range(state.rollout_step, settings.rollout_steps):
        before = flat_weights(policy) if settings.diagnostics.step_norm else None
        rollout = learner.rollout(policy, step)  # prompts -> sample -> score -> advantages
        minibatches = learner.minibatches(policy, rollout.batch, step)
        tokens = int(rollout.batch.mask_BT.sum())
        recorder.lap("rollout")
        measured: dict[str, float] = {}
        for iteration in range(settings.num_iterations):
            last_pass = []
            for index, minibatch in enumerate(minibatches):
                # log-probs -> ratio -> kernel -> aggregate -> update
                taken = learner.update(state, minibatch, tokens)
                if iteration == index == 0:
                    measured["gap__first_pass"] = learner.check_first_update(taken)
                recorder.update(taken, state, iteration, index)
                last_pass.append(taken)
            minibatches = [taken.batch for taken in last_pass]
        if before is not None:
            measured["weights__step_norm"] = step_norm(policy, before)
        if _due(settings.diagnostics.kl_ref_every, step + 1, settings):
            measured["kl_ref__exact"] = learner.kl_to_reference(policy, rollout.batch)
        recorder.rollout(rollout, last_pass, state, **measured)
        recorder.lap("update")
        state.rollout_step = step + 1
        if _due(settings.evaluation.every, step + 1, settings):
            _evaluate(parts, recorder)
        on_step(step + 1)
        stopping = stop()
        recorder.end_of_step(state, save=stopping)
        if stopping:
            raise Stopped


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


def _due(every: int, finished: int, settings: RunSettings) -> bool:
    """Whether something that happens every so many rollout steps, and after the last, happens now."""
    return every > 0 and (finished % every == 0 or finished == settings.rollout_steps)


def run(
    settings: RunSettings,
    results: Results,
    *,
    on_step: Callable[[int], None] = lambda step: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Do one run, or what is left of it, and return its outcome; a finished one is returned as it stands.

    A failure of the run itself is an outcome (`failed`), not an exception. Raises Stopped when `stop()` said so.
    """
    settings = settings.resolved()
    folder = results.run(signature(settings.identity()))
    with exclusive(folder / ".lock"):
        outcome_file = folder / "outcome.json"
        if outcome_file.exists():
            return dict(json.loads(outcome_file.read_text()))
        torch.set_num_threads(settings.machine.threads)
        gc.collect()
        gc.freeze()  # what the imports made lives on: collections need not walk half a million objects again and again
        if settings.device == "cuda":
            torch.use_deterministic_algorithms(True)
        try:
            outcome = _attempt(settings, results, folder, on_step, stop)
        except Stopped:
            raise
        except Exception as error:
            outcome = {"outcome": FAILED, "reason": f"{type(error).__name__}: {error}", "error": traceback.format_exc()}
        write_json_atomic(outcome_file, outcome)
        (folder / "running.json").unlink(missing_ok=True)
        return outcome


def _attempt(
    settings: RunSettings, results: Results, folder: Path, on_step: Callable[[int], None], stop: Callable[[], bool]
) -> dict[str, Any]:
    warm = warm_start.ensure(settings, results)
    parts = assemble(settings, warm)
    write_text_atomic(folder / "settings.yaml", yaml.safe_dump(plain(settings.model_dump()), sort_keys=False))
    write_json_atomic(
        folder / "provenance.json",
        {
            **provenance.of_program(),
            "dataset": parts.dataset,
            "warm_start": {
                "signature": warm.signature,
                "sha256": warm.sha256,
                "accuracy": warm.accuracy,
                "steps": warm.steps,
            },
        },
    )
    recorder = Recorder(folder, parts)
    outcome, reason = COMPLETED, None
    try:
        train(parts, recorder, on_step, stop)
    except Diverged as error:
        outcome, reason = DIVERGED, str(error)
    finally:
        recorder.close()
    save_weights(folder / "policy.safetensors", parts.state.policy.weights())
    return {
        "outcome": outcome,
        "reason": reason,
        "rollout_steps": parts.state.rollout_step,
        "optimizer_steps": parts.state.optimizer_step,
        "completions": parts.state.rollout_step * settings.batch_size,
        "final": recorder.final,
        "policy_sha256": parts.state.policy.fingerprint(),
        "journal_sha256": hashlib.sha256((folder / "journal.jsonl").read_bytes()).hexdigest(),
        "seconds": recorder.seconds,
        "error": None,
    }
