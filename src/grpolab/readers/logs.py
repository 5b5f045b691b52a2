"""Read the log of another framework's run, a file or rows of a tracker, into our metrics.

A file is read in pieces and only known metrics are kept, so a large file costs time but no memory. Formats:

- JSON: `log_history` of a trainer_state.json, or a list of rows (an export of W&B or trackio)
- .csv and .tsv: one row a step, under the names of a framework, perhaps behind `train/` or a run's name
- lines: a JSON object, or a Python dict with progress bars around it (TRL, ms-swift), or verl's `step:N - name:value`,
  with colours and Ray's `(TaskRunner pid=1)` in front; between them the config as verl and ms-swift print it

verl and ROLL log one row a batch, a mean over its updates; TRL one row every `logging_steps` optimiser steps.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, TextIO

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.errors import RequestError, printable
from grpolab.framework_names import FRESH_BATCH, LOG_ONLY, TRL_NAMES, VERL_NAMES
from grpolab.meanings import METRICS
from grpolab.readers import log_names, log_tables
from grpolab.readers.log_lines import Console, LoggedRow, flatten

_ACTOR = "actor_rollout_ref.actor."
_WHOLE, _PART = "prompts_per_step", "prompts_per_minibatch"  # TRL counts both in micro-batches
# Framework -> option in a printed config -> ours.
SETTINGS = {
    "trl": TRL_NAMES
    | {name: name for name in ("beta", "num_iterations", "max_grad_norm", "loss_type")}
    | {name: name for name in ("epsilon", "epsilon_high", "importance_sampling_level")}
    | {"steps_per_generation": _WHOLE, "gradient_accumulation_steps": _PART},
    "verl": VERL_NAMES
    | {f"{_ACTOR}use_kl_loss": "use_kl_loss", f"{_ACTOR}kl_loss_coef": "beta"}
    | {"algorithm.adv_estimator": "advantage_estimator", f"{_ACTOR}policy_loss.loss_mode": "loss_type"}
    | {f"{_ACTOR}clip_ratio_low": "epsilon", f"{_ACTOR}clip_ratio_high": "epsilon_high"}
    | {f"{_ACTOR}ppo_mini_batch_size": _PART},
}

BLOCK = 1 << 20  # characters that are read at once; a longer line is cut there
LONGEST_OBJECT = 8 << 20  # characters of one row of JSON
SCRIPTS = (".py", ".sh", ".yaml", ".yml", ".toml")
A_LOG = "is a trainer_state.json, rows as JSON or CSV, a notebook, or what a console printed"
BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True, eq=False)
class RunLog:
    """The numbers of one run under our names; a row of `updates` may be a mean over several updates."""

    run: str
    framework: str
    rows: int
    updates: pd.DataFrame
    rollouts: pd.DataFrame
    evaluations: pd.DataFrame
    not_finite: Mapping[str, Sequence[int]]  # metric -> steps where it is NaN or infinite
    settings: Mapping[str, Any]  # what the printed config says of our settings
    config: Mapping[str, Any]  # the whole printed config, dotted, under the framework's own names
    problems: tuple[str, ...]  # what could not be read, one sentence each
    readings: tuple[str, ...]  # what was read as what, where a reader must know it, one sentence each

    def with_config(self, config: Mapping[str, Any], file: Path | None) -> RunLog:
        """Return the log with what a config in a file says, which goes before what the log prints."""
        if not config:
            return self
        config, reading = {**self.config, **config}, f"its config is {printable(str(file))}"
        settings = _settings(self.framework, config)
        return replace(self, config=config, settings=settings, readings=(*self.readings, reading))


def read_log(framework: str | None, path: Path, run: str | None = None) -> RunLog:
    """Return the numbers in a log; `framework` None: the one most names fit; `run`: of a chart. Raises RequestError."""
    collected = _Collector()
    try:
        if not path.is_file() or path.suffix in SCRIPTS:
            what = f"it is a script or a config, which `grpolab lint {quote(str(path))}` reads; one {A_LOG}"
            what = what if path.is_file() else "it is no file" if path.exists() else "there is no such file"
            raise RequestError(f"FILE={path} cannot be read as a log: {what}")
        with path.open("rb") as binary:  # PowerShell redirects in UTF-16
            encoding = "utf-16" if binary.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with path.open(encoding=encoding, errors="replace", newline=None) as file:
            head = file.read(BLOCK)
            if "\0" in head or not head.strip():
                what = "no text" if head.strip() else "empty"
                raise RequestError(f"FILE={path} cannot be read as a log: it is {what}; one {A_LOG}")
            first = head.lstrip()[:1]
            if run is not None or path.suffix in (".csv", ".tsv"):
                collected.add(log_tables.csv_rows(path, chain(head.splitlines(keepends=True), file), run))
            elif path.suffix.lower() in log_tables.PAGES:
                collected.add_page(path, head + file.read(log_tables.LARGEST_PAGE))
            elif first == "[" or path.suffix == ".json" or (first == "{" and '"log_history"' in head):
                collected.add(_document_rows(head, file, collected))
            else:
                file.seek(0)
                collected.add_lines(iter(lambda: file.readline(BLOCK), ""))
                if not collected.rows and len(head) < BLOCK and log_tables.has_table(head):  # as people paste it
                    collected.add_page(path, head)
    except (OSError, csv.Error) as error:
        raise RequestError(f"FILE={path} cannot be read as a log: {error}") from error
    return collected.as_log(framework, path.name if run is None else run)


def read_rows(run: str, rows: Iterable[LoggedRow]) -> RunLog:
    """Return the numbers in a tracked run's rows. Raises RequestError if they hold no known metric."""
    collected = _Collector()
    collected.add(rows)
    return collected.as_log(None, run)


