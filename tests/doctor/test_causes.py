"""Each rule of the doctor: the evidence that triggers it, and its nearest neighbour that does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_evidence import STEPS, changed, falling, later, sound

from grpolab.doctor import SYMPTOMS, examine, page
from grpolab.doctor.evidence import Evidence

Made = Callable[[], Evidence]


def names(run: Evidence) -> list[str]:
    return [finding.cause for finding in examine(run).findings]


def notes(run: Evidence) -> list[str]:
    return [note.cause for note in examine(run).notes]


def still(reach: float = 1e-4, **settings: object) -> Evidence:
    """A sound run whose ratio hardly moves."""
    run = changed(sound(**settings), "updates", {"ratio/token_max": 1 + reach, "ratio/token_min": 1 - reach}, later)
    return changed(run, "updates", {"clip/active": 0.0, "clip/active_nz": 0.0, "cf/token_0.2": 0.0}, later)


def at_one(run: Evidence) -> Evidence:
    return changed(run, "updates", {"ratio/token_max": 1.0, "ratio/token_min": 1.0})


def norms(run: Evidence, value: float) -> Evidence:
    return changed(run, "updates", {"grad_norm": value})


def off(k1: float, k3: float, mean: float = 1.0) -> Evidence:
    """Ratios that are not 1 on the first pass."""
    first = {"ratio/token_max": 2.0, "ratio/token_min": 0.5, "kl_old/k1": k1, "kl_old/k3": k3, "ratio/token_mean": mean}
    run = changed(sound(), "updates", first, lambda updates: updates["iteration"] == 0)
    return changed(run, "rollouts", {"gap/first_pass": 0.7})


def sharper(run: Evidence, factor: float, entropy: float) -> Evidence:
    """Old logits that are a multiple of the new ones; the trainer's entropy."""
    new = run.samples["old_log_prob"]
    old = -np.logaddexp(0, -factor * (new - np.log1p(-np.exp(new))))
    run = changed(run, "rollouts", {"entropy/behaviour": entropy})
    return replace(run, samples=run.samples.assign(old_log_prob=old, ratio=np.exp(new - old)))


def shifted(run: Evidence) -> Evidence:
    """Old log-probs that stand one token too late."""
    rows = run.samples.groupby(["rollout_step", "prompt_index", "sample"])["old_log_prob"]
    old = rows.shift(1).fillna(0.0)
    return replace(run, samples=run.samples.assign(old_log_prob=old, ratio=np.exp(run.samples["old_log_prob"] - old)))


def advantages(run: Evidence, factor: float) -> Evidence:
    return replace(run, samples=run.samples.assign(advantage=factor * run.samples["advantage"]))


def weights(run: Evidence, **changes: Any) -> Evidence:
    assert run.weights
    return replace(run, weights=replace(run.weights, **changes))


def third_pass_only() -> Evidence:
    return changed(sound(), "updates", {"ratio/token_max": 1.0, "ratio/token_min": 1.0}, lambda u: u["iteration"] == 1)


def in_steps_of_equal_size() -> Evidence:
    run = sound()
    reach = 4e-5 * run.updates["iteration"]
    return changed(run, "updates", {"ratio/token_max": 1 + reach, "ratio/token_min": 1 - reach})


def equal(run: Evidence, unique: float = 0.5, first: float = 1.0) -> Evidence:
    share = np.array([first, *[1.0] * 11])
    return changed(
        run, "rollouts", {"zero_variance/share": share, "zero_variance/all_wrong": 0.0, "completions/unique": unique}
    )


def lost(run: Evidence, score: list[float], reward: tuple[float, float]) -> Evidence:
    run = changed(run, "rollouts", {"reward/mean": falling(*reward)})
    return replace(run, evaluations=run.evaluations.assign(**{"eval/accuracy_expected": score}))


def entropy(last: float, reward: tuple[float, float], wrong: float = 0.5, **settings: float) -> Evidence:
    course = {
        "entropy/behaviour": falling(0.6, last),
        "reward/mean": falling(*reward),
        "zero_variance/all_wrong": wrong,
    }
    return changed(sound(**settings), "rollouts", course)


def cell(ratio: float, spike: float, **settings: float) -> Evidence:
    run = changed(sound(staleness=4, **settings), "updates", {"ratio/token_max_neg": ratio}, later)
    return changed(run, "updates", {"grad_norm": spike}, lambda u: (u["rollout_step"] == 5) & (u["iteration"] == 1))


