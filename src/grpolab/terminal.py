"""Print untrusted text, so that a terminal shows control characters instead of obeying them."""

from __future__ import annotations

import sys
import traceback
import unicodedata
from types import TracebackType

from grpolab.credentials import without_secrets

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control and format characters, halves of a pair, other ends of a line


def visible(text: str) -> str:
    """Return the text with secrets masked and control characters spelled out as in Python."""
    text = without_secrets(text)
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        ascii(char)[1:-1] if unicodedata.category(char) in _UNSEEN and char not in "\n\t" else char for char in text
    )


def say(text: object = "", *, error: bool = False, end: str = "\n", flush: bool = False) -> None:
    """Print the visible text, an error on standard error."""
    print(visible(str(text)), file=sys.stderr if error else sys.stdout, end=end, flush=flush)


def say_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an unexpected exception (a `sys.excepthook`)."""
    say("".join(traceback.format_exception(kind, error, trace)), error=True, end="")
