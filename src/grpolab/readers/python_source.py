"""A Python file's text as a tree, and what its functions take. Nothing is run or imported.

Lines for IPython and what is no Python are passed over.
"""

from __future__ import annotations

import ast
import re
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
LINE_FOR_IPYTHON = re.compile(r"^[ \t]*[!%].*$", re.MULTILINE)
CONTINUES = re.compile(r"[)\]}#\"'\s]|(else|elif|except|finally)\b")  # a line that begins no statement


def parse(text: str) -> tuple[ast.Module, list[int]]:
    """A file's Python, and the first lines of the parts that are none.

    Where the whole cannot be read, as in a notebook whose cells were pasted together, its top-level statements are read
    one by one.
    """
    text = text.replace("\x00", "")
    for whole in (text, text := LINE_FOR_IPYTHON.sub("", text)):
        if (tree := _parsed(whole)) is not None:
            return tree, []
    lines, starts, quoted = text.splitlines(), [0], False
    for number, line in enumerate(lines):
        if (
            not quoted
            and line
            and not CONTINUES.match(line)
            and not (lines[number - 1] or " ").endswith(("\\", ",", "("))
        ):
            starts.append(number)
        quoted ^= (line.count('"""') + line.count("'''")) % 2 == 1
    body: list[ast.stmt] = []
    broken: list[int] = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        part = _parsed("\n" * start + "\n".join(lines[start:end]))
        if part is None:
            broken.append(start + 1)
        else:
            body += part.body
    return ast.Module(body, []), broken


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def last_name(node: ast.expr) -> str:
    """`GRPOConfig` of `trl.GRPOConfig`; empty for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def parameters(function: Function) -> dict[str, ast.expr | None]:
    """A function's parameters with their defaults."""
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults: list[ast.expr | None] = [
        *[None] * (len(positional) - len(function.args.defaults)),
        *function.args.defaults,
    ]
    found = {each.arg: default for each, default in zip(positional, defaults, strict=True)}
    only = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return found | {each.arg: default for each, default in only}


def annotation(function: Function, name: str) -> str | None:
    """The class that a parameter is annotated with, where that is one name."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    match next((each.annotation for each in every if each.arg == name), None):
        case ast.Name(id=class_name) | ast.Constant(value=str(class_name)):
            return class_name
    return None


def argument(function: Function, name: str, call: ast.Call) -> ast.expr | None:
    """The expression that a call gives a parameter, None where it leaves it to the default.

    Raises ValueError where the call's own `*` or `**` may give it.
    """
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    place = names.index(name) if name in names else len(call.args)
    if any(isinstance(each, ast.Starred) for each in call.args[: place + 1]):
        raise ValueError(name)
    if place < len(call.args):
        return call.args[place]
    if any(keyword.arg is None for keyword in call.keywords):
        raise ValueError(name)
    return None
