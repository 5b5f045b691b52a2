"""A wrong request, and the words that both kinds of fuzzing break things with."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True)
class Wrong:
    """A request that must be refused."""

    kind: str  # how it was made wrong
    arguments: tuple[str, ...]
    names: tuple[str, ...]  # a sentence must hold one of these: the key or the value
    certain: bool = True  # else it may be valid by chance
    studies: Mapping[str, bytes] = field(default_factory=dict, hash=False)  # files of experiments/


def words(least: int = 1, most: int = 8) -> SearchStrategy[str]:
    """Lower-case words that start no literal of YAML or Hydra: no `nan`, `null`, `true`, `e`."""
    return st.text(string.ascii_lowercase, min_size=least, max_size=most).map(lambda word: f"zq{word}")


@st.composite
def mistyped(draw: st.DrawFn, word: str) -> str:
    """The word with a letter left out, doubled or put in; never the word itself, nor any that could be known."""
    place = draw(st.integers(1, len(word) - 1))
    letter = draw(st.sampled_from(["", word[place] * 2, f"{word[place]}x"]))
    return f"{word[:place]}{letter}{word[place + 1 :]}"
