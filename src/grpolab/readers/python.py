"""Read the values in a Python file or notebook from its text. Nothing is run or imported.

A name holds what its function, or the file, assigns to it, where all of that is the same: a constant, arithmetic on
constants, a dict, the default of a command-line option, of a dataclass field or of a parameter. Anything else is
unknown, and so is what the file changes in a dict or an object.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

MOST_STEPS = 20_000  # of the evaluation of one file
DEEPEST = 40  # values within values
LARGEST = 1e15  # of a number
LONGEST = 10_000  # items or characters of a value
# fmt: off
OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}
# fmt: on
NUMBERS: dict[str, Callable[[Any], Any]] = {"float": float, "int": int}
CHANGES = ("update", "pop", "clear", "setdefault", "popitem")


class Open(Exception):
    """The file alone does not say a value."""


class Unknown(str):
    """The source of an item of a dict or an object whose value the file does not say."""


def parse_python(text: str) -> ast.Module | None:
    """Return a file's Python, without a notebook's lines for IPython; None where it is none."""
    text = text.replace("\x00", "")
    for whole in (text, re.sub(r"^[ \t]*[!%].*$", "", text, flags=re.MULTILINE)):
        try:
            return ast.parse(whole)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def calculate(text: str) -> float | None:
    """Return what an arithmetic expression of plain numbers is; None where it is none."""
    match parse_python(text):
        case ast.Module(body=[ast.Expr(value=node)]):
            value = Source(ast.Module([], [])).evaluate_item(node)
            return value if isinstance(value, int | float) else None
    return None


def last_name(node: ast.AST | None) -> str:
    """Return `GRPOConfig` of `trl.GRPOConfig`; empty for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Source:
    """The assignments, calls, classes and functions of a file, and what its expressions are."""

    def __init__(self, tree: ast.Module) -> None:
        # A name is that of its function (`train:args`), or of the file (`:args`).
        self.names: dict[str, list[ast.expr | None]] = defaultdict(list)  # all that is assigned to each
        self.changes: dict[str, dict[str | None, str]] = defaultdict(dict)  # name -> key of it (None: any) -> source
        self.functions: dict[ast.Name, str] = {}  # the function in which each name stands
        self.calls: dict[str, list[ast.Call]] = defaultdict(list)  # by the last part of what is called
        self.returns: dict[str, list[ast.expr | None]] = defaultdict(list)  # of each function
        self.classes: dict[str, ast.ClassDef] = {}
        self.steps, self.active = 0, list[str]()  # names that are being looked up
        self.is_default = False  # whether the value in hand rests on a default that a user may override
        nodes = [*ast.walk(tree)]
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        shared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        for function in functions:  # one within another comes later
            inside = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
            own = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
            own |= {node.id for node in inside if isinstance(node.ctx, ast.Store)} - shared
            self.functions |= {node: function.name for node in inside if node.id in own}
            self.returns[function.name] += [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
        fields = [field for node in nodes if isinstance(node, ast.ClassDef) for field in node.body]
        assigned = {target for field in fields for target in ast.iter_child_nodes(field)}  # these are no names
        for node in nodes:
            match node:
                case (
                    ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value)
                ):
                    pairs = [(target, value)]
                    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                        pairs = [*zip(target.elts, value.elts, strict=False)]
                    for part, each in pairs:
                        if isinstance(part, ast.Name) and part not in assigned:
                            self.names[self.qualify(part)].append(each)
                            assigned.add(part)
                        self._change(part, ast.unparse(each))
                case ast.AugAssign(target=target, value=value):
                    self._change(target, ast.unparse(value))
                case ast.Name(ctx=ast.Store()) if node not in assigned:
                    self.names[self.qualify(node)].append(None)
                case ast.Import() | ast.ImportFrom():
                    for alias in node.names:
                        self.names[f":{alias.asname or alias.name}"].append(None)
                case ast.Call(func=called):
                    self.calls[last_name(called)].append(node)
                    if isinstance(called, ast.Attribute) and called.attr in CHANGES:
                        self._change(ast.Subscript(called.value, called), ast.unparse(node))
                case ast.ClassDef(name=name):
                    self.classes.setdefault(name, node)
        for function in functions:
            self._pass_arguments(function)

    def qualify(self, node: ast.Name) -> str:
        return f"{self.functions.get(node, '')}:{node.id}"

    def _change(self, target: ast.expr, source: str) -> None:
        """Note that an item or attribute of what a name holds is set."""
        match target:
            case ast.Attribute(value=ast.Name() as name, attr=key):
                self.changes[self.qualify(name)][key] = source
            case ast.Subscript(value=ast.Name() as name, slice=place):
                item = str(place.value) if isinstance(place, ast.Constant) else None
                self.changes[self.qualify(name)][item] = source
            case ast.Attribute(value=owner) | ast.Subscript(value=owner):
                self._change(owner, source)

    def _pass_arguments(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Assign to a function's parameters what its calls in the file give, or their defaults."""
        arguments = function.args
        places = [*arguments.posonlyargs, *arguments.args]
        defaults = [*[None] * (len(places) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
        is_method = bool(places) and places[0].arg in ("self", "cls")
        parameters = [*zip([*places, *arguments.kwonlyargs], defaults, strict=True)][is_method:]
        calls = self.calls[function.name]
        for at, (parameter, default) in enumerate(parameters):
            owner, values = last_name(parameter.annotation), self.names[f"{function.name}:{parameter.arg}"]
            default = ast.Call(ast.Name(owner), [], []) if default is None and owner in self.classes else default
            for call in calls:
                passed = [each.value for each in call.keywords if each.arg in (parameter.arg, None)]
                values.append(next(iter(passed or call.args[at : at + 1]), default))
            values += [] if calls else [default]

    # Values.

    def evaluate(self, node: ast.expr | None) -> Any:
        """Return what an expression is. Raises Open where the file alone does not say it."""
        self.steps += 1
        if node is None or self.steps > MOST_STEPS or len(self.active) > DEEPEST:
            raise Open
        try:
            value = self._evaluate(node)
        except (ArithmeticError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise Open from error
        is_large = isinstance(value, int | float) and LARGEST < abs(value) < math.inf
        if isinstance(value, Unknown) or is_large or (isinstance(value, str | list | dict) and len(value) > LONGEST):
            raise Open
        return value

    def evaluate_item(self, node: ast.expr | None) -> Any:
        """Return what an expression is, or that it is unknown."""
        try:
            return self.evaluate(node)
        except Open:
            return Unknown(ast.unparse(node) if node is not None else "what is set later")

    def evaluate_all(self, nodes: Collection[ast.expr | None]) -> Any:
        """Return what all of some expressions are. Raises Open where they differ."""
        values = [self.evaluate(node) for node in nodes]
        if any(value != values[0] for value in values):
            raise Open
        return values[0]

    def _evaluate(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.Name() if (name := self.qualify(node)) not in self.active:
                self.active.append(name)
                try:
                    value = self.evaluate_all(self.names[name])
                finally:
                    self.active.remove(name)
                return self.apply_changes(value, name) if isinstance(value, dict) else value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.evaluate(operand)
            case ast.BinOp(op=op, left=left, right=right):
                one, other = self.evaluate(left), self.evaluate(right)
                are_numbers = isinstance(one, int | float) and isinstance(other, int | float)
                is_power = isinstance(op, ast.Pow) and (abs(other) > 16 or abs(one) > 1e6)
                if is_power or not (are_numbers or (isinstance(op, ast.Add) and isinstance(one, str | list))):
                    raise Open
                return OPERATIONS[type(op)](one, other)
            case ast.IfExp(body=body, orelse=orelse):
                return self.evaluate_all([body, orelse])
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self.evaluate(part) for part in parts]
            case ast.Dict(keys=keys, values=values):
                made: dict[Any, Any] = {}
                for key, each in zip(keys, values, strict=True):
                    made |= self.evaluate(each) if key is None else {self.evaluate(key): self.evaluate_item(each)}
                return made
            case ast.Attribute(value=ast.Name(id=name), attr=key) if name in self.classes:
                return self.read_fields(self.classes[name])[key]
            case ast.Attribute(value=owner, attr=key):
                return self.evaluate(owner)[key]
            case ast.Subscript(value=owner, slice=place):
                return self.evaluate(owner)[self.evaluate(place)]
            case ast.Call():
                return self._call(node)
        raise Open

    def apply_changes(self, value: dict[str, Any], name: str) -> dict[str, Any]:
        """Return a dict or an object in which what the file changes is unknown."""
        made = dict(value)
        for key, source in self.changes.get(name, {}).items():
            if key is None:
                made = {each: Unknown(source) for each in made} | {f"**{source}": Unknown(source)}
            else:
                made[key] = Unknown(f"{made[key]} or {source}" if key in made else f"{source}, set later")
        return made

    def _call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        if name in NUMBERS:
            return NUMBERS[name](*map(self.evaluate, node.args))
        if name in ("os.environ.get", "os.getenv"):
            self.is_default = True
            return self.evaluate(node.args[1])
        if name in ("vars", "asdict"):
            return self.evaluate(node.args[0])
        if name == "dict" and not node.args:
            return self.read_keywords(node.keywords)
        if last_name(node.func) == "parse_args":
            self.is_default = True
            return self.read_parsers()
        if name not in self.classes:
            return self.evaluate_all(self.returns[name])
        self.is_default |= not node.args and not node.keywords
        fields = self.read_fields(self.classes[name])
        by_place = dict(zip(fields, map(self.evaluate_item, node.args), strict=False))
        by_name = self.read_keywords(node.keywords)
        others = [key for key in by_name if key.startswith("**")]  # any field may be in these
        return {name: Unknown(others[0]) if others else item for name, item in fields.items()} | by_place | by_name

    def read_keywords(self, keywords: Collection[ast.keyword]) -> dict[str, Any]:
        """Return a call's keywords, with those that `**` brings."""
        made: dict[str, Any] = {}
        for keyword in keywords:
            item = self.evaluate_item(keyword.value)
            mapping = item if isinstance(item, dict) else {f"**{item}": item}
            made |= mapping if keyword.arg is None else {keyword.arg: item}
        return made

    def read_fields(self, node: ast.ClassDef) -> dict[str, Any]:
        """Return a class's fields with their defaults, those of its bases in the file too."""
        made: dict[str, Any] = {}
        for base in [self.classes[last_name(base)] for base in node.bases if last_name(base) in self.classes]:
            made |= self.read_fields(base)
        for field in node.body:
            match field:
                case (
                    ast.AnnAssign(target=ast.Name(id=name), value=default)
                    | ast.Assign(targets=[ast.Name(id=name)], value=default)
                ):
                    if isinstance(default, ast.Call) and last_name(default.func).lower() == "field":
                        default = next((each.value for each in default.keywords if each.arg == "default"), None)
                    made[name] = self.evaluate_item(default)
        return made

    def read_parsers(self) -> dict[str, Any]:
        """Return the options that the file's parsers take, with their defaults."""
        made: dict[str, Any] = {}
        for call in self.calls["add_argument"]:
            names = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
            given = self.read_keywords(call.keywords)
            long = next((name for name in names if name.startswith("--")), "".join(names[:1]))
            item = given.get("default", {"store_true": False, "store_false": True}.get(str(given.get("action"))))
            if type(item) is str and str(given.get("type")) in NUMBERS:
                item = NUMBERS[str(given["type"])](item)
            if given.get("required") or not long.startswith("-"):
                item = Unknown(f"{long}, which must be given")
            key = str(given.get("dest", long.lstrip("-").replace("-", "_")))
            made[key] = item if made.get(key, item) == item else Unknown(f"{made[key]} or {item}")
        return made

    def read_config(self, call: ast.Call) -> tuple[dict[str, Any], list[str]]:
        """Return what an object is in the end that a call of a class makes, and the keys that rest on defaults."""
        own = self.classes.get(last_name(call.func))
        made, overridable = self.read_fields(own) if own else {}, list[str]()
        for keyword in call.keywords:
            self.is_default = False
            items = self.read_keywords([keyword])
            overridable += items if self.is_default else []
            made |= items
        names = {name for name, values in self.names.items() if call in values}
        for name, values in [*self.names.items()]:  # also what is set where it is called otherwise
            if name in names or any(isinstance(each, ast.Name) and self.qualify(each) in names for each in values):
                made = self.apply_changes(made, name)
        return made, overridable