def kl(size: float, beta: float) -> Evidence:
    return changed(sound(beta=beta), "updates", {"kl_ref/k3": size}, later)


def clipped(share: float, usual: float, **settings: float) -> Evidence:
    return changed(sound(**settings), "updates", {"clip/active_nz": share, "cf/token_0.2": usual}, later)


def truncated(start: float, end: float) -> Evidence:
    return changed(sound(), "rollouts", {"truncation/share": falling(start, end)})


def miscounted(factor: float) -> Evidence:
    run = sound()
    return changed(run, "updates", {"clip/active": factor * run.updates["clip/active"]})


def fell(last: float = 0.206, **settings: object) -> Evidence:
    """A run whose accuracy ends below its start, and in which nothing is clipped."""
    run = changed(sound(**{"evaluation.items": 2000, **settings}), "updates", {"clip/active": 0.0})
    return lost(run, [0.298, 0.26, last], (0.3, 0.2))


def raw_advantages(run: Evidence) -> Evidence:
    """Every advantage is the reward of its completion."""
    return replace(run, samples=run.samples.assign(advantage=run.samples["reward"]))


def spread(run: Evidence, std: float) -> Evidence:
    return changed(run, "rollouts", {"reward/std": std})


def long_run(first: float, last: float) -> Evidence:
    """60 rows of a log with such a reward, in groups that differ by .5."""
    rows = pd.DataFrame({"rollout_step": range(60), "reward/mean": falling(first, last, 60), "reward/std": 0.5})
    return Evidence(run="log", state="a log", rollouts=rows, framework="trl")


def drifted(end: float, beta: float) -> Evidence:
    """A run whose KL to the reference rises to `end` in its first half."""
    run = sound(beta=beta)
    steps = run.updates["rollout_step"]
    return replace(run, updates=run.updates.assign(**{"kl_ref/k3": end * (steps / 6).clip(upper=1)}))


def growing(factor: float, reward: tuple[float, float]) -> Evidence:
    """A gradient norm that grows by a factor over the run."""
    run = changed(sound(), "rollouts", {"reward/mean": falling(*reward)})
    growth = factor ** (run.updates["rollout_step"] / (STEPS - 1))
    return replace(run, updates=run.updates.assign(grad_norm=growth))


def gap(first: float, last: float) -> Evidence:
    return changed(sound(), "rollouts", {"gap/sampler_trainer": falling(first, last)})


