"""Faults of precision, of addresses and of loops; see `faults`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from tests.mutation.sites import Sites, argument, number, one, short
from tests.mutation.source import Function, Source, call_name, tl_name

_NARROW = ("bfloat16", "float16", "float8e4nv", "float8e5", "float8e4b8")
_RANGES = ("range", "static_range")


# -- precision -----------------------------------------------------------------------------------------


def accumulator_dtype(code: Source) -> Sites:
    """Sums, products and dots that are rounded to bf16 or fp16 on their way; TF32 for fp32."""
    for node in code.walk(code.kernels):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            if not code.stores_to_address(node.target):
                target, value = code.segment(node.target), code.operand(node.value)
                for dtype in ("bfloat16", "float16"):
                    text = f"{target} = ({target} + {value}).to(tl.{dtype}).to(tl.float32)"
                    yield one(code, node, text, f"{target} is rounded to {dtype} at every step")
        elif isinstance(node, ast.Call) and tl_name(node) in ("dot", "sum") and code.is_data(node):
            for dtype in ("bfloat16", "float16"):
                text = f"{code.segment(node)}.to(tl.{dtype}).to(tl.float32)"
                yield one(code, node, text, f"tl.{tl_name(node)} is rounded to {dtype}")
        elif _cast_to(node, ("float32",)):
            if not _cast_to(node.func.value, _NARROW):  # type: ignore[attr-defined]
                yield one(code, node, code.operand(node.func.value))  # type: ignore[attr-defined]
        elif isinstance(node, ast.keyword) and node.arg == "input_precision" and _is_ieee(node.value):
            yield one(code, node.value, '"tf32"', "tl.dot in TF32")


def _is_ieee(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "ieee"


def skip_rounding(code: Source) -> Sites:
    """A rounding to a narrower dtype that is left out, or done twice."""
    for node in code.walk(code.kernels):
        if not _cast_to(node, _NARROW):
            continue
        inner, up = code.operand(node.func.value), code.parent[node]  # type: ignore[attr-defined]
        outer = code.parent.get(up)
        if outer is not None and _cast_to(outer, ("float32",)):
            yield one(code, outer, inner)
        elif not (isinstance(up, ast.Call) and tl_name(up) in ("store", "dot")):
            yield one(code, node, f"{inner}.to(tl.float32)")
        if _cast_to(node, ("bfloat16",)):
            yield one(code, node, f"{inner}.to(tl.float16).to(tl.bfloat16)", "rounded to fp16 first")


def _cast_to(node: ast.AST, dtypes: Sequence[str]) -> bool:
    """Whether a node is x.to(tl.D) with D among the dtypes."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "to"
        and len(node.args) == 1
        and tl_name(node.args[0]) in dtypes
    )


# -- addresses -----------------------------------------------------------------------------------------


def wrong_stride(code: Source) -> Sites:
    """Another tensor's stride, or the stride that a contiguous tensor would have."""
    for node in code.walk(code.kernels):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and code.is_address(node):
            strides = _stride_parameters(code.function(node))
            if node.id in strides and len(strides) > 1:
                yield one(code, node, strides[(strides.index(node.id) + 1) % len(strides)])
    for node in code.walk(code.hosts):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if any(isinstance(up, ast.Compare) for up in code.above(node)):
            continue
        tensor = code.segment(node.func.value)
        if node.func.attr == "stride" and len(node.args) == 1:
            axis = number(node.args[0])
            if axis == -1:
                yield one(code, node, "1")
            elif axis is not None:
                yield one(code, node, f"{tensor}.shape[{int(axis) + 1}:].numel()")
        elif node.func.attr == "stride" and not node.args:
            yield one(code, node, f"{tensor}.contiguous().stride()")
        elif node.func.attr == "contiguous" and not node.args:
            yield one(code, node, tensor)


def _stride_parameters(function: Function | None) -> list[str]:
    names = [parameter.arg for parameter in function.args.args] if function else []
    return [name for name in names if "stride" in name.lower()]


def wrong_input(code: Source, twins: Mapping[str, Sequence[str]]) -> Sites:
    """One input in another's place: `twins` are the inputs of each input's shape and dtype."""
    for node in code.walk(code.hosts):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)):
            continue
        for given in node.args:
            if isinstance(given, ast.Name):
                for other in twins.get(given.id, ()):
                    yield one(code, given, other, f"{other} in place of {given.id}")


# -- loops ---------------------------------------------------------------------------------------------


def stale_index(code: Source) -> Sites:
    """An index that stays at the loop's start, or is a step or block behind; what is not carried on."""
    for node in code.walk(code.kernels):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv) and code.is_address(node):
            behind = f"tl.maximum({code.segment(node)} - 1, 0)"
            yield one(code, node, behind, f"{short(code.segment(node))} is one behind")
    for loop in code.walk(code.kernels):
        if not (isinstance(loop, ast.For) and isinstance(loop.target, ast.Name)):
            continue
        start, step = _start_and_step(code, loop)
        if start is None:
            continue
        static = isinstance(loop.iter, ast.Call) and tl_name(loop.iter) == "static_range"
        greater = "max" if static else "tl.maximum"
        for use in _uses(loop):
            yield one(code, use, f"({start})", f"{use.id} stays at {short(start)}")
            behind = f"{greater}({use.id} - {step}, {start})"
            yield one(code, use, behind, f"{use.id} is one step behind")
        yield from _updates(code, loop)


def _updates(code: Source, loop: ast.For) -> Sites:
    """Statements of a loop that hand a value on to its next turn, left out."""
    for statement in ast.walk(loop):
        advance = isinstance(statement, ast.AugAssign) and code.stores_to_address(statement.target)
        if advance or (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name)):
            yield one(code, statement, "pass", f"{short(code.segment(statement))} left out")


def _uses(loop: ast.For) -> Iterator[ast.Name]:
    assert isinstance(loop.target, ast.Name)
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id == loop.target.id and isinstance(node.ctx, ast.Load):
                yield node


def _start_and_step(code: Source, loop: ast.For) -> tuple[str | None, str]:
    call = loop.iter
    if not (isinstance(call, ast.Call) and call_name(call) in _RANGES and call.args):
        return None, ""
    start = code.segment(call.args[0]) if len(call.args) > 1 else "0"
    return start, code.operand(call.args[2]) if len(call.args) > 2 else "1"


def skip_chunk(code: Source) -> Sites:
    """A loop that ends a step early; a number of chunks rounded down."""
    for node in code.walk([*code.kernels, *code.hosts]):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            call = node.iter
            if call_name(call) in _RANGES and call.args:
                stop = call.args[1] if len(call.args) > 1 else call.args[0]
                step = argument(call, 2, "step")
                back = code.operand(step) if step is not None else "1"
                text = f"{code.operand(stop)} - {back}"
                yield one(code, stop, text, f"the loop to {short(code.segment(stop))} ends a step early")
        elif isinstance(node, ast.Call) and call_name(node) == "cdiv" and len(node.args) == 2:
            whole, part = (code.operand(given) for given in node.args)
            yield one(code, node, f"({whole} // {part})")
