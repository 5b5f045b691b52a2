"""Read the training command of a bash script, as it starts for somebody who set nothing. Nothing is run.

The script is read command by command, once: assignments, arrays, `${X:-default}`, `$((..))`, tests of what is known.
What only a run can tell (`"$@"`, `$(..)`, a variable that nothing sets, and what the ways of an undecided condition, a
loop or a function leave different) stays in its word as it is written, and is listed as open.
"""

from __future__ import annotations

import fnmatch
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from grpolab.readers.python import calculate
from grpolab.readers.shell_words import (
    ASSIGNMENT,
    GAP,
    MARKS,
    OPEN,
    PART,
    UNSET,
    ScriptError,
    find_piece_end,
    mark_open,
    split_commands,
    split_tokens,
    unmark,
)

MOST_SPENT = 1 << 20  # characters that expansions make, and variables that branches copy
LONGEST_OPEN = 2000  # characters of what two ways leave different

PARAMETER = re.compile(
    r"\$(?:([A-Za-z_]\w*|[@*#?$!0-9-])|\{([A-Za-z_]\w*|[@*#]|\d+)(?:\[([^\]]*)\])?(.*)\})", re.DOTALL
)
DECLARATIONS = {"export", "declare", "typeset", "local", "readonly"}
SUCCEED = {
    ":",
    "true",
    "cd",
    "mkdir",
    "module",
    "source",
    ".",
    "set",
    "shopt",
    "ulimit",
    "conda",
    "echo",
    "sleep",
    "rm",
}
OF_THE_MACHINE = {"HOME", "USER", "PWD", "HOSTNAME", "PATH", "RANDOM", "SECONDS", "UID", "BASH_SOURCE"}
ABSENT = re.compile(r"import torch_npu|\bnpu-smi\b|\brocm-smi\b")  # probes for special hardware, which fail
FALLBACK = re.compile(r"\|\|\s*echo\s+(\w+)\W*$")  # and what `$(probe && echo A || echo B)` says then
COMPARISONS = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip
Variables = dict[str, list[str]]  # the elements of each; a plain variable has one


@dataclass(frozen=True)
class Command:
    """A command with its words expanded; an open part stands in them as it is written."""

    words: tuple[str, ...]
    open: Mapping[int, str]  # number of a word -> its open parts
    notes: list[str]  # a sentence for each thing that was not read


def find_training_command(text: str, is_training: Callable[[list[str]], bool]) -> Command | None:
    """Return the first command of a script that is a training, by its expanded words; None where there is none."""
    reader, notes = _Reader(is_training), list[str]()
    try:
        reader.read(MARKS.sub("?", text).replace("\r\n", "\n"))
    except (ScriptError, RecursionError) as error:
        notes = [
            f"not all of the script is read: {str(error) if isinstance(error, ScriptError) else 'it nests deeply'}"
        ]
    if not reader.found:
        return None
    if len(reader.found) > 1:
        notes.append(f"the script starts {len(reader.found)} trainings, the first is read")
    words = next(iter(reader.found))
    parts = {at: ", ".join(part[1] for part in PART.finditer(word)) for at, word in enumerate(words)}
    return Command(tuple(map(unmark, words)), {at: text for at, text in parts.items() if text}, notes)


@dataclass
class _Frame:
    """A compound command: what is known before it, after each way through it, and of the way that is read."""

    kind: str
    live: bool  # whether it is read at all
    before: Variables
    word: str | None = None  # of `case`; None where it is open
    holds: bool | None = True  # whether the way is taken; None where only a run can tell
    is_decided: bool = False  # one way was taken: no other is
    ways: list[Variables] = field(default_factory=list)


