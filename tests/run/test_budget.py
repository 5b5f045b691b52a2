"""How long a run lasts: limits in several units, a limit of seconds, and the early stop of hopeless runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tiny import records, run_folder, tiny_settings

from grpolab.paths import Results
from grpolab.run import preflight
from grpolab.run.train import Ending, Interrupted, run
from grpolab.settings.resolved import Resolved
from grpolab.vocabulary import evaluation_metrics


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


FREE = {"name": "filler_sorting", "length": 2, "max_fillers": 1, "corruption_base": 0.0, "corruption_per_filler": 0.0}


def test_a_metric_that_the_task_does_not_have_is_refused_before_anything_starts(results: Results) -> None:
    (problem,) = preflight.check(hopeless(metric="eval/pass_at_k"), results)
    assert problem.startswith("early_stop.metric=eval/pass_at_k is not measured with task=addition: it must be one of")
    assert preflight.check(hopeless(metric="eval/accuracy_greedy"), results) == []
    for task, unique in (({"name": "addition", "digits": 1}, True), (FREE, False)):
        settings = tiny_settings(task=task, rollout_steps=1)
        assert tuple(run(settings, results)["final"]) == evaluation_metrics(unique)
