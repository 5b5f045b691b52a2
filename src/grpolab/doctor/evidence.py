"""What the rules look at: one run's numbers, from its folder or another framework's log, as far as they can be read.

A column or a table that is not there is empty: a rule that needs it stays silent, and never guesses.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from grpolab.errors import RequestError
from grpolab.frameworks.names import FRESH_BATCH, LOG_NAMES
from grpolab.identity import dotted
from grpolab.paths import read_json
from grpolab.quantities import Thresholds
from grpolab.report.journals import column, table, tail_length
from grpolab.report.text import count
from grpolab.vocabulary import METRICS

Floats = NDArray[np.float64]
Row = Mapping[str, Any]

MOST = 0.9  # share of updates or rollout steps that 'nearly all' means
ROUNDING = 1e-4  # |log ratio| that two float32 forward passes of one policy can differ by (the loop asserts it)
STILL_REACH = 0.2  # largest |ratio - 1| of nearly all updates on a used batch: the usual clip range, never reached
STILL_KL = 1e-4  # nat per token from the start, at the end of the run; only where no batch is reused
# The field's clip range at each ratio level: PPO's and GRPO's, and GSPO's.
USUAL_RANGE = {"token": 0.2, "sequence": 3e-4}

TABLES = {"update": "updates", "rollout": "rollouts", "evaluation": "evaluations"}
PLANTED = ("fault", "reward.function")  # what `make doctor-check` plants stands in settings, and must not be known
MOST_SAMPLES = 12  # tables of completions that are read, evenly over the run
SAMPLE_COLUMNS = ["prompt_index", "sample", "reward", "advantage", "position", "old_log_prob", "ratio", "clipped"]
MOST_WEIGHTS = 1_000_000  # of a tensor that are looked at: enough to tell, and a large model is read in a moment


def largest(frame: pd.DataFrame, metric: str) -> float:
    """The largest value; NaN where there is none."""
    values = column(frame, metric)
    return float(values.max()) if len(values) else np.nan


def median(frame: pd.DataFrame, metric: str) -> float:
    """The median; NaN where there is none."""
    values = column(frame, metric)
    return float(np.median(values)) if len(values) else np.nan


def reach_of(updates: pd.DataFrame) -> Floats:
    """Largest |ratio - 1| of each update that has its least and largest token ratio."""
    if not {"ratio/token_min", "ratio/token_max"} <= set(updates):
        return np.empty(0)
    known = updates[["ratio/token_min", "ratio/token_max"]].dropna()
    return np.maximum(known["ratio/token_max"] - 1, 1 - known["ratio/token_min"]).to_numpy(dtype=np.float64)


@dataclass(frozen=True)
class Weights:
    """The weights at the end of a run beside those at its start."""

    count: int  # of all weights
    on_grid: float  # share that is exactly a bfloat16 number
    moved: float  # share that differs from the start; NaN where the start is not known
    still: tuple[str, ...] = ()  # names of tensors of which nothing moved


@dataclass(frozen=True, eq=False)
class Evidence:
    """One run. Tables as in `report/journals.py`; an update's numbers are those before its optimiser step."""

    run: str
    state: str  # how the run ended, or that it has not
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys; empty where a log does not hold them
    updates: pd.DataFrame = field(default_factory=pd.DataFrame)
    rollouts: pd.DataFrame = field(default_factory=pd.DataFrame)
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    samples: pd.DataFrame = field(default_factory=pd.DataFrame)  # tokens of the rollout steps that were kept
    weights: Weights | None = None
    unknown: tuple[str, ...] = ()  # what could not be read, one sentence each
    not_finite: Mapping[str, int] = field(default_factory=dict)  # metric -> its values that are NaN or infinite

    def setting(self, key: str, default: float = 0.0) -> float:
        """A number among the settings; empty is 0."""
        return float(self.settings.get(key, default) or 0)

    @cached_property
    def first(self) -> pd.DataFrame:
        """Updates that are the first on their batch."""
        return self.updates[self._is_first]

    @cached_property
    def later(self) -> pd.DataFrame:
        """The other updates: the ratio can differ from 1 there."""
        return self.updates[~self._is_first] if len(self.updates) else self.updates

    @cached_property
    def _is_first(self) -> pd.Series:
        if not {"iteration", "minibatch"} <= set(self.updates):  # one row a batch, or who knows: not told apart
            return pd.Series(False, index=self.updates.index)
        return (self.updates["iteration"] == 0) & (self.updates["minibatch"] == 0)

    @cached_property
    def updates_per_batch(self) -> int:
        """Optimiser steps on one batch; 0 where the log does not tell."""
        return int(self.updates.groupby("rollout_step").size().max()) if self._is_first.any() else 0

    @cached_property
    def first_reach(self) -> Floats:
        """Largest |ratio - 1| of each batch's first update."""
        return reach_of(self.first)

    @cached_property
    def reach(self) -> Floats:
        """Largest |ratio - 1| of each later update; empty where no batch is reused."""
        return reach_of(self.later)

    @property
    def farthest(self) -> float:
        """The largest of them; NaN where there is none."""
        return float(self.reach.max()) if len(self.reach) else np.nan

    @cached_property
    def is_still(self) -> bool:
        """Whether the policy hardly moves: on a used batch, or from the start where no batch is reused."""
        if len(self.reach):
            return bool(np.quantile(self.reach, MOST) < STILL_REACH)
        from_start = column(self.rollouts, "kl_ref/exact")
        return len(from_start) > 0 and bool(from_start[-1] < STILL_KL)

    @cached_property
    def has_moved(self) -> bool:
        """Whether the policy provably moved while a batch was used, whatever the ratio says.

        The sampler's log-probs stay what they were; the old ones, where they follow the weights, leave them behind.
        """
        gap = median(self.rollouts, "gap/sampler_trainer")
        return largest(self.rollouts, "kl_ref/exact") > STILL_KL if np.isnan(gap) else gap > ROUNDING

    @property
    def has_outer_cap(self) -> bool:
        """Whether the settings bound the ratio of tokens with A < 0 too."""
        return bool(self.settings.get("delta") or self.settings.get("dual_clip"))

    @cached_property
    def score(self) -> tuple[str, Floats]:
        """How good the policy is over time: on held-out items where it was evaluated twice, else the mean reward."""
        for metric in ("eval/accuracy_expected", "eval/accuracy_greedy", "reward/mean"):
            values = column(self.rollouts if metric == "reward/mean" else self.evaluations, metric)
            values = values[np.isfinite(values)]
            if len(values) > 1:
                break
        return metric, values

    def ends(self, metric: str, share: float = Thresholds.tail) -> tuple[float, float]:
        """Mean of a rollout metric over the first and the last `share` of the run; NaN where there is none."""
        values = column(self.rollouts, metric)
        if not len(values):
            return np.nan, np.nan
        n = tail_length(len(values), share)
        return float(values[:n].mean()), float(values[-n:].mean())


