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
WORD = re.compile(r"[^\s${}\\]+")
# Digits, with commas only where they part thousands (also 1,00,000; at most 20 of them, or a search among many numbers
# takes the square of their count), and a decimal part.
DIGITS = r"(?:\d{1,3}(?:,\d{2,3}){0,20},\d{3}(?!\d)|\d+)(?:\.\d+)?|\.\d+"
NUMBER = re.compile(rf"[-+]?(?:{DIGITS})")
TEN = r"10 ?\^ ?\{? ?[-+]?\d{1,3} ?\}?"
# In running text. An exponent and a modulus are no values; a minus between two words is none; a ratio or time, a mixed
# number, a fraction and a power of ten belong to the number.
VALUE = re.compile(
    r"\^ ?\{? ?[-+]?\d+|\b[pb]?mod(?:ulo)? ?\{? ?\d+|(?P<value>(?:(?<![\w)])[-+])?"
    rf"(?:{TEN}|\d+(?::\d+)+|\d+ \d+ ?/ ?\d+(?![\d/])|(?:{DIGITS})"
    rf"(?: ?/ ?\d+(?![\d/])|[eE][-+]?\d{{1,3}}(?!\w)| ?(?:[x*×]|\\times|\\cdot) ?{TEN})?))"
)
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
CHANGING = "|".join(SCALES) + "|dozen|squared|cubed|factorial|choose|pi|sqrt|thirds|fifths|sixths|eighths|tenths"
VARIABLE = r"[bcinkpqrtxyz](?![A-Za-z])"
TERM = rf"(?:[\d(√π]|\\(?!text|mathrm)|pi\b|sqrt|the\ (?:square|cube)|{VARIABLE})"
# What follows a number and makes another of it. An exclamation mark is a factorial where its sentence goes on.
CHANGE = re.compile(
    rf"""[ \t$*}}(-]*(?:\\text\s*\{{\s*|\\)?
            (?i: (?:{CHANGING}|[pb]?mod(?:ulo)?|raised\ to|to\ the\ (?:\w+\ )?power)(?![a-z])
            | and\ (?:a|one|two|three)[ -](?:half|third|quarter|fourth|fifth)
            | (?:sin|cos|tan|log|ln|exp|times|plus|minus|over|(?:\w+ed\ )?by)\b\s*{TERM})
        | [kKMBabinrxyz](?![A-Za-z]) | [ \t]+k\b | [ \t]*\^(?!\ ?\{{?\ ?\\circ)(?:\{{[^{{}}]*\}}|-?\w+)?
        | [ \t]*(?:[²³×·÷±√π½⅓⅔¼¾]|\\(?:times|cdot|div|frac)) | \*\*?[\w(\\] | [ \t]+\*[ \t]+[\w(\\]
        | [ \t]*[/+][ \t]*{TERM} | [ \t]+-[ \t]+{VARIABLE} | !(?=[ \t]*[a-z=+/\d(^])""",
    re.VERBOSE,
)
# What stands before a number and makes another of it; it is looked for among so many characters.
BEFORE = re.compile(
    r"""(?: [\w.)}]+(?:[+/×·÷±]|[ \t]+[+/×·÷±][ \t]+) | [\d)}](?:\*\*?|x|[ \t]+[*x][ \t]+) | \}[ \t]*\{
        | (?:√|\b(?:sqrt|root\ of|log|ln|times|minus|negative|choose)|\\(?:[dt]?frac|sqrt|log|ln|times|cdot|div))
            [ \t]*[({]?[ \t]*)$""",
    re.VERBOSE,
)
FAR = 30
# Punctuation, a unit in words without digits, or a comment in brackets: the number before them is the answer.
NOTHING_MORE = re.compile(r"[%°.,;:?*]*(?:$|\s+\((?:\d[\d.,]*\s+)?[^\W\d_]{2}|\s+[^\W\d_]{2,}+(?=\D*$))")
OTHERS = re.compile(r"\W*(?:text\s*\{\s*)?(?:or|and|to)\b", re.IGNORECASE)  # 3 or 4
MATHS = re.compile(r"\$([^$\n]+)\$|\\\(((?:(?!\\[()]).)+)\\\)|\\\[((?:(?!\\[\[\]]).)+)\\\]", re.DOTALL)
MINUS = str.maketrans(dict.fromkeys("\u2212\u2013\ufe63\uff0d", "-") | {"\u00a0": " ", "\u202f": " "})
MOST_DIGITS = 400  # of a number that is compared by its value


def final_answer(text: str) -> str:
    r"""Return a text's final answer: after the last `####`, in the last \boxed{}, else its last number.

    A text without any number, and one that is a formula and nothing else, is its own answer; an empty one has none. A
    number loses its thousands separators and a trailing `.0`, so that `1,234.0` equals `1234`; it keeps what makes
    another number of it, so that `6 million`, `5!` and `3 (mod 7)` are not 6, 5 and 3.
    """
    text = text.translate(MINUS)
    if marked := MARKED.findall(text):
        return _boxed(marked[-1]) or _number_or_text(marked[-1])
    if (boxed := _boxed(text)) is not None:
        return _number_or_text(boxed)
    if _is_formula(text):
        return _number_or_text(text)
    value = formula = None
    for match in VALUE.finditer(text):
        value = match if match["value"] else value
    for match in MATHS.finditer(text):
        formula = match if _inside(match).strip() and _is_formula(_inside(match)) else formula
    if formula and (not value or formula.end() > value.end()):
        answer = _number_or_text(_inside(formula))
        change = CHANGE.match(text, formula.end()) if NUMBER.fullmatch(answer) else None
        return answer + change.group() if change else answer
    if not value:
        return _number_or_text(text)
    before = BEFORE.search(text[max(0, value.start() - FAR) : value.start()])
    after = CHANGE.match(text, value.end())
    return _number_or_text("".join(match.group() for match in (before, value, after) if match))


