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
    assert (whole == seeds.uniforms(3, "rollout", 7, np.arange(5)[:, None], np.arange(11))).all()
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


@pytest.mark.parametrize("size", [1, 2, 17, 5000])
def test_permutation_is_one(size: int) -> None:
    found = seeds.permutation(5, "prompts", 0, size)
    assert sorted(found.tolist()) == list(range(size))
    if size > 2:
        others = np.arange(size), seeds.permutation(5, "prompts", 1, size), seeds.permutation(6, "prompts", 0, size)
        assert all((found != other).any() for other in others)
