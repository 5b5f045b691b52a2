"""Read the values in a Python file or notebook from its text. Nothing is run or imported.

A name holds what the whole file assigns to it, where all of that is the same: a constant, arithmetic on constants, a
dict, the default of a command-line option, of a dataclass field or of a parameter. Anything else is unknown.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
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
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "float": float, "int": int, "bool": bool, "str": str, "min": min, "max": max, "abs": abs, "round": round,
    "list": list, "math.ceil": math.ceil, "math.floor": math.floor,
}
# fmt: on
MUTATORS = ("update", "pop", "clear", "setdefault", "popitem")
BRANCHES = (ast.If, ast.Try, ast.Match, ast.IfExp, ast.For, ast.AsyncFor, ast.While)
Function = ast.FunctionDef | ast.AsyncFunctionDef


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
    """An assignment to an item or attribute of what a name holds; a key of None stands for those of a mapping."""

    key: str | None
    value: ast.expr | None  # None: not in the file
    is_certain: bool  # in no branch or loop


def parse_python(text: str) -> tuple[ast.Module, list[int]]:
    """Return a file's Python, and the first lines of the parts that are none.

    Where the whole cannot be read, as in a notebook whose cells were pasted together, its blocks are read one by one.
    """
    text = text.replace("\x00", "")
    for whole in (text, text := re.sub(r"^[ \t]*[!%].*$", "", text, flags=re.MULTILINE)):  # lines for IPython
        if (tree := _parse(whole)) is not None:
            return tree, []
    lines, starts = text.splitlines(), [0]
    quotes = [*itertools.accumulate((len(re.findall(r"\"\"\"|'''", line)) for line in lines), initial=0)]
    for at, (before, line) in enumerate(itertools.pairwise(lines), start=1):
        begins = re.match(r"(?!(?:else|elif|except|finally)\b)[A-Za-z_@]", line)
        if begins and quotes[at] % 2 == 0 and not before.endswith(("\\", ",", "(")):
            starts.append(at)
    blocks = itertools.pairwise([*starts, len(lines)])
    parts = {start: _parse("\n" * start + "\n".join(lines[start:end])) for start, end in blocks}
    body = [node for part in parts.values() if part is not None for node in part.body]
    return ast.Module(body, []), [start + 1 for start, part in parts.items() if part is None]


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def calculate(text: str) -> float | None:
    """Return what an arithmetic expression of plain numbers is; None where it is none."""
    tree = _parse(text)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return None
    found = Source(ast.Module([], [])).evaluate_item(tree.body[0].value)
    return found if isinstance(found, int | float) else None


def last_name(node: ast.AST | None) -> str:
    """Return `GRPOConfig` of `trl.GRPOConfig`; empty for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Source:
    """The assignments, calls, classes and functions of a file, and what its expressions are."""

    def __init__(self, tree: ast.Module) -> None:
        # A name is that of its function (`outer.inner:name`), or of the file (`:name`).
        self.names: dict[str, list[ast.expr | None]] = defaultdict(list)  # all that is assigned to each
        self.changes: dict[str, list[Change]] = defaultdict(list)  # of what each name holds
        self.functions: dict[ast.Name, str] = {}  # in which each name stands
        self.calls: dict[str, list[ast.Call]] = defaultdict(list)  # by the last part of what is called
        self.returns: dict[str, list[ast.expr | None]] = defaultdict(list)  # of each function
        self.classes: dict[str, ast.ClassDef] = {}
        self.defined: dict[str, Function] = {}
        self.globals = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        self.steps, self.active = 0, list[str]()  # names that are being looked up
        self.is_default = False  # whether the value in hand rests on a default that a user may override
        self._collect(tree, "", True)
        for name, function in self.defined.items():
            self._pass_arguments(name, function)

    def _collect(self, node: ast.AST, function: str, is_certain: bool) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, function, is_certain)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, function, is_certain)
            case ast.AugAssign(target=target, op=op, value=value):
                self._assign(target, ast.BinOp(target, op, value), function, is_certain)
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    self.names[f"{function}:{alias.asname or alias.name}"].append(None)
            case ast.For(target=target) | ast.AsyncFor(target=target):
                self._assign(target, None, function, False)
            case ast.Return(value=value):
                self.returns[function].append(value)
            case ast.Name():
                self.functions[node] = function
            case ast.Call(func=called, args=arguments, keywords=keywords):
                self.calls[last_name(called)].append(node)
                if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.attr in MUTATORS:
                    given = ast.Call(ast.Name("dict"), arguments, keywords) if called.attr == "update" else None
                    self.changes[f"{function}:{called.value.id}"].append(Change(None, given, is_certain))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                function = f"{function}.{node.name}".lstrip(".")
                self.defined.setdefault(function, node)
            case ast.ClassDef():
                self.classes.setdefault(node.name, node)
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            if not isinstance(node, ast.ClassDef) or isinstance(child, Function):
                self._collect(child, function, is_certain and (is_main or not isinstance(node, BRANCHES)))

    def _assign(self, target: ast.AST, value: ast.expr | None, function: str, is_certain: bool) -> None:
        match target:
            case ast.Name(id=name):
                self.names[f":{name}" if name in self.globals else f"{function}:{name}"].append(value)
            case ast.Attribute(value=ast.Name(id=name), attr=key):
                self.changes[name if name == "self" else f"{function}:{name}"].append(Change(key, value, is_certain))
            case ast.Subscript(value=ast.Name(id=name), slice=place):
                known = str(place.value) if isinstance(place, ast.Constant) else None
                change = Change(known, value if known else None, is_certain)
                self.changes[f"{function}:{name}"].append(change)
            case ast.Attribute(value=owner) | ast.Subscript(value=owner):  # a change deeper inside leaves its item open
                self._assign(owner, None, function, is_certain)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                for part, each in itertools.zip_longest(targets, values if len(values) == len(targets) else []):
                    self._assign(part, each, function, is_certain)

    def _pass_arguments(self, name: str, function: Function) -> None:
        """Assign to a function's parameters what its calls in the file give, or their defaults."""
        places = [*function.args.posonlyargs, *function.args.args]
        defaults = [*[None] * (len(places) - len(function.args.defaults)), *function.args.defaults]
        parameters = [*zip(places, defaults, strict=True)]
        parameters += zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        is_method = bool(places) and places[0].arg in ("self", "cls")
        for at, (parameter, default) in enumerate(parameters[is_method:]):
            owner, values = self.classes.get(last_name(parameter.annotation)), self.names[f"{name}:{parameter.arg}"]
            default = ast.Call(ast.Name(owner.name), [], []) if default is None and owner else default
            calls = self.calls[function.name]
            for call in calls:
                given = [each.value for each in call.keywords if each.arg in (parameter.arg, None)]
                values.append(next(iter(given or call.args[at : at + 1]), default))
            values += [] if calls else [default]

    # Values.

    def evaluate(self, node: ast.expr | None) -> Any:
        """Return what an expression is. Raises Open where the file alone does not say it."""
        self.steps += 1
        if node is None or self.steps > MOST_STEPS or len(self.active) > DEEPEST:
            raise Open
        try:
            found = self._evaluate(node)
        except (ArithmeticError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise Open from error
        is_large = isinstance(found, int | float) and LARGEST < abs(found) < math.inf
        if isinstance(found, Unknown) or is_large or (isinstance(found, str | list | dict) and len(found) > LONGEST):
            raise Open
        return found

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
            case ast.Name():
                return self._look_up(node)
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
            case ast.Attribute(value=ast.Name(id="math" | "np" | "numpy" | "torch"), attr="inf"):
                return math.inf
            case ast.Attribute(value=ast.Name(id="self"), attr=key):
                return self.evaluate_all([each.value for each in self.changes["self"] if each.key == key])
            case ast.Attribute(value=ast.Name(id=name), attr=key) if name in self.classes:
                return self.read_fields(self.classes[name])[key]
            case ast.Attribute(value=owner, attr=key):
                return self.evaluate(owner)[key]
            case ast.Subscript(value=owner, slice=place):
                return self.evaluate(owner)[self.evaluate(place)]
            case ast.Call():
                return self._call(node)
        raise Open

    def qualify(self, node: ast.Name) -> str:
        """Return a name with the function, of those around it, that assigns to it; else with that of the file."""
        function = self.functions.get(node, "")
        while function and f"{function}:{node.id}" not in self.names:
            function = function.rpartition(".")[0]
        return f"{function}:{node.id}"

    def _look_up(self, node: ast.Name) -> Any:
        name = self.qualify(node)
        if name in self.active:
            raise Open
        self.active.append(name)
        try:
            value = self.evaluate_all(self.names.get(name, []))
        finally:
            self.active.remove(name)
        return self.apply_changes(value, self.changes[name]) if isinstance(value, dict) else value

    def apply_changes(self, value: dict[str, Any], changes: Collection[Change]) -> dict[str, Any]:
        """Return a dict after what is set in it; what a branch sets, or sets otherwise, is unknown."""
        made = dict(value)
        for change in changes:
            item = self.evaluate_item(change.value)
            if change.key is None and not isinstance(item, dict):  # any key may be another now
                made = {key: Unknown(str(item)) for key in made} | {f"**{item}": item}
                continue
            for key, each in (item if change.key is None else {change.key: item}).items():
                is_same = made.get(key, each if change.is_certain else Unknown("nothing")) == each
                made[key] = each if is_same else Unknown(f"{made.get(key, 'nothing')} or {each}")
        return made

    def _call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        if name in FUNCTIONS and not node.keywords:
            return FUNCTIONS[name](*map(self.evaluate, node.args))
        if name in ("os.environ.get", "os.getenv"):
            self.is_default = True
            return self.evaluate(node.args[1])
        if name in ("dict", "SimpleNamespace", "Namespace"):
            return {**(self.evaluate(node.args[0]) if node.args else {}), **self.read_keywords(node.keywords)}
        if name in ("vars", "asdict", "copy.deepcopy", "copy.copy", "deepcopy"):
            return self.evaluate(node.args[0])
        if last_name(node.func) == "parse_args":
            self.is_default = True
            return self.read_parsers()
        if (own := self.classes.get(name)) is None:
            return self.evaluate_all(self.returns[name])
        self.is_default |= not node.args and not node.keywords
        fields = self.read_fields(own)
        return (
            fields
            | dict(zip(fields, map(self.evaluate_item, node.args), strict=False))
            | self.read_keywords(node.keywords)
        )

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
            if isinstance(item, str) and str(given.get("type")) in ("int", "float"):
                item = FUNCTIONS[str(given["type"])](item)
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
                made = self.apply_changes(made, self.changes[name])
        return made, overridable


def unwrap(item: Any) -> Any:
    """Return a value in which what is unknown is its source."""
    if isinstance(item, dict):
        return {key: unwrap(each) for key, each in item.items()}
    return item.source if isinstance(item, Unknown) else item
