"""accuracy: within the componentwise bound of the fp64 oracle on every production case."""

from __future__ import annotations

from atrex.gates.context import GateContext


def run(ctx: GateContext) -> None:
    """Every case at its own size (a CPU: as far as it can), under a fresh seed.

    A screening looks at one small production shape in every bucket, and at a few cases drawn afresh.
    """
    problem = ctx.problem
    chosen = ctx.sample(ctx.cases)
    if len(chosen) < len(ctx.cases):
        for shape in ctx.representatives():
            ctx.check(shape)
    for case in chosen:
        shape = problem.shape(case)
        heavy = ctx.work(shape) > ctx.plan.large_work
        if ctx.plan.engine == "interpreter" and problem.rows is None:  # no rows to leave out
            heavy |= problem.elements(shape) > ctx.plan.called_elements
        if heavy:
            shape = problem.shape(problem.small(case))
        if problem.rows is not None:
            shape = problem.resize(shape, **{problem.rows: ctx.fit_rows(shape)})
        ctx.check(shape, case.id)
    ctx.metrics["cases"] = len(chosen)
