"""Read a user's source by its syntax: folders that it puts on the path, variables that it reads. Nothing is run."""

from __future__ import annotations

import ast
import functools
import os.path
from collections.abc import Iterator
from pathlib import Path


@functools.lru_cache(maxsize=16)  # each file is asked for three times in a row
def nodes(source: bytes) -> tuple[ast.AST, ...]:
    """Return the nodes of the source's syntax, from the top down; none if it is no valid Python source."""
    try:
        return tuple(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def folders_added(source: bytes, file: Path) -> list[str]:
    """Return the folders that a module puts on `sys.path`, if they are written in terms of `__file__` and literals."""
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


def _path(node: ast.expr, file: Path, known: dict[str, str]) -> str | None:
    """Return the path that an expression gives; None where only running it could tell."""

    def of(*parts: ast.expr) -> list[str] | None:
        found = [_path(part, file, known) for part in parts]
        return None if None in found else [part for part in found if part is not None]

    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id="__file__"):
            return str(file)
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(left=left, op=ast.Div(), right=right) if parts := of(left, right):
            return os.path.join(*parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right) if parts := of(left, right):
            return "".join(parts)
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
            if not arguments or (parts := of(*arguments)) is None:
                return None
            if name in ("Path", "join"):
                return os.path.join(*parts)
            if name == "dirname":
                return os.path.dirname(parts[0])
            return parts[0] if name in ("str", "fspath", "abspath", "realpath", "normpath", "expanduser") else None
    return None


def variables_read(source: bytes) -> set[str]:
    """Return the environment variables that a module asks for by a literal name."""
    found: set[str] = set()
    for node in nodes(source) if b"env" in source else ():
        match node:
            case ast.Subscript(value=place, slice=ast.Constant(value=str(name))) if _is_environment(place):
                found.add(name)
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[place]) if _is_environment(place):
                found.add(name)
            case ast.Call(func=ast.Attribute(value=place, attr="get" | "pop" | "setdefault"), args=[first, *_]) if (
                _is_environment(place)
            ):
                found |= {first.value} if isinstance(first, ast.Constant) and isinstance(first.value, str) else set()
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if ast.unparse(function) in (
                "os.getenv",
                "getenv",
            ):
                found.add(name)
    return found


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")