def read_run(folder: Path) -> Evidence:
    """The evidence in a run folder. Raises RequestError where its settings cannot be read."""
    try:
        settings = dict(dotted(yaml.safe_load((folder / "settings.yaml").read_text())))
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise RequestError(f"run {folder.name}: settings.yaml cannot be read ({type(error).__name__})") from error
    outcome, beat = read_json(folder / "outcome.json"), read_json(folder / "running.json")
    tables, damage, not_finite = _journal(folder / "journal.jsonl", running=outcome is None)
    samples, unreadable = _samples(folder)
    weights = None
    if outcome:
        warm_start = (read_json(folder / "provenance.json") or {}).get("warm_start") or {}
        start = folder.parents[1] / "warm_starts" / str(warm_start.get("signature")) / "policy.safetensors"
        weights = compare(folder / "policy.safetensors", start)
    steps = count(len(tables["rollouts"]), "rollout step")
    if outcome:
        state = f"{outcome.get('outcome')} after {steps}" + (f": {outcome['reason']}" if outcome.get("reason") else "")
    elif beat is None:
        state = f"unfinished after {steps}: this is a diagnosis of what there is"
    else:
        state = f"still going, after {steps} of {beat.get('rollout_steps')}: this is a diagnosis so far"
    return Evidence(
        run=folder.name,
        state=state,
        settings={key: value for key, value in settings.items() if key not in PLANTED},
        samples=samples,
        weights=weights,
        unknown=(*damage, *unreadable, *([] if weights else ["the weights: they are kept when a run ends"])),
        not_finite=not_finite,
        **tables,
    )


