"""accuracy: within the componentwise bound of the fp64 oracle on every production case."""

from __future__ import annotations

from atrex.gates.context import GateContext
from atrex.inputs import first_dim


def run(ctx: GateContext) -> None:
    """Every case at its own size (the interpreter: fewer rows), under a fresh seed."""
    rows = first_dim(ctx.problem)
    for case in ctx.cases:
        dims = ctx.problem.dims(case)
        dims[rows] = ctx.fit_rows(dims, dims[rows])
        ctx.check(dims, case.id, init=case.init)
    ctx.metrics["cases"] = len(ctx.cases)
