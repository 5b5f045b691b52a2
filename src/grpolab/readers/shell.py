"""Read the commands of a bash script as words, as if the environment set no variable. Nothing is run.

A script is read once, from top to bottom: assignments, arrays, `${X:-default}` and `$((..))` of numbers are followed.
Other expansions (`$(..)`, `"$@"`, an unset variable) stay as written, and make their word open, which means unknown. No
condition is decided: a variable that a branch, loop, function or command after `&&` may set is open from there on.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from grpolab.readers.pairs import Open
from grpolab.readers.python import calculate

MOST_SPENT = 1 << 22  # steps: characters that are expanded, and blocks that are looked through
LONGEST_OPEN = 2000  # characters of an open part
START, END = "\ue000", "\ue001"  # around the open parts of a value
MARKS = re.compile(f"[{START}{END}]")
FIELD = re.compile(f"(?:{START}[^{END}]*{END}|\\S)+")
CLOSE = {"$((": "))", "((": "))", "${": "}", "$(": ")", "<(": ")", ">(": ")", "(": ")", "$'": "'"}
OPENER = re.compile(r"\$?\(\(|\$\{|[$<>]?\(|\$?'|[`\"]")
QUOTED_OPENER = re.compile(r"\$\(\(|\$[({]|`")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
COUNTED = re.compile(r"\b[A-Za-z_]\w*+(?=\s*+(?:\+\+|--|\W?=(?!=)))|(?<=\+\+|--)[A-Za-z_]\w*")  # set in `((..))`
BLANKS = re.compile(r"(?:[ \t\r]|\\\r?\n)+|#[^\n]*")
OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\|&?|&|\(\s*\)|[;()\n]")
REDIRECTION = re.compile(r"(?:\d*|&)(?:<<<|<<-?|>>|>\||>&|<&|<>|[<>])(?!\()[ \t]*")
WORD_END = re.compile(r"[ \t\r\n;&|()]|[<>](?!\()")
NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[@*#?$!\d-])")
PARAMETER = re.compile(r"(\w+|[@*#?$!-])(\[[@*]\])?(?:(:?[-=])(.*))?", re.DOTALL)  # within `${..}`
IDLE = re.compile(r"\$#|\bgetopts\b|^\w+ in \"?\$[@*]\"?$")  # a loop over the script's arguments; there are none
BEGINS = {"if", "while", "until", "for", "select", "case", "{", "("}
BRANCHES = {"elif", "else", ";;", ";&", ";;&"}
ENDS = {"fi", "done", "esac", "}", ")"}
KEYWORDS = BEGINS | BRANCHES | ENDS | {"then", "do", "!", "time", "function"}
DECLARATIONS = {"export", "declare", "typeset", "local", "readonly"}
SETS = {"let", "read", "unset", "mapfile", "readarray", "printf", "getopts"}  # these set variables by name
OF_THE_MACHINE = {"HOME", "USER", "PWD", "HOSTNAME", "PATH", "RANDOM", "SECONDS", "UID", "BASH_SOURCE"}


class ScriptError(ValueError):
    """A script that cannot be read to its end; the text says why."""


def find_training_command(text: str, is_training: Callable[[list[str]], bool]) -> tuple[list[str], list[str]] | None:
    """Return the words of the first command that is a training, and a sentence for each thing that was not read."""
    trainings, notes = list[list[str]](), list[str]()
    try:
        for fields in _Script().read(MARKS.sub("?", text).replace("\r\n", "\n")):
            words = [Open(MARKS.sub("", field)) if START in field else field for field in fields]
            if words[0] not in ("echo", "printf", "cat", "grep") and is_training(words) and words not in trainings:
                trainings.append(words)
    except (ScriptError, RecursionError) as error:
        reason = str(error) if isinstance(error, ScriptError) else "it nests deeply"
        notes = [f"not all of the script is read: {reason}"]
    if len(trainings) > 1:
        notes.append(f"the script starts {len(trainings)} trainings, the first is read")
    return (trainings[0], notes) if trainings else None


# Commands and words as they are written.


def find_end(text: str, at: int, is_quoted: bool = False) -> int:
    """Return the index after the character, quotation or expansion at `at`. Raises ScriptError if it does not end."""
    if text[at] == "\\":
        return min(at + 2, len(text))
    if name := NAME.match(text, at):
        return name.end()
    if (opener := (QUOTED_OPENER if is_quoted else OPENER).match(text, at)) is None:
        return at + 1
    close = CLOSE.get(opener[0], opener[0])
    at = opener.end()
    while not text.startswith(close, at):
        if at >= len(text):
            raise ScriptError(f"a quotation or bracket is not closed: {close} is missing")
        if close == "'":
            at = text.find("'", at) % (len(text) + 1)
        elif text[at] == "#" and close == ")" and text[at - 1] in " \t\n(":
            at = text.find("\n", at) % (len(text) + 1)
        else:
            at = find_end(text, at, close == '"')
    return at + len(close)


def find_word_end(text: str, at: int) -> int:
    """Return the index after a word, which may include an array's list."""
    start = at
    while at < len(text):
        is_list = text[at] == "(" and ASSIGNMENT.fullmatch(text, start, at)
        if WORD_END.match(text, at) and not is_list:
            break
        at = find_end(text, at)
    return at


