"""Read the values in a Python file or notebook from its text. Nothing is run or imported.

A name holds what is assigned to it, where the file leaves no doubt: a constant, arithmetic on constants, a dict, the
default of a command-line option, of a dataclass field or of a parameter. Assignments in a branch or a loop count only
where all agree. Whatever else stands there is unknown.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

MOST_STEPS = 20_000  # of the evaluation of one file
DEEPEST = 40  # values within values
LARGEST = 1e15  # of a number
LONGEST = 10_000  # items or characters of a value
MUTATORS = ("update", "pop", "clear", "setdefault", "popitem")
ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
COPIES = ("vars", "asdict", "dataclasses.asdict", "copy.deepcopy", "copy.copy", "deepcopy")
# fmt: off
OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "float": float, "int": int, "bool": bool, "str": str, "min": min, "max": max, "abs": abs, "round": round,
    "list": list, "math.ceil": math.ceil, "math.floor": math.floor,
}
# fmt: on
Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (ast.If, ast.Try, ast.Match, ast.IfExp, ast.For, ast.AsyncFor, ast.While)
Scope = tuple[Function, ...]  # the functions around a place, the outermost first


class Open(Exception):
    """The file alone does not say a value."""


@dataclass(frozen=True)
class Unknown:
    """An item of a dict or an object whose value the file does not say: its source."""

    source: str

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True)
class Change:
    """An assignment to a name (key ""), to an item or attribute of it, or of what a mapping has (key None)."""

    line: int
    value: ast.expr | None  # None: not in the file
    scope: Scope
    is_certain: bool  # in no branch or loop
    in_loop: bool
    key: str | None = ""


def parse_python(text: str) -> tuple[ast.Module, list[int]]:
    """Return a file's Python, and the first lines of the parts that are none.

    Where the whole cannot be read, as in a notebook whose cells were pasted together, its blocks are read one by one.
    """
    text = text.replace("\x00", "")
    for whole in (text, text := re.sub(r"^[ \t]*[!%].*$", "", text, flags=re.MULTILINE)):  # lines for IPython
        if (tree := _parsed(whole)) is not None:
            return tree, []
    lines, starts = text.splitlines(), [0]
    quotes = [*itertools.accumulate((len(re.findall(r"\"\"\"|'''", line)) for line in lines), initial=0)]
    for at, (before, line) in enumerate(itertools.pairwise(lines), start=1):
        begins = re.match(r"(?!(?:else|elif|except|finally)\b)[A-Za-z_@]", line)
        if begins and quotes[at] % 2 == 0 and not before.endswith(("\\", ",", "(")):
            starts.append(at)
    parts = [
        (start, _parsed("\n" * start + "\n".join(lines[start:end])))
        for start, end in itertools.pairwise([*starts, len(lines)])
    ]
    body = [node for _, part in parts if part is not None for node in part.body]
    return ast.Module(body, []), [start + 1 for start, part in parts if part is None]


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def calculate(text: str) -> float | None:
    """Return what an arithmetic expression of plain numbers is; None where it is none."""
    tree = _parsed(text)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return None
    found = Source(ast.Module([], [])).item(tree.body[0].value, ())
    return found if isinstance(found, int | float) else None


def last_name(node: ast.AST | None) -> str:
    """Return `GRPOConfig` of `trl.GRPOConfig`; empty for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Source:
    """The assignments, calls, classes and functions of a file, and what its expressions are."""

    def __init__(self, tree: ast.Module) -> None:
        self.changes: dict[str, list[Change]] = defaultdict(list)  # by the name that is changed, in the file's order
        self.calls: dict[str, list[tuple[ast.Call, Scope]]] = defaultdict(list)  # by the last part of what is called
        self.returns: dict[Function, list[ast.expr | None]] = defaultdict(list)
        self.classes: dict[str, ast.ClassDef] = {}
        self.functions: dict[str, Function] = {}
        self.global_names = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        self.steps = self.depth = 0
        self.is_default = False  # whether the value in hand rests on a default that a user may override
        self._collect(tree, (), True, False)

    def _collect(self, node: ast.AST, scope: Scope, is_certain: bool, in_loop: bool) -> None:
        def assign(target: ast.AST, value: ast.expr | None, key: str | None = "") -> None:
            match target:
                case ast.Name(id=name, lineno=line):
                    self.changes[name].append(Change(line, value, scope, is_certain, in_loop, key))
                case (
                    ast.Attribute(value=owner, attr=name)
                    | ast.Subscript(value=owner, slice=ast.Constant(value=str(name)))
                ):
                    assign(owner, value if key == "" else None, name)  # a change deeper inside leaves its item open
                case ast.Subscript(value=owner):
                    assign(owner, None, None)
                case ast.Tuple(elts=targets) | ast.List(elts=targets):
                    values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                    for part, each in itertools.zip_longest(targets, values if len(values) == len(targets) else []):
                        assign(part, each)

        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                assign(target, value)
            case ast.AugAssign(target=target, op=op, value=value):
                assign(target, ast.copy_location(ast.BinOp(target, op, value), node))
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    assign(ast.Name(alias.asname or alias.name, lineno=node.lineno), None)
            case ast.For(target=target) | ast.AsyncFor(target=target):
                is_certain, in_loop = False, True
                assign(target, None)
            case ast.While():
                is_certain, in_loop = False, True
            case ast.Return(value=value) if scope:
                self.returns[scope[-1]].append(value)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                self.calls[last_name(function)].append((node, scope))
                if isinstance(function, ast.Attribute) and function.attr in MUTATORS:
                    given = ast.copy_location(ast.Call(ast.Name("dict"), arguments, keywords), node)
                    assign(function.value, given if function.attr == "update" else None, None)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions.setdefault(node.name, node)
                scope, is_certain, in_loop = (*scope, node), True, False
            case ast.ClassDef():
                self.classes.setdefault(node.name, node)
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        is_certain &= is_main or not isinstance(node, BRANCHES)
        fields = [
            each
            for each in ast.iter_child_nodes(node)
            if not isinstance(node, ast.ClassDef) or isinstance(each, Function)
        ]
        for child in fields:
            self._collect(child, scope, is_certain, in_loop)

    # Values.

    def value(self, node: ast.expr | None, scope: Scope) -> Any:
        """Return what an expression is. Raises Open where the file alone does not say it."""
        self.steps += 1
        self.depth += 1
        try:
            if node is None or self.steps > MOST_STEPS or self.depth > DEEPEST:
                raise Open
            found = self._value(node, scope)
        except (ArithmeticError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise Open from error
        finally:
            self.depth -= 1
        is_large = isinstance(found, int | float) and LARGEST < abs(found) < math.inf
        if isinstance(found, Unknown) or is_large or (isinstance(found, str | list | dict) and len(found) > LONGEST):
            raise Open
        return found

    def item(self, node: ast.expr | None, scope: Scope) -> Any:
        """Return what an expression is, or that it is unknown."""
        try:
            return self.value(node, scope)
        except Open:
            return Unknown(ast.unparse(node) if node is not None else "what is set later")

    def agreed(self, nodes: Collection[ast.expr | None], scope: Scope) -> Any:
        """Return what all of some expressions are. Raises Open where they differ."""
        values = [self.value(node, scope) for node in nodes]
        if any(value != values[0] for value in values):
            raise Open
        return values[0]

    def _value(self, node: ast.expr, scope: Scope) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.Name(id=name, lineno=line):
                return self._name(name, scope, line)
            case ast.UnaryOp(op=ast.USub() | ast.Not() as op, operand=operand):
                value = self.value(operand, scope)
                return -value if isinstance(op, ast.USub) else not value
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return {**self.value(left, scope), **self.value(right, scope)}
            case ast.BinOp(op=op, left=left, right=right):
                one, other = self.value(left, scope), self.value(right, scope)
                are_numbers = isinstance(one, int | float) and isinstance(other, int | float)
                is_power = isinstance(op, ast.Pow) and (abs(other) > 16 or abs(one) > 1e6)
                if is_power or not (are_numbers or (isinstance(op, ast.Add) and isinstance(one, str | list))):
                    raise Open
                return OPERATIONS[type(op)](one, other)
            case ast.IfExp(body=body, orelse=orelse):
                return self.agreed([body, orelse], scope)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self.value(part, scope) for part in parts]
            case ast.Dict(keys=keys, values=values):
                made: dict[Any, Any] = {}
                for key, each in zip(keys, values, strict=True):
                    made |= self.value(each, scope) if key is None else {self.value(key, scope): self.item(each, scope)}
                return made
            case ast.Attribute(value=ast.Name(id="math" | "np" | "numpy" | "torch"), attr="inf"):
                return math.inf
            case ast.Attribute(value=ast.Name(id="self" | "cls" as owner), attr=key):
                own = [each for each in self.changes[owner] if each.key == key]
                return self.agreed([each.value for each in own], own[0].scope)
            case ast.Attribute(value=owner, attr=key):
                return self.value(owner, scope)[key]
            case ast.Subscript(value=owner, slice=key):
                return self.value(owner, scope)[self.value(key, scope)]
            case ast.Call():
                return self._call(node, scope)
        raise Open

    def _name(self, name: str, scope: Scope, line: float) -> Any:
        """Return what a name holds at a line of a scope: its own, of one around it, or of the module."""
        if name in self.classes and name not in self.changes:
            return self.record(self.classes[name], None, scope)
        for depth in range(len(scope), -1, -1):
            around, is_here = scope[:depth], depth == len(scope)
            changes = [each for each in self.changes[name] if each.scope == around]
            # What is assigned below has not happened yet; in a loop, or around a function, it may have.
            own = [each for each in changes if each.key == "" and (each.line < line or not is_here or each.in_loop)]
            is_parameter = bool(around) and name in _parameters(around[-1])
            if not own and not is_parameter:
                continue
            if name in self.global_names:
                raise Open
            last = max((at for at, each in enumerate(own) if each.is_certain), default=0)
            values = [self.value(each.value, around) for each in own[last:]]
            if is_parameter and not (own and own[last].is_certain):
                values.append(self._parameter(around, name))
            if any(value != values[0] for value in values):
                raise Open
            first = own[last].line if own else 0
            return self.changed(
                values[0],
                [
                    each
                    for each in changes
                    if each.key != "" and first <= each.line and (each.line < line or not is_here)
                ],
            )
        raise Open

    def changed(self, value: Any, changes: Iterable[Change]) -> Any:
        """Return a dict after what is set in it; what only a branch sets is unknown unless it is the same."""
        if not isinstance(value, dict):
            return value
        made = dict(value)
        for change in changes:
            item = self.item(change.value, change.scope)
            if change.key is None and not isinstance(item, dict):  # any key may be another now
                made = {key: Unknown(str(item)) for key in made} | {f"**{item}": item}
                continue
            for key, each in (item if change.key is None else {change.key: item}).items():
                is_same = change.is_certain or (key in made and made[key] == each)
                made[key] = each if is_same else Unknown(f"{made.get(key, 'nothing')} or {each}")
        return made

    def _parameter(self, scope: Scope, name: str) -> Any:
        """Return what a function's parameter is: what every call in the file gives it, or its default."""
        function, places = scope[-1], _parameters(scope[-1])
        at = [*places].index(name) - (next(iter(places)) in ("self", "cls"))
        default, values = places[name], list[Any]()
        for call, around in self.calls[function.name]:
            given = [keyword.value for keyword in call.keywords if keyword.arg == name] or call.args[at : at + 1]
            if not given and any(keyword.arg is None for keyword in call.keywords):
                raise Open
            values.append(self.value(given[0], around) if given else self.value(default, scope[:-1]))
        if not values:
            self.is_default = True
            annotations = {
                each.arg: last_name(each.annotation) for each in ast.walk(function) if isinstance(each, ast.arg)
            }
            owner = self.classes.get(annotations[name])
            return self.record(owner, None, scope) if owner and default is None else self.value(default, scope[:-1])
        if any(value != values[0] for value in values):
            raise Open
        return values[0]

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        name, last = ast.unparse(node.func), last_name(node.func)
        if name in FUNCTIONS and not node.keywords:
            return FUNCTIONS[name](*(self.value(each, scope) for each in node.args))
        if name in ENVIRONMENT:
            self.is_default = True
            return self.value(node.args[1], scope)
        if name in ("dict", "SimpleNamespace", "Namespace"):
            return {**(self.value(node.args[0], scope) if node.args else {}), **self.keywords(node, scope)}
        if name in COPIES:
            return self.value(node.args[0], scope)
        if last in ("get", "copy") and isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, scope)
            key = self.value(node.args[0], scope) if node.args else None
            return owner if not node.args else owner[key] if key in owner else self.value([*node.args, None][1], scope)
        if last == "parse_args":
            self.is_default = True
            return self.command_line()
        if name in self.classes:
            return self.record(self.classes[name], node, scope)
        return self.agreed(self.returns[self.functions[name]], (self.functions[name],))

    def keywords(self, call: ast.Call, scope: Scope) -> dict[str, Any]:
        """Return a call's keywords, with those that `**` brings."""
        made: dict[str, Any] = {}
        for keyword in call.keywords:
            item = self.item(keyword.value, scope)
            mapping = item if isinstance(item, dict) else {f"**{item}": item}
            made |= mapping if keyword.arg is None else {keyword.arg: item}
        return made

    def record(self, node: ast.ClassDef, call: ast.Call | None, scope: Scope) -> dict[str, Any]:
        """Return a class's fields with their defaults, those of its bases too, and what a call of it gives."""
        made: dict[str, Any] = {}
        for base in [self.classes[last_name(base)] for base in node.bases if last_name(base) in self.classes]:
            made |= self.record(base, None, scope) if base is not node and (self.depth < DEEPEST) else {}
        own = [
            each
            for each in node.body
            if isinstance(each, ast.AnnAssign) or (isinstance(each, ast.Assign) and len(each.targets) == 1)
        ]
        names = [last_name(each.target if isinstance(each, ast.AnnAssign) else each.targets[0]) for each in own]
        made |= {name: self.item(_field_default(each.value), ()) for name, each in zip(names, own, strict=True)}
        self.is_default |= call is None
        if call is not None:
            made |= {name: self.item(each, scope) for name, each in zip(names, call.args, strict=False)}
            made |= self.keywords(call, scope)
        return made

    def command_line(self) -> dict[str, Any]:
        """Return the options that the file's parsers take, with their defaults."""
        made: dict[str, Any] = {}
        for call, scope in self.calls["add_argument"]:
            names = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
            given = self.keywords(call, scope)
            long = next((name for name in names if name.startswith("--")), "".join(names[:1]))
            item = given.get("default", {"store_true": False, "store_false": True}.get(str(given.get("action"))))
            if isinstance(item, str) and (kind := str(given.get("type"))) in ("int", "float"):
                item = FUNCTIONS[kind](item)
            if given.get("required") or not long.startswith("-"):
                item = Unknown(f"{long}, which must be given")
            key = str(given.get("dest", long.lstrip("-").replace("-", "_")))
            made[key] = item if made.get(key, item) == item else Unknown(f"{made[key]} or {item}")
        return made

    def config(self, call: ast.Call, scope: Scope) -> tuple[dict[str, Any], list[str]]:
        """Return what an object is in the end that a call of a class makes, and the keys that rest on defaults."""
        own = self.classes.get(last_name(call.func))
        made, overridable = self.record(own, None, scope) if own else {}, list[str]()
        for keyword in call.keywords:
            self.is_default = False
            items = self.keywords(ast.Call(call.func, [], [keyword]), scope)
            overridable += items if self.is_default else []
            made |= items
        for name in [name for name, changes in self.changes.items() if any(each.value is call for each in changes)]:
            made = self.changed(made, [each for each in self.changes[name] if each.key != "" and each.scope == scope])
            for function in self.functions.values():  # what is given to a function may be changed there
                for other, _ in self.calls[function.name]:
                    given = [*other.args, *(keyword.value for keyword in other.keywords)]
                    inside = [each for part in _parameters(function) for each in self.changes[part] if each.key != ""]
                    if any(isinstance(each, ast.Name) and each.id == name for each in given):
                        made |= {each.key: Unknown(f"set in {function.name}()") for each in inside if each.key}
        return made, overridable


def plain(item: Any) -> Any:
    """Return a value in which what is unknown is its source."""
    if isinstance(item, dict):
        return {key: plain(each) for key, each in item.items()}
    return item.source if isinstance(item, Unknown) else item


def _field_default(node: ast.expr | None) -> ast.expr | None:
    """Return a field's default: itself, or that of `field(default=...)`."""
    if isinstance(node, ast.Call) and last_name(node.func).lower() == "field":
        defaults = {keyword.arg: keyword.value for keyword in node.keywords}
        made = defaults.get("default_factory")
        return made.body if isinstance(made, ast.Lambda) else defaults.get("default")
    return node


def _parameters(function: Function) -> dict[str, ast.expr | None]:
    """Return a function's parameters with their defaults."""
    places = [*function.args.posonlyargs, *function.args.args]
    defaults = [*[None] * (len(places) - len(function.args.defaults)), *function.args.defaults]
    defaults += function.args.kw_defaults
    return {each.arg: default for each, default in zip([*places, *function.args.kwonlyargs], defaults, strict=True)}
