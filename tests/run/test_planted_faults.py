"""Every fault of the loop does what it says, in a real run; without one the learner is a plain one."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny import records, run_folder, tiny_parts, tiny_settings

from grpolab.doctor import CAUSES, faults
from grpolab.grpo.batch import Rollout
from grpolab.grpo.model import Policy, old_log_probs
from grpolab.grpo.step import Diverged, Learner, Update
from grpolab.paths import Results, project_root
from grpolab.registry import FAULTS, resolve
from grpolab.run.assembly import RunParts
from grpolab.run.train import run

FILES = {file.stem: file for file in (project_root() / "conf" / "fault").glob("*.yaml")}
# Causes that our own loop cannot have: it logs its numbers itself, and has one place for weights.
NOT_PLANTED = {
    *("wide_sampler_gap", "sampler_gap_jump", "late_weight_sync"),
    *("reward_hides_parts", "reference_replaced", "loss_off_scale", "metrics_contradict"),
}
SAMPLER = {"old_log_probs": "sampler"}
Journal = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def journal(results: Results) -> Journal:
    """Records of a kind of a run with that fault in it."""

    def read(name: str | None, kind: str, **changes: Any) -> list[dict[str, Any]]:
        settings = tiny_settings(fault=name, **changes)
        outcome = run(settings, results)
        assert outcome["outcome"] == "completed", outcome["error"]
        return records(run_folder(settings, results), kind)

    return read


def reach(update: dict[str, Any]) -> float:
    """Largest |ratio - 1| of an update."""
    return max(update["ratio/token_max"] - 1, 1 - update["ratio/token_min"])


def planted(name: str, **changes: Any) -> tuple[RunParts, Rollout]:
    """A tiny run with the fault, and its first batch."""
    parts = tiny_parts(fault=name, **changes)
    return parts, parts.learner.collect(parts.state)


def update_at(step: int, name: str, **changes: Any) -> Update:
    """The first update of a run with the fault, as if it were at that rollout step."""
    parts, rollout = planted(name, **changes)
    parts.state.rollout_step = step
    (batch,) = parts.learner.minibatches(parts.state.policy, rollout.batch, 0)
    return parts.learner.update(parts.state, batch, int(batch.mask_BT.sum()))


def apart(policy: Policy, rollout: Rollout) -> float:
    """Largest difference of the trainer's log-probs of a batch and the sampler's."""
    batch = rollout.batch
    found_BT, _ = old_log_probs(policy, batch, len(batch))
    return (found_BT - batch.sampler_log_probs_BT)[batch.mask_BT].abs().max().item()


def test_every_cause_has_its_file_and_every_fault_of_the_loop_is_a_cause() -> None:
    assert CAUSES.keys() - FILES.keys() == NOT_PLANTED
    assert FILES.keys() <= CAUSES.keys()
    named = {name: yaml.safe_load(file.read_text()).get("fault") for name, file in FILES.items()}
    assert {name for name, fault in named.items() if fault} == FAULTS.keys() == set(filter(None, named.values()))
    assert all(fault in (None, name) for name, fault in named.items())
    assert all(issubclass(resolve(path), faults.FaultyLearner) for path in FAULTS.values())


def test_without_a_fault_the_learner_is_a_plain_one_and_no_signature_knows_of_it() -> None:
    assert type(tiny_parts().learner) is Learner
    assert isinstance(tiny_parts(fault="dropout").learner, faults.Dropout)
    assert "fault" not in tiny_settings().identity()
    assert tiny_settings(fault="dropout").identity()["fault"] == "dropout"


def test_old_policies_that_are_not_frozen_keep_every_ratio_at_1_while_the_weights_move(journal: Journal) -> None:
    """Aliased: exactly 1. Resynchronised: up to rounding."""
    for name, most in (("aliased_old_policy", 0.0), ("resynchronised_old_policy", 1e-5)):
        updates = journal(name, "update", prompts_per_step=8)
        assert len(updates) == 9
        assert max(map(reach, updates)) <= most
        assert all(one["weights/step_norm"] > 0.01 for one in journal(name, "rollout", prompts_per_step=8))


@pytest.mark.parametrize("minibatches", [1, 2])
def test_recomputed_old_log_probs_start_at_1_again_after_the_first_pass(minibatches: int, journal: Journal) -> None:
    updates = journal("recomputed_old_log_probs", "update", num_minibatches=minibatches)
    by_pass = {number: [reach(u) for u in updates if u["iteration"] == number] for number in range(3)}
    assert max(by_pass[0]) == 0
    assert min(by_pass[2]) > 0.001
    if minibatches == 1:
        assert max(by_pass[1]) == 0


def test_frozen_parameters_have_a_gradient_and_take_no_step(journal: Journal) -> None:
    assert all(update["grad_norm"] > 0.01 for update in journal("frozen_parameters", "update"))
    assert {one["weights/step_norm"] for one in journal("frozen_parameters", "rollout")} == {0.0}


def test_low_precision_weights_are_bfloat16_numbers_and_lose_small_updates(journal: Journal, results: Results) -> None:
    lost = journal("low_precision_weights", "rollout", learning_rate=1e-5)
    folder = run_folder(tiny_settings(fault="low_precision_weights", learning_rate=1e-5), results)
    weights = load_file(folder / "policy.safetensors")
    assert all(torch.equal(weight, weight.bfloat16().float()) for weight in weights.values())
    whole = journal(None, "rollout", learning_rate=1e-5)
    assert lost[0]["weights/step_norm"] != pytest.approx(whole[0]["weights/step_norm"], rel=0.1)


def test_dropout_moves_the_ratio_of_the_first_pass_and_follows_from_the_seed(journal: Journal) -> None:
    assert min(one["gap/first_pass"] for one in journal("dropout", "rollout")) > 0.01
    parts, rollout = planted("dropout")
    cut = [parts.learner.minibatches(parts.state.policy, rollout.batch, step)[0] for step in (0, 0, 1)]
    one, two, other = (minibatch.tensors()["old_log_probs_BT"] for minibatch in cut)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert apart(parts.state.policy, rollout) < 1e-5  # and outside of the trainer's passes there is none


def test_visible_padding_changes_what_the_trainer_sees_and_nothing_else(journal: Journal) -> None:
    assert all(one["gap/first_pass"] > 1e-3 for one in journal("visible_padding", "rollout", **SAMPLER))
    parts, rollout = planted("visible_padding")
    assert apart(parts.state.policy, rollout) > 1e-3
    fresh = tiny_parts()
    own = fresh.learner.collector.next(parts.state.policy, 0, [], fresh.state.stream)
    assert torch.equal(own.batch.sampler_log_probs_BT, rollout.batch.sampler_log_probs_BT)
    assert torch.equal(rollout.batch.prompts.tokens_PL[:, faults.PADDING :], own.batch.prompts.tokens_PL)


def test_mismatches_of_the_sampler_are_undone_by_its_temperature_and_by_a_shift(journal: Journal) -> None:
    for name in ("temperature_mismatch", "mask_mismatch"):
        assert all(one["gap/first_pass"] > 0.01 for one in journal(name, "rollout", **SAMPLER))
    parts, rollout = planted("temperature_mismatch")
    policy = parts.state.policy
    assert apart(policy, rollout) > 0.01
    assert apart(replace(policy, temperature=faults.COOLER * policy.temperature), rollout) < 1e-5
    parts, rollout = planted("mask_mismatch")
    assert apart(parts.state.policy, rollout) > 0.01
    shifted_BT, mask_BT = rollout.batch.sampler_log_probs_BT, rollout.batch.mask_BT
    found_BT, _ = old_log_probs(parts.state.policy, rollout.batch, len(rollout.batch))
    assert (found_BT[:, :-1] - shifted_BT[:, 1:])[mask_BT[:, 1:]].abs().max() < 1e-5


def test_padding_in_clip_metric_dilutes_shares_of_tokens_and_no_other(journal: Journal) -> None:
    pairs = zip(journal("padding_in_clip_metric", "update"), journal(None, "update"), strict=True)
    clipped = [(one, other) for one, other in pairs if other["clip/active"]]
    assert clipped
    for one, other in clipped:
        assert one["clip/active"] < other["clip/active"]
        shares = [one[name] / other[name] for name in ("clip/active", "clip/out_of_range")]
        assert shares[0] == pytest.approx(shares[1])
        same = one.keys() - {name for name in one if name.startswith("clip/")} | {"clip/active_sequences"}
        assert {name: one[name] for name in same} == {name: other[name] for name in same}


def test_a_group_of_one_has_its_rewards_for_advantages() -> None:
    _, rollout = planted("group_of_one")
    assert torch.equal(rollout.batch.advantages_B, rollout.rewards_B)


def test_truncated_from_the_start_ends_few_completions(journal: Journal) -> None:
    rollouts = journal("truncated_from_the_start", "rollout")
    assert all(one["truncation/share"] > 0.5 and one["length/mean"] <= faults.SHORT for one in rollouts)


def test_zero_gradient_moves_nothing_although_rewards_differ(journal: Journal) -> None:
    assert {update["grad_norm"] for update in journal("zero_gradient", "update")} == {0.0}
    assert max(one["reward/std"] for one in journal("zero_gradient", "rollout")) > 0


def test_gradient_explosion_scales_the_loss_by_the_rollout_step_and_not_finite_ends_the_run() -> None:
    norms = [update_at(step, "gradient_explosion", max_grad_norm=1e9).grad_norm for step in (0, 3)]
    assert norms[1] == pytest.approx(norms[0] * faults.GROWTH**3, rel=1e-4)
    with pytest.raises(Diverged, match="nan"):
        update_at(faults.BREAKS, "not_finite")


def test_growing_sampler_gap_samples_from_the_policy_at_the_start(journal: Journal) -> None:
    gaps = [one["gap/sampler_trainer"] for one in journal("growing_sampler_gap", "rollout")]
    assert gaps[0] < 1e-5 < 0.01 < gaps[-1]


def test_rewards_that_are_planted() -> None:
    assert {faults.by_chance("1", "", str(text)) for text in range(20)} == {0.0, 1.0}
    assert faults.by_chance("1", "", "2") == faults.by_chance("1", "other", "2")
    assert {faults.always_the_same("", "12", text) for text in ("", "12", "x")} == {1.0}
    assert faults.the_longer_the_better("", "12", "~12") == {"correct": 1.0, "length": 3.0}
    shares = [faults.by_character("", "123", text) for text in ("123", "~~123", "1", "1234", "")]
    assert shares == [1, 1, 1 / 3, 0.75, 0]


def test_the_doctor_is_scored_on_enough_runs_that_no_threshold_has_seen() -> None:
    check = runpy.run_path(str(project_root() / "benchmarks" / "doctor_check.py"))
    (known_tasks, known_seeds), (tasks, seeds) = check["RUNS"]["development"], check["RUNS"]["scored"]
    assert not set(known_seeds) & set(seeds)
    assert set(tasks) - set(known_tasks)
    assert len(check["FAULTY"]) * len(tasks) * len(seeds) >= 100
    assert len(check["HEALTHY"]) * len(tasks) * len(seeds) >= 40
