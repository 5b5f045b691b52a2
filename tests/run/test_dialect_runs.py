"""Every dialect trains, and logs its framework's metrics under its framework's names, each with its sentence."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import records, run_folder, tiny_settings

from grpolab.framework_metrics import FRAMEWORK_METRICS
from grpolab.frameworks.framework import clip_conventions, compute_metrics
from grpolab.frameworks.objectives import make_correction
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs
from grpolab.meanings import CLIP_METRIC, METRICS, convention
from grpolab.paths import Results
from grpolab.registry import FRAMEWORKS
from grpolab.run.train import run
from grpolab.settings.objective import Objective, ObjectiveSettings
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import Composer

AXES = set(ObjectiveSettings.model_fields)
Journals = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Journals:
    """Updates of two rollout steps in each default dialect, every framework's clip fraction among them."""
    results, composer = Results.open(tmp_path_factory.mktemp("dialects")), Composer()
    found = {}
    for framework in FRAMEWORKS:
        axes = composer.compose([f"dialect={framework}"]).model_dump(include=AXES)
        settings = tiny_settings(rollout_steps=2, diagnostics={"clip_conventions": True}, **axes)
        outcome = run(settings, results)
        assert outcome["outcome"] == "completed", outcome["error"]
        found[framework] = records(run_folder(settings, results), "update")
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_journal_has_the_frameworks_metrics(framework: str, journals: Journals) -> None:
    updates = journals[framework]
    assert len(updates) == 6
    for update in updates:
        own = [name for name in update if name.startswith(f"{framework}/")]
        logged = {name.removeprefix(f"{framework}/"): update[name] for name in own}
        assert logged.keys() <= FRAMEWORK_METRICS[framework].keys()
        assert bool(logged) == bool(FRAMEWORK_METRICS[framework])
        if framework in CLIP_METRIC:
            assert update[convention(framework)] == logged[CLIP_METRIC[framework]]
        if framework != "prime_rl":  # whose kernel most of the others do not have
            assert {name for name in update if name.startswith("convention/")} == set(map(convention, CLIP_METRIC))


def test_what_several_frameworks_count_is_one_number_and_its_mean_is_not(journals: Journals) -> None:
    """verl's run: gated token means agree; prime-rl's means of sequences do not; ROLL's ratio-only is our own."""
    clipping = [update for update in journals["verl"] if update["clip/active"] > 0]
    assert len(clipping) >= 3
    for update in clipping:
        for framework in ("trl", "verl", "openrlhf", "areal", "open_instruct", "skyrl"):
            assert update[convention(framework)] == pytest.approx(update["clip/active"], abs=1e-6)
        assert update[convention("prime_rl")] == pytest.approx(update["clip/active_sequences"], abs=1e-6)
    assert any(abs(u["clip/active"] - u["clip/active_sequences"]) > 1e-3 for u in clipping)
    for update in journals["roll"]:
        outside = update["roll/actor/ppo_ratio_clipfrac@sum"]
        assert outside == pytest.approx(update["clip/out_of_range"], abs=1e-6)
    assert any(u["clip/out_of_range"] > u["clip/active"] for u in journals["roll"])


def test_without_the_switch_no_other_framework_is_asked(results: Results) -> None:
    settings = tiny_settings(rollout_steps=1)
    run(settings, results)
    (update, *_) = records(run_folder(settings, results), "update")
    assert not [name for name in update if name.startswith(("convention/", *(f"{name}/" for name in FRAMEWORKS)))]


def ragged_batch() -> LossInputs:
    draw = torch.Generator().manual_seed(0)

    def near(values_BT: torch.Tensor, spread: float) -> torch.Tensor:
        return values_BT + spread * torch.randn(4, 6, generator=draw)

    old_BT = -torch.rand(4, 6, generator=draw) - 0.1
    mask_BT = torch.arange(6) < torch.tensor([6, 4, 1, 3])[:, None]
    return LossInputs(
        log_probs_BT=near(old_BT, 0.4),
        old_log_probs_BT=old_BT,
        advantages=torch.tensor([[0.9], [-1.3], [0.0], [0.6]]),
        mask_BT=mask_BT,
        totals=Totals.of(mask_BT),
        reference_log_probs_BT=near(old_BT, 0.1),
        sampler_log_probs_BT=near(old_BT, 0.1),
        entropy_BT=-old_BT,
        rewards_B1=torch.tensor([[1.0], [0.0], [0.0], [1.0]]),
        group_B=torch.tensor([0, 0, 1, 1]),
        noise_BT=torch.rand(4, 6, generator=draw),
    )


def variants(objective: Objective) -> Iterator[Objective]:
    """The mode, with a KL and an entropy bonus beside, and with each weight for another sampler."""
    yield objective
    yield objective.but(beta=0.1, kl_estimator="k3", kl_gradient="plain", entropy_coef=0.01)
    yield objective.but(off_policy_mask_threshold=0.1)
    for level, mode in itertools.product(("token", "sequence", "geometric"), ("truncate", "mask")):
        yield objective.but(sampler_correction=make_correction(level, mode, 0.5, 2.0))


@pytest.mark.slow
def test_peer_metrics_lists_what_a_run_can_log_and_nothing_else() -> None:
    composer, inputs = Composer(), ragged_batch()
    logged: dict[str, set[str]] = defaultdict(set)
    for name in composer.groups["dialect"]:
        if name == "null":
            continue
        settings = composer.compose([f"dialect={name}"])
        assert settings.framework == Path(name).parts[0]
        mode = resolve_run(settings).objective
        with torch.no_grad():
            for objective in variants(mode):
                logged[settings.framework] |= compute_metrics(settings.framework, objective, inputs).keys()
            shares = clip_conventions(mode, inputs)  # no framework fails on another's objective
        assert all(share >= 0 for share in shares.values()), name
    assert {framework: logged[framework] for framework in FRAMEWORKS} == {
        framework: set(names) for framework, names in FRAMEWORK_METRICS.items()
    }


def test_every_clip_fraction_has_its_sentence() -> None:
    for framework, metric in CLIP_METRIC.items():
        assert metric in FRAMEWORK_METRICS[framework]
        assert f"`{metric}` of {framework}" in METRICS[convention(framework)].meaning
        assert METRICS[convention(framework)].mirrored
    assert all(len(sentence) > 3 for names in FRAMEWORK_METRICS.values() for sentence in names.values())
