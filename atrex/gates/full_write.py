"""full_write: every output element is written, and nothing stale is read."""

from __future__ import annotations

from atrex.gates.context import GateContext
from atrex.protocol import Fill


def run(ctx: GateContext) -> None:
    """Outputs and free memory poisoned with NaN, then with 2^100: the same bits as without."""
    fills: tuple[Fill, ...] = ("nan", "huge")
    for shape in (*ctx.representatives(), *ctx.odd_shapes()[-2:]):
        spec = ctx.spec(shape, source=ctx.rich_source)
        plain = ctx.call(spec).outputs
        for fill in fills:
            poisoned = ctx.call(spec, poison=fill).outputs
            ctx.require_same_bits(spec, poisoned, plain, f"free memory poisoned with {fill}")
