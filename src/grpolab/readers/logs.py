"""Read the log of another framework's run, a file or rows of a tracker, into our metrics.

A file is read in pieces and only known metrics are kept, so a large file costs time but no memory. Formats:

- JSON: `log_history` of a trainer_state.json, or a list of rows (an export of W&B or trackio)
- .csv and .tsv: one row a step, under the names of a framework, perhaps behind `train/` or a run's name
- lines: a JSON object, or a Python dict with progress bars around it (TRL, ms-swift), or verl's `step:N - name:value`,
  with colours and Ray's `(TaskRunner pid=1)` in front; between them the config as verl and ms-swift print it

verl and ROLL log one row a batch, a mean over its updates; TRL one row every `logging_steps` optimiser steps.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd

from grpolab.errors import RequestError, printable
from grpolab.framework_names import FRESH_BATCH, LOG_NAMES, LOG_ONLY, TRL_NAMES, VERL_NAMES
from grpolab.identity import dotted
from grpolab.meanings import METRICS

LoggedRow = Mapping[str, Any]

# Framework -> its name -> ours. `grpolab`: our own metrics in MLflow, where the run folder is elsewhere.
NAMES = LOG_NAMES | {
    "grpolab": {name: name for name, metric in METRICS.items() if metric.kind in ("update", "rollout")}
}
STEPS = ("step", "training/global_step", "global_step", "global_step/max_steps", "system/global_step", "_step", "Step")
RATES = ("learning_rate", "actor/lr")  # a printed config has these too, so a rate alone makes no row
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
MOST_CONFIG_LINES = 5000

BETWEEN = re.compile(r"[\s,]*")
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WORKER = re.compile(r"\([^()]{0,80}\bpid=(\d+)[^()]{0,80}\) ?")  # Ray: the process that printed the line
FLAT = re.compile(r"\{[^{}]*\}")
NUMBER = r"[-+]?(?:nan|inf(?:inity)?|\d[\d.eE+/-]*)"
PAIR = re.compile(
    rf"""['"]([^'"]{{1,200}})['"]\s*:\s*(?:[\w.]{{1,30}}\()?['"]?({NUMBER})(?=['"\s,)}}])""", re.IGNORECASE
)
VERL_ROW = re.compile(r"(?:^|\s)step:(\d+) - (.*)")
VERL_VALUE = re.compile(rf"(?:[\w.]{{1,30}}\()?({NUMBER})\)?", re.IGNORECASE)
ARGUMENTS = re.compile(r"(?:GRPO|RLHF)\w{0,40}\(")  # GRPOConfig(...), RLHFArguments(...)
ARGUMENT = re.compile(rf"\b(\w+)=['\"]?({NUMBER}|\w+)['\"]?\s*[,)]")


@dataclass(frozen=True, eq=False)
class RunLog:
    """The numbers of one run under our names; a row of `updates` may be a mean over several updates."""

    run: str
    framework: str
    rows: int
    updates: pd.DataFrame
    rollouts: pd.DataFrame
    not_finite: Mapping[str, Sequence[int]]  # metric -> steps where it is NaN or infinite
    settings: Mapping[str, Any]  # what the printed config says of our settings
    config: Mapping[str, Any]  # the whole printed config, dotted, under the framework's own names
    problems: tuple[str, ...]  # what could not be read, one sentence each


def read_log(framework: str | None, path: Path) -> RunLog:
    """Return the numbers in a log file. `framework` None: the one that most metric names fit.

    Raises RequestError if the file cannot be read, or holds no known metric.
    """
    collected = _Collector()
    try:
        if not path.is_file():
            what = "it is no file" if path.exists() else "there is no such file"
            raise RequestError(f"FILE={path} cannot be read as a log: {what}")
        with path.open("rb") as binary:  # PowerShell redirects in UTF-16
            encoding = "utf-16" if binary.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with path.open(encoding=encoding, errors="replace", newline=None) as file:
            head = file.read(BLOCK)
            if "\0" in head:
                raise RequestError(f"FILE={path} cannot be read as a log: it is no text")
            first = head.lstrip()[:1]
            if path.suffix in (".csv", ".tsv"):
                collected.add(_csv_rows(path, chain(head.splitlines(keepends=True), file)))
            elif first == "[" or path.suffix == ".json" or (first == "{" and '"log_history"' in head):
                collected.add(_document_rows(head, file, collected))
            else:
                file.seek(0)
                collected.add(_line_rows(file, collected))
    except (OSError, csv.Error) as error:
        raise RequestError(f"FILE={path} cannot be read as a log: {error}") from error
    return collected.as_log(framework, path.name)


def read_rows(run: str, rows: Iterable[LoggedRow]) -> RunLog:
    """Return the numbers in a tracked run's rows. Raises RequestError if they hold no known metric."""
    collected = _Collector()
    collected.add(rows)
    return collected.as_log(None, run)


def _as_tracked(name: str) -> str:
    """Spell a metric's name as MLflow does (verl writes `_at_` for `@`), without a tracker's prefix."""
    name = name.rpartition(" - ")[2].removeprefix("train/")  # `run - train/loss` in a chart of W&B
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_")).replace(" / ", "/")


TRACKED = {of: {_as_tracked(theirs): ours for theirs, ours in names.items()} for of, names in NAMES.items()}
KNOWN = {name for names in TRACKED.values() for name in names} | {*STEPS, *FRESH_BATCH.values()}
TELLING = KNOWN.difference(STEPS, RATES, FRESH_BATCH.values())  # one of these makes a row of training


@lru_cache(4096)
def _known(name: str) -> str | None:
    known = _as_tracked(name)
    return known if known in KNOWN else None


class _Collector:
    """The known numbers of a log's rows, under the names that are written there."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.config: dict[str, Any] = {}
        self.damaged = 0  # rows that could not be read

    def add(self, rows: Iterable[LoggedRow]) -> None:
        """Keep the known numbers of the rows that are about training."""
        for row in rows:
            numbers = {}
            for name, written in row.items():
                if (known := _known(name)) and (value := _number(written)) is not None:
                    numbers[known] = value
            if not TELLING.isdisjoint(numbers) and "train_runtime" not in row:  # the summary at the end of TRL's log
                self.rows.append(numbers)

    def as_log(self, framework: str | None, run: str) -> RunLog:
        """Return the rows under our names. Raises RequestError if no name is one of the framework's."""
        written = pd.DataFrame(self.rows, dtype=np.float64)
        odd = [(at, name) for at, row in enumerate(self.rows) for name in row if not math.isfinite(row[name])]
        columns = written.where(np.isfinite(written))
        telling = {
            of: np.array([not TELLING.isdisjoint(names.keys() & row) for row in self.rows], dtype=bool)
            for of, names in TRACKED.items()
        }
        best = max(telling, key=lambda of: (telling[of].sum(), len(NAMES[of].keys() & columns)))
        if framework is None and telling[best].any():
            framework = best
        if not framework or not telling[framework].any():
            expected = ", ".join(list(NAMES[framework])[:6]) if framework else ", ".join(NAMES)
            by = f"that {framework} logs of an update" if framework else "of an update that the doctor knows"
            other = f"; its names are {best}'s" if telling[best].any() else ""
            raise RequestError(f"FILE={run} holds no metric {by} ({expected}, ...){other}")
        rows, names = telling[framework], TRACKED[framework]
        positions = _positions(framework, columns)
        not_finite: dict[str, list[int]] = defaultdict(list)
        for at, name in odd:
            if name in names:
                not_finite[names[name]].append(int(positions["rollout_step"].iloc[at]))
        tables = {}
        for kind in ("update", "rollout"):  # a row without any metric of the kind is left out
            metrics = {
                ours: _first(columns, [name for name in names if names[name] == ours])
                for name, ours in names.items()
                if name in columns and kind == ("rollout" if ours in LOG_ONLY else METRICS[ours].kind)
            }
            table = pd.DataFrame(metrics, index=columns.index)
            kept = rows & table.notna().any(axis=1)
            tables[f"{kind}s"] = pd.concat([positions, table], axis=1)[kept].reset_index(drop=True)
        return RunLog(
            run=printable(run),
            framework=framework,
            rows=int(rows.sum()),
            **tables,
            not_finite=not_finite,
            settings=_settings(framework, self.config),
            config=self.config,
            problems=tuple(self._problems(columns, int((~rows).sum()))),
        )

    def _problems(self, columns: pd.DataFrame, foreign: int) -> Iterator[str]:
        if self.damaged:
            yield f"lines that are half written or cut off: {self.damaged}"
        if foreign:
            yield f"rows under the names of another framework: {foreign}"
        if backwards := int((_first(columns, STEPS).diff() < 0).sum()):
            yield (
                f"whether rows were written twice: the step number falls {backwards} times, as after a resume or where"
                " runs share a file; all rows are read"
            )


def _number(written: Any) -> float | None:
    """Read a number as logs write it: 0.5, '0.5', '17/124' (17 of 124), nan. Return None for anything else."""
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


def _first(columns: pd.DataFrame, names: Iterable[str]) -> pd.Series:
    """Return for each row the first number under one of the names."""
    first, *others = [columns[name] for name in names if name in columns] or [pd.Series(np.nan, columns.index)]
    for other in others:
        first = first.fillna(other)
    return first


def _positions(framework: str, columns: pd.DataFrame) -> pd.DataFrame:
    """Return `rollout_step`; also `iteration` and `minibatch`, if a row is one step and fresh batches are marked."""
    step, fresh = _first(columns, STEPS), columns.get(FRESH_BATCH.get(framework, ""))
    if fresh is None or not (step.diff()[1:] == 1).all() or step.isna().all() or math.isnan(fresh.iloc[0]):
        places = step.ffill().fillna(0) if columns.columns.intersection(STEPS).size else columns.index.to_series()
        return pd.DataFrame({"rollout_step": places.clip(-(2**53), 2**53).astype(int)})
    begins = fresh.notna()
    batch = begins.cumsum() - 1
    return pd.DataFrame({"rollout_step": batch, "iteration": begins.groupby(batch).cumcount(), "minibatch": 0})


def _settings(framework: str, config: LoggedRow) -> dict[str, Any]:
    """Return those of our settings that a printed config determines."""
    settings = {
        ours: number if (number := _number(config[theirs])) is not None else config[theirs]
        for theirs, ours in SETTINGS.get(framework, {}).items()
        if config.get(theirs) is not None and isinstance(config[theirs], str | int | float)
    }
    if not settings.pop("use_kl_loss", True):
        settings["beta"] = 0.0
    batch, part = (_number(settings.get(name)) for name in (_WHOLE, _PART))
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
            yield _flatten(row)


def _flatten(row: dict[str, Any]) -> LoggedRow:
    """Move nested metrics to the top level: verl's `data`, trackio's `metrics`."""
    inner = [part for part in row.values() if isinstance(part, dict)]
    return row if not inner else {name: value for part in (*inner, row) for name, value in part.items()}


def _csv_rows(path: Path, lines: Iterable[str]) -> Iterator[LoggedRow]:
    """Yield the rows of a table. Raises RequestError if it has columns of several runs."""
    table = csv.DictReader(lines, delimiter="\t" if path.suffix == ".tsv" else ",", restkey="")
    names = Counter(known for name in table.fieldnames or () if (known := _known(name)) in TELLING)
    if names and (runs := max(names.values())) > 1:
        raise RequestError(f"FILE={path.name} holds {runs} runs side by side: export one run to a file")
    for row in table:
        yield {name: value for name, value in row.items() if name and value}  # cells beyond the head have no name


def _line_rows(file: TextIO, collected: _Collector) -> Iterator[LoggedRow]:
    """Yield the rows among the lines of a console; keep a config that is printed between them."""
    printed = _PrintedConfig()
    for line in iter(lambda: file.readline(BLOCK), ""):
        text = ANSI.sub("", line) if "\x1b" in line else line
        worker = WORKER.match(text) if text.startswith("(") else None
        text = text[worker.end() :] if worker else text
        if config := printed.add(worker[1] if worker else "", text):
            collected.config |= config
            yield config  # a row that is printed over several lines looks the same
        elif "step:" in text and (verl := VERL_ROW.search(text)):
            yield _verl_row(verl)
        elif "{" in text:
            yield from _object_rows(text, collected)


def _object_rows(line: str, collected: _Collector) -> Iterator[LoggedRow]:
    """Yield a line that is a JSON object, or the dicts in it."""
    is_json = line.startswith('{"')
    if is_json:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            pass
        else:
            yield _flatten(row)
            return
    rows = [_flat_row(match[0]) for match in FLAT.finditer(line) if ":" in match[0]]
    collected.damaged += is_json and not any(rows) and not TELLING.isdisjoint(name for name, _ in PAIR.findall(line))
    yield from rows


def _flat_row(text: str) -> LoggedRow:
    """Read a flat dict as JSON or Python writes it, also with `nan` and `np.float64(..)`."""
    try:
        return dict(json.loads(text.replace("'", '"')))  # the fast way, for what is nearly JSON
    except (ValueError, RecursionError):
        return dict(PAIR.findall(text))


def _verl_row(match: re.Match[str]) -> LoggedRow:
    """Read `step:3 - actor/lr:0.000 - actor/kl_loss:np.float64(0.1)`. Older verl rounds to .001: 0 may be any size."""
    row: dict[str, Any] = {"step": match[1]}
    for part in match[2].split(" - "):
        name, _, written = part.rpartition(":")
        value = VERL_VALUE.match(written) if _known(name) else None
        if value and not (value[1].endswith("0.000") and name in ("actor/lr", "actor/grad_norm")):
            row[name] = value[1]
    return row


class _PrintedConfig:
    """A config that is printed over several lines: verl's dict, transformers' `GRPOConfig(beta=0.0, ...)`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, worker: str, line: str) -> dict[str, Any]:
        """Take one more line. If the config ends with it, return the config with dotted keys; else nothing."""
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
