"""From hidden states to log-probs. A place is a position of a forward pass; the model predicts a token behind it.

Log-probs of a small model are computed at once. Those of a language model would fill the memory (49,152 float32 numbers
a place). So they are computed a chunk of places at a time, only behind places that predict a token that counts, and
once more in the backward pass: only one chunk exists at any moment.

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

LARGEST = 2**24  # logits that may exist at once, 64 MiB; no model from scratch comes near

# From the place of each token, (Y,), the tokens, (Y,), and each policy's log-probs, (N, V), to tensors (Y,).
Reading: TypeAlias = Callable[..., tuple[Tensor, ...]]


class Head(Protocol):
    """Turns hidden states into log-probs; `Policy` is one."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Map (..., H) to (..., V)."""
        ...

    def log_softmax(self, logits_NV: Tensor) -> Tensor:
        """Return log-probs, (N, V), float32."""
        ...

    @property
    def vocabulary(self) -> int:
        """V."""
        ...


@dataclass(frozen=True)
class Places:
    """Hidden states of places; or their log-probs, where these are few enough to be computed at once."""

    head: Head
    hidden_NH: Tensor | None
    made_NV: Tensor | None

    @staticmethod
    def of(head: Head, pieces: Iterable[Tensor], count: int, first_of_B: Tensor | None = None) -> Places:
        """Make `count` places of pieces of hidden states, (B, C, H) each, that stand side by side.

        `first_of_B` repeats rows of the first piece, whose logits are computed only once. Logits of a piece are
        computed before the next piece: this order decides how gradients of a tied head add up.
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


def read(
    reading: Reading, place_BT: Tensor, tokens_BT: Tensor, wanted_BT: Tensor, *policies: Places
) -> tuple[Tensor, ...]:
    """Apply `reading` to each token; return tensors (B, T), with gradient. The policies' places are the same ones.

    Reading in chunks gives 0 for tokens that are not wanted.
    """
    if all(places.made_NV is not None for places in policies):
        values = reading(place_BT.flatten(), tokens_BT.flatten(), *(places.made_NV for places in policies))
        return tuple(value_N.view_as(place_BT) for value_N in values)

    def read_chunk(place_Y: Tensor, tokens_Y: Tensor, *hidden: Tensor) -> tuple[Tensor, ...]:
        logits = (places.head.logits(hidden_NH) for places, hidden_NH in zip(policies, hidden, strict=True))
        return reading(place_Y, tokens_Y, *map(policies[0].head.log_softmax, logits))

    wanted_Y = wanted_BT.flatten().nonzero().squeeze(1)
    used_N, place_Y = place_BT.flatten()[wanted_Y].unique(return_inverse=True)
    order_Y = place_Y.argsort(stable=True)
    wanted_Y, place_Y = wanted_Y[order_Y], place_Y[order_Y]
    tokens_Y = tokens_BT.flatten()[wanted_Y]
    size = max(1, LARGEST // policies[0].head.vocabulary)
    starts = range(0, len(used_N), size)
    edges = torch.searchsorted(place_Y, torch.tensor([*starts, len(used_N)], device=place_Y.device)).tolist()
    recomputed = partial(checkpoint, read_chunk, use_reentrant=False, preserve_rng_state=False)
    chunks = []
    for start, (begin, end) in zip(starts, pairwise(edges), strict=True):
        hidden = [places.hidden_NH[used_N[start : start + size]] for places in policies if places.hidden_NH is not None]
        inputs = place_Y[begin:end] - start, tokens_Y[begin:end], *hidden
        chunks.append(recomputed(*inputs) if len(starts) > 1 else read_chunk(*inputs))
    whole = (torch.cat(values) for values in zip(*chunks, strict=True))
    return tuple(
        value_Y.new_zeros(place_BT.numel()).index_copy(0, wanted_Y, value_Y).view_as(place_BT) for value_Y in whole
    )


def token_log_prob(place_Y: Tensor, tokens_Y: Tensor, log_probs_NV: Tensor) -> Tensor:
    """Return the log-prob of each token, (Y,)."""
    return log_probs_NV.view(-1).gather(0, place_Y * log_probs_NV.shape[1] + tokens_Y)
