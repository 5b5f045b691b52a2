"""The commands of a bash script and their words, as they are written; and the open parts that words have later."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

CLOSE = {"$((": "))", "((": "))", "${": "}", "$(": ")", "<(": ")", ">(": ")", "(": ")", "$'": "'"}
OPENER = re.compile(r"\$?\(\(|\$\{|[$<>]?\(|\$?'|[`\"]")
QUOTED_OPENER = re.compile(r"\$\(\(|\$[({]|`")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
BLANKS = re.compile(r"(?:[ \t\r]|\\\r?\n)+|#[^\n]*")
OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\|&?|&|\(\s*\)|[;()\n]")
REDIRECTION = re.compile(r"(?:\d*|&)(?:<<<|<<-?|>>|>\||>&|<&|<>|[<>])(?!\()[ \t]*")
WORD_END = re.compile(r"[ \t\r\n;&|()]|[<>](?!\()")
NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[@*#?$!\d-])")
TEST_SIGN = re.compile(r"&&|\|\||[()<>]")
BEGINS = {"if", "while", "until", "for", "select", "case", "{", "("}
BRANCHES = {"elif", "else", ";;", ";&", ";;&"}
ENDS = {"fi", "done", "esac", "}", ")"}
KEYWORDS = BEGINS | BRANCHES | ENDS | {"then", "do", "!", "time", "function"}
LONGEST_OPEN = 2000  # characters of an open part
START, END = "\ue000", "\ue001"  # around the open parts of a value
MARKS = re.compile(f"[{START}{END}]")
FIELD = re.compile(f"(?:{START}[^{END}]*{END}|\\S)+")
PRINTERS = {"echo", "printf", "cat", "grep"}  # what they are given is not run
JOINED = {"eval", "ssh", "pdsh", "tmux"}  # these run their words as one text
ELSEWHERE = {*JOINED, "docker", "podman", "kubectl", "ray", "sudo", "su"}  # what is exported may be unknown there
SHELLS = {"bash", "sh", "zsh", "dash", "su"}
SHELL_TEXT = re.compile(r"(?:(?:-[\w-]+|pipefail)\0)*?-[a-z]*c\0")  # their options before a text


class ScriptError(ValueError):
    """A script that cannot be read to its end; the text says why."""


def find_end(text: str, at: int, is_quoted: bool = False) -> int:
    """Return the index after the character, quotation or expansion at `at`. Raises ScriptError if it does not end."""
    if text[at] == "\\":
        return min(at + 2, len(text))
    if text[at] == START:  # in a text that has been expanded before
        return text.find(END, at) + 1 or len(text)
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
        elif text.startswith(("[[ ", "[[\n"), at) and all(word in KEYWORDS for word in words):
            at = split_test(text, at + 2, words)
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


def find_texts(fields: Sequence[str], given: Sequence[str]) -> Sequence[str]:
    """Return the texts that a command runs as scripts, as `bash -c TEXT` does, or may, as `COMMAND=TEXT sbatch`."""
    name = fields[0].rpartition("/")[2]
    if name in JOINED:
        return [" ".join(fields[1:])]
    for at, word in enumerate([] if name in PRINTERS else fields):
        if word.rpartition("/")[2] in SHELLS and (match := SHELL_TEXT.match("\0".join(fields[at + 1 : at + 7]))):
            return fields[at + 1 + match[0].count("\0") :][:1]
    if name == "sbatch":
        pairs = itertools.pairwise(word for field in fields for word in field.split("=", field.startswith("--wrap=")))
        texts = [text for option, text in pairs if option == "--wrap"]
        return [*texts, *(word.partition("=")[2] for word in given if " " in word)]
    return fields[-1:] if name == "ray" and fields[-2:-1] == ["--"] else []


def split_test(text: str, at: int, words: list[str]) -> int:
    """Append the words from `[[` to `]]`, in which `&&`, `<` and brackets are words; return the index after them."""
    words.append("[[")
    while words[-1] != "]]":
        is_pattern = words[-1] == "=~"
        if at >= len(text):
            raise ScriptError("a quotation or bracket is not closed: ]] is missing")
        if match := BLANKS.match(text, at):
            at = match.end()
        elif text[at] == "\n":
            at += 1
        elif text.startswith("]]", at):
            words.append("]]")
            at += 2
        elif (match := TEST_SIGN.match(text, at)) and not is_pattern:
            words.append(match[0])
            at = match.end()
        else:
            start = at
            while at < len(text) and not text[at].isspace() and (is_pattern or not TEST_SIGN.match(text, at)):
                at = find_end(text, at)
            words.append(text[start:at])
    return at


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
