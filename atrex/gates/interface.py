"""interface: exactly the declared structure, of plain tensors, none of them aliasing an input."""

from __future__ import annotations

from atrex.gates.context import GateContext, Rejection
from atrex.judge import CandidateFault


def run(ctx: GateContext) -> None:
    """Load the candidate, and call it once in every bucket. Calls of other gates look at the form, too."""
    try:
        ctx.session.load()
    except CandidateFault as fault:
        raise Rejection(f"{fault.kind.value}: {fault.message}", None, fault.kind) from None
    for shape in ctx.representatives():
        spec = ctx.spec(shape)
        report = ctx.call(spec).report
        for output in report.outputs:
            if output.device != ctx.session.engine.device:
                raise Rejection(f"{output.name} is on {output.device}", ctx.witness(spec, output.name))
            if not output.strided or output.requires_grad:
                raise Rejection(
                    f"{output.name} is sparse or requires a gradient", ctx.witness(spec, output.name)
                )
