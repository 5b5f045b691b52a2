"""Read the training command of a bash script, as it starts for somebody who set nothing. Nothing is run.

The script is read once, command by command: assignments, arrays, `${X:-default}`, `$((..))`, tests of what is known.
What only a run can tell stays in its word as it is written, and is listed as open: `"$@"`, `$(..)`, a variable that
nothing sets, and a variable that an undecided condition, a loop or a function may set.
"""

from __future__ import annotations

import fnmatch
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from grpolab.readers.python import calculate
from grpolab.readers.shell_words import (
    ASSIGNMENT,
    CLOSERS,
    GAP,
    MARKS,
    OPEN,
    OPENERS,
    PART,
    UNSET,
    ScriptError,
    find_piece_end,
    find_subshells,
    mark_open,
    split_readable,
    split_tokens,
    unmark,
)

MOST_SPENT = 1 << 20  # characters that expansions make, and variables that branches copy
PARAMETER = re.compile(
    r"\$(?:([A-Za-z_]\w*|[@*#?$!0-9-])|\{([A-Za-z_]\w*|[@*#]|\d+)(?:\[([^\]]*)\])?(.*)\})", re.DOTALL
)
DECLARATIONS = {"export", "declare", "typeset", "local", "readonly"}
SUCCEED = {":", "true", "cd", "mkdir", "module", "source", ".", "set", "conda", "echo", "rm"}
OF_THE_MACHINE = {"HOME", "USER", "PWD", "HOSTNAME", "PATH", "RANDOM", "SECONDS", "UID", "BASH_SOURCE"}
ABSENT = re.compile(r"import torch_npu|\bnpu-smi\b|\brocm-smi\b")  # probes for special hardware, which fail
FALLBACK = re.compile(r"\|\|\s*echo\s+(\w+)\W*$")  # and what `$(probe && echo A || echo B)` says then
COUNTED = re.compile(
    r"[A-Za-z_]\w*(?=\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:(?<=\+\+)|(?<=--))[A-Za-z_]\w*"
)  # in `(( .. ))`
COMPARISONS = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip
Variables = dict[str, list[str]]  # the elements of each; a scalar has one


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
        reason = str(error) if isinstance(error, ScriptError) else "it nests deeply"
        notes = [f"not all of the script is read: {reason}"]
    if not reader.trainings:
        return None
    if len(reader.trainings) > 1:
        notes.append(f"the script starts {len(reader.trainings)} trainings, the first is read")
    words = next(iter(reader.trainings))
    parts = {at: ", ".join(part[1] for part in PART.finditer(word)) for at, word in enumerate(words)}
    return Command(tuple(map(unmark, words)), {at: text for at, text in parts.items() if text}, notes)


@dataclass
class _Block:
    """A compound command that is being read. `taken` and `rest` are None where only a run can tell."""

    kind: str
    taken: bool | None  # the branch in hand is run
    rest: bool | None  # a later branch may be run
    before: tuple[Variables, bool | None]  # the variables and `rest` before the branch in hand
    outside: Variables | None  # what is set again behind a subshell
    word: str | None = None  # of `case`


