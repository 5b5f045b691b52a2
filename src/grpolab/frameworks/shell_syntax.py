"""The syntax of a bash script: its text as a tree of commands, whose words stand as they are written.

Enough of bash for the scripts that start a training. Nothing is expanded here, and nothing is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_NESTED = 40  # levels of quotes, brackets and compound commands

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=")  # the start of NAME=, NAME+= and NAME[INDEX]=
_BETWEEN = re.compile(r"(?:[ \t]|\\\n)*")
_REDIRECTION = re.compile(r"(?:\d*|\{\w+\})(?:<<<|<<-|<<|>>|>\||>&|<&|<>|>(?!\()|<(?!\())|&>>|&>")
_OPERATOR = re.compile(r";;&|;;|;&|;|&&|\|\||\|&|\||&|\(|\)|\n")
_COMMENT = re.compile(r"#[^\n]*")
_LITERAL = re.compile(r"'[^']*'|\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_OPENERS = (("${", "}"), ("$(", ")"), ('"', '"'), ("`", "`"))


class ShellError(ValueError):
    """A place that cannot be read; the text says which and why."""


@dataclass(frozen=True)
class Token:
    """A word, an operator, the inside of `((..))`, or why the rest cannot be read."""

    kind: str  # word, operator, arithmetic, broken
    text: str


@dataclass(frozen=True)
class Node:
    """A command by its kind, its words and its parts, each of which is a list of commands.

    kind            words            parts
    command         its words
    ((              an expression
    [[              its operands
    {               -                body
    (               -                body, in a process of its own; also what a pipe joins
    && ||           -                left; right
    !               -                a command
    if              -                condition; body; condition; body; ...; perhaps that of `else`
    case            a word           a `pattern` for each branch
    pattern         its patterns     body
    for             a name, words    body
    while until     -                condition; body
    for((           -                body
    function        a name           body
    """

    kind: str
    words: Sequence[str] = ()
    parts: Sequence[list[Node]] = ()


def parse(text: str) -> tuple[list[Node], str]:
    """The script's commands up to the first place that cannot be read, and why it cannot; empty where all of it can."""
    parser = _Parser(list(tokens(text)))
    nodes: list[Node] = []
    try:
        while parser.more():
            nodes.append(parser.chain())
    except ShellError as error:
        return nodes, str(error)
    except RecursionError:
        return nodes, "it is nested too deeply"
    return nodes, ""


def tokens(text: str) -> Iterator[Token]:
    """Words and operators, without comments, redirections and here-documents; the last one may be broken."""
    at, in_test = 0, False
    documents: list[str] = []  # what ends each here-document that begins on the next line
    try:
        while (at := _behind(_BETWEEN, text, at)) < len(text):
            if text[at] == "#":
                at = _behind(_COMMENT, text, at)
            elif text.startswith("((", at) and text[(end := closing(text, at + 1, ")")) - 2] == ")":
                yield Token("arithmetic", text[at + 2 : end - 2])
                at = end
            elif in_test and text[at] in "<>":  # a comparison
                yield Token("operator", text[at])
                at += 1
            elif redirection := _REDIRECTION.match(text, at):
                start = _behind(_BETWEEN, text, redirection.end())
                at = word_end(text, start)
                if redirection[0].endswith(("<<", "<<-")):
                    indent = "\t*" if redirection[0].endswith("-") else ""
                    delimiter = re.sub(r"[\\'\"]", "", text[start:at])
                    documents.append(rf"^{indent}{re.escape(delimiter)}(?:\n|\Z)")
            elif operator := _OPERATOR.match(text, at):
                yield Token("operator", operator[0])
                at = operator.end()
                while operator[0] == "\n" and documents:
                    last = re.compile(documents.pop(0), re.MULTILINE).search(text, at)
                    at = last.end() if last else len(text)
            else:
                start, at = at, word_end(text, at)
                yield Token("word", text[start:at])
                in_test = text[start:at] == "[[" or (in_test and text[start:at] != "]]")
    except ShellError as error:
        yield Token("broken", str(error))


def _behind(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def word_end(text: str, at: int) -> int:
    """Where the word that begins here ends. Raises ShellError for a quote or bracket that does not close."""
    start = at
    while at < len(text):
        if text[at] == "(" and ASSIGNED.fullmatch(text, start, at):
            at = closing(text, at + 1, ")")
        elif text.startswith(("<(", ">("), at) and at == start:
            at = closing(text, at + 2, ")")
        elif text[at] in " \t\n;&|()<>":
            break
        else:
            at = piece_end(text, at)
    return at


def closing(text: str, at: int, closer: str, depth: int = 0) -> int:
    """The place behind the closer of what was opened before `at`: `)`, `}`, a double quote or a backtick."""
    if depth > MOST_NESTED:
        raise ShellError(f"{_line(text, at)} nests more than {MOST_NESTED} levels")
    opened = at
    while at < len(text):
        char = text[at]
        if char == closer:
            return at + 1
        if closer == ")" and char == "(":
            at = closing(text, at + 1, ")", depth + 1)
        elif closer == ")" and char == "#" and text[at - 1] in " \t\n(":
            at = _behind(_COMMENT, text, at)
        elif closer in '"`' and (char == "'" or text.startswith("$'", at) or (closer == "`" and char == '"')):
            at += 1  # there these are plain characters
        else:
            at = piece_end(text, at, depth)
    raise ShellError(f"{_line(text, opened)}: its {closer} is missing")


def piece_end(text: str, at: int, depth: int = 0) -> int:
    """The place behind a quoted string, an expansion, an escaped character or a plain one."""
    if text[at] == "\\":
        return min(at + 2, len(text))
    if text.startswith(("'", "$'"), at):
        if (literal := _LITERAL.match(text, at)) is None:
            raise ShellError(f"{_line(text, at)}: its ' is missing")
        return literal.end()
    for opener, closer in _OPENERS:
        if text.startswith(opener, at):
            return closing(text, at + len(opener), closer, depth + 1)
    return at + 1


def _line(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}"


class _Parser:
    """Recursive descent over the tokens; a reserved word counts only where a command begins."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    def peek(self, *texts: str) -> bool:
        """Whether one of these comes next."""
        return self.at < len(self.tokens) and self.tokens[self.at].text in texts

    def take(self, *expected: str) -> str:
        """The text of the next token, which must be one of these. Raises ShellError."""
        if self.at >= len(self.tokens):
            raise ShellError(f"it ends where {' or '.join(expected) or 'a command'} is expected")
        token = self.tokens[self.at]
        if token.kind == "broken":
            raise ShellError(token.text)
        if expected and token.text not in expected:
            raise ShellError(f"{token.text[:40]!r} stands where {' or '.join(expected)} is expected")
        self.at += 1
        return token.text

    def skip(self, *texts: str) -> None:
        """Pass over any number of these."""
        while self.peek(*texts):
            self.at += 1

    def more(self) -> bool:
        """Whether a command is left."""
        self.skip("\n", ";", "&")
        return self.at < len(self.tokens)

    def body(self, *ends: str) -> list[Node]:
        """The commands up to one of these, which is passed over."""
        nodes: list[Node] = []
        while self.more() and not self.peek(*ends):
            nodes.append(self.chain())
        self.take(*ends)
        return nodes

    def texts(self, *ends: str) -> list[str]:
        """The words up to one of these, which is passed over."""
        start = self.at
        while not self.peek(*ends):
            self.take()
        self.at += 1
        return [token.text for token in self.tokens[start : self.at - 1] if token.text != "\n"]

    def chain(self) -> Node:
        """Pipes joined by && and ||."""
        left = self.pipe()
        while self.peek("&&", "||"):
            sign = self.take()
            self.skip("\n")
            left = Node(sign, parts=([left], [self.pipe()]))
        return left

    def pipe(self) -> Node:
        """Commands joined by |."""
        if self.peek("!"):
            self.take()
            return Node("!", parts=([self.pipe()],))
        parts = [self.command()]
        while self.peek("|", "|&"):
            self.take()
            self.skip("\n")
            parts.append(self.command())
        return parts[0] if len(parts) == 1 else Node("(", parts=(parts,))

    def command(self) -> Node:
        """A simple or a compound command."""
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise ShellError(f"it nests more than {MOST_NESTED} compound commands")
        word = self.take()
        kind = self.tokens[self.at - 1].kind
        node = Node("((", [word]) if kind == "arithmetic" else self.compound(word)
        if node is None and kind == "operator":
            raise ShellError(f"{word!r} stands where a command is expected")
        self.depth -= 1
        return node or self.simple(word)

    def simple(self, word: str) -> Node:
        """Words up to an operator, or `name() command`."""
        if self.peek("(") and re.fullmatch(r"[\w.:-]+", word):
            return self.function(word)
        start = self.at
        while self.at < len(self.tokens) and self.tokens[self.at].kind == "word":
            self.at += 1
        return Node("command", [word, *(token.text for token in self.tokens[start : self.at])])

    def function(self, name: str) -> Node:
        if self.peek("("):
            self.take()
            self.take(")")
        self.skip("\n")
        return Node("function", [name], ([self.command()],))

    def compound(self, word: str) -> Node | None:
        """A command that begins with a reserved word or a bracket; None for any other word."""
        match word:
            case "{" | "(":
                return Node(word, parts=(self.body("}" if word == "{" else ")"),))
            case "[[":
                return Node(word, self.texts("]]"))
            case "function":
                return self.function(self.take())
            case "if":
                parts = [self.body("then"), self.body("elif", "else", "fi")]
                while (ended := self.tokens[self.at - 1].text) != "fi":
                    if ended == "elif":
                        parts.append(self.body("then"))
                    parts.append(self.body("fi") if ended == "else" else self.body("elif", "else", "fi"))
                return Node(word, parts=parts)
            case "while" | "until":
                return Node(word, parts=(self.body("do"), self.body("done")))
            case "for" | "select":
                return self.loop(self.take())
            case "case":
                subject = self.take()
                self.skip("\n")
                self.take("in")
                branches = []
                while self.more() and not self.peek("esac"):
                    branches.append(self.branch())
                self.take("esac")
                return Node(word, [subject], (branches,))
        return None

    def loop(self, name: str) -> Node:
        """What follows `for`."""
        is_counted = self.tokens[self.at - 1].kind == "arithmetic"
        self.skip("\n")
        words = ['"$@"']
        if self.peek("in"):
            self.take()
            words = self.texts(";", "\n")
        self.skip(";", "\n")
        self.take("do")
        return Node("for((" if is_counted else "for", [name, *words], (self.body("done"),))

    def branch(self) -> Node:
        """`PATTERN | PATTERN) .. ;;`; a last one may end with `esac`, which stays."""
        if self.peek("("):
            self.take()
        patterns = [self.take()]
        while self.take("|", ")") == "|":
            patterns.append(self.take())
        body = self.body(";;", ";&", ";;&", "esac")
        self.at -= self.tokens[self.at - 1].text == "esac"
        return Node("pattern", patterns, (body,))
