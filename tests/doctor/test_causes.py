"""Each rule of the doctor: evidence that triggers it, its nearest neighbour that does not, and the sides it has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_evidence import STEPS, changed, falling, later, sound
from made_logs import CONSISTENT, LOG_PAIRS, LOG_SIDES, N, cut, made_log, noisy
from made_logs import gap as gap_of_log

from grpolab.doctor import CAUSES, Finding, examine, page
from grpolab.doctor.causes import RULES
from grpolab.doctor.contradictions import find_contradictions
from grpolab.doctor.evidence import Evidence, to_evidence
from grpolab.readers.logs import read_rows

Made = Callable[[], Evidence]


def names(run: Evidence) -> list[str]:
    return [finding.cause for finding in examine(run).findings]


def notes(run: Evidence) -> list[str]:
    return [note.cause for note in examine(run).notes]


def find(run: Evidence, cause: str) -> Finding:
    return next(finding for finding in examine(run).findings if finding.cause == cause)


# --- runs that are not sound -----------------------------------------------------------------------------------------


def still(reach: float = 1e-4, **settings: Any) -> Evidence:
    run = changed(sound(**settings), {"ratio/token_max": 1 + reach, "ratio/token_min": 1 - reach}, later)
    return changed(run, {"clip/active": 0.0, "clip/active_nz": 0.0, "cf/token_0.2": 0.0}, later)


def off(k1: float, k3: float, mean: float = 1.0) -> Evidence:
    """Ratios that are not 1 on the first pass."""
    first = {"ratio/token_max": 2.0, "ratio/token_min": 0.5, "kl_old/k1": k1, "kl_old/k3": k3, "ratio/token_mean": mean}
    return changed(sound(), first, lambda updates: updates["iteration"] == 0)


def sharper(run: Evidence, factor: float, entropy: float) -> Evidence:
    """Old logits that are a multiple of the new ones; the trainer's entropy."""
    new = run.samples["old_log_prob"]
    old = -np.logaddexp(0, -factor * (new - np.log1p(-np.exp(new))))
    run = changed(run, {"entropy/behaviour": entropy})
    return replace(run, samples=run.samples.assign(old_log_prob=old, ratio=np.exp(new - old)))


def shifted(run: Evidence) -> Evidence:
    """Old log-probs that stand one token too late."""
    rows = run.samples.groupby(["rollout_step", "prompt_index", "sample"])["old_log_prob"]
    old = rows.shift(1).fillna(0.0)
    return replace(run, samples=run.samples.assign(old_log_prob=old, ratio=np.exp(run.samples["old_log_prob"] - old)))


def advantages(run: Evidence, factor: float) -> Evidence:
    return replace(run, samples=run.samples.assign(advantage=factor * run.samples["advantage"]))


def raw_advantages(**settings: Any) -> Evidence:
    run = sound(**settings)
    return replace(run, samples=run.samples.assign(advantage=run.samples["reward"]))


def weights(run: Evidence, **changes: Any) -> Evidence:
    assert run.weights
    return replace(run, weights=replace(run.weights, **changes))


def in_steps_of_equal_size() -> Evidence:
    reach = 4e-5 * sound().updates["iteration"]
    return changed(sound(), {"ratio/token_max": 1 + reach, "ratio/token_min": 1 - reach})


def equal(right: float = 0.1, wrong: float = 0.0, unique: float = 0.5, first: float = 1.0) -> Evidence:
    """Groups with equal rewards from the second batch on."""
    shares = {"zero_variance/all_right": right, "zero_variance/all_wrong": wrong, "completions/unique": unique}
    return changed(sound(), {"zero_variance/share": np.array([first, *[1.0] * 11]), **shares})


def filtered(groups: float) -> Evidence:
    """A filter that lets so many of eight groups train."""
    numbers = {"filter/groups": groups, "filter/sampled": 128.0, "filter/passed": groups / 32}
    return changed(sound(prompts_per_step=8), numbers)


def starving(right: float, wrong: float, reward: Any) -> Evidence:
    shares = {"zero_variance/share": 0.95, "zero_variance/all_right": right, "zero_variance/all_wrong": wrong}
    return changed(sound(), {**shares, "reward/mean": reward})


