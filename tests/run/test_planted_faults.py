"""Every fault of the loop does what it says, in a real run; without one the learner is a plain one."""

from __future__ import annotations

import runpy
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml
from tiny import records, run_folder, tiny_parts, tiny_settings
from torch import Tensor

from grpolab.doctor import CAUSES, faults
from grpolab.grpo.batch import Rollout
from grpolab.grpo.model import Policy, old_log_probs
from grpolab.grpo.step import Diverged, Learner
from grpolab.paths import Results, project_root
from grpolab.registry import FAULTS, resolve
from grpolab.run.assembly import RunParts
from grpolab.run.checkpoint import load_weights
from grpolab.run.train import run

FILES = {file.stem: file for file in (project_root() / "conf" / "fault").glob("*.yaml")}
SAMPLER = {"old_log_probs": "sampler"}


def journal(results: Results, name: str, kind: str, **changes: Any) -> list[dict[str, Any]]:
    """Records of a run with that fault in it."""
    settings = tiny_settings(fault=name, **changes)
    outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome["error"]
    return records(run_folder(settings, results), kind)


def reach(update: dict[str, Any]) -> float:
    """Largest |ratio - 1| of an update."""
    return max(update["ratio/token_max"] - 1, 1 - update["ratio/token_min"])


def planted(name: str, **changes: Any) -> tuple[RunParts, Rollout]:
    """A tiny run with the fault, and its first batch."""
    parts = tiny_parts(fault=name, **changes)
    return parts, parts.learner.collect(parts.state)


def apart(policy: Policy, rollout: Rollout, sampled_BT: Tensor | None = None) -> float:
    """Largest difference of the trainer's log-probs of a batch and the sampler's."""
    batch = rollout.batch
    found_BT, _ = old_log_probs(policy, batch, len(batch))
    other_BT = batch.sampler_log_probs_BT if sampled_BT is None else sampled_BT
    return (found_BT - other_BT)[batch.mask_BT].abs().max().item()


def test_every_cause_has_its_file_and_every_fault_of_the_loop_is_a_cause() -> None:
    assert FILES.keys() == CAUSES.keys()
    named = {name: yaml.safe_load(file.read_text()).get("fault") for name, file in FILES.items()}
    assert {name for name, fault in named.items() if fault} == FAULTS.keys() == set(filter(None, named.values()))
    assert all(fault in (None, name) for name, fault in named.items())
    assert all(issubclass(resolve(path), faults.FaultyLearner) for path in FAULTS.values())


def test_without_a_fault_the_learner_is_a_plain_one_and_no_signature_knows_of_it() -> None:
    assert type(tiny_parts().learner) is Learner
    assert isinstance(tiny_parts(fault="dropout").learner, faults.Dropout)
    assert "fault" not in tiny_settings().identity()
    assert tiny_settings(fault="dropout").identity()["fault"] == "dropout"


def test_aliased_old_policy_keeps_every_ratio_at_exactly_1_while_the_weights_move(results: Results) -> None:
    updates = journal(results, "aliased_old_policy", "update")
    assert [reach(update) for update in updates] == [0.0] * 9
    assert all(one["weights/step_norm"] > 0.01 for one in journal(results, "aliased_old_policy", "rollout"))


def test_resynchronised_old_policy_keeps_every_ratio_at_1_up_to_rounding(results: Results) -> None:
    updates = journal(results, "resynchronised_old_policy", "update", prompts_per_step=8)
    assert max(reach(update) for update in updates) < 1e-5
    rollouts = journal(results, "resynchronised_old_policy", "rollout", prompts_per_step=8)
    assert all(one["weights/step_norm"] > 0.01 for one in rollouts)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_recomputed_old_log_probs_start_at_1_again_after_the_first_pass(minibatches: int, results: Results) -> None:
    updates = journal(results, "recomputed_old_log_probs", "update", num_minibatches=minibatches)
    by_pass = {number: [reach(u) for u in updates if u["iteration"] == number] for number in range(3)}
    assert max(by_pass[0]) == 0
    assert min(by_pass[2]) > 0.001
    if minibatches == 1:
        assert max(by_pass[1]) == 0


