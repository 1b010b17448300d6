"""accuracy: within the componentwise bound of the fp64 oracle on every production case."""

from __future__ import annotations

from atrex.gates.context import GateContext
from atrex.inputs import first_dim


def run(ctx: GateContext) -> None:
    """Every case at its own size (the interpreter: fewer rows), under a fresh seed.

    A screening looks at one small production shape in every bucket, and at a few cases drawn afresh.
    """
    rows = first_dim(ctx.problem)
    chosen = ctx.sample(ctx.cases)
    if len(chosen) < len(ctx.cases):
        for dims in ctx.representatives():
            ctx.check(dims)
    for case in chosen:
        dims = ctx.problem.dims(case)
        dims[rows] = ctx.fit_rows(dims, dims[rows])
        ctx.check(dims, case.id, init=case.init)
    ctx.metrics["cases"] = len(chosen)