def lost(run: Evidence, score: list[float], reward: Any) -> Evidence:
    run = changed(run, {"reward/mean": reward})
    return replace(run, evaluations=run.evaluations.assign(**{"eval/accuracy_expected": score}))


def fell(**settings: Any) -> Evidence:
    """A run whose accuracy ends below its start, and in which nothing is clipped."""
    run = changed(sound(**{"evaluation.items": 2000, **settings}), {"clip/active": 0.0})
    return lost(run, [0.298, 0.26, 0.206], falling(0.3, 0.2))


def entropy(last: float, reward: float = 0.2, wrong: float = 0.5, **settings: float) -> Evidence:
    course = {"entropy/behaviour": falling(0.6, last), "reward/mean": falling(0.3, reward)}
    return changed(sound(**settings), {**course, "zero_variance/all_wrong": wrong})


def cell(passes: int = 4, **settings: Any) -> Evidence:
    run = changed(sound(passes, staleness=4, **settings), {"ratio/token_max_neg": 8.0})
    return changed(run, {"grad_norm": 20.0}, lambda u: (u["rollout_step"] == 5) & (u["iteration"] == 0))


def overflow(usual: float, **settings: float) -> Evidence:
    run = changed(sound(**settings), {"kl_ref/k3": usual})
    return changed(run, {"kl_ref/k3": 5000.0}, lambda updates: updates.index == 20)


def drifted(end: float = 3.0, **settings: float) -> Evidence:
    """A run whose KL to the reference rises to `end` in its first half."""
    run = sound(**settings)
    return changed(run, {"kl_ref/k3": end * (run.updates["rollout_step"] / 6).clip(upper=1)})


def growing(reward: float = 0.3, **settings: float) -> Evidence:
    """A gradient norm that grows forty times over the run."""
    run = changed(sound(**settings), {"reward/mean": falling(0.3, reward)})
    return changed(run, {"grad_norm": 40 ** (run.updates["rollout_step"] / (STEPS - 1))})


def clipped(usual: float = 0.02, **settings: float) -> Evidence:
    return changed(sound(**settings), {"clip/active_nz": 0.5, "cf/token_0.2": usual}, later)


def truncated(start: float, end: float, **metrics: Any) -> Evidence:
    return changed(sound(), {"truncation/share": falling(start, end), **metrics})


def longer(reward: np.ndarray) -> Evidence:
    return changed(sound(), {"length/mean": falling(100, 400), "reward/mean": reward})


def no_gradient(run: Evidence, cut: float = 0.05) -> Evidence:
    return changed(changed(run, {"truncation/share": cut, "reward/std": 0.5}), NO_GRADIENT)


def gap(first: float = 0.005, **settings: Any) -> Evidence:
    return changed(sound(**settings), {"gap/sampler_trainer": falling(first, 0.5)})


def flat(last: float = 0.41, moves: bool = False) -> Evidence:
    """60 rows of a log with such a reward, in groups that differ by .5."""
    rows = pd.DataFrame({"rollout_step": range(60), "reward/mean": falling(0.4, last, 60), "reward/std": 0.5})
    run = replace(sound(), evaluations=sound().evaluations[:0]) if moves else log("trl")
    return replace(run, rollouts=rows)


def log(framework: str = "verl", **metrics: Any) -> Evidence:
    """Rollouts of a log, without settings."""
    rows = pd.DataFrame({"rollout_step": range(STEPS), **metrics})
    return Evidence(run="log", state="a log", rollouts=rows, framework=framework)


def log_of_updates(**metrics: Any) -> Evidence:
    """Updates of a log that does not mark a batch's first."""
    return Evidence(run="log", state="a log", updates=pd.DataFrame(metrics).assign(rollout_step=0), framework="trl")


def rates(value: float) -> Evidence:
    return log_of_updates(learning_rate=[value] * 20, loss=0.1, grad_norm=0.3)


def imprecise(**settings: str) -> Evidence:
    first = {"ratio/token_max": 1.01, "ratio/token_min": 0.99, "kl_old/k1": 1e-5, "kl_old/k3": 1e-5}
    return changed(sound(**settings), first, lambda updates: updates["iteration"] == 0)


def odd(**rows: list[int]) -> Evidence:
    return replace(sound(), not_finite=rows)


