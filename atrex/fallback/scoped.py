"""Calls that look at the names around them: super, globals, eval, exec."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from atrex.fallback.values import (
    NONE,
    UNKNOWN,
    Class,
    Const,
    Mapping,
    Opaque,
    Scope,
    Super,
    Value,
    quoted,
)

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader


def _super(r: Reader, args: list[Value], scope: Scope, node: ast.Call) -> Value:
    cls, first = scope.find("__class__"), scope.find("__self__")
    return Super(first or UNKNOWN, cls) if isinstance(cls, Class) else UNKNOWN


def _names(r: Reader, args: list[Value], scope: Scope, node: ast.Call) -> Value:
    """globals(), locals() and vars(): the names themselves."""
    if args:
        from atrex.fallback.attributes import attribute

        return attribute(r, args[0], "__dict__", node)
    within = node.func.id != "globals" if isinstance(node.func, ast.Name) else False
    names: dict[object, Value] = dict((scope if within else scope.module()).names.items())
    return Mapping(names, [Opaque("a name that is computed")])


def _namespace(given: list[Value], scope: Scope) -> Scope:
    """The scope that exec writes to: a dict that it was given, or the one around it."""
    for one in given:
        if isinstance(one, Mapping):
            return Scope(_Names(one), None)
    return scope


class _Names(dict[str, Value]):
    """The names of a namespace that also is a dict of the file."""

    def __init__(self, mapping: Mapping) -> None:
        super().__init__({str(key): value for key, value in mapping.items.items()})
        self.mapping = mapping

    def __setitem__(self, name: str, value: Value) -> None:
        super().__setitem__(name, value)
        self.mapping.items[name] = value


def _executed(r: Reader, args: list[Value], scope: Scope, node: ast.Call) -> Value:
    """eval and exec of a text that is known are read like the file; others are not."""
    what = args[0] if args else UNKNOWN
    if isinstance(what, Const) and isinstance(what.value, str | bytes):
        text = what.value if isinstance(what.value, str) else what.value.decode("utf-8", "replace")
        try:
            tree = ast.parse(text.strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            tree = None
        if tree is not None:
            for part in ast.walk(tree):
                if hasattr(part, "lineno"):
                    ast.copy_location(part, node)
            if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr):
                return r.evaluate(tree.body[0].value, scope)
            r.run(tree.body, _namespace(args[1:], scope))
            return NONE
    r.report("unresolved", quoted(node.func), node)
    return Opaque(f"{quoted(node.func)} of a text that is computed")


OF_SCOPE: dict[str, Callable[[Reader, list[Value], Scope, ast.Call], Value]] = {
    "builtins.super": _super, "builtins.globals": _names, "builtins.locals": _names, "builtins.vars": _names,
    "builtins.eval": _executed, "builtins.exec": _executed,
}  # fmt: skip
