"""Decide the conditions of a bash script, where its text decides them: True, False, or None for an open one.

`[ .. ]`, `[[ .. ]]`, `((..))` and the patterns of `case` are read; and a probe for special hardware is known as one.
"""

from __future__ import annotations

import fnmatch
import itertools
import operator
import re
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TypeAlias

from grpolab.readers.python import calculate

Answer: TypeAlias = bool | None
Expand: TypeAlias = Callable[[str], str | None]  # a word's value, None if it is open

NUMBERS = {"-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt}
NUMBERS |= {"-ge": operator.ge, "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge}
NUMBERS |= {"<": operator.lt, ">": operator.gt}
COMPARISON = re.compile(r"([^<>=!&|?]+)(==|!=|<=|>=|<|>)([^<>=!&|?]+)")
SAFE_PATTERN = re.compile(r"[\w\s.^$|*+()[\]/,:@%=-]*")  # a regular expression that Python reads as bash does
QUOTED = re.compile(r"""\\.|"(?:\\.|[^"])*"|'[^']*'""", re.DOTALL)
# Hardware that few have: how scripts ask for it.
MODULES = "torch_npu|torch_musa|torch_mlu|torch_gcu|torch_xla|habana_frameworks|intel_extension_for_pytorch|vllm_ascend"
IMPORT = re.compile(rf"(?:^|[;\n])\s*(?:import|from)\s+(?:[\w.]+\s*,\s*)*({MODULES})\b")
TOOLS = {"npu-smi", "rocm-smi", "rocminfo", "amd-smi", "mthreads-gmi", "hl-smi", "cnmon", "xpu-smi", "neuron-ls"}
DEVICES = re.compile(r"/dev/(davinci|kfd|hl|accel|neuron)|/usr/local/(Ascend|musa|neuware)|/opt/rocm")


def negate(answer: Answer) -> Answer:
    return None if answer is None else not answer


def both(one: Answer, other: Answer) -> Answer:
    """Return the answer of `one && other`."""
    return False if one is False or other is False else None if None in (one, other) else True


def either(one: Answer, other: Answer) -> Answer:
    """Return the answer of `one || other`."""
    return negate(both(negate(one), negate(other)))


def find_probe(words: Sequence[str]) -> str:
    """Return the special hardware's module, tool or device that a command looks for, '' if it is no such probe."""
    name, last = PurePath(words[0]).name, words[-1]
    if name.startswith("python") and words[1:2] == ["-c"] and "try" not in words[2]:
        match = IMPORT.search(words[2])
        return match[1] if match else ""
    if name in ("[", "[[", "test"):
        path = next((word for left, word in itertools.pairwise(words) if re.fullmatch("-[a-hrwx]", left)), "")
        return path if DEVICES.match(path) and len(words) <= 4 else ""
    is_search = words[:2] == ["command", "-v"] or name in ("which", "type", "hash")
    tool = PurePath(last).name if is_search else name
    return tool if tool in TOOLS else ""


def decide_test(words: Sequence[str], expand: Expand, is_double: bool) -> Answer:
    """Decide the words between `[` and `]`, or, double, between `[[` and `]]`."""
    for sign, combine in (("||" if is_double else "-o", either), ("&&" if is_double else "-a", both)):
        depth = 0
        for at, word in enumerate(words):
            depth += (word.strip("\\") == "(") - (word.strip("\\") == ")")
            if word == sign and depth == 0 and at:
                left = decide_test(words[:at], expand, is_double)
                return combine(left, decide_test(words[at + 1 :], expand, is_double))
    if words and words[0] == "!":
        return negate(decide_test(words[1:], expand, is_double))
    if len(words) > 2 and words[0].strip("\\") == "(" and words[-1].strip("\\") == ")":
        return decide_test(words[1:-1], expand, is_double)
    if len(words) in (1, 2) and (value := expand(words[-1])) is not None:
        return {"-z": not value, "-n": bool(value)}.get(words[0]) if len(words) == 2 else bool(value)
    return _compare(words[0], words[1], words[2], expand, is_double) if len(words) == 3 else None


def _compare(left: str, sign: str, right: str, expand: Expand, is_double: bool) -> Answer:
    value, other = expand(left), expand(right)
    if value is None or other is None:
        return None
    if sign in ("=", "==", "!="):
        is_same = matches(value, [right], expand) if is_double else value == other
        return negate(is_same) if sign == "!=" else is_same
    if sign == "=~" and is_double and not re.search(r"[\"'\\]|\[[:\[]", right) and SAFE_PATTERN.fullmatch(other):
        try:
            return re.search(other, value) is not None
        except re.error:
            return None
    numbers = [int(text) for text in (value, other) if re.fullmatch(r"-?\d{1,18}", text)]
    return bool(NUMBERS[sign](*numbers)) if sign[:1] == "-" and sign in NUMBERS and len(numbers) == 2 else None


def decide_number(text: str) -> Answer:
    """Decide `((text))`, whose variables are replaced by their numbers: a number, or two that are compared."""
    match = COMPARISON.fullmatch(text)
    numbers = [calculate(part.replace("/", "//")) for part in ((match[1], match[3]) if match else (text,))]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    return bool(NUMBERS[match[2]](*known)) if match else bool(known[0])


def matches(value: str | None, patterns: Sequence[str], expand: Expand) -> Answer:
    """Return True if a value matches one of the patterns of a `case`; what is quoted in one stands for itself."""
    answer: Answer = False
    for pattern in patterns:
        text, unquoted = expand(pattern), QUOTED.sub("", pattern)
        if value is None or text is None or any(text.count(sign) != unquoted.count(sign) for sign in "*?["):
            answer = either(answer, True if unquoted == "*" == pattern else None)
        else:
            answer = either(answer, fnmatch.fnmatchcase(value, text.replace("[^", "[!")))
    return answer