def destroyed(noise: float) -> Evidence:
    return lost(sound(), [0.3, 0.01, 0.001], falling(0.5, 0.499) + noise * np.array([1, -1] * 6))


AT_ONE = {"ratio/token_max": 1.0, "ratio/token_min": 1.0}
NO_GRADIENT = {"grad_norm": 0.0}
PULLED = {"kl_ref/k3": 1e-4}
FROZEN = {"weights/step_norm": 0.0}
OTHER_WEIGHTS = {"gap/sampler_trainer": 0.5}
NARROW = {"epsilon": 1e-6, "epsilon_high": 1e-6}
# Cause -> the evidence that triggers it, and its nearest neighbour that does not.
PAIRS: dict[str, tuple[Made, Made]] = {
    "aliased_old_policy": (
        lambda: changed(changed(sound(), AT_ONE), OTHER_WEIGHTS),
        lambda: changed(changed(sound(passes=1), AT_ONE), OTHER_WEIGHTS),
    ),
    "resynchronised_old_policy": (lambda: changed(still(2e-6), OTHER_WEIGHTS), lambda: still(2e-6)),
    "recomputed_old_log_probs": (
        lambda: changed(sound(), AT_ONE, lambda u: u["iteration"] == 1),
        in_steps_of_equal_size,
    ),
    "constant_reward": (lambda: changed(equal(), NO_GRADIENT), lambda: changed(equal(unique=1 / 8), NO_GRADIENT)),
    "overscaled_advantages": (
        lambda: advantages(changed(still(), {"grad_norm": 1e-9}), 1e-8),
        lambda: advantages(sound(), 0.5),
    ),
    "weak_signal": (lambda: changed(still(), {"grad_norm": 1e-8}), lambda: changed(still(), {"grad_norm": 1e-2})),
    "frozen_parameters": (
        lambda: changed(still(), FROZEN),
        lambda: changed(changed(still(), FROZEN), {"learning_rate": 1e-12}),
    ),
    "low_precision_weights": (
        lambda: weights(still(), on_grid=1.0, moved=0.1),
        lambda: weights(sound(), on_grid=1.0, moved=0.9),
    ),
    "gradient_clipping": (lambda: still(max_grad_norm=1e-8), lambda: still(max_grad_norm=0.1)),
    "endless_warmup": (
        lambda: changed(still(warmup_steps=10**6), {"learning_rate": 3e-8}),
        lambda: still(warmup_steps=5),
    ),
    "tiny_learning_rate": (
        lambda: changed(still(learning_rate=1e-8), {"learning_rate": 1e-8}),
        lambda: changed(sound(learning_rate=1e-5), {"learning_rate": 1e-5}),
    ),
    "strong_kl": (lambda: changed(sound(beta=100.0), PULLED, later), lambda: changed(sound(beta=1.0), PULLED, later)),
    "tiny_epsilon": (lambda: clipped(**NARROW), lambda: clipped(0.4, epsilon=0.1, epsilon_high=0.1)),
    "dropout": (lambda: off(k1=0.001, k3=0.1, mean=1.1), lambda: off(k1=0.1, k3=0.1)),
    "visible_padding": (lambda: off(k1=0.1, k3=0.1), lambda: replace(off(k1=0.1, k3=0.1), settings={"staleness": 1})),
    "temperature_mismatch": (
        lambda: sharper(off(k1=0.1, k3=0.1), 1.5, entropy=1.5),
        lambda: sharper(off(k1=0.1, k3=0.1), 1.5, entropy=0.6),
    ),
    "mask_mismatch": (lambda: shifted(off(k1=0.2, k3=6.0, mean=7.0)), lambda: off(k1=0.2, k3=6.0, mean=7.0)),
    "precision_mismatch": (lambda: off(k1=1e-5, k3=1e-5), lambda: off(k1=1e-3, k3=1e-3)),
    "unclipped": (lambda: fell(kernel="ratio"), lambda: changed(fell(), {"clip/active": 0.01}, later)),
    "kl_overflow": (lambda: overflow(500.0, beta=0.1), lambda: changed(sound(beta=0.1), {"kl_ref/k3": 5.0})),
    "unbounded_cell": (cell, lambda: cell(delta=3.0)),
    "destroyed_policy": (
        lambda: lost(sound(), [0.3, 0.01, 0.01], falling(0.3, 0.01)),
        lambda: lost(sound(), [0.3, 0.1, 0.1], falling(0.3, 0.1)),
    ),
    "entropy_explosion": (lambda: entropy(2.0, 0.1), lambda: entropy(2.0, 0.5)),
    "entropy_collapse": (lambda: entropy(0.05), lambda: entropy(0.05, 0.9, wrong=0.0)),
    "length_blow_up": (lambda: truncated(0.1, 0.9), lambda: truncated(0.9, 0.9)),
    "group_of_one": (raw_advantages, lambda: raw_advantages(advantage_estimator="given")),
    "truncated_from_the_start": (lambda: truncated(0.7, 0.9), lambda: truncated(0.3, 0.9)),
    "zero_gradient": (lambda: no_gradient(sound()), lambda: no_gradient(equal())),
    "plateau": (flat, lambda: flat(0.6)),
    "kl_explosion": (lambda: drifted(beta=1e-3), lambda: drifted(0.5, beta=1e-3)),
    "gradient_explosion": (growing, lambda: growing(0.5)),
    "growing_sampler_gap": (gap, lambda: gap(0.3)),
    "rejection_hits_signal": (
        lambda: changed(sound(), {"rejection/tokens": 0.02, "rejection/signal": 0.3, "rejection/unlikely": 0.6}),
        lambda: changed(sound(), {"rejection/tokens": 0.2, "rejection/signal": 0.3, "rejection/unlikely": 0.3}),
    ),
    "not_finite": (lambda: odd(loss=[3, 4]), lambda: odd(**{"length/wrong_mean": [3, 4]})),
    "starving_filter": (lambda: filtered(3), lambda: filtered(4)),
    "starving_variance": (lambda: equal(wrong=0.9, first=0.5), lambda: equal(wrong=0.1, first=0.5)),
    "padding_in_clip_metric": (
        lambda: changed(sound(), {"clip/active": 296 / 320 * sound().updates["clip/active"]}),
        sound,
    ),
    **LOG_PAIRS,
}


