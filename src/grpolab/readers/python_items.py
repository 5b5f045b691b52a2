"""What the names of a Python file hold: values, and the text of those that the file alone does not say."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LARGEST = 1e15  # of a whole number, and of what ** may give
HEAVIEST = 10_000  # values in a dict or a list, with those in them
LONGEST = 1000  # items or characters that an operation makes

# fmt: off
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}
UNARY: dict[type, Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Not: operator.not_}
COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}
CALLS: dict[str, Callable[..., Any]] = {
    "float": float, "int": int, "bool": bool, "min": min, "max": max, "abs": abs, "len": len, "sum": sum,
    "list": list, "tuple": list, "math.ceil": math.ceil, "math.floor": math.floor, "math.sqrt": math.sqrt,
    "round": round,
}
# fmt: on
class Open(Exception):
    """A value that the file alone does not say: its text."""


@dataclass(frozen=True)
class Item:
    """What a name, a key or a field holds: a value, or the text of one that the file alone does not say."""

    value: Any = None
    open: str = ""
    by_default: bool = field(default=False, compare=False)  # whether it rests on a default that a user may override


class Record(dict[str, Item]):
    """Something with attributes: the options of a command line, an object of a class."""

    made_by: ast.Call | None = None  # where it is one of those that are looked for


def option(name: str, given: dict[str, Item], kinds: list[str]) -> Item:
    """What an option of a command line is where it is not given."""
    if given.get("required", Item()).value or not name.startswith("-"):
        return Item(open=f"{name}, which must be given")
    if "default" not in given:
        return Item({"store_true": False, "store_false": True}.get(str(given.get("action", Item()).value)))
    default = given["default"]
    if isinstance(default.value, str) and kinds and kinds[0] in ("int", "float"):
        return Item(CALLS[kinds[0]](default.value))
    return default


def merged(one: list[dict[Any, Item]], other: list[dict[Any, Item]]) -> list[dict[Any, Item]]:
    """What names hold after one of two ways; a name that only one way sets is used after that way alone."""
    return [
        first | {name: either(first[name], item) if name in first else item for name, item in second.items()}
        for first, second in zip(one, other, strict=True)
    ]


def either(one: Item, other: Item) -> Item:
    """What is the same in both; of dicts and objects, each item."""
    if one is other:
        return one
    if one == other:
        return Item(one.value, one.open, one.by_default or other.by_default)
    first, second = one.value, other.value
    if not (isinstance(first, dict) and isinstance(second, dict) and type(first) is type(second)):
        return Item(open=one.open or f"{_text(first)} or {other.open or _text(second)}")
    missing = Item(open="nothing")
    same = {key: either(first.get(key, missing), second.get(key, missing)) for key in first | second}
    return Item(like(first, same))


def like(owner: dict[Any, Item], items: dict[Any, Item]) -> dict[Any, Item]:
    """A dict or an object with these items, as its owner is one."""
    if not isinstance(owner, Record):
        return items
    new = Record(items)
    new.made_by = owner.made_by
    return new


def _text(value: Any) -> str:
    return "..." if isinstance(value, dict | list) else str(value)


def plain(item: Item) -> Any:
    """A value without what is known of it; of an open one its text."""
    if isinstance(item.value, dict):
        return {key: plain(each) for key, each in item.value.items()}
    return item.open or item.value


def bounded(value: Any) -> Any:
    """A value that is not too large. Raises Open."""
    inside, weight = [value], 0
    while inside:  # one that holds another several times counts it as often
        held = inside.pop()
        held = held.value if isinstance(held, Item) else held
        inside += held.values() if isinstance(held, dict) else held if isinstance(held, list) else ()
        if (weight := weight + 1) > HEAVIEST:
            raise Open("a very large value")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise Open("a very large number")
    if isinstance(value, complex | bytes) or value is Ellipsis:
        raise Open(repr(value)[:40])
    return value


def binary(op: ast.operator, left: Any, right: Any) -> Any:
    """An operation within bounds: nothing that a few characters make long or slow."""
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if isinstance(op, ast.Pow) and not (numbers and abs(right) <= 64 and abs(left) <= 1e9):
        raise Open("a power")
    if not numbers:
        joined = isinstance(op, ast.Add) and type(left) is type(right) and isinstance(left, str | list)
        if not joined or len(left) + len(right) > LONGEST:
            raise Open("an operation")
    return bounded(BINARY[type(op)](left, right))