class _Reader:
    """What is known while a script is read. A command's outcome is None where only a run can tell it."""

    def __init__(self, is_training: Callable[[list[str]], bool]) -> None:
        self.is_training = is_training
        self.found: dict[tuple[str, ...], None] = {}  # words of each training command, with marks
        self.variables: Variables = {}
        self.live, self.has_left, self.has_arguments = True, False, False
        self.spent = self.depth = 0

    def read(self, text: str) -> None:
        """Read a script. Raises ScriptError where it cannot be read to its end."""
        frames: list[_Frame] = []
        outcome: bool | None = True
        is_negated = False
        for joint, words in split_commands(text):
            self.spend(1 + len(frames) + (len(self.variables) if frames or joint != ";" else 0))
            live = self.live and not self.has_left
            # Behind `&&` or `||` a command is taken (True), left out, or only a run can tell.
            taken = None if joint != ";" and outcome is None else joint == ";" or outcome is (joint == "&&")
            match words[0]:
                case "!":
                    is_negated = True
                    continue
                case "if" | "while" | "until" | "for" | "case" | "{" | "(" | "function" as kind:
                    frames.append(frame := _Frame(kind, live, dict(self.variables)))
                    self.has_arguments |= kind == "function"
                    if kind in ("{", "(", "function"):
                        self.enter(frame, None if kind == "function" else taken)
                    elif kind == "case" and live:
                        frame.word = self.get_known(self.expand_text(words[1]))
                    elif kind == "for" and live:
                        frame.holds = self.set_loop(words)
                case "then" | "do" if frames:
                    frame = frames[-1]
                    if frame.kind in ("while", "until"):  # several passes, if there is one
                        outcome = False if outcome is (frame.kind == "until") else None
                    self.enter(frame, frame.holds if frame.kind == "for" else outcome)
                case "pattern" if frames:
                    self.enter(frames[-1], self.fits(frames[-1].word, words[1:]))
                case "elif" | "else" | ";;" if frames:
                    self.leave(frames[-1])
                    if words[0] == "else":
                        self.enter(frames[-1], True)
                case "fi" | "esac" | "done" | "}" | ")" if frames:
                    self.leave(frame := frames.pop())
                    ways = [*frame.ways, *([] if frame.is_decided else [frame.before])]
                    self.variables = frame.before if frame.kind == "(" else merge_ways(ways)
                    self.live = frame.live
                    self.has_arguments &= frame.kind != "function"
                    outcome = outcome if frame.kind in ("{", "(") else True
                case _ if live and taken is None:
                    before, self.variables = self.variables, dict(self.variables)
                    self.read_simple(words)
                    self.variables = before if self.has_left else merge_ways([before, self.variables])
                    self.has_left = False
                case _ if live and taken:
                    outcome = self.read_simple(words)
                    outcome = not outcome if is_negated and outcome is not None else outcome
                    self.has_left &= joint == ";"
            is_negated = False

    def enter(self, frame: _Frame, holds: bool | None) -> None:
        """Begin a way through a compound command."""
        frame.holds = holds
        self.live = frame.live and not frame.is_decided and holds is not False
        self.variables = dict(self.variables)

    def leave(self, frame: _Frame) -> None:
        """End it. A way that exits trains nothing: it is not taken, and nothing of it stays."""
        if self.live and not self.has_left:
            frame.ways.append(self.variables)
            frame.is_decided = frame.holds is True
        self.has_left &= not self.live
        self.live = frame.live and not frame.is_decided
        self.variables = dict(frame.before)

    def fits(self, word: str | None, patterns: list[str]) -> bool | None:
        """Decide whether a branch of `case` is taken."""
        if word is None:
            return True if patterns == ["*"] else None
        return any(fnmatch.fnmatchcase(word, self.expand_text(each)) for each in patterns)

    def set_loop(self, words: list[str]) -> bool | None:
        """Set the variable of a `for`; True where it has one pass."""
        values = [each for word in words[3:] for each in self.expand_words(word)]
        values = values if words[2:3] == ["in"] else [mark_open("$@")]
        self.variables[words[1]] = values if len(values) == 1 else [mark_open(" or ".join(map(unmark, values)))]
        return True if len(values) == 1 else None

    def read_simple(self, words: list[str]) -> bool | None:
        """Read an assignment, a test or a program."""
        first = next((at for at, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
        if first == len(words) or words[first] in DECLARATIONS:
            for match, word in [(ASSIGNMENT.match(word), word) for word in words]:
                if match:
                    self.assign(word, *match.groups())
            return True
        if words[0] in ("[", "[[", "test") or words[-1] in ("]", "]]"):
            return self.decide([self.expand_text(word) for word in words if word not in ("[", "[[", "test", "]", "]]")])
        if words[0].startswith("(("):
            self.variables |= {name: [mark_open(words[0])] for name in re.findall(r"[A-Za-z_]\w*", words[0])}
            return None
        fields = [each for word in words[first:] for each in self.expand_words(word)] or [":"]
        name = fields[0]
        if name in ("exit", "return", "break", "continue"):
            self.has_left = True
        elif name == "set" and "--" in fields:
            self.has_arguments = True
        elif name in ("read", "unset"):
            self.variables |= {each: [mark_open(f"${each}")] for each in fields[1:]}
        elif not name.startswith("python"):
            for script in [script for flag, script in itertools.pairwise(fields) if re.fullmatch("-l?c", flag)]:
                if " " in script and self.depth < 3:
                    self.depth += 1
                    self.read(unmark(script))
        fields = fields[1:] if name == "eval" else fields
        if name not in ("echo", "printf", "cat", "grep") and self.is_training(list(map(unmark, fields))):
            self.found.setdefault(tuple(fields))
        return True if name in SUCCEED else False if name == "false" or ABSENT.search(" ".join(fields)) else None

    def decide(self, operands: list[str]) -> bool | None:
        """Decide `[ .. ]`; a variable that nothing sets is empty in it."""
        match [self.get_known(operand) for operand in operands]:
            case ["!", *_]:
                outcome = self.decide(operands[1:])
                return None if outcome is None else not outcome
            case ["-z" | "-n" as sign, str(text)]:
                return (text == "") is (sign == "-z")
            case [str(left), "=" | "==" | "!=" as sign, str(right)]:
                return fnmatch.fnmatchcase(left, right) is (sign != "!=")
            case [str(left), str(sign), str(right)] if sign in COMPARISONS and (left + right).isdecimal():
                return bool(COMPARISONS[sign](int(left or 0), int(right or 0)))
        return None

    # Values.

    def spend(self, count: int) -> None:
        """Count characters that are made and variables that are copied. Raises ScriptError where they are too many."""
        self.spent += count
        if self.spent > MOST_SPENT:
            raise ScriptError("it is too long, or its variables become too large")

    def get_known(self, text: str) -> str | None:
        """Return a value in which nothing is open; what nothing sets is empty."""
        return None if OPEN in text else PART.sub("", text)

    def assign(self, word: str, name: str, index: str | None, more: str) -> None:
        """Read `NAME=..`, `NAME+=..` or `NAME=(..)`; where an index is given, the whole array is open."""
        right, old = word.partition("=")[2], self.variables.get(name, []) if more else []
        if index:
            self.variables[name] = [mark_open(word)]
        elif right.startswith("("):
            inside = [each for token in split_tokens(right[1:-1]) if token != "\n" for each in self.expand_words(token)]
            self.variables[name] = [*old, *inside]
        else:
            self.variables[name] = ["".join(old[:1]) + self.expand_text(right), *old[1:]]

    def expand_text(self, word: str) -> str:
        """Return a word as one value."""
        return self.expand(word, is_split=False).replace(GAP, " ")

    def expand_words(self, word: str) -> list[str]:
        """Return the words that a word becomes."""
        return [each for each in self.expand(word, is_split=True).split(GAP) if each]

    def expand(self, word: str, is_split: bool, quoted: bool = False) -> str:
        """Return a word without its quotes and with its expansions, GAP between the words that it becomes."""
        at, pieces = 0, list[str]()
        while at < len(word):
            start, at = at, find_piece_end(word, at, quoted)
            if (name := PARAMETER.match(word, start)) and name[1]:
                at = name.end()
            piece = word[start:at]
            if piece[0] in "$`" and len(piece) > 1 and not piece.startswith("$'"):
                text = self.expand_parameter(piece)
                pieces.append(re.sub(rf"({PART.pattern})|\s+", lambda m: m[1] or GAP, text) if is_split else text)
            elif piece[0] == "\\":
                pieces.append(piece if quoted and piece[1:] not in '$`"\\\n' else piece[1:].strip("\n"))
            elif piece[0] == '"' and not quoted:
                pieces.append(self.expand(piece[1:-1], is_split=False, quoted=True))
            elif piece[0] in "<>" and len(piece) > 1:
                pieces.append(mark_open(piece))
            else:
                pieces.append(piece.lstrip("$")[1:-1] if piece.endswith("'") and len(piece) > 1 else piece)
        self.spend(sum(map(len, pieces)))
        return "".join(pieces)

    def expand_parameter(self, source: str) -> str:
        """Return what `$X`, `${..}`, `$((..))` or `$(..)` is."""
        if source.startswith("$(("):
            number = self.calculate(source[3:-2])
            return mark_open(source) if number is None else str(number)
        if (match := PARAMETER.fullmatch(source)) is None:
            fallback = FALLBACK.search(source) if ABSENT.search(source) else None
            return fallback[1] if fallback else mark_open(source)
        plain, braced, index, rest = match.groups()
        name = plain or braced
        elements = self.variables.get(name)
        is_set_elsewhere = name in "@*?$!-0" or (self.has_arguments and name[0] in "#123456789")
        if is_set_elsewhere or (elements is None and name in OF_THE_MACHINE):
            return mark_open(source)
        if name == "#":  # the number of arguments, or the length of a variable
            return mark_open(source) if rest else "0"
        if index in ("@", "*"):
            return mark_open(source) if rest else GAP.join(elements or [])
        if (at := self.calculate(index) if index else 0) is None:
            return mark_open(source)
        value = mark_open(source, UNSET) if elements is None else "".join(elements[at:][:1])
        if default := re.fullmatch(r"(:?)([-=+?])(.*)", rest or "", re.DOTALL):
            is_empty = elements is None or bool(default[1] and self.get_known(value) == "")
            if default[2] == "+":
                return "" if is_empty else self.expand(default[3], is_split=False)
            if is_empty and default[2] in "-=":
                value = self.expand(default[3], is_split=False)
                self.variables |= {name: [value]} if default[2] == "=" else {}
            return value
        return mark_open(source) if rest else value

    def calculate(self, expression: str) -> int | None:
        """Return what `$((..))` is; None where it is open or has a sign that is not read."""
        text = self.get_known(self.expand(expression, is_split=False)) or ""
        for _ in range(3):  # a variable may hold an expression
            if len(text) < 1000:
                text = re.sub(
                    r"[A-Za-z_]\w*", lambda name: f"({self.get_known(self.expand_parameter('$' + name[0]))})", text
                )
        if "-" in text and re.search("[/%]", text):  # which bash rounds to 0
            return None
        return None if (number := calculate(text.strip().replace("/", "//"))) is None else int(number)


def merge_ways(ways: list[Variables]) -> Variables:
    """Return what is the same after each way; from where a variable's elements differ on, it is open."""
    result = dict(ways[0])
    for way in ways[1:]:
        for name in result.keys() | way.keys():
            one, other = result.get(name, []), way.get(name, [])
            if one != other:
                pairs = enumerate(zip(one, other, strict=False))
                same = next((at for at, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))
                texts = [unmark(" ".join(part[same:])) or "nothing" for part in (one, other)]
                result[name] = [*one[:same], mark_open(" or ".join(texts)[:LONGEST_OPEN])]
    return result