# Cause -> the evidence that triggers it, and its nearest neighbour that does not.
PAIRS: dict[str, tuple[Made, Made]] = {
    "aliased_old_policy": (
        lambda: changed(at_one(sound()), "rollouts", {"gap/sampler_trainer": 0.5}),
        lambda: changed(at_one(sound(passes=1)), "rollouts", {"gap/sampler_trainer": 0.5}),
    ),
    "resynchronised_old_policy": (
        lambda: changed(still(2e-6), "rollouts", {"gap/sampler_trainer": 0.5}),
        lambda: still(2e-6),
    ),
    "recomputed_old_log_probs": (third_pass_only, in_steps_of_equal_size),
    "constant_reward": (lambda: norms(equal(sound()), 0.0), lambda: norms(equal(sound(), unique=1 / 8), 0.0)),
    "overscaled_advantages": (lambda: advantages(norms(still(), 1e-9), 1e-8), lambda: advantages(sound(), 0.5)),
    "weak_signal": (lambda: norms(still(), 1e-8), lambda: norms(still(), 1e-2)),
    "frozen_parameters": (
        lambda: changed(still(), "rollouts", {"weights/step_norm": 0.0}),
        lambda: changed(changed(still(), "rollouts", {"weights/step_norm": 0.0}), "updates", {"learning_rate": 1e-12}),
    ),
    "low_precision_weights": (
        lambda: weights(still(), on_grid=1.0, moved=0.1),
        lambda: weights(sound(), on_grid=1.0, moved=0.9),
    ),
    "gradient_clipping": (lambda: still(max_grad_norm=1e-8), lambda: still(max_grad_norm=0.1)),
    "endless_warmup": (
        lambda: changed(still(warmup_steps=10**6), "updates", {"learning_rate": 3e-8}),
        lambda: still(warmup_steps=5),
    ),
    "tiny_learning_rate": (
        lambda: changed(still(learning_rate=1e-8), "updates", {"learning_rate": 1e-8}),
        lambda: changed(sound(learning_rate=1e-5), "updates", {"learning_rate": 1e-5}),
    ),
    "strong_kl": (lambda: kl(1e-4, beta=100.0), lambda: kl(1e-4, beta=1.0)),
    "tiny_epsilon": (
        lambda: clipped(0.5, 0.02, epsilon=1e-6, epsilon_high=1e-6),
        lambda: clipped(0.5, 0.4, epsilon=0.1, epsilon_high=0.1),
    ),
    "dropout": (lambda: off(k1=0.001, k3=0.1, mean=1.1), lambda: off(k1=0.1, k3=0.1)),
    "visible_padding": (lambda: off(k1=0.1, k3=0.1), lambda: replace(off(k1=0.1, k3=0.1), settings={"staleness": 1})),
    "temperature_mismatch": (
        lambda: sharper(off(k1=0.1, k3=0.1), 1.5, entropy=1.5),
        lambda: sharper(off(k1=0.1, k3=0.1), 1.5, entropy=0.6),
    ),
    "mask_mismatch": (lambda: shifted(off(k1=0.2, k3=6.0, mean=7.0)), lambda: off(k1=0.2, k3=6.0, mean=7.0)),
    "precision_mismatch": (lambda: off(k1=1e-5, k3=1e-5), lambda: off(k1=1e-3, k3=1e-3)),
    "unclipped": (lambda: fell(kernel="ratio"), lambda: changed(fell(), "updates", {"clip/active": 0.01}, later)),
    "kl_overflow": (lambda: kl(500.0, beta=0.1), lambda: kl(5.0, beta=0.1)),
    "unbounded_cell": (lambda: cell(8.0, 20.0), lambda: cell(8.0, 20.0, delta=3.0)),
    "destroyed_policy": (
        lambda: lost(sound(), [0.3, 0.01, 0.01], (0.3, 0.01)),
        lambda: lost(sound(), [0.3, 0.1, 0.1], (0.3, 0.1)),
    ),
    "entropy_explosion": (lambda: entropy(2.0, (0.3, 0.1)), lambda: entropy(2.0, (0.3, 0.5))),
    "entropy_collapse": (
        lambda: entropy(0.05, (0.3, 0.2)),
        lambda: entropy(0.05, (0.3, 0.9), wrong=0.0),
    ),
    "length_blow_up": (lambda: truncated(0.1, 0.9), lambda: truncated(0.9, 0.9)),
    "group_of_one": (lambda: raw_advantages(sound()), lambda: raw_advantages(sound(advantage_estimator="given"))),
    "truncated_from_the_start": (lambda: truncated(0.7, 0.9), lambda: truncated(0.3, 0.9)),
    "zero_gradient": (
        lambda: norms(spread(sound(), 0.5), 0.0),
        lambda: norms(spread(equal(sound()), 0.5), 0.0),
    ),
    "plateau": (lambda: long_run(0.4, 0.41), lambda: long_run(0.4, 0.6)),
    "kl_explosion": (lambda: drifted(3.0, beta=1e-3), lambda: drifted(0.5, beta=1e-3)),
    "gradient_explosion": (lambda: growing(40.0, (0.3, 0.3)), lambda: growing(40.0, (0.3, 0.5))),
    "growing_sampler_gap": (lambda: gap(0.005, 0.5), lambda: gap(0.3, 0.5)),
    "not_finite": (
        lambda: replace(sound(), not_finite={"loss": [3, 4]}),
        lambda: replace(sound(), not_finite={"length/wrong_mean": [3, 4]}),
    ),
    "starving_variance": (
        lambda: changed(equal(sound(), first=0.5), "rollouts", {"zero_variance/all_wrong": 0.9}),
        lambda: changed(equal(sound(), first=0.5), "rollouts", {"zero_variance/all_wrong": 0.1}),
    ),
    "padding_in_clip_metric": (lambda: miscounted(296 / 320), lambda: miscounted(1.0)),
}


def test_every_cause_has_a_pair_and_is_named_once() -> None:
    assert sorted(cause.name for symptom in SYMPTOMS for cause in symptom.causes) == sorted(PAIRS)


@pytest.mark.parametrize("cause", PAIRS)
def test_rule_finds_its_cause_and_names_it_first(cause: str) -> None:
    first, *_ = examine(PAIRS[cause][0]()).findings
    assert first.cause == cause
    assert any(character.isdigit() for text in first.evidence for character in text), "evidence has numbers"


@pytest.mark.parametrize("cause", PAIRS)
def test_rule_is_silent_about_the_nearest_neighbour(cause: str) -> None:
    assert cause not in names(PAIRS[cause][1]())


