"""accumulation: the declared precision is kept through the whole reduction."""

from __future__ import annotations

from atrex.gates.context import GateContext
from atrex.inputs import first_dim


def run(ctx: GateContext) -> None:
    """The operator's directed sums, at every production reduction length and at a long one."""
    probes = ctx.problem.module.PROBES.get("accumulation", {})
    reduced = ctx.problem.contract.reduced
    rows = first_dim(ctx.problem)
    lengths = {int(case.input[reduced]): case for case in ctx.cases} if reduced else {}
    shapes = ctx.representatives()
    base = shapes[0]
    for length in lengths:
        if all(dims[reduced or rows] != length for dims in shapes):
            shapes.append(base | {str(reduced): length, rows: min(base[rows], 16)})
    if reduced and ctx.plan.level == "full":
        shapes.append(base | {reduced: min(32768, ctx.problem.spec.dims[reduced].max), rows: 8})
    for dims in shapes:
        wanted = min(64, max(1, ctx.plan.judged_elements // ctx.elements(dims | {rows: 1})))
        few = dims | {rows: ctx.fit_rows(dims, min(max(dims[rows], 8), wanted))}
        for name in probes:
            ctx.check(few, name, source=name)
            if dims[rows] > wanted:  # the bucket's own path, looked at through windows
                ctx.check(dims, name, source=name)
    ctx.metrics["probes"] = ", ".join(probes)
