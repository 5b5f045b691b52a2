"""What goes to a terminal: data of others, from tokens to names, is shown and never obeyed."""

from __future__ import annotations

import sys
import traceback
import unicodedata
from types import TracebackType

from grpolab.credentials import without_secrets

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control and format characters, halves of a pair, other ends of a line


def visible(text: str) -> str:
    """The text without its secrets, with what a terminal would obey, or turn round, spelled out as in Python."""
    text = without_secrets(text)
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        ascii(char)[1:-1] if unicodedata.category(char) in _UNSEEN and char not in "\n\t" else char for char in text
    )


def say(text: object = "", *, error: bool = False, end: str = "\n", flush: bool = False) -> None:
    """Print it; on standard error where it is one."""
    print(visible(str(text)), file=sys.stderr if error else sys.stdout, end=end, flush=flush)


def say_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python says of an exception that nobody expected."""
    say("".join(traceback.format_exception(kind, error, trace)), error=True, end="")