def read_charts(framework: str | None, run: str, paths: Sequence[Path]) -> RunLog:
    """Return the numbers of one run in W&B's charts of several, each of some metrics. Raises RequestError."""
    collected = _Collector()
    try:
        collected.add(log_tables.chart_rows(paths, run))
    except (OSError, csv.Error) as error:
        raise RequestError(f"FILE={paths[0]} cannot be read as a chart: {error}") from error
    return collected.as_log(framework, run)


class _Collector:
    """The known numbers of a log's rows, under the names that are written there."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.evaluations: list[tuple[int, dict[str, float]]] = []  # with the number of rows before each
        self.config: dict[str, Any] = {}
        self.seen = 0  # rows, those without a known number too
        self.damaged = 0  # rows that could not be read
        self.readings: list[str] = []

    def add(self, rows: Iterable[LoggedRow]) -> None:
        """Keep the known numbers of the rows that are about training, or about an evaluation."""
        for row in rows:
            self.seen += 1
            if "train_runtime" in row:  # the summary at the end of TRL's log
                continue
            numbers = {}
            for name, written in row.items():
                if (metric := log_names.known(name)) and (value := log_names.number(written)) is not None:
                    numbers[metric] = value
            if not log_names.TELLING.isdisjoint(numbers):
                self.rows.append(numbers)
                continue
            alike = {ours for name in numbers if (ours := log_names.evaluation(name) or log_names.likeness(name))} - {
                "learning_rate"
            }
            if any(not ours.startswith("eval/") for ours in alike):
                self.rows.append(numbers)
            elif alike:
                self.evaluations.append((len(self.rows), numbers))

    def add_lines(self, lines: Iterable[str]) -> None:
        """Keep what a console printed."""
        console = Console()
        self.add(console.rows(lines))
        self.damaged += console.damaged
        self.config |= console.config

    def add_page(self, path: Path, text: str) -> None:
        """Keep the table, or the lines, with most numbers of training in a page."""
        tables, text = log_tables.read_page(path, text)
        lines = _Collector()
        lines.add_lines(text.splitlines(keepends=True))
        self.config, self.seen = self.config | lines.config, self.seen + lines.seen
        table = max(tables, key=log_tables.numbers_in, default=[])
        if log_tables.numbers_in(table) < log_tables.numbers_in(lines.rows):
            self.rows, self.evaluations, self.damaged = lines.rows, lines.evaluations, lines.damaged
            return
        self.add(table)
        others = sum(log_tables.numbers_in(other) > 0 for other in tables) - 1
        if others > 0:
            self.readings.append(
                f"of {others + 1} tables with metrics the one with most numbers, {len(self.rows)} rows, is read"
            )

    def as_log(self, framework: str | None, run: str) -> RunLog:
        """Return the rows under our names. Raises RequestError if no name is one of the framework's."""
        shapes = [tuple(row) for row in self.rows]
        place_of = {shape: place for place, shape in enumerate(dict.fromkeys(shapes))}
        shape_of_row = np.array([place_of[shape] for shape in shapes], dtype=int)

        def rows_with(names: Collection[str]) -> NDArray[np.bool_]:
            """Return for each row whether it has one of the names."""
            return np.array([any(name in names for name in shape) for shape in place_of], dtype=bool)[shape_of_row]

        telling = {of: rows_with(names) for of, names in log_names.TELLING_OF.items()}
        written = pd.DataFrame(self.rows, dtype=np.float64)
        best = max(telling, key=lambda of: (telling[of].sum(), sum(name in log_names.TRACKED[of] for name in written)))
        exact = {name: ours for name, ours in log_names.TRACKED[framework or best].items() if name in written}
        # A name that only rows of another program have is not this one's.
        others = [name for name in written if name in log_names.TELLING and name not in exact]
        beside = written.loc[telling[framework or best], others].notna().any() if others else {}
        alike = _alike(written, [name for name in written if beside.get(name, True)], exact.values())
        if framework is None:
            is_other = len(alike) > len(log_names.TELLING.intersection(exact))
            framework = log_names.OTHER if is_other else best if telling[best].any() else None
        if not self.seen:
            what = "no whole row of a log: the first is cut off, or no JSON" if self.damaged else "no rows of a log"
            raise RequestError(f"FILE={run} holds {what}; one {A_LOG}")
        if not framework or (framework in telling and not telling[framework].any()):
            expected = ", ".join(list(log_names.NAMES[framework])[:6]) if framework else ", ".join(log_names.NAMES)
            by = f"that {framework} logs of an update" if framework else "of an update that the doctor knows"
            other = f"; its names are {best}'s" if telling[best].any() else ""
            raise RequestError(f"FILE={run} holds no metric {by} ({expected}, ...){other}")
        names = exact | alike
        kept = telling[best if framework == log_names.OTHER else framework] | rows_with(alike)
        foreign = int((rows_with(log_names.TELLING) & ~kept).sum())
        rows = self.rows
        if not kept.all():
            rows = [row for row, is_kept in zip(rows, kept, strict=True) if is_kept]
            written = written[kept].reset_index(drop=True)
        columns = written.where(np.isfinite(written))
        positions = _positions(framework, columns)
        not_finite: dict[str, list[int]] = defaultdict(list)
        for at, row in enumerate(rows):
            for name in row:
                if not math.isfinite(row[name]) and name in names:
                    not_finite[names[name]].append(int(positions["rollout_step"].iloc[at]))
        tables = {}
        for kind in ("update", "rollout"):  # a row without any metric of the kind is left out
            metrics = {
                ours: _first(columns, [name for name in names if names[name] == ours])
                for ours in dict.fromkeys(names.values())
                if kind == ("rollout" if ours in LOG_ONLY else METRICS[ours].kind)
            }
            if kind == "rollout":
                metrics |= {name: columns[name] for name in columns if log_names.PART.fullmatch(name)}
            table = pd.DataFrame(metrics, index=columns.index)
            tables[f"{kind}s"] = pd.concat([positions, table], axis=1)[table.notna().any(axis=1)].reset_index(drop=True)
        if alike:
            told = (exact if framework == log_names.OTHER else {}) | alike
            pairs = ", ".join(f"`{printable(name)}` is read as {ours}" for name, ours in told.items())
            self.readings.append(f"by likeness: {pairs}")
        evaluations = self._evaluations(columns, positions, kept)
        return RunLog(
            run=printable(run),
            framework=framework,
            rows=len(rows),
            **tables,
            evaluations=evaluations,
            not_finite=not_finite,
            settings=_settings(framework, self.config),
            config=self.config,
            problems=tuple(self._problems(columns, foreign)),
            readings=tuple(self.readings),
        )

    def _evaluations(self, columns: pd.DataFrame, positions: pd.DataFrame, kept: NDArray[np.bool_]) -> pd.DataFrame:
        """Return the evaluations: in rows of their own, or in those of training. Say what was read as what.

        Of several data sets the mean counts, over those that were evaluated most often.
        """
        if not self.evaluations and not any(_evaluated(name) for name in columns):
            return pd.DataFrame()
        places, kept_before = positions["rollout_step"], np.concatenate([[0], np.cumsum(kept)])
        own = pd.DataFrame([row for _, row in self.evaluations], dtype=np.float64)
        before = [int(kept_before[at]) - 1 for at, _ in self.evaluations]
        place = pd.Series([int(places.iloc[at]) if at >= 0 else 0 for at in before], own.index, dtype=np.float64)
        if "iteration" not in positions:  # else places are no steps
            place = _first(own, log_names.STEPS).fillna(place)
        columns = pd.concat([columns, own.where(np.isfinite(own))], ignore_index=True)
        steps = (
            pd.concat([places, place.clip(-(2**53), 2**53)], ignore_index=True).astype(int).sort_values(kind="stable")
        )
        columns = columns.loc[steps.index]
        sources: dict[str, list[str]] = defaultdict(list)
        for name in columns:
            if (ours := _evaluated(name)) and columns[name].notna().any() and _may_be(ours, columns[name]):
                sources[ours].append(name)
        table = pd.DataFrame({"rollout_step": steps})
        for ours, names in sources.items():
            exact = [name for name in names if log_names.evaluation(name)] or names
            counts = columns[exact].notna().sum()
            read = [name for name in exact if counts[name] == counts.max()]
            if not columns[read].notna().all(axis=1).any():  # they were never evaluated together
                read = read[:1]
            table[ours] = columns[read].mean(axis=1).where(columns[read].notna().all(axis=1))
            by = "" if log_names.evaluation(read[0]) else " by likeness"
            words = ", ".join(f"`{printable(name).replace('_at_', '@')}`" for name in read[:4])
            mean = f"the mean of {len(read)} data sets, {words}" if len(read) > 1 else words
            self.readings.append(f"evaluations: {ours} is {mean}{by}: {_course(table, ours)}")
        found = table.drop(columns="rollout_step").notna().any(axis=1)
        return table[found].reset_index(drop=True)

    def _problems(self, columns: pd.DataFrame, foreign: int) -> Iterator[str]:
        if self.damaged:
            yield f"lines that are half written or cut off: {self.damaged}"
        if foreign:
            yield f"rows under the names of another framework: {foreign}"
        if backwards := int((_first(columns, log_names.STEPS).diff() < 0).sum()):
            yield (
                f"whether rows were written twice: the step number falls {backwards} times, as after a resume or where"
                " runs share a file; all rows are read"
            )


