"""The sampler as another policy: rounded to int8, disturbed by noise, or some steps older than the trainer."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_learner import learn, same, taught_parts
from tiny import tiny_parts, tiny_settings

from grpolab import seeds
from grpolab.frameworks import skyrl_options
from grpolab.grpo.batch import Rollout
from grpolab.grpo.decoding import sample, sampling_noise
from grpolab.grpo.model import Policy
from grpolab.grpo.ratios import interpolated_log_probs
from grpolab.grpo.sampler import EngineNoise, own_sampler, refresh_sampler
from grpolab.models.int8 import round_to_int8
from grpolab.run.assembly import RunParts
from grpolab.sweep.compose import Composer


def next_batch(parts: RunParts, step: int = 0) -> Rollout:
    parts.state.rollout_step = step
    return parts.learner.collect(parts.state)


def mean_gap(**changes: object) -> float:
    """Mean |log-prob of the sampler - old log-prob of the trainer| of a first batch."""
    parts = taught_parts(prompts_per_step=16, **changes)
    batch = learn(parts, next_batch(parts)).batch
    assert batch.old_log_probs_BT is not None
    return (batch.sampler_log_probs_BT - batch.old_log_probs_BT)[batch.mask_BT].abs().mean().item()


def test_a_coarser_sampler_is_further_from_the_trainer() -> None:
    gaps = [mean_gap(sampler_dtype=dtype) for dtype in (None, "float16", "bfloat16")]
    assert gaps[0] < 1e-6
    assert all(finer < coarser / 3 for finer, coarser in itertools.pairwise(gaps)), gaps
    assert 1e-4 < mean_gap(sampler_dtype="int8") < 0.1


def test_int8_rounds_each_output_to_a_grid_of_its_own() -> None:
    weight_OI = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1e-3], [1.0], [50.0], [3.0], [0.0]]
    )
    rounded_OI = round_to_int8(weight_OI)
    scale_O1 = weight_OI.abs().amax(1, keepdim=True) / 127
    steps_OI = (rounded_OI / scale_O1)[:4]
    assert (steps_OI - steps_OI.round()).abs().max() < 1e-3
    assert steps_OI.round().abs().amax(1).tolist() == [127.0] * 4  # the largest weight of each output is kept
    assert ((rounded_OI - weight_OI).abs() <= scale_O1 * 0.5001).all()
    assert not rounded_OI[4].any()


def test_an_int8_sampler_rounds_its_own_linear_layers_and_nothing_else() -> None:
    parts = taught_parts(sampler_dtype="int8")
    trainer, sampler = parts.state.policy, parts.state.sampler
    assert sampler is not None
    before = trainer.fingerprint()
    refresh_sampler(sampler, trainer, parts.settings)
    assert trainer.fingerprint() == before
    rounded = {name for name, weight in sampler.weights().items() if not torch.equal(weight, trainer.weights()[name])}
    linear = {f"{name}.weight" for name, module in sampler.model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert rounded == linear - {"lm_head.weight"} != set()
    for name in rounded:
        assert torch.equal(sampler.weights()[name], round_to_int8(trainer.weights()[name].detach()))


def test_noise_is_normal_and_a_draw_depends_on_its_place_alone() -> None:
    draws = seeds.normals(3, "sampler_noise", 0, *np.ix_(range(40), range(50), range(20)))
    assert abs(draws.mean()) < 0.02
    assert abs(draws.std() - 1) < 0.02
    assert abs((np.abs(draws) > 1.96).mean() - 0.05) < 0.005
    assert np.array_equal(seeds.normals(3, "sampler_noise", 0, *np.ix_([7], range(50), range(20)))[0], draws[7])
    parts = tiny_parts(sampler_noise=0.5)
    engine = EngineNoise.of(parts.settings, 4)
    assert engine is not None
    collector = parts.learner.collector
    prompts = collector._prompt_tensors(parts.state.policy, collector.prompts(list(range(4))))
    P, G, T = len(prompts.tokens_PL), parts.settings.num_generations, parts.settings.max_completion_length
    uniforms_BT = sampling_noise(0, "rollout", 4, P, G, T)
    whole = sample(parts.state.policy, prompts, G, uniforms_BT, engine=engine)
    last = torch.tensor([P - 1])
    alone = sample(
        *(parts.state.policy, prompts.select(last), G, uniforms_BT[-G:]),
        engine=replace(engine, prompts_P=engine.prompts_P[-1:]),
    )
    width = alone.tokens_BT.shape[1]
    assert torch.equal(alone.mask_BT, whole.mask_BT[-G:, :width])
    assert torch.equal(alone.tokens_BT[alone.mask_BT], whole.tokens_BT[-G:, :width][alone.mask_BT])
    torch.testing.assert_close(alone.log_probs_BT, whole.log_probs_BT[-G:, :width], rtol=0, atol=1e-5)


def test_a_disturbed_sampler_reports_the_policy_that_it_draws_from() -> None:
    """So the ratio of trainer to sampler has mean 1 over its draws; with log-probs of the trainer it would have not."""
    parts = taught_parts(sampler_noise=0.7, prompts_per_step=64, num_generations=16)
    batch = learn(parts, next_batch(parts)).batch
    assert batch.old_log_probs_BT is not None
    ratio_N = (batch.old_log_probs_BT - batch.sampler_log_probs_BT)[batch.mask_BT].exp().double()
    assert 0.3 < ratio_N.std() < 1.5
    assert abs(ratio_N.mean() - 1) < 4 * ratio_N.std() / len(ratio_N) ** 0.5


def test_noise_is_the_same_in_every_run_of_a_seed() -> None:
    first, again, quiet = (next_batch(tiny_parts(sampler_noise=noise)) for noise in (0.5, 0.5, None))
    assert same(first, again)
    assert not same(first, quiet)


def test_a_refreshed_sampler_has_the_weights_of_its_last_refresh() -> None:
    parts = tiny_parts(sampler_refresh=2, rollout_steps=5)
    then: list[Policy] = []
    for step in range(5):
        then.append(copy.deepcopy(parts.state.policy))
        rollout = next_batch(parts, step)
        assert same(rollout, parts.learner.collector.rollout(then[step - step % 2], step))
        learn(parts, rollout)
    assert not same(parts.learner.collector.rollout(then[0], 1), parts.learner.collector.rollout(then[1], 1))


@pytest.mark.parametrize(
    "changes", [{}, {"sampler_refresh": 1}, {"sampler_dtype": "float16"}, {"staleness": 1}], ids=str
)
def test_a_sampler_without_weights_of_its_own_costs_no_copy(changes: dict[str, object]) -> None:
    parts = tiny_parts(**changes)
    assert own_sampler(parts.state.policy, parts.settings) is parts.state.sampler is None


def test_a_refresh_at_each_step_is_the_run_without_one() -> None:
    assert tiny_settings(sampler_refresh=1).signature == tiny_settings().signature
    assert not {"sampler_noise", "sampler_refresh"} & tiny_settings().identity().keys()


@pytest.mark.parametrize(("staleness", "refresh"), [(0, 1), (2, 1), (0, 3), (2, 3)])
def test_a_sampler_is_as_old_as_its_last_refresh_and_its_queue(staleness: int, refresh: int) -> None:
    """Counted through: the weights of step s sample the batches of up to step s + staleness."""
    settings = tiny_settings(staleness=staleness, sampler_refresh=refresh, rollout_steps=12)
    weights = 0
    sampled_with: dict[int, int] = {}
    for step in range(12):
        weights = step if step % refresh == 0 else weights
        for ahead in range(step, step + staleness + 1):
            sampled_with.setdefault(ahead, weights)
        assert settings.sampler_age(step) == step - sampled_with[step]


def test_an_interpolated_policy_lies_between_the_sampler_and_the_current_one() -> None:
    """AReaL cbff54d6, `compute_prox_logp_approximations`: a = (v - 1 - v_sampler) / (v - v_sampler), in [0, 1]."""
    sampler_BT, current_BT = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    for age, share in ((0, 0.0), (1, 0.0), (2, 1 / 2), (5, 4 / 5)):
        found_BT = interpolated_log_probs(sampler_BT, current_BT.requires_grad_(), age)
        torch.testing.assert_close(found_BT, (1 - share) * sampler_BT + share * current_BT.detach())
        assert not found_BT.requires_grad
        ratio_BT = (current_BT - found_BT).exp().detach()
        torch.testing.assert_close(ratio_BT, ((current_BT - sampler_BT) / max(age, 1)).exp().detach())


@pytest.mark.parametrize(
    "changes", [{}, {"num_minibatches": 2}, {"num_minibatches": 2, "micro_batch_size": 4}], ids=str
)
def test_a_run_interpolates_anew_at_each_optimiser_step_and_without_a_forward_pass(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_forward(*args: object) -> None:
        raise AssertionError("a forward pass for old log-probs")

    monkeypatch.setattr("grpolab.grpo.step.old_log_probs", no_forward)
    parts = tiny_parts(**{"old_log_probs": "interpolated", "staleness": 2, "rollout_steps": 6, **changes})
    for step in range(4):
        rollout = next_batch(parts, step)
        minibatches = parts.learner.minibatches(parts.state.policy, rollout.batch, step)
        for _ in range(2):
            updates = [parts.learner.update(parts.state, minibatch, 10) for minibatch in minibatches]
            for update in updates:
                inputs, mask_BT = update.inputs, update.inputs.mask_BT
                assert inputs.sampler_log_probs_BT is not None
                of_sampler_BT = inputs.log_probs_BT - inputs.sampler_log_probs_BT
                expected_BT = of_sampler_BT / max(1, min(step, 2))
                torch.testing.assert_close(update.log_ratio_BT[mask_BT], expected_BT[mask_BT], rtol=1e-3, atol=1e-5)
            minibatches = [update.batch for update in updates]
    assert update.log_ratio_BT.abs().max() > 1e-3


def test_skyrl_refuses_to_correct_twice() -> None:
    anchored = {"policy_loss_type": "cispo", "cispo": {"cispo_anchor": "rollout"}}
    assert skyrl_options.objective(anchored) == skyrl_options.objective({"policy_loss_type": "cispo"})
    with pytest.raises(ValueError, match="correct twice"):
        skyrl_options.objective({**anchored, "off_policy_correction": {"tis_ratio_type": "token"}})
    assert Composer().compose(["dialect=skyrl/cispo_rollout"]).old_log_probs == "sampler"
    assert Composer().compose(["dialect=areal/prox_approx"]).old_log_probs == "interpolated"