def test_every_cause_has_a_pair_and_is_named_once() -> None:
    assert sorted(CAUSES) == sorted(PAIRS)


@pytest.mark.parametrize("cause", PAIRS)
def test_rule_names_its_cause_first_and_is_silent_about_the_nearest_neighbour(cause: str) -> None:
    first, *_ = examine(PAIRS[cause][0]()).findings
    assert first.cause == cause
    assert any(character.isdigit() for text in first.evidence for character in text), "evidence has numbers"
    assert cause not in names(PAIRS[cause][1]())


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_nothing_is_named_in_a_sound_run(passes: int) -> None:
    assert names(sound(passes=passes)) == []


@pytest.mark.parametrize("table", ["updates", "rollouts", "evaluations", "samples"])
def test_a_rule_without_its_numbers_is_silent(table: str) -> None:
    run = sound()
    assert names(replace(run, **{table: getattr(run, table).iloc[:0, :0]}, weights=None)) == []


STARVED_LOG = {"zero_variance/share": 0.95, "reward/max": 1.0, "reward/min": 0.0}
# Cause -> its sides: the evidence, what is then said or advised, and what would be untrue or the wrong way round.
SIDES: list[tuple[str, Evidence, str, str]] = [
    ("starving_variance", starving(0.02, 0.93, 0.03), "easier prompts", "harder"),
    ("starving_variance", starving(0.93, 0.02, 0.97), "harder prompts", "easier"),
    ("starving_variance", starving(0.40, 0.55, 0.45), "always right", "harder"),
    ("starving_variance", log(**STARVED_LOG, **{"reward/mean": 0.02}), "easier prompts", "harder"),
    ("starving_variance", log(**STARVED_LOG, **{"reward/mean": 0.98}), "harder prompts", "easier"),
    ("starving_variance", log(**{"zero_variance/share": 0.95, "reward/mean": 0.3}), "easier ones where", "these are"),
    ("constant_reward", equal(0.0, 1.0), "easier", "harder"),
    ("constant_reward", equal(1.0, 0.0), "harder", "easier"),
    ("constant_reward", equal(0.5, 0.5), "sometimes right and sometimes wrong", "harder"),
    ("entropy_explosion", entropy(2.0, entropy_coef=1.0), "Lower entropy_coef", "learning rate"),
    ("entropy_explosion", entropy(2.0, epsilon_high=0.28), "down to epsilon (0.2)", "no entropy bonus"),
    ("entropy_explosion", entropy(2.0), "smaller learning rate", "Lower entropy_coef"),
    ("entropy_collapse", entropy(0.2, entropy_coef=-0.3), "entropy_coef to 0 or more", "epsilon_high"),
    ("entropy_collapse", entropy(0.05), "epsilon_high", "raise entropy_coef"),
    ("entropy_collapse", entropy(0.05, entropy_coef=0.01), "raise entropy_coef", "add an entropy bonus"),
    ("entropy_collapse", entropy(0.05, epsilon_high=math.inf), "entropy bonus", "epsilon_high"),
    (
        "entropy_collapse",
        log(**{"entropy/behaviour": falling(0.6, 0.05), "reward/mean": falling(0.2, 0.8)}),
        "while the reward rose",
        "not because",
    ),
    ("unclipped", fell(kernel="ratio"), "kernel=clipped", "that acts"),
    ("unclipped", fell(epsilon_high=math.inf), "clip range that acts", "kernel=clipped"),
    ("kl_overflow", overflow(0.01, beta=0.1), "a few tokens", "whole policy"),
    ("kl_overflow", overflow(50.0, beta=0.1), "the whole policy", "smaller beta"),
    ("kl_explosion", drifted(beta=1e-3), "larger beta", "beta=0)"),
    ("kl_explosion", drifted(beta=0.0), "(beta=0)", "larger beta"),
    ("gradient_explosion", growing(max_grad_norm=1.0), "clipped already", "clip the gradient"),
    ("gradient_explosion", growing(max_grad_norm=1e9), "clip the gradient (max_grad_norm)", "clipped already"),
    ("unbounded_cell", cell(), "fewer iterations or fresher batches", "kernel=clipped"),
    ("unbounded_cell", cell(passes=1, old_log_probs="sampler"), "fresher batches", "fewer iterations"),
    ("unbounded_cell", cell(kernel="ratio"), "kernel=clipped", "~"),
    ("length_blow_up", truncated(0.1, 0.9, **{"reward/mean": falling(0.3, 0.5)}), "length pays", "learning rate"),
    ("length_blow_up", truncated(0.1, 0.9, **{"reward/mean": falling(0.3, 0.2)}), "ends its answers", "mask"),
    ("length_blow_up", longer(falling(0.5, 0.3)), "length does not pay", "length pays"),
    ("destroyed_policy", lost(sound(), [0.3, 0.01, 0.001], falling(0.3, 0.01)), "or a KL", "Check the reward"),
    ("destroyed_policy", destroyed(0.002), "what is rewarded is not what is evaluated", "or a KL"),
    ("growing_sampler_gap", gap(), "truncated importance weights", "already"),
    ("growing_sampler_gap", gap(old_log_probs="sampler"), "corrects for the gap already", "sampler_correction"),
    ("not_finite", odd(loss=[3, 4, 5]), "from there on", "Nothing where"),
    ("not_finite", odd(grad_norm=[3]), "the run went on", "mean nothing"),
    ("group_of_one", raw_advantages(num_generations=1), "a group of one completion", "Nothing is subtracted"),
    ("group_of_one", raw_advantages(num_generations=8), "Nothing is subtracted", "Sample several"),
    ("truncated_from_the_start", truncated(1.0, 1.0), "end token is known (", "shorten"),
    ("truncated_from_the_start", truncated(0.7, 0.7), "shorten", "eos_token_id"),
    ("zero_gradient", no_gradient(sound(), 1.0), "every completion is cut off", "LoRA"),
    ("zero_gradient", no_gradient(sound()), "LoRA", "Raise max_completion_length"),
    ("plateau", flat(moves=True), "smaller learning rate", "larger learning rate"),
    ("plateau", flat(), "larger learning rate", "the policy does move"),
    ("frozen_parameters", changed(still(), FROZEN), "weights do not move", "Some tensors"),
    ("frozen_parameters", weights(still(2e-2), still=("lm_head.weight",)), "lm_head.weight", "~"),
    ("low_precision_weights", weights(still(), on_grid=1.0, moved=0.1), "round to nothing", "~"),
    ("low_precision_weights", weights(still(), on_grid=1.0, moved=math.nan), "round to nothing", "–"),
    ("strong_kl", changed(still(beta=100.0), PULLED, later), "never moves far enough", "draws"),
    ("tiny_epsilon", clipped(epsilon=1e-6, epsilon_high=0.3), "Widen epsilon:", "epsilon_high"),
    ("tiny_epsilon", clipped(**NARROW), "Widen epsilon and epsilon_high:", "3e-4"),
    ("precision_mismatch", imprecise(sampler_dtype="bfloat16"), "in different precision", "same kernels"),
    ("precision_mismatch", imprecise(sampler_dtype="float32"), "same kernels", "in different precision"),
    ("tiny_learning_rate", rates(1e-9), "Raise", "schedule"),
    ("tiny_learning_rate", rates(0.0), "schedule", "Raise"),
    *LOG_SIDES,
]


