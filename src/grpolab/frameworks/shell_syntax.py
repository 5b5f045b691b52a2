"""The syntax of a bash script: its text as a tree of commands, whose words stand as they are written.

Enough of bash for the scripts that start a training. Nothing is expanded here, and nothing is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

MOST_NESTED = 40  # levels of quotes, brackets and compound commands

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=")  # the start of NAME=, NAME+= and NAME[INDEX]=
_REDIRECTION = re.compile(r"(?:\d*|\{\w+\})(?:<<<|<<-|<<|>>|>\||>&|<&|<>|>|<)|&>>|&>")
_OPERATOR = re.compile(r";;&|;;|;&|;|&&|\|\||\|&|\||&|\(|\)|\n")
_COMMENT = re.compile(r"#[^\n]*")
_ENDS_A_WORD = " \t\n;&|()<>"


class ShellError(ValueError):
    """A place that cannot be read; the text says which and why."""


@dataclass(frozen=True)
class Token:
    """A word, an operator, a redirection with its target, or what could not be read."""

    kind: str  # word, operator, arithmetic, broken
    text: str


@dataclass(frozen=True)
class Simple:
    """Assignments, a command and its arguments."""

    words: list[str]


@dataclass(frozen=True)
class Arithmetic:
    """`(( .. ))`."""

    expression: str


@dataclass(frozen=True)
class Test:
    """`[[ .. ]]`, and `[ .. ]` once its words are expanded."""

    words: list[str]


@dataclass(frozen=True)
class Group:
    """`{ ..; }`, `( .. )` or the parts of a pipe."""

    body: list[Node]
    apart: bool  # a process of its own, whose variables end with it


@dataclass(frozen=True)
class Chain:
    """`left && right` or `left || right`."""

    left: Node
    both: bool
    right: Node


@dataclass(frozen=True)
class Not:
    """`! command`."""

    command: Node


@dataclass(frozen=True)
class Branches:
    """`if` with its `elif`s; a condition of None is `else`."""

    branches: list[tuple[list[Node] | None, list[Node]]]


@dataclass(frozen=True)
class Case:
    """`case WORD in PATTERN | PATTERN) .. ;; esac`."""

    word: str
    branches: list[tuple[list[str], list[Node]]]


@dataclass(frozen=True)
class For:
    """`for NAME in WORDS`."""

    name: str
    words: list[str]
    body: list[Node]


@dataclass(frozen=True)
class While:
    """`while`, `until` and `for ((..))`, whose condition is not looked at."""

    condition: list[Node]
    expected: bool | None  # what keeps it going; None: unknown
    body: list[Node]


@dataclass(frozen=True)
class Function:
    """A function's definition."""

    name: str
    body: Node


Node: TypeAlias = Simple | Arithmetic | Test | Group | Chain | Not | Branches | Case | For | While | Function


def parse(text: str) -> tuple[list[Node], str]:
    """The script's commands up to the first place that cannot be read, and why it cannot; empty where all of it can."""
    parser = _Parser(list(tokens(text)))
    nodes: list[Node] = []
    try:
        while parser.more():
            nodes += parser.commands(once=True)
    except ShellError as error:
        return nodes, str(error)
    except RecursionError:
        return nodes, "it is nested too deeply"
    return nodes, ""


def tokens(text: str) -> Iterator[Token]:
    """Words and operators, without comments, redirections and here-documents; the last one may be broken."""
    at, in_test = 0, False
    waiting: list[tuple[str, bool]] = []  # ends of here-documents that begin on the next line
    try:
        while at < len(text):
            if text[at] in " \t" or text.startswith("\\\n", at):
                at += 1 if text[at] in " \t" else 2
            elif comment := _COMMENT.match(text, at):
                at = comment.end()
            elif text.startswith("((", at) and (end := _arithmetic_end(text, at)):
                yield Token("arithmetic", text[at + 2 : end - 2])
                at = end
            elif in_test and text[at] in "<>":  # a comparison
                yield Token("operator", text[at])
                at += 1
            elif (redirection := _REDIRECTION.match(text, at)) and not text.startswith(("<(", ">("), at):
                sign, at = redirection[0], _blanks(text, redirection.end())
                target, at = text[at : (end := word_end(text, at))], end
                if sign.endswith(("<<", "<<-")):
                    waiting.append((re.sub(r"[\\'\"]", "", target), sign.endswith("-")))
            elif operator := _OPERATOR.match(text, at):
                yield Token("operator", operator[0])
                at = operator.end()
                if operator[0] == "\n":
                    for delimiter, indented in waiting:
                        at = _after_document(text, at, delimiter, indented)
                    waiting.clear()
            else:
                end = word_end(text, at)
                yield Token("word", text[at:end])
                in_test = text[at:end] == "[[" or (in_test and text[at:end] != "]]")
                at = end
    except ShellError as error:
        yield Token("broken", str(error))


