"""layouts: strides, offsets, transposes and expansions give what the contiguous run gives, or a refusal."""

from __future__ import annotations

from atrex import protocol
from atrex.gates.context import GateContext, Rejection
from atrex.inputs import first_dim
from atrex.judge import CandidateFault
from atrex.problem import LayoutKind
from atrex.protocol import Call, InputSpec
from atrex.records import FaultKind


def run(ctx: GateContext) -> None:
    """Each input in each layout, in every bucket, and at an odd shape."""
    layouts = ctx.problem.contract.layouts
    refused = set[str]()
    rows = first_dim(ctx.problem)
    shapes = ctx.representatives()
    shapes.append({name: min(7 if name == rows else 257, d.max) for name, d in ctx.problem.spec.dims.items()})
    for dims in shapes:
        for name, declared in ctx.problem.spec.inputs.items():
            for kind in (*layouts.must, *layouts.may_refuse):
                if len(declared.shape) > 1 or kind in ("offset", "strided"):
                    _check(ctx, dims, name, kind, refused)
    ctx.metrics["refused"] = ", ".join(sorted(refused)) or "none"


def _check(ctx: GateContext, dims: dict[str, int], name: str, kind: LayoutKind, refused: set[str]) -> None:
    edits = (protocol.Edit(kind="broadcast_rows", input=name),) if kind == "expanded" else ()
    plain = ctx.spec(dims, source=ctx.rich_source, edits=edits)
    spec = plain.model_copy(update={"layouts": {name: kind}})
    try:
        got = ctx.session.run(Call(inputs=spec))[0]
    except CandidateFault as fault:
        if fault.kind is FaultKind.REFUSED and kind in ctx.problem.contract.layouts.may_refuse:
            refused.add(f"{name} {kind}")
            return
        raise ctx.fault(fault, spec) from None
    _compare(ctx, spec, got.outputs, ctx.call(plain).outputs, f"{name} {kind}")


def _compare(ctx: GateContext, spec: InputSpec, got: dict, plain: dict, what: str) -> None:  # type: ignore[type-arg]
    try:
        ctx.require_same_bits(spec, got, plain, f"{what} against contiguous")
    except Rejection:
        if ctx.problem.contract.layouts.exact:
            raise
        ctx.metrics["not_bit_equal"] = int(ctx.metrics.get("not_bit_equal") or 0) + 1
        ctx.require_accurate(spec, got, what)
