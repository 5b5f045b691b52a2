"""The trials of a study as tidy tables, read from the one file that `grpolab tune` keeps, and the keys it tuned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from numpy.typing import ArrayLike, NDArray

from grpolab.errors import RequestError
from grpolab.paths import Results, read_json
from grpolab.report.figures.panels import log_axis

COMPLETE, PRUNED, DIVERGED, FAILED, RUNNING = "complete", "pruned", "diverged", "failed", "running"
FORMAT = 1
_COLUMNS = {
    "trials": ["arm", "number", "state", "reason", "full", "decided", "run", "values", "scores"],
    "seeds": ["arm", "number", "seed", "signature", "scores"],
    "curves": ["arm", "number", "seed", "step", "value"],
}


MARGIN = 0.04  # of the axis, beyond either bound
_WIDE = 500  # high over low from which on ticks at 1 and 3 of each decade would run into each other


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


@dataclass(frozen=True, eq=False)
class Tuning:
    """A study's trials.

    `trials` has one row per trial that has ended, arm by arm in order of number: state, reason, full/decided/run
    (optimiser steps: of all seeds without pruning, up to the decision, really done), values ({key: value}), scores
    ({metric: mean}). A diverged trial has no finite score, a failed one counts for nothing: another took its place.
    `seeds` has one row per seed of a trial that was begun: its run's signature, and scores ({metric: score}) where it
    has some. `curves` has what the pruner saw: the smoothed metric of each seed by rollout step.
    """

    document: dict[str, Any]
    trials: pd.DataFrame
    seeds: pd.DataFrame
    curves: pd.DataFrame

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

    def key(self, arm: str, name: str) -> Key | None:
        """The axis of one key; None where the arm does not tune it."""
        return next((key for key in self.keys(arm) if key.name == name), None)

    def all_keys(self) -> list[Key]:
        """Every key that some arm tunes, between the outermost bounds of all arms."""
        widest: dict[str, Key] = {}
        for key in (key for arm in self.arms for key in self.keys(arm)):
            widest[key.name] = widest[key.name].joined(key) if key.name in widest else key
        return list(widest.values())

    def common(self, arm: str) -> dict[str, Any]:
        """What the study gives the arm for these keys; keys that it leaves unset are left out."""
        return {key: value for key, value in self.document["arms"][arm]["common"].items() if value is not None}

    def of(self, arm: str, *states: str) -> pd.DataFrame:
        """The trials of an arm that are in one of some states."""
        return self.trials[(self.trials["arm"] == arm) & self.trials["state"].isin(states)]

    def best(self, arm: str) -> list[int]:
        """Number of the arm's best trial; with several objectives its Pareto front, the chosen one first."""
        return self.document["best"].get(arm, [])

    def scored(self, arm: str, metric: str) -> pd.DataFrame:
        """The complete trials of an arm with a column `score`: their mean over seeds."""
        done = self.of(arm, COMPLETE)
        return done.assign(score=[scores.get(metric, math.nan) for scores in done["scores"]]).dropna(subset="score")


def load_trials(results: Results, study: str) -> Tuning:
    """The trials of a study as they stand.

    Raises RequestError where it has not been tuned in this results folder, or by a program of another format.
    """
    path = results.trials(study)
    document = read_json(path)
    if document is None:
        raise RequestError(f"study={study} has no trials in {path}: run `grpolab tune {study}` first")
    if document.get("format") != FORMAT:
        raise RequestError(f"{path} has format {document.get('format')}, this program reads format {FORMAT}")
    trials = [trial for trial in document["trials"] if trial["state"] != RUNNING]
    rows = {
        "trials": [_trial(trial) for trial in trials],
        "seeds": [row for trial in trials for row in _seeds(trial)],
        "curves": [row for trial in trials for row in _curves(trial)],
    }
    return Tuning(document, **{table: pd.DataFrame(rows[table], columns=_COLUMNS[table]) for table in rows})


def _trial(trial: dict[str, Any]) -> dict[str, Any]:
    means = _finite({metric: score["mean"] for metric, score in trial["scores"].items()})
    steps = {**trial["optimizer_steps"], "run": trial["timing"]["optimizer_steps"]}
    return {**trial, **steps, "reason": trial["reason"] or "", "scores": means}


def _seeds(trial: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A seed without a finite score (it was pruned, or diverged) has no score here."""
    for seed, signature in trial["signatures"].items():
        scores = _finite({metric: score["seeds"].get(seed) for metric, score in trial["scores"].items()})
        yield {**_name(trial), "seed": int(seed), "signature": signature, "scores": scores}


def _curves(trial: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for seed, points in trial["intermediate"].items():
        for step, value in points:
            yield {**_name(trial), "seed": int(seed), "step": step, "value": _number(value)}


def _name(trial: dict[str, Any]) -> dict[str, Any]:
    return {"arm": trial["arm"], "number": trial["number"]}


def _finite(scores: dict[str, Any]) -> dict[str, float]:
    return {metric: _number(score) for metric, score in scores.items() if np.isfinite(_number(score))}


def _number(value: Any) -> float:
    """Infinities stand as strings, what is not there as null."""
    return math.nan if value is None else float(value)


def column(trials: pd.DataFrame, key: Key) -> list[Any]:
    """The trials' values of a key; NaN where the trial has none."""
    return [values.get(key.name, np.nan) for values in trials["values"]]


def seed_range(tuning: Tuning, trials: pd.DataFrame, metric: str) -> tuple[list[float], list[float]]:
    """Lowest and highest score over the seeds of each trial."""
    by_trial = {
        trial: [scores[metric] for scores in seeds["scores"] if metric in scores]
        for trial, seeds in tuning.seeds.groupby(["arm", "number"])
    }
    scores = [by_trial[arm, number] for arm, number in zip(trials["arm"], trials["number"], strict=True)]
    return list(map(min, scores)), list(map(max, scores))
