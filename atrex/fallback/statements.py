"""Statements: what they bind, and whether the next one is reached."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from atrex.fallback.arithmetic import truth
from atrex.fallback.calls import routed
from atrex.fallback.definitions import class_, function, import_, import_from
from atrex.fallback.expressions import elements
from atrex.fallback.values import (
    NONE,
    UNKNOWN,
    Class,
    Const,
    Function,
    Instance,
    Lazy,
    Lib,
    Mapping,
    Opaque,
    Scope,
    Seq,
    Tensor,
    Value,
    options_of,
    quoted,
    tensors_in,
    union,
)

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader

_ROUNDS = 2  # a loop's body is read so often: what it binds late is then known early
_UNROLLED = 8


def run(r: Reader, body: list[ast.stmt], scope: Scope) -> bool:
    """Run statements in order; False if one of them ends the block."""
    for statement in body:
        r.step()
        handler = _HANDLERS.get(type(statement))
        if handler is not None and handler(r, statement, scope) is False:
            return False
    return True


def _branches(r: Reader, scope: Scope, ways: list[Callable[[], bool]]) -> bool:
    """Several ways from here on; afterwards a name stands for what any way that goes on has bound."""
    before, after, goes_on = dict(scope.names), list[dict[str, Value]](), False
    for way in ways:
        scope.names = dict(before)
        if way():
            goes_on = True
            after.append(scope.names)
    scope.names = {}
    for names in after or [before]:
        for name, value in names.items():
            known = scope.names.get(name)
            scope.names[name] = value if known is None or known is value else union(known, value)
    return goes_on


def _if(r: Reader, node: ast.If, scope: Scope) -> bool:
    known = truth(r.evaluate(node.test, scope))
    if known is not None:
        return run(r, node.body if known else node.orelse, scope)
    return _branches(r, scope, [lambda: run(r, node.body, scope), lambda: run(r, node.orelse, scope)])


def _while(r: Reader, node: ast.While, scope: Scope) -> bool:
    known = truth(r.evaluate(node.test, scope))
    if known is False:
        return run(r, node.orelse, scope)
    for _ in range(_ROUNDS):
        _branches(r, scope, [lambda: run(r, node.body, scope), lambda: True])
    return True


def _for(r: Reader, node: ast.For, scope: Scope) -> bool:
    iterated = r.evaluate(node.iter, scope)
    if (
        isinstance(iterated, Seq)
        and not iterated.items
        and isinstance(node.iter, ast.Tuple | ast.List | ast.Call)
    ):
        return run(r, node.orelse, scope)  # nothing to loop over
    items = elements(r, iterated)
    for item in (items or [UNKNOWN] * _ROUNDS)[:_UNROLLED]:
        assign(r, node.target, item, scope)
        _branches(r, scope, [lambda: run(r, node.body, scope), lambda: True])
    run(r, node.orelse, scope)
    return True


def _try(r: Reader, node: ast.Try, scope: Scope) -> bool:
    """The block, and each handler from anywhere within it."""
    before = dict(scope.names)

    def block() -> bool:
        return run(r, node.body, scope) and run(r, node.orelse, scope)

    def handler(one: ast.ExceptHandler) -> Callable[[], bool]:
        def way() -> bool:
            run(r, node.body, scope)  # silently: only to learn what it may have bound
            if one.name:
                scope.names[one.name] = UNKNOWN
            return _handled(r, one, scope)

        return way

    if _imports_only(node.body):
        goes_on = _branches(r, scope, [block])  # what is imported here is there where this is run
    else:
        goes_on = _branches(r, scope, [block, *(handler(one) for one in node.handlers)])
    if not scope.names:
        scope.names = before
    return run(r, node.finalbody, scope) and goes_on


def _imports_only(body: list[ast.stmt]) -> bool:
    return all(isinstance(one, ast.Import | ast.ImportFrom | ast.Pass) for one in body)


def _handled(r: Reader, one: ast.ExceptHandler, scope: Scope) -> bool:
    r.handlers += 1
    try:
        return run(r, one.body, scope)
    finally:
        r.handlers -= 1


def _with(r: Reader, node: ast.With, scope: Scope) -> bool:
    for item in node.items:
        manager = r.evaluate(item.context_expr, scope)
        entered = manager
        for one in options_of(manager):
            if isinstance(one, Instance):
                for name in ("__enter__", "__exit__"):
                    method = one.cls.find(name)
                    if isinstance(method, Function):
                        given: list[Value] = [one] if name == "__enter__" else [one, NONE, NONE, NONE]
                        result = r.call(method, given, {}, item.context_expr)
                        entered = result if name == "__enter__" else entered
                routed(r, one, item.context_expr)
            elif isinstance(one, Lazy):  # a contextmanager of the file
                entered = (one.force() or [UNKNOWN])[0]
        if item.optional_vars is not None:
            assign(r, item.optional_vars, entered, scope)
    return run(r, node.body, scope)


def _match(r: Reader, node: ast.Match, scope: Scope) -> bool:
    subject = r.evaluate(node.subject, scope)

    def way(case: ast.match_case) -> Callable[[], bool]:
        def taken() -> bool:
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if name:
                    scope.names[name] = subject
            if case.guard is not None:
                r.evaluate(case.guard, scope)
            return run(r, case.body, scope)

        return taken

    last = node.cases[-1]
    open_ended = last.guard is None and isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
    ways = [way(case) for case in node.cases]
    return _branches(r, scope, ways if open_ended else [*ways, lambda: True])


def _return(r: Reader, node: ast.Return, scope: Scope) -> bool:
    value = r.evaluate(node.value, scope) if node.value is not None else NONE
    if r.frames:
        r.frames[-1].returns.append(value)
    return False


def _raise(r: Reader, node: ast.Raise, scope: Scope) -> bool:
    if node.exc is not None:
        r.evaluate(node.exc, scope)
    return False


def _leave(r: Reader, node: ast.stmt, scope: Scope) -> bool:
    return False


def _expression(r: Reader, node: ast.Expr, scope: Scope) -> None:
    r.evaluate(node.value, scope)


def _assign(r: Reader, node: ast.Assign, scope: Scope) -> None:
    value = r.evaluate(node.value, scope)
    for target in node.targets:
        assign(r, target, value, scope)


def _annotated(r: Reader, node: ast.AnnAssign, scope: Scope) -> None:
    if node.value is not None:
        assign(r, node.target, r.evaluate(node.value, scope), scope)
    elif scope.is_class and isinstance(node.target, ast.Name):
        scope.names.setdefault(node.target.id, UNKNOWN)  # a field


def _augmented(r: Reader, node: ast.AugAssign, scope: Scope) -> None:
    load: Any = ast.copy_location(ast.BinOp(left=_loaded(node.target), op=node.op, right=node.value), node)
    ast.fix_missing_locations(load)
    value = r.evaluate(load, scope)
    if not isinstance(node.target, ast.Subscript):
        assign(r, node.target, value, scope)


def _loaded(target: ast.expr) -> ast.expr:
    copied: ast.expr = ast.parse(ast.unparse(target), mode="eval").body
    return ast.copy_location(copied, target)


def _assert(r: Reader, node: ast.Assert, scope: Scope) -> None:
    r.evaluate(node.test, scope)


def _delete(r: Reader, node: ast.Delete, scope: Scope) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            scope.names.pop(target.id, None)


def _global(r: Reader, node: ast.Global, scope: Scope) -> None:
    scope.globals |= set(node.names)


def _nonlocal(r: Reader, node: ast.Nonlocal, scope: Scope) -> None:
    scope.nonlocals |= set(node.names)


def assign(r: Reader, target: ast.expr, value: Value, scope: Scope) -> None:
    """Bind a name, an attribute, an element or several of them."""
    match target:
        case ast.Name(id=name):
            scope.holder(name).names[name] = value
        case ast.Starred(value=inner):
            assign(r, inner, value, scope)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            items = elements(r, value)
            starred = any(isinstance(one, ast.Starred) for one in targets)
            for place, one in enumerate(targets):
                if items and not starred and len(items) == len(targets):
                    assign(r, one, items[place], scope)
                else:
                    assign(r, one, union(*items) if items else _part(value), scope)
        case ast.Attribute(value=owner, attr=name):
            set_attribute(r, r.evaluate(owner, scope), name, value, target)
        case ast.Subscript(value=owner, slice=index):
            _set_item(r, r.evaluate(owner, scope), r.evaluate(index, scope), value, target)


def _part(value: Value) -> Value:
    return value if isinstance(value, Tensor | Opaque) else UNKNOWN


def set_attribute(r: Reader, owner: Value, name: str, value: Value, node: ast.AST) -> None:
    """What an object, a class or a library's module is told to hold."""
    for one in options_of(owner):
        match one:
            case Instance():
                known = one.attributes.get(name)
                one.attributes[name] = value if known is None else union(known, value)
            case Class():
                one.scope.names[name] = value
            case Lib(path=path):
                r.patched[f"{path}.{name}"] = value
                if path.partition(".")[0] in ("torch", "builtins", "triton"):
                    r.report("unresolved", f"{path}.{name} = …", node, reason="replaces what others call")
            case Tensor() if name == "data":
                one.fill()


