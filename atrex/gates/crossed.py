"""Crossed draws: shape, dtype, constructor arguments, values and layouts, all at random and all together.

Every gate looks at its own property, at a few shapes and with all else as usual. A kernel can be wrong where
two conditions meet: a path for one token that ignores eps, for narrow rows that works in place, for one dtype
that takes a stride for granted. There are more such pairs than calls: each judgement draws some of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from atrex.contract import LayoutKind
from atrex.gates.aftermath import still_there, untouched
from atrex.gates.choice import Choice, simple, some
from atrex.gates.context import GateContext, Undecided
from atrex.gates.layouts import absent, applies
from atrex.gates.sensitivity import init_values
from atrex.protocol import SPECIALS, Call, Edit, InputSpec
from atrex.records import InitValue, Shape

_ROWS = (1, 1, 2, 3, 5)  # where rows are independent; a single one is the likeliest to have a path of its own
# Where any extents are legal: narrow ones are likelier to have a path of their own.
_FEW = (1, 2, 3, 7, 8, 32, 100)
_PLACES = 6  # of specials in one input, if it is not small: they would hide one another
WHAT = "all drawn at random"


def crossed(ctx: GateContext, shapes: Sequence[Shape]) -> None:
    """Draws at some of these shapes, each followed by another call that may not change its result."""
    decided, free = 0, not ctx.problem.odd()  # where the problem names no shapes, extents go with any others
    for shape, source in zip(_turns(ctx, simple(ctx, shapes)), _turns(ctx, _sources(ctx)), strict=False):
        try:
            _look(ctx, _draw(ctx, shape, source, free=free))
        except Undecided:  # the gate that a probe belongs to says so where it should be decided
            continue
        decided += 1
    ctx.metrics["crossed"] = decided


def _sources(ctx: GateContext) -> list[str]:
    """Directed inputs that are legal for whatever shape and arguments, and production's."""
    probes = (ctx.problem.probes.get(gate, {}) for gate in ("sensitivity", "accumulation"))
    return ["production", *(name for gate in probes for name in gate)]


def _turns(ctx: GateContext, choices: Sequence[Choice]) -> list[Choice]:
    """As many as there are draws: all of them in a random order, and again."""
    drawn = list[Choice]()
    while choices and len(drawn) < ctx.plan.crossed:
        drawn += some(ctx, choices, len(choices))
    return drawn[: ctx.plan.crossed]


def _draw(ctx: GateContext, shape: Shape, source: str, *, free: bool) -> InputSpec:
    problem, dice, odds = ctx.problem, ctx.dice, ctx.plan.crossing
    shape = problem.resize(shape, **_extents(ctx, shape, free=free))
    if ctx.dtypes and dice.random() < odds:
        shape = shape.model_copy(update={"dtype": dice.choice(ctx.dtypes)})
    if dice.random() < odds:
        shape = problem.with_init(shape, **_init(ctx))
    spec = ctx.spec(shape, source=source, tile_rows=None)
    return spec.model_copy(update={"layouts": _layouts(ctx, spec)}) if dice.random() < odds else spec


def _extents(ctx: GateContext, shape: Shape, *, free: bool) -> dict[str, int]:
    """Another count of rows, and other extents where these are `free`: any go together."""
    problem, dice = ctx.problem, ctx.dice
    drawn = dict[str, int]()
    for name, legal in problem.spec.dims.items():
        if name == problem.rows:
            extent = dice.choice((*_ROWS, ctx.fit_rows(shape)))
        elif free and dice.random() < ctx.plan.crossing:
            extent = dice.choice(_FEW)
        else:
            continue
        if legal.legal(extent):
            drawn[name] = extent
    return drawn


def _init(ctx: GateContext) -> dict[str, InitValue]:
    """Each constructor argument that has a domain: as it is, or anywhere that `sensitivity` looks."""
    values = dict[str, list[dict[str, InitValue]]]()
    for choice in init_values(ctx):
        values.setdefault(next(iter(choice)), [{}]).append(choice)
    drawn = dict[str, InitValue]()
    for choices in values.values():
        drawn |= ctx.dice.choice(choices)
    return drawn


def _layouts(ctx: GateContext, spec: InputSpec) -> dict[str, LayoutKind]:
    """For about half of the inputs one of the layouts that must be taken."""
    must, missing = ctx.problem.contract.layouts.must, absent(ctx, spec)
    drawn = dict[str, LayoutKind]()
    for name, declared in ctx.problem.spec.inputs.items():
        kinds = [kind for kind in must if applies(declared, kind)]
        if name not in missing and kinds and ctx.dice.random() < 0.5:
            drawn[name] = ctx.dice.choice(kinds)
    return drawn


def _specials(ctx: GateContext, spec: InputSpec) -> tuple[Edit, ...]:
    """In about half of the calls a few specials anywhere in one input that must pass them on."""
    problem, dice = ctx.problem, ctx.dice
    if not problem.contract.specials or dice.random() < 0.5:
        return ()
    missing = absent(ctx, spec)
    extents = {
        name: math.prod(problem.tensor_shape(problem.spec.inputs[name], spec.shape))
        for name in problem.contract.specials
        if name not in missing
    }
    names = [name for name, elements in extents.items() if elements]
    if not names:
        return ()
    name = dice.choice(names)
    count = min(_PLACES, 1 + extents[name] // 8)
    at = tuple(sorted({dice.randrange(extents[name]) for _ in range(count)}))
    return (Edit(kind="place", input=name, at=at, values=tuple(dice.choice(SPECIALS) for _ in at)),)


def _look(ctx: GateContext, spec: InputSpec) -> None:
    shape = spec.shape
    if ctx.dice.random() < ctx.plan.crossing:  # what is remembered by extents alone is wrong then
        shape = ctx.problem.with_init(shape, **_init(ctx))
    after = ctx.spec(shape, source=ctx.rich_source, tile_rows=None)
    after = after.model_copy(update={"edits": _specials(ctx, after)})
    outcome, second = ctx.calls([Call(inputs=spec, deliver_inputs=True, hold=True), Call(inputs=after)])
    ctx.require_accurate(spec, outcome.outputs, WHAT)
    if after.edits:
        ctx.require_classes(after, second.outputs, f"{WHAT}, specials in {after.edits[0].input}")
    else:
        ctx.require_accurate(after, second.outputs, f"{WHAT}, after another call")
    untouched(ctx, spec, outcome)
    still_there(ctx, spec, outcome, outcome.outputs, f"{WHAT}; kept through another call")
