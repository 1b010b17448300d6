"""Expressions: names, attributes, subscripts, operators, literals."""

from __future__ import annotations

import ast
import builtins
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from atrex.fallback.arithmetic import binary, boolean, compare, conditional, constant, truth, unary
from atrex.fallback.attributes import attribute
from atrex.fallback.scoped import OF_SCOPE
from atrex.fallback.values import (
    NONE,
    UNKNOWN,
    Class,
    Const,
    Function,
    Instance,
    Kernel,
    Launcher,
    Lazy,
    Lib,
    Mapping,
    Method,
    Opaque,
    Partial,
    Scope,
    Seq,
    Tensor,
    Union,
    Value,
    quoted,
    tensors_in,
    union,
    view,
)

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader

_LONGEST = 1 << 16  # of a folded string
_ELEMENTS = 32  # of a loop or comprehension that is followed one by one


def evaluate(r: Reader, node: ast.expr, scope: Scope) -> Value:
    """What is known of the value of an expression."""
    handler = _HANDLERS.get(type(node))
    return handler(r, node, scope) if handler else UNKNOWN


def elements(r: Reader, value: Value) -> list[Value] | None:
    """The elements of an iterable, or None if they are not known one by one; [] if there are none."""
    match value:
        case Seq(items=items):
            return list(items[:_ELEMENTS]) or [UNKNOWN]  # it may have been filled meanwhile
        case Mapping():
            return [constant(key) for key in value.items] or [UNKNOWN]
        case Tensor():
            return [view(value)] * 2
        case Const(value=str() as text):
            return [Const(letter) for letter in text] if len(text) <= _ELEMENTS else None
        case Union(options=options):
            found = [elements(r, one) for one in options]
            whole = [one for items in found if items for one in items]
            return whole or None
        case Lazy():
            return value.force() or [UNKNOWN]
        case Opaque():
            return [value]
    return None


def _name(r: Reader, node: ast.Name, scope: Scope) -> Value:
    found = scope.find(node.id)
    if found is not None:
        return UNKNOWN if isinstance(found, Const) and node.id in r.changing else found
    if f"builtins.{node.id}" in r.patched:
        return r.patched[f"builtins.{node.id}"]
    if hasattr(builtins, node.id):
        return Lib(f"builtins.{node.id}")
    if node.id.startswith("__") and node.id.endswith("__"):
        return UNKNOWN
    return _starred_name(scope.module().stars, node.id)


def _starred_name(stars: list[str], name: str) -> Value:
    """A name that only `from m import *` can have brought."""
    for module in reversed(stars):
        root = module.partition(".")[0]
        if root in sys.stdlib_module_names:
            if root in ("math", "operator", "functools", "itertools") and hasattr(
                sys.modules.get(root, math), name
            ):
                return Lib(f"{module}.{name}")
        elif root in ("torch", "triton", "numpy"):
            return Lib(f"{module}.{name}")
    if stars:
        return Opaque(f"{name}, from {' or '.join(stars)}")
    return Opaque(f"the name {name}, which nothing here defines")


def _attribute(r: Reader, node: ast.Attribute, scope: Scope) -> Value:
    return attribute(r, r.evaluate(node.value, scope), node.attr, node)


def _subscript(r: Reader, node: ast.Subscript, scope: Scope) -> Value:
    owner = r.evaluate(node.value, scope)
    return item(r, owner, r.evaluate(node.slice, scope), node)