def test_frozen_parameters_have_a_gradient_and_take_no_step(results: Results) -> None:
    assert all(update["grad_norm"] > 0.01 for update in journal(results, "frozen_parameters", "update"))
    assert {one["weights/step_norm"] for one in journal(results, "frozen_parameters", "rollout")} == {0.0}


def test_low_precision_weights_are_bfloat16_numbers_and_lose_small_updates(results: Results) -> None:
    small = {"learning_rate": 1e-5}
    lost = journal(results, "low_precision_weights", "rollout", **small)
    weights = load_weights(
        run_folder(tiny_settings(fault="low_precision_weights", **small), results) / "policy.safetensors"
    )
    assert all(torch.equal(weight, weight.bfloat16().float()) for weight in weights.values())
    settings = tiny_settings(**small)
    run(settings, results)
    whole = records(run_folder(settings, results), "rollout")
    assert lost[0]["weights/step_norm"] != pytest.approx(whole[0]["weights/step_norm"], rel=0.1)


def test_dropout_moves_the_ratio_of_the_first_pass_and_follows_from_the_seed(results: Results) -> None:
    gaps = [one["gap/first_pass"] for one in journal(results, "dropout", "rollout")]
    assert min(gaps) > 0.01
    parts, rollout = planted("dropout")
    (one,) = parts.learner.minibatches(parts.state.policy, rollout.batch, 0)
    (two,) = parts.learner.minibatches(parts.state.policy, rollout.batch, 0)
    (other,) = parts.learner.minibatches(parts.state.policy, rollout.batch, 1)
    assert one.old_log_probs_BT is not None
    assert torch.equal(one.old_log_probs_BT, two.old_log_probs_BT)
    assert not torch.equal(one.old_log_probs_BT, other.old_log_probs_BT)
    assert apart(parts.state.policy, rollout) < 1e-5  # and outside of the trainer's passes there is none


def test_visible_padding_changes_what_the_trainer_sees_and_nothing_else(results: Results) -> None:
    assert all(one["gap/first_pass"] > 1e-3 for one in journal(results, "visible_padding", "rollout", **SAMPLER))
    parts, rollout = planted("visible_padding")
    assert apart(parts.state.policy, rollout) > 1e-3
    own = tiny_parts().learner.collector.next(parts.state.policy, 0, [])
    assert torch.equal(own.batch.sampler_log_probs_BT, rollout.batch.sampler_log_probs_BT)
    prompts = rollout.batch.prompts
    assert torch.equal(prompts.tokens_PL[:, faults.PADDING :], own.batch.prompts.tokens_PL)


def test_temperature_mismatch_is_undone_by_the_samplers_temperature(results: Results) -> None:
    assert all(one["gap/first_pass"] > 0.01 for one in journal(results, "temperature_mismatch", "rollout", **SAMPLER))
    parts, rollout = planted("temperature_mismatch")
    policy = parts.state.policy
    assert apart(policy, rollout) > 0.01
    assert apart(replace(policy, temperature=faults.COOLER * policy.temperature), rollout) < 1e-5


def test_mask_mismatch_is_undone_by_a_shift(results: Results) -> None:
    assert all(one["gap/first_pass"] > 0.01 for one in journal(results, "mask_mismatch", "rollout", **SAMPLER))
    parts, rollout = planted("mask_mismatch")
    assert apart(parts.state.policy, rollout) > 0.01
    shifted_BT, mask_BT = rollout.batch.sampler_log_probs_BT, rollout.batch.mask_BT
    found_BT, _ = old_log_probs(parts.state.policy, rollout.batch, len(rollout.batch))
    assert (found_BT[:, :-1] - shifted_BT[:, 1:])[mask_BT[:, 1:]].abs().max() < 1e-5


