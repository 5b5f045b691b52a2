"""A tuned key as an axis of a picture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from numpy.typing import ArrayLike, NDArray

from grpolab.report.figures.panels import log_axis

MARGIN = 0.04  # of the axis, beyond either bound
_WIDE = 500  # high over low from which on ticks at 1 and 3 of each decade would run into each other


class Key(NamedTuple):
    """A key with its bounds. What its values are drawn from is even on this axis: logarithms, or ranks of choices."""

    name: str
    low: float
    high: float
    log: bool = False
    choices: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, space: dict[str, Any]) -> Self:
        """From the space that a study file states: `{low, high, log}`, or `{choices}`."""
        if "choices" in space:
            return cls(name, 0, len(space["choices"]) - 1, choices=tuple(map(_word, space["choices"])))
        return cls(name, float(space["low"]), float(space["high"]), bool(space.get("log")))

    def joined(self, other: Key) -> Key:
        """The key with bounds that hold those of both."""
        if self.choices:
            choices = tuple(dict.fromkeys(self.choices + other.choices))
            return self._replace(choices=choices, high=len(choices) - 1)
        low = min(self.low, other.low)
        return self._replace(low=low, high=max(self.high, other.high), log=low > 0 and (self.log or other.log))

    def share(self, values: Iterable[Any]) -> NDArray[np.float64]:
        """Where values stand between the bounds: 0 is `low`, 1 is `high`; NaN for what is no choice."""
        places, (low, high) = self._even(self.drawn(values)), self._even(np.array([self.low, self.high]))
        return (places - low) / (high - low if high > low else 1.0)

    def drawn(self, values: Iterable[Any]) -> NDArray[np.float64]:
        """Coordinates of values on an axis that `dress` has scaled; NaN for what is no choice."""
        if self.choices:
            ranks = {choice: float(rank) for rank, choice in enumerate(self.choices)}
            return np.array([ranks.get(_word(value), np.nan) for value in values])
        return np.array([float(value) for value in values])

    def at(self, shares: ArrayLike) -> NDArray[np.float64]:
        """Coordinates at shares of the way from `low` to `high`. Shape: that of `shares`."""
        low, high = self._even(np.array([self.low, self.high]))
        places = low + np.asarray(shares) * (high - low if high > low else 1.0)
        return 10**places if self.log else places

    def dress(self, panel: Axes, which: Literal["x", "y"]) -> None:
        """Scale, limits and ticks of a panel's axis."""
        if self.log:
            log_axis(panel, which)
            if self.high > _WIDE * self.low:
                (panel.xaxis if which == "x" else panel.yaxis).set_major_locator(LogLocator())
        if self.choices:
            panel.set(**{f"{which}ticks": range(len(self.choices)), f"{which}ticklabels": self.choices})
        panel.set(**{f"{which}lim": self.at([-MARGIN, 1 + MARGIN])})

    def _even(self, coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log10(coordinates) if self.log else coordinates


def _word(value: Any) -> str:
    """As a user would write it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
