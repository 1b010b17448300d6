"""accumulation: the declared precision is kept through the whole reduction."""

from __future__ import annotations

from atrex.gates.context import GateContext
from atrex.records import Shape


def run(ctx: GateContext) -> None:
    """The operator's directed sums, at every production reduction length and at a long one."""
    probes = ctx.problem.probes.get("accumulation", {})
    for shape in _shapes(ctx):
        few = _few_rows(ctx, shape)
        for name in probes:
            ctx.check(few, name, source=name)
            if few != shape and ctx.windowed(shape):  # the bucket's own path, looked at through windows
                ctx.check(shape, name, source=name)
    ctx.metrics["probes"] = ", ".join(probes)


def _shapes(ctx: GateContext) -> list[Shape]:
    """The representatives, and where the reduction length can be chosen, every length in production."""
    problem, reduced, rows = ctx.problem, ctx.problem.contract.reduced, ctx.problem.rows
    shapes = ctx.representatives()
    if reduced not in problem.spec.dims or rows is None or problem.odd():
        return shapes
    base = shapes[0]
    lengths = dict.fromkeys(problem.shape(case).dims[reduced] for case in ctx.cases)
    for length in lengths:
        if all(shape.dims[reduced] != length for shape in shapes):
            shapes.append(problem.resize(base, **{reduced: length, rows: min(base.dims[rows], 16)}))
    if ctx.plan.level == "full":
        longest = min(32768, problem.spec.dims[reduced].max)
        shapes.append(problem.resize(base, **{reduced: longest, rows: 8}))
    return shapes


def _few_rows(ctx: GateContext, shape: Shape) -> Shape:
    """As many rows as can be compared whole: at least 8, at most 64."""
    rows = ctx.problem.rows
    if rows is None:
        return shape
    wanted = min(64, max(1, ctx.plan.judged_elements // ctx.problem.width(shape)))
    return ctx.problem.resize(shape, **{rows: ctx.fit_rows(shape, min(max(shape.dims[rows], 8), wanted))})
