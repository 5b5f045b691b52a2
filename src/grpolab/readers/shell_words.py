"""The commands and words of a bash script as they are written, and the marks of what a value leaves open."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

LONGEST_OPEN = 2000  # characters of an open part
DEEPEST = 30  # quotations and brackets inside each other
# An open part of a value is a mark, its source and END; GAP separates the words that an expansion makes.
OPEN, UNSET, END, GAP = "\ue000", "\ue001", "\ue002", "\ue003"
PART = re.compile(f"[{OPEN}{UNSET}]([^{END}]*){END}")
MARKS = re.compile(f"[{OPEN}-{GAP}]")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
BLANKS = re.compile(r"(?:(?:[ \t\r]|\\\r?\n)*(?:#[^\n]*)?)")
OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\|&?|&(?!>)|[;()\n]")
REDIRECTION = re.compile(r"(?:\d*|&)(?:<<<|<<-?|>>|>\||>&|<&|<>|[<>])(?!\()[ \t]*")
BRACKETS = (("$((", "))"), ("${", "}"), ("$(", ")"), ("`", "`"), ("<(", ")"), (">(", ")"), ('"', '"'))
OPENERS = {"if", "while", "until", "for", "case", "{", "(", "function"}
CLOSERS = {"fi", "done", "esac", "}", ")"}
KEYWORDS = {"if", "then", "elif", "else", "do", "while", "until", "{"}


class ScriptError(ValueError):
    """A script that cannot be read to its end; the text says why."""


def unmark(text: str) -> str:
    """Return a value with its open parts as they are written."""
    return PART.sub(r"\1", text)


def mark_open(source: str, mark: str = OPEN) -> str:
    """Return an open part of a value, by how it is written."""
    return f"{mark}{MARKS.sub('', source)[:LONGEST_OPEN]}{END}"


def find_piece_end(text: str, at: int, quoted: bool = False, depth: int = 0) -> int:
    """Return the place behind the character, quotation or expansion at this one."""
    if text[at] == "\\":
        return min(at + 2, len(text))
    if not quoted and text.startswith(("'", "$'"), at):
        if (end := text.find("'", text.index("'", at) + 1)) < 0:
            raise ScriptError("a quotation is not closed: ' is missing")
        return end + 1
    for opener, close in BRACKETS[:4] if quoted else BRACKETS:
        if text.startswith(opener, at):
            return find_bracket_end(text, at + len(opener), close, depth + 1)
    return at + 1


def find_bracket_end(text: str, at: int, close: str, depth: int = 0) -> int:
    """Return the place behind the end of a quotation or bracket. Raises ScriptError where it has none."""
    if depth > DEEPEST:
        raise ScriptError(f"it nests more than {DEEPEST} quotations and brackets")
    while at < len(text):
        if text.startswith(close, at):
            return at + len(close)
        if text[at] == "#" and close == ")" and text[at - 1] in " \t\n(":
            at = text.find("\n", at) % (len(text) + 1)
        elif text[at] == "(" and ")" in close:
            at = find_bracket_end(text, at + 1, ")", depth + 1)
        else:
            at = find_piece_end(text, at, close == '"', depth)
    raise ScriptError(f"a quotation or bracket is not closed: {close} is missing")


def find_word_end(text: str, at: int) -> int:
    """Return the place behind a word, the list of an array with it."""
    start = at
    while at < len(text) and text[at] not in " \t\r\n;&|()" and not REDIRECTION.match(text[at : at + 2]):
        at = find_piece_end(text, at)
        if text.startswith("(", at) and ASSIGNMENT.fullmatch(text, start, at):
            at = find_bracket_end(text, at + 1, ")")
    return at


def split_tokens(text: str) -> Iterator[str]:
    """Yield words as they are written and operators, without comments, redirections and here-documents."""
    at, documents = 0, list[str]()
    while at < len(text):
        end = at + 1
        if (blanks := BLANKS.match(text, at)) and blanks[0]:
            end = blanks.end()
        elif text.startswith("((", at):
            yield text[at : (end := find_bracket_end(text, at + 2, "))"))]
        elif match := OPERATOR.match(text, at):
            yield match[0]
            end = match.end()
            while match[0] == "\n" and documents:
                document = re.compile(rf"^\s*{re.escape(documents.pop(0))}$", re.MULTILINE).search(text, end)
                end = document.end() if document else len(text)
        elif match := REDIRECTION.match(text, at):
            end = find_word_end(text, match.end())
            if match[0].strip().endswith(("<<", "<<-")):
                documents.append(text[match.end() : end].strip("'\"\\"))
        elif (end := find_word_end(text, at)) > at:
            yield text[at:end]
        at = max(end, at + 1)


def split_commands(text: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield the operator before each command, its words and the operator behind it; a keyword is a command."""
    words, joint, is_pattern = list[str](), ";", False
    for token in itertools.chain(split_tokens(text), "\n"):
        if is_pattern and token == ")":
            yield ";", ["pattern", *words], ";"
            words, is_pattern = [], False
        elif is_pattern and (token != "esac" or words):
            words += [token] if token not in ("(", "|", "\n") else []
        elif token == "(" and len(words) == 1:
            words = ["function"]
        elif token == ")" and words == ["function"]:
            continue
        elif OPERATOR.fullmatch(token):
            if words and words != ["function"]:
                yield joint, words, token
            if token == "(" or token.startswith(";;"):
                yield joint, [token[:2]], ""
                is_pattern = token != "("
            if token != "\n" or words:  # a line may end behind `&&`
                joint = token if token in ("&&", "||", "|", "|&") else ";"
            words = [token] if token == ")" else words if words == ["function"] else []
        elif token in KEYWORDS and (not words or words[0] == "function"):
            yield joint, ["function"] if words else [token], ""
            words, joint = [], ";"
        else:
            is_pattern = False
            words.append(token)
            if token == "in" and words[0] == "case":
                yield joint, words, ""
                words, joint, is_pattern = [], ";", True
