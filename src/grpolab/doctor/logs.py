"""Logs of other frameworks as evidence, as they are: a file, or the metrics of a tracked run, read in one way.

A file is read in pieces and only the numbers that the doctor knows are kept, so that its size is bounded by time and
not by memory. What a line is follows from what it looks like:

- JSON: `log_history` of a trainer_state.json, or a list of rows (an export of W&B or trackio)
- .csv and .tsv: a row a step, under the names of a framework, `train/` or a run's name before them
- lines: a JSON object, or Python's dict with progress bars around it (TRL, ms-swift), or verl's `step:N - name:value`,
  with colours and Ray's `(TaskRunner pid=1)` before it; and between them the config as verl and ms-swift print it

verl and ROLL log a row a batch, a mean over its updates; TRL a row every `logging_steps` optimiser steps.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.doctor.evidence import TABLES, Evidence
from grpolab.errors import RequestError, printable
from grpolab.framework_names import FRESH_BATCH, LOG_NAMES, LOG_ONLY, TRL_NAMES, VERL_NAMES
from grpolab.identity import dotted
from grpolab.report.text import count, listing
from grpolab.vocabulary import METRICS

Row = Mapping[str, Any]
Columns = Mapping[str, NDArray[np.float64]]

# Framework -> its name -> ours; `grpolab` is a mirror of ours whose folder is not here.
NAMES = LOG_NAMES | {
    "grpolab": {name: name for name, metric in METRICS.items() if metric.kind in ("update", "rollout")}
}
STEPS = ("step", "training/global_step", "global_step", "global_step/max_steps", "system/global_step", "_step", "Step")
# A config, too, has a learning rate: a row of a log says something besides.
RATES = ("learning_rate", "actor/lr")
# What of a printed config the rules use -> ours.
_A = "actor_rollout_ref.actor."
SETTINGS = {
    "trl": TRL_NAMES | {name: name for name in ("beta", "num_iterations", "max_grad_norm", "loss_type")},
    "verl": VERL_NAMES
    | {
        f"{_A}use_kl_loss": "use_kl_loss",
        f"{_A}kl_loss_coef": "beta",
        "algorithm.adv_estimator": "advantage_estimator",
    },
}
NOT_IN_A_LOG = (
    "the settings (epsilon, beta, num_iterations, max_grad_norm, warm-up): they are not in such a log",
    "advantages and single tokens: they are not in such a log",
)

BLOCK = 1 << 20  # characters that are read at once; a longer line is cut there
LONGEST_OBJECT = 8 << 20  # characters of one row of JSON
MOST_CONFIG_LINES = 5000

BETWEEN = re.compile(r"[\s,]*")
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WORKER = re.compile(r"\([^()]{0,80}\bpid=(\d+)[^()]{0,80}\) ?")  # Ray: which process printed the line
FLAT = re.compile(r"\{[^{}]*\}")
NUMBER = r"[-+]?(?:nan|inf(?:inity)?|\d[\d.eE+/-]*)"
PAIR = re.compile(
    rf"""['"]([^'"]{{1,200}})['"]\s*:\s*(?:[\w.]{{1,30}}\()?['"]?({NUMBER})(?=['"\s,)}}])""", re.IGNORECASE
)
VERL_ROW = re.compile(r"(?:^|\s)step:(\d+) - (.*)")
VERL_VALUE = re.compile(rf"(?:[\w.]{{1,30}}\()?({NUMBER})\)?", re.IGNORECASE)
ARGUMENTS = re.compile(r"(?:GRPO|RLHF)\w{0,40}\(")  # GRPOConfig(...), RLHFArguments(...)
ARGUMENT = re.compile(rf"\b(\w+)=['\"]?({NUMBER}|\w+)['\"]?\s*[,)]")


def read_log(framework: str | None, path: Path) -> Evidence:
    """The evidence in a log file, of the framework, or of that which most of its names are from.

    Raises RequestError where it cannot be read, or holds no metric that the doctor knows.
    """
    log = Log()
    try:
        if not path.is_file():
            what = "it is no file" if path.exists() else "there is no such file"
            raise RequestError(f"FILE={path} cannot be read as a log: {what}")
        with path.open(encoding=_encoding(path), errors="replace", newline=None) as file:
            head = file.read(BLOCK)
            if "\0" in head:
                raise RequestError(f"FILE={path} cannot be read as a log: it is no text")
            if path.suffix in (".csv", ".tsv"):
                log.add_rows(_csv_rows(path, chain(head.splitlines(keepends=True), file)))
            elif _is_document(head, path):
                log.add_rows(_document_rows(head, file, log))
            else:
                file.seek(0)
                log.add_rows(_line_rows(file, log))
    except (OSError, csv.Error) as error:
        raise RequestError(f"FILE={path} cannot be read as a log: {error}") from error
    return log.evidence(framework, path.name)


def read_rows(run: str, rows: Sequence[Row]) -> Evidence:
    """The metrics of a run that was tracked elsewhere: of the framework that most of their names are from.

    Raises RequestError where no name is known.
    """
    log = Log()
    log.add_rows(rows)
    return log.evidence(None, run)


def plain(name: str) -> str:
    """A metric's name as MLflow has it (verl writes `_at_` for `@`, transformers `_`), without a tracker's prefix."""
    name = name.rpartition(" - ")[2].removeprefix("train/")  # `run - train/loss` in a chart of W&B
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_")).replace(" / ", "/")


PLAIN = {of: {plain(theirs): ours for theirs, ours in names.items()} for of, names in NAMES.items()}
KNOWN = {plain(name) for names in NAMES.values() for name in names} | {*STEPS, *FRESH_BATCH.values()}
TELLING = KNOWN.difference(STEPS, RATES, FRESH_BATCH.values())


@lru_cache(4096)
def _known(name: str) -> str | None:
    """`name` as the tables here have it; None where none does."""
    known = plain(name)
    return known if known in KNOWN else None


class Log:
    """Rows of a log as columns of numbers, under the names that are written there."""

    def __init__(self) -> None:
        self.rows = 0
        self.columns: dict[str, array[float]] = {}
        self.not_finite: list[tuple[int, str]] = []  # row and name
        self.config: dict[str, Any] = {}  # as it was printed
        self.damaged = 0  # rows that could not be read

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Those rows that say something of training."""
        for row in rows:
            numbers = {}
            for name, written in row.items():
                if (known := _known(name)) and (value := _number(written)) is not None:
                    numbers[known] = value
            if TELLING.isdisjoint(numbers) or "train_runtime" in row:  # the summary at the end of TRL's
                continue
            for name, value in numbers.items():
                column = self.columns.setdefault(name, array("d"))
                if gap := self.rows - len(column):
                    column.extend([math.nan] * gap)
                if not math.isfinite(value):
                    self.not_finite.append((self.rows, name))
                    value = math.nan
                column.append(value)
            self.rows += 1

    def evidence(self, framework: str | None, run: str) -> Evidence:
        """The rows under our names. Raises RequestError where none of theirs is known."""
        columns = {name: self._whole(name) for name in self.columns}
        told_by = {of: self._rows_of(columns, names.keys()) for of, names in PLAIN.items()}
        best = max(told_by, key=lambda of: (told_by[of].sum(), len(columns.keys() & NAMES[of])))
        is_known = bool(told_by[best].any())
        if framework is None and is_known:
            framework = best
        if not framework or not told_by[framework].any():
            expected = ", ".join(list(NAMES[framework])[:6]) if framework else ", ".join(NAMES)
            by = f"that {framework} logs of an update" if framework else "of an update that the doctor knows"
            other = f"; its names are {best}'s" if is_known else ""
            raise RequestError(f"FILE={run} holds no metric {by} ({expected}, ...){other}")
        told = told_by[framework]
        names = PLAIN[framework]
        of_ours: dict[str, list[str]] = defaultdict(list)
        for theirs, ours in names.items():
            if theirs in columns:
                of_ours[ours].append(theirs)
        metrics = {ours: _first(columns, among) for ours, among in of_ours.items()}
        positions = _positions(framework, columns, self.rows)
        not_finite: dict[str, list[int]] = defaultdict(list)
        for row, name in self.not_finite:
            if name in names:
                not_finite[names[name]].append(int(positions["rollout_step"][row]))
        tables = {}
        for kind in ("update", "rollout"):  # rows without any metric of the kind are left out
            of_kind = {
                name: column
                for name, column in metrics.items()
                if ("rollout" if name in LOG_ONLY else METRICS[name].kind) == kind
            }
            kept = told & np.any([~np.isnan(column) for column in of_kind.values()] or [np.zeros_like(told)], axis=0)
            tables[TABLES[kind]] = pd.DataFrame({name: both[kept] for name, both in (positions | of_kind).items()})
        settings = _settings(framework, self.config)
        return Evidence(
            run=printable(run),
            state=f"a log of {framework} with {count(int(told.sum()), 'row')}",
            settings=settings,
            unknown=tuple(self._unknown(settings, columns, int((~told).sum()))),
            not_finite=not_finite,
            framework=framework,
            config=self.config,
            **tables,
        )

    def _rows_of(self, columns: Columns, names: Collection[str]) -> NDArray[np.bool_]:
        """Which rows say something of training under these names."""
        telling = np.zeros(self.rows, dtype=bool)
        for name in TELLING.intersection(columns, names):
            telling |= ~np.isnan(columns[name])
        telling[[row for row, name in self.not_finite if name in names]] = True
        return telling

    def _whole(self, name: str) -> NDArray[np.float64]:
        """A column with the places filled that later rows did not name."""
        column = np.full(self.rows, np.nan)
        column[: len(self.columns[name])] = self.columns[name]
        return column

    def _unknown(self, settings: Row, columns: Columns, foreign: int) -> Iterator[str]:
        if settings:
            read = listing([f"{key}={_short(value)}" for key, value in settings.items()], 8)
            yield f"settings other than those that the log prints ({read})"
        else:
            yield NOT_IN_A_LOG[0]
        yield NOT_IN_A_LOG[1]
        if self.damaged:
            yield f"{count(self.damaged, 'line')} that cannot be read: half written, or cut off"
        if foreign:
            yield f"{count(foreign, 'row')} under the names of another framework"
        backwards = int((np.diff(_first(columns, STEPS)) < 0).sum())
        if backwards:
            yield (
                f"what was written twice: the steps go back {count(backwards, 'time')}, as where a run was resumed or"
                " several share a file; all rows are taken as they come"
            )


def _number(written: Any) -> float | None:
    """A number as people's logs write it: 0.5, '0.5', '17/124' (17 of 124), nan; None for anything else."""
    if type(written) is float:
        return written
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        return None
    try:
        return float(written)
    except OverflowError:
        return None
    except ValueError:
        whole, slash, _ = str(written).partition("/")
        return _number(whole) if slash else None


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _first(columns: Columns, names: Iterable[str]) -> NDArray[np.float64]:
    """In each row the first number that stands under one of the names; empty where no column has any of them."""
    found = [columns[name] for name in names if name in columns]
    first = found[0] if found else np.empty(0)
    for other in found[1:]:
        first = np.where(np.isnan(first), other, first)
    return first


def _positions(framework: str, columns: Columns, rows: int) -> dict[str, NDArray[Any]]:
    """rollout_step, and iteration and minibatch where each row is one optimiser step and fresh batches are marked."""
    step, mark = _first(columns, STEPS), columns.get(FRESH_BATCH.get(framework, ""))
    is_each = len(step) > 0 and bool((np.diff(step) == 1).all())
    if mark is None or not is_each or np.isnan(mark[0]):
        written = np.maximum.accumulate(np.where(np.isnan(step), -1, np.arange(len(step))))  # the last row with a step
        places = np.where(written < 0, 0.0, step[written]) if len(step) else np.arange(rows)
        return {"rollout_step": places.clip(-(2**53), 2**53).astype(int)}
    begins = ~np.isnan(mark)
    batch = begins.cumsum() - 1
    return {"rollout_step": batch, "iteration": np.arange(rows) - np.flatnonzero(begins)[batch], "minibatch": batch * 0}


def _settings(framework: str, config: Row) -> dict[str, Any]:
    """What of a printed config the rules use, under our names."""
    settings = {
        ours: number if (number := _number(config[theirs])) is not None else config[theirs]
        for theirs, ours in SETTINGS.get(framework, {}).items()
        if config.get(theirs) is not None and isinstance(config[theirs], str | int | float)
    }
    if not settings.pop("use_kl_loss", True):
        settings["beta"] = 0.0
    return settings


# --- what a file is made of ------------------------------------------------------------------------------------------


def _encoding(path: Path) -> str:
    """UTF-8, or UTF-16 where the mark of PowerShell's redirection says so."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _is_document(head: str, path: Path) -> bool:
    """One JSON value over the whole file, and no line is a row of its own."""
    begins = head.lstrip()[:1]
    if begins == "[" or path.suffix == ".json":
        return True
    return begins == "{" and '"log_history"' in head


def _document_rows(head: str, file: TextIO, log: Log) -> Iterator[Row]:
    """The rows of the list in it, or the one object that it is; up to where it was cut off."""
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
                log.damaged += position < len(buffer)
                return
            buffer, position = buffer[position:] + more, 0
            continue
        if isinstance(row, dict):
            yield _flat(row)


def _flat(row: dict[str, Any]) -> Row:
    """A row with the metrics that it holds one level down: verl's `data`, trackio's `metrics`."""
    inner = [part for part in row.values() if isinstance(part, dict)]
    return row if not inner else {name: value for part in (*inner, row) for name, value in part.items()}


def _csv_rows(path: Path, lines: Iterable[str]) -> Iterator[Row]:
    """A row a step. Raises RequestError where the columns are those of several runs."""
    table = csv.DictReader(lines, delimiter="\t" if path.suffix == ".tsv" else ",", restkey="")
    names = Counter(known for name in table.fieldnames or () if (known := _known(name)) in TELLING)
    if names and (runs := max(names.values())) > 1:
        raise RequestError(f"FILE={path.name} holds {runs} runs side by side: export one run to a file")
    for row in table:
        yield {name: value for name, value in row.items() if name and value}  # what is beyond the head has no name


def _line_rows(file: TextIO, log: Log) -> Iterator[Row]:
    """The rows among the lines of a console; what of a config is printed between them goes into `log.config`."""
    printed = Printed()
    for line in iter(lambda: file.readline(BLOCK), ""):
        text = ANSI.sub("", line) if "\x1b" in line else line
        worker = WORKER.match(text) if text.startswith("(") else None
        text = text[worker.end() :] if worker else text
        if config := printed.add(worker[1] if worker else "", text):
            log.config |= config
            yield config  # a row that is printed over several lines looks the same
        elif "step:" in text and (verl := VERL_ROW.search(text)):
            yield _verl_row(verl)
        elif "{" in text:
            yield from _object_rows(text, log)


def _object_rows(line: str, log: Log) -> Iterator[Row]:
    """A line that is a JSON object, or the dicts in it."""
    is_json = line.startswith('{"')
    if is_json:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            pass
        else:
            yield _flat(row)
            return
    flat = [_flat_row(found[0]) for found in FLAT.finditer(line) if ":" in found[0]]
    log.damaged += is_json and not any(flat) and not TELLING.isdisjoint(name for name, _ in PAIR.findall(line))
    yield from flat


def _flat_row(text: str) -> Row:
    """A dict without dicts in it, as JSON or Python writes it, or with `nan` and `np.float64(..)`."""
    try:
        return dict(json.loads(text.replace("'", '"')))  # the fast way, for what is nearly JSON
    except (ValueError, RecursionError):
        return dict(PAIR.findall(text))


def _verl_row(found: re.Match[str]) -> Row:
    """`step:3 - actor/lr:0.000 - actor/kl_loss:np.float64(0.1)`. Older ones round to .001, where 0 may be any size."""
    row: dict[str, Any] = {"step": found[1]}
    for part in found[2].split(" - "):
        name, _, written = part.rpartition(":")
        value = VERL_VALUE.match(written) if _known(name) else None
        if value and not (value[1].endswith("0.000") and name in ("actor/lr", "actor/grad_norm")):
            row[name] = value[1]
    return row


class Printed:
    """A config that is printed over several lines: verl's dict, transformers' `GRPOConfig(beta=0.0, ...)`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.worker = ""  # Ray's process that prints it; other processes print between its lines
        self.brackets = "{}"
        self.depth = 0

    def add(self, worker: str, line: str) -> dict[str, Any]:
        """One more line of the log. The config, dotted, when it ends there; nothing that cannot be read."""
        if not self.lines:
            arguments = ARGUMENTS.search(line) if "GRPO" in line or "RLHF" in line else None
            if not arguments and not line.startswith("{'"):
                return {}
            self.brackets, self.worker, self.depth = "()" if arguments else "{}", worker, 0
        elif worker != self.worker:
            return {}
        self.lines.append(line)
        self.depth += line.count(self.brackets[0]) - line.count(self.brackets[1])
        if self.depth > 0 and len(self.lines) < MOST_CONFIG_LINES:
            return {}
        text, self.lines = "".join(self.lines), []
        if self.brackets == "()":
            return dict(ARGUMENT.findall(text))
        if text.count("\n") < 2:
            return {}  # a row
        try:
            config = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return {}
        return dict(dotted(config)) if isinstance(config, dict) else {}
