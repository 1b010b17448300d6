"""Python's own functions, as far as tensors, names and callables go through them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from atrex.fallback.attributes import attribute
from atrex.fallback.expressions import elements
from atrex.fallback.operations import names
from atrex.fallback.values import (
    NONE,
    UNKNOWN,
    Class,
    Const,
    Function,
    Instance,
    Kind,
    Lib,
    Mapping,
    Opaque,
    Seq,
    Tensor,
    Value,
    options_of,
    tensors_in,
    union,
)

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader

_TO_HOST = names(
    """int float bool len str repr print format complex hash id type isinstance issubclass callable
    hasattr range slice bytes ord any all dir"""
)
_ON_TENSORS = {"sum", "max", "min", "abs", "pow", "round", "divmod"}
_SEQUENCES = {"list", "tuple", "set", "frozenset", "sorted", "reversed", "iter", "enumerate", "zip"}


def call(r: Reader, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
    """What a built-in function gives."""
    if name in ("getattr", "setattr", "delattr", "hasattr"):
        return _attributes(r, name, args, node)
    if name in ("property", "staticmethod", "classmethod"):
        return _kind(name, args)
    if name in ("map", "filter") and args:
        items = elements(r, args[1]) if len(args) > 1 else None
        others = [(elements(r, one) or [UNKNOWN]) for one in args[2:]]
        made = [
            r.call(args[0], [item, *(other[min(place, len(other) - 1)] for other in others)], {}, node)
            for place, item in enumerate(items or [UNKNOWN])
        ]
        return Seq(made if name == "map" else items or [UNKNOWN])
    if name == "__import__":
        return r.call(Lib("importlib.import_module"), args, {}, node)
    if name in _ON_TENSORS:
        return _arithmetic(r, name, args, node)
    if name in _SEQUENCES:
        return _sequence(r, name, args)
    if name == "dict":
        inner = args[0] if args and isinstance(args[0], Mapping) else Mapping({})
        return Mapping(inner.items | dict(keywords.items()), list(inner.rest))
    if name == "next" and args:
        items = elements(r, args[0])
        return union(*(items or [UNKNOWN]), *args[1:])
    if name in _TO_HOST:
        for tensor in tensors_in(args):
            tensor.pending = ()
        if name in ("str", "int", "float") and len(args) == 1 and isinstance(args[0], Const):
            return _converted(name, args[0])
        if name == "range" and args == [Const(0)]:
            return Seq([])
        return UNKNOWN
    if name == "chr" and len(args) == 1 and isinstance(args[0], Const):
        value = args[0].value
        return (
            Const(chr(value))
            if name == "chr" and isinstance(value, int) and 0 <= value < 0x110000
            else UNKNOWN
        )
    if name == "compile":
        known = args[0] if args else UNKNOWN
        return known if isinstance(known, Const) else Opaque("compile of a computed text")
    return UNKNOWN


def _converted(name: str, given: Const) -> Value:
    kinds: dict[str, type] = {"str": str, "int": int, "float": float}
    try:
        return Const(kinds[name](given.value))
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN


def _attributes(r: Reader, name: str, args: list[Value], node: ast.AST) -> Value:
    """getattr of a name that is known is an attribute; of one that is computed it may be anything."""
    from atrex.fallback.statements import set_attribute

    if name in ("delattr", "hasattr") or len(args) < 2:
        return UNKNOWN
    wanted = options_of(args[1])
    known = [one.value for one in wanted if isinstance(one, Const) and isinstance(one.value, str)]
    if name == "setattr":
        for text in known:
            set_attribute(r, args[0], text, args[2] if len(args) > 2 else UNKNOWN, node)
        return NONE
    if len(known) == len(wanted):
        return union(*(attribute(r, args[0], text, node) for text in known))
    owners = options_of(args[0])
    if any(isinstance(one, Lib | Tensor | Opaque | Instance | Class) for one in owners):
        return Opaque("an attribute whose name is computed")
    return UNKNOWN


def _kind(name: str, args: list[Value]) -> Value:
    kinds: dict[str, Kind] = {"property": "property", "staticmethod": "static", "classmethod": "class"}
    for one in args[:1]:
        if isinstance(one, Function):
            one.kind = kinds[name]
    return args[0] if args else UNKNOWN


def _arithmetic(r: Reader, name: str, args: list[Value], node: ast.AST) -> Value:
    direct = list[Tensor]()
    for value in args:
        for one in options_of(value):
            direct += [one] if isinstance(one, Tensor) else tensors_in([one]) if isinstance(one, Seq) else []
    if direct:
        return r.compute(name, direct, node)
    for value in args:
        for one in options_of(value):
            if isinstance(one, Instance):
                method = one.cls.find(f"__{name}__")
                if isinstance(method, Function):
                    return r.call(method, [one], {}, node)
    return UNKNOWN


def _sequence(r: Reader, name: str, args: list[Value]) -> Value:
    if name == "zip":
        columns = [elements(r, one) for one in args]
        longest = max((len(column) for column in columns if column), default=1)
        rows = [
            Seq([column[min(place, len(column) - 1)] if column else UNKNOWN for column in columns])
            for place in range(longest)
        ]
        return Seq(list(rows))
    items = elements(r, args[0]) if args else []
    if name in ("reversed", "sorted", "set", "frozenset") and items is not None:
        if name == "reversed":
            return Seq(items[::-1])
        if all(isinstance(one, Const) for one in items) and len(items) > 1:
            return Seq([UNKNOWN])  # in an order that is not followed
    if items is None:
        return Seq([UNKNOWN]) if name == "enumerate" else UNKNOWN
    return Seq([Seq([UNKNOWN, one]) for one in items]) if name == "enumerate" else Seq(items)