@pytest.mark.parametrize(("cause", "run", "said", "untrue"), SIDES, ids=[f"{side[0]}: {side[2]}" for side in SIDES])
def test_each_side_says_its_own_and_not_the_other(cause: str, run: Evidence, said: str, untrue: str) -> None:
    finding = find(run, cause)
    whole = " ".join((finding.says, *finding.evidence, finding.remedy))
    assert said in whole
    assert untrue not in whole
    assert "nan" not in whole.split()
    assert finding.remedy in " ".join(page.text(examine(run)).split())


def test_every_sentence_of_the_table_is_said_and_every_rule_has_one() -> None:
    made = [*((cause, run) for cause, run, *_ in SIDES), *((cause, pair[0]()) for cause, pair in PAIRS.items())]
    said = {(cause, finding.side) for cause, run in made if (finding := CAUSES[cause].find(run))}
    causes = CAUSES | {cause.name: cause for cause in page.NORMAL.causes}
    written = {(name, key.partition(" if ")[2]) for name in causes for key in causes[name].sentences if " if " in key}
    assert written <= said
    assert causes.keys() == RULES.keys()


# Runs in which a rule is silent for a reason of its own, or less sure.
@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (starving(0.93, 0.02, falling(0.5, 0.98)), "starving_variance"),  # all right, and it still learns
        (longer(falling(0.3, 0.5)), "length_blow_up"),  # growth that pays
        (cell(kernel="cispo"), "unbounded_cell"),  # the gradient does not grow with a token's ratio
        (cell(importance_sampling_level="sequence"), "unbounded_cell"),
        (replace(rates(1e-9), updates=rates(1e-9).updates[:5]), "tiny_learning_rate"),  # may be a warm-up
        (changed(rates(0.0), {"clip/active": 0.002}), "tiny_learning_rate"),  # a rate that was rounded to 0
        (lost(fell(kernel="ratio"), [0.3, 0.4, 0.5], falling(0.3, 0.5)), "unclipped"),
        (lost(fell(kernel="ratio"), [0.3, 0.3, 0.295], 0.3), "unclipped"),  # within the error of 2000 items
        (fell(kernel="ratio", delta=2.0), "unclipped"),  # an outer cap acts
        (weights(sound(), still=("lm_head.weight",)), "frozen_parameters"),
    ],
)
def test_a_rule_is_silent_where_something_else_explains_the_numbers(run: Evidence, cause: str) -> None:
    assert cause not in names(run)


