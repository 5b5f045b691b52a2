"""The values that stand in a Python file, found without running or importing anything.

A name has a value here where the file leaves no doubt: a constant, arithmetic on constants, what a dict holds after the
lines that change it, the default of a command-line option, of a dataclass field or of a parameter. A branch counts where
its condition is such a value. Everything else is `Open`: its text, and no value.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Scope: TypeAlias = "ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.ExceptHandler, ast.Match)

MOST_STEPS = 20_000  # of the evaluation of one file
DEEPEST = 60  # values within values
LARGEST = 1e15  # of a whole number, and of what ** may give
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
    "float": float, "int": int, "bool": bool, "str": str, "min": min, "max": max, "round": round, "abs": abs,
    "len": len, "sum": sum, "list": list, "tuple": tuple, "math.ceil": math.ceil, "math.floor": math.floor,
    "math.sqrt": math.sqrt, "os.path.join": lambda *parts: "/".join(map(str, parts)),
}
# fmt: on
INFINITE = {"math.inf", "torch.inf", "np.inf", "numpy.inf"}
BAGS = {"SimpleNamespace", "Namespace", "EasyDict", "AttrDict", "DotDict", "edict", "Box"}  # keywords as attributes
ENVIRONMENT = {"os.environ.get", "os.getenv", "environ.get", "getenv"}
CONVERTED: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str}


class Open(Exception):
    """A value that the file alone does not say."""


@dataclass
class Record:
    """Something with attributes: the options of a command line, a dataclass. `values` may hold `Open` ones."""

    values: dict[str, Any]


@dataclass(frozen=True)
class Binding:
    """A statement that gives a name a value; None where the value is not one expression."""

    statement: ast.stmt
    value: ast.expr | None
    index: int | None = None  # of the value, which is unpacked


@dataclass
class Source:
    """A parsed file, and what has been evaluated of it."""

    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    bindings: dict[ast.AST, dict[str, list[Binding]]] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    told: dict[ast.AST, ast.Call] = field(default_factory=dict)  # the call that a function is evaluated for
    steps: int = 0
    depth: int = 0
    defaults: bool = False  # whether the last value rests on a default that a user may override

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
            elif isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, node)
            elif isinstance(node, ast.Call):
                self.calls.append(node)
        self.calls.sort(key=lambda call: (call.lineno, call.col_offset))

    # Where a node stands.

    def scope(self, node: ast.AST) -> Any:
        """The innermost function, class or module that a node stands in."""
        inner, outer = node, self.parents.get(node)
        while outer is not None and not isinstance(outer, (*FUNCTIONS, ast.ClassDef, ast.Lambda, ast.Module)):
            inner, outer = outer, self.parents.get(outer)
        # a decorator, a default or a base stands outside of what it belongs to
        inside = isinstance(outer, ast.Module | ast.Lambda) or (
            outer is not None and inner in getattr(outer, "body", [])
        )
        return outer if inside or outer is None else self.scope(outer)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def bound(self, scope: ast.AST) -> dict[str, list[Binding]]:
        """Name -> what gives it a value in a scope, in the order of the file."""
        if scope not in self.bindings:
            found: dict[str, list[Binding]] = {}
            for statement in _statements(scope):
                for name, binding in _names(statement):
                    found.setdefault(name, []).append(binding)
            self.bindings[scope] = found
        return self.bindings[scope]

    def certain(self, statement: ast.AST, scope: ast.AST, use: ast.AST) -> bool | None:
        """Whether a statement has run where `use` stands: True or False where that is known, else None."""
        verdict: bool | None = True
        around = {use}
        node: ast.AST | None = use
        while node is not None:
            around.add(node)
            node = self.parents.get(node)
        inner, outer = statement, self.parents.get(statement)
        while outer is not None and inner is not scope:
            if isinstance(outer, ast.If) and inner is not outer.test and not _is_main(outer):
                same = outer in around and (inner in around or any(part in around for part in _side(outer, inner)))
                if not same:
                    if outer in around:
                        return False  # the other side of the branch that the use is in
                    holds = self.known(outer.test)
                    wanted = inner in outer.body
                    if holds is not None and bool(holds) is not wanted:
                        return False
                    verdict = verdict if holds is not None else None
            elif isinstance(outer, BRANCHES) and outer not in around:
                verdict = None
            inner, outer = outer, self.parents.get(outer)
        return verdict

    def known(self, node: ast.expr) -> Any:
        """A value, or None where it is open."""
        try:
            return self.value(node)
        except Open:
            return None

    # Values.

    def value(self, node: ast.AST) -> Any:
        """What an expression is. Raises Open where the file alone does not say it, or saying it takes too long."""
        self.steps += 1
        self.depth += 1
        try:
            if self.steps > MOST_STEPS or self.depth > DEEPEST:
                raise Open("too much to follow")
            return self._value(node)
        except (ArithmeticError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise Open(ast.unparse(node)) from error
        finally:
            self.depth -= 1

    def _value(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=value):
                return _bounded(value)
            case ast.Name(id=name):
                return self._name(name, node)
            case ast.UnaryOp() if type(node.op) in UNARY:
                return UNARY[type(node.op)](self.value(node.operand))
            case ast.BinOp() if type(node.op) in BINARY:
                return _binary(node.op, self.value(node.left), self.value(node.right))
            case ast.BoolOp():
                return self._either(node)
            case ast.Compare(ops=[op], comparators=[right]) if type(op) in COMPARE:
                return COMPARE[type(op)](self.value(node.left), self.value(right))
            case ast.IfExp():
                return self._conditional(node)
            case ast.List() | ast.Tuple():
                return [self.value(item) for item in node.elts]
            case ast.Dict():
                return self._dict(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return _present(self.value(node.value)[self.value(node.slice)])
            case ast.Call():
                return self._call(node)
        raise Open(ast.unparse(node))

    def _either(self, node: ast.BoolOp) -> Any:
        value = None
        for part in node.values:
            value = self.value(part)
            if bool(value) is isinstance(node.op, ast.Or):
                return value
        return value

    def _conditional(self, node: ast.IfExp) -> Any:
        try:
            return self.value(node.body if self.value(node.test) else node.orelse)
        except Open:
            first, second = self.value(node.body), self.value(node.orelse)
            if first != second:
                raise
            return first

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            if key is None:
                found |= self._unpacked(item)
            else:
                found[self.value(key)] = self._or_open(item)
        return found

    def _unpacked(self, node: ast.expr) -> dict[Any, Any]:
        value = self.value(node)
        return dict(value.values if isinstance(value, Record) else value)

    def _or_open(self, node: ast.expr) -> Any:
        """A value, or the `Open` that says why there is none: one open item does not spoil the others."""
        try:
            return self.value(node)
        except Open:
            return Open(ast.unparse(node))

    def _attribute(self, node: ast.Attribute) -> Any:
        if ast.unparse(node) in INFINITE:
            return math.inf
        owner = self.value(node.value)
        if isinstance(owner, Record):
            return _present(owner.values[node.attr])
        raise Open(ast.unparse(node))

    # Names.

    def _name(self, name: str, use: ast.AST) -> Any:
        scope, first = self.scope(use), True
        while scope is not None:
            bindings = self.bound(scope).get(name, [])
            if bindings and (first or not isinstance(scope, ast.ClassDef)):
                return self._latest(name, bindings, scope, use if first else None)
            if isinstance(scope, FUNCTIONS) and name in _parameters(scope):
                return self._changed(self._parameter(name, scope), name, scope, use)
            scope, first = (None if isinstance(scope, ast.Module) else self.scope(scope)), False
        if name in self.classes:
            return self.record(self.classes[name])
        raise Open(name)

    def _latest(self, name: str, bindings: list[Binding], scope: ast.AST, use: ast.AST | None) -> Any:
        """The value of the last statement that has surely given one, unless one after it may have given another."""
        if any(isinstance(node, ast.Global) and name in node.names for node in ast.walk(self.tree)):
            raise Open(name)
        at = use if use is not None else scope
        earlier = [each for each in bindings if use is None or _before(each.statement, self.statement(use))]
        candidates: list[Binding] = []
        for binding in earlier:
            ran = self.certain(binding.statement, scope, at)
            if ran:
                candidates = []
            if ran is not False:
                candidates.append(binding)
        if not candidates:
            raise Open(name)
        values = [self._bound_value(binding) for binding in candidates]
        if any(value != values[0] for value in values[1:]):
            raise Open(name)
        return self._changed(values[0], name, scope, at)

    def _bound_value(self, binding: Binding) -> Any:
        if binding.value is None:
            raise Open(ast.unparse(binding.statement).splitlines()[0])
        value = self.value(binding.value)
        return value if binding.index is None else _present(value[binding.index])

    def _changed(self, value: Any, name: str, scope: ast.AST, use: ast.AST) -> Any:
        """A dict or record after the statements of its scope that change it before `use`."""
        if not isinstance(value, dict | Record):
            return value
        items = dict(value.values if isinstance(value, Record) else value)
        for statement in _statements(scope):
            if use is not scope and not _before(statement, self.statement(use)):
                continue
            if not (changes := dict(self.changes(statement, name))):
                continue
            ran = self.certain(statement, scope, use)
            for key, item in changes.items():
                if ran is None and (key not in items or items[key] != item):
                    items[key] = Open(ast.unparse(statement).splitlines()[0])
                elif ran:
                    items[key] = item
        return Record(items) if isinstance(value, Record) else items

    def changes(self, statement: ast.AST, name: str) -> Iterator[tuple[str, Any]]:
        """What a statement sets in the dict or record of that name: `name["k"] = v`, `name.k = v`, `name.update(..)`."""
        match statement:
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(key)))]):
                if owner == name:
                    yield key, self._or_open(statement.value)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=key)]) if owner == name:
                yield key, self._or_open(statement.value)
            case ast.AugAssign(target=ast.Attribute(value=ast.Name(id=owner), attr=key)) if owner == name:
                yield key, Open(ast.unparse(statement))
            case ast.AugAssign(target=ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(key)))):
                if owner == name:
                    yield key, Open(ast.unparse(statement))
            case ast.AugAssign(target=ast.Name(id=owner), op=ast.BitOr()) if owner == name:
                yield from self._or_nothing(statement.value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="update"))):
                if owner == name:
                    assert isinstance(statement.value, ast.Call)
                    for argument in statement.value.args:
                        yield from self._or_nothing(argument)
                    yield from self.keywords(statement.value).items()
            case ast.Expr(value=ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=owner), ast.Constant(), _])):
                if owner == name:
                    assert isinstance(statement.value, ast.Call)
                    _, key_node, item = statement.value.args
                    yield str(self.value(key_node)), self._or_open(item)

    def _or_nothing(self, node: ast.expr) -> Iterator[tuple[str, Any]]:
        try:
            yield from self._unpacked(node).items()
        except Open:
            return

    # Calls, classes, parameters and command lines.

    def _call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if name in CALLS and not node.keywords:
            if name == "float" and isinstance(node.args[0], ast.Constant) and "inf" in str(node.args[0].value):
                return float(node.args[0].value)
            return _bounded(CALLS[name](*(self.value(argument) for argument in node.args)))
        if name in ENVIRONMENT and len(node.args) == 2:
            self.defaults = True
            return self.value(node.args[1])
        if name == "dict" or last in BAGS:
            positional = self._unpacked(node.args[0]) if node.args else {}
            given = positional | self.keywords(node)
            return given if name == "dict" else Record(given)
        if name in ("vars", "asdict", "dataclasses.asdict", "copy.deepcopy", "copy.copy", "OmegaConf.create"):
            value = self.value(node.args[0])
            return dict(value.values) if isinstance(value, Record) and "copy" not in name else value
        if last in ("parse_args", "parse_known_args"):
            options = self.command_line()
            return options if last == "parse_args" else [options, Open(name)]
        if last in ("get", "copy") and isinstance(node.func, ast.Attribute):
            value = self.value(node.func.value)
            if not isinstance(value, dict):
                raise Open(ast.unparse(node))
            return dict(value) if last == "copy" else self._got(value, node)
        if name in self.classes:
            return self.record(self.classes[name], node)
        if name in self.functions:
            return self._returned(self.functions[name], node)
        raise Open(ast.unparse(node))

    def _got(self, value: dict[Any, Any], node: ast.Call) -> Any:
        key = self.value(node.args[0])
        if key in value:
            return _present(value[key])
        return self.value(node.args[1]) if len(node.args) > 1 else None

    def keywords(self, node: ast.Call) -> dict[str, Any]:
        """A call's keywords, with those that `**` brings; an open one is its `Open`."""
        found: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                try:
                    found |= {str(key): item for key, item in self._unpacked(keyword.value).items()}
                except Open:
                    found[f"**{ast.unparse(keyword.value)}"] = Open(ast.unparse(keyword.value))
            else:
                found[keyword.arg] = self._or_open(keyword.value)
        return found

    def _returned(self, function: ast.FunctionDef, call: ast.Call) -> Any:
        returns = [each for each in _statements(function) if isinstance(each, ast.Return)]
        if len(returns) != 1 or returns[0].value is None or function in self.told:
            raise Open(ast.unparse(call))
        self.told[function] = call
        try:
            return self.value(returns[0].value)
        finally:
            del self.told[function]

    def _parameter(self, name: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        """What a parameter is: by the call in hand, by the only call there is, by its default, by its class."""
        owner = self.parents.get(function)
        is_init = function.name == "__init__" and isinstance(owner, ast.ClassDef)
        called = owner.name if is_init and isinstance(owner, ast.ClassDef) else function.name
        calls = [self.told[function]] if function in self.told else []
        calls = calls or [call for call in self.calls if ast.unparse(call.func).rpartition(".")[2] == called]
        given = [self._argument(name, function, call) for call in calls]
        if given and all(found is given[0] or _same(found, given[0]) for found in given):
            if given[0] is not None:
                held, self.told = self.told, {key: call for key, call in self.told.items() if key is not function}
                try:
                    return self.value(given[0])
                except Open:
                    pass  # its class may say it
                finally:
                    self.told = held
        elif given:
            raise Open(name)
        default = _parameters(function)[name]
        if default is not None and (not given or given[0] is None):
            self.defaults = self.defaults or not given
            return self.value(default)
        annotation = next((each.annotation for each in _arguments(function) if each.arg == name), None)
        if isinstance(annotation, ast.Constant | ast.Name):
            class_name = str(annotation.value) if isinstance(annotation, ast.Constant) else annotation.id
            if class_name in self.classes:
                self.defaults = True
                return self.record(self.classes[class_name])
        raise Open(name)

    def _argument(self, name: str, function: Any, call: ast.Call) -> ast.expr | None:
        """The expression that a call gives a parameter, or None where it leaves it to the default."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        names = names[1:] if names[:1] in (["self"], ["cls"]) else names
        if name in names and names.index(name) < len(call.args):
            argument = call.args[names.index(name)]
            if not any(isinstance(each, ast.Starred) for each in call.args[: names.index(name) + 1]):
                return argument
            raise Open(name)
        if any(keyword.arg is None for keyword in call.keywords):
            raise Open(name)
        return None

    def record(self, node: ast.ClassDef, call: ast.Call | None = None) -> Record:
        """A class's fields with their defaults, those of its bases too, and a call's keywords over them."""
        values: dict[str, Any] = {}
        names: list[str] = []
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.classes and self.classes[base.id] is not node:
                inherited = self.value(base)
                values |= inherited.values
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                names.append(statement.target.id)
                values[names[-1]] = self._field(statement.value) if statement.value else Open(names[-1])
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                values[statement.targets[0].id] = self._field(statement.value)
            elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                if call is not None:
                    self.told[statement] = call
                values |= self._attributes(statement)
                self.told.pop(statement, None)
        if call is None:
            self.defaults = True
            return Record(values)
        given = {name: self._or_open(argument) for name, argument in zip(names, call.args, strict=False)}
        given |= {key: item for key, item in self.keywords(call).items() if not key.startswith("**")}
        self.defaults = self.defaults or bool(values.keys() - given.keys())
        return Record(values | given)

    def _attributes(self, function: ast.FunctionDef) -> dict[str, Any]:
        """What `__init__` gives its attributes."""
        found: dict[str, Any] = {}
        for statement in _statements(function):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            for target in targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    plain = isinstance(statement, ast.Assign | ast.AnnAssign) and statement in function.body
                    item = getattr(statement, "value", None)
                    found[target.attr] = self._or_open(item) if plain and item is not None else Open(target.attr)
        return found

    def _field(self, node: ast.expr) -> Any:
        """A field's default: itself, or that of `field(default=...)`."""
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].lower() == "field":
            for keyword in node.keywords:
                if keyword.arg == "default":
                    return self._or_open(keyword.value)
                if keyword.arg == "default_factory":
                    is_lambda = isinstance(keyword.value, ast.Lambda)
                    return self._or_open(keyword.value.body) if is_lambda else Open("")  # type: ignore[attr-defined]
            return self._or_open(node.args[0]) if node.args else Open("")
        return self._or_open(node)

    def command_line(self) -> Record:
        """The options that the file's parsers take, with their defaults."""
        values: dict[str, Any] = {}
        for call in self.calls:
            method = ast.unparse(call.func).rpartition(".")[2]
            if method == "set_defaults":
                values |= self.keywords(call)
            if method != "add_argument" or not all(isinstance(each, ast.Constant) for each in call.args):
                continue
            names = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
            given = self.keywords(call)
            long = [name for name in names if name.startswith("--")] or names
            if long:
                name = str(given.get("dest") or long[0].lstrip("-").replace("-", "_"))
                values[name] = _option(name, names, given, call)
        self.defaults = True
        return Record(values)