def _blanks(text: str, at: int) -> int:
    while text.startswith((" ", "\t", "\\\n"), at):
        at += 1
    return at


def _after_document(text: str, at: int, delimiter: str, indented: bool) -> int:
    while at < len(text):
        end = text.find("\n", at)
        line, at = (text[at:], len(text)) if end < 0 else (text[at:end], end + 1)
        if (line.lstrip("\t") if indented else line) == delimiter:
            break
    return at


def word_end(text: str, at: int) -> int:
    """Where the word that begins here ends. Raises ShellError for a quote or bracket that does not close."""
    start = at
    while at < len(text):
        if text[at] == "(" and ASSIGNED.fullmatch(text, start, at):
            at = closing(text, at + 1, ")")
        elif text.startswith(("<(", ">("), at) and at == start:
            at = closing(text, at + 2, ")")
        elif text[at] in _ENDS_A_WORD:
            break
        else:
            at = piece_end(text, at)
    return at


def closing(text: str, at: int, closer: str, depth: int = 0) -> int:
    """The place behind the closer of what was opened before `at`: `)`, `}`, a double quote or a backtick."""
    if depth > MOST_NESTED:
        raise ShellError(f"line {text.count(chr(10), 0, at) + 1} nests more than {MOST_NESTED} levels")
    opened = at
    while at < len(text):
        char = text[at]
        if char == closer:
            return at + 1
        if closer == ")" and char == "(":
            at = closing(text, at + 1, ")", depth + 1)
        elif closer == ")" and char == "#" and text[at - 1] in " \t\n(":
            at += len(_COMMENT.match(text, at)[0])  # type: ignore[index]
        elif closer in '"`' and (char == "'" or text.startswith("$'", at) or (closer == "`" and char == '"')):
            at += 1  # there these are plain characters
        else:
            at = piece_end(text, at, depth)
    raise ShellError(f"line {text.count(chr(10), 0, opened) + 1}: its {closer} is missing")


def piece_end(text: str, at: int, depth: int = 0) -> int:
    """The place behind a quoted string, an expansion, an escaped character or a plain one."""
    if text[at] == "\\":
        return min(at + 2, len(text))
    if text[at] == "'" or text.startswith("$'", at):
        escapes = text[at] == "$"
        match = re.compile(r"\$'(?:[^'\\]|\\.)*'" if escapes else "'[^']*'", re.DOTALL).match(text, at)
        if match is None:
            raise ShellError(f"line {text.count(chr(10), 0, at) + 1}: its ' is missing")
        return match.end()
    for opener, closer in (("${", "}"), ("$(", ")"), ('"', '"'), ("`", "`")):
        if text.startswith(opener, at):
            return closing(text, at + len(opener), closer, depth + 1)
    return at + 1


def _arithmetic_end(text: str, at: int) -> int:
    """The place behind the `))` of a `((`, or 0 where these are two subshells."""
    end = closing(text, at + 1, ")")
    return end if text[end - 2] == ")" else 0


