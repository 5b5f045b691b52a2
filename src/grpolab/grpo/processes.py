"""The processes that share one run: each has the same weights and sees the same batch.

Pieces of work are dealt out like cards. Gradients are summed over all processes. All other results are gathered in the
order of the pieces, so that each process continues with what a single one would have. Denominators are counts of the
whole minibatch (`Totals`), never means of means, so that only the order of rounding differs.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class LostProcess(Exception):
    """Another process of the run has ended too early."""


@dataclass(frozen=True)
class Processes:
    """This process among those of the run. All of them must call the same methods in the same order."""

    rank: int = 0
    size: int = 1
    gradients: dist.ProcessGroup | None = None  # sums gradients; None: by the CPU's group, as for all else

    def share(self, pieces: Sequence[T]) -> Sequence[T]:
        """Return the pieces that this process computes: every `size`-th."""
        return pieces[self.rank :: self.size]

    def gather(self, computed: list[T]) -> list[T]:
        """Return what all processes computed of their shares, in the order of the pieces; tensors have no gradient."""
        if self.size == 1:
            return computed
        shares: list[Any] = [None] * self.size
        with self.explain_loss():
            dist.all_gather_object(shares, pack(computed))
        shares = [pickle.loads(share) for share in shares]
        return [shares[index % self.size][index // self.size] for index in range(sum(map(len, shares)))]

    def from_first(self, make: Callable[[], T]) -> T:
        """Return the value that the first process makes, in every process; for user code, clocks and signals."""
        if self.size == 1:
            return make()
        made: list[Any] = [make()] if self.rank == 0 else []
        return self.gather(made)[0]

    def add_up(self, weights: Iterable[Tensor]) -> None:
        """Replace the gradients of the weights by their sum over all processes."""
        # Those of shards, which are of another type, are summed already.
        gradients = [weight.grad for weight in weights if type(weight.grad) is Tensor]
        if self.size == 1 or not gradients:
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        with self.explain_loss():
            dist.all_reduce(flat, group=self.gradients)
        for gradient, total in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))

    def check_equal(self, weights: Iterable[Tensor], rollout_step: int) -> None:
        """Raise AssertionError if a process has other weights than the first, or is at another rollout step."""
        if self.size == 1:
            return
        bits = torch.stack([weight.detach().view(torch.int32).sum() for weight in weights]).sum().item()
        for rank, other in enumerate(states := self.gather([(bits, rollout_step)])):
            if other != states[0]:
                step = states[0][1]
                raise AssertionError(
                    f"process {rank} of {self.size} has other weights than the first at rollout step {step}"
                )

    @contextmanager
    def explain_loss(self) -> Iterator[None]:
        """Turn an error of an exchange into LostProcess."""
        try:
            yield
        except RuntimeError as error:
            raise LostProcess(
                f"another of the {self.size} processes has ended: the same command goes on from the last checkpoint"
            ) from error


ALONE = Processes()


class _Pickler(pickle.Pickler):
    """Pickles tensors by value, so that each process unpacks them onto its own device."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _unpack, (value.cpu().numpy(), value.device.type)
        return NotImplemented


def pack(value: Any) -> bytes:
    """Return a value as bytes that `pickle.loads` reads in another process of the run."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _unpack(numbers: np.ndarray[Any, Any], device: str) -> Tensor:
    return torch.from_numpy(numbers).to(device)
