"""Objective kernels: the loss of a token (or sequence) before averaging. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable

from grpolab.learn.kernels.cispo import cispo
from grpolab.learn.kernels.clipped import clipped, ratio
from grpolab.learn.kernels.parts import KernelInputs, KernelParts

__all__ = ["KERNELS", "Kernel", "KernelInputs", "KernelParts"]

Kernel = Callable[[KernelInputs], KernelParts]

KERNELS: dict[str, Kernel] = {"clipped": clipped, "ratio": ratio, "cispo": cispo}