def item(r: Reader, owner: Value, index: Value, node: ast.AST) -> Value:
    """owner[index]: a launcher of a kernel, a view of a tensor, a gather by one, an element."""
    match owner:
        case Union(options=options):
            return union(*(item(r, one, index, node) for one in options))
        case Kernel():
            return Launcher(owner, empty=_no_program(r, index, node))
        case Tensor():
            chosen = tensors_in([index])
            if chosen:
                return r.compute(f"`{quoted(node)}`", [owner, *chosen], node)
            part = view(owner)
            part.empty = owner.empty or _of_nothing(index)
            return part
        case Seq(items=items):
            place = index.value if isinstance(index, Const) else None
            if isinstance(place, int) and -len(items) <= place < len(items):
                return items[place]
            if isinstance(index, Seq):  # a slice
                return Seq(list(items))
            return union(*items) if items else UNKNOWN
        case Mapping(items=items):
            if isinstance(index, Const) and index.value in items:
                return items[index.value]
            hidden = next((one for one in owner.rest if isinstance(one, Opaque)), None)
            if hidden is not None:
                return hidden
            return union(*owner.all()) if owner.all() else UNKNOWN
        case Const(value=str() as text) if isinstance(index, Const) and isinstance(index.value, int):
            return Const(text[index.value]) if -len(text) <= index.value < len(text) else UNKNOWN
        case Const(value=str() as text) if isinstance(index, Seq):
            bounds: list[Any] = [one.value if isinstance(one, Const) else 0.5 for one in index.items]
            if all(one is None or type(one) is int for one in bounds) and 0 not in bounds[2:]:
                return Const(text[slice(*bounds)])
        case Instance():
            method = owner.cls.find("__getitem__")
            if isinstance(method, Function):
                return r.call(method, [owner, index], {}, node)
            held = owner.attributes.get("__data__")
            missing = owner.cls.find("__missing__")
            absent = [r.call(missing, [owner, index], {}, node)] if isinstance(missing, Function) else []
            return union(*([item(r, held, index, node)] if held is not None else []), *absent, UNKNOWN)
        case Class() | Function() | Partial():
            return owner  # a generic alias
        case Opaque():
            return owner
        case Lib(path=path) if path.endswith(".__dict__") or path == "sys.modules":
            if not (isinstance(index, Const) and isinstance(index.value, str)):
                return Opaque(f"{path} at a computed name")
            within = path.removesuffix(".__dict__")
            return Lib(index.value) if path == "sys.modules" else attribute(r, Lib(within), index.value, node)
    return UNKNOWN


def _of_nothing(index: Value) -> bool:
    """The slice [:0]."""
    return isinstance(index, Seq) and index.items[:2] in ([NONE, Const(0)], [Const(0), Const(0)])


def _no_program(r: Reader, grid: Value, node: ast.AST) -> bool:
    """Whether a grid has an extent of 0."""
    if isinstance(grid, Function | Method | Partial):
        with r.reaching(False):
            grid = r.call(grid, [Mapping({})], {}, node)
    match grid:
        case Const(value=0):
            return True
        case Seq(items=items):
            return any(one == Const(0) for one in items)
    return False


def _lambda(r: Reader, node: ast.Lambda, scope: Scope) -> Value:
    from atrex.fallback.definitions import make_function

    return make_function(r, node, scope, "lambda")


def comprehend(r: Reader, node: Any, scope: Scope) -> Value:
    """A list, set or dict comprehension, or a generator."""
    inner = Scope({}, scope)
    found = list[tuple[Value, Value]]()

    def loop(place: int) -> None:
        if place == len(node.generators):
            if isinstance(node, ast.DictComp):
                found.append((r.evaluate(node.key, inner), r.evaluate(node.value, inner)))
            else:
                found.append((UNKNOWN, r.evaluate(node.elt, inner)))
            return
        from atrex.fallback.statements import assign

        generator = node.generators[place]
        items = elements(r, r.evaluate(generator.iter, inner))
        for one in ([UNKNOWN] if items is None else items)[:_ELEMENTS]:
            assign(r, generator.target, one, inner)
            if all(truth(r.evaluate(test, inner)) is not False for test in generator.ifs):
                loop(place + 1)

    loop(0)
    if isinstance(node, ast.DictComp):
        made = Mapping({})
        for key, value in found:
            if isinstance(key, Const):
                made.items[key.value] = value
            else:
                made.rest.append(value)
        return made
    return Seq([value for _, value in found])


def _sequence(r: Reader, node: ast.Tuple | ast.List | ast.Set, scope: Scope) -> Value:
    found = list[Value]()
    for one in node.elts:
        value = r.evaluate(one, scope)
        if isinstance(one, ast.Starred):
            found += elements(r, value) or [UNKNOWN]
        else:
            found.append(value)
    return Seq(found)


