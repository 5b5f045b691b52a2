"""Logs as tables: of a notebook or a page (HTML), of an issue (Markdown), and charts of many runs that W&B exports."""

from __future__ import annotations

import csv
import html
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from grpolab.errors import RequestError, listing, printable
from grpolab.readers.log_names import STEPS, TELLING, known, likeness

PAGES = {".ipynb", ".html", ".htm", ".md", ".markdown"}
LARGEST_PAGE = 64 << 20  # characters of a page or notebook, which is read whole
LONGEST_LINE = 1 << 20  # characters of a table's head
MOST_CELLS, MOST_COLUMNS, LONGEST_CELL = 2_000_000, 1000, 1000
SHOWN_RUNS = 8
BOUNDS = ("__MIN", "__MAX", "__STEP")  # W&B: of the points that a point of a chart stands for

Table = list[dict[str, Any]]

_CELL = re.compile(r"<(/?(?:table|tr|t[hd]))\b[^<>]{0,2000}>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,2000}>")
_RULE = re.compile(r"[\s>]{0,20}\|?[ \t]*:?-{2,}:?[ \t]*(?:\|[ \t]*:?-{2,}:?[ \t]*){1,500}\|?\s*")
# 1,234.5 and 1,234,567; what 0,012 or 1,234 means depends on the country
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+\.\d+|[-+]?[1-9]\d{0,2}(?:,\d{3}){2,}")
_COUNT = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+")  # of a step, which is whole
_BESIDE_EVALUATION = "Validation Loss"  # transformers' column; it writes `eval_reward` as Reward beside it
_NAMES = {"Training Loss": "loss", _BESIDE_EVALUATION: "eval_loss"}


def has_table(text: str) -> bool:
    """Return True if there is a table in HTML or Markdown, or columns as a notebook's are copied."""
    return "<table" in text or any(_is_rule(line) or _separator(line) for line in text.splitlines())


def read_page(path: Path, text: str) -> tuple[list[Table], str]:
    """Return the tables in a page, or in a notebook's outputs, and the text, which may have a console's lines."""
    if len(text) > LARGEST_PAGE:
        raise RequestError(f"FILE={path.name} is larger than {LARGEST_PAGE >> 20} MiB, the most that is read of a page")
    if path.suffix.lower() == ".ipynb":
        text = "\n".join(_outputs(path, text))
    tables = [*_html_tables(path, text), *_text_tables(text.splitlines())]
    return tables, html.unescape(_TAG.sub("", text)) if "</" in text else text


def _outputs(path: Path, text: str) -> Iterator[str]:
    try:
        cells = json.loads(text)["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        for output in outputs:
            data = output.get("data", {})
            yield "".join(data.get("text/html") or output.get("text") or data.get("text/plain") or "")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"FILE={path.name} is no whole notebook: its outputs cannot be read") from error


def _html_tables(path: Path, text: str) -> Iterator[Table]:
    """Yield the tables of HTML, also if tags are not closed; a table within another one ends that."""
    rows: list[list[str]] = []
    in_cell = False
    end = 0
    for count, tag in enumerate(chain(_CELL.finditer(text), [None])):
        if count > MOST_CELLS:
            raise RequestError(f"FILE={path.name} has more than {MOST_CELLS:,} cells in its tables")
        if in_cell:
            content = text[end : tag.start() if tag else None][:LONGEST_CELL]
            rows[-1].append(html.unescape(_TAG.sub("", content)))
        kind = tag[1].lower() if tag else "/table"
        if kind in ("table", "/table"):
            yield from _table(rows)
            rows = []
        elif kind == "tr" or (kind in ("th", "td") and not rows):
            rows.append([])
        in_cell, end = kind in ("th", "td"), tag.end() if tag else 0


def _text_tables(lines: Sequence[str]) -> Iterator[Table]:
    """Yield the tables of Markdown, also in a quotation (`> `), and columns between tabs, as a notebook's are copied.

    A head without a rule below it has two names of metrics at least.
    """
    rows: list[list[str]] = []
    separator = ""
    for line, below in pairwise([*lines, ""]):
        if rows and separator in line:
            rows += [] if _is_rule(line) else [_cells(line, separator)]
        elif rows:
            yield from _table(rows)
            rows = []
        if not rows and (separator := "|" if "|" in line and _is_rule(below) else _separator(line)):
            rows = [_cells(line, separator)]
    yield from _table(rows)


def _is_rule(line: str) -> bool:
    return "--" in line and _RULE.fullmatch(line) is not None