@pytest.mark.parametrize("run", CONSISTENT)
def test_a_log_whose_numbers_agree_is_not_said_to_contradict_itself(run: Evidence) -> None:
    assert "metrics_contradict" not in names(run)


def test_names_that_are_read_by_likeness_promise_nothing() -> None:
    assert list(find_contradictions(cut(0.97, 400.0)))
    assert not list(find_contradictions(replace(cut(0.97, 400.0), framework="another framework")))


def test_a_truncation_that_its_lengths_deny_is_not_called_one() -> None:
    assert "truncated_from_the_start" not in names(LOG_PAIRS["metrics_contradict"][0]())
    assert names(LOG_PAIRS["metrics_contradict"][1]())[0] == "truncated_from_the_start"


def test_a_gap_has_one_shape() -> None:
    for cause in ("wide_sampler_gap", "sampler_gap_jump", "late_weight_sync"):
        assert names(LOG_PAIRS[cause][0]()) == [cause]
    assert names(gap_of_log(noisy(0.25), staleness=4)) == []
    assert names(gap_of_log(noisy(0.25), "gap/sampler_trainer")) == [], "a single token"


def test_what_cannot_be_told_apart_is_named_and_less_sure() -> None:
    assert find(PAIRS["aliased_old_policy"][0](), "aliased_old_policy").instead == ("resynchronised_old_policy",)
    bare = replace(off(k1=0.1, k3=0.1), samples=sound().samples.iloc[:0])
    padding = find(bare, "visible_padding")
    assert padding.confidence == "possible"
    assert "temperature_mismatch" in padding.instead
    assert find(odd(grad_norm=[3]), "not_finite").confidence == "possible"
    assert find(odd(loss=[3, 4, 5]), "not_finite").confidence == "likely"
    unweighted = find(replace(overflow(0.01), settings={}), "kl_overflow")
    assert unweighted.confidence == "likely"
    assert "beta=" not in " ".join(unweighted.evidence)