def _dict(r: Reader, node: ast.Dict, scope: Scope) -> Value:
    made = Mapping({})
    for key, given in zip(node.keys, node.values, strict=True):
        value = r.evaluate(given, scope)
        if key is None:
            if isinstance(value, Mapping):
                made.items |= value.items
                made.rest += value.rest
            continue
        known = r.evaluate(key, scope)
        if isinstance(known, Const):
            made.items[known.value] = value
        elif isinstance(known, Lib):
            made.items[known] = value
        else:
            made.rest.append(value)
    return made


def _text(r: Reader, node: ast.JoinedStr, scope: Scope) -> Value:
    parts = list[str]()
    for one in node.values:
        value = r.evaluate(one.value if isinstance(one, ast.FormattedValue) else one, scope)
        plain = not isinstance(one, ast.FormattedValue) or (one.conversion == -1 and one.format_spec is None)
        if not (isinstance(value, Const) and plain):
            return UNKNOWN
        parts.append(str(value.value))
    return Const("".join(parts)) if sum(map(len, parts)) <= _LONGEST else UNKNOWN


def _slice(r: Reader, node: ast.Slice, scope: Scope) -> Value:
    parts = (node.lower, node.upper, node.step)
    values = [r.evaluate(one, scope) if one else NONE for one in parts]
    return Seq([value if isinstance(value, Const) else UNKNOWN for value in values])  # a bound is an integer


def _named(r: Reader, node: ast.NamedExpr, scope: Scope) -> Value:
    value = r.evaluate(node.value, scope)
    scope.holder(node.target.id).names[node.target.id] = value
    return value


def _yield(r: Reader, node: ast.Yield | ast.YieldFrom, scope: Scope) -> Value:
    value = r.evaluate(node.value, scope) if node.value is not None else NONE
    if r.frames:
        given = elements(r, value) if isinstance(node, ast.YieldFrom) else [value]
        r.frames[-1].yields += given or [UNKNOWN]
        r.frames[-1].is_generator = True
    return UNKNOWN


def _call(r: Reader, node: ast.Call, scope: Scope) -> Value:
    function = r.evaluate(node.func, scope)
    args, keywords = list[Value](), dict[str, Value]()
    for one in node.args:
        value = r.evaluate(one, scope)
        if isinstance(one, ast.Starred):
            args += elements(r, value) or [value if isinstance(value, Opaque) else UNKNOWN]
        else:
            args.append(value)
    for keyword in node.keywords:
        value = r.evaluate(keyword.value, scope)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
        elif isinstance(value, Mapping):
            keywords |= {str(key): one for key, one in value.items.items()}
            args += value.rest
    if isinstance(function, Lib) and function.path in OF_SCOPE:
        return OF_SCOPE[function.path](r, args, scope, node)
    return r.call(function, args, keywords, node)


_HANDLERS: dict[type[ast.expr], Callable[[Reader, Any, Scope], Value]] = {
    ast.Name: _name, ast.Attribute: _attribute, ast.Subscript: _subscript, ast.BinOp: binary,
    ast.UnaryOp: unary, ast.Compare: compare, ast.BoolOp: boolean, ast.IfExp: conditional,
    ast.Lambda: _lambda, ast.ListComp: comprehend, ast.SetComp: comprehend, ast.DictComp: comprehend,
    ast.GeneratorExp: comprehend, ast.Tuple: _sequence, ast.List: _sequence, ast.Set: _sequence,
    ast.Dict: _dict, ast.JoinedStr: _text, ast.Slice: _slice, ast.NamedExpr: _named, ast.Yield: _yield,
    ast.YieldFrom: _yield, ast.Call: _call, ast.Constant: lambda r, node, scope: _constant(node),
    ast.Starred: lambda r, node, scope: r.evaluate(node.value, scope),
    ast.Await: lambda r, node, scope: awaited(r.evaluate(node.value, scope)),
    ast.FormattedValue: lambda r, node, scope: r.evaluate(node.value, scope),
}  # fmt: skip


def awaited(value: Value) -> Value:
    """What a coroutine returns."""
    return union(*(value.force() or [UNKNOWN])) if isinstance(value, Lazy) else value


def _constant(node: ast.Constant) -> Value:
    return UNKNOWN if node.value is Ellipsis else constant(node.value)
