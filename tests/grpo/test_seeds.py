"""Randomness without a generator: a draw depends on its coordinates and on nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from grpolab import seeds


def test_a_draw_depends_on_its_coordinates_alone() -> None:
    whole = seeds.uniforms(3, "rollout", 7, np.arange(5)[:, None], np.arange(11))
    np.random.seed(0)
    torch.manual_seed(0)
    again = seeds.uniforms(3, "rollout", 7, np.arange(5)[:, None], np.arange(11))
    assert (whole == again).all()
    assert seeds.uniforms(3, "rollout", 7, 4, 10) == whole[4, 10]
    assert (seeds.uniforms(3, "rollout", 7, np.arange(2, 4)[:, None], np.arange(3)) == whole[2:4, :3]).all()


def test_numbers_are_the_same_on_every_machine() -> None:
    """Integer arithmetic alone: these values may never change, or every run changes with them."""
    found = seeds.uniforms(0, "rollout", 0, np.arange(3))
    assert found.tolist() == [0.09977540626800696, 0.6235590395132086, 0.6012608842863787]
    assert seeds.permutation(0, "prompts", 0, 8).tolist() == [1, 2, 0, 4, 5, 3, 7, 6]


def test_every_coordinate_matters() -> None:
    """Seed, purpose, step, prompt, sample: changing one gives unrelated numbers."""
    streams = {
        key: seeds.uniforms(seed, purpose, step, prompt, np.arange(2000))
        for key in itertools.product((0, 1, 2**40), ("rollout", "evaluation"), (0, 1), (0, 1))
        for seed, purpose, step, prompt in [key]
    }
    assert len({values.tobytes() for values in streams.values()}) == len(streams)
    correlations = np.corrcoef(list(streams.values())) - np.eye(len(streams))
    assert np.abs(correlations).max() < 5 / np.sqrt(2000)


def test_neighbouring_counters_do_not_collide() -> None:
    """(1, 0) and (0, 1) are different draws, as are a draw and the same one with a trailing zero."""
    grid = seeds.counter_hash(0, "rollout", np.arange(300)[:, None], np.arange(300))
    assert len(np.unique(grid)) == grid.size
    assert seeds.counter_hash(0, "rollout", 1) != seeds.counter_hash(0, "rollout", 1, 0)


def test_uniforms_are_uniform() -> None:
    values = seeds.uniforms(1, "rollout", np.arange(400)[:, None], np.arange(500)).ravel()
    n = len(values)
    assert values.min() >= 0
    assert values.max() < 1
    for power in (1, 2, 3, 4):  # moments, within four standard errors
        expected = 1 / (power + 1)
        error = np.sqrt((1 / (2 * power + 1) - expected**2) / n)
        assert abs((values**power).mean() - expected) < 4 * error
    counts = np.histogram(values, bins=64, range=(0, 1))[0]
    assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 63 + 4 * np.sqrt(2 * 63)
    pairs = np.corrcoef(values[:-1], values[1:])[0, 1]
    assert abs(pairs) < 4 / np.sqrt(n)


@pytest.mark.parametrize("size", [1, 2, 17, 5000])
def test_permutation_is_one(size: int) -> None:
    found = seeds.permutation(5, "prompts", 0, size)
    assert sorted(found.tolist()) == list(range(size))
    if size > 2:
        assert found.tolist() != sorted(found.tolist())
        assert (found != seeds.permutation(5, "prompts", 1, size)).any()
        assert (found != seeds.permutation(6, "prompts", 0, size)).any()


def test_every_place_of_a_permutation_is_as_likely() -> None:
    first = [seeds.permutation(seed, "prompts", 0, 6)[0] for seed in range(3000)]
    counts = np.bincount(first, minlength=6)
    assert np.abs(counts - 500).max() < 4 * np.sqrt(500 * 5 / 6)


def test_torch_seed_fits_a_generator_and_differs_by_seed() -> None:
    found = {seeds.torch_seed(seed, "weights") for seed in range(50)}
    assert len(found) == 50
    for seed in found:
        torch.Generator().manual_seed(seed)
