"""Oracles O1, O2, O3 and O9 on whole runs: what must be exact is exact at every record of the journal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import records, run_folder, tiny_settings

from grpolab.paths import Results
from grpolab.report.inspect import show
from grpolab.run.train import run

RATIOS_AND_CLIPS = {
    **dict.fromkeys(("clip/out_of_range", "clip/active", "clip/active_low", "clip/active_high"), 0),
    **dict.fromkeys(("clip/active_sequences", "clip/outer", "kl_old/k1", "kl_old/k3"), 0),
    **dict.fromkeys(("ratio/token_min", "ratio/token_max", "ratio/token_mean", "ratio/ess"), 1),
    **dict.fromkeys(("ratio/sequence_min", "ratio/sequence_max"), 1),
    **dict.fromkeys(("cf/token_0.1", "cf/sequence_0.0003"), 0),
}
# The tightest range there is: any ratio that is not exactly 1 would be clipped.
TIGHT = {"epsilon": 0.0, "epsilon_high": 0.0, "delta": 1.0}


def journal_of(results: Results, **changes: Any) -> Path:
    settings = tiny_settings(**changes)
    outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome["error"]
    return run_folder(settings, results)


def is_untouched(update: dict[str, Any]) -> bool:
    return all(update[name] == value for name, value in RATIOS_AND_CLIPS.items())


@pytest.mark.parametrize(("steps", "iterations", "minibatches"), [(6, 1, 1), (3, 3, 1), (3, 3, 2)])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_o1_and_o2_the_first_update_of_every_batch_never_clips(
    level: str, steps: int, iterations: int, minibatches: int, results: Results
) -> None:
    """O1: where each batch has one update, none clips. O2: else all but the first may."""
    axes = {"num_iterations": iterations, "num_minibatches": minibatches, "importance_sampling_level": level, **TIGHT}
    folder = journal_of(results, rollout_steps=steps, **axes)
    updates = records(folder, "update")
    assert len(updates) == steps * iterations * minibatches
    first = [update["iteration"] == update["minibatch"] == 0 for update in updates]
    assert [is_untouched(update) for update in updates] == first
    assert any(update["grad_norm"] > 0.1 for update in updates)
    assert {rollout["gap/first_pass"] for rollout in records(folder, "rollout")} == {0}
    assert iterations == 1 or sum(update["clip/active"] > 0 for update in updates) > len(updates) / 2


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"importance_sampling_level": "sequence", "num_minibatches": 2, "beta": 0.1},
        {"delta": 1.25, "epsilon_high": float("inf"), "aggregation": "token_mean_rollout", "micro_batch_size": 4},
    ],
    ids=["token", "sequence", "outer cap"],
)
def test_o3_the_two_written_forms_are_one_run(axes: dict[str, Any], results: Results) -> None:
    settings = [tiny_settings(loss_form=form, rollout_steps=4, **axes) for form in ("min_positive", "max_negative")]
    outcomes = [run(each, results) for each in settings]
    folders = [run_folder(each, results) for each in settings]
    assert folders[0] != folders[1]
    assert outcomes[0]["policy_sha256"] == outcomes[1]["policy_sha256"]
    assert outcomes[0]["journal_sha256"] == outcomes[1]["journal_sha256"]
    for name in ("journal.jsonl", "policy.safetensors", "evaluation_items.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert sum(update["clip/active"] + update["clip/outer"] for update in records(folders[0], "update")) > 0


def test_o9_the_same_seed_twice_is_the_same_run_and_another_seed_is_not(tmp_path: Path) -> None:
    axes = {"num_minibatches": 2, "warm_start": {"max_steps": 4}, "beta": 0.1}
    folders = []
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        torch.manual_seed(len(folders))  # no global generator has a say
        np.random.seed(len(folders))
        folders.append(journal_of(Results.open(tmp_path / name), seed=seed, **axes))
    first, second, other = folders
    names = ["journal.jsonl", "policy.safetensors", "evaluation_items.json", "settings.yaml"]
    names += [f"samples/{path.name}" for path in (first / "samples").iterdir()]
    assert len(names) == 6
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    for name in ("journal.jsonl", "policy.safetensors"):
        assert (first / name).read_bytes() != (other / name).read_bytes()


def test_arms_of_a_seed_sample_with_the_same_noise(results: Results) -> None:
    """Before their first update two arms of a seed do the same: same prompts, same completions, same rewards."""
    arms = [{}, {"learning_rate": 0.02, "kernel": "ratio"}, {"importance_sampling_level": "sequence"}]
    first = [records(journal_of(results, **arm), "rollout")[0] for arm in arms]
    for name in ("reward/mean", "length/mean", "entropy/behaviour", "completions/unique"):
        assert len({rollout[name] for rollout in first}) == 1
    assert len({rollout["weights/step_norm"] for rollout in first}) == 3


@pytest.mark.parametrize("level", ["sequence", "sequence_token"])
def test_the_shown_ratios_are_those_of_the_journal(tmp_path: Path, level: str) -> None:
    results = Results.open(tmp_path)
    settings = tiny_settings(importance_sampling_level=level, epsilon=1e-3, epsilon_high=1e-3)
    assert run(settings, results)["outcome"] == "completed"
    folder = run_folder(settings, results)
    shown = re.findall(r"sequence:([\d.]+)([v^]?)  of tokens", show(results, folder.name, 2, prompts=4)[1])
    ratios = [float(ratio) for ratio, _ in shown]
    last = [update for update in records(folder, "update") if update["rollout_step"] == 2][-1]
    assert len(ratios) == 16
    assert min(ratios) == pytest.approx(last["ratio/sequence_min"], abs=1e-5)
    assert max(ratios) == pytest.approx(last["ratio/sequence_max"], abs=1e-5)
    marked = [float(ratio) for ratio, mark in shown if mark]
    assert marked, "something is clipped"
    assert all(abs(ratio - 1) > 1e-3 for ratio in marked)
