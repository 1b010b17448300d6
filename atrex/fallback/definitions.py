"""Imports, functions and classes: what a file defines."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from atrex.fallback.attributes import attribute
from atrex.fallback.values import (
    Class,
    Const,
    Function,
    Lib,
    Mapping,
    Scope,
    Seq,
    Value,
)

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader


def import_(r: Reader, node: ast.Import, scope: Scope) -> None:
    for one in node.names:
        if one.name in r.modules:
            scope.names[one.asname or one.name] = r.modules[one.name]
        elif one.asname:
            scope.names[one.asname] = Lib(one.name)
        else:
            root = one.name.partition(".")[0]
            scope.names[root] = Lib(root)


def import_from(r: Reader, node: ast.ImportFrom, scope: Scope) -> None:
    module = "." * node.level + (node.module or "")
    if module == "__future__":
        return
    for one in node.names:
        if one.name == "*":
            scope.module().stars.append(module)
        else:
            made = r.modules.get(module)
            held = attribute(r, made, one.name, node) if made is not None else None
            scope.names[one.asname or one.name] = held or Lib(f"{module}.{one.name}")


def function(r: Reader, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
    value: Value = make_function(r, node, scope, node.name)
    for decorator in reversed(node.decorator_list):
        value = r.call(r.evaluate(decorator, scope), [value], {}, decorator)
    scope.names[node.name] = value


def make_function(
    r: Reader, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope, name: str
) -> Function:
    """A function with its defaults, which are evaluated here and now."""
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults: dict[str, Value] = {}
    for arg, default in zip(reversed(positional), reversed(args.defaults), strict=False):
        defaults[arg.arg] = r.evaluate(default, scope)
    for arg, given in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if given is not None:
            defaults[arg.arg] = r.evaluate(given, scope)
    return Function(node, scope, name, defaults)


def class_(r: Reader, node: ast.ClassDef, scope: Scope) -> None:
    bases = [r.evaluate(base, scope) for base in node.bases if not isinstance(base, ast.Starred)]
    inner = Scope({}, scope, is_class=True)
    made = Class(node.name, bases, inner, node.lineno)
    scope.names[node.name] = made
    r.run(node.body, inner)
    for value in inner.names.values():
        if isinstance(value, Function):
            value.owner = made
    _metaclass(r, node, made, scope)
    for one in made.order()[1:]:
        hook = one.scope.names.get("__init_subclass__") if isinstance(one, Class) else None
        if isinstance(hook, Function):
            given = {word.arg: r.evaluate(word.value, scope) for word in node.keywords if word.arg}
            r.call(hook, [made], given, node)
            break
    value_: Value = made
    for decorator in reversed(node.decorator_list):
        value_ = r.call(r.evaluate(decorator, scope), [value_], {}, decorator)
    scope.names[node.name] = value_ if isinstance(value_, Class) else made


def _metaclass(r: Reader, node: ast.ClassDef, made: Class, scope: Scope) -> None:
    """What the metaclass, its own or that of a base, does with a class."""
    given = next((word.value for word in node.keywords if word.arg == "metaclass"), None)
    if given is not None:
        made.scope.names["__metaclass__"] = r.evaluate(given, scope)
    meta = made.find("__metaclass__")
    if not isinstance(meta, Class):
        return
    parts: list[Value] = [Const(node.name), Seq(list(made.bases)), Mapping(dict(made.scope.names.items()))]
    r.making = made
    for name, first in (("__new__", meta), ("__init__", made)):
        hook = meta.find(name)
        if isinstance(hook, Function):
            r.call(hook, [first, *parts], {}, node)
    r.making = None
