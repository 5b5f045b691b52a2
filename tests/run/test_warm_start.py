"""One warm start per seed: trained once, shared by all arms, the checked weights nearest to the target kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import records, run_folder, tiny_parts, tiny_settings

from grpolab.grpo.loading import make_policy
from grpolab.paths import Results
from grpolab.run import warm_start
from grpolab.run.train import run
from grpolab.run.warm_start import WarmStart
from grpolab.settings.resolved import Resolved
from grpolab.tasks import make_task

FILLER = {"name": "filler_sorting", "length": 2, "max_fillers": 1, "corruption_base": 0.0, "corruption_per_filler": 0.0}


def taught(**changes: Any) -> Resolved:
    warm = {"max_steps": 60, "batch_size": 64, "check_every": 10, **changes.pop("warm_start", {})}
    return tiny_settings(max_completion_length=4, warm_start=warm, **changes)


def test_it_is_trained_once_and_shared_by_the_arms_of_a_seed(results: Results) -> None:
    trained: list[int] = []
    arms = [
        taught(),
        taught(learning_rate=0.5, importance_sampling_level="sequence", num_iterations=1),
        taught(reward={"function": None, "weights": {"format": 1.0}}, rollout_steps=9),
        taught(evaluation={"items": 3, "batch_size": 2, "samples": 9}),
    ]
    found = [warm_start.ensure(arm, results, trained.append) for arm in arms]
    assert len(set(map(str, found))) == 1
    assert trained == list(range(1, len(trained) + 1))
    assert len(list(results.warm_starts.glob("*/outcome.json"))) == 1


def test_its_weights_are_the_runs_first_policy(results: Results) -> None:
    settings = taught(rollout_steps=1)
    found = warm_start.ensure(settings, results)
    policy = make_policy(settings, make_task(settings.task))
    untrained = policy.fingerprint()
    policy.load_weights(found.weights())
    assert policy.fingerprint() == found.sha256 != untrained
    run(settings, results)
    provenance = json.loads((run_folder(settings, results) / "provenance.json").read_text())
    assert WarmStart(found.folder, **provenance["warm_start"]) == found
    first = records(run_folder(settings, results), "evaluation")[0]
    (parts := tiny_parts(max_completion_length=4)).state.policy.load_weights(found.weights())
    evaluation = parts.evaluator().metrics
    assert first["eval/accuracy_expected"] == pytest.approx(evaluation["eval/accuracy_expected"], rel=1e-6)


def test_it_teaches_other_tasks_in_turn_and_evaluations_say_what_is_left_of_them(results: Results) -> None:
    others = {"sort": {"name": "sorting", "length": 2}, "fill": FILLER}
    warm = {"max_steps": 240, "target_accuracy": None}
    settings = taught(other_tasks=others, warm_start=warm, rollout_steps=1)
    assert settings.warm_start_signature != taught(warm_start=warm, rollout_steps=1).warm_start_signature
    run(settings, results)
    start, end = (row["eval/other_accuracy"] for row in records(run_folder(settings, results), "evaluation"))
    assert start > 0.1  # by chance: .01
    assert start != end
    parts = tiny_parts(other_tasks=others, max_completion_length=4)
    parts.state.policy.load_weights(warm_start.ensure(settings, results).weights())
    sort, fill = (other().metrics["eval/accuracy_expected"] for other in parts.evaluator.others)
    assert start == pytest.approx((sort + fill) / 2)
    assert min(sort, fill) > 0.05


def checks_of(found: warm_start.WarmStart) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (found.folder / "journal.jsonl").read_text().splitlines()]
    return [(row["step"], row["accuracy"]) for row in rows if "accuracy" in row]


def test_the_checked_weights_nearest_to_the_target_are_kept(results: Results) -> None:
    """A target a little above a check: training goes on to the next, which overshoots, and the nearer one is kept."""
    whole = checks_of(warm_start.ensure(taught(warm_start={"target_accuracy": 1.0}), results))
    assert [step for step, _ in whole] == list(range(10, 61, 10))
    index = next(i for i in range(5) if whole[i + 1][1] > max(accuracy for _, accuracy in whole[: i + 1]) + 0.02)
    next_step, overshoot = whole[index + 1]
    target = max(accuracy for _, accuracy in whole[: index + 1]) + 0.001
    found = warm_start.ensure(taught(warm_start={"target_accuracy": target}), results)
    assert checks_of(found)[-1] == (next_step, overshoot)
    kept = min(checks_of(found), key=lambda check: abs(check[1] - target))
    assert kept[0] < next_step
    assert (found.steps, found.accuracy) == (kept[0], pytest.approx(kept[1], rel=1e-8))
    parts = tiny_parts(max_completion_length=4)
    parts.state.policy.load_weights(found.weights())
    checked = replace(parts.evaluator, examples_I=make_task(taught().task).examples("train", 0)[:50])
    assert checked().metrics["eval/accuracy_expected"] == pytest.approx(found.accuracy, rel=1e-5)


def test_a_start_that_is_nowhere_near_its_target_is_said_and_used(results: Results) -> None:
    made = warm_start.ensure(taught(warm_start={"target_accuracy": 1.0, "max_steps": 10}), results)
    assert made.accuracy is not None
    assert made.accuracy < 0.5
    shown = made.as_outcome(1.0)
    assert (shown["outcome"], shown["accuracy"]) == ("completed", made.accuracy)
    assert shown["reason"].startswith(f"accuracy {made.accuracy:.3f}, its target is 1")
    assert made.as_outcome(1.9 * made.accuracy)["reason"] is made.as_outcome(None)["reason"] is None


def test_micro_batches_change_only_the_rounding(results: Results) -> None:
    """Of 64 demonstrations of 2 to 3 tokens in pieces of 5: a mean of the pieces' means would be another loss."""
    losses = []
    for size in (None, 5):
        warm = {"max_steps": 4, "micro_batch_size": size, "target_accuracy": None}
        found = warm_start.ensure(taught(warm_start=warm), results)
        lines = (found.folder / "journal.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    whole, pieces = losses
    assert pieces == pytest.approx(whole, rel=1e-5)
    assert pieces != whole


def test_an_interrupted_one_is_trained_anew(results: Results) -> None:
    few = taught(warm_start={"max_steps": 20})

    def stop(step: int) -> None:
        if step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_start.ensure(few, results, stop)
    found = warm_start.ensure(few, results)
    lines = (found.folder / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))
    other = warm_start.ensure(few, Results.open(results.root / "elsewhere"))
    assert found.sha256 == other.sha256
    assert (found.folder / "policy.safetensors").read_bytes() == (other.folder / "policy.safetensors").read_bytes()


