"""The error of a wrong request: its text goes to the user, nothing was started, exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from grpolab.credentials import without_secrets

T = TypeVar("T")


class RequestError(Exception):
    """One sentence per problem, each naming the key, the value and what is allowed. Passwords are masked.

    Raise it with all problems that can be known at once: `RequestError([first, second])`.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [
            shorten(printable(without_secrets(text)))
            for text in ([problems] if isinstance(problems, str) else problems)
        ]
        super().__init__("\n".join(self.problems))


class Damaged(RequestError):
    """A file of a results folder is not what was written; the sentence begins with its path.

    A reader of many runs leaves this one out and says so.
    """


def printable(text: str) -> str:
    """Return one line in which line breaks and control characters are spelled out."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shorten(text: str, most: int = 1500) -> str:
    """Return the text, its middle left out if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def format_value(value: Any) -> str:
    """Return a value as a user writes it in an override: `null`, `true`, `.inf`, `{low:0,high:2}`."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{format_value(item)}" for key, item in value.items()) + "}"
    if value is None:
        return "null"
    if value == float("inf"):
        return ".inf"
    return str(value).lower() if isinstance(value, bool) else str(value)


def listing(words: Sequence[str], limit: int = 6) -> str:
    """Write `a, b and 3 more`."""
    shown = ", ".join(words[:limit])
    return shown if len(words) <= limit else f"{shown} and {len(words) - limit} more"


def near_matches(word: str, allowed: Iterable[str]) -> str:
    """Return ' (did you mean epsilon?)' for a mistyped word, or an empty string if nothing is close."""
    close = difflib.get_close_matches(word, list(allowed), n=2, cutoff=0.6)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def choose(owner: str, key: str, value: Any, meanings: Mapping[Any, T]) -> T:
    """Return what a value of a framework's key means here. Raises ValueError for one without a meaning."""
    if value not in list(meanings):  # a list, because a value from a file may have no hash
        known = ", ".join(map(format_value, meanings))
        raise ValueError(f"{key}={format_value(value)}: of {owner}'s values, known here are {known}")
    return meanings[value]
