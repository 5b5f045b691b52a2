"""Every run ends in an outcome: completed, diverged with its last finite evaluation, or failed with its error."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, replace
from typing import Any

import pytest
from safetensors.torch import load_file
from tiny import records, run_folder, tiny_parts, tiny_settings

from grpolab.grpo import step
from grpolab.paths import Results
from grpolab.run.folder import Outcome
from grpolab.run.train import Interrupted, run

KEYS = {field.name for field in fields(Outcome)}


def finite(values: dict[str, Any]) -> bool:
    return all(isinstance(value, float) and math.isfinite(value) for value in values.values())


FREE = {"name": "filler_sorting", "length": 2, "max_fillers": 1, "corruption_base": 0.0, "corruption_per_filler": 0.0}
# Where it shows first: in the loss, in the weights, in sampled logits, in the last evaluation, exact or sampled.
DIVERGING = {
    "loss": {"learning_rate": 1e12},
    "weights": {"learning_rate": 1e38, "num_iterations": 1},
    "sampling": {"learning_rate": 1e12, "num_iterations": 1},
    "evaluation": {"learning_rate": 1e12, "num_iterations": 1, "rollout_steps": 1},
    "sampled": {"learning_rate": 1e12, "num_iterations": 1, "rollout_steps": 1, "task": FREE},
}


@pytest.mark.parametrize("where", DIVERGING)
@pytest.mark.parametrize("step_norm", [True, False])
def test_a_run_that_diverges_says_so_and_keeps_its_last_finite_evaluation(
    where: str, step_norm: bool, results: Results
) -> None:
    switches = {"step_norm": step_norm, "kl_ref_every": 0}
    settings = tiny_settings(max_grad_norm=math.inf, diagnostics=switches, **DIVERGING[where])
    outcome = run(settings, results)
    folder = run_folder(settings, results)
    assert outcome["outcome"] == "diverged", outcome["error"]
    assert outcome.keys() == KEYS
    assert outcome["reason"]
    assert len(records(folder, "rollout")) == outcome["rollout_steps"] <= 1
    assert finite(outcome["final"])
    last = records(folder, "evaluation")[-1]  # one that is not finite is not recorded
    assert outcome["final"] == {n: pytest.approx(v, rel=1e-8) for n, v in last.items() if n.startswith("eval/")}
    assert (folder / "policy.safetensors").exists()
    assert not (folder / "running.json").exists()
    assert run(settings, results) == outcome


def poison(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """From now on the `at`-th loss is NaN."""
    taken, original = 0, step.policy_loss

    def poisoned(objective: Any, inputs: Any, recipe: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == at:
            inputs = replace(inputs, advantages=inputs.advantages * math.nan)
        return original(objective, inputs, recipe)

    monkeypatch.setattr(step, "policy_loss", poisoned)


@pytest.mark.parametrize("resumed", [False, True])
def test_divergence_later_on_keeps_what_was_learnt_before(
    resumed: bool, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is NaN at the eighth update: two rollout steps are whole, and the evaluation after them stands."""
    settings = tiny_settings(rollout_steps=5)
    if resumed:
        done: list[int] = []
        with pytest.raises(Interrupted):
            run(settings, results, on_step=done.append, stop=lambda: len(done) == 2)
    poison(monkeypatch, at=2 if resumed else 8)
    outcome = run(settings, results)
    folder = run_folder(settings, results)
    reason = "loss nan, gradient norm nan, after 2 rollout steps and 7 optimiser steps"
    assert (outcome["outcome"], outcome["reason"]) == ("diverged", reason)
    assert (outcome["rollout_steps"], outcome["optimizer_steps"], outcome["completions"]) == (2, 7, 32)
    assert [record["rollout_step"] for record in records(folder, "evaluation")] == [0, 2]
    assert outcome["final"]["eval/accuracy_expected"] == pytest.approx(
        records(folder, "evaluation")[-1]["eval/accuracy_expected"], rel=1e-8
    )
    assert len(records(folder, "update")) == 7
    saved, fresh = load_file(folder / "policy.safetensors"), tiny_parts().state.policy.weights()
    assert all(values.isfinite().all() for values in saved.values())
    assert any((values != fresh[name]).any() for name, values in saved.items())


def fragile(scores: int) -> dict[str, Any]:
    return {"name": "custom", "path": "own_task:Fragile", "options": {"digits": 1, "scores": scores}}


@pytest.mark.parametrize(("scores", "steps_done"), [(0, 0), (40, 2)])
def test_a_run_that_fails_keeps_its_error(scores: int, steps_done: int, results: Results) -> None:
    settings = tiny_settings(task=fragile(scores))
    outcome = run(settings, results)
    folder = run_folder(settings, results)
    assert outcome.keys() == KEYS
    assert (outcome["outcome"], outcome["rollout_steps"]) == ("failed", steps_done)
    assert re.fullmatch(r".*/own_task.py, line \d+: ZeroDivisionError: a bug of the user's", outcome["reason"])
    assert outcome["error"].startswith("Traceback")
    assert len(records(folder, "rollout")) == steps_done
    assert json.loads((folder / "outcome.json").read_text()) == outcome
    assert not (folder / "running.json").exists()