def split_commands(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield each command's words and the operator after it, without comments, redirections and here-documents."""
    text, at, words, documents = f"{text}\n", 0, list[str](), list[str]()
    while at < len(text):
        if match := BLANKS.match(text, at):
            at = match.end()
        elif match := REDIRECTION.match(text, at):
            at = find_word_end(text, match.end())
            if match[0].strip().endswith(("<<", "<<-")):
                documents.append(text[match.end() : at].strip("'\"\\"))
        elif (match := OPERATOR.match(text, at)) and not text.startswith("((", at):
            if match[0] != "\n" or words:  # a line may end behind `&&`
                yield words, match[0]
            words, at = [], match.end()
            while match[0] == "\n" and documents:
                document = re.compile(rf"^[ \t]*{re.escape(documents.pop(0))}$", re.MULTILINE).search(text, at)
                at = document.end() if document else len(text)
        else:
            end = find_end(text, at) if text[at] == "(" else find_word_end(text, at)
            words.append(text[at:end])
            at = end


class _Script:
    """The variables of a script at the point up to which it has been read."""

    def __init__(self) -> None:
        self.variables: dict[str, list[str]] = {}  # the elements of each; a scalar has one
        # Compound commands around the one in hand: kind, and what the variables that are set in it were before it.
        self.blocks: list[tuple[str, dict[str, list[str]]]] = []
        self.is_set = False  # `set -- ..` gave $1 a value
        self.spent = 0

    def read(self, text: str) -> Iterator[list[str]]:
        """Yield the words of each command that is no assignment. Raises ScriptError if the script cannot be read on."""
        joint = ";"
        for words, operator in split_commands(text):
            self.spend(len(self.blocks))
            if operator == ")" and self.blocks and self.blocks[-1][0] == "case":  # a pattern
                continue
            while words and words[0] in KEYWORDS:
                keyword, *words = words
                self.read_keyword(keyword, words)
                words = [] if keyword in ("for", "select", "case") else words[keyword == "function" :]
            if is_chained := joint in ("&&", "||", "|") or operator in ("|", "&"):  # it may be run or not, or apart
                self.read_keyword("(", [])
            yield from filter(None, [self.read_command(words)])
            if is_chained:
                self.read_keyword(")", [])
            elif words[:1] == ["exit"] and not self.blocks:
                break
            self.read_keyword(operator, [])
            joint = operator

    def read_keyword(self, keyword: str, behind: Sequence[str]) -> None:
        """Begin a compound command, or end a branch of one: what was set in it is open from there on."""
        if keyword in BEGINS:
            is_idle = keyword in ("while", "until", "for") and IDLE.search(" ".join(behind)) and not self.is_called()
            self.blocks.append(("idle" if is_idle else keyword, {}))
            if keyword in ("for", "select") and behind:
                self.leave_open(COUNTED.findall(behind[0]) or behind[:1], " or ".join(behind[2:]))
        elif keyword in BRANCHES | ENDS and self.blocks:
            kind, before = self.blocks.pop()
            self.spend(len(before))
            for name, elements in before.items():
                behind_it, self.variables[name] = self.variables[name], elements
                self.set(name, merge(elements, behind_it))
                before[name] = self.variables[name]
            self.blocks += [] if keyword in ENDS else [(kind, before)]

    def is_called(self) -> bool:
        """Return True if $1 may have a value, as in a function; the script itself has no arguments."""
        return self.is_set or any(kind == "{" for kind, _ in self.blocks)

    def find(self, name: str) -> list[str] | None:
        """Return a variable's elements, None if unset; inside a function, only what the function sets is known."""
        self.spend(len(self.blocks))
        inside = [*itertools.dropwhile(lambda block: block[0] != "{", self.blocks)]
        is_open = inside and not any(name in before for _, before in inside)
        return [mark(f"${name}")] if is_open else self.variables.get(name)

    def read_command(self, words: list[str]) -> list[str]:
        """Read assignments; return the expanded words of any other command."""
        if not words or any(kind == "idle" for kind, _ in self.blocks):
            return []
        first = next((at for at, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
        if first == len(words) or words[first] in DECLARATIONS:
            for match in [match for word in words if (match := ASSIGNMENT.match(word))]:
                self.assign(match.string[match.end() :], *match.groups())
            return []
        if words[0].startswith("((") or words[0] in SETS:
            self.leave_open(COUNTED.findall(" ".join(words)) or words[1:], words[0])
        fields = [each for word in words[first:] for each in self.expand(word)]
        self.is_set |= fields[:1] == ["set"] and "--" in fields
        return fields[1:] if fields[:1] == ["eval"] else fields

    def assign(self, right: str, name: str, index: str | None, plus: str) -> None:
        """Carry out `NAME=..`, `NAME+=..` or `NAME=(..)`. After `NAME[i]=..` the value of the whole array is open."""
        if index:
            self.leave_open([name], f"{name}{index}={right}")
            return
        if is_list := right.startswith("("):
            parts = [part for words, _ in split_commands(right[1:-1]) for part in words]
            elements = [each for part in parts for each in self.expand(part)]
        else:
            elements = [self.expand_text(right)]
        before = self.find(name) or []
        if is_list:
            self.set(name, [*before, *elements] if plus else elements)
        else:  # a word replaces element 0 of an array, or is appended to it
            self.set(name, ["".join([*(before[:1] if plus else []), *elements]), *before[1:]])

    def leave_open(self, names: Iterable[str], source: str) -> None:
        for name in names:
            self.set(name, [mark(source or f"${name}")])

    def set(self, name: str, elements: list[str]) -> None:
        for _, before in self.blocks[-1:]:
            before.setdefault(name, self.find(name) or [])
        self.variables[name] = elements

    # Values.

    def spend(self, count: int) -> None:
        """Count steps. Raises ScriptError if they are too many."""
        self.spent += count
        if self.spent > MOST_SPENT:
            raise ScriptError("it is too long, or its variables become too large")

    def expand_text(self, word: str) -> str:
        """Return a word as one value."""
        return " ".join(self.expand(word))

    def expand(self, word: str, is_quoted: bool = False) -> list[str]:
        """Return the words that a word becomes after quote removal and expansion."""
        at, fields = 0, [""]
        while at < len(word):
            start, at = at, find_end(word, at, is_quoted)
            piece = word[start:at]
            parts = [piece]
            if piece[0] in "$`" and len(piece) > 1 and piece[:2] != "$'":
                parts = self.expand_parameter(piece)
                if not is_quoted:
                    parts = [each for part in parts for each in FIELD.findall(part)]
                elif piece.endswith("[*]}"):
                    parts = [" ".join(parts)]
            elif piece[0] == "\\":
                parts = [piece if is_quoted and piece[1:] not in '$`"\\\n' else piece[1:].strip("\n")]
            elif piece[0] == '"' and not is_quoted:
                parts = self.expand(piece[1:-1], is_quoted=True)
            elif piece[0] in "<>" and len(piece) > 1:
                parts = [mark(piece)]
            elif piece[-1] == "'" and len(piece) > 1:
                parts = [piece.lstrip("$")[1:-1]]
            self.spend(len(piece) + sum(map(len, parts)))
            fields[-1] += "".join(parts[:1])
            fields += parts[1:]
        return [field for field in fields if field]

    def expand_parameter(self, source: str) -> list[str]:
        """Return the words to which `$X`, `${X:-..}`, `${X[@]}` or `$((..))` expands; any other expansion is open."""
        if source.startswith("$(("):
            named = re.sub(r"(?<![\w${])([A-Za-z_]\w*)", r"($\1)", source[3:-2])
            text = "".join(self.expand(named, is_quoted=True))
            is_rounded = "-" in text and ("/" in text or "%" in text)  # by bash to 0
            number = None if is_rounded else calculate(text.replace("/", "//"))
            return [mark(source) if number is None else str(int(number))]
        if (match := PARAMETER.fullmatch(source.strip("$").removeprefix("{").removesuffix("}"))) is None:
            return [mark(source)]
        name, index, sign, default = match.groups()
        elements, is_argument = self.find(name), name.isdecimal() and self.is_called()
        if name in "@*#?$!-0" or is_argument or (elements is None and name in OF_THE_MACHINE):
            return [mark(source)]
        if index:
            return elements or []
        value = mark(source) if elements is None else "".join(elements[:1])
        if sign and (elements is None or (":" in sign and not value)):
            value = self.expand_text(default)
            if "=" in sign:
                self.set(name, [value])
        return [value]


def mark(source: str) -> str:
    """Return an open part of a value, by how it is written."""
    return f"{START}{MARKS.sub('', source)[:LONGEST_OPEN]}{END}"


def merge(one: list[str], other: list[str]) -> list[str]:
    """Return a variable's elements after one of two branches; from the first difference on, they are open."""
    if one == other:
        return one
    is_text = len(one) == len(other) == 1
    parts = [FIELD.findall(way[0]) for way in (one, other)] if is_text else [one, other]
    same = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*parts, strict=False))])
    texts = " or ".join(" ".join(part[same:]) or "nothing" for part in parts)
    elements = [*parts[0][:same], mark(" or ".join(dict.fromkeys(MARKS.sub("", texts).split(" or "))))]
    return [" ".join(elements)] if is_text else elements
