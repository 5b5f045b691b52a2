"""The values that stand in a Python file, found without running or importing anything.

The file's statements are followed in their order, with what each name holds where the file leaves no doubt: a constant,
arithmetic on constants, a dict with what changes it, the default of a command-line option, of a dataclass field or of a
parameter. Both ways of a condition that only a run can tell are followed, and what differs between them is open.
Functions that the file calls are followed where it calls them, the others at its end.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from grpolab.readers.python_items import (
    BINARY,
    CALLS,
    COMPARE,
    UNARY,
    Item,
    Open,
    Record,
    binary,
    bounded,
    either,
    like,
    merged,
    option,
)
from grpolab.readers.python_source import Function, annotation, argument, last_name, parameters

MOST_STEPS = 200_000  # of the evaluation of one file
DEEPEST = 60  # values within values
INFINITE = {"math.inf", "torch.inf", "np.inf", "numpy.inf"}
BAGS = {"SimpleNamespace", "Namespace", "EasyDict", "AttrDict", "DotDict", "edict", "Box"}  # keywords as attributes
COPIES = {"copy.deepcopy", "copy.copy", "deepcopy", "OmegaConf.create"}
AS_DICT = {"vars", "asdict", "dataclasses.asdict"}
ENVIRONMENT = {"os.environ.get", "os.getenv", "environ.get", "getenv"}


class _Left(Exception):
    """`return` or `raise`: what follows it is not run."""


class Values:
    """A file, followed once. `made` has what each call of the classes in `names` makes, with what is set on it later.

    `trained_with` are those that a `GRPOTrainer` is given, in the order in which they are met.
    """

    def __init__(self, tree: ast.Module, names: set[str]) -> None:
        self.classes: dict[str, ast.ClassDef] = {}  # of two definitions the first counts
        self.functions: dict[str, Function] = {}
        self.calls: dict[str, list[ast.Call]] = defaultdict(list)  # by the last part of what is called
        self.names, self.made, self.trained_with = names, dict[Any, Item](), list[ast.Call]()
        self._owners: dict[Function, ast.ClassDef] = {}  # of methods
        self._objects: dict[str, list[Record]] = defaultdict(list)  # of a class, as they were made
        self._scopes: list[dict[Any, Item]] = [{}]  # what names hold, the innermost last
        self._outside: dict[ast.AST, list[dict[Any, Item]]] = {}  # of a function, the scopes that it stands in
        self._running: list[ast.AST] = []
        self._followed: set[ast.AST] = set()
        self._returned: list[Item] = []
        self._globals: set[str] = set()  # names that a function sets from inside
        self._steps = self._depth = 0
        self._by_default = False  # whether the value in hand rests on a default that a user may override
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
                self._owners |= {each: node for each in node.body if isinstance(each, Function)}
            elif isinstance(node, Function):
                self.functions.setdefault(node.name, node)
            elif isinstance(node, ast.Call):
                self.calls[last_name(node.func)].append(node)
            elif isinstance(node, ast.Global):
                self._globals.update(node.names)
        with contextlib.suppress(_Left):
            self._block(tree.body)
        functions = [each for each in ast.walk(tree) if isinstance(each, Function)]
        for function in sorted(functions, key=self._is_called):  # those that call others first
            if function not in self._followed:
                owner = self._owners.get(function)
                self._call_function(function, None, self._object(owner) if owner else None)
        if self._steps > MOST_STEPS:
            self.made.clear()  # what was not followed might have changed it

    def _is_called(self, function: Function) -> bool:
        owner = self._owners.get(function)
        return (owner.name if owner and function.name == "__init__" else function.name) in self.calls

    # Statements.

    def _block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._steps += 1
            if self._steps <= MOST_STEPS:
                self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                item = self.item(value)
                for target in targets:
                    self._assign(target, item)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self.item(value))
            case ast.AugAssign(target=target, op=op, value=value):
                self._assign(target, self.item(ast.copy_location(ast.BinOp(target, op, value), statement)))
            case ast.Delete(targets=targets):
                for target in targets:
                    self._assign(target, Item(open=_line(statement)))
            case ast.If(test=test, body=body, orelse=orelse):
                holds = True if "__name__" in ast.unparse(test) else self._truth(test)
                self._either_way([body, orelse], holds)
            case ast.For() | ast.AsyncFor() | ast.While():
                names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
                for name in names:
                    if isinstance(name.ctx, ast.Store):  # an earlier pass may have set it
                        self._assign(name, Item(open=name.id))
                self.item(statement.test if isinstance(statement, ast.While) else statement.iter)
                self._either_way([statement.body, []], None)
                self._block(statement.orelse)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                self._either_way([[*body, *orelse], *(handler.body for handler in handlers)], None)
                self._block(finalbody)
            case ast.Match(cases=cases):
                self._either_way([*(each.body for each in cases), []], None)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for part in items:
                    self.item(part.context_expr)
                    if part.optional_vars is not None:
                        self._assign(part.optional_vars, Item(open=_line(statement)))
                self._block(body)
            case ast.Import() | ast.ImportFrom():
                imported = [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
                self._scopes[-1] |= {each: Item(open=each) for each in imported}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._outside[statement] = list(self._scopes)
            case ast.ClassDef():
                for each in statement.body:
                    if isinstance(each, Function):
                        self._outside[each] = list(self._scopes)
            case ast.Return(value=value):
                self._returned.append(self.item(value) if value is not None else Item())
                raise _Left
            case ast.Raise():
                raise _Left
            case _:
                self._children(statement)

    def _either_way(self, ways: list[list[ast.stmt]], first_holds: bool | None) -> None:
        """Follow each way from here; what they leave different is open, unless it is known which of two is taken."""
        state = [*self._scopes, self.made]
        before, after = [dict(part) for part in state], list[list[dict[Any, Item]]]()
        self._steps += sum(map(len, state)) // 10
        aside: dict[Any, Item] = {}  # calls on ways that are not taken or do not go on: they may be asked for
        for number, way in enumerate(ways):
            _restore(state, before)
            met, is_taken = (len(self._returned), len(self.trained_with)), first_holds in (None, number == 0)
            with contextlib.suppress(_Left):
                self._block(way)
                if is_taken:
                    after.append([dict(part) for part in state])
            aside |= self.made
            if not is_taken:
                del self._returned[met[0] :], self.trained_with[met[1] :]
        if after:
            _restore(state, functools.reduce(merged, after))
        self.made |= aside | self.made
        if not after:
            raise _Left

    def _assign(self, target: ast.expr, item: Item) -> None:
        """Give a name, a key or an attribute a value. An owner is replaced by one that has it, never changed."""
        match target:
            case ast.Name(id=name):
                self._scopes[-1][name] = item
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                fits = isinstance(item.value, list) and len(item.value) == len(targets)
                for number, each in enumerate(targets):
                    part = item.value[number] if fits else Item(open=ast.unparse(each))
                    self._assign(each, part if isinstance(part, Item) else Item(part, by_default=item.by_default))
            case ast.Attribute(value=owner, attr=name):
                self._change(owner, {name: item})
            case ast.Subscript(value=owner, slice=key):
                self._change(owner, self._at(key, item))

    def _at(self, key: ast.expr, item: Item) -> dict[Any, Item] | None:
        """An item by its key; None where that is open."""
        found = self.item(key)
        return {found.value: item} if isinstance(found.value, str | int | float) else None

    def _change(self, owner: ast.expr, items: Mapping[Any, Item] | None) -> None:
        """Set these of an owner; None stands for any."""
        held = self.item(owner)
        if not isinstance(items_now := held.value, dict):
            return
        call = items_now.made_by if isinstance(items_now, Record) else None
        if call in self.made and isinstance(self.made[call].value, Record):  # as it is by now, wherever it was changed
            items_now = self.made[call].value
        more = {key: Item(open=str(key)) for key in items_now} if items is None else items
        try:
            new = Item(bounded(like(items_now, items_now | more)), by_default=held.by_default)
        except Open:
            new = Item(open=ast.unparse(owner))
        if call is not None:
            self.made[call] = new
        if isinstance(owner, ast.Name):  # where it stands, which may be outside
            next((scope for scope in reversed(self._scopes) if owner.id in scope), self._scopes[-1])[owner.id] = new
        else:
            self._assign(owner, new)

    def _changed_by(self, call: ast.Call) -> bool:
        """Whether a call is one that changes a dict or an object: `update`, `pop`, `setattr`."""
        match call:
            case ast.Call(func=ast.Attribute(value=owner, attr="update"), args=arguments):
                for each in arguments:
                    found = self.item(each).value
                    self._change(owner, found if isinstance(found, dict) else None)
                self._change(owner, self.keywords(call))
            case ast.Call(func=ast.Attribute(value=owner, attr="pop"), args=[key, *_]):
                self._change(owner, self._at(key, Item(open=ast.unparse(call))))
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, key, item]):
                self._change(owner, self._at(key, self.item(item)))
            case _:
                return False
        return True

    # Expressions.

    def item(self, node: ast.expr) -> Item:
        """What an expression is."""
        held, self._by_default = self._by_default, False
        try:
            value = self.value(node)
            return Item(value, by_default=self._by_default)
        except Open:
            return Item(open=ast.unparse(node))
        finally:
            self._by_default |= held

    def value(self, node: ast.expr) -> Any:
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

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return bounded(value)
            case ast.Name(id=name):
                return self._name(name)
            case ast.UnaryOp() if type(node.op) in UNARY:
                return UNARY[type(node.op)](self.value(node.operand))
            case ast.BinOp(op=ast.BitOr()):
                return bounded(self._unpacked(node.left) | self._unpacked(node.right))
            case ast.BinOp() if type(node.op) in BINARY:
                return binary(node.op, self.value(node.left), self.value(node.right))
            case ast.BoolOp():
                value = None
                for part in node.values:
                    value = self.value(part)
                    if bool(value) is isinstance(node.op, ast.Or):
                        break
                return value
            case ast.Compare(ops=[op], comparators=[right]) if type(op) in COMPARE:
                return COMPARE[type(op)](self.value(node.left), self.value(right))
            case ast.IfExp():
                if (holds := self._truth(node.test)) is not None:
                    return self.value(node.body if holds else node.orelse)
                if (first := self.value(node.body)) != self.value(node.orelse):
                    raise Open(ast.unparse(node))
                return first
            case ast.List() | ast.Tuple():
                return bounded([self._present(item) for item in [self.item(each) for each in node.elts]])
            case ast.Dict():
                found: dict[Any, Item] = {}
                for key, each in zip(node.keys, node.values, strict=True):
                    found |= self._unpacked(each) if key is None else {self.value(key): self.item(each)}
                return bounded(found)
            case ast.Attribute():
                if ast.unparse(node) in INFINITE:
                    return math.inf
                owner = self.value(node.value)
                return self._present(owner[node.attr] if isinstance(owner, Record) else Item(open=ast.unparse(node)))
            case ast.Subscript():
                return self._present(self.value(node.value)[self.value(node.slice)])
            case ast.Call():
                return self._call(node)
            case ast.NamedExpr():
                self._assign(node.target, item := self.item(node.value))
                return self._present(item)
        self._children(node)
        raise Open(ast.unparse(node))

    def _children(self, node: ast.AST) -> None:
        """Follow the expressions in a node for the calls in them."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.item(child)

    def _present(self, item: Any) -> Any:
        if not isinstance(item, Item):
            return item
        if item.open:
            raise Open(item.open)
        self._by_default |= item.by_default
        return item.value

    def _truth(self, node: ast.expr) -> bool | None:
        found = self.item(node)
        return None if found.open else bool(found.value)

    def _unpacked(self, node: ast.expr) -> dict[Any, Item]:
        return dict(self.value(node))

    def _name(self, name: str) -> Any:
        for scope in reversed(self._scopes):
            if name in scope:
                return self._present(Item(open=name) if name in self._globals else scope[name])
        if name in self.classes:
            return self.record(self.classes[name])
        raise Open(name)

    def keywords(self, call: ast.Call) -> dict[str, Item]:
        """A call's keywords, with those that `**` brings."""
        found: dict[str, Item] = {}
        for keyword in call.keywords:
            if keyword.arg is not None:
                found[keyword.arg] = self.item(keyword.value)
            elif isinstance(more := self.item(keyword.value).value, dict):
                found |= {str(key): item for key, item in more.items()}
            else:
                found[f"**{ast.unparse(keyword.value)}"] = Item(open=ast.unparse(keyword.value))
        return found

    # Calls, parameters, classes and command lines.

    def _call(self, node: ast.Call) -> Any:
        name, last = ast.unparse(node.func), last_name(node.func)
        if last in self.names:
            return self._make(node)
        if self._changed_by(node):
            raise Open(ast.unparse(node))
        if last.endswith("GRPOTrainer"):
            given = [self.item(keyword.value).value for keyword in node.keywords if keyword.arg == "args"]
            self.trained_with += [each.made_by for each in given if isinstance(each, Record) and each.made_by]
        if name in CALLS and not node.keywords:
            return bounded(CALLS[name](*(self.value(each) for each in node.args)))
        if name == "str" and isinstance(value := self.value(node.args[0]), str | int | float):
            return str(value)
        if name in ENVIRONMENT and len(node.args) == 2:
            self._by_default = True
            return self.value(node.args[1])
        if name == "dict" or last in BAGS:
            items = {**(self._unpacked(node.args[0]) if node.args else {}), **self.keywords(node)}
            return bounded(items if name == "dict" else Record(items))
        if name in COPIES:
            return self.value(node.args[0])
        if name in AS_DICT:
            return self._unpacked(node.args[0])
        if last in ("parse_args", "parse_known_args"):
            options = self._command_line()
            return options if last == "parse_args" else [options, Item(open=name)]
        if last in ("get", "copy") and isinstance(node.func, ast.Attribute):
            owned = self._unpacked(node.func.value)
            if not node.args:
                return owned
            key = self.value(node.args[0])
            return self._present(owned[key]) if key in owned else self.value(node.args[1]) if node.args[1:] else None
        if name in self.classes:
            made = self.record(self.classes[name], node)
            self._objects[name].append(made)
            return made
        function = self.functions.get(last)
        if function is not None and (function in self._owners) is isinstance(node.func, ast.Attribute):
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            returned, changed = self._call_function(function, node, self.item(owner) if owner else None)
            if isinstance(owner, ast.Name) and not changed.open:
                self._assign(owner, changed)
            return self._present(returned)
        for each in (node.func, *node.args, *(keyword.value for keyword in node.keywords)):
            if not isinstance(each, ast.Name):
                self.item(each)
        raise Open(ast.unparse(node))

    def options(self, call: ast.Call) -> Record:
        """What one of those that are looked for has in the end."""
        made = self.made.get(call, Item()).value
        if isinstance(made, Record):
            return made
        self._scopes = [{}]  # it stands where nothing was followed: only what it says itself counts
        return self._make(call)

    def _make(self, node: ast.Call) -> Record:
        """One of those that are looked for; a call that is met twice may have made either."""
        own = self.classes.get(last_name(node.func))
        made = Record({**(self.record(own) if own else {}), **self.keywords(node)})
        made.made_by = node
        self.made[node] = either(self.made[node], Item(made)) if node in self.made else Item(made)
        return made

    def _call_function(self, function: Function, call: ast.Call | None, owner: Item | None) -> tuple[Item, Item]:
        """What a function returns, and its object where it is a method. Without a call nothing in the file calls it."""
        if function in self._running or self._steps > MOST_STEPS:
            return Item(open=function.name), owner or Item()
        own, inside = next(iter(parameters(function)), ""), self._parameters(function, call)
        if owner is not None and own == "self":
            inside[own] = owner
        self._followed.add(function)
        returned, self._returned = self._returned, []
        scopes, self._scopes = self._scopes, [*self._outside.get(function, self._scopes[:1]), inside]
        self._running.append(function)
        try:
            self._block(function.body)
            self._returned.append(Item())
        except _Left:
            pass
        self._running.pop()
        self._scopes, found, self._returned = scopes, self._returned, returned
        same = bool(found) and all(item == found[0] for item in found)
        return found[0] if same else Item(open=function.name), inside.get(own, Item())

    def _parameters(self, function: Function, call: ast.Call | None) -> dict[Any, Item]:
        """What a function's parameters are: by its call, by their defaults, by their classes."""
        found: dict[Any, Item] = {}
        for rest in (function.args.vararg, function.args.kwarg):
            if rest is not None:
                found[rest.arg] = Item(open=rest.arg)
        for name, default in parameters(function).items():
            try:
                given = argument(function, name, call) if call else None
                node = given or default
                item = self.item(node) if node else Item(open=name)
            except ValueError:
                given, item = None, Item(open=name)
            if call is None and not item.open:
                item = Item(item.value, by_default=True)
            if item.open and (class_name := annotation(function, name)) in self.classes:
                item = Item(self.record(self.classes[class_name]), by_default=True)
            found[name] = item
        return found

    def _object(self, owner: ast.ClassDef) -> Item:
        """The object of a class whose method is followed: the only one that the file makes."""
        made = self._objects[owner.name]
        if any(each != made[0] for each in made):
            return Item(open=owner.name)
        return Item(made[0] if made else self.record(owner), by_default=not made)

    def record(self, node: ast.ClassDef, call: ast.Call | None = None) -> Record:
        """A class's fields with their defaults, those of its bases too, and what a call of it gives."""
        made = Record()
        if node in self._running or self._steps > MOST_STEPS:
            return made
        self._running.append(node)
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.classes:
                made |= self.record(self.classes[base.id])
        scopes, self._scopes = self._scopes, [self._scopes[0], {}]
        names = []
        for statement in node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), value=value):
                    names.append(name)
                    self._scopes[1][name] = self._field(value) if value is not None else Item(open=name)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._scopes[1][name] = self._field(value)
        made |= {name: Item(item.value, item.open, True) for name, item in self._scopes[1].items()}
        self._scopes = scopes
        self._running.pop()
        init = next((each for each in node.body if isinstance(each, Function) and each.name == "__init__"), None)
        if init is not None:
            value = self._call_function(init, call, Item(made))[1].value
            return value if isinstance(value, Record) else made
        if call is not None:
            made |= {name: self.item(each) for name, each in zip(names, call.args, strict=False)}
            made |= {key: item for key, item in self.keywords(call).items() if not key.startswith("**")}
        return made

    def _field(self, node: ast.expr) -> Item:
        """A field's default: itself, or that of `field(default=...)`."""
        if not (isinstance(node, ast.Call) and last_name(node.func).lower() == "field"):
            return self.item(node)
        for keyword in node.keywords:
            match keyword:
                case ast.keyword(arg="default", value=default):
                    return self.item(default)
                case ast.keyword(arg="default_factory", value=ast.Lambda(body=made)):
                    return self.item(made)
        return self.item(node.args[0]) if node.args else Item(open=ast.unparse(node))

    def _command_line(self) -> Record:
        """The options that the file's parsers take, with their defaults."""
        options = Record()
        for call in self.calls["add_argument"]:
            names = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
            if not names:
                continue
            given = self.keywords(call)
            long = next((name for name in names if name.startswith("--")), names[0])
            key = str(given["dest"].value if "dest" in given else long.lstrip("-").replace("-", "_"))
            kinds = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "type"]
            item = option(long, given, kinds)
            options[key] = either(options.get(key, item), item)
        for call in self.calls["set_defaults"]:
            options |= self.keywords(call)
        return Record({key: Item(item.value, item.open, by_default=True) for key, item in options.items()})


def _restore(state: list[dict[Any, Item]], kept: list[dict[Any, Item]]) -> None:
    for part, was in zip(state, kept, strict=True):
        part.clear()
        part |= was


def _line(statement: ast.stmt) -> str:
    return ast.unparse(statement).splitlines()[0]