def _alike(written: pd.DataFrame, names: Iterable[str], exact: Collection[str]) -> dict[str, str]:
    """Return names that are like a metric's that no exact name is, one name a metric: that with most values."""
    best: dict[str, str] = {}
    for name in names:
        ours = None if name in log_names.STEPS or _evaluated(name) else log_names.likeness(name)
        if ours and ours not in exact and _may_be(ours, written[name]):
            other = best.setdefault(ours, name)
            best[ours] = max(other, name, key=lambda one: written[one].count())
    return {name: ours for ours, name in best.items() if best.keys() - {"learning_rate"}}


def _evaluated(name: str) -> str | None:
    """Return our metric if a name is that of an evaluation's, exactly or by likeness."""
    ours = log_names.evaluation(name) or log_names.likeness(name) or ""
    return ours if ours.startswith("eval/") else None


def _may_be(ours: str, values: pd.Series) -> bool:
    return ours not in log_names.SHARES or bool(values.dropna().between(0, 1).all())


def _course(table: pd.DataFrame, metric: str) -> str:
    """Return `0.41 at step 0, 0.55 at step 100 (11 of them)`."""
    rows = table[table[metric].notna()]
    ends = [rows.iloc[0], rows.iloc[-1]] if len(rows) > 1 else [rows.iloc[0]]
    said = ", ".join(f"{row[metric]:.3g} at step {int(row['rollout_step'])}" for row in ends)
    return f"{said} ({len(rows)} of them)"


