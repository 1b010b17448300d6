"""Faults of Triton kernels, each as a generator of changes to a source; one change is one mutant.

Not among them: approximate intrinsics in place of exact ones, which a contract's bound may well allow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.mutation.sites import (
    Sites,
    argument,
    binary_values,
    call_text,
    is_eps,
    number,
    one,
    same,
    short,
)
from tests.mutation.source import Edit, Source, call_name, tl_name

_FLIPPED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_SYMBOL = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_MASK_AT = {"load": 1, "store": 2, "atomic_add": 2, "atomic_max": 2, "atomic_min": 2, "atomic_xchg": 2}
_QUOTIENTS = ("div_rn", "fdiv")
_TINY = 1e-3  # constants below this in a maximum are floors under a scale


# -- masks and bounds ----------------------------------------------------------------------------------


def drop_mask(code: Source) -> Sites:
    """An access without its mask, a conjunction without one side, a value where a mask should choose."""
    for node in code.walk(code.kernels):
        if isinstance(node, ast.Call) and (name := tl_name(node)) in _MASK_AT:
            mask = argument(node, _MASK_AT[name], "mask")
            other = argument(node, 2, "other") if name == "load" else None
            if mask is not None and not (isinstance(mask, ast.Constant)):
                drop: set[ast.AST] = {part for part in (mask, other) if part is not None}
                yield one(code, node, call_text(code, node, drop), f"tl.{name} without its mask")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            if number(node.left) is None and number(node.right) is None:
                yield one(code, node, code.operand(node.left))
                yield one(code, node, code.operand(node.right))
        elif isinstance(node, ast.Call) and tl_name(node) == "where" and len(node.args) == 3:
            chosen, rest = node.args[1:]
            yield one(code, node, code.operand(rest if number(chosen) is not None else chosen))


def off_by_one(code: Source) -> Sites:
    """A bound one short, a grid one short, a constant one left out of a sum."""
    for node in code.walk(code.kernels):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt):
            bound = node.comparators[0]
            yield one(code, bound, f"{code.operand(bound)} - 1", f"{short(code.segment(node))} - 1")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and _is_one(node.right):
            yield one(code, node, code.operand(node.left))
    for extent in _grid_extents(code):
        yield one(code, extent, f"{code.operand(extent)} - 1", f"grid {short(code.segment(extent))} - 1")


def _is_one(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == 1


def _grid_extents(code: Source) -> Iterator[ast.expr]:
    """What the grids of launches are made of, through a name or a lambda."""
    seen = set[ast.AST]()
    for node in code.walk(code.hosts):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)):
            continue
        grid: ast.AST | None = node.func.slice
        if isinstance(grid, ast.Name):
            grid = _value_of(code, node, grid.id)
        if isinstance(grid, ast.Lambda):
            grid = grid.body
        for extent in grid.elts if isinstance(grid, ast.Tuple) else []:
            if number(extent) is None and not isinstance(extent, ast.Starred) and extent not in seen:
                seen.add(extent)
                yield extent


def _value_of(code: Source, user: ast.AST, name: str) -> ast.AST | None:
    """What a name was assigned before its use in the same function."""
    found: ast.AST | None = None
    for node in ast.walk(code.function(user) or code.tree):
        if isinstance(node, ast.Assign) and node.lineno <= getattr(user, "lineno", 0):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    found = node.value
    return found


def comparison_flip(code: Source) -> Sites:
    """`<` for `<=`, and so on."""
    for node in code.walk([*code.kernels, *code.hosts]):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _FLIPPED:
            left, right = code.segment(node.left), code.segment(node.comparators[0])
            if not (code.function(node) in code.hosts and number(node.comparators[0]) == 0):
                start, stop = code.span(node.left)[1], code.span(node.comparators[0])[0]
                between = code.raw[start:stop].decode()
                old, new = _SYMBOL[type(node.ops[0])], _FLIPPED[type(node.ops[0])]
                edit = Edit(start, stop, between.replace(old, new, 1))
                yield node, f"{short(left)} {new} {short(right)}", (edit,)


def masked_value(code: Source) -> Sites:
    """0 for -inf where a maximum or a softmax follows; 1 for 0 where a sum does."""
    for node in code.walk([*code.kernels, *code.hosts]):
        if _is_infinite(node):
            yield one(code, node, "0.0")
        elif isinstance(node, ast.keyword) and node.arg == "other" and number(node.value) == 0:
            yield one(code, node.value, "1.0" if isinstance(_value(node), float) else "1", "other=1")


def _value(node: ast.keyword) -> object:
    return getattr(node.value, "value", None)


def _is_infinite(node: ast.AST) -> bool:
    """float("-inf"), -float("inf"), a large negative constant."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = number(node.operand)
        return _is_call_of_inf(node.operand, "inf") or (value is not None and value >= 1e20)
    return _is_call_of_inf(node, "-inf")


def _is_call_of_inf(node: ast.AST, text: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "float"
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value == text
    )


# -- arithmetic ----------------------------------------------------------------------------------------


def drop_rescale(code: Source) -> Sites:
    """What is carried from step to step is not multiplied by its correction."""
    for node, carried in _carried_products(code):
        if isinstance(node, ast.AugAssign):
            yield one(code, node, "pass")
        else:
            yield one(code, node, code.operand(carried))


