"""The rows among the lines that a console printed: JSON objects, Python dicts, verl's rows, and printed configs.

A terminal breaks a long row at its width, in the middle of a name or a number too; such rows are put together.
"""

from __future__ import annotations

import ast
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from grpolab.identity import dotted
from grpolab.readers.log_names import TELLING, known

LoggedRow = Mapping[str, Any]
# The worker that printed a line, the line without colours and the worker's name, and the width with the name.
_Line = tuple[str, str, int]

MOST_CONFIG_LINES = 5000
WIDEST = 1000  # characters of a terminal's line
MOST_PIECES = 12  # lines over which a row was broken
PASTED = 3  # names of metrics in a line without its brackets

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WORKER = re.compile(r"\([^()]{0,80}\bpid=(\d+)[^()]{0,80}\) ?")  # Ray: the process that printed the line
FLAT = re.compile(r"\{[^{}]*\}")
NUMBER = r"[-+]?(?:nan|inf(?:inity)?|\d[\d.eE+/-]*)"
PAIR = re.compile(
    rf"""['"]([^'"]{{1,200}})['"]\s*:\s*(?:[\w.]{{1,30}}\()?['"]?({NUMBER})(?=['"\s,)}}])""", re.IGNORECASE
)
# The same where lines were put together: the number must end there.
WHOLE_PAIR = re.compile(
    rf"""['"]([^'"\n]{{1,200}})['"]\s*:\s*(?:[\w.]{{1,30}}\()?(['"]?)({NUMBER})\2\)?\s*[,}}]""", re.IGNORECASE
)
# `loss: 0.1  reward=0.5`, without brackets and quotes, as a trainer of one's own prints them.
PLAIN = re.compile(rf"(?<![\w'\"./-])([A-Za-z][\w./-]{{0,60}})[:=][ \t]{{0,4}}({NUMBER})(?![\w.])", re.IGNORECASE)
VERL_ROW = re.compile(r"(?:^|\s)step:(\d+) - (.*)")
VERL_VALUE = re.compile(rf"(?:[\w.]{{1,30}}\()?({NUMBER})\)?", re.IGNORECASE)
VERL_PART = re.compile(rf"[\w./@%+-]{{1,200}}:(?:[\w.]{{1,30}}\()?(?:{NUMBER}|None|True|False)\)?", re.IGNORECASE)
VERL_END = re.compile(r"[\w./@%+-]{0,200}(?::\S{0,60})?(?: -?)?")
VERL_TAIL = re.compile(r"[\d.][\d.eE+-]{0,30}\)?(?: - .*)?")
ARGUMENTS = re.compile(r"(?:GRPO|RLHF)\w{0,40}\(")  # GRPOConfig(...), RLHFArguments(...)
ARGUMENT = re.compile(rf"\b(\w+)=['\"]?({NUMBER}|\w+)['\"]?\s*[,)]")