def test_padding_in_clip_metric_dilutes_shares_of_tokens_and_no_other(results: Results) -> None:
    diluted = journal(results, "padding_in_clip_metric", "update")
    settings = tiny_settings()
    run(settings, results)
    right = records(run_folder(settings, results), "update")
    clipped = [(one, other) for one, other in zip(diluted, right, strict=True) if other["clip/active"]]
    assert clipped
    for one, other in clipped:
        assert one["clip/active"] < other["clip/active"]
        assert one["clip/active"] / other["clip/active"] == pytest.approx(
            one["clip/out_of_range"] / other["clip/out_of_range"]
        )
        same = one.keys() - {name for name in one if name.startswith("clip/")} | {"clip/active_sequences"}
        assert {name: one[name] for name in same} == {name: other[name] for name in same}


def test_a_group_of_one_has_its_rewards_for_advantages() -> None:
    _, rollout = planted("group_of_one")
    assert torch.equal(rollout.batch.advantages_B, rollout.rewards_B)


def test_truncated_from_the_start_ends_few_completions(results: Results) -> None:
    rollouts = journal(results, "truncated_from_the_start", "rollout")
    assert all(one["truncation/share"] > 0.5 and one["length/mean"] <= faults.SHORT for one in rollouts)


def test_zero_gradient_moves_nothing_although_rewards_differ(results: Results) -> None:
    assert {update["grad_norm"] for update in journal(results, "zero_gradient", "update")} == {0.0}
    assert max(one["reward/std"] for one in journal(results, "zero_gradient", "rollout")) > 0


def test_gradient_explosion_scales_the_loss_by_the_rollout_step() -> None:
    norms = []
    for step in (0, 3):
        parts, rollout = planted("gradient_explosion", max_grad_norm=1e9)
        parts.state.rollout_step = step
        (batch,) = parts.learner.minibatches(parts.state.policy, rollout.batch, 0)
        norms.append(parts.learner.update(parts.state, batch, int(batch.mask_BT.sum())).grad_norm)
    assert norms[1] == pytest.approx(norms[0] * faults.GROWTH**3, rel=1e-4)


def test_not_finite_ends_the_run() -> None:
    parts, rollout = planted("not_finite")
    parts.state.rollout_step = faults.BREAKS
    (batch,) = parts.learner.minibatches(parts.state.policy, rollout.batch, 0)
    with pytest.raises(Diverged, match="nan"):
        parts.learner.update(parts.state, batch, int(batch.mask_BT.sum()))


def test_growing_sampler_gap_samples_from_the_policy_at_the_start(results: Results) -> None:
    gaps = [one["gap/sampler_trainer"] for one in journal(results, "growing_sampler_gap", "rollout")]
    assert gaps[0] < 1e-5 < 0.01 < gaps[-1]


def test_rewards_that_are_planted() -> None:
    assert {faults.by_chance("1", "", str(text)) for text in range(20)} == {0.0, 1.0}
    assert faults.by_chance("1", "", "2") == faults.by_chance("1", "other", "2")
    assert {faults.always_the_same("", "12", text) for text in ("", "12", "x")} == {1.0}
    assert faults.the_longer_the_better("", "12", "~12") == {"correct": 1.0, "length": 3.0}
    assert [faults.by_character("", "123", text) for text in ("123", "~~123", "1", "1234", "")] == [
        1,
        1,
        1 / 3,
        0.75,
        0,
    ]


def test_the_doctor_is_scored_on_enough_runs_that_no_threshold_has_seen() -> None:
    check = runpy.run_path(str(project_root() / "benchmarks" / "doctor_check.py"))
    (_, known_tasks, known_seeds), (_, tasks, seeds) = check["DEVELOPMENT"], check["SCORED"]
    assert not set(known_seeds) & set(seeds)
    assert set(tasks) - set(known_tasks)
    assert len(check["FAULTY"]) * len(tasks) * len(seeds) >= 100
    assert len(check["HEALTHY"]) * len(tasks) * len(seeds) >= 40
