"""Decorators and the like: what makes a kernel, a compiled function, a registered operator of a function."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

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
    Method,
    Partial,
    Seq,
    Tensor,
    Union,
    Value,
    options_of,
)

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader

Args = list[Value]
Keywords = dict[str, Value]


def text(args: Args) -> str:
    """The first argument, if it is a string that is known; else ""."""
    return args[0].value if args and isinstance(args[0], Const) and isinstance(args[0].value, str) else ""


def kernel(r: Reader, path: str, args: Args, node: ast.AST) -> Value:
    """A kernel of a function of the file; with options only, the decorator to come."""
    for one in args:
        if isinstance(one, Function):
            return r.define(one.name, one.node)
    return Builtin(lambda inner, _keywords, _node: kernel(r, path, inner, node) if inner else UNKNOWN)


def wrapped(path: str, args: Args) -> Value:
    """What is decorated, or a decorator that gives it back."""
    keep = (Function, Kernel, Class, Method, Partial, Builtin, Tensor, Instance, Seq, Bound)
    if path == "typing.cast":
        return args[1] if len(args) > 1 else UNKNOWN
    plain = [one for value in args for one in options_of(value) if isinstance(one, keep)]
    if path in ("triton.autotune", "triton.heuristics", "functools.wraps") or not plain:
        return Builtin(lambda inner, _keywords, _node: inner[0] if inner else UNKNOWN)
    return Tensor("data") if path.startswith("torch.nn.") and isinstance(plain[0], Tensor) else args[0]


def compiled(path: str, args: Args, keywords: Keywords) -> Value:
    """A function whose operations a compiler turns into kernels, or a decorator that makes one."""
    target = args[0] if args else keywords.get("model", UNKNOWN)
    if isinstance(target, Const) or target == UNKNOWN:
        return Builtin(lambda inner, _keywords, _node: Partial(inner[0], through=path) if inner else UNKNOWN)
    if path.endswith("checkpoint"):
        return Partial(target, list(args[1:]), through=path)
    return Partial(target, through=path)


def _registered(choices: Union, args: Args) -> Value:
    """One more function of a single dispatch, given at once or to the decorator."""

    def put(inner: Args, _keywords: Keywords, _node: ast.AST) -> Value:
        choices.options += [one for one in inner if isinstance(one, Function)]
        return inner[0] if inner else UNKNOWN

    functions = [one for one in args if isinstance(one, Function)]
    choices.options += functions
    return functions[0] if functions else Builtin(put)


def register(r: Reader, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """torch.library.custom_op and triton_op: the function under a name, or a decorator that puts it there."""
    name = text(args[:1])

    def put(inner: Args, _keywords: Keywords, _node: ast.AST) -> Value:
        if inner:
            r.registered[name.partition(".")[0]] = inner[0]
        return inner[0] if inner else UNKNOWN

    functions: Args = [one for one in args[1:] if isinstance(one, Function | Partial | Method)]
    return put(functions[:1], {}, node) if functions else Builtin(put)


def impl(r: Reader, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return register(r, [one for one in args if not isinstance(one, Lib | LibObject)], keywords, node)


def property_(r: Reader, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    for one in args[:1]:
        if isinstance(one, Function):
            one.kind = "property"
    return args[0] if args else UNKNOWN


def partial(r: Reader, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return Partial(args[0], list(args[1:]), dict(keywords)) if args else UNKNOWN


def of_callable(r: Reader, owner: Value, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """What hangs on a function: decorators of a registered operator, a wrapped call."""
    if name in ("__call__", "forward", "apply"):
        return r.call(owner, args, keywords, node)
    if name in (
        "register_kernel",
        "register_fake",
        "register_autograd",
        "register_vmap",
        "register_torch_dispatch",
    ):
        if args and isinstance(args[0], Function):
            return args[0]
        return Builtin(lambda inner, _keywords, _node: inner[0] if inner else UNKNOWN)
    if name == "register" and isinstance(owner, Partial) and isinstance(owner.function, Union):
        return _registered(owner.function, args)
    if name in ("setter", "getter", "deleter", "register"):
        return Builtin(lambda inner, _keywords, _node: inner[0] if inner else UNKNOWN)
    return UNKNOWN