def _carried_products(code: Source) -> Iterator[tuple[ast.AST, ast.expr]]:
    """`x *= a`, and `x * a` within `x = …`, for values x."""
    for node in code.walk(code.kernels):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
            if not code.stores_to_address(node.target):
                yield node, node.target
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and code.is_data(node.value):
            for product in ast.walk(node.value):
                if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
                    for side in (product.left, product.right):
                        if code.segment(side) == code.segment(node.targets[0]) and code.is_data(product):
                            yield product, side


def drop_scale(code: Source) -> Sites:
    """A product without one factor, a quotient without its divisor."""
    rescaled = {node for node, _ in _carried_products(code)}
    for node in binary_values(code, ast.Mult, ast.Div):
        if node in rescaled or 1.0 in (number(node.left), number(node.right)):
            continue
        yield one(code, node, code.operand(node.left))
        if isinstance(node.op, ast.Mult) and not same(node.left, node.right):
            yield one(code, node, code.operand(node.right))
    for call in code.walk(code.kernels):
        if not (isinstance(call, ast.Call) and tl_name(call) in _QUOTIENTS and code.is_data(call)):
            continue
        if number(call.args[0]) is None:
            yield one(code, call, code.operand(call.args[0]))


def drop_eps(code: Source) -> Sites:
    """No eps in a sum, no floor under a scale."""
    for node in binary_values(code, ast.Add):
        for eps, rest in ((node.right, node.left), (node.left, node.right)):
            if is_eps(eps) and not is_eps(rest):
                yield one(code, node, code.operand(rest))
    for call in code.walk(code.kernels):
        if isinstance(call, ast.Call) and call_name(call) in ("maximum", "max") and len(call.args) == 2:
            floor = number(call.args[1])
            if is_eps(call.args[1]) or (floor is not None and 0 < floor < _TINY):
                yield one(code, call, code.operand(call.args[0]))


def drop_clamp(code: Source) -> Sites:
    """A value that is not limited to what its dtype or its formula can take."""
    for call in code.walk(code.kernels):
        if not (isinstance(call, ast.Call) and code.is_data(call)):
            continue
        if tl_name(call) == "clamp" and call.args:
            yield one(code, call, code.operand(call.args[0]))
        elif tl_name(call) in ("maximum", "minimum") and len(call.args) == 2:
            limit = number(call.args[1])
            if not is_eps(call.args[1]) and not (limit is not None and 0 < limit < _TINY):
                yield one(code, call, code.operand(call.args[0]))


def drop_addend(code: Source) -> Sites:
    """A sum without one term: a bias, a residual, what came before."""
    for node in binary_values(code, ast.Add, ast.Sub):
        if not is_eps(node.left) and not is_eps(node.right):
            yield one(code, node, code.operand(node.left))
            if isinstance(node.op, ast.Add) and not same(node.left, node.right):
                yield one(code, node, code.operand(node.right))
    for other in code.walk(code.kernels):
        if isinstance(other, ast.AugAssign) and isinstance(other.op, ast.Add):
            if not code.stores_to_address(other.target):
                yield one(code, other, f"{code.segment(other.target)} = {code.segment(other.value)}")
        elif (
            isinstance(other, ast.Call) and tl_name(other) == "dot" and (carried := argument(other, 2, "acc"))
        ):
            yield one(code, other, call_text(code, other, {carried}), "tl.dot without its accumulator")


def sign_flip(code: Source) -> Sites:
    """Minus for plus and back."""
    for node in binary_values(code, ast.Add, ast.Sub):
        start, stop = code.span(node.left)[1], code.span(node.right)[0]
        between = code.raw[start:stop].decode()
        old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
        edit = Edit(start, stop, between.replace(old, new, 1))
        yield node, f"{short(code.segment(node))}: {new}", (edit,)
    for negated in code.walk(code.kernels):
        if not (isinstance(negated, ast.UnaryOp) and isinstance(negated.op, ast.USub)):
            continue
        if number(negated) is None and not _is_infinite(negated) and code.is_data(negated):
            yield one(code, negated, code.operand(negated.operand))


def constant(code: Source) -> Sites:
    """A constant off by 1 %; 1/d for 1/sqrt(d)."""
    for statement in code.tree.body:
        if isinstance(statement, ast.Assign):
            for node in ast.walk(statement.value):
                if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value < 1e20:
                    yield one(code, node, repr(node.value * 1.01))
    for node in code.walk([*code.kernels, *code.hosts]):
        kernel = code.function(node) in code.kernels
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            if kernel and _TINY <= abs(node.value) < 1e20 and code.is_data(node):
                yield one(code, node, repr(node.value * 1.01))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and number(node.right) == -0.5:
            yield one(code, node.right, "-1", f"{short(code.segment(node.left))} ** -1")
        elif isinstance(node, ast.Call) and call_name(node) in ("sqrt", "sqrt_rn") and node.args:
            yield one(code, node, code.operand(node.args[0]))
        elif isinstance(node, ast.Call) and tl_name(node) == "rsqrt":
            yield one(code, node, f"(1.0 / {code.operand(node.args[0])})")
