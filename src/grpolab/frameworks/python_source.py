"""A Python file as its statements: which scope a name belongs to, what gives it a value, and what changes that value.

Nothing is run or imported. Lines for IPython and what is no Python are passed over.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Scope: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
LOOPS = (ast.For, ast.AsyncFor, ast.While)
BRANCHES = (ast.If, *LOOPS, ast.Try, ast.ExceptHandler, ast.Match)
LINE_FOR_IPYTHON = re.compile(r"^[ \t]*[!%].*$", re.MULTILINE)
CONTINUES = re.compile(r"[)\]}#\"'\s]|(else|elif|except|finally)\b")  # a line that begins no statement


@dataclass(frozen=True)
class Binding:
    """A statement that gives a name a value; None where the value is not one expression."""

    statement: ast.stmt
    value: ast.expr | None
    index: int | None = None  # of the value, which is unpacked


class Source:
    """A parsed file. Where a class or function is defined twice, the first counts."""

    def __init__(self, statements: list[ast.stmt]) -> None:
        self.tree = ast.Module(statements, [])
        self.parents: dict[ast.AST, ast.AST] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.calls: list[ast.Call] = []  # in the order of the file
        self.global_names: set[str] = set()  # that a function gives values
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
            elif isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, node)
            elif isinstance(node, ast.Call):
                self.calls.append(node)
            elif isinstance(node, ast.Global):
                self.global_names.update(node.names)
        self.calls.sort(key=lambda call: (call.lineno, call.col_offset))
        self.calls_of: dict[str, list[ast.Call]] = defaultdict(list)  # by the last part of what is called
        for call in self.calls:
            self.calls_of[last_name(call.func)].append(call)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, from the inside out."""
        while (outer := self.parents.get(node)) is not None:
            yield outer
            node = outer

    def scope(self, node: ast.AST) -> Scope:
        """The innermost function, class or module that a node stands in; a default or a base stands outside."""
        inner = node
        for outer in self.above(node):
            in_body = isinstance(inner, ast.stmt) or isinstance(outer, ast.Lambda)
            if isinstance(outer, Scope) and in_body:
                return outer
            inner = outer
        return self.tree

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is part of."""
        return (
            node
            if isinstance(node, ast.stmt)
            else next(each for each in self.above(node) if isinstance(each, ast.stmt))
        )

    def bindings(self, scope: Scope, name: str) -> list[Binding]:
        """What gives a name a value in a scope, in the order of the file."""
        return self._index(scope)[0].get(name, [])

    def changes(self, scope: Scope, name: str) -> list[ast.stmt]:
        """The statements that change what a name holds: `name[..] = v`, `name.k = v`, `name.update(..)`."""
        return self._index(scope)[1].get(name, [])

    def _index(self, scope: Scope) -> tuple[dict[str, list[Binding]], dict[str, list[ast.stmt]]]:
        if scope not in self._indices:
            bound: dict[str, list[Binding]] = defaultdict(list)
            changed: dict[str, list[ast.stmt]] = defaultdict(list)
            for statement in statements(scope):
                for name, binding in _bound(statement):
                    bound[name].append(binding)
                if (owner := _changed(statement)) is not None:
                    changed[owner].append(statement)
            self._indices[scope] = (dict(bound), dict(changed))
        return self._indices[scope]

    @cached_property
    def _indices(self) -> dict[Scope, tuple[dict[str, list[Binding]], dict[str, list[ast.stmt]]]]:
        return {}


def parse(text: str) -> tuple[Source, list[int]]:
    """A file's Python, and the first lines of the parts that are none.

    Where the whole cannot be read, as in a notebook whose cells were pasted together, its top-level statements are read
    one by one.
    """
    text = text.replace("\x00", "")
    for whole in (text, text := LINE_FOR_IPYTHON.sub("", text)):
        if (tree := _parsed(whole)) is not None:
            return Source(tree.body), []
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
    return Source(body), broken


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a scope in the order of the file, without those of the functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case) and not isinstance(child, Scope):
            yield from statements(child)


def last_name(node: ast.expr) -> str:
    """`GRPOConfig` of `trl.GRPOConfig`; empty for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def before(statement: ast.stmt, other: ast.stmt) -> bool:
    """Whether a statement stands above another one."""
    return (statement.lineno, statement.col_offset) < (other.lineno, other.col_offset)


def parameters(function: Function | ast.Lambda) -> dict[str, ast.expr | None]:
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


def _bound(statement: ast.stmt) -> Iterator[tuple[str, Binding]]:
    """The names that a statement gives a value."""
    match statement:
        case ast.Assign():
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield target.id, Binding(statement, statement.value)
                elif isinstance(target, ast.Tuple | ast.List):
                    for index, item in enumerate(target.elts):
                        if isinstance(item, ast.Name):
                            yield item.id, Binding(statement, statement.value, index)
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            yield name, Binding(statement, value)
        case ast.AugAssign(target=ast.Name(id=name), op=op) if not isinstance(op, ast.BitOr):
            yield name, Binding(statement, None)
        case ast.For() | ast.AsyncFor():
            yield from (
                (node.id, Binding(statement, None)) for node in ast.walk(statement.target) if isinstance(node, ast.Name)
            )
        case ast.With() | ast.AsyncWith():
            for part in statement.items:
                if isinstance(part.optional_vars, ast.Name):
                    yield part.optional_vars.id, Binding(statement, None)
        case ast.Import() | ast.ImportFrom():
            for alias in statement.names:
                yield (alias.asname or alias.name.partition(".")[0]), Binding(statement, None)


def _changed(statement: ast.stmt) -> str | None:
    """The name of the dict or object that a statement changes."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=owner)) | ast.Attribute(value=ast.Name(id=owner))]):
            return owner
        case ast.AugAssign(target=ast.Subscript(value=ast.Name(id=owner)) | ast.Attribute(value=ast.Name(id=owner))):
            return owner
        case ast.AugAssign(target=ast.Name(id=owner), op=ast.BitOr()):
            return owner
        case ast.Delete(targets=[ast.Subscript(value=ast.Name(id=owner))]):
            return owner
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=owner)))):
            return owner  # `update`, `pop`, ...: a method
        case ast.Expr(value=ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=owner), _, _])):
            return owner
    return None