def _separator(line: str) -> str:
    """Return what stands between the cells of a line that has names of metrics; '' if it has not."""
    for separator in ("\t", "|"):
        cells = _cells(line, separator)[:MOST_COLUMNS] if line.count(separator) > 1 else []
        if sum(known(_NAMES.get(cell.strip(), cell.strip())) in TELLING for cell in cells) > 1:
            return separator
    return ""


def _cells(line: str, separator: str) -> list[str]:
    return line.split("\t") if separator == "\t" else line.strip("> \t").removeprefix("|").removesuffix("|").split("|")


def _table(rows: list[list[str]]) -> Iterator[Table]:
    """Yield the rows under the names in the first one, if it names a metric."""
    head, *body = [[cell.strip().strip("*`").strip() for cell in row] for row in rows] or [[]]
    beside_evaluation = _BESIDE_EVALUATION in head
    names = [_name(name, beside_evaluation) for name in head[:MOST_COLUMNS]]
    if body and any(known(name) for name in names):
        yield [{name: _cell(name, cell) for name, cell in zip(names, row, strict=False) if known(name)} for row in body]


def _name(written: str, beside_evaluation: bool) -> str:
    """Return the metric's name of a column: `Rewards/format/mean` of an evaluation is `eval_rewards/format/mean`."""
    if written in _NAMES or known(written) in TELLING or written in STEPS:
        return _NAMES.get(written, written)
    name = re.sub(r"\s*/\s*", "/", written).lower().replace(" ", "_")
    return f"eval_{name}" if beside_evaluation and written[:1].isupper() else name


def _cell(name: str, written: str) -> str:
    is_plain = _THOUSANDS.fullmatch(written) or (known(name) in STEPS and _COUNT.fullmatch(written))
    return written.replace(",", "") if is_plain else written


def numbers_in(table: Iterable[Mapping[str, Any]]) -> int:
    """Return how many cells of a table are of training: of several tables, the one with most is the run's."""
    return sum(known(name) in TELLING or likeness(name) is not None for row in table for name in row)


# --- CSV, and charts of many runs ------------------------------------------------------------------------------------


def csv_rows(path: Path, lines: Iterable[str], run: str | None) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a table. If it is a chart of several runs, `run` chooses one; RequestError if it is None."""
    table = csv.DictReader(lines, delimiter="\t" if path.suffix == ".tsv" else ",", restkey="")
    names = table.fieldnames or ()
    runs = _runs(names)
    shown = listing([*map(printable, runs)], SHOWN_RUNS)
    if run is not None and run not in runs:
        there = f"its runs are {shown}" if runs else "it is no chart of several runs"
        raise RequestError(f"FILE={path.name} has no columns of a run {printable(run)}: {there}")
    if run is None and len(runs) > 1:
        raise RequestError(
            f"FILE={path.name} holds {len(runs)} runs side by side: {shown}; `--run NAME` chooses one, and"
            f" `grpolab report --from wandb-export {path.name}` reads all"
        )
    twice = [name for name, times in Counter(names).items() if times > 1 and known(name) in TELLING]
    if twice:
        raise RequestError(f"FILE={path.name} has several columns {printable(twice[0])}: which run is whose is unknown")
    of_others = {name for other, columns in runs.items() if other != run and len(runs) > 1 for name in columns}
    for row in table:  # cells beyond the head have no name
        cells = {name: value for name, value in row.items() if name and value and name not in of_others}
        yield {name: value for name, value in cells.items() if not name.endswith(BOUNDS)}


def chart_rows(paths: Sequence[Path], run: str) -> list[Mapping[str, Any]]:
    """Return the rows of a run in several charts, one row a step. Raises RequestError, OSError, csv.Error."""
    rows: dict[str, dict[str, Any]] = defaultdict(dict)
    for path in paths:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            for at, row in enumerate(csv_rows(path, file, run)):
                step = next((row[name] for name in row if known(name) in STEPS), at)
                rows[str(step)] |= row
    return list(rows.values())


def runs_of_chart(path: Path) -> list[str]:
    """Return the runs whose metrics the columns of a CSV file are (`brave-sea-3 - train/loss`)."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            return list(_runs(next(csv.reader([file.readline(LONGEST_LINE)]), ())))
    except (OSError, csv.Error):
        return []


def _runs(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the columns of each run; W&B puts the run's name, or its group's, before the metric's."""
    runs: dict[str, list[str]] = defaultdict(list)
    for name in names:
        run, dash, metric = name.rpartition(" - ")
        if dash and known(re.sub("__(MIN|MAX|STEP)$", "", metric)):
            runs[run].append(name)
    return runs
