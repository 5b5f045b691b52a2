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
from grpolab.grpo.batch import Rollout
from grpolab.grpo.decoding import sample, sampling_noise
from grpolab.grpo.model import Policy
from grpolab.grpo.sampler import EngineNoise, own_sampler, refresh_sampler, round_to_int8
from grpolab.run.assembly import RunParts


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
    prompts = parts.learner.collector._prompt_tensors(parts.state.policy, 4)
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