def _first(columns: pd.DataFrame, names: Iterable[str]) -> pd.Series:
    """Return for each row the first number under one of the names."""
    first, *others = [columns[name] for name in names if name in columns] or [pd.Series(np.nan, columns.index)]
    for other in others:
        first = first.fillna(other)
    return first


def _positions(framework: str, columns: pd.DataFrame) -> pd.DataFrame:
    """Return `rollout_step`; also `iteration` and `minibatch`, if a row is one step and fresh batches are marked."""
    step, fresh = _first(columns, log_names.STEPS), columns.get(FRESH_BATCH.get(framework, ""))
    if fresh is None or not (step.diff()[1:] == 1).all() or step.isna().all() or math.isnan(fresh.iloc[0]):
        places = (
            step.ffill().fillna(0) if columns.columns.intersection(log_names.STEPS).size else columns.index.to_series()
        )
        return pd.DataFrame({"rollout_step": places.clip(-(2**53), 2**53).astype(int)})
    begins = fresh.notna()
    batch = begins.cumsum() - 1
    return pd.DataFrame({"rollout_step": batch, "iteration": begins.groupby(batch).cumcount(), "minibatch": 0})


def _settings(framework: str, config: LoggedRow) -> dict[str, Any]:
    settings = {
        ours: value if (value := log_names.number(config[theirs])) is not None else config[theirs]
        for theirs, ours in SETTINGS.get(framework, {}).items()
        if config.get(theirs) is not None and isinstance(config[theirs], str | int | float)
    }
    if not settings.pop("use_kl_loss", True):
        settings["beta"] = 0.0
    batch, part = (log_names.number(settings.get(name)) for name in (_WHOLE, _PART))
    if batch and settings.pop(_PART, None) and part:
        settings["num_minibatches"] = math.ceil(batch / part)
    if framework == "trl":
        settings.pop(_WHOLE, None)
    return settings


# --- formats ---------------------------------------------------------------------------------------------------------


def _document_rows(head: str, file: TextIO, collected: _Collector) -> Iterator[LoggedRow]:
    """Yield the rows of a JSON document, a list or one object; of a truncated document, those before its end."""
    buffer, decoder = head, json.JSONDecoder()
    history = re.search(r'"log_history"\s*:\s*\[', buffer)
    position = history.end() if history else len(buffer) - len(buffer.lstrip())
    if not history and buffer[position : position + 1] == "[":
        position += 1
    while True:
        position = BETWEEN.match(buffer, position).end()  # type: ignore[union-attr]  # it matches nothing, too
        try:
            if buffer[position : position + 1] == "]":
                return
            row, position = decoder.raw_decode(buffer, position)
        except (ValueError, RecursionError):
            more = file.read(BLOCK) if len(buffer) - position < LONGEST_OBJECT else ""
            if not more:
                collected.damaged += position < len(buffer)
                return
            buffer, position = buffer[position:] + more, 0
            continue
        if isinstance(row, dict):
            yield flatten(row)