def test_of_a_log_a_vanishing_spread_of_rewards_is_named_unless_the_reward_rose() -> None:
    spread = falling(1.0, 0.0) ** 2
    assert "starving_variance" in names(log("trl", **{"reward/mean": 0.3, "reward/std": spread}))
    assert names(log("trl", **{"reward/mean": falling(0.3, 0.9), "reward/std": spread})) == []


def test_gradient_below_epsilon_is_seen_without_the_weights() -> None:
    """While a run goes on: the whole norm bounds every weight's gradient."""
    assert "weak_signal" in names(replace(changed(still(), {"grad_norm": 1e-10}), weights=None))


def test_a_log_gets_its_advice_in_the_names_of_its_framework() -> None:
    run = log(**STARVED_LOG, **{"reward/mean": 0.02})
    assert "actor_rollout_ref.rollout.n" in find(run, "starving_variance").remedy
    assert "num_generations" in find(replace(run, framework="trl"), "starving_variance").remedy


def test_a_kept_number_stands_for_updates_that_are_not_kept() -> None:
    bare = replace(fell(kernel="ratio"), updates=pd.DataFrame())
    assert "unclipped" not in names(bare)
    assert "92.0" in find(replace(bare, numbers={"ratio_max": 92.0}), "unclipped").evidence[-1]
    assert "unclipped" not in names(replace(bare, numbers={"ratio_max": 1.1}))


# --- what is normal, and what is said of a fall ----------------------------------------------------------------------

KL = np.array([0.001, 0.01, 0.05, 0.2])


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (changed(sound(passes=1), AT_ONE), {"no_reuse", "zero_first_loss"}),
        (sound(passes=2), {"zero_first_loss"}),
        (changed(sound(), {"loss": -0.02}), set()),
        (equal(), set()),  # without any advantage a loss of 0 is not normal
        (log_of_updates(**{"kl_ref/k3": KL, "loss": (0.04 * KL).round(4), "grad_norm": 0.3}), {"loss_is_beta_kl"}),
        (log_of_updates(**{"kl_ref/k3": KL, "loss": [0.03, 0.0004, 0.01, 0.004], "grad_norm": 0.3}), set()),
        (log_of_updates(loss=[-0.02, -0.1, 0.03], grad_norm=0.3), {"negative_loss"}),
        (log_of_updates(loss=[0.0, 0.0, 0.0], grad_norm=0.3), {"zero_first_loss"}),
        (log_of_updates(loss=[0.0, 0.0, 0.0], grad_norm=0.0), set()),
    ],
)
def test_what_only_looks_odd_is_said_to_be_normal(run: Evidence, expected: set[str]) -> None:
    assert set(notes(run)) == expected


NO_KL = replace(made_log(**{"kl_ref/k3": None}), not_finite={"kl_ref/k3": list(range(30))})
WEIGHTS = {"gap/mean": 0.01, "gap/weight_min": 0.2}