def test_a_plateau_names_the_learning_rate_that_was_set_where_the_log_has_none() -> None:
    run = replace(long_run(0.4, 0.41), settings={"learning_rate": 0.003})
    assert examine(run).findings[0].evidence[1] == "largest learning rate 0.003"
    assert len(examine(long_run(0.4, 0.41)).findings[0].evidence) == 1


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_nothing_is_named_in_a_sound_run(passes: int) -> None:
    assert names(sound(passes=passes)) == []


def test_one_update_per_batch_is_normal_and_said() -> None:
    assert "no_reuse" in notes(at_one(sound(passes=1)))
    assert "no_reuse" not in notes(sound(passes=2))


def test_zero_loss_of_a_fresh_batch_is_normal_and_said() -> None:
    assert "zero_first_loss" in notes(sound())
    assert "zero_first_loss" not in notes(changed(sound(), "updates", {"loss": -0.02}))
    assert "zero_first_loss" not in notes(equal(sound())), "without any advantage it is not normal"


def log_of(**metrics: Any) -> Evidence:
    """Updates of a log that does not tell a batch's first."""
    return Evidence(run="log", state="a log", updates=pd.DataFrame(metrics).assign(rollout_step=0), framework="trl")


def test_a_loss_that_is_beta_times_kl_is_normal_and_said() -> None:
    kl_ref = np.array([0.001, 0.01, 0.05, 0.2])
    rows = {"kl_ref/k3": kl_ref, "loss": (0.04 * kl_ref).round(4), "grad_norm": 0.3}
    assert notes(log_of(**rows)) == ["loss_is_beta_kl"]
    assert "0.040" in examine(log_of(**rows)).notes[0].evidence[0]
    assert notes(log_of(**rows | {"loss": np.array([0.03, 0.0004, 0.01, 0.004])})) == []


def test_a_negative_or_vanishing_loss_of_a_log_is_normal_and_said() -> None:
    assert notes(log_of(loss=[-0.02, -0.1, 0.03], grad_norm=0.3)) == ["negative_loss"]
    assert notes(log_of(loss=[0.0, 0.0, 0.0], grad_norm=0.3)) == ["zero_first_loss"]
    assert notes(log_of(loss=[0.0, 0.0, 0.0], grad_norm=0.0)) == []


def test_length_that_doubles_while_the_reward_falls_is_named_and_growth_that_pays_is_not() -> None:
    def grown(reward: tuple[float, float]) -> Evidence:
        return changed(sound(), "rollouts", {"length/mean": falling(100, 400), "reward/mean": falling(*reward)})

    assert names(grown((0.5, 0.3))) == ["length_blow_up"]
    assert names(grown((0.3, 0.5))) == []


def test_one_skipped_gradient_is_less_sure_than_a_loss_that_stays_nan() -> None:
    (finding,) = examine(replace(sound(), not_finite={"grad_norm": [3]})).findings
    assert (finding.cause, finding.confidence) == ("not_finite", "possible")
    (finding,) = examine(replace(sound(), not_finite={"loss": [3, 4, 5]})).findings
    assert (finding.confidence, finding.evidence) == ("likely", ("loss is not finite in 3 rows, first at step 3",))
    (finding,) = examine(replace(sound(), state="diverged after 3 rollout steps: loss nan")).findings
    assert finding.cause == "not_finite"


def test_of_a_log_a_tiny_learning_rate_is_told_from_the_rate_alone() -> None:
    tiny = log_of(learning_rate=[1e-9] * 20, loss=0.1, grad_norm=0.3)
    assert names(tiny) == ["tiny_learning_rate"]
    assert names(replace(tiny, updates=tiny.updates[:5])) == [], "five rows may be a warm-up"
    moves = changed(tiny, "updates", {"clip/active": 0.002, "learning_rate": 0.0})
    assert names(moves) == [], "a rate that was rounded to 0"


def test_of_a_log_a_vanishing_spread_of_rewards_is_named_unless_the_reward_rose() -> None:
    def fading(*reward: float) -> Evidence:
        rows = pd.DataFrame({"rollout_step": range(20), "reward/mean": falling(*reward, 20)})
        rows["reward/std"] = falling(1.0, 0.0, 20) ** 2
        return Evidence(run="log", state="a log", rollouts=rows, framework="trl")

    assert "starving_variance" in names(fading(0.3, 0.3))
    assert names(fading(0.3, 0.9)) == []


