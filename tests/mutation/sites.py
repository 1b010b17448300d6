"""What fault operators share: sites of a source, and small questions about its nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.mutation.source import Edit, Source

Site = tuple[ast.AST, str, tuple[Edit, ...]]  # where, what is wrong, and the change
Sites = Iterator[Site]


def one(code: Source, node: ast.AST, text: str, note: str = "") -> Site:
    """A site whose node is replaced by a text."""
    return node, note or f"{short(code.segment(node))} -> {short(text)}", (code.replace(node, text),)


def short(text: str) -> str:
    """A text in one short line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else f"{flat[:40]} … {flat[-16:]}"


def binary_values(code: Source, *operators: type[ast.operator]) -> Iterator[ast.BinOp]:
    """Products, sums … of values in kernels."""
    for node in code.walk(code.kernels):
        if isinstance(node, ast.BinOp) and isinstance(node.op, operators) and code.is_data(node):
            yield node


def number(node: ast.AST) -> float | None:
    """The value of a literal, or None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return None if isinstance(node.value, bool) else node.value
    return None


def names(node: ast.AST) -> set[str]:
    """Names and attributes in an expression."""
    plain = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    return plain | {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}


def is_eps(node: ast.AST) -> bool:
    """Whether an expression speaks of an eps."""
    return any("eps" in name.lower() for name in names(node))


def same(a: ast.AST, b: ast.AST) -> bool:
    """Whether two expressions read alike."""
    return ast.dump(a) == ast.dump(b)


def call_text(code: Source, call: ast.Call, drop: set[ast.AST]) -> str:
    """A call without some of its arguments."""
    kept = [code.segment(argument) for argument in call.args if argument not in drop]
    kept += [f"{k.arg}={code.segment(k.value)}" for k in call.keywords if k.value not in drop]
    return f"{code.segment(call.func)}({', '.join(kept)})"


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """An argument of a call, by position or by name."""
    named = next((k.value for k in call.keywords if k.arg == name), None)
    return named or (call.args[position] if len(call.args) > position else None)