class Console:
    """Reads the rows among a console's lines, and collects the config that is printed between them."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}  # that is printed between the rows
        self.damaged = 0  # rows that could not be read

    def rows(self, lines: Iterable[str]) -> Iterator[LoggedRow]:
        """Yield the rows among the lines; keep a config that is printed between them."""
        printed = _PrintedConfig()
        for worker, text, _ in _put_together(map(_without_prefix, lines)):
            if config := printed.add(worker, text):
                self.config |= config
                yield config  # a row that is printed over several lines looks the same
            elif "step:" in text and (verl := VERL_ROW.search(text)):
                yield _verl_row(verl)
            elif "{" in text:
                yield from self._object_rows(text)
            elif "reward" in text or text[:1] in ("'", '"'):
                pairs = dict(PAIR.findall(text)) or _plain_pairs(text)
                if len(pairs) >= PASTED:
                    yield pairs

    def _object_rows(self, line: str) -> Iterator[LoggedRow]:
        if is_json := line.startswith('{"'):
            with suppress(ValueError, RecursionError):
                yield flatten(json.loads(line))
                return
        rows = [_flat_row(match[0]) for match in FLAT.finditer(line) if ":" in match[0]]
        self.damaged += is_json and not any(rows) and not TELLING.isdisjoint(name for name, _ in PAIR.findall(line))
        yield from rows


def flatten(row: dict[str, Any]) -> LoggedRow:
    """Move nested metrics to the top level: verl's `data`, trackio's `metrics`."""
    inner = [part for part in row.values() if isinstance(part, dict)]
    return row if not inner else {name: value for part in (*inner, row) for name, value in part.items()}


def _without_prefix(line: str) -> _Line:
    text = ANSI.sub("", line) if "\x1b" in line else line
    worker = WORKER.match(text) if text.startswith("(") else None
    return (worker[1], text[worker.end() :], len(text)) if worker else ("", text, len(text))


def _flat_row(text: str) -> LoggedRow:
    """Read a flat dict as JSON or Python writes it, also with `nan` and `np.float64(..)`."""
    try:
        return dict(json.loads(text.replace("'", '"')))  # the fast way, for what is nearly JSON
    except (ValueError, RecursionError):
        return dict(PAIR.findall(text))


def _plain_pairs(line: str) -> LoggedRow:
    """Return names and numbers of a line; none if fewer than two of the names are of training."""
    pairs = dict(PLAIN.findall(line))
    return pairs if sum(known(name) in TELLING for name in pairs) > 1 else {}


def _verl_row(match: re.Match[str]) -> LoggedRow:
    """Read `step:3 - actor/lr:0.000 - actor/kl_loss:np.float64(0.1)`. Older verl rounds to .001: 0 may be any size."""
    row: dict[str, Any] = {"step": match[1]}
    for part in match[2].split(" - "):
        name, _, written = part.rpartition(":")
        value = VERL_VALUE.match(written) if known(name) else None
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


# --- rows that a terminal broke --------------------------------------------------------------------------------------


def _put_together(lines: Iterator[_Line]) -> Iterator[_Line]:
    """Yield the lines; where a row was broken over several, yield the row as one line, with its whole values alone."""
    again = deque[_Line]()  # lines that were looked at, and are no pieces of the row before them
    while line := again.popleft() if again else next(lines, None):
        pieces, (_, text, _) = [line], line
        may_be_verl = "step:" in text and len(text) <= WIDEST and VERL_ROW.search(text)
        is_open = "{" in text and not text.endswith("}\n") and len(text) <= WIDEST
        start = text.rfind("{") if is_open else -1
        is_dict = is_open and "}" not in text[start:] and text.count("{", 0, start) == text.count("}", 0, start)
        if not is_dict and not may_be_verl:
            yield line
            continue
        goes_on = _dict_goes_on if is_dict else _verl_goes_on
        while piece := again.popleft() if again else next(lines, None):
            if len(pieces) < MOST_PIECES and len(piece[1]) <= WIDEST and goes_on(pieces, piece):
                pieces.append(piece)
            else:
                again.appendleft(piece)
                break
        whole = _whole_dict(pieces) if is_dict else _whole_verl_row(pieces, again[0] if again else None)
        if whole is None:
            again.extendleft(reversed(pieces[1:]))
            yield line
        else:
            yield (line[0], whole, len(whole))


def _join(pieces: Sequence[_Line]) -> str:
    """Return pieces as one text. Where a line was shorter than the terminal is wide, nothing was broken: a line ends.

    A blank at the end of a line may be lost; only verl's ` - ` needs it.
    """
    texts = [text.rstrip("\n") for _, text, _ in pieces]
    width = max(width for _, _, width in pieces)
    whole = texts[0]
    for (_, _, left), right in zip(pieces, texts[1:], strict=False):
        lost = whole.endswith(" -") and not right.startswith(" ")
        lost |= right.startswith("- ") and not whole.endswith(" ")
        whole += (" " if lost else "" if left >= width - 1 else "\n") + right
    return whole


def _dict_goes_on(pieces: Sequence[_Line], piece: _Line) -> bool:
    text = piece[1]
    is_closed = len(pieces) > 1 and "}" in pieces[-1][1]
    return not is_closed and bool(text.strip()) and "{" not in text.partition("}")[0]


def _whole_dict(pieces: Sequence[_Line]) -> str | None:
    """Return a row of training that was put together; None if the pieces are none."""
    whole = _join(pieces)
    start = pieces[0][1].rfind("{")
    pairs = {name: value for name, _, value in WHOLE_PAIR.findall(whole[start : whole.find("}", start) + 1])}
    if len(pieces) < 2 or not any(known(name) in TELLING for name in pairs):
        return None
    return whole[:start] + "{" + ", ".join(f"'{name}': '{value}'" for name, value in pairs.items()) + "}\n"


def _parts(pieces: Sequence[_Line]) -> list[str]:
    row = VERL_ROW.search(_join(pieces).replace("\n", "?"))
    return row[2].split(" - ") if row else []


def _verl_goes_on(pieces: Sequence[_Line], piece: _Line) -> bool:
    """Return True if a line can only be a piece of verl's row: with it, all is `name:value` but for the last part."""
    text = piece[1]
    if VERL_ROW.search(text) or not (":" in text or " - " in text or len(pieces) > 1):
        return False
    *parts, last = _parts([*pieces, piece]) or [""]
    is_piece = bool(VERL_END.fullmatch(last)) and all(map(VERL_PART.fullmatch, parts))
    return is_piece and (len(pieces) == 1 or pieces[-1][2] >= pieces[0][2] - 1)


def _whole_verl_row(pieces: Sequence[_Line], after: _Line | None) -> str | None:
    """Return verl's row that was put together; a last value that may go on in the line after it is left out."""
    may_go_on = after is not None and bool(VERL_TAIL.fullmatch(after[1].strip()))
    if len(pieces) > 1:
        may_go_on |= after is not None and pieces[-1][2] >= pieces[0][2]
    elif not may_go_on:
        return None
    parts = _parts(pieces)[: -1 if may_go_on else None]
    step = VERL_ROW.search(pieces[0][1])
    return " - ".join([f"step:{step[1]}", *filter(VERL_PART.fullmatch, parts)]) if step else None
