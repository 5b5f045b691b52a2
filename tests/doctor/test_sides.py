"""Causes with several sides: what is said and advised follows the evidence, and each side is asked for its own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_evidence import STEPS, changed, falling, later, sound

from grpolab.doctor import Finding, examine, page
from grpolab.doctor.evidence import Evidence


def found(run: Evidence, cause: str) -> Finding:
    return next(finding for finding in examine(run).findings if finding.cause == cause)


def without(run: Evidence, table: str, *metrics: str) -> Evidence:
    return replace(run, **{table: getattr(run, table).drop(columns=list(metrics))})


def starving(right: float, wrong: float, reward: float) -> Evidence:
    shares = {"zero_variance/share": 0.95, "zero_variance/all_right": right, "zero_variance/all_wrong": wrong}
    return changed(sound(), "rollouts", {**shares, "reward/mean": reward})


def log(steps: int = STEPS, **metrics: Any) -> Evidence:
    """Rollouts of a log of verl, without settings."""
    rows = pd.DataFrame({"rollout_step": range(steps), **metrics})
    return Evidence(run="log", state="a log", rollouts=rows, framework="verl")


STARVED_LOG = {"zero_variance/share": 0.95, "reward/max": 1.0, "reward/min": 0.0}


@pytest.mark.parametrize(
    ("run", "advice", "opposite"),
    [
        (starving(0.02, 0.93, 0.03), "Draw easier prompts", "harder"),
        (starving(0.93, 0.02, 0.97), "Draw harder prompts", "easier"),
        (starving(0.40, 0.55, 0.45), "Leave out the prompts that are always right and", "draw"),
        (log(**{**STARVED_LOG, "reward/mean": 0.02}), "Draw easier prompts", "harder"),
        (log(**{**STARVED_LOG, "reward/mean": 0.98}), "Draw harder prompts", "easier"),
        (
            log(**{"zero_variance/share": 0.95, "reward/mean": 0.02}),
            "harder prompts where the mean reward is near",
            "~",
        ),
    ],
)
def test_starved_groups_need_easier_prompts_where_all_is_wrong_and_harder_ones_where_all_is_right(
    run: Evidence, advice: str, opposite: str
) -> None:
    remedy = found(run, "starving_variance").remedy
    assert advice in remedy
    assert opposite not in remedy
    assert remedy in " ".join(page.text(examine(run)).split())
    assert remedy in [cause["try"] for cause in page.record(examine(run))["causes"]]


def test_starved_groups_that_are_all_right_in_a_run_that_still_learns_are_no_trouble() -> None:
    run = changed(starving(0.93, 0.02, 0.5), "rollouts", {"reward/mean": falling(0.5, 0.98)})
    assert "starving_variance" not in [finding.cause for finding in examine(run).findings]


def constant(right: float, wrong: float) -> Evidence:
    shares = {"zero_variance/share": 1.0, "zero_variance/all_right": right, "zero_variance/all_wrong": wrong}
    return changed(sound(), "rollouts", shares)


def entropy(last: float, **settings: float) -> Evidence:
    course = {
        "entropy/behaviour": falling(0.6, last),
        "reward/mean": falling(0.3, 0.2),
        "zero_variance/all_wrong": 0.5,
    }
    return changed(sound(**settings), "rollouts", course)


def fell(**settings: Any) -> Evidence:
    run = changed(sound(**{"evaluation.items": 2000, **settings}), "updates", {"clip/active": 0.0})
    run = changed(run, "rollouts", {"reward/mean": falling(0.3, 0.2)})
    return replace(run, evaluations=run.evaluations.assign(**{"eval/accuracy_expected": [0.298, 0.26, 0.206]}))


def overflow(usual: float, **settings: float) -> Evidence:
    run = changed(sound(**settings), "updates", {"kl_ref/k3": usual})
    return changed(run, "updates", {"kl_ref/k3": 5000.0}, lambda updates: updates.index == 20)


def drifted(**settings: float) -> Evidence:
    run = sound(**settings)
    return replace(
        run, updates=run.updates.assign(**{"kl_ref/k3": 3 * (run.updates["rollout_step"] / 6).clip(upper=1)})
    )


def growing(**settings: float) -> Evidence:
    run = changed(sound(**settings), "rollouts", {"reward/mean": 0.3})
    return replace(run, updates=run.updates.assign(grad_norm=40 ** (run.updates["rollout_step"] / (STEPS - 1))))


def cell(passes: int = 4, **settings: Any) -> Evidence:
    run = changed(sound(passes, staleness=4, **settings), "updates", {"ratio/token_max_neg": 8.0})
    return changed(run, "updates", {"grad_norm": 20.0}, lambda u: (u["rollout_step"] == 5) & (u["iteration"] == 0))


def cut_off(reward: tuple[float, float]) -> Evidence:
    return changed(sound(), "rollouts", {"truncation/share": falling(0.1, 0.9), "reward/mean": falling(*reward)})


def longer() -> Evidence:
    return changed(sound(), "rollouts", {"length/mean": falling(100, 400), "reward/mean": falling(0.5, 0.3)})


def destroyed(reward: tuple[float, float], rewards_right: bool) -> Evidence:
    noise = 0.0 if rewards_right else 0.002 * np.array([1, -1] * 6)
    run = changed(sound(), "rollouts", {"reward/mean": falling(*reward) + noise})
    return replace(run, evaluations=run.evaluations.assign(**{"eval/accuracy_expected": [0.3, 0.01, 0.001]}))


def gap(**settings: Any) -> Evidence:
    return changed(sound(**settings), "rollouts", {"gap/sampler_trainer": falling(0.005, 0.5)})


def truncated(share: float) -> Evidence:
    return changed(sound(), "rollouts", {"truncation/share": share})


def no_gradient(cut: float) -> Evidence:
    run = changed(sound(), "updates", {"grad_norm": 0.0})
    return changed(run, "rollouts", {"truncation/share": cut, "reward/std": 0.5})


def flat(moves: bool) -> Evidence:
    rows = pd.DataFrame({"rollout_step": range(60), "reward/mean": falling(0.4, 0.41, 60), "reward/std": 0.5})
    run = replace(sound(), rollouts=rows, evaluations=sound().evaluations[:0])
    return run if moves else replace(run, updates=run.updates.iloc[:0, :0], framework="trl")


def alone(**settings: Any) -> Evidence:
    run = sound(**settings)
    return replace(run, samples=run.samples.assign(advantage=run.samples["reward"]))


def still(**settings: Any) -> Evidence:
    run = changed(sound(**settings), "updates", {"ratio/token_max": 1.0001, "ratio/token_min": 0.9999}, later)
    return changed(run, "updates", {"clip/active": 0.0, "clip/active_nz": 0.0, "cf/token_0.2": 0.0}, later)


def coarse(moved: float) -> Evidence:
    run = still()
    assert run.weights
    return replace(run, weights=replace(run.weights, on_grid=1.0, moved=moved))


def pulled(is_still: bool) -> Evidence:
    run = still(beta=100.0) if is_still else sound(beta=100.0)
    return changed(run, "updates", {"kl_ref/k3": 1e-4}, later)


def narrow(**settings: float) -> Evidence:
    return changed(sound(**settings), "updates", {"clip/active_nz": 0.5, "cf/token_0.2": 0.02}, later)


def imprecise(**settings: str) -> Evidence:
    first = {"ratio/token_max": 1.01, "ratio/token_min": 0.99, "kl_old/k1": 1e-5, "kl_old/k3": 1e-5}
    return changed(sound(**settings), "updates", first, lambda updates: updates["iteration"] == 0)


def rates(value: float) -> Evidence:
    updates = pd.DataFrame({"rollout_step": range(20), "learning_rate": value, "loss": 0.1, "grad_norm": 0.3})
    return Evidence(run="log", state="a log", updates=updates, framework="trl")


def odd(rows: dict[str, list[int]]) -> Evidence:
    return replace(sound(), not_finite=rows)


BARE = {"settings": {}}
# Cause -> its sides: the evidence, what is then said or advised, and what would be untrue or the wrong way round.
SIDES: list[tuple[str, Evidence, str, str]] = [
    ("constant_reward", constant(0.0, 1.0), "a right completion is paid; then draw easier", "harder"),
    ("constant_reward", constant(1.0, 0.0), "can refuse a completion; then draw harder", "easier"),
    ("constant_reward", constant(0.5, 0.5), "sometimes right and sometimes wrong", "draw"),
    ("entropy_explosion", entropy(2.0, entropy_coef=1.0), "Lower entropy_coef", "learning rate"),
    ("entropy_explosion", entropy(2.0), "smaller learning rate", "Lower entropy_coef"),
    ("entropy_collapse", entropy(0.2, entropy_coef=-0.3), "Set entropy_coef to 0 or more", "epsilon_high"),
    ("entropy_collapse", entropy(0.05), "Raise epsilon_high, add an entropy bonus", "raise entropy_coef"),
    ("entropy_collapse", entropy(0.05, entropy_coef=0.01), "raise entropy_coef (it is 0.01)", "add an entropy bonus"),
    ("entropy_collapse", entropy(0.05, epsilon_high=math.inf), "Add an entropy bonus", "epsilon_high"),
    (
        "entropy_collapse",
        log(**{"entropy/behaviour": falling(0.6, 0.05), "reward/mean": falling(0.2, 0.8)}),
        "while the reward rose",
        "not because all is right",
    ),
    ("unclipped", fell(kernel="ratio"), "kernel=clipped", "that acts"),
    ("unclipped", fell(epsilon_high=math.inf), "Use a clip range that acts", "kernel=clipped"),
    ("kl_overflow", overflow(0.01, beta=0.1), "a few tokens", "whole policy"),
    ("kl_overflow", overflow(50.0, beta=0.1), "the whole policy is far", "smaller beta"),
    ("kl_explosion", drifted(beta=1e-3), "a larger beta", "no penalty holds"),
    ("kl_explosion", drifted(beta=0.0), "no penalty holds it (beta=0)", "a larger beta"),
    ("gradient_explosion", growing(max_grad_norm=1.0), "It is clipped already", "clip the gradient"),
    ("gradient_explosion", growing(max_grad_norm=1e9), "clip the gradient (max_grad_norm)", "clipped already"),
    ("unbounded_cell", cell(), "Set delta or dual_clip, take fewer iterations or fresher batches", "kernel=clipped"),
    ("unbounded_cell", cell(passes=1, old_log_probs="sampler"), "fresher batches", "fewer iterations"),
    ("unbounded_cell", cell(kernel="ratio"), "Use a clip range (kernel=clipped)", "~"),
    ("length_blow_up", cut_off((0.3, 0.5)), "length pays", "smaller learning rate"),
    ("length_blow_up", cut_off((0.3, 0.2)), "no longer ends its answers", "mask truncated"),
    ("length_blow_up", longer(), "length does not pay", "length pays"),
    ("destroyed_policy", destroyed((0.3, 0.01), True), "fewer iterations, or a KL", "Check the reward"),
    ("destroyed_policy", destroyed((0.5, 0.499), False), "what is rewarded is not what is evaluated", "or a KL"),
    ("growing_sampler_gap", gap(), "correct with truncated importance weights", "already"),
    ("growing_sampler_gap", gap(old_log_probs="sampler"), "corrects for the gap already", "sampler_correction"),
    ("not_finite", odd({"loss": [3, 4, 5]}), "from there on loss", "Nothing where"),
    ("not_finite", odd({"grad_norm": [3]}), "the run went on", "mean nothing"),
    ("group_of_one", alone(num_generations=1), "a group of one completion", "Nothing is subtracted"),
    ("group_of_one", alone(num_generations=8), "Nothing is subtracted from the rewards", "Sample several"),
    ("truncated_from_the_start", truncated(1.0), "Check that the end token is known", "shorten"),
    ("truncated_from_the_start", truncated(0.7), "Raise max_completion_length, or shorten", "Check that the end"),
    ("zero_gradient", no_gradient(1.0), "every completion is cut off", "LoRA"),
    ("zero_gradient", no_gradient(0.05), "need a gradient (LoRA", "Raise max_completion_length"),
    ("plateau", flat(moves=True), "fewer iterations or a smaller learning rate", "larger learning rate"),
    ("plateau", flat(moves=False), "where it hardly does a larger learning rate", "the policy does move"),
    (
        "frozen_parameters",
        changed(still(), "rollouts", {"weights/step_norm": 0.0}),
        "weights do not move",
        "Some tensors",
    ),
    ("low_precision_weights", coarse(0.1), "most updates round to nothing", "small updates"),
    ("low_precision_weights", coarse(0.9), "small updates round to nothing", "most updates"),
    ("low_precision_weights", coarse(math.nan), "small updates round to nothing", "–"),
    ("strong_kl", pulled(is_still=True), "never moves far enough to be clipped", "draws"),
    ("strong_kl", pulled(is_still=False), "outweighs the advantages", "never moves"),
    ("tiny_epsilon", narrow(epsilon=1e-6, epsilon_high=0.3), "Widen epsilon:", "epsilon_high"),
    ("tiny_epsilon", narrow(epsilon=1e-6, epsilon_high=1e-6), "Widen epsilon and epsilon_high:", "3e-4"),
    ("precision_mismatch", imprecise(sampler_dtype="bfloat16"), "in different precision", "same kernels"),
    ("precision_mismatch", imprecise(sampler_dtype="float32"), "same kernels", "in different precision"),
    ("tiny_learning_rate", rates(1e-9), "Raise", "schedule"),
    ("tiny_learning_rate", rates(0.0), "Look at the schedule", "Raise"),
]


@pytest.mark.parametrize(("cause", "run", "said", "untrue"), SIDES, ids=[f"{side[0]}: {side[2]}" for side in SIDES])
def test_each_side_says_its_own_and_not_the_other(cause: str, run: Evidence, said: str, untrue: str) -> None:
    finding = found(run, cause)
    whole = " ".join((finding.says, *finding.evidence, finding.remedy))
    assert said in whole
    assert untrue not in whole
    assert "nan" not in whole.split()


def test_a_log_without_beta_is_not_said_to_have_one() -> None:
    finding = found(replace(overflow(0.01), settings={}), "kl_overflow")
    assert finding.confidence == "likely"
    assert "beta=" not in " ".join(finding.evidence)


@pytest.mark.parametrize("settings", [{"kernel": "cispo"}, {"importance_sampling_level": "sequence"}])
def test_a_gradient_that_does_not_grow_with_a_tokens_ratio_has_no_unbounded_cell(settings: dict[str, str]) -> None:
    assert "unbounded_cell" not in [finding.cause for finding in examine(cell(**settings)).findings]


def test_a_log_gets_its_advice_in_the_names_of_its_framework() -> None:
    run = log(**{**STARVED_LOG, "reward/mean": 0.02})
    assert "actor_rollout_ref.rollout.n" in found(run, "starving_variance").remedy
    assert "num_generations" in found(replace(run, framework="trl"), "starving_variance").remedy


def test_a_kept_number_stands_for_updates_that_are_not_kept() -> None:
    bare = replace(fell(kernel="ratio"), updates=pd.DataFrame())
    assert "unclipped" not in [finding.cause for finding in examine(bare).findings]
    finding = found(replace(bare, numbers={"ratio_max": 92.0}), "unclipped")
    assert finding.evidence[-1] == "the largest ratio of a token is 92.0"
    quiet = examine(replace(bare, numbers={"ratio_max": 1.1}))
    assert "unclipped" not in [finding.cause for finding in quiet.findings]