class _Reader:
    """The variables and the trainings of a script."""

    def __init__(self, is_training: Callable[[list[str]], bool]) -> None:
        self.is_training = is_training
        self.trainings: dict[tuple[str, ...], None] = {}  # words of each, with marks
        self.variables: Variables = {}
        self.blocks: list[_Block] = []
        self.has_ended = self.has_arguments = False
        self.spent = 0

    def read(self, text: str) -> None:
        """Read a script. Raises ScriptError where it cannot be read to its end."""
        commands, error = split_readable(text)
        subshells = find_subshells(commands)
        outcome: bool | None = True
        for at, (joint, words) in enumerate(commands):
            self.spend(1)
            # Behind `&&` or `||` a command is run, or not, or only a run can tell.
            is_chained = joint in ("&&", "||")
            taken = None if is_chained and outcome is None else not is_chained or outcome is (joint == "&&")
            is_dead = self.has_ended or any(block.taken is False for block in self.blocks)
            outside = self.variables if at in subshells else None
            match words[0]:
                case "!":
                    continue
                case kind if kind in OPENERS:
                    taken = None if kind == "function" else taken
                    self.spend(len(self.variables))
                    self.blocks.append(block := _Block(kind, taken, taken, (dict(self.variables), taken), outside))
                    self.variables = dict(self.variables)
                    if kind == "case" and not is_dead:
                        block.word = self.get_known(self.expand_text(words[1]))
                    elif kind == "for" and not is_dead:
                        self.variables[words[1]] = [mark_open(" or ".join(words[3:]) or "$@")]
                case "then" if self.blocks:
                    self.enter(outcome)
                case "do" if self.blocks:  # several passes, if there is one
                    kind = self.blocks[-1].kind
                    self.enter(False if kind != "for" and outcome is (kind == "until") else None)
                case "else" if self.blocks:
                    self.end_branch()
                    self.enter(True)
                case "pattern" if self.blocks and not is_dead:
                    word, is_default = self.blocks[-1].word, words[1:] == ["*"]
                    patterns = [self.expand_text(pattern) for pattern in words[1:]]
                    is_fit = word is not None and any(fnmatch.fnmatchcase(word, pattern) for pattern in patterns)
                    self.enter(is_default or (None if word is None else is_fit))
                case "elif" | ";;" if self.blocks:
                    self.end_branch()
                    self.blocks[-1].taken = self.blocks[-1].rest
                case closer if closer in CLOSERS and self.blocks:
                    self.end_branch()
                    block = self.blocks.pop()
                    self.variables = self.variables if block.outside is None else block.outside
                    outcome = outcome if closer in ("}", ")") else True
                case _ if not is_dead and taken is not False:
                    before = self.variables
                    if taken is None or outside is not None:
                        self.spend(len(before))
                        self.variables = dict(before)
                    outcome = self.read_simple(words, is_chained)
                    if outside is not None:
                        self.variables = outside
                    elif taken is None:
                        self.variables = merge_ways(before, self.variables)
                    if outcome is not None and at and commands[at - 1][1] == ["!"]:
                        outcome = not outcome
        if error:
            raise error

    def enter(self, holds: bool | None) -> None:
        """Begin a branch of the innermost block, by its condition."""
        block = self.blocks[-1]
        self.spend(len(self.variables))
        block.before = dict(self.variables), block.rest
        block.taken = False if False in (block.rest, holds) else None if None in (block.rest, holds) else True
        if block.taken is not False:
            block.rest = False if holds else None

    def end_branch(self) -> None:
        """End the branch in hand; what it sets is open where only a run can tell whether it is taken."""
        block = self.blocks[-1]
        if block.taken is None:
            self.variables = merge_ways(block.before[0], self.variables)

    def read_simple(self, words: list[str], is_chained: bool) -> bool | None:
        """Read an assignment, a test or a program; return whether it succeeds, None where only a run can tell."""
        first = next((at for at, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
        if first == len(words) or words[first] in DECLARATIONS:
            for word in words:
                if match := ASSIGNMENT.match(word):
                    self.assign(word, *match.groups())
            return True
        if words[0] in ("[", "[[", "test") or words[-1] == "]]":
            return self.decide([self.expand_text(word) for word in words if word not in ("[", "[[", "test", "]", "]]")])
        if words[0].startswith("(("):
            self.variables |= {name: [mark_open(words[0])] for name in COUNTED.findall(words[0])}
            return None
        fields = [each for word in words[first:] for each in self.expand_words(word)] or [":"]
        name = fields[0]
        if name in ("exit", "return", "break", "continue") and not is_chained:
            self.has_ended = not self.blocks
            if self.blocks:
                block = self.blocks[-1]
                block.taken = False
                if name == "exit":  # what trains is another branch
                    self.variables, block.rest = dict(block.before[0]), block.before[1]
        elif name == "set" and "--" in fields:
            self.has_arguments = True
        elif name in ("read", "unset"):
            self.variables |= {each: [mark_open(f"${each}")] for each in fields[1:]}
        fields = fields[1:] if name == "eval" else fields
        if name not in ("echo", "printf", "cat", "grep") and self.is_training(list(map(unmark, fields))):
            self.trainings.setdefault(tuple(fields))
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
        has_arguments = self.has_arguments or any(block.kind == "function" for block in self.blocks)
        is_set_elsewhere = name in "@*?$!-0" or (has_arguments and name[0] in "#123456789")
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


def merge_ways(one: Variables, other: Variables) -> Variables:
    """Return what is the same after both ways; from where a variable's elements differ on, it is open."""
    merged = dict(one)
    for name in one.keys() | other.keys():
        left, right = one.get(name, []), other.get(name, [])
        if left != right:
            same = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))])
            texts = [unmark(" ".join(elements[same:])) or "nothing" for elements in (left, right)]
            merged[name] = [*left[:same], mark_open(" or ".join(texts))]
    return merged
