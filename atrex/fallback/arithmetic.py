"""Operators: on constants they are carried out, on tensors they compute."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from atrex.fallback.values import (
    NONE,
    UNKNOWN,
    Class,
    Const,
    Function,
    Instance,
    Kernel,
    Lib,
    Mapping,
    Native,
    Opaque,
    Scope,
    Seq,
    Tensor,
    Value,
    options_of,
    quoted,
    union,
)

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader

_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("__add__", operator.add),
    ast.Sub: ("__sub__", operator.sub),
    ast.Mult: ("__mul__", operator.mul),
    ast.Div: ("__truediv__", operator.truediv),
    ast.FloorDiv: ("__floordiv__", operator.floordiv),
    ast.Mod: ("__mod__", operator.mod),
    ast.MatMult: ("__matmul__", operator.matmul),
    ast.BitAnd: ("__and__", operator.and_),
    ast.BitOr: ("__or__", operator.or_),
    ast.BitXor: ("__xor__", operator.xor),
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_LONGEST = 1 << 16  # of a folded string


def truth(value: Value) -> bool | None:
    """Whether a condition is always true or always false; None: it depends."""
    match value:
        case Const(value=known):
            return bool(known)
        case Kernel() | Function() | Class() | Instance() | Native():
            return True
        case Lib(path="typing.TYPE_CHECKING"):
            return False
    return None


def constant(known: object) -> Value:
    """A plain Python value that is known."""
    return Const(known) if isinstance(known, str | bytes | int | float | complex | None) else UNKNOWN


def binary(r: Reader, node: ast.BinOp, scope: Scope) -> Value:
    return combine(r, r.evaluate(node.left, scope), node.op, r.evaluate(node.right, scope), node)


def combine(r: Reader, left: Value, op: ast.operator, right: Value, node: ast.AST) -> Value:
    """A binary operator on two values."""
    name, function = _BINARY.get(type(op), ("", None))
    for one, other in ((left, right), (right, left)):
        for option in options_of(one):
            if isinstance(option, Instance) and name:
                method = option.cls.find(name) or option.cls.find(f"__r{name[2:]}")
                if isinstance(method, Function):
                    return r.call(method, [option, other], {}, node)
    direct = [one for value in (left, right) for one in options_of(value) if isinstance(one, Tensor)]
    if direct:
        return r.compute(f"`{quoted(node)}`", direct, node)
    if isinstance(left, Const) and isinstance(right, Const) and function is not None:
        return _folded(function, left.value, right.value)
    if isinstance(left, Seq) and isinstance(right, Seq) and isinstance(op, ast.Add):
        return Seq([*left.items, *right.items])
    if isinstance(left, Seq) and isinstance(op, ast.Mult):
        return left
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return Mapping({**left.items, **right.items}, [*left.rest, *right.rest])
    return next((one for one in (left, right) if isinstance(one, Opaque)), UNKNOWN)


def _folded(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Value:
    """Arithmetic on constants, if it is small."""
    sizes = [len(one) if isinstance(one, str | bytes) else abs(one or 0) for one in (left, right)]
    if max(sizes) > _LONGEST or (isinstance(left, str | bytes) and function is operator.mod):
        return UNKNOWN  # a format may ask for a width of gigabytes
    try:
        result = function(left, right)
    except Exception:  # noqa: BLE001 - whatever it raises, it would raise there, too
        return UNKNOWN
    return UNKNOWN if isinstance(result, str | bytes) and len(result) > _LONGEST else constant(result)


def unary(r: Reader, node: ast.UnaryOp, scope: Scope) -> Value:
    value = r.evaluate(node.operand, scope)
    if isinstance(node.op, ast.Not):
        known = truth(value)
        return UNKNOWN if known is None else Const(not known)
    direct = [one for one in options_of(value) if isinstance(one, Tensor)]
    if direct:
        return r.compute(f"`{quoted(node)}`", direct, node)
    if isinstance(value, Const) and isinstance(value.value, int | float):
        return Const(-value.value) if isinstance(node.op, ast.USub) else UNKNOWN
    return UNKNOWN


def compare(r: Reader, node: ast.Compare, scope: Scope) -> Value:
    values = [r.evaluate(one, scope) for one in (node.left, *node.comparators)]
    identity = all(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
    direct = [one for value in values for one in options_of(value) if isinstance(one, Tensor)]
    if direct and not identity:
        return r.compute(f"`{quoted(node)}`", direct, node)
    if len(values) == 2 and all(isinstance(value, Const) for value in values):
        compared = _COMPARED.get(type(node.ops[0]))
        return (
            _folded(compared, *(value.value for value in values if isinstance(value, Const)))
            if compared
            else UNKNOWN
        )
    if (
        len(values) == 2
        and values[1] == NONE
        and isinstance(values[0], Tensor | Function | Kernel | Seq | Native)
    ):
        return Const(isinstance(node.ops[0], ast.IsNot | ast.NotEq))
    return UNKNOWN


def boolean(r: Reader, node: ast.BoolOp, scope: Scope) -> Value:
    """`and` and `or`: what is behind the deciding operand is not reached."""
    found = list[Value]()
    for one in node.values:
        value = r.evaluate(one, scope)
        known = truth(value)
        if known is not None and known is isinstance(node.op, ast.Or):
            return value if not found else union(*found, value)
        if known is None:
            found.append(value)
        last = value
    return union(*found) if found else last


def conditional(r: Reader, node: ast.IfExp, scope: Scope) -> Value:
    known = truth(r.evaluate(node.test, scope))
    if known is not None:
        return r.evaluate(node.body if known else node.orelse, scope)
    return union(r.evaluate(node.body, scope), r.evaluate(node.orelse, scope))
