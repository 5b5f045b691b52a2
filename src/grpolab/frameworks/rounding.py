"""Measure how much an output may differ on another CPU: replay it with results perturbed in their last digit.

IEEE 754 fixes the results of +, -, *, /, square roots and conversions, so they are equal everywhere. It does not fix
exp or log, the order of summation, or fused products. Their results differ by about a unit in the last place between
code paths (MKL's AVX2 and AVX-512, torch's own, another compiler).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten
# Library functions and fused products, whose result is perturbed.
FUNCTIONS = {
    *(aten.exp, aten.exp2, aten.expm1, aten.log, aten.log2, aten.log10, aten.log1p, aten.pow, aten.rsqrt),
    *(aten.sigmoid, aten.sigmoid_backward, aten.tanh, aten.tanh_backward, aten.log_sigmoid_forward, aten.softplus),
    *(aten._softmax, aten._log_softmax, aten.addcmul, aten.addcdiv, aten.lerp),
}
# Sums, whose terms are perturbed: at least as much as another order of summation changes.
SUMS = {
    *(aten.sum, aten.nansum, aten.mean, aten.var, aten.std, aten.var_mean, aten.std_mean, aten.cumsum, aten.prod),
    *(aten.mm, aten.bmm, aten.addmm, aten.mv, aten.dot, aten.logsumexp, aten.norm, aten.linalg_vector_norm),
}
SUMS_INTO = {aten.index_add, aten.index_add_, aten.scatter_add, aten.scatter_add_}  # only what is added is moved

REPLAYS = 8
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


class OtherLibrary(TorchDispatchMode):
    """A math library whose results differ from ours by one unit in the last place, for numbers of some dtypes.

    It is deterministic: equal numbers at equal positions are perturbed equally. `seed` chooses the directions; 0 always
    rounds up, so that deviations accumulate.
    """

    def __init__(self, seed: int, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self.seed, self.dtypes = seed, dtypes
        self.has_moved = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kind = func.overloadpacket
        if kind in SUMS_INTO:
            return func(args[0], *tree_map(self._move_terms, list(args[1:])), **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if kind in FUNCTIONS:
            return tree_map(self._move, result)
        if kind in SUMS and (not isinstance(result, Tensor) or result.numel() < args[0].numel()):
            return func(*tree_map(self._move_terms, list(args)), **(kwargs or {}))
        return result

    def _move_terms(self, value: Any) -> Any:
        """Perturb the terms of a sum, except integers, whose sum is the same in any order."""
        if isinstance(value, Tensor) and value.is_floating_point() and (value.trunc() == value).all():
            return value
        return self._move(value)

    def _move(self, value: Any) -> Any:
        """Perturb every finite number except 0 by a unit in its last place."""
        if not isinstance(value, Tensor) or value.dtype not in self.dtypes or not value.numel():
            return value
        self.has_moved = True
        value = value.contiguous()
        up = torch.ones_like(value, dtype=torch.bool)
        if self.seed:
            bits = value.view(BITS[value.dtype]).long() + torch.arange(value.numel()).view(value.shape) * 0x9E3779B1
            mixed = (bits ^ (bits >> 23) ^ (self.seed * 0x2545F491)) * 0x5851F42D4C957F2D
            up = (mixed >> 40) & 1 == 1
        limit = torch.where(up, torch.inf, -torch.inf).to(value.dtype)
        return torch.where((value == 0) | ~value.isfinite(), value, value.nextafter(limit))


def spreads(
    ours: Mapping[str, Tensor], outputs: Callable[[], Mapping[str, Tensor]], dtypes: Sequence[torch.dtype]
) -> dict[str, float]:
    """Return each output's largest deviation from `ours` over replays with perturbed last digits.

    `outputs` replays a case, and returns its outputs by name. A deviation is 0 if no number in `dtypes` enters the
    output, infinite if the output is no longer finite.
    """
    largest = dict.fromkeys(ours, 0.0)
    for seed in range(REPLAYS):
        with OtherLibrary(seed, dtypes) as library:
            others = outputs()
        if not library.has_moved:
            break
        for name, value in others.items():
            largest[name] = max(largest[name], largest_difference(value, ours[name]))
    return largest


def largest_difference(value: Tensor, other: Tensor) -> float:
    """Return the largest difference; infinite if shapes or non-finite entries differ. NaN equals NaN."""
    finite = other.isfinite()
    if value.shape != other.shape or not torch.equal(value.isfinite(), finite):
        return torch.inf
    if not torch.equal(value[~finite].nan_to_num(), other[~finite].nan_to_num()):
        return torch.inf
    return (value - other)[finite].abs().max().item() if finite.any() else 0.0
