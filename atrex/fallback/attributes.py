"""Attributes: of libraries, tensors, objects and classes of the file, functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from atrex.fallback import operations
from atrex.fallback.values import (
    UNKNOWN,
    Bound,
    Builtin,
    Class,
    Const,
    Function,
    Instance,
    Kernel,
    Lib,
    LibObject,
    Mapping,
    Method,
    Native,
    Opaque,
    Partial,
    Seq,
    Super,
    Tensor,
    Union,
    Value,
    is_module,
    union,
    view,
)

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader


def attribute(r: Reader, owner: Value, name: str, node: ast.AST) -> Value:
    """An attribute of a value."""
    if name == "cell_contents":
        return owner
    match owner:
        case Union(options=options):
            return union(*(attribute(r, one, name, node) for one in options))
        case Lib(path=path):
            return r.patched.get(f"{path}.{name}", Lib(f"{path}.{name}"))
        case Tensor():
            if name == "shape" and owner.empty:
                return Seq([Const(0), UNKNOWN, UNKNOWN, UNKNOWN])
            if name in operations.METADATA:
                return UNKNOWN
            return view(owner) if name in operations.VIEWS else Bound(owner, name)
        case Instance():
            return _of_instance(r, owner, name, node)
        case Class():
            return _of_class(r, owner, name)
        case Super(instance=instance, cls=cls):
            holder = instance.cls if isinstance(instance, Instance) else cls
            if name == "__new__" and r.making is not None:
                made = r.making
                return Builtin(lambda _args, _keywords, _node: made)
            found = holder.find(name, after=cls)
            return Method(found, instance) if isinstance(found, Function) else found or UNKNOWN
        case LibObject(path=path):
            if path.startswith("torch.nn.") and name in ("weight", "bias", "in_proj_weight"):
                return Tensor("data")
            return Bound(owner, name)
        case Kernel():
            return owner if name == "fn" else Bound(owner, name)
        case Native():
            return Partial(owner, through=name)
        case Builtin() if name in ("to", "cuda", "eval", "half", "bfloat16", "float", "train", "double"):
            return Builtin(lambda _args, _keywords, _node: owner)
        case Partial(function=function) if name in ("func", "__wrapped__", "_torchdynamo_orig_callable"):
            return function
        case Function() if name == "__wrapped__":
            return owner
        case Function() if name in ("__closure__", "__defaults__", "__globals__", "__code__"):
            return _inside(owner, name)
        case Const() | Seq() | Mapping() | Partial() | Function() | Method():
            return Bound(owner, name)
    return owner if isinstance(owner, Opaque) else UNKNOWN


def _of_instance(r: Reader, owner: Instance, name: str, node: ast.AST) -> Value:
    if name in owner.attributes:
        known = owner.attributes[name]
        return UNKNOWN if isinstance(known, Const) and name in r.changing else known
    found = owner.cls.find(name)
    if isinstance(found, Instance) and isinstance(getter := found.cls.find("__get__"), Function):
        return r.call(getter, [found, owner, owner.cls], {}, node)
    match found:
        case Function(kind="static"):
            return found
        case Function(kind="class"):
            return Method(found, owner.cls)
        case Function(kind="property"):
            return r.call(found, [owner], {}, node)
        case Function() | Partial():
            return bound(found, owner)
        case None if is_module(owner) and name in ("register_forward_hook", "register_forward_pre_hook"):
            return Builtin(lambda args, _keywords, _node: _hooked(owner, args))
        case None:
            fallback = owner.cls.find("__getattr__")
            if isinstance(fallback, Function):
                return r.call(fallback, [owner, Const(name)], {}, node)
            return Mapping(dict(owner.attributes.items())) if name == "__dict__" else UNKNOWN
    return found


def _inside(function: Function, name: str) -> Value:
    """What a function holds besides its text."""
    if name == "__closure__":
        held = function.scope.names if function.scope.parent is not None else {}
        return Seq(list(held.values()))
    if name == "__defaults__":
        return Seq(list(function.defaults.values()))
    if name == "__globals__":
        return Mapping(dict(function.scope.module().names.items()))
    return Opaque("a code object")


def bound(found: Value, owner: Value) -> Value:
    """What a class holds, with the object as its first argument."""
    if isinstance(found, Partial) and isinstance(found.function, Function):
        return Partial(found.function, [owner, *found.args], found.keywords, found.through)
    return Method(found, owner) if isinstance(found, Function) else found


def _hooked(owner: Instance, hooks: list[Value]) -> Value:
    """A hook that runs after (or before) each call of a module."""
    known = owner.attributes.setdefault("__hooks__", Seq([]))
    if isinstance(known, Seq):
        known.items += hooks[:1]
    return UNKNOWN


def _of_class(r: Reader, owner: Class, name: str) -> Value:
    found = owner.find(name)
    if isinstance(found, Const) and name in r.changing:
        return UNKNOWN
    if name == "apply" and Lib("torch.autograd.Function") in owner.order():
        return Bound(owner, "apply")
    if isinstance(found, Function) and found.kind == "class":
        return Method(found, owner)
    return found if found is not None else UNKNOWN