def _inside(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _boxed(text: str) -> str | None:
    r"""Return what is in the last \boxed{} that is closed, braces inside it included; None if there is none."""
    ends, open_ = dict[int, int](), list[int]()  # of each brace the place of the one that closes it
    for brace in re.finditer(r"[{}]", text):
        if brace.group() == "{":
            open_.append(brace.start())
        elif open_:
            ends[open_.pop()] = brace.start()
    for box in reversed(list(BOX.finditer(text))):
        start = box.end()
        if start in ends:
            return text[start + 1 : ends[start]]
        if word := WORD.match(text, start):  # \boxed 5
            return word.group()
    return None


def _is_formula(text: str) -> bool:
    r"""Return True if a text is a line without words: `1/2`, `x = 5`, `2\sqrt{3}`."""
    bare = re.sub(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\\[A-Za-z]+", " ", text.strip())
    return "\n" not in bare and not re.search(r"[^\W\d_]{2,}", bare)


def _number_or_text(answer: str) -> str:
    answer = answer.strip().strip("$*").strip()
    sign, rest = ("-", answer[1:].lstrip()) if answer.startswith("-") else ("", answer)
    unsigned = rest.lstrip("$€£").removeprefix("\\$").strip()
    number = NUMBER.match(unsigned)
    if number and NOTHING_MORE.match(unsigned, number.end()) and not _is_changed(unsigned, number.end()):
        return re.sub(r"\.0+$", "", sign + number.group().replace(",", ""))
    return answer


def _is_changed(text: str, end: int) -> bool:
    """Return True if what follows a number is no unit but makes another answer of it: `5!`, `2 pi`, `3 or 4`."""
    return bool(CHANGE.match(text, end) or OTHERS.match(text, end))


def is_changed_number(answer: str, right: str) -> bool:
    """Return True if an answer is the right number with something behind it that makes another of it: `5!` of 5."""
    if not (number := NUMBER.match(answer)) or canonical(number.group()) != canonical(right):
        return False
    return answer.startswith("!", number.end()) or _is_changed(answer, number.end())


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
    (re.compile(r"\\(?:cdot|times)|×|(?<=\d) ?x ?(?=10 ?\^)"), "*"),
    *((re.compile(rf"(?i)(?<=\d)[ -]{word}s?(?![a-z])"), f"*10^{power}") for word, power in SCALES.items()),
    (re.compile(r"\\le(?:q)?(?![a-z])"), "≤"),
    (re.compile(r"\\ge(?:q)?(?![a-z])"), "≥"),
]
ONE_LETTER = re.compile(r"(?:[A-Za-z](?:_\w|_\{\w+\})?|[A-Za-z]\([A-Za-z]\))\s*=\s*")  # x =, f(x) =
WRAPPED = re.compile(r"\{([^{}\\]*)\}|\(([A-Za-z])\)")  # {42}, (B)
UNIT = re.compile(r"(?<=[\d}])\s+(?:[^\W\d_]{2,}(?:[ /][^\W\d_]+)*|m)\s*(?:\^[23])?\s*$")
FRACTION = re.compile(r"([-+]?)\\frac\{([-+]?[\d.]+)\}\{([-+]?[\d.]+)\}")
MIXED = re.compile(r"([-+]?)(\d+)(?:\s+(\d+)/(\d+)|\s*\\frac\{(\d+)\}\{(\d+)\})")
PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3}|/\d+)?")
POWER_OF_TEN = re.compile(r"(?:([-+]?[\d.]+)\s*\*\s*)?10\s*\^\s*\{?\s*([-+]?\d{1,3})\s*\}?")


def canonical(answer: str) -> str:
    r"""Return an answer in one form: a number as a fraction, other text without spaces, units and LaTeX for looks.

    `0.50`, `\dfrac12` and `x = 1/2` are `1/2`; `5\text{ cm}` and `\$5.00` are `5`. Order, brackets and algebra stay:
    `\{1, 2\}` is not `\{2, 1\}`.
    """
    text = " ".join(answer.translate(MINUS).split())
    for pattern, plain in LOOKS:
        text = " ".join(pattern.sub(plain, text).split())  # a search among long gaps takes the square of their length
    text = text.rstrip(".").strip()
    if bare := WRAPPED.fullmatch(text):
        text = _inside(bare)
    lhs, equals, rhs = text.rpartition("=")
    if (name := ONE_LETTER.match(text)) and "=" not in text[name.end() :]:
        text = text[name.end() :]
    elif equals and not re.search(r"[A-Za-z<>≤≥]", lhs):  # 6 * 7 = 42
        text = rhs
    if (unit := UNIT.search(text)) and not _is_changed(text, unit.start()):
        text = text[: unit.start()]
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
            return Fraction(power.group(1) or 1) * Fraction(10) ** int(power.group(2))
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
