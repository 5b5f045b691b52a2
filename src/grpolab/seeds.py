"""Stateless randomness: every draw is a hash of (run seed, purpose, step, prompt, sample, token).

There is no generator state, so a draw does not depend on what ran before it: number of workers, launch order, a resume,
or another arm's samples. Arms with one seed see the same noise.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64: a bijection in which every input bit moves every output bit."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _purpose_bits(purpose: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little"))


def counter_hash(seed: int, purpose: str, *counters: NDArray[np.integer] | int) -> NDArray[np.uint64]:
    """Return 64 random bits for every point of the broadcast counters (each at least 0)."""
    with np.errstate(over="ignore"):
        bits = _mix(np.asarray(seed, dtype=np.uint64) * GOLDEN + _purpose_bits(purpose))
        for counter in counters:
            bits = _mix(bits * GOLDEN + np.asarray(counter, dtype=np.uint64) + np.uint64(1))
    return bits


def uniforms(seed: int, purpose: str, *counters: NDArray[np.integer] | int) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1) with 53 random bits, one for every point of the broadcast counters."""
    return (counter_hash(seed, purpose, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(seed: int, purpose: str, *counters: NDArray[np.integer] | int) -> NDArray[np.float64]:
    """Return standard normal numbers, one for every point of the broadcast counters (Box and Muller, 1958)."""
    radius, angle = (uniforms(seed, purpose, *counters, part) for part in (0, 1))
    return np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)


def permutation(seed: int, purpose: str, step: int, size: int) -> NDArray[np.int64]:
    """Return a permutation of range(size)."""
    return np.argsort(counter_hash(seed, purpose, step, np.arange(size)), kind="stable")


def torch_seed(seed: int, purpose: str) -> int:
    """Return a seed for torch (weights of a model from scratch)."""
    return int(counter_hash(seed, purpose) >> np.uint64(1))
