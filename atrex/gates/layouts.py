"""layouts: strides, offsets, transposes and expansions give what the contiguous run gives, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from atrex import protocol
from atrex.contract import InputTensor, LayoutKind
from atrex.gates.context import GateContext, Rejection
from atrex.judge import CandidateFault
from atrex.protocol import Call, InputSpec
from atrex.records import FaultKind, Shape

_OF_ROWS: tuple[LayoutKind, ...] = ("row_stride", "odd_row_stride")


def run(ctx: GateContext) -> None:
    """Each input in each layout, in every bucket, and at an odd shape."""
    layouts = ctx.problem.contract.layouts
    refused = set[str]()
    few = [*ctx.representatives(), *ctx.odd_shapes()[1:3]]
    asked = [
        (name, kind)
        for name, declared in ctx.problem.spec.inputs.items()
        for kind in (*layouts.must, *layouts.may_refuse)
        if _applies(declared, kind)
    ]
    for shape in few:
        _look(ctx, shape, asked, refused)
    for name, declared in ctx.problem.spec.inputs.items():
        for shape in _with_rows(ctx, declared, few):
            _look(ctx, shape, [(n, kind) for n, kind in asked if n == name and kind in _OF_ROWS], refused)
    ctx.metrics["refused"] = ", ".join(sorted(refused)) or "none"


def _with_rows(ctx: GateContext, declared: InputTensor, few: list[Shape]) -> list[Shape]:
    """An odd shape in which this input has a second row, if it has none in any of these.

    Of a single row the stride says nothing.
    """

    def tells(shape: Shape) -> bool:
        return ctx.problem.tensor_shape(declared, shape)[:1] > (1,) and ctx.problem.elements(shape) > 0

    if any(tells(shape) for shape in few):
        return []
    return sorted(filter(tells, ctx.odd_shapes()), key=ctx.problem.elements)[:1]


def _applies(declared: InputTensor, kind: LayoutKind) -> bool:
    """Vectors have no rows to pad, matrices none inside; equal rows of integers are outside most domains."""
    if kind == "expanded" and declared.role in ("index", "lengths"):
        return False
    if kind == "inner_stride":
        return len(declared.shape) > 2
    return len(declared.shape) > 1 or kind in ("offset", "strided")


def _look(ctx: GateContext, shape: Shape, asked: Sequence[tuple[str, LayoutKind]], refused: set[str]) -> None:
    """One call on contiguous inputs, and one in each of these layouts that has the same values."""
    plain = ctx.spec(shape, source=ctx.rich_source)
    expected = ctx.call(plain).outputs
    optional = {name for name, declared in ctx.problem.spec.inputs.items() if declared.optional}
    absent = optional - set(ctx.inputs(plain)) if optional else optional
    for name, kind in asked:
        if name in absent:
            continue
        if kind == "expanded":
            edit = protocol.Edit(kind="broadcast_rows", input=name)
            equal = ctx.spec(shape, source=ctx.rich_source, edits=(edit,))
            _check(ctx, equal, None, (name, kind), refused)
        else:
            _check(ctx, plain, expected, (name, kind), refused)


def _check(
    ctx: GateContext,
    plain: InputSpec,
    expected: dict[str, Tensor] | None,
    asked: tuple[str, LayoutKind],
    refused: set[str],
) -> None:
    name, kind = asked
    spec = plain.model_copy(update={"layouts": {name: kind}})
    try:
        got = ctx.session.run(Call(inputs=spec))[0]
    except CandidateFault as fault:
        if fault.kind is FaultKind.REFUSED and kind in ctx.problem.contract.layouts.may_refuse:
            refused.add(f"{name} {kind}")
            return
        raise ctx.fault(fault, spec) from None
    _compare(ctx, spec, got.outputs, expected or ctx.call(plain).outputs, f"{name} {kind}")


def _compare(
    ctx: GateContext, spec: InputSpec, got: dict[str, Tensor], plain: dict[str, Tensor], what: str
) -> None:
    try:
        ctx.require_same_bits(spec, got, plain, f"{what} against contiguous")
    except Rejection:
        if ctx.problem.contract.layouts.exact:
            raise
        ctx.metrics["not_bit_equal"] = int(ctx.metrics.get("not_bit_equal") or 0) + 1
        ctx.require_accurate(spec, got, what)
