"""Read the calls of a class in a Python file or notebook as keyword/value pairs. Nothing is run or imported.

A value is known if the file states it: a constant, arithmetic on constants, a list, a dict, the default of an option of
its command line or of a field of its classes, or a name that has only one such value. All others are open (unknown, as
`pairs.Open`), also those that any part of the file sets later under the same key.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from grpolab.readers.pairs import Open

MOST_STEPS = 200_000  # of evaluation, for one file
LARGEST = 1e15  # of a number
# fmt: off
OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}
# fmt: on
NUMBERS: dict[str, Callable[[Any], Any]] = {"float": float, "int": int}
CHANGES = ("update", "pop", "clear", "setdefault", "popitem")
Values = dict[str, list[ast.expr | None]]  # all values of a name; None for one without an expression (a loop's)


def parse_python(text: str) -> ast.Module | None:
    """Parse a file as Python, without a notebook's IPython lines; None if it is not Python."""
    text = text.replace("\x00", "")
    for whole in (text, re.sub(r"^[ \t]*[!%].*$", "", text, flags=re.MULTILINE)):
        try:
            return ast.parse(whole)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def calculate(text: str) -> float | None:
    """Return the value of an arithmetic expression of plain numbers; None for anything else."""
    match parse_python(text.strip()):
        case ast.Module(body=[ast.Expr(value=node)]):
            value = Source(ast.Module([], [])).evaluate(node)
            return value if isinstance(value, int | float) else None
    return None


