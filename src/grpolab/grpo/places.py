"""What a model predicts behind each place of a forward pass, and how it is read: log-probs over the vocabulary.

The log-probs of a small model's places are made at once. Those of a language model are what fills the memory (49,152
float32 numbers a place), so they are made of its hidden states, a chunk of places at a time, only behind places that
predict a token that counts, and are made again in the backward pass: no more than one chunk is there at any moment.

Letters of shapes besides those of `batch.py`: N places, Y places of a chunk that are read, with repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LARGEST = 2**24  # logits that are there at once, 64 MiB; no model from scratch comes near

# What is asked of places: from the place of each token among those at hand, (Y,), the tokens, (Y,), and each policy's
# log-probs over the vocabulary, (N, V), to a tuple of tensors (Y,).
Reading: TypeAlias = Callable[..., tuple[Tensor, ...]]


class Head(Protocol):
    """What makes log-probs of hidden states: a policy does."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V)."""
        ...

    def log_softmax(self, logits_NV: Tensor) -> Tensor:
        """Log-probs, (N, V), float32."""
        ...

    @property
    def vocabulary(self) -> int:
        """V."""
        ...


@dataclass(frozen=True)
class Places:
    """Hidden states of places or, where they are few times a small vocabulary, the log-probs already made of them."""

    head: Head
    hidden_NH: Tensor | None
    made_NV: Tensor | None

    @staticmethod
    def of(head: Head, pieces: Iterable[Tensor], count: int, first_of_B: Tensor | None = None) -> Places:
        """`count` places of hidden states that stand side by side, each piece (B, C, H).

        `first_of_B` picks the rows of the first piece, whose logits are made only once. Where logits are made they are
        made of a piece before the next: the order in which gradients of a tied head add up.
        """
        small = count * head.vocabulary <= LARGEST
        made = [head.logits(piece) if small else piece for piece in pieces]
        if first_of_B is not None:
            made[0] = made[0][first_of_B]
        places_NX = (torch.cat(made, dim=1) if len(made) > 1 else made[0]).flatten(0, 1)
        return Places(head, None, head.log_softmax(places_NX)) if small else Places(head, places_NX, None)

    @property
    def log_probs_NV(self) -> Tensor:
        """Log-probs behind every place at once, whatever memory they take."""
        if self.made_NV is not None:
            return self.made_NV
        assert self.hidden_NH is not None
        return self.head.log_softmax(self.head.logits(self.hidden_NH))


def read(reading: Reading, place_BT: Tensor, tokens_BT: Tensor, wanted_BT: Tensor, *each: Places) -> tuple[Tensor, ...]:
    """What `reading` finds for each token, tensors (B, T), with gradient; `each` policy's places are the same ones.

    Where chunks are read it is 0 for tokens that are not wanted.
    """
    if all(places.made_NV is not None for places in each):
        found = reading(place_BT.flatten(), tokens_BT.flatten(), *(places.made_NV for places in each))
        return tuple(value_N.view_as(place_BT) for value_N in found)

    def read_chunk(place_Y: Tensor, tokens_Y: Tensor, *hidden: Tensor) -> tuple[Tensor, ...]:
        logits = (places.head.logits(hidden_NH) for places, hidden_NH in zip(each, hidden, strict=True))
        return reading(place_Y, tokens_Y, *map(each[0].head.log_softmax, logits))

    wanted_Y = wanted_BT.flatten().nonzero().squeeze(1)
    used_N, place_Y = place_BT.flatten()[wanted_Y].unique(return_inverse=True)
    order_Y = place_Y.argsort(stable=True)
    wanted_Y, place_Y = wanted_Y[order_Y], place_Y[order_Y]
    tokens_Y = tokens_BT.flatten()[wanted_Y]
    size = max(1, LARGEST // each[0].head.vocabulary)
    starts = range(0, len(used_N), size)
    edges = torch.searchsorted(place_Y, torch.tensor([*starts, len(used_N)], device=place_Y.device)).tolist()
    again = partial(checkpoint, read_chunk, use_reentrant=False, preserve_rng_state=False)
    pieces = []
    for start, (begin, end) in zip(starts, pairwise(edges), strict=True):
        hidden = [places.hidden_NH[used_N[start : start + size]] for places in each if places.hidden_NH is not None]
        inputs = place_Y[begin:end] - start, tokens_Y[begin:end], *hidden
        pieces.append(again(*inputs) if len(starts) > 1 else read_chunk(*inputs))
    whole = (torch.cat(values) for values in zip(*pieces, strict=True))
    return tuple(
        value_Y.new_zeros(place_BT.numel()).index_copy(0, wanted_Y, value_Y).view_as(place_BT) for value_Y in whole
    )


def chosen(place_Y: Tensor, tokens_Y: Tensor, log_probs_NV: Tensor) -> Tensor:
    """The log-prob of each token, (Y,)."""
    return log_probs_NV.view(-1).gather(0, place_Y * log_probs_NV.shape[1] + tokens_Y)
