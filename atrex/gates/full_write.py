"""full_write: every output element is written, and nothing stale is read."""

from __future__ import annotations

import math

from atrex.gates.context import GateContext
from atrex.protocol import Fill
from atrex.records import Shape


def run(ctx: GateContext) -> None:
    """Outputs and free memory poisoned with NaN, then with 2^100: the same bits as without."""
    fills: tuple[Fill, ...] = ("nan", "huge")
    odd = [shape for shape in ctx.odd_shapes() if _writes(ctx, shape)]
    few = ctx.dice.sample(odd, min(len(odd), 2 if ctx.plan.level == "screen" else 6))
    for shape in (*ctx.representatives(), *few):
        spec = ctx.spec(shape, source=ctx.rich_source)
        plain = ctx.call(spec).outputs
        for fill in fills:
            poisoned = ctx.call(spec, poison=fill).outputs
            ctx.require_same_bits(spec, poisoned, plain, f"free memory poisoned with {fill}")


def _writes(ctx: GateContext, shape: Shape) -> bool:
    """Whether there is anything to write; a candidate of no rows at all has nothing to forget."""
    outputs = ctx.problem.spec.outputs.values()
    return all(math.prod(ctx.problem.tensor_shape(output, shape)) for output in outputs)
