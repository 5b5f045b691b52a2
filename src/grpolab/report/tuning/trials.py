"""The trials of a study as a tidy table, read from the one file that `grpolab tune` keeps, and the keys it tuned."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from grpolab.errors import RequestError, format_value
from grpolab.paths import Results
from grpolab.records import read_object
from grpolab.report.figures.panels import log_axis
from grpolab.vocabulary import COMPLETE, RUNNING

FORMAT = 1
_COLUMNS = ["arm", "number", "state", "reason", "full", "decided", "run"]
_COLUMNS += ["values", "scores", "intermediate", "signatures"]

MARGIN = 0.04  # of the axis, beyond either bound


class Key(NamedTuple):
    """A tuned key as an axis that is even in what its values are drawn from: logarithms, or ranks of choices."""

    name: str
    low: float
    high: float
    log: bool = False
    choices: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, space: dict[str, Any]) -> Self:
        """From the space that a study file states: `{low, high, log}`, or `{choices}`."""
        if "choices" in space:
            return cls(name, 0, len(space["choices"]) - 1, choices=tuple(map(format_value, space["choices"])))
        return cls(name, float(space["low"]), float(space["high"]), bool(space.get("log")))

    def joined(self, other: Key) -> Key:
        """The key with bounds that hold those of both."""
        if self.choices:
            choices = tuple(dict.fromkeys(self.choices + other.choices))
            return self._replace(choices=choices, high=len(choices) - 1)
        low = min(self.low, other.low)
        return self._replace(low=low, high=max(self.high, other.high), log=low > 0 and (self.log or other.log))

    def drawn(self, values: Iterable[Any]) -> NDArray[np.float64]:
        """Coordinates of values on an axis that `dress` has scaled; NaN for what is no choice."""
        ranks = {choice: float(rank) for rank, choice in enumerate(self.choices)}
        return np.array([ranks.get(format_value(value), np.nan) if ranks else float(value) for value in values])

    def places(self, trials: pd.DataFrame) -> NDArray[np.float64]:
        """Coordinates of trials; NaN where a trial has no such key."""
        return self.drawn(values.get(self.name, np.nan) for values in trials["values"])

    def share(self, coordinates: ArrayLike) -> NDArray[np.float64]:
        """How far coordinates are between the bounds: 0 is `low`, 1 is `high`."""
        low, width = self._even()
        return ((np.log10(coordinates) if self.log else np.asarray(coordinates)) - low) / width

    def at(self, shares: ArrayLike) -> NDArray[np.float64]:
        """Coordinates at shares of the way from `low` to `high`. Shape: that of `shares`."""
        low, width = self._even()
        places = low + np.asarray(shares) * width
        return 10**places if self.log else places

    def _even(self) -> tuple[float, float]:
        """Lower end and width of the range, in what the values are drawn from."""
        low, high = np.log10([self.low, self.high]) if self.log else (self.low, self.high)
        return low, high - low if high > low else 1.0

    def dress(self, panel: Axes, which: Literal["x", "y"]) -> None:
        """Scale, limits and ticks of a panel's axis."""
        panel.set(**{f"{which}lim": self.at([-MARGIN, 1 + MARGIN])})
        if self.log:
            log_axis(panel, which)
        if self.choices:
            panel.set(**{f"{which}ticks": range(len(self.choices)), f"{which}ticklabels": self.choices})


@dataclass(frozen=True, eq=False)
class Tuning:
    """A study's trials.

    `trials` has one row per trial that has ended, arm by arm in order of number: state, reason, full/decided/run
    (optimiser steps: of all seeds without pruning, up to the decision, really done) and, by key, metric or seed, its
    values, scores ({mean, seeds}), intermediate (what the pruner saw) and signatures (of the seeds that were begun).
    A failed trial counts for nothing: another took its place.
    """

    document: dict[str, Any]
    trials: pd.DataFrame

    @property
    def study(self) -> str:
        """The study that was tuned."""
        return self.document["study"]

    @property
    def arms(self) -> list[str]:
        """The arms that were tuned, in the order of the study file."""
        return list(self.document["arms"])

    @property
    def objectives(self) -> list[str]:
        """What was tuned for; the first decides where one number is asked for."""
        return [objective["metric"] for objective in self.document["objectives"]]

    def sign(self, metric: str) -> int:
        """1 where more of an objective is better, -1 where less is."""
        directions = {objective["metric"]: objective["direction"] for objective in self.document["objectives"]}
        return 1 if directions[metric] == "maximize" else -1

    def keys(self, arm: str) -> list[Key]:
        """The arm's space, one axis per key."""
        return [Key.of(name, bounds) for name, bounds in self.document["arms"][arm]["space"].items()]

    def all_keys(self) -> list[Key]:
        """Every key that some arm tunes, between the outermost bounds of all arms."""
        widest: dict[str, Key] = {}
        for key in (key for arm in self.arms for key in self.keys(arm)):
            widest[key.name] = widest[key.name].joined(key) if key.name in widest else key
        return list(widest.values())

    def common(self, arm: str, key: Key) -> NDArray[np.float64]:
        """Coordinate of what the study gives the arm for a key, as an array of one; NaN where it leaves it unset."""
        value = self.document["arms"][arm]["common"].get(key.name)
        return key.drawn([np.nan if value is None else value])

    def of(self, arm: str, *states: str) -> pd.DataFrame:
        """The trials of an arm that are in one of some states."""
        return self.trials[(self.trials["arm"] == arm) & self.trials["state"].isin(states)]

    def best(self, arm: str) -> list[int]:
        """Number of the arm's best trial; with several objectives its Pareto front, the chosen one first."""
        return self.document["best"].get(arm, [])

    def scored(self, arm: str, metric: str) -> pd.DataFrame:
        """The complete trials of an arm with their `score` (mean over seeds) and its `low` and `high` over seeds."""
        done = self.of(arm, COMPLETE)
        seeds = [list(map(number_of, scores.get(metric, _NO_SCORE)["seeds"].values())) for scores in done["scores"]]
        scored = done.assign(
            score=np.array([mean_of(scores, metric) for scores in done["scores"]], dtype=float),
            low=[min(scores, default=math.nan) for scores in seeds],
            high=[max(scores, default=math.nan) for scores in seeds],
        )
        return scored.dropna(subset="score")


_NO_SCORE: dict[str, Any] = {"mean": None, "seeds": {}}


def mean_of(scores: dict[str, Any], metric: str) -> float:
    """A trial's score; NaN where it was pruned, or diverged."""
    mean = number_of(scores.get(metric, _NO_SCORE)["mean"])
    return mean if math.isfinite(mean) else math.nan


def number_of(value: Any) -> float:
    """Infinities stand as strings, what is not there as null."""
    return math.nan if value is None else float(value)


def load_trials(results: Results, study: str) -> Tuning:
    """The trials of a study as they stand.

    Raises RequestError where it has not been tuned in this results folder, or by a program of another format.
    """
    path = results.trials(study)
    document = read_object(path)
    if document is None:
        raise RequestError(f"study={study} has no trials in {path}: run `grpolab tune {study}` first")
    if document.get("format") != FORMAT:
        raise RequestError(f"{path} has format {document.get('format')}, this program reads format {FORMAT}")
    rows = [
        {
            **trial,
            **trial["optimizer_steps"],
            "run": trial["timing"]["optimizer_steps"],
            "reason": trial["reason"] or "",
        }
        for trial in document["trials"]
        if trial["state"] != RUNNING
    ]
    return Tuning(document, pd.DataFrame(rows, columns=_COLUMNS))
