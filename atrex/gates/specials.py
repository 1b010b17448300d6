"""specials: NaN, infinities, signed zeros and subnormals travel as they do in the operator."""

from __future__ import annotations

import math

from atrex.gates.choice import simple, some
from atrex.gates.context import GateContext
from atrex.protocol import SPECIALS, Edit, InputSpec
from atrex.records import Shape


def run(ctx: GateContext) -> None:
    """One special in each odd row, at the head and tail of every tile size; even rows stay clean.

    In every bucket, and at an odd shape: what overflows may do so on a path that production does not take.
    """
    problem = ctx.problem
    for shape in (*ctx.representatives(), *some(ctx, simple(ctx, ctx.odd_shapes()), 1)):
        inputs = problem.spec.inputs
        matrices = [n for n in problem.row_inputs() if len(inputs[n].shape) > 1]
        forms = dict.fromkeys(inputs[name].shape for name in matrices)  # in an order that a seed repeats
        for name in problem.contract.specials:
            if name in matrices:
                _in_rows(ctx, shape, (name,))
            else:
                _in_tensor(ctx, shape, name)
        for form in forms:  # both zeros of a sum negative, and the like
            alike = tuple(n for n in problem.contract.specials if n in matrices and inputs[n].shape == form)
            if len(alike) > 1:
                _in_rows(ctx, shape, alike)


def positions(width: int) -> list[int]:
    """Heads and tails of tiles of every power-of-two size, and the last element."""
    wanted = {0, 1, width - 1, width - 2, width // 2}
    size = 8
    while size < width:
        tail = (width - 1) // size * size
        wanted |= {size - 1, size, tail, tail - 1}
        size *= 2
    return sorted(p for p in wanted if 0 <= p < width)


def _in_rows(ctx: GateContext, shape: Shape, names: tuple[str, ...]) -> None:
    """The same specials at the same places of one input, or of several of one form."""
    problem, rows = ctx.problem, str(ctx.problem.rows)
    width = math.prod(problem.tensor_shape(problem.spec.inputs[names[0]], shape)[1:])
    most = ctx.problem.width(shape)
    places = [(position, value) for position in positions(width) for value in SPECIALS]
    budget = len(places)
    if ctx.plan.level == "screen":
        budget = max(1, min(shape.dims[rows], ctx.plan.judged_elements // most) // 2)
    if ctx.plan.engine == "interpreter":
        budget = max(1, ctx.plan.called_elements // most // 2)
    if len(places) > budget:
        places = [places[ctx.new_seed() % len(places)] for _ in range(budget)]
    count = 2 * len(places) + 1
    at = tuple((2 * i + 1) * width + position for i, (position, _) in enumerate(places))
    values = tuple(value for _, value in places)
    edits = tuple(Edit(kind="place", input=name, at=at, values=values) for name in names)
    total = max(count, shape.dims[rows]) if ctx.plan.engine != "interpreter" else count
    clean = ctx.spec(problem.resize(shape, **{rows: total}))
    spec = clean.model_copy(update={"edits": edits})
    got = ctx.call(spec).outputs
    ctx.require_classes(spec, got, f"specials in {' and '.join(names)}")
    plain = ctx.call(clean).outputs
    even = {output: got[output][0:count:2] for output in problem.row_outputs()}
    beside = {output: plain[output][0:count:2] for output in even}
    ctx.require_same_bits(spec, even, beside, "a clean row beside a special one")


def _in_tensor(ctx: GateContext, shape: Shape, name: str) -> None:
    """Specials at tile heads and tails of a tensor without rows of its own, a few at a time."""
    problem, few = ctx.problem, shape
    if problem.rows is not None:
        few = problem.resize(shape, **{problem.rows: min(shape.dims[problem.rows], 3)})
    extents = problem.tensor_shape(problem.spec.inputs[name], few)
    where = positions(math.prod(extents) if len(extents) > 1 else extents[-1])
    if not where:
        return
    values = [SPECIALS[i % len(SPECIALS)] for i in range(len(where))]
    turns = len(SPECIALS) if ctx.plan.level == "full" and ctx.plan.engine != "interpreter" else 2
    for turn in range(turns):
        shifted = tuple(values[turn:] + values[:turn])
        edit = Edit(kind="place", input=name, at=tuple(where), values=shifted)
        spec: InputSpec = ctx.spec(few, edits=(edit,))
        ctx.require_classes(spec, ctx.call(spec).outputs, f"specials in {name}")