def test_a_reward_of_ones_own_does_not_choose_the_shared_weights(results: Results, tmp_path: Path) -> None:
    """Its signature does not name the reward: whichever run comes first must leave the same warm start."""
    same = {"task": FILLER, "warm_start": {"target_accuracy": 0.05}}
    reward = {"function": "own_task:never_right", "weights": {"correct": 1.0}}
    plain, own = taught(**same), taught(**same, reward=reward)
    assert plain.warm_start_identity() == own.warm_start_identity()
    first, second = warm_start.ensure(plain, results), warm_start.ensure(own, Results.open(tmp_path / "other"))
    assert (first.sha256, first.steps, first.accuracy) == (second.sha256, second.steps, second.accuracy)


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("policy.safetensors", _flip),
        ("policy.safetensors", Path.unlink),
        ("outcome.json", lambda file: file.write_bytes(b"")),
        ("outcome.json", lambda file: file.write_bytes(b'{"a": 1}')),
        ("outcome.json", lambda file: file.write_bytes(b"\xff\0")),
    ],
)
def test_a_damaged_one_is_made_anew_and_that_is_said(
    results: Results, capsys: pytest.CaptureFixture[str], name: str, damage: Callable[[Path], Any]
) -> None:
    settings = taught(rollout_steps=1, warm_start={"max_steps": 10})
    made = warm_start.ensure(settings, results)
    before = (made.folder / "policy.safetensors").read_bytes()
    damage(made.folder / name)
    assert run(settings, results)["outcome"] == "completed"
    assert (made.folder / "policy.safetensors").read_bytes() == before
    assert warm_start.ensure(settings, results).sha256 == made.sha256
    said = capsys.readouterr().err
    assert said.count(f"warm start {made.signature} is damaged and made anew: {made.folder / name}") == 1
