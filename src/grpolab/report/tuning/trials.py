"""The trials of a study as tidy tables, read from the one file that `grpolab tune` keeps for the report."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpolab.errors import RequestError
from grpolab.paths import Results, read_json
from grpolab.report.tuning.keys import Key

COMPLETE, PRUNED, DIVERGED, FAILED, RUNNING = "complete", "pruned", "diverged", "failed", "running"
FORMAT = 1
_COLUMNS = {
    "trials": ["arm", "number", "state", "reason", "full", "decided", "run", "values", "scores"],
    "seeds": ["arm", "number", "seed", "signature", "scores"],
    "curves": ["arm", "number", "seed", "step", "value"],
}


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
        directions = {one["metric"]: one["direction"] for one in self.document["objectives"]}
        return 1 if directions[metric] == "maximize" else -1

    def keys(self, arm: str) -> list[Key]:
        """The arm's space, one axis per key."""
        return [Key.of(name, bounds) for name, bounds in self.document["arms"][arm]["space"].items()]

    def key(self, arm: str, name: str) -> Key | None:
        """The axis of one key; None where the arm does not tune it."""
        return next((key for key in self.keys(arm) if key.name == name), None)

    def all_keys(self) -> list[Key]:
        """Every key that some arm tunes, between the outermost bounds of all arms."""
        found: dict[str, Key] = {}
        for key in (key for arm in self.arms for key in self.keys(arm)):
            found[key.name] = found[key.name].joined(key) if key.name in found else key
        return list(found.values())

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
    return Tuning(
        document,
        _frame("trials", map(_trial, trials)),
        _frame("seeds", (row for trial in trials for row in _seeds(trial))),
        _frame("curves", (row for trial in trials for row in _curves(trial))),
    )


def _frame(name: str, rows: Any) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=_COLUMNS[name])


def _trial(trial: dict[str, Any]) -> dict[str, Any]:
    means = {metric: _number(score["mean"]) for metric, score in trial["scores"].items()}
    finite = {metric: mean for metric, mean in means.items() if np.isfinite(mean)}
    steps = {**trial["optimizer_steps"], "run": trial["timing"]["optimizer_steps"]}
    return {**trial, **steps, "reason": trial["reason"] or "", "scores": finite}


def _seeds(trial: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A seed without a finite score (it was pruned, or diverged) has no score here."""
    for seed, signature in trial["signatures"].items():
        found = {metric: _number(score["seeds"].get(seed)) for metric, score in trial["scores"].items()}
        scores = {metric: score for metric, score in found.items() if np.isfinite(score)}
        yield {**_name(trial), "seed": int(seed), "signature": signature, "scores": scores}


def _curves(trial: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for seed, points in trial["intermediate"].items():
        for step, value in points:
            yield {**_name(trial), "seed": int(seed), "step": step, "value": _number(value)}


def _name(trial: dict[str, Any]) -> dict[str, Any]:
    return {"arm": trial["arm"], "number": trial["number"]}


def _number(value: Any) -> float:
    """Infinities stand as strings, what is not there as null."""
    return math.nan if value is None else float(value)