def _journal(path: Path, running: bool) -> tuple[dict[str, pd.DataFrame], list[str], Counter[str]]:
    """Its tables, what of it cannot be read, and by metric how many values are not finite: the journal's strings.

    `report/journals.py` reads whole journals faster; this one reads the whole part of a damaged one too.
    """
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES.values()}
    damage, not_finite = [], Counter[str]()
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        lines, damage = [], ["the journal: there is none"]
    for number, line in enumerate(lines, start=1):
        if running and number == len(lines) and not line.endswith(b"\n"):
            break  # it is being written
        try:
            record = json.loads(line)
            kind = record.pop("kind")
        except (ValueError, KeyError, AttributeError):
            damage.append(f"the journal from line {number} of {len(lines)} on: the line is damaged")
            break
        if kind in TABLES:
            records[TABLES[kind]].append(record)
            not_finite.update(name for name, value in record.items() if isinstance(value, str))
    return {name: table(rows) for name, rows in records.items()}, damage, not_finite


def _samples(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """One row per token of kept rollout steps, with its `rollout_step`; and what cannot be read."""
    files = sorted(folder.glob("samples/step_*.parquet"))
    if not files:
        return pd.DataFrame(), ["advantages and single tokens: diagnostics.samples_every kept none"]
    frames, problems = [], []
    for file in sorted({files[round(place)] for place in np.linspace(0, len(files) - 1, MOST_SAMPLES)}):
        try:
            frame = pd.read_parquet(file, columns=SAMPLE_COLUMNS)
        except (OSError, ValueError) as error:
            problems.append(f"{file.name}: {type(error).__name__}")
        else:
            frames.append(frame.assign(rollout_step=int(file.stem.removeprefix("step_"))))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(), problems


def compare(end: Path, start: Path) -> Weights | None:
    """The weights in `end` beside those in `start`, if that is there; None where `end` is no readable file."""
    try:
        after = _read_weights(end)
        before = _read_weights(start) if start.is_file() else {}
    except (OSError, SafetensorError):
        return None
    changed = {name: values != before[name][1] for name, (_, values) in after.items() if name in before}
    values = np.concatenate([values for _, values in after.values()])
    return Weights(
        count=sum(size for size, _ in after.values()),
        on_grid=float(((values.view(np.uint32) & 0xFFFF) == 0).mean()),  # bfloat16 is the upper half of a float32
        moved=float(np.concatenate(list(changed.values())).mean()) if changed else np.nan,
        still=tuple(name for name, differs in changed.items() if not differs.any()),
    )


def _read_weights(path: Path) -> dict[str, tuple[int, NDArray]]:
    """Each tensor's number of weights, and the first of them, flat and in float32."""
    tensors = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            part = file.get_slice(name)
            shape = part.get_shape() or [1]
            rows = min(shape[0], max(1, MOST_WEIGHTS // max(1, int(np.prod(shape[1:])))))
            tensors[name] = int(np.prod(shape)), np.asarray(part[:rows], dtype=np.float32).ravel()
    return tensors


# ----------------------------------------------------------------------------------------------------------------------
# Logs from elsewhere as evidence: a file of TRL, verl or ROLL, or the metrics of an MLflow run.
#
# verl and ROLL log a row a batch, a mean over its updates; TRL a row every `logging_steps` optimiser steps.

# Framework -> its name -> ours; `grpolab` is a mirror of ours whose folder is not here.
NAMES = LOG_NAMES | {
    "grpolab": {name: name for name, metric in METRICS.items() if metric.kind in ("update", "rollout")}
}
STEPS = ("step", "training/global_step", "system/global_step", "_step")
NOT_FINITE = ("nan", "inf", "infinity")  # as trackers, CSV and JSON write them
NOT_IN_A_LOG = (
    "the settings (epsilon, beta, num_iterations, max_grad_norm, warm-up): they are not in such a log",
    "advantages and single tokens: they are not in such a log",
)


def read_log(framework: str, path: Path) -> Evidence:
    """The evidence in a log file: trainer_state.json, or .csv or .jsonl with a row a step.

    Raises RequestError where it cannot be read, or holds no metric that the doctor knows.
    """
    rows: list[Row]
    try:
        text = path.read_text()
        lines = text.splitlines()
        if path.suffix == ".csv":
            table_rows = csv.DictReader(lines, restkey="")  # what stands beyond the head has no name
            rows = [{name: value for name, value in row.items() if value != ""} for row in table_rows]
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in lines if line.strip()]
            for place, row in enumerate(rows):
                if isinstance(row.get("data"), dict):
                    rows[place] = {"step": row.get("step"), **row["data"]}
        else:
            state = json.loads(text)
            if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
                needed = "a trainer_state.json with a log_history; else use .csv or .jsonl"
                raise ValueError(f"a .json file must be {needed}")
            rows = [row for row in state["log_history"] if "train_runtime" not in row]
    except (OSError, ValueError, AttributeError, TypeError, csv.Error) as error:  # rows that are no objects, too
        raise RequestError(f"FILE={path} cannot be read as a log: {error}") from error
    return evidence_of(framework, path.name, rows)


def read_rows(run: str, rows: Sequence[Row]) -> Evidence:
    """The metrics of a run that was tracked elsewhere: of the framework that most of their names are from.

    Raises RequestError where no name is known.
    """
    written = {plain(name) for row in rows for name in row}
    known = {framework: sum(plain(name) in written for name in names) for framework, names in NAMES.items()}
    best = max(known, key=lambda framework: known[framework])
    if not known[best]:
        raise RequestError(f"run {run} holds no metric of an update that the doctor knows ({', '.join(NAMES)})")
    return evidence_of(best, run, rows)


def evidence_of(framework: str, run: str, rows: Sequence[Row]) -> Evidence:
    """Rows of a log, in order, under our names. Raises RequestError where none of their names is known."""
    names = {plain(theirs): ours for theirs, ours in NAMES[framework].items()}
    rows = [row for row in rows if any(plain(name) in names for name in row)]
    if not rows:
        known = ", ".join(list(NAMES[framework])[:6])
        raise RequestError(f"FILE={run} holds no metric that {framework} logs of an update: {known}, ...")
    ours = [{names[plain(name)]: value for name, value in row.items() if plain(name) in names} for row in rows]
    metrics = pd.DataFrame(ours).apply(pd.to_numeric, errors="coerce")
    positions = _positions(framework, rows)
    tables = {}
    for kind in ("update", "rollout"):  # rows without any metric of the kind are left out
        columns = [name for name in metrics if METRICS[name].kind == kind]
        joined = positions.join(metrics[columns]).dropna(subset=columns, how="all")
        tables[TABLES[kind]] = joined if columns else positions.iloc[:0]
    return Evidence(
        run=run,
        state=f"a log of {framework} with {count(len(rows), 'row')}",
        unknown=NOT_IN_A_LOG,
        not_finite=Counter(
            name for row in ours for name, value in row.items() if str(value).lower().lstrip("-") in NOT_FINITE
        ),
        **tables,
    )


def plain(name: str) -> str:
    """A metric's name as MLflow has it: verl writes `_at_` for `@`, transformers `_`."""
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_"))


def _positions(framework: str, rows: Sequence[Row]) -> pd.DataFrame:
    """rollout_step, and iteration and minibatch where each row is one optimiser step and fresh batches are marked."""
    steps = [next((row[name] for name in STEPS if row.get(name) is not None), place) for place, row in enumerate(rows)]
    step = pd.to_numeric(pd.Series(steps), errors="coerce").ffill().fillna(0)
    mark = FRESH_BATCH.get(framework)
    fresh = pd.Series([mark in row for row in rows])
    if mark is None or not fresh.iloc[0] or (len(step) > 1 and not (step.diff().iloc[1:] == 1).all()):
        return pd.DataFrame({"rollout_step": step.astype(int)})
    batch = fresh.cumsum() - 1
    return pd.DataFrame({"rollout_step": batch, "iteration": batch.groupby(batch).cumcount(), "minibatch": 0})
