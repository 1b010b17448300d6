"""determinism: the same bits every run, whatever the allocator and the neighbours do."""

from __future__ import annotations

from atrex.gates.context import GateContext
from atrex.protocol import Call


def run(ctx: GateContext) -> None:
    """Repeat with a perturbed allocator and load beside the call.

    Where the contract waives determinism, every run must pass accuracy instead.
    """
    for shape in ctx.representatives():
        spec = ctx.spec(shape, source=ctx.rich_source)
        first = ctx.call(spec).outputs
        for _ in range(ctx.plan.repeats - 1):
            again = ctx.calls([Call(inputs=spec, disturb=ctx.new_seed())])[0].outputs
            if ctx.problem.contract.deterministic:
                ctx.require_same_bits(spec, again, first, "another run")
            else:
                ctx.require_accurate(spec, again, "another run")
    ctx.metrics["runs"] = ctx.plan.repeats