def _option(name: str, names: list[str], given: dict[str, Any], call: ast.Call) -> Any:
    """What an option of a command line is where it is not given."""
    if given.get("required") or not names[0].startswith("-"):
        return Open(f"--{name} is required")
    action = given.get("action")
    if "default" not in given:
        return {"store_true": False, "store_false": True}.get(action) if isinstance(action, str) else None
    default = given["default"]
    kinds = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "type"]
    if isinstance(default, str) and kinds and kinds[0] in CONVERTED:
        return CONVERTED[kinds[0]](default)
    return default


def _present(value: Any) -> Any:
    if isinstance(value, Open):
        raise value
    return value


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > LARGEST:
        raise Open("a very large number")
    if isinstance(value, complex | bytes) or value is Ellipsis:
        raise Open(repr(value)[:40])
    return value


def _binary(op: ast.operator, left: Any, right: Any) -> Any:
    """An operation within bounds: nothing that a few characters make long or slow."""
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if isinstance(op, ast.Pow) and not (numbers and abs(right) <= 64 and abs(left) <= 1e9):
        raise Open("a power")
    if not numbers:
        joined = isinstance(op, ast.Add) and type(left) is type(right) and isinstance(left, str | list)
        if not joined or len(left) + len(right) > LONGEST:
            raise Open("an operation")
    return _bounded(BINARY[type(op)](left, right))


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a scope in the order of the file, without those of the functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
                yield from _statements(child)


