"""Read a user's source by its syntax: folders that it puts on the path, variables that it reads. Nothing is run."""

from __future__ import annotations

import ast
import functools
import os.path
from collections.abc import Callable, Iterator
from pathlib import Path


@functools.lru_cache(maxsize=16)  # three functions read the same file in a row
def nodes(source: bytes) -> tuple[ast.AST, ...]:
    """Return the nodes of the source's syntax, from the top down; none if it is no valid Python source."""
    try:
        return tuple(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def folders_added(source: bytes, file: Path) -> list[str]:
    """Return the folders that a module puts on `sys.path` and that are written with `__file__` and literals alone."""
    if b"sys.path" not in source and b"addsitedir" not in source:
        return []
    known: dict[str, str] = {}
    for node in nodes(source):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if path := _path(value, file, known):
                known[name] = path
    paths = [_path(node, file, known) for added in nodes(source) for node in _added_to_path(added)]
    return [os.path.abspath(path) for path in paths if path is not None]


def _added_to_path(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that a statement adds to `sys.path`."""
    if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == "sys.path" and isinstance(node.value, ast.List):
        yield from node.value.elts
    if not isinstance(node, ast.Call):
        return
    match ast.unparse(node.func), node.args:
        case "sys.path.append" | "site.addsitedir", [folder]:
            yield folder
        case "sys.path.insert", [_, folder]:
            yield folder
        case "sys.path.extend", [ast.List(elts=folders) | ast.Tuple(elts=folders)]:
            yield from folders


# Functions whose result is known without running the user's code, by their last name.
_CALLS: dict[str, Callable[..., str]] = {
    **dict.fromkeys(("Path", "join"), os.path.join),
    "dirname": lambda path, *_: os.path.dirname(path),
    **dict.fromkeys(("str", "fspath", "abspath", "realpath", "normpath", "expanduser"), lambda path, *_: path),
}


def _path(node: ast.expr, file: Path, known: dict[str, str]) -> str | None:
    """Return the path that an expression gives; None if only running it could tell."""

    def of(*parts: ast.expr) -> list[str] | None:
        paths = [path for part in parts if (path := _path(part, file, known)) is not None]
        return paths if len(paths) == len(parts) else None

    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return str(file) if name == "__file__" else known.get(name)
        case ast.BinOp(left=left, op=ast.Div() | ast.Add() as sign, right=right) if parts := of(left, right):
            return os.path.join(*parts) if isinstance(sign, ast.Div) else "".join(parts)
        case ast.JoinedStr(values=values) if parts := of(*values):
            return "".join(parts)
        case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
            return _path(value, file, known)
        case ast.Attribute(value=value, attr="parent") if parts := of(value):
            return os.path.dirname(parts[0])
        case ast.Subscript(value=ast.Attribute(value=value, attr="parents"), slice=ast.Constant(value=int(up))):
            return str(Path(parts[0]).parents[up]) if (parts := of(value)) and 0 <= up < parts[0].count("/") else None
        case ast.Call(func=ast.Attribute(value=value, attr="resolve" | "absolute" | "as_posix"), args=[]):
            return _path(value, file, known)
        case ast.Call(func=ast.Attribute(value=value, attr="joinpath"), args=more) if parts := of(value, *more):
            return os.path.join(*parts)
        case ast.Call(func=function, args=arguments):
            name = ast.unparse(function).removeprefix("os.").removeprefix("path.").removeprefix("pathlib.")
            if name in ("getcwd", "Path.cwd") and not arguments:
                return os.getcwd()
            return _CALLS[name](*parts) if name in _CALLS and (parts := of(*arguments)) else None
    return None


def variables_read(source: bytes) -> set[str]:
    """Return the environment variables that a module asks for by a literal name."""
    names: set[str] = set()
    for node in nodes(source) if b"env" in source else ():
        match node:
            case (
                ast.Subscript(value=place, slice=ast.Constant(value=str(name)))
                | ast.Compare(left=ast.Constant(value=str(name)), comparators=[place])
                | ast.Call(
                    func=ast.Attribute(value=place, attr="get" | "pop" | "setdefault"),
                    args=[ast.Constant(value=str(name)), *_],
                )
            ) if ast.unparse(place) in ("os.environ", "environ"):
                names.add(name)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(function) in ("os.getenv", "getenv"):
                    names.add(name)
    return names
