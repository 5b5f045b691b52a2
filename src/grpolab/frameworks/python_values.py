"""The values that stand in a Python file, found without running or importing anything.

A name has a value here where the file leaves no doubt: a constant, arithmetic on constants, what a dict holds after
the lines that change it, the default of a command-line option, of a dataclass field or of a parameter. A branch counts
where its condition is such a value. Everything else is `Open`: its text, and no value.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grpolab.frameworks.python_source import (
    BRANCHES,
    LOOPS,
    Binding,
    Function,
    Scope,
    Source,
    annotation,
    argument,
    before,
    last_name,
    parameters,
    statements,
)

MOST_STEPS = 200_000  # of the evaluation of one file
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
    "float": float, "int": int, "bool": bool, "str": str, "min": min, "max": max, "abs": abs, "len": len, "sum": sum,
    "list": list, "tuple": list, "math.ceil": math.ceil, "math.floor": math.floor, "math.sqrt": math.sqrt,
}
# fmt: on
INFINITE = {"math.inf", "torch.inf", "np.inf", "numpy.inf"}
BAGS = {"SimpleNamespace", "Namespace", "EasyDict", "AttrDict", "DotDict", "edict", "Box"}  # keywords as attributes
COPIES = {"copy.deepcopy", "copy.copy", "deepcopy", "OmegaConf.create"}
AS_DICT = {"vars", "asdict", "dataclasses.asdict"}
ENVIRONMENT = {"os.environ.get", "os.getenv", "environ.get", "getenv"}
CONVERTED: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str}


class Open(Exception):
    """A value that the file alone does not say: its text."""


@dataclass
class Record:
    """Something with attributes: the options of a command line, a dataclass. `values` may hold `Open` ones."""

    values: dict[str, Any]


class Values:
    """What the expressions of a file are. `overridable` has the keywords whose values are a script's own defaults."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.overridable: set[str] = set()
        self._called: dict[Function, ast.Call] = {}  # the call that a function is evaluated for
        self._steps = self._depth = 0
        self._by_default = False  # whether the value in hand rests on a default that a user may override

    def value(self, node: ast.AST) -> Any:
        """Raises Open where the file alone does not say it, or saying it takes too long."""
        self._steps += 1
        self._depth += 1
        try:
            if self._steps > MOST_STEPS or self._depth > DEEPEST:
                raise Open("too much to follow")
            return self._value(node)
        except (ArithmeticError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise Open(ast.unparse(node)) from error
        finally:
            self._depth -= 1

    def value_or_open(self, node: ast.AST) -> Any:
        """The same, or the `Open` itself: one open item does not spoil the others."""
        try:
            return self.value(node)
        except Open:
            return Open(ast.unparse(node))

    def keywords(self, call: ast.Call) -> dict[str, Any]:
        """A call's keywords, with those that `**` brings; an open one is its `Open`."""
        found: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is not None:
                found[keyword.arg] = self._item(keyword.arg, keyword.value)
                continue
            try:
                found |= {str(key): item for key, item in self._unpacked(keyword.value).items()}
            except Open:
                found[f"**{ast.unparse(keyword.value)}"] = Open(ast.unparse(keyword.value))
        return found

    def _item(self, key: str, node: ast.expr) -> Any:
        held, self._by_default = self._by_default, False
        item = self.value_or_open(node)
        if self._by_default:
            self.overridable.add(key)
        self._by_default |= held
        return item

    def _value(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=value):
                return _bounded(value)
            case ast.Name(id=name):
                return self._name(name, node)
            case ast.UnaryOp() if type(node.op) in UNARY:
                return UNARY[type(node.op)](self.value(node.operand))
            case ast.BinOp(op=ast.BitOr()):
                return self._unpacked(node.left) | self._unpacked(node.right)
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
                break
        return value

    def _conditional(self, node: ast.IfExp) -> Any:
        holds = self._truth(node.test)
        if holds is not None:
            return self.value(node.body if holds else node.orelse)
        first, second = self.value(node.body), self.value(node.orelse)
        if first != second:
            raise Open(ast.unparse(node))
        return first

    def _truth(self, node: ast.expr) -> bool | None:
        try:
            return bool(self.value(node))
        except Open:
            return None

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            if key is None:
                found |= self._unpacked(item)
            else:
                name = self.value(key)
                found[name] = self._item(str(name), item)
        return found

    def _unpacked(self, node: ast.expr) -> dict[Any, Any]:
        value = self.value(node)
        return dict(value.values if isinstance(value, Record) else value)

    def _attribute(self, node: ast.Attribute) -> Any:
        if ast.unparse(node) in INFINITE:
            return math.inf
        owner = self.value(node.value)
        if isinstance(owner, Record):
            return _present(owner.values[node.attr])
        raise Open(ast.unparse(node))

    # Names.

    def _name(self, name: str, use: ast.AST) -> Any:
        scope, first = self.source.scope(use), True
        while True:
            bindings = self.source.bindings(scope, name)
            if bindings and (first or not isinstance(scope, ast.ClassDef)):
                return self._latest(name, bindings, scope, use if first else scope)
            if isinstance(scope, Function | ast.Lambda) and name in parameters(scope):
                if isinstance(scope, ast.Lambda):
                    raise Open(name)
                return self._changed(self._parameter(name, scope), name, scope, use if first else scope)
            if isinstance(scope, ast.Module):
                break
            scope, first = self.source.scope(scope), False
        if name in self.source.classes:
            return self.record(self.source.classes[name])
        raise Open(name)

    def _latest(self, name: str, bindings: list[Binding], scope: Scope, use: ast.AST) -> Any:
        """The value of the last statement that has surely given one, unless one after it may have given another."""
        if name in self.source.global_names:
            raise Open(name)
        loops = {outer for outer in self.source.above(use) if isinstance(outer, LOOPS)}
        candidates: list[Binding] = []
        for binding in bindings:
            if use is not scope and not before(binding.statement, self.source.statement(use)):
                if loops.intersection(self.source.above(binding.statement)):
                    raise Open(name)  # in an earlier pass
                continue
            ran = self.has_run(binding.statement, scope, use)
            if ran is not False:
                candidates = [binding] if ran else [*candidates, binding]
        values = [self._bound(binding) for binding in candidates]
        if not values or any(value != values[0] for value in values[1:]):
            raise Open(name)
        return self._changed(values[0], name, scope, use)

    def _bound(self, binding: Binding) -> Any:
        statement = binding.statement
        if isinstance(statement, ast.AugAssign) and type(statement.op) in BINARY:
            return _binary(statement.op, self.value(statement.target), self.value(statement.value))
        if binding.value is None:
            raise Open(_line(statement))
        value = self.value(binding.value)
        return value if binding.index is None else _present(value[binding.index])

    def has_run(self, statement: ast.stmt, scope: Scope, use: ast.AST) -> bool | None:
        """Whether a statement of a scope has run where `use` stands, None where that is not known."""
        self._steps += 1
        around = {use, *self.source.above(use)}
        inner: ast.AST = statement
        verdict: bool | None = True
        for outer in self.source.above(statement):
            if inner is scope:
                break
            if isinstance(outer, ast.If) and "__name__" not in ast.unparse(outer.test):
                in_body = inner in outer.body
                if outer in around:  # on the same side, or never
                    if not around.intersection(outer.body if in_body else outer.orelse):
                        return False
                elif (holds := self._truth(outer.test)) is None:
                    verdict = None
                elif holds is not in_body:
                    return False
            elif isinstance(outer, BRANCHES) and not isinstance(outer, ast.If) and outer not in around:
                verdict = None
            inner = outer
        return verdict

    def _changed(self, value: Any, name: str, scope: Scope, use: ast.AST) -> Any:
        """A dict or record after the statements of its scope that change it above `use`."""
        if not isinstance(value, dict | Record):
            return value
        items = dict(value.values if isinstance(value, Record) else value)
        for statement in self.source.changes(scope, name):
            if use is scope or before(statement, self.source.statement(use)):
                self.change(items, statement, self.has_run(statement, scope, use))
        return Record(items) if isinstance(value, Record) else items

    def change(self, items: dict[Any, Any], statement: ast.stmt, has_run: bool | None) -> None:
        """Apply a statement to what it changes; what it may have changed is open."""
        self._steps += 1
        if has_run is False:
            return
        for key, item in self._set_by(statement, items):
            if has_run:
                items[key] = item
            elif key not in items or items[key] != item:
                items[key] = Open(_line(statement))

    def _set_by(self, statement: ast.stmt, items: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        """The keys that a statement sets, with their values."""
        match statement:
            case ast.Assign(targets=[ast.Subscript(slice=key)]) | ast.AugAssign(target=ast.Subscript(slice=key)):
                keys = [self.value_or_open(key)]
            case ast.Assign(targets=[ast.Attribute(attr=key)]) | ast.AugAssign(target=ast.Attribute(attr=key)):
                keys = [key]
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="update"), args=arguments) as call):
                for each in arguments:
                    with_open = self.value_or_open(each)
                    known = with_open.values if isinstance(with_open, Record) else with_open
                    unknown = {key: Open(_line(statement)) for key in items}
                    yield from (dict(known) if isinstance(known, dict) else unknown).items()
                yield from self.keywords(call).items()
                return
            case (
                ast.Expr(value=ast.Call(func=ast.Attribute(attr="pop"), args=[key, *_]))
                | ast.Delete(targets=[ast.Subscript(slice=key)])
            ):
                keys = [self.value_or_open(key)]
            case ast.Expr(value=ast.Call(func=ast.Name(), args=[_, key, item])):
                yield self.value_or_open(key), self.value_or_open(item)
                return
            case ast.AugAssign(op=ast.BitOr()):
                more = self.value_or_open(statement.value)
                yield from (more if isinstance(more, dict) else {key: Open(_line(statement)) for key in items}).items()
                return
            case _:
                return
        assigned = statement.value if isinstance(statement, ast.Assign) and not isinstance(keys[0], Open) else None
        for key in list(items) if isinstance(keys[0], Open) else keys:
            yield key, self._item(str(key), assigned) if assigned is not None else Open(_line(statement))

    # Calls, parameters, classes and command lines.

    def _call(self, node: ast.Call) -> Any:
        name, last = ast.unparse(node.func), last_name(node.func)
        if name in CALLS and not node.keywords:
            return _bounded(CALLS[name](*(self.value(each) for each in node.args)))
        if name == "round" and len(node.args) == 1:
            return round(self.value(node.args[0]))
        if name in ENVIRONMENT and len(node.args) == 2:
            self._by_default = True
            return self.value(node.args[1])
        if name == "dict" or last in BAGS:
            given = {**(self._unpacked(node.args[0]) if node.args else {}), **self.keywords(node)}
            return given if name == "dict" else Record(given)
        if name in COPIES:
            return self.value(node.args[0])
        if name in AS_DICT:
            return self._unpacked(node.args[0])
        if last in ("parse_args", "parse_known_args"):
            options = self._command_line()
            return options if last == "parse_args" else [options, Open(name)]
        if last in ("get", "copy") and isinstance(node.func, ast.Attribute):
            return self._got(dict(self.value(node.func.value)), node)
        if name in self.source.classes:
            return self.record(self.source.classes[name], node)
        if name in self.source.functions:
            return self._returned(self.source.functions[name], node)
        raise Open(ast.unparse(node))

    def _got(self, value: dict[Any, Any], node: ast.Call) -> Any:
        if not node.args:
            return value
        key = self.value(node.args[0])
        if key in value:
            return _present(value[key])
        return self.value(node.args[1]) if len(node.args) > 1 else None

    def _returned(self, function: ast.FunctionDef, call: ast.Call) -> Any:
        returns = [each for each in statements(function) if isinstance(each, ast.Return)]
        if len(returns) != 1 or returns[0].value is None or function in self._called:
            raise Open(ast.unparse(call))
        self._called[function] = call
        try:
            return self.value(returns[0].value)
        finally:
            del self._called[function]

    def _parameter(self, name: str, function: Function) -> Any:
        """What a parameter is: by the call in hand, by the calls in the file, by its default, by its class."""
        owner = self.source.parents.get(function)
        if name == "self" and isinstance(owner, ast.ClassDef) and function.name != "__init__":
            made = self.source.calls_of[owner.name]
            if len(made) > 1:
                raise Open(name)
            return self.record(owner, *made)
        called = owner.name if function.name == "__init__" and isinstance(owner, ast.ClassDef) else function.name
        calls = [self._called[function]] if function in self._called else self.source.calls_of[called]
        given = [argument(function, name, call) for call in calls]
        if len({each and ast.dump(each) for each in given}) > 1:
            raise Open(name)
        if given and given[0] is not None:
            in_hand = self._called.pop(function, None)
            try:
                return self.value(given[0])
            except Open:
                given = []
            finally:
                if in_hand is not None:
                    self._called[function] = in_hand
        elif (default := parameters(function)[name]) is not None:
            self._by_default |= not given
            return self.value(default)
        class_name = annotation(function, name)
        if class_name not in self.source.classes:
            raise Open(name)
        return self.record(self.source.classes[class_name])

    def record(self, node: ast.ClassDef, call: ast.Call | None = None) -> Record:
        """A class's fields with their defaults, those of its bases too, and a call's arguments over them."""
        values: dict[str, Any] = {}
        names: list[str] = []
        for base in node.bases:
            if isinstance(base, ast.Name) and self.source.classes.get(base.id, node) is not node:
                values |= self.value(base).values
        for statement in node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), value=item):
                    names.append(name)
                    values[name] = self._field(item) if item is not None else Open(name)
                case ast.Assign(targets=[ast.Name(id=name)], value=item):
                    values[name] = self._field(item)
                case ast.FunctionDef(name="__init__"):
                    values |= self._attributes(statement, call)
        given = {name: self.value_or_open(each) for name, each in zip(names, call.args, strict=False)} if call else {}
        given |= {key: item for key, item in self.keywords(call).items() if not key.startswith("**")} if call else {}
        self._by_default |= bool(values.keys() - given.keys())
        return Record(values | given)

    def _attributes(self, init: ast.FunctionDef, call: ast.Call | None) -> dict[str, Any]:
        """What `__init__` gives its object."""
        found: dict[str, Any] = {}
        if call is not None:
            self._called[init] = call
        for statement in self.source.changes(init, "self"):
            self.change(found, statement, self.has_run(statement, init, init))
        self._called.pop(init, None)
        return found

    def _field(self, node: ast.expr) -> Any:
        """A field's default: itself, or that of `field(default=...)`."""
        if not (isinstance(node, ast.Call) and last_name(node.func).lower() == "field"):
            return self.value_or_open(node)
        for keyword in node.keywords:
            match keyword:
                case ast.keyword(arg="default", value=default):
                    return self.value_or_open(default)
                case ast.keyword(arg="default_factory", value=ast.Lambda(body=made)):
                    return self.value_or_open(made)
        return self.value_or_open(node.args[0]) if node.args else Open(ast.unparse(node))

    def _command_line(self) -> Record:
        """The options that the file's parsers take, with their defaults."""
        self._by_default = True
        return Record(dict(self._parsed_options))

    @cached_property
    def _parsed_options(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for call in self.source.calls_of["add_argument"]:
            names = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
            if not names:
                continue
            given = {keyword.arg: self.value_or_open(keyword.value) for keyword in call.keywords}
            kinds = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "type"]
            long = next((name for name in names if name.startswith("--")), names[0])
            key = str(given.get("dest") or long.lstrip("-").replace("-", "_"))
            value = _option(long, given, kinds)
            values[key] = value if values.get(key, value) == value else Open(f"{long} of several parsers")
        for call in self.source.calls_of["set_defaults"]:
            values |= self.keywords(call)
        return values


def _option(name: str, given: dict[str | None, Any], kinds: list[str]) -> Any:
    """What an option of a command line is where it is not given."""
    if given.get("required") or not name.startswith("-"):
        return Open(f"{name}, which must be given")
    if "default" not in given:
        return {"store_true": False, "store_false": True}.get(str(given.get("action")))
    if isinstance(given["default"], str) and kinds and kinds[0] in CONVERTED:
        return CONVERTED[kinds[0]](given["default"])
    return given["default"]


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


def _line(statement: ast.stmt) -> str:
    return ast.unparse(statement).splitlines()[0]