class _Parser:
    """Recursive descent over the tokens; a reserved word counts only where a command begins."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    def peek(self, *texts: str) -> bool:
        """Whether one of these comes next."""
        return self.at < len(self.tokens) and self.tokens[self.at].text in texts

    def take(self, *expected: str) -> Token:
        """The next token, which must be one of these. Raises ShellError."""
        if self.at >= len(self.tokens):
            raise ShellError(f"it ends where {' or '.join(expected) or 'a command'} is expected")
        token = self.tokens[self.at]
        if token.kind == "broken":
            raise ShellError(token.text)
        if expected and token.text not in expected:
            raise ShellError(f"{token.text[:40]!r} stands where {' or '.join(expected)} is expected")
        self.at += 1
        return token

    def skip(self, *texts: str) -> None:
        """Pass over any number of these."""
        while self.peek(*texts):
            self.at += 1

    def more(self) -> bool:
        """Whether a command is left."""
        self.skip("\n", ";", "&")
        return self.at < len(self.tokens)

    def commands(self, *ends: str, once: bool = False) -> list[Node]:
        """Commands up to a reserved word or operator that ends them, which stays; with `once`, one of them."""
        nodes: list[Node] = []
        while self.more() and not self.peek(*ends):
            nodes.append(self.chain())
            if once:
                return nodes
        if ends and not self.peek(*ends):
            raise ShellError(f"it ends where {' or '.join(ends)} is expected")
        return nodes

    def body(self, first: str, last: str) -> list[Node]:
        """What stands between two reserved words."""
        self.take(first)
        nodes = self.commands(last)
        self.take(last)
        return nodes

    def chain(self) -> Node:
        """Pipes joined by && and ||."""
        left = self.pipe()
        while self.peek("&&", "||"):
            both = self.take().text == "&&"
            self.skip("\n")
            left = Chain(left, both, self.pipe())
        return left

    def pipe(self) -> Node:
        """Commands joined by |."""
        if self.peek("!"):
            self.take()
            return Not(self.pipe())
        parts = [self.command()]
        while self.peek("|", "|&"):
            self.take()
            self.skip("\n")
            parts.append(self.command())
        return parts[0] if len(parts) == 1 else Group(parts, apart=True)

    def command(self) -> Node:
        """A simple or a compound command."""
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise ShellError(f"it nests more than {MOST_NESTED} compound commands")
        token = self.take()
        named = {
            "if": self._if, "case": self._case, "for": self._for, "select": self._for, "while": self._while,
            "until": self._while, "function": self._function, "{": self._braces, "(": self._subshell, "[[": self._test,
        }  # fmt: skip
        reader: Callable[[str], Node] | None = named.get(token.text)
        if token.kind == "arithmetic":
            node: Node = Arithmetic(token.text)
        elif reader is not None:
            node = reader(token.text)
        elif token.kind == "word":
            node = self._simple(token.text)
        else:
            raise ShellError(f"{token.text!r} stands where a command is expected")
        self.depth -= 1
        return node

    def _simple(self, first: str) -> Node:
        if self.peek("(") and re.fullmatch(r"[\w.:-]+", first):
            self.take()
            return self._function_body(first, ")")
        words = [first]
        while self.at < len(self.tokens) and self.tokens[self.at].kind == "word":
            words.append(self.take().text)
        return Simple(words)

    def _function(self, _word: str) -> Node:
        name = self.take().text
        if self.peek("("):
            self.take()
            return self._function_body(name, ")")
        return self._function_body(name)

    def _function_body(self, name: str, *closer: str) -> Node:
        if closer:
            self.take(*closer)
        self.skip("\n")
        return Function(name, self.command())

    def _braces(self, _word: str) -> Node:
        nodes = self.commands("}")
        self.take("}")
        return Group(nodes, apart=False)

    def _subshell(self, _word: str) -> Node:
        nodes = self.commands(")")
        self.take(")")
        return Group(nodes, apart=True)

    def _test(self, _word: str) -> Node:
        words = []
        while not self.peek("]]"):
            words.append(self.take().text)
        self.take()
        return Test([word for word in words if word != "\n"])

    def _if(self, _word: str) -> Node:
        branches: list[tuple[list[Node] | None, list[Node]]] = []
        word = "if"
        while word in ("if", "elif"):
            condition = self.commands("then")
            self.take("then")
            branches.append((condition, self.commands("elif", "else", "fi")))
            word = self.take("elif", "else", "fi").text
        if word == "else":
            branches.append((None, self.commands("fi")))
            self.take("fi")
        return Branches(branches)

    def _case(self, _word: str) -> Node:
        word = self.take().text
        self.skip("\n")
        self.take("in")
        branches = []
        while self.more() and not self.peek("esac"):
            if self.peek("("):
                self.take()
            patterns = [self.take().text]
            while self.take("|", ")").text == "|":
                patterns.append(self.take().text)
            branches.append((patterns, self.commands(";;", ";&", ";;&", "esac")))
            self.skip(";;", ";&", ";;&")
        self.take("esac")
        return Case(word, branches)

    def _for(self, _word: str) -> Node:
        name = self.take()
        if name.kind == "arithmetic":
            self.skip(";", "\n")
            return While([], None, self.body("do", "done"))
        self.skip("\n")
        words = ['"$@"']
        if self.peek("in"):
            self.take()
            words = []
            while not self.peek(";", "\n"):
                words.append(self.take().text)
        self.skip(";", "\n")
        return For(name.text, words, self.body("do", "done"))

    def _while(self, word: str) -> Node:
        condition = self.commands("do")
        return While(condition, word == "while", self.body("do", "done"))