def _names(statement: ast.stmt) -> Iterator[tuple[str, Binding]]:
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
            yield name, Binding(statement, ast.BinOp(statement.target, op, statement.value))
        case ast.For() | ast.AsyncFor():
            for node in ast.walk(statement.target):
                if isinstance(node, ast.Name):
                    yield node.id, Binding(statement, None)
        case ast.With() | ast.AsyncWith():
            for item in statement.items:
                if isinstance(item.optional_vars, ast.Name):
                    yield item.optional_vars.id, Binding(statement, None)
        case ast.Import() | ast.ImportFrom():
            for alias in statement.names:
                yield (alias.asname or alias.name.partition(".")[0]), Binding(statement, None)


def _arguments(function: Any) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _parameters(function: Any) -> dict[str, ast.expr | None]:
    """A function's parameters with their defaults."""
    positional = [*function.args.posonlyargs, *function.args.args]
    padded = [None] * (len(positional) - len(function.args.defaults)) + function.args.defaults
    found = {argument.arg: default for argument, default in zip(positional, padded, strict=True)}
    only = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return found | {argument.arg: default for argument, default in only}


def _before(statement: ast.stmt, other: ast.stmt) -> bool:
    return (statement.lineno, statement.col_offset) < (other.lineno, other.col_offset)


