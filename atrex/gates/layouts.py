"""layouts: strides, offsets, transposes and expansions give what the contiguous run gives, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from atrex import protocol
from atrex.contract import InputTensor, LayoutKind
from atrex.gates.choice import free_bytes, simple, some
from atrex.gates.context import GateContext, Rejection
from atrex.inputs import far_pitch
from atrex.judge import CandidateFault
from atrex.protocol import Call, InputSpec
from atrex.records import FaultKind, Shape

_FAR = 2  # shapes at which a pool's rows lie far apart
_SEVERAL = 3  # rows of such a pool at least: one of them is likely to be used
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
        if applies(declared, kind)
    ]
    for shape in few:
        _look(ctx, shape, asked, refused)
    for name, declared in ctx.problem.spec.inputs.items():
        for shape in _with_rows(ctx, declared, few):
            _look(ctx, shape, [(n, kind) for n, kind in asked if n == name and kind in _OF_ROWS], refused)
    if wide := _wide(ctx):
        rows = [(name, kind) for name, kind in asked if name in ctx.problem.row_inputs() and kind in _OF_ROWS]
        _look(ctx, wide, rows, refused)
    if ctx.plan.level == "full":
        _far(ctx, refused)
    ctx.metrics["refused"] = ", ".join(sorted(refused)) or "none"


def _far(ctx: GateContext, refused: set[str]) -> None:
    """Rows of pools beyond 2^31 elements: an offset computed in 32 bits goes astray."""
    pools = {name: declared for name, declared in ctx.problem.spec.inputs.items() if declared.pool}
    shapes = simple(ctx, [*ctx.representatives(), *ctx.odd_shapes()]) if pools else []
    for name, declared in pools.items():
        several = [shape for shape in shapes if _far_apart(ctx, declared, shape)]
        for shape in some(ctx, several, _FAR):
            _look(ctx, shape, [(name, "far_rows")], refused)


def _far_apart(ctx: GateContext, declared: InputTensor, shape: Shape) -> bool:
    """Whether a pool has several rows and, with them far apart, room."""
    rows = ctx.problem.tensor_shape(declared, shape)[0]
    size = ctx.problem.tensor_dtype(declared, shape).itemsize
    return rows >= _SEVERAL and far_pitch(rows) * rows * size < free_bytes(ctx)


def _wide(ctx: GateContext) -> Shape | None:
    """Two of the longest rows that can be looked at: a kernel for such may take their stride for granted."""
    problem, rows = ctx.problem, ctx.problem.rows
    if rows is None or not problem.spec.dims[rows].legal(2):
        return None
    two = (problem.resize(shape, **{rows: 2}) for shape in ctx.odd_shapes())
    fitting = [shape for shape in two if problem.elements(shape) <= ctx.plan.judged_elements]
    return max(fitting, key=problem.width, default=None)


def _with_rows(ctx: GateContext, declared: InputTensor, few: list[Shape]) -> list[Shape]:
    """An odd shape in which this input has a second row, if it has none in any of these.

    Of a single row the stride says nothing.
    """

    def tells(shape: Shape) -> bool:
        return ctx.problem.tensor_shape(declared, shape)[:1] > (1,) and ctx.problem.elements(shape) > 0

    if any(tells(shape) for shape in few):
        return []
    return sorted(filter(tells, ctx.odd_shapes()), key=ctx.problem.elements)[:1]


def applies(declared: InputTensor, kind: LayoutKind) -> bool:
    """Vectors have no rows to pad, matrices none inside; equal rows of integers are outside most domains."""
    if kind == "expanded" and declared.role in ("index", "lengths"):
        return False
    if kind == "inner_stride":
        return len(declared.shape) > 2
    return len(declared.shape) > 1 or kind in ("offset", "strided")


def absent(ctx: GateContext, spec: InputSpec) -> set[str]:
    """The optional inputs that these do not have."""
    optional = {name for name, declared in ctx.problem.spec.inputs.items() if declared.optional}
    return optional - set(ctx.inputs(spec)) if optional else optional


def _look(ctx: GateContext, shape: Shape, asked: Sequence[tuple[str, LayoutKind]], refused: set[str]) -> None:
    """One call on contiguous inputs, and one in each of these layouts that has the same values."""
    plain = ctx.spec(shape, source=ctx.rich_source)
    expected = ctx.call(plain).outputs
    missing = absent(ctx, plain)
    for name, kind in asked:
        if name in missing:
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
