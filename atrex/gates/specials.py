"""specials: NaN, infinities, signed zeros and subnormals travel as they do in the operator."""

from __future__ import annotations

from atrex.gates.context import GateContext
from atrex.inputs import first_dim
from atrex.protocol import SPECIALS, Edit, InputSpec


def run(ctx: GateContext) -> None:
    """One special in each odd row, at the head and tail of every tile size; even rows stay clean."""
    rows = first_dim(ctx.problem)
    for dims in ctx.representatives():
        for name in ctx.problem.contract.specials:
            declared = ctx.problem.spec.inputs[name]
            if declared.shape[0] == rows and len(declared.shape) > 1:
                _in_rows(ctx, dims, name)
            else:
                _in_parameter(ctx, dims, name)


def positions(width: int) -> list[int]:
    """Heads and tails of tiles of every power-of-two size, and the last element."""
    wanted = {0, 1, width - 1, width - 2, width // 2}
    size = 8
    while size < width:
        tail = (width - 1) // size * size
        wanted |= {size - 1, size, tail, tail - 1}
        size *= 2
    return sorted(p for p in wanted if 0 <= p < width)


def _in_rows(ctx: GateContext, dims: dict[str, int], name: str) -> None:
    rows = first_dim(ctx.problem)
    width = ctx.elements(dims | {rows: 1})
    places = [(position, value) for position in positions(width) for value in SPECIALS]
    budget = (
        max(1, min(dims[rows], ctx.plan.judged_elements // width) // 2) if ctx.plan.level == "screen" else 0
    )
    if ctx.plan.engine == "interpreter":
        budget = max(1, ctx.plan.called_elements // width // 2)
    if budget and len(places) > budget:
        places = [places[ctx.new_seed() % len(places)] for _ in range(budget)]
    count = 2 * len(places) + 1
    at = tuple((2 * i + 1) * width + position for i, (position, _) in enumerate(places))
    edit = Edit(kind="place", input=name, at=at, values=tuple(value for _, value in places))
    clean = ctx.spec(dims | {rows: max(count, dims[rows]) if ctx.plan.engine != "interpreter" else count})
    spec = clean.model_copy(update={"edits": (edit,)})
    got = ctx.call(spec).outputs
    ctx.require_classes(spec, got, f"specials in {name}")
    plain = ctx.call(clean).outputs
    even = {output: value[0:count:2] for output, value in got.items()}
    ctx.require_same_bits(
        spec, even, {o: v[0:count:2] for o, v in plain.items()}, "a clean row beside a special one"
    )


def _in_parameter(ctx: GateContext, dims: dict[str, int], name: str) -> None:
    """Specials at tile heads and tails of a parameter, a few at a time."""
    width = dims[ctx.problem.spec.inputs[name].shape[-1]]
    where = positions(width)
    values = [SPECIALS[i % len(SPECIALS)] for i in range(len(where))]
    turns = len(SPECIALS) if ctx.plan.level == "full" and ctx.plan.engine != "interpreter" else 2
    rows = first_dim(ctx.problem)
    few = dims | {rows: min(dims[rows], 3)}
    for turn in range(turns):
        shifted = tuple(values[turn:] + values[:turn])
        spec: InputSpec = ctx.spec(
            few, edits=(Edit(kind="place", input=name, at=tuple(where), values=shifted),)
        )
        ctx.require_classes(spec, ctx.call(spec).outputs, f"specials in {name}")