@pytest.mark.parametrize(
    ("run", "note", "neighbour"),
    [
        (NO_KL, "no_kl_term", replace(NO_KL, not_finite={**NO_KL.not_finite, "loss": [3]})),
        (made_log(grad_norm=1.7, settings={"max_grad_norm": 1.0}), "norm_before_clipping", made_log(grad_norm=1.7)),
        (made_log(**{"zero_variance/share": 0.59}), "equal_groups", made_log(**{"zero_variance/share": 0.2})),
        (made_log(**WEIGHTS), "sequence_weights", made_log(**WEIGHTS | {"length/mean": 100.0})),
    ],
)
def test_what_only_looks_odd_in_a_log_is_a_note_and_no_finding(run: Evidence, note: str, neighbour: Evidence) -> None:
    assert note in notes(run)
    assert names(run) == []
    assert note not in notes(neighbour)


def test_a_kl_that_nobody_computes_is_neither_missing_nor_not_finite_and_one_that_breaks_is() -> None:
    assert not [sentence for sentence in examine(NO_KL).unknown if "kl_ref" in sentence]
    of_one = replace(made_log(**{"reward/std": None}), not_finite={"reward/std": list(range(30))})
    assert names(of_one) == []
    later_on = replace(made_log(), not_finite={"kl_ref/k3": [20, 21]})
    assert names(later_on) == ["not_finite"]


@pytest.mark.parametrize("damage", ["none", "a metric", "accuracy and reward", "not finite"])
def test_a_fall_is_always_said_and_never_that_nothing_is_wrong(damage: str) -> None:
    run = changed(fell(), {"clip/active": 0.01}, later)  # it clips: no rule explains the fall
    if damage == "a metric":
        run = replace(sound(), updates=sound().updates.drop(columns="clip/active"))
    elif damage == "accuracy and reward":
        run = replace(sound(), rollouts=sound().rollouts.drop(columns="reward/mean"), evaluations=run.evaluations[:0])
    elif damage == "not finite":
        run = changed(sound(), {"grad_norm": math.inf}, lambda updates: updates["rollout_step"] == 3)
    text = " ".join(page.text(examine(run)).split())
    assert "no rule fits" not in text
    assert {
        "none": "fell from 0.298 at the start to 0.206 at the end. No cause found: the fall is real",
        "a metric": "clip/active is missing",
        "accuracy and reward": "eval/accuracy_expected and reward/mean are missing",
        "not finite": "grad_norm is not finite in 4 records",
    }[damage] in text
    assert "no rule fits" in page.text(examine(sound()))


def test_parts_of_the_reward_are_read_under_the_names_of_their_functions() -> None:
    row = {"loss": 0.1, "reward": 0.5, "rewards/answer/mean": 0.5, "rewards/answer/std": 0.5, "rewards/form": 0.2}
    run = to_evidence(read_rows("run", [row | {"rewards/margins": 0.3}] * 3))
    assert {name: part.tolist() for name, (part, _) in run.reward_parts.items()} == {
        "rewards/answer/mean": [0.5] * 3,
        "rewards/form": [0.2] * 3,
    }


def test_two_rewards_are_no_collapse() -> None:
    run = made_log(**{"reward/mean": np.where(N < 15, 13.0, 6.0)})
    assert examine(run).lost == "collapsed"
    two = replace(run, rollouts=run.rollouts.iloc[[0, 20]])
    assert not examine(two).lost
    assert not examine(two).fall


def test_of_a_reward_alone_a_fall_beyond_its_noise_is_said() -> None:
    run = replace(sound(), evaluations=sound().evaluations[:0])
    noise = 0.01 * np.array([1, -1] * 6)
    fall = examine(changed(run, {"reward/mean": falling(0.5, 0.45) + noise})).fall
    assert fall
    assert "0.510 (first tenth" in fall
    assert examine(changed(run, {"reward/mean": 0.3 + noise})).fall is None
    assert examine(changed(run, {"reward/mean": 0.5})).fall is None


def test_json_has_advice_and_candidates() -> None:
    (first, *_) = page.record(examine(PAIRS["aliased_old_policy"][0]()))["causes"]
    assert first["instead"] == ("resynchronised_old_policy",)
    assert first["try"]
