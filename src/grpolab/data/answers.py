r"""What counts as the answer of a text, and when two answers are equal: text and exact fractions, no algebra.

`final_answer` finds it (`#### 42`, `\boxed{42}`, else the last number), `canonical` writes it in one form, so that
`\frac12`, `1/2` and `0.50` are equal. `grpolab.data.verifiers` asks math-verify where that is not enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction

MARKED = re.compile(r"####[ \t]*(\S.*)")  # GSM8K's final answer
BOX = re.compile(r"\\f?boxed\s*|\\fbox\s*")
# Digits, with commas only where they part thousands (also 1,00,000), and a decimal part.
DIGITS = r"(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+)(?:\.\d+)?|\.\d+"
NUMBER = re.compile(rf"[-+]?(?:{DIGITS})")
# In running text: a minus between two words is none, a fraction and a power of ten belong to the number.
VALUE = re.compile(rf"(?:(?<![\w)])[-+])?(?:{DIGITS})(?:/\d+(?![\d/])|[eE][-+]?\d{{1,3}}(?!\w))?")
LEADING_NUMBER = re.compile(rf"([-+]?(?:{DIGITS}))(?:[%°.,;:!?*]*$|[%°.,;:!?*]*\s+[^\W\d_(]{{2,}}[^\d]*$|\s*\(.*$)")
MATHS = re.compile(r"\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
MINUS = str.maketrans(dict.fromkeys("\u2212\u2013\ufe63\uff0d", "-") | {"\u00a0": " ", "\u202f": " "})
FUNCTIONS = {"pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "or", "and", "to"}
MOST_DIGITS = 400  # of a number that is compared by its value


def final_answer(text: str) -> str:
    r"""Return a text's final answer: after the last `####`, in the last \boxed{}, else its last number.

    A text without any number, and one that is a formula and nothing else, is its own answer; an empty one has none. A
    number loses its thousands separators and a trailing `.0`, so that `1,234.0` equals `1234`.
    """
    text = text.translate(MINUS)
    if marked := MARKED.findall(text):
        return _boxed(marked[-1]) or _number_or_text(marked[-1])
    if (boxed := _boxed(text)) is not None:
        return _number_or_text(boxed)
    if _is_formula(text):
        return _number_or_text(text)
    values = list(VALUE.finditer(text))
    formulas = [match for match in MATHS.finditer(text) if _is_formula(found := _inside(match)) and found.strip()]
    if formulas and (not values or formulas[-1].end() > values[-1].end()):
        return _number_or_text(_inside(formulas[-1]))
    return _number_or_text(values[-1].group() if values else text)


def _inside(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _boxed(text: str) -> str | None:
    r"""Return what is in the last \boxed{} that is closed, braces inside it included; None if there is none."""
    for box in reversed(list(BOX.finditer(text))):
        start = box.end()
        if not text.startswith("{", start):
            if word := re.match(r"[^\s${}\\]+", text[start:]):  # \boxed 5
                return word.group()
            continue
        depth = 0
        for place in range(start, len(text)):
            depth += (text[place] == "{") - (text[place] == "}")
            if depth == 0:
                return text[start + 1 : place]
    return None


def _is_formula(text: str) -> bool:
    r"""Return True if a text is a line without words: `1/2`, `x = 5`, `2\sqrt{3}`."""
    bare = re.sub(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\\[A-Za-z]+", " ", text.strip())
    return "\n" not in bare and not re.search(r"[^\W\d_]{2,}", bare)


def _number_or_text(answer: str) -> str:
    answer = answer.strip().strip("$*").strip()
    sign, rest = ("-", answer[1:].lstrip()) if answer.startswith("-") else ("", answer)
    unsigned = rest.lstrip("$€£").removeprefix("\\$").strip()
    if (number := LEADING_NUMBER.match(unsigned)) and not _goes_on(unsigned[number.end(1) :]):
        return re.sub(r"\.0+$", "", sign + number.group(1).replace(",", ""))
    return answer


def _goes_on(rest: str) -> bool:
    """Return True if what follows a number is no unit: `3 or 4`, `2 pi`."""
    word = re.match(r"\W*([^\W\d_]+)", rest)
    return bool(word and word.group(1).lower() in FUNCTIONS)


# LaTeX that changes how an answer looks, not what it is.
LOOKS = [
    (re.compile(r"\\(?:(?:left|right|displaystyle|limits)(?![a-z])|[!,;:\s])|\\?~"), ""),
    (re.compile(r"\\[dtc]frac"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt\s*(\w)"), r"\\sqrt{\1}"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|°|\\degree"), ""),
    (re.compile(r"\\?%|\\?\$|[€£]|\\?percent"), ""),
    (re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\s*([{}])\s*"), r"\1"),
    (re.compile(r"\^\{(\w)\}"), r"^\1"),
    (re.compile(r"\\(?:cdot|times)|×"), "*"),
    (re.compile(r"\\le(?:q)?(?![a-z])"), "≤"),
    (re.compile(r"\\ge(?:q)?(?![a-z])"), "≥"),
]
ONE_LETTER = re.compile(r"(?:[A-Za-z](?:_\w|_\{\w+\})?|[A-Za-z]\([A-Za-z]\))\s*=\s*")  # x =, f(x) =
WRAPPED = re.compile(r"\{([^{}\\]*)\}|\(([A-Za-z])\)")  # {42}, (B)
UNIT = re.compile(r"(?<=[\d}])\s+(?:[^\W\d_]{2,}(?:[ /][^\W\d_]+)*|m)\s*(?:\^[23])?\s*$")
FRACTION = re.compile(r"([-+]?)\\frac\{([-+]?[\d.]+)\}\{([-+]?[\d.]+)\}")
MIXED = re.compile(r"([-+]?)(\d+)(?:\s+(\d+)/(\d+)|\s*\\frac\{(\d+)\}\{(\d+)\})")
PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3}|/\d+)?")
POWER_OF_TEN = re.compile(r"([-+]?[\d.]+)\s*\*\s*10\s*\^\s*\{?\s*([-+]?\d{1,3})\s*\}?")


def canonical(answer: str) -> str:
    r"""Return an answer in one form: a number as a fraction, other text without spaces, units and LaTeX for looks.

    `0.50`, `\dfrac12` and `x = 1/2` are `1/2`; `5\text{ cm}` and `\$5.00` are `5`. Order, brackets and algebra stay:
    `\{1, 2\}` is not `\{2, 1\}`.
    """
    text = answer.translate(MINUS).strip()
    for pattern, plain in LOOKS:
        text = pattern.sub(plain, text)
    text = text.strip().rstrip(".").strip()
    if bare := WRAPPED.fullmatch(text):
        text = _inside(bare)
    lhs, equals, rhs = text.rpartition("=")
    if (name := ONE_LETTER.match(text)) and "=" not in text[name.end() :]:
        text = text[name.end() :]
    elif equals and not re.search(r"[A-Za-z<>≤≥]", lhs):  # 6 * 7 = 42
        text = rhs
    text = UNIT.sub("", text).strip()
    if (value := _value(text)) is not None:
        return str(value)
    text = "".join(text.split())
    return text.casefold() if len(text) > 1 and text.isalpha() else text


def _value(text: str) -> Fraction | None:
    """Return the value of a number, a fraction, a mixed number or one with a power of ten; None for anything else."""
    if len(text) > MOST_DIGITS:
        return None
    with suppress(ValueError, ZeroDivisionError):
        if mixed := MIXED.fullmatch(text):
            sign, whole, *parts = mixed.groups()
            above, below = (part for part in parts if part is not None)
            return (-1 if sign == "-" else 1) * (Fraction(int(whole)) + Fraction(int(above), int(below)))
        if fraction := FRACTION.fullmatch(text):
            sign, above, below = fraction.groups()
            return (-1 if sign == "-" else 1) * Fraction(above) / Fraction(below)
        if power := POWER_OF_TEN.fullmatch(text):
            return Fraction(power.group(1)) * Fraction(10) ** int(power.group(2))
        plain = text.replace(",", "") if NUMBER.fullmatch(text) else re.sub(r"\s*/\s*", "/", text)
        if PLAIN.fullmatch(plain):
            return Fraction(plain)
    return None


def majority(answers_N: Sequence[str], rights_IK: Sequence[Sequence[float]]) -> float:
    """Return the share of items whose most frequent answer among K is right: maj@K.

    Of several that are equally frequent each counts its share, which is what a draw among them has in the mean. An
    empty answer has no vote; an item without any is wrong.
    """
    total, answers = 0.0, iter(answers_N)
    for rights_K in rights_IK:
        votes = dict[str, list[float]]()
        for right in rights_K:
            votes.setdefault(next(answers), []).append(right)
        votes.pop("", None)
        most = max(map(len, votes.values()), default=0)
        first = [sum(rights) / most for rights in votes.values() if len(rights) == most]
        total += sum(first) / len(first) if first else 0.0
    return total / len(rights_IK)
