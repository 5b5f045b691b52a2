"""The words of a bash script as bash would expand them: variables, arrays, arithmetic, quotes.

Inside a value an open part is its source between two marks, and so is a variable that nothing sets.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from grpolab.frameworks.shell_syntax import ASSIGNED, ShellError, closing, piece_end, tokens

MOST_CHARACTERS = 200_000  # of a value
MOST_EXPANDED = 5_000_000  # characters, of all words together
LONGEST_EDITED = 4096  # by ${NAME%..} and the like
MOST_STEPS = 20  # of an expression that names expressions
LARGEST = 2**63  # what bash counts with
MOST_BRACES = 100  # words that {a,b} or {1..9} becomes

OPEN, UNSET, END = "\ue000", "\ue001", "\ue002"
GAP, EMPTY = "\ue003", "\ue004"  # between two words; a word that is quoted and empty
MARKS = re.compile("[\ue000-\ue004]")
PART = re.compile(f"[{OPEN}{UNSET}]([^{END}]*){END}")
_PART_OR_BLANKS = re.compile(rf"({PART.pattern})|\s+")
_NAME = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])")
_PARAMETER = re.compile(r"([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_SLICE = re.compile(r":\s*(\d+)(?::\s*(\d+))?")
_COUNTED = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(?:\[(\w+)\])?")
_PLAIN = re.compile(r"(?:[\d\s+*/%<>=()-]|!=|&&|\|\|){1,1000}")
_BRACES = re.compile(r"(?<!\$)\{([^{}'\"$\s]*,[^{}'\"$\s]*|-?\d{1,6}\.\.-?\d{1,6})\}")

# Always set, and never by the script.
OF_THE_MACHINE = {"HOME", "PWD", "OLDPWD", "USER", "PATH", "HOSTNAME", "RANDOM", "SECONDS", "BASH_SOURCE", "UID"}

_SIGNS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),  # towards 0, as in C
    ast.Mod: lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def arithmetic(expression: str) -> int | None:
    """The whole number that `$((..))` of plain numbers is; None where it has none, or is not understood."""
    if not _PLAIN.fullmatch(expression):
        return None
    try:
        return _number(ast.parse(expression.replace("&&", " and ").replace("||", " or ").strip(), mode="eval").body)
    except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return None


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(result)):
            pass
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.BinOp):
            result = -_number(operand)  # of nothing else, because it binds differently in bash
        case ast.BoolOp(op=op, values=values):
            outcomes = [_number(value) != 0 for value in values]
            result = int(all(outcomes) if isinstance(op, ast.And) else any(outcomes))
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]) if (
            type(op) in _SIGNS
        ):
            a, b = _number(left), _number(right)
            if isinstance(op, ast.Pow | ast.LShift | ast.RShift) and not 0 <= b < 64:
                raise ValueError
            result = int(_SIGNS[type(op)](a, b))
        case _:
            raise ValueError
    if abs(result) >= LARGEST:
        raise ValueError
    return result


@dataclass
class Words:
    """What a script's variables hold. A variable is its elements by index; a plain one has one, at 0.

    `@` has the arguments, from 1 on; while it is not set they are the script's own, which are open.
    """

    output: Callable[[str], str | None]  # what the script inside `$(..)` prints; None: only a run can tell
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    spent: int = 0  # of MOST_EXPANDED

    def set_arguments(self, values: list[str]) -> None:
        """What `$1`, `$2`, .. are from here on."""
        self.variables["@"] = {str(number): value for number, value in enumerate(values, 1)}

    def known(self, text: str) -> str | None:
        """A value in which nothing is open; what nothing sets is empty."""
        return None if OPEN in text else PART.sub("", text)

    def number(self, expression: str) -> int | None:
        """What an arithmetic expression is; None where it is open."""
        text = self.text(f'"{expression}"') if "$" in expression else expression
        for _ in range(MOST_STEPS):  # a variable may hold an expression
            if MARKS.search(text) or not _COUNTED.search(text) or len(text) > MOST_CHARACTERS:
                break
            text = _COUNTED.sub(lambda name: f"({self.value(name[1], name[2])})", text)
        return arithmetic(text)

    def value(self, name: str, index: str | None = None) -> str:
        """A plain variable, an element of another one, or `$1`, `$#` and the like."""
        source = f"${name}" if index is None else f"${{{name}[{index}]}}"
        if name == "#":
            return str(len(self.variables.get("@", {})))
        if name.isdigit() and name != "0":
            name, index = "@", name
        elif not name.isidentifier() or (name in OF_THE_MACHINE and name not in self.variables):
            return open_part(source)
        return self.variables.get(name, {}).get(self.key(name, index), f"{UNSET}{source}{END}")

    def key(self, name: str, index: str | None) -> str:
        """The index of an element as it is stored."""
        stored, text = self.variables.get(name, {}), PART.sub(r"\1", self.text(index or "0"))
        number = self.number(text) if all(key.isdigit() for key in stored) else None
        return text if number is None else str(number + len(stored) if number < 0 else number)

    def elements(self, name: str, index: str | None, rest: str = "") -> list[str] | None:
        """The words that `"${A[@]}"` and `"$@"` are, `rest` cut from them; None for any other parameter."""
        if name not in "@*" and index not in ("@", "*"):
            return None
        first = int(name in "@*")
        if first and "@" not in self.variables:
            return [open_part("$@")]
        every = list(self.variables.get("@" if first else name, {}).values())
        if cut := _SLICE.fullmatch(rest):
            start = max(int(cut[1]) - first, 0)
            every = every[start : start + int(cut[2]) if cut[2] else None]
        return every

    def assign(self, word: str) -> None:
        """`NAME=..`, `NAME+=..`, `NAME[INDEX]=..` or `NAME=(..)`."""
        match = ASSIGNED.match(word)
        assert match is not None
        name, index, more = match.groups()
        right, old = word[match.end() :], self.variables.get(name, {})
        new = dict(old) if index or more else {}
        if right.startswith("(") and index is None:
            for token in tokens(right[1:-1]):
                if token.kind == "broken":
                    raise ShellError(token.text)
                if keyed := re.match(r"\[([^\]]*)\]=", token.text):
                    new[self.text(keyed[1])] = self.text(token.text[keyed.end() :])
                elif token.kind == "word":
                    new |= {str(at): value for at, value in enumerate(self.fields(token.text), len(new))}
        else:
            key = self.key(name, index)
            new[key] = (old.get(key, "") if more else "") + self.text(right)
        if sum(map(len, new.values())) > MOST_CHARACTERS:
            raise ShellError(f"${name} has more than {MOST_CHARACTERS} characters")
        self.variables[name] = new

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
            char, start = word[at], at
            if char in "$`" and not (word.startswith("$'", at) and not quoted):
                text, at = self.expansion(word, at, quoted)
                pieces.append(_PART_OR_BLANKS.sub(lambda found: found[1] or GAP, text) if split else text)
                continue
            at = at + 1 if quoted and char != "\\" else piece_end(word, at)
            if char == "\\":
                escaped = word[start + 1 : at]
                kept = quoted and escaped not in '$`"\\\n'
                pieces.append(f"\\{escaped}" if kept else "" if escaped == "\n" else escaped)
            elif quoted or at == start + 1:
                if not quoted and word.startswith(("<(", ">("), start):
                    at = closing(word, at + 1, ")")
                    char = open_part(word[start:at])
                pieces.append(char)
            elif char == '"':
                inside = word[start + 1 : at - 1]
                is_list = re.fullmatch(r"\$(@|\{[^}]*\[@\].*\}|\{@.*\})", inside)
                pieces.append(self.expanded(inside, split=False, quoted=True) or ("" if is_list else EMPTY))
            else:
                pieces.append(word[start:at].removeprefix("$")[1:-1] or EMPTY)
        self.spent += sum(map(len, pieces))
        if self.spent > MOST_EXPANDED:
            raise ShellError(f"its variables have become {MOST_EXPANDED} characters")
        return "".join(pieces)

    def expansion(self, word: str, at: int, quoted: bool) -> tuple[str, int]:
        """What `$..` or a backtick at this place is, and the place behind it."""
        if name := _NAME.match(word, at):
            every = self.elements(name[1], None)
            return self.value(name[1]) if every is None else _joined(every), name.end()
        if not word.startswith(("${", "$(", "`"), at):
            return "$", at + 1
        source = word[at : (end := piece_end(word, at))]
        if source.startswith("${"):
            return self.parameter(source, quoted), end
        if source.startswith("$((") and source.endswith("))"):
            value = self.number(source[3:-2])
            return open_part(source) if value is None else str(value), end
        printed = self.output(source.removeprefix("$")[1:-1])
        return open_part(source) if printed is None else printed, end

    def parameter(self, source: str, quoted: bool) -> str:
        """What `${..}` is."""
        match = _PARAMETER.fullmatch(source[2:-1])
        if match is None:
            return open_part(source)
        sign, name, index, rest = match.groups()
        every = self.elements(name, index, rest)
        value = self.value(name, index) if every is None else _joined(every)
        known = self.known(value)
        if sign == "#":
            return str(len(PART.sub("", value)) if every is None else len(every))
        if sign == "!":
            if every is not None:
                return _joined([*self.variables.get(name, {})])
            return self.value(known) if known and known.isidentifier() else open_part(source)
        unset = value.startswith(UNSET) and known == ""
        if default := re.fullmatch(r"(:?)([-=+?])(.*)", rest, re.DOTALL):
            colon, kind, word = default.groups()
            empty = unset or (known == "" and colon == ":")
            if empty is (kind == "+") or kind == "?":
                return "" if kind == "+" else value
            text = self.expanded(word, False, quoted)
            if kind == "=":
                self.variables[name] = {"0": text}
            return text
        if not rest or (every is not None and rest.startswith(":")):
            return value
        if known is None or unset or every is not None or len(known) >= LONGEST_EDITED:
            return open_part(source)
        return self.edited(known, rest, source)

    def edited(self, text: str, rest: str, source: str) -> str:
        """A known value with `#`, `%`, `/`, `:`, `^` or `,` applied."""
        if cut := re.fullmatch(r"(##?|%%?)(.*)", rest, re.DOTALL):
            shape, places = re.compile(fnmatch.translate(self.text(cut[2]))), range(len(text) + 1)
            if cut[1][0] == "#":
                left = [text[place:] for place in places if shape.match(text[:place])]
            else:
                left = [text[:place] for place in reversed(places) if shape.match(text[place:])]
            return left[0 if len(cut[1]) == 1 else -1] if left else text
        if swap := re.fullmatch(r"(//?)([^/*?\[]+)(?:/(.*))?", rest, re.DOTALL):
            return text.replace(self.text(swap[2]), self.text(swap[3] or ""), -1 if swap[1] == "//" else 1)
        if part := _SLICE.fullmatch(rest):
            return text[int(part[1]) :][: int(part[2]) if part[2] else None]
        return {"^^": text.upper(), ",,": text.lower()}.get(rest, open_part(source))


def open_part(source: str) -> str:
    """An open part of a value, by how it is written."""
    return f"{OPEN}{source}{END}"


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