def last_name(node: ast.AST | None) -> str:
    """Return `GRPOConfig` of `trl.GRPOConfig`, and of a call of it; empty for what has no name."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Source:
    """The calls and classes of a file, and the values of its expressions."""

    def __init__(self, tree: ast.Module) -> None:
        self.assigned: Values = defaultdict(list)  # by name, in whatever function it stands
        self.options: Values = defaultdict(list)  # defaults of the command line's options
        self.fields: dict[str, dict[str, ast.expr | None]] = {}  # of each class, with their defaults
        self.calls: dict[str, list[ast.Call]] = defaultdict(list)  # by the last part of what is called
        self.changes: list[tuple[str, str | None, str]] = []  # whose item or attribute is set, its key, to what
        self.parameters: set[str] = set()
        self.steps, self.active = 0, list[str]()  # names that are being looked up
        self.is_default = False  # whether the value in hand rests on a default that a user may override
        nodes, done = [*ast.walk(tree)], set[ast.AST]()  # `done`: names that are fields, or have a value
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self.fields[node.name] = dict(_list_fields(node))
                done |= {target for line in node.body for target in ast.iter_child_nodes(line)}
        for node in nodes:
            match node:
                case (
                    ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value)
                ):
                    if isinstance(target, ast.Name) and target not in done:
                        self.assigned[target.id].append(value)
                        done.add(target)
                    self._change(target, ast.unparse(value))
                case ast.AugAssign(target=target):
                    self._change(target, ast.unparse(node))
                case ast.Call(func=called):
                    self.calls[last_name(called)].append(node)
                    if isinstance(called, ast.Attribute) and called.attr in CHANGES:
                        self.changes.append((last_name(called.value), None, ast.unparse(node)))
                case ast.Name(id=name, ctx=ast.Store()) if node not in done:
                    self.assigned[name].append(None)
                case ast.alias(name=name, asname=other):
                    self.assigned[other or name].append(None)
        for call in self.calls["add_argument"]:
            self._add_option(call)
        for keyword in [keyword for call in self.calls["set_defaults"] for keyword in call.keywords]:
            self.options[keyword.arg or ""].append(keyword.value)
        self.changed = {key for _, key, _ in self.changes}
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        times = Counter(function.name for function in functions)
        for function in functions:
            self._add_parameters(function, is_alone=times[function.name] == 1)

    def _change(self, target: ast.expr, source: str) -> None:
        match target:
            case ast.Attribute(value=owner, attr=key) | ast.Subscript(value=owner, slice=ast.Constant(value=key)):
                self.changes.append((last_name(owner), str(key), source))
            case ast.Subscript(value=owner):
                self.changes.append((last_name(owner), None, source))

    def _add_option(self, call: ast.Call) -> None:
        """Record the default of a command-line option; without a default, its value is open."""
        told = {keyword.arg: keyword.value for keyword in call.keywords}
        action = getattr(told.get("action"), "value", "")
        implied = ast.Constant(action == "store_false") if action in ("store_true", "store_false") else None
        for name in [str(each.value) for each in call.args if isinstance(each, ast.Constant)]:
            self.options[name.lstrip("-").replace("-", "_")].append(told.get("default", implied))

    def _add_parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef, is_alone: bool) -> None:
        """Record the values of a function's parameters, from its calls and defaults; open if others share its name."""
        arguments = function.args
        places = [each for each in [*arguments.posonlyargs, *arguments.args] if each.arg not in ("self", "cls")]
        defaults = {**dict(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))}
        defaults |= zip(reversed(places), reversed(arguments.defaults), strict=False)
        for at, parameter in enumerate([*places, *arguments.kwonlyargs]):
            name = parameter.arg
            self.parameters.add(name)
            self.assigned[name] += [] if is_alone else [None]
            for call in (is_alone and self.calls[function.name]) or [ast.Call(ast.Name(function.name), [], [])]:
                by_name = [each.value for each in call.keywords if each.arg in (name, None)]
                value = next(iter(by_name or call.args[at : at + 1]), defaults.get(parameter))
                if getattr(value, "id", "") != name:
                    self.assigned[name].append(value)

    # Values.

    def evaluate(self, node: ast.expr | None) -> Any:
        """Return an expression's value; open if the file alone does not determine it."""
        self.steps += 1
        value: Any = Open()
        if node is not None and self.steps < MOST_STEPS:
            try:
                value = self._evaluate(node)
            except (ArithmeticError, ValueError, TypeError, RecursionError):
                value = Open()
        if isinstance(value, int | float) and LARGEST < abs(value) < float("inf"):
            value = Open()
        return value if not isinstance(value, Open) else Open(ast.unparse(node) if node else "what is set later")

    def evaluate_all(self, nodes: Iterable[ast.expr | None]) -> Any:
        """Return the common value of some expressions; open if they differ."""
        values = [self.evaluate(node) for node in nodes]
        return values[0] if values and all(value == values[0] for value in values) else Open()

    def _evaluate(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.Name(id=name) if name not in self.active:
                self.active.append(name)
                value = self.evaluate_all(self.assigned[name])
                self.active.remove(name)
                return self.apply_changes(value, {name}) if isinstance(value, dict) else value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.evaluate(operand)
            case ast.BinOp(op=op, left=left, right=right) if type(op) in OPERATIONS:
                one, other = self.evaluate(left), self.evaluate(right)
                are_numbers = isinstance(one, int | float) and isinstance(other, int | float)
                return OPERATIONS[type(op)](one, other) if are_numbers else Open()
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                values = [self.evaluate(part) for part in parts]
                return Open() if any(map(_has_open, values)) else values
            case ast.Dict(keys=keys, values=values):
                names = [str(key.value) if isinstance(key, ast.Constant) else None for key in keys]
                return self.read_keywords(map(ast.keyword, names, values))
            case ast.Attribute(value=owner, attr=key) if key not in self.changed:
                self.is_default |= last_name(owner) not in self.fields
                return self.evaluate_all(self._find_defaults(owner, key))
            case ast.Subscript(value=owner, slice=ast.Constant(value=key)):
                mapping = self.evaluate(owner)
                return mapping.get(key, Open()) if isinstance(mapping, dict) else Open()
            case ast.Call(func=ast.Name(id="float" | "int" as name), args=[argument]):
                return NUMBERS[name](self.evaluate(argument))
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                return self.read_keywords(keywords)
            case ast.Call(args=[_, default]) if ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
                self.is_default = True
                return self.evaluate(default)
        return Open()

    def _find_defaults(self, owner: ast.expr, key: str) -> list[ast.expr | None]:
        """Return the defaults of an attribute of the parsed command line, or of a class of the file."""
        name = last_name(owner)
        if isinstance(owner, ast.Call) and name == "parse_args":
            return self.options[key]
        if name in self.fields:
            is_filled = isinstance(owner, ast.Call) and bool(owner.args or owner.keywords)
            return [None if is_filled else self.fields[name].get(key)]
        values = [value for value in self.assigned.get(name, []) if value] if isinstance(owner, ast.Name) else []
        lists = [self._find_defaults(value, key) if isinstance(value, ast.Call) else [None] for value in values]
        return [default for each in lists for default in each]

    def apply_changes(self, pairs: dict[str, Any], names: set[str]) -> dict[str, Any]:
        """Return the items of an object with these names; those that the file sets later are open."""
        made = dict(pairs)
        self.steps += len(self.changes)
        for owner, key, source in self.changes:
            if key is None and owner in names | self.parameters:
                made = {each: Open(source) for each in made} | {f"**{source}": Open(source)}
            elif key is not None and (owner in names or key in made):
                made[key] = Open(f"{made[key]} or {source}" if key in made else f"{source}, set later")
        return made

    def read_keywords(self, keywords: Iterable[ast.keyword]) -> dict[str, Any]:
        """Return a call's keyword arguments, those from `**` included."""
        made: dict[str, Any] = {}
        for keyword in keywords:
            item = self.evaluate(keyword.value)
            mapping = item if isinstance(item, dict) else {f"**{item}": item}
            made |= mapping if keyword.arg is None else {keyword.arg: item}
        return made

    def read_config(self, call: ast.Call) -> tuple[dict[str, Any], list[str]]:
        """Return a config class's arguments, and those whose value is a default that a user may replace."""
        made, overridable = dict[str, Any](), list[str]()
        for keyword in call.keywords:
            self.is_default = False
            items = self.read_keywords([keyword])
            overridable += items if self.is_default else []
            made |= {key: Open(item) if _has_open(item) else item for key, item in items.items()}
        return self.apply_changes(made, {name for name, values in self.assigned.items() if call in values}), overridable


def _list_fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the fields of a class with their defaults, `field(default=..)` among them."""
    for line in node.body:
        match line:
            case ast.AnnAssign(target=target, value=default) | ast.Assign(targets=[target], value=default):
                if isinstance(default, ast.Call) and last_name(default).lower() == "field":
                    default = next((each.value for each in default.keywords if each.arg == "default"), None)
                yield last_name(target), default


def _has_open(item: Any) -> bool:
    return isinstance(item, Open) or (isinstance(item, dict) and any(map(_has_open, item.values())))