@pytest.mark.parametrize("table", ["updates", "rollouts", "evaluations", "samples"])
def test_a_rule_without_its_numbers_is_silent(table: str) -> None:
    run = sound()
    empty = replace(run, **{table: getattr(run, table).iloc[:0, :0]}, weights=None)
    assert names(empty) == []


def test_what_cannot_be_told_apart_is_named_and_less_sure() -> None:
    finding = examine(PAIRS["aliased_old_policy"][0]()).findings[0]
    assert finding.cause == "aliased_old_policy"
    assert finding.instead == ("resynchronised_old_policy",)
    bare = replace(off(k1=0.1, k3=0.1), samples=sound().samples.iloc[:0])
    (padding,) = (finding for finding in examine(bare).findings if finding.cause == "visible_padding")
    assert padding.confidence == "possible"
    assert "temperature_mismatch" in padding.instead


def test_some_frozen_tensors_are_named() -> None:
    first, *_ = examine(weights(still(2e-2), still=("lm_head.weight",))).findings
    assert (first.cause, first.confidence) == ("frozen_parameters", "likely")
    assert "lm_head.weight" in first.evidence[0]
    assert "frozen_parameters" not in names(weights(sound(), still=("lm_head.weight",)))


def test_gradient_below_epsilon_is_seen_without_the_weights() -> None:
    """While a run goes on: the whole norm bounds every weight's gradient."""
    assert "weak_signal" in names(replace(norms(still(), 1e-10), weights=None))


def test_without_a_clip_a_fall_has_its_cause_and_a_rise_none() -> None:
    diagnosis = examine(fell(kernel="ratio"))
    assert diagnosis.fall == "eval/accuracy_expected fell from 0.298 at the start to 0.206 at the end"
    assert diagnosis.findings[0].evidence[:2] == ("kernel=ratio: it has no clip", diagnosis.fall)
    assert examine(fell(epsilon_high=math.inf)).findings[0].evidence[0] == "no token was clipped in any update"
    assert names(lost(fell(kernel="ratio"), [0.3, 0.4, 0.5], (0.3, 0.5))) == []
    assert names(lost(fell(kernel="ratio"), [0.3, 0.3, 0.295], (0.3, 0.3))) == [], "within the error of 2000 items"
    assert names(fell(kernel="ratio", delta=2.0)) == [], "an outer cap acts"


@pytest.mark.parametrize("damage", ["none", "a metric", "accuracy and reward", "not finite"])
def test_a_fall_is_always_said_and_never_that_nothing_is_wrong(damage: str) -> None:
    run = changed(fell(), "updates", {"clip/active": 0.01}, later)  # it clips: no rule explains the fall
    if damage == "a metric":
        run = replace(sound(), updates=sound().updates.drop(columns="clip/active"))
    elif damage == "accuracy and reward":
        run = replace(sound(), rollouts=sound().rollouts.drop(columns="reward/mean"), evaluations=run.evaluations[:0])
    elif damage == "not finite":
        run = changed(sound(), "updates", {"grad_norm": math.inf}, lambda updates: updates["rollout_step"] == 3)
    text = " ".join(page.text(examine(run)).split())
    assert "nothing in these numbers" not in text
    assert "none is known to be wrong" not in text
    assert {
        "none": "eval/accuracy_expected fell from 0.298 at the start to 0.206 at the end. No cause found:"
        " the fall is real",
        "a metric": "the clip fraction: clip/active is missing",
        "accuracy and reward": "whether accuracy or reward fell: eval/accuracy_expected and reward/mean are missing",
        "not finite": "spikes: grad_norm is not finite in 4 records",
    }[damage] in text
    assert "every number that the doctor knows is there" in page.text(examine(sound()))


def test_of_a_reward_alone_a_fall_beyond_its_noise_is_said() -> None:
    run = replace(sound(), evaluations=sound().evaluations[:0])
    noise = 0.01 * np.array([1, -1] * 6)
    falls = changed(run, "rollouts", {"reward/mean": falling(0.5, 0.45) + noise})
    assert examine(falls).fall == "reward/mean fell from 0.510 (first tenth of the run) to 0.440 (last tenth)"
    assert examine(changed(run, "rollouts", {"reward/mean": 0.3 + noise})).fall is None
    assert examine(changed(run, "rollouts", {"reward/mean": np.full(len(noise), 0.5)})).fall is None  # as it was


def test_json_has_advice_and_candidates() -> None:
    (first, *_) = page.record(examine(PAIRS["aliased_old_policy"][0]()))["causes"]
    assert first["instead"] == ["resynchronised_old_policy"]
    assert first["try"]
