"""The words of a bash script as bash would expand them: variables, arrays, arithmetic, quotes.

Inside a value an open part is its source between two marks, and so is a variable that nothing sets.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from grpolab.frameworks.shell_syntax import ASSIGNED, ShellError, closing, piece_end, tokens

MOST_CHARACTERS = 200_000  # of a value
MOST_EXPANDED = 5_000_000  # characters, of all words together
LONGEST_EDITED = 4096  # by ${NAME%..} and the like
MOST_STEPS = 20  # of an expression that names expressions
MOST_DIGITS = 2**63  # what bash counts with
MOST_BRACES = 100  # words that {a,b} or {1..9} becomes

OPEN, UNSET, END = "\ue000", "\ue001", "\ue002"
GAP, EMPTY = "\ue003", "\ue004"  # between two words; a word that is quoted and empty
MARKS = re.compile("[\ue000-\ue004]")
PART = re.compile(f"[{OPEN}{UNSET}]([^{END}]*){END}")
_BLANKS = re.compile(rf"[{OPEN}{UNSET}][^{END}]*{END}|\s+")
_NAME = re.compile(r"\$(?:([A-Za-z_]\w*)|([0-9@*#?$!-]))")
_PARAMETER = re.compile(r"([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_PLAIN = re.compile(r"(?:[\d\s+*/%<>=()-]|!=|&&|\|\|){1,1000}")
_BRACES = re.compile(r"(?<!\$)\{([^{}'\"$\s]*,[^{}'\"$\s]*|-?\d{1,6}\.\.-?\d{1,6})\}")

# Always set, and never by the script.
OF_THE_MACHINE = {"HOME", "PWD", "OLDPWD", "USER", "PATH", "HOSTNAME", "RANDOM", "SECONDS", "BASH_SOURCE", "UID"}


def arithmetic(expression: str) -> int | None:
    """The whole number that `$((..))` of plain numbers is; None where it has none, or is not understood."""
    if not _PLAIN.fullmatch(expression):
        return None
    try:
        value = _number(ast.parse(expression.replace("&&", " and ").replace("||", " or ").strip(), mode="eval").body)
    except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return None
    return value


_SIGNS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),  # towards 0, as in C
    ast.Mod: lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            result = value
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.BinOp):
            result = -_number(operand)  # of nothing else, because it binds differently in bash
        case ast.BoolOp(op=sign, values=values):
            each = [_number(value) != 0 for value in values]
            result = int(all(each) if isinstance(sign, ast.And) else any(each))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            a, b = _number(left), _number(right)
            if isinstance(sign, ast.Pow | ast.LShift | ast.RShift) and not 0 <= b < 64:
                raise ValueError(b)
            result = _SIGNS[type(sign)](a, b)
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _SIGNS:
            result = int(_SIGNS[type(sign)](_number(left), _number(right)))
        case _:
            raise ValueError
    if abs(result) >= MOST_DIGITS:
        raise ValueError(result)
    return result


@dataclass
class Words:
    """What a script's variables hold. A variable is its elements by index; a plain one has one, at 0."""

    output: Callable[[str], str | None]  # what the script inside `$(..)` prints; None: only a run can tell
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    arguments: list[str] | None = None  # of the function that is running; None: the script's own, which are open
    spent: int = 0  # of MOST_EXPANDED

    def known(self, text: str) -> str | None:
        """A value in which nothing is open; what nothing sets is empty."""
        return None if OPEN in text else PART.sub("", text)

    def number(self, expression: str) -> int | None:
        """What an arithmetic expression is; None where it is open."""
        text = self.text(f'"{expression}"') if "$" in expression else expression
        names = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\[(\w+)\])?")
        for _ in range(MOST_STEPS):  # a variable may hold an expression
            if OPEN in text or UNSET in text or not names.search(text) or len(text) > MOST_CHARACTERS:
                break
            text = names.sub(lambda name: f"({self.value(name[0].partition('[')[0], name[1])})", text)
        return arithmetic(text)

    def value(self, name: str, index: str | None = None) -> str:
        """An element of a variable."""
        if name.isdigit() or name in "@*#?$!-":
            return self.argument(name)
        elements = self.variables.get(name)
        if elements is None:
            return open_part(f"${name}") if name in OF_THE_MACHINE else _unset(f"${name}")
        if index in ("@", "*"):
            return " ".join(elements.values())
        return elements.get(self.key(name, index), _unset(f"${name}" if index is None else f"${{{name}[{index}]}}"))

    def key(self, name: str, index: str | None) -> str:
        """The index of an element as it is stored."""
        text = PART.sub(r"\1", self.text(index or "0"))
        named = any(not key.lstrip("-").isdigit() for key in self.variables.get(name, {}))
        number = None if named else self.number(text)
        if number is not None and number < 0:
            number += len(self.variables.get(name, {}))
        return text if number is None else str(number)

    def argument(self, name: str) -> str:
        """`$1`, `$#`, `$@` and the like."""
        given = self.arguments
        if name == "#":
            return str(len(given or []))
        if name in "@*":
            return open_part("$@") if given is None else " ".join(given)
        if name.isdigit() and name != "0":
            return given[int(name) - 1] if given and int(name) <= len(given) else _unset(f"${name}")
        return open_part(f"${name}")

    def elements(self, name: str, index: str | None, rest: str) -> list[str] | None:
        """The words that `"${A[@]}"` and `"$@"` are; None for any other parameter."""
        if name == "@" or (name == "*" and index is None):
            every = [open_part("$@")] if self.arguments is None else self.arguments
        elif index in ("@", "*"):
            every = list(self.variables.get(name, {}).values())
        else:
            return None
        cut = re.fullmatch(r":\s*(\d+)(?::\s*(\d+))?", rest)
        if cut and not (name in "@*" and self.arguments is None):
            start = max(int(cut[1]) - (name in "@*"), 0)
            every = every[start : start + int(cut[2]) if cut[2] else None]
        return every

    def assign(self, word: str) -> None:
        """`NAME=..`, `NAME+=..`, `NAME[INDEX]=..` or `NAME=(..)`."""
        match = ASSIGNED.match(word)
        assert match is not None
        name, index, more = match.groups()
        right, old = word[match.end() :], self.variables.get(name, {})
        if right.startswith("(") and index is None:
            new = dict(old) if more else {}
            for element in self.array(right[1:-1]):
                keyed = re.match(r"\[([^\]]*)\]=", element)
                if keyed:
                    new[self.text(keyed[1])] = self.text(element[keyed.end() :])
                else:
                    new |= {str(len(new) + at): value for at, value in enumerate(self.fields(element))}
        else:
            key = self.key(name, index)
            before = old.get(key, "") if more else ""
            new = (dict(old) if index or more else {}) | {key: before + self.text(right)}
        if sum(map(len, new.values())) > MOST_CHARACTERS:
            raise ShellError(f"${name} has more than {MOST_CHARACTERS} characters")
        self.variables[name] = new

    def array(self, inside: str) -> Iterator[str]:
        """The words of `(..)`."""
        for token in tokens(inside):
            if token.kind == "broken":
                raise ShellError(token.text)
            if token.kind == "word":
                yield token.text

    def text(self, word: str) -> str:
        """A word as one value: nothing is split."""
        return self.expanded(word, split=False).replace(GAP, " ").replace(EMPTY, "")

    def fields(self, word: str) -> list[str]:
        """The words that a word becomes: none, one or several."""
        fields = [field for each in _braces(word) for field in self.expanded(each, split=True).split(GAP)]
        return [field.replace(EMPTY, "") for field in fields if field]

    def expanded(self, word: str, split: bool, quoted: bool = False) -> str:
        """A word without its quotes, with its expansions; GAP between the words that it becomes."""
        at, pieces = 0, list[str]()
        while at < len(word):
            char = word[at]
            if char == "\\":
                escaped = word[at + 1 : at + 2]
                kept = quoted and escaped not in '$`"\\\n'
                pieces.append(f"\\{escaped}" if kept else "" if escaped == "\n" else escaped)
                at += 2
            elif char == '"' and not quoted:
                end = closing(word, at + 1, '"')
                inside = word[at + 1 : end - 1]
                bare = re.fullmatch(r"\$(@|\{[^}]*\[@\].*\}|\{@.*\})", inside)
                pieces.append(self.expanded(inside, split=False, quoted=True) or ("" if bare else EMPTY))
                at = end
            elif not quoted and (char == "'" or word.startswith("$'", at)):
                end = piece_end(word, at)
                literal = word[at + 1 : end - 1] if char == "'" else word[at + 2 : end - 1]
                pieces.append(literal or EMPTY)
                at = end
            elif char in "$`":
                text, at = self.expansion(word, at, quoted)
                pieces.append(text if quoted or not split else _BLANKS.sub(_gap, text))
            elif not quoted and word.startswith(("<(", ">("), at):
                end = closing(word, at + 2, ")")
                pieces.append(open_part(word[at:end]))
                at = end
            else:
                pieces.append(char)
                at += 1
        self.spent += sum(map(len, pieces))
        if self.spent > MOST_EXPANDED:
            raise ShellError(f"its variables have become {MOST_EXPANDED} characters")
        return "".join(pieces)

    def expansion(self, word: str, at: int, quoted: bool) -> tuple[str, int]:
        """What `$..` or a backtick at this place is, and the place behind it."""
        if word.startswith("$((", at) and word[(end := closing(word, at + 2, ")")) - 2] == ")":
            value = self.number(word[at + 3 : end - 2])
            return (open_part(word[at:end]) if value is None else str(value)), end
        if word.startswith("$(", at) or word[at] == "`":
            end = closing(word, at + 2, ")") if word[at] == "$" else closing(word, at + 1, "`")
            printed = self.output(word[at + 2 : end - 1] if word[at] == "$" else word[at + 1 : end - 1])
            return (open_part(word[at:end]) if printed is None else printed), end
        if word.startswith("${", at):
            end = closing(word, at + 2, "}")
            return self.parameter(word[at + 2 : end - 1], word[at:end], quoted), end
        if (name := _NAME.match(word, at)) is None:
            return "$", at + 1
        every = self.elements(name[0][1:], None, "")
        return self.value(name[0][1:]) if every is None else _joined(every), name.end()

    def parameter(self, inside: str, source: str, quoted: bool) -> str:
        """`${..}` by what stands inside."""
        match = _PARAMETER.fullmatch(inside)
        if match is None:
            return open_part(source)
        sign, name, index, rest = match.groups()
        every = self.elements(name, index, rest)
        if sign == "#":
            return str(len(every)) if every is not None else str(len(PART.sub("", self.value(name, index))))
        if sign == "!":
            target = self.known(self.value(name))
            return self.value(target) if target and target.isidentifier() else open_part(source)
        value = self.value(name, index) if every is None else _joined(every)
        known = self.known(value)
        unset = value.startswith(UNSET) and value.endswith(END) and known == ""
        if default := re.fullmatch(r"(:?)([-=+?])(.*)", rest, re.DOTALL):
            colon, kind, word = default.groups()
            empty = unset or (colon == ":" and (known == "" or (every is not None and not every)))
            if kind == "+":
                return "" if empty else self.expanded(word, False, quoted)
            if not empty or kind == "?":
                return value
            text = self.expanded(word, False, quoted)
            if kind == "=":
                self.variables[name] = {"0": text}
            return text
        if not rest or (every is not None and rest.startswith(":")):
            return value
        plain = known is not None and not unset and every is None and len(known) < LONGEST_EDITED
        return self.edited(known or "", rest, source) if plain else open_part(source)

    def edited(self, text: str, rest: str, source: str) -> str:
        """A known value with `#`, `%`, `/`, `:`, `^` or `,` applied."""
        if cut := re.fullmatch(r"(##?|%%?)(.*)", rest, re.DOTALL):
            shape = re.compile(fnmatch.translate(self.text(cut[2])))
            ends = range(len(text) + 1)
            if cut[1][0] == "#":
                fits = [text[end:] for end in ends if shape.match(text[:end])]
            else:
                fits = [text[:end] for end in reversed(ends) if shape.match(text[end:])]
            return text if not fits else fits[0] if len(cut[1]) == 1 else fits[-1]
        if swap := re.fullmatch(r"(//?)([^/*?\[]+)(?:/(.*))?", rest, re.DOTALL):
            return text.replace(self.text(swap[2]), self.text(swap[3] or ""), -1 if swap[1] == "//" else 1)
        if part := re.fullmatch(r":\s*(\d+)(?::\s*(\d+))?", rest):
            start = int(part[1])
            return text[start : start + int(part[2]) if part[2] else None]
        return {"^^": text.upper(), ",,": text.lower()}.get(rest, open_part(source))


def open_part(source: str) -> str:
    """An open part of a value, by how it is written."""
    return f"{OPEN}{source}{END}"


def _unset(source: str) -> str:
    return f"{UNSET}{source}{END}"


def _gap(blanks: re.Match[str]) -> str:
    return GAP if blanks[0].isspace() else blanks[0]


def _joined(every: list[str]) -> str:
    return GAP.join(element or EMPTY for element in every)


def _braces(word: str) -> list[str]:
    """`a{b,c}` as `ab` and `ac`, `{1..3}` as 1, 2 and 3."""
    words = [word]
    for _ in range(4):
        match = _BRACES.search(words[0])
        if match is None or "'" in word or '"' in word:
            break
        if "," in match[1]:
            parts = match[1].split(",")
        else:
            first, last = map(int, match[1].split(".."))
            step = 1 if first <= last else -1
            parts = [str(number) for number in range(first, last + step, step)[:MOST_BRACES]]
        words = [each.replace(match[0], part, 1) for each in words for part in parts][:MOST_BRACES]
    return words
