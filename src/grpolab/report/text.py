"""Numbers in words and tables: one way to write an estimate, an interval and a p-value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from grpolab.errors import listing as listing  # how reports write a list, too

if TYPE_CHECKING:
    import pandas as pd

NONE = "–"
# The interval that stands in brackets behind a mean over seeds, and that a band shows (`share_band`).
OF_SHARES = "Wilson's at the effective sample size"
OF_MEANS = f"Student's t, of shares {OF_SHARES}"
# A note wherever runs are compared bit by bit, or may be.
BITS = (
    "Equality to the bit is promised on one kind of CPU only: one model, and the code that torch and MKL choose there."
    " On another one float32 rounds otherwise, and two runs part within a few rollout steps; a run's final score then"
    " differs by about a seventh of its standard deviation over seeds (measured: docs/faults.md)."
)


def number(value: float | None) -> str:
    """Write a number with about three digits; a dash where there is none."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value in (0, 1):
        return str(int(value))
    if abs(value) < 1e-3 or abs(value) >= 1e4:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.{3 if abs(value) < 1 else 2 if abs(value) < 10 else 1}f}"


def begun(text: str) -> str:
    """Write the first letter as a capital, as a sentence begins."""
    return text[:1].upper() + text[1:]


def signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)


def bounds(low: float, high: float, form: Callable[[float], str] = number) -> str:
    """Write `[low, high]`, or a dash where one seed is too few for an interval."""
    return NONE if math.isnan(low) else f"[{form(low)}, {form(high)}]"


def estimate(mean: float, low: float, high: float, form: Callable[[float], str] = number) -> str:
    return form(mean) if math.isnan(low) else f"{form(mean)} {bounds(low, high, form)}"


def probability(p: float) -> str:
    if math.isnan(p):
        return NONE
    return "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 1 else "1"


def p_equals(p: float) -> str:
    """Write `p = .012` or `p < .001`."""
    text = probability(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def times(factor: float) -> str:
    return f"×{number(factor)}"


def percent(value: float) -> str:
    return NONE if math.isnan(value) else f"{number(100 * value)}%"


def count(n: int, noun: str) -> str:
    """Write `1 run`, `3 runs`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def spans(numbers: Iterable[int]) -> str:
    """Write `2005 to 2009, 2025`, each stretch of consecutive numbers; `none` where there is none."""
    stretches: list[tuple[int, int]] = []
    for value in sorted({*numbers}):
        first, _ = stretches.pop() if stretches and stretches[-1][1] == value - 1 else (value, value)
        stretches.append((first, value))
    return ", ".join(f"{first} to {last}" if first < last else str(first) for first, last in stretches) or "none"


def bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def markdown_table(frame: pd.DataFrame) -> str:
    """Write a frame of strings as a Markdown table."""
    lines = [list(frame.columns), *frame.itertuples(index=False)]
    head, *rows = ("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
    return "\n".join([head, "|" + "---|" * frame.shape[1], *rows])