def _side(branch: ast.If, inner: ast.AST) -> list[Any]:
    return branch.body if inner in branch.body else branch.orelse


def _is_main(branch: ast.If) -> bool:
    return "__name__" in ast.unparse(branch.test)


def _same(one: ast.expr | None, other: ast.expr | None) -> bool:
    return one is not None and other is not None and ast.dump(one) == ast.dump(other)


LINE_FOR_IPYTHON = re.compile(r"^[ \t]*[!%].*$", re.MULTILINE)


def parse(text: str) -> tuple[Source, list[int]]:
    """A file's Python and the first lines of the parts that are none, which are passed over.

    Lines for IPython are no part of it. Where the whole cannot be read, its top-level statements are read one by one.
    """
    text = LINE_FOR_IPYTHON.sub("", text.replace("\x00", ""))
    try:
        return Source(ast.parse(text)), []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    lines, parts, broken = text.splitlines(), [], []
    starts = [
        n for n, line in enumerate(lines) if line[:1].strip() and line[0] not in ")]}#\"'" and not CONTINUES.match(line)
    ]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        try:
            part = ast.parse("\n" * start + "\n".join(lines[start:end]))
            parts += part.body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            broken.append(start + 1)
    return Source(ast.Module(parts, [])), broken


CONTINUES = re.compile(r"(else|elif|except|finally)\b")
