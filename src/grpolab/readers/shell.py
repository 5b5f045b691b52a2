"""Read the training command of a bash script, as it starts for somebody who set nothing. Nothing is run.

The script is read once, command by command: assignments, arrays, `${X:-default}`, `$((..))`, tests of what is known.
What only a run can tell, or is not read, stays in its word as it is written, and is listed as open: `"$@"`, `$(..)`, a
variable that nothing sets, or that an undecided condition, a loop, a function or a pipe may set.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from grpolab.readers import shell_words as sh
from grpolab.readers.python import calculate
from grpolab.readers.shell_words import ASSIGNMENT, GAP, OPEN, PART, ScriptError, mark_open, unmark

MOST_SPENT = 1 << 20  # characters that expansions make, and variables that branches copy
_NAMED = r"\$(?:([A-Za-z_]\w*|[@*#?$!\d-])|\{(\w+|[@*#])(\[[@*]\])?(?:(:?[-=])(.*)|(.*))\})"
PARAMETER = re.compile(_NAMED, re.DOTALL)  # the last group: a form that is not read
DECLARATIONS = {"export", "declare", "typeset", "local", "readonly"}
OF_THE_MACHINE = {"HOME", "USER", "PWD", "HOSTNAME", "PATH", "RANDOM", "SECONDS", "UID", "BASH_SOURCE"}
ABSENT = re.compile(r"import torch_npu|\bnpu-smi\b|\brocm-smi\b")  # probes for special hardware, which fail
FALLBACK = re.compile(r"\|\|\s*echo\s+(\w+)\W*$")  # and what `$(probe && echo A || echo B)` says then
COUNTS = re.compile(r"\+\+|--|(?<![<>=!])=(?!=)|<<=|>>=")  # signs in `(( .. ))` that set a variable
COMPARISONS = {f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
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
        reader.read(sh.MARKS.sub("?", text).replace("\r\n", "\n"))
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
    start: Variables  # before the branch in hand
    is_certain: bool  # it is run, if what is around it is
    taken: bool | None  # the branch in hand is run
    rest: bool | None  # a later branch may be run
    rest_before: bool | None = None  # the same before the branch in hand
    ways: list[Variables] = field(default_factory=list)  # the variables behind each branch that may be run
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
        outcome: bool | None = True
        for joint, words, behind in sh.split_commands(text):
            self.spend(1)
            # Behind `&&` or `||` a command is run, or not, or only a run can tell; in a pipe it sets nothing outside.
            is_chained, is_piped = joint in ("&&", "||"), bool({joint, behind} & {"|", "|&"}) or behind == "&"
            is_open = is_piped or (is_chained and outcome is None)
            taken = None if is_open else not is_chained or outcome is (joint == "&&")
            is_dead = self.has_ended or any(block.taken is False for block in self.blocks)
            match words[0]:
                case kind if kind in sh.OPENERS:
                    taken = None if kind in ("function", "(") else taken
                    self.blocks.append(block := _Block(kind, self.variables, taken is not None, taken, taken))
                    if kind in ("function", "(", "{"):
                        self.begin_branch(True)
                    elif kind == "case" and not is_dead:
                        block.word = self.get_known(self.expand_text(words[1]))
                    elif kind == "for" and not is_dead:
                        self.variables[words[1]] = [mark_open(" or ".join(words[3:]) or "$@")]
                case "then" if self.blocks:
                    self.begin_branch(outcome)
                case "do" if self.blocks:  # only a run can tell how often
                    self.begin_branch(None)
                case "else" if self.blocks:
                    self.end_branch()
                    self.begin_branch(True)
                case "pattern" if self.blocks and not is_dead:
                    word, is_default = self.blocks[-1].word, words[1:] == ["*"]
                    patterns = [self.expand_text(pattern) for pattern in words[1:]]
                    is_fit = word is not None and any(fnmatch.fnmatchcase(word, pattern) for pattern in patterns)
                    self.begin_branch(is_default or (None if word is None else is_fit))
                case "elif" | ";;" if self.blocks:
                    self.end_branch()
                    self.blocks[-1].taken = self.blocks[-1].rest
                case closer if closer in sh.CLOSERS and self.blocks:
                    self.end_branch()
                    block = self.blocks.pop()
                    is_passed = block.rest is not False or is_piped or not block.is_certain
                    ways = [block.start] * (is_passed or not block.ways) + block.ways
                    self.variables = functools.reduce(merge_ways, ways)
                    outcome = outcome if closer in ("}", ")") else True
                case _ if not is_dead and taken is not False:
                    before = self.variables
                    self.variables = self.copy(before) if taken is None else before
                    outcome = self.read_simple(words[words[0] == "!" :], is_chained)
                    if taken is None:
                        self.variables = merge_ways(before, self.variables)
                    if outcome is not None and words[0] == "!":
                        outcome = not outcome

    def copy(self, variables: Variables) -> Variables:
        self.spend(len(variables))
        return dict(variables)

    def begin_branch(self, holds: bool | None) -> None:
        """Begin a branch of the innermost block, by its condition."""
        block = self.blocks[-1]
        block.start, self.variables, block.rest_before = self.variables, self.copy(self.variables), block.rest
        block.taken = False if False in (block.rest, holds) else None if None in (block.rest, holds) else True
        if block.taken is not False:
            block.rest = False if holds else None

    def end_branch(self) -> None:
        """End the branch in hand; the next one begins with the variables before it."""
        block = self.blocks[-1]
        if block.taken is not False:
            block.ways.append(self.variables)
        self.variables = self.copy(block.start)

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
            names = re.findall(r"[A-Za-z_]\w*", words[0]) if COUNTS.search(words[0]) else []
            self.variables |= {name: [mark_open(words[0])] for name in names}
            return None
        fields = [each for word in words[first:] for each in self.expand_words(word)] or [":"]
        name = fields[0]
        if name in ("exit", "return", "break", "continue") and not is_chained:
            self.has_ended = not self.blocks
            if self.blocks:
                block = self.blocks[-1]
                block.taken = False
                if name == "exit":  # what trains is another branch
                    block.rest = block.rest_before
                else:
                    block.ways.append(self.variables)
        elif name in ("read", "unset"):
            self.variables |= {each: [mark_open(f"${each}")] for each in fields[1:]}
        self.has_arguments |= name == "set" and "--" in fields
        fields = fields[1:] if name == "eval" else fields
        if name not in ("echo", "printf", "cat", "grep") and self.is_training(list(map(unmark, fields))):
            self.trainings.setdefault(tuple(fields))
        return True if name in (":", "true") else False if name == "false" or ABSENT.search(" ".join(fields)) else None

    def decide(self, operands: list[str]) -> bool | None:
        """Decide `[ .. ]`; a variable that nothing sets is empty in it."""
        match [self.get_known(operand) for operand in operands]:
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
            tokens = [token for token in sh.split_tokens(right[1:-1]) if token != "\n"]
            self.variables[name] = [*old, *(each for token in tokens for each in self.expand_words(token))]
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
            start, at = at, sh.find_piece_end(word, at, quoted)
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
        """Return what `$X`, `${X:-..}`, `$((..))` or `$(..)` is; any other form is open."""
        if source.startswith("$(("):
            number = self.calculate(source[3:-2])
            return mark_open(source) if number is None else str(number)
        if (match := PARAMETER.fullmatch(source)) is None:
            fallback = FALLBACK.search(source) if ABSENT.search(source) else None
            return fallback[1] if fallback else mark_open(source)
        scalar, braced, index, sign, default, rest = match.groups()
        name = scalar or braced
        elements = self.variables.get(name)
        has_arguments = self.has_arguments or any(block.kind == "function" for block in self.blocks)
        is_set_elsewhere = name in "@*?$!-0" or (has_arguments and name[0] in "#123456789")
        if rest or is_set_elsewhere or (elements is None and name in OF_THE_MACHINE):
            return mark_open(source)
        if name == "#":
            return "0"
        if index:
            return GAP.join(elements or [])
        value = mark_open(source, sh.UNSET) if elements is None else "".join(elements[:1])
        if sign and (elements is None or (":" in sign and self.get_known(value) == "")):
            value = self.expand(default, is_split=False)
            self.variables |= {name: [value]} if "=" in sign else {}
        return value

    def calculate(self, expression: str) -> int | None:
        """Return what `$((..))` is; None where it is open or has a sign that is not read."""
        text = self.get_known(self.expand(expression, is_split=False)) or ""
        names = set(re.findall(r"[A-Za-z_]\w*", text))
        values = {name: f"({self.get_known(self.expand_parameter('$' + name))})" for name in names}
        text = re.sub(r"[A-Za-z_]\w*", lambda name: values[name[0]], text)
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
