"""full_write: every output element is written, and nothing stale is read."""

from __future__ import annotations

from atrex.gates.context import GateContext
from atrex.inputs import first_dim
from atrex.protocol import Fill


def run(ctx: GateContext) -> None:
    """Outputs and free memory poisoned with NaN, then with 2^100: the same bits as without."""
    rows = first_dim(ctx.problem)
    odd = {name: min(5 if name == rows else 1537, legal.max) for name, legal in ctx.problem.spec.dims.items()}
    fills: tuple[Fill, ...] = ("nan", "huge")
    for dims in (*ctx.representatives(), odd):
        spec = ctx.spec(dims, source=ctx.rich_source)
        plain = ctx.call(spec).outputs
        for fill in fills:
            poisoned = ctx.call(spec, poison=fill).outputs
            ctx.require_same_bits(spec, poisoned, plain, f"free memory poisoned with {fill}")
