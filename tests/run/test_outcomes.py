"""How a run ends: at its limit, by its early stop, diverged after its last finite evaluation, or failed."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from safetensors.torch import load_file
from tiny import records, run_folder, tiny_parts, tiny_settings

from grpolab.grpo import step
from grpolab.paths import Results
from grpolab.run import preflight
from grpolab.run.folder import Outcome
from grpolab.run.train import Ending, Interrupted, run
from grpolab.settings.resolved import Resolved
from grpolab.vocabulary import EVALUATION, evaluation_metrics

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


def limited(rollout_steps: int | None, completions: int | None, optimizer_steps: int | None) -> Resolved:
    """The tiny run samples 16 completions and takes 3 optimiser steps in a rollout step."""
    return tiny_settings(rollout_steps=rollout_steps, max_completions=completions, max_optimizer_steps=optimizer_steps)


@pytest.mark.parametrize(
    ("limits", "steps"),
    [((None, 100, None), 6), ((None, None, 14), 4), ((7, 100, 14), 4), ((2, 100, 14), 2), ((None, 16, 3), 1)],
)
def test_the_limit_that_ends_first_counts(limits: tuple[int | None, ...], steps: int) -> None:
    settings = limited(*limits)
    assert (settings.planned_steps, settings.optimizer_steps) == (steps, 3 * steps)
    assert settings.signature == limited(steps, None, None).signature


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ((None, None, None), "rollout_steps=null needs another limit"),
        ((9, 15, None), "max_completions=15 is less than one rollout step: .* = 16"),
        ((9, None, 2), "max_optimizer_steps=2 is less than one rollout step: .* = 3"),
    ],
)
def test_a_budget_without_a_rollout_step_is_refused(limits: tuple[int | None, ...], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        limited(*limits)


class Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("grpolab.run.recorder.time.perf_counter", lambda: self.now)

    def tick(self, _step: int) -> None:
        """A rollout step took ten seconds."""
        self.now += 10.0


def result_of(settings: Resolved, results: Results) -> tuple[dict[str, Any], bytes]:
    """What a run came to, wall time aside."""
    outcome = {**run(settings, results), "seconds": None}
    return outcome, (run_folder(settings, results) / "journal.jsonl").read_bytes()


def leave_off(settings: Resolved, results: Results, clock: Clock | None, after: int) -> None:
    """Interrupt the run at a rollout boundary."""
    done: list[int] = []

    def count(step: int) -> None:
        done.append(step)
        if clock:
            clock.tick(step)

    with pytest.raises(Interrupted):
        run(settings, results, on_step=count, stop=lambda: done[-1] >= after)


def test_max_seconds_ends_a_run_as_its_last_step_does(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 0, 10 and 20 seconds when it looks: the third rollout step is its last, evaluated and measured as such."""
    settings, clock = tiny_settings(rollout_steps=9, max_seconds=15.0), Clock(monkeypatch)
    outcome = run(settings, results, on_step=clock.tick)
    assert (outcome["outcome"], outcome["rollout_steps"]) == ("completed", 3)
    assert outcome["reason"].startswith("max_seconds=15 ended it after 3 of 9")
    folder = run_folder(settings, results)
    assert [record["rollout_step"] for record in records(folder, "evaluation")] == [0, 2, 3]
    assert ["kl_ref/exact" in record for record in records(folder, "rollout")] == [False, True, True]
    assert settings.signature != tiny_settings(rollout_steps=9).signature


@pytest.mark.parametrize("after", [1, 2, 3])
def test_the_seconds_of_all_sittings_count(
    after: int, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, clock = tiny_settings(rollout_steps=9, max_seconds=15.0), Clock(monkeypatch)
    run(settings, results, on_step=clock.tick)
    there = Results.open(tmp_path / "interrupted")
    leave_off(settings, there, clock, after)
    clock.now += 3600  # between the sittings
    run(settings, there, on_step=clock.tick)
    assert result_of(settings, there) == result_of(settings, results)


HOPELESS = {"metric": "eval/accuracy_expected", "at_most": 1.0, "after": 2, "evaluations": 2}


def hopeless(**changes: Any) -> Resolved:
    return tiny_settings(rollout_steps=6, evaluation={"every": 1}, early_stop={**HOPELESS, **changes})


def test_a_hopeless_run_is_stopped_and_says_by_which_rule(results: Results) -> None:
    outcome = run(hopeless(), results)
    assert (outcome["outcome"], outcome["rollout_steps"], outcome["error"]) == ("stopped", 3, None)
    assert outcome["reason"].startswith("early_stop: eval/accuracy_expected <= 1 at 2 evaluations in a row")
    last = records(run_folder(hopeless(), results), "evaluation")[-1]
    assert last["rollout_step"] == 3
    assert outcome["final"]["eval/accuracy_expected"] == pytest.approx(last["eval/accuracy_expected"], rel=1e-8)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_resumed_run_is_stopped_at_the_same_step(after: int, results: Results, tmp_path: Path) -> None:
    there = Results.open(tmp_path / "interrupted")
    leave_off(hopeless(), there, None, after)
    assert result_of(hopeless(), there) == result_of(hopeless(), results)


def test_only_bad_evaluations_in_a_row_count() -> None:
    ending = Ending(hopeless(at_most=0.5, evaluations=2))
    for finished, score in enumerate([0.1, 0.1, 0.5, 0.6, 0.1]):  # before `after`, twice; bad; good; bad; and bad again
        ending.see_evaluation(finished, {"eval/accuracy_expected": score})
        assert ending.reason is None
    ending.see_evaluation(5, {"eval/accuracy_expected": 0.0})
    assert (ending.outcome, ending.reached(5)) == ("stopped", True)


def test_a_metric_that_the_task_does_not_have_is_refused_before_anything_starts(results: Results) -> None:
    (problem,) = preflight.check(hopeless(metric="eval/pass_at_k"), results)
    assert problem.startswith("early_stop.metric=eval/pass_at_k is not measured with task=addition: it must be one of")
    assert preflight.check(hopeless(metric="eval/accuracy_greedy"), results) == []
    for task, unique in (({"name": "addition", "digits": 1}, True), (FREE, False)):
        settings = tiny_settings(task=task, rollout_steps=1)
        assert tuple(run(settings, results)["final"]) == evaluation_metrics(unique)


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("name", ["addition", "jsonl"])
def test_every_metric_that_evaluation_writes_may_stop_a_run(
    name: str, samples: int, results: Results, tmp_path: Path
) -> None:
    task: dict[str, Any] = {"name": "addition", "digits": 1}
    if name == "jsonl":
        task = {"name": "jsonl", "prompt_key": "q", "answer_key": "a", "template": "{prompt}", "chat": False}
        task |= dict.fromkeys(("system", "stop", "format", "verifier"))
        for key in ("train_file", "evaluation_file"):
            task[key] = str(tmp_path / key)
            (tmp_path / key).write_text(f'{{"q": "{key}", "a": "1"}}\n')
    changes = {"task": task, "evaluation": {"every": 1, "samples": samples}}
    changes |= {"other_tasks": {"sums": {"name": "addition", "digits": 2}}} if samples > 1 else {}
    written = set(run(tiny_settings(**changes, rollout_steps=1), results)["final"])
    assert ("eval/pass_at_4" in written) == ("eval/other_accuracy" in written) == (samples == 4)
    assert ("eval/maj_at_k" in written) == (samples == 4 and name == "jsonl")
    for metric in EVALUATION:
        problems = preflight.check(tiny_settings(**changes, early_stop={**HOPELESS, "metric": metric}), results)
        assert (problems == []) == (metric in written), (metric, problems)