def _set_item(r: Reader, owner: Value, index: Value, value: Value, node: ast.Subscript) -> None:
    """A copy into a slice is glue; a scatter by an index tensor is compute."""
    for one in options_of(owner):
        match one:
            case Mapping():
                if isinstance(index, Const):
                    one.items[index.value] = value
                else:
                    one.rest.append(value)
            case Seq():
                one.items.append(value)
            case Lib(path="sys.modules") if isinstance(index, Const):
                r.modules[str(index.value)] = value
            case Instance() if isinstance(held := one.attributes.get("__data__"), Mapping):
                held.rest.append(value)
            case Tensor():
                chosen = tensors_in([index])
                if chosen:
                    r.compute(f"`{quoted(node)} = …`", [one, *chosen, *tensors_in([value])], node)
                elif tensors_in([value]):
                    r.promote([value])
                    one.fill()


_HANDLERS: dict[type[ast.stmt], Callable[[Reader, Any, Scope], bool | None]] = {
    ast.If: _if, ast.While: _while, ast.For: _for, ast.AsyncFor: _for, ast.Try: _try, ast.With: _with,
    ast.AsyncWith: _with, ast.Match: _match, ast.Return: _return, ast.Raise: _raise, ast.Break: _leave,
    ast.Continue: _leave, ast.Expr: _expression, ast.Assign: _assign, ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented, ast.Assert: _assert, ast.Delete: _delete, ast.Global: _global,
    ast.Nonlocal: _nonlocal, ast.Import: import_, ast.ImportFrom: import_from,
    ast.FunctionDef: function, ast.AsyncFunctionDef: function, ast.ClassDef: class_,
}  # fmt: skip
if hasattr(ast, "TryStar"):
    _HANDLERS[ast.TryStar] = _try
