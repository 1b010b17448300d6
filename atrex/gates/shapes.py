"""shapes: right off the production grid, from empty to more than 2^31 elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from atrex.gates.choice import Choice, free_bytes, simple, some, widest_of
from atrex.gates.context import GateContext, Rejection, distinct, nearest_legal
from atrex.gates.crossed import crossed
from atrex.gates.sensitivity import init_values
from atrex.records import FaultKind, InitValue, Shape

# 1, primes, powers of two and their neighbours, multiples of three tiles and one more.
_EXTENTS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 63, 65, 100, 127, 129, 255, 257, 384, 500, 511, 513, 769)
_WIDE = (1000, 1023, 1025, 1536, 2047, 2049, 3072, 4093, 4097, 6151, 8191, 8193, 12289, 16385, 32771, 65536)
_ROWS = (0, 1, 2, 63, 65, 127, 1025)
_MANY_PROGRAMS = 65537  # one more than the y and z extents of a CUDA grid, and odd
_HUGE = 1 << 31
_ARGUED = 4  # values of a constructor argument at which all directed inputs are looked at


def run(ctx: GateContext) -> None:
    """Each of these shapes, directed inputs at the widest, all at random at some; then very many rows."""
    shapes = off_grid(ctx)
    for shape in shapes:
        ctx.check(shape, "off the production grid", source=ctx.rich_source)
    _directed(ctx, shapes)
    crossed(ctx, [*ctx.representatives(), *shapes])
    ctx.metrics["shapes"] = len(shapes)
    if ctx.plan.huge:
        _huge(ctx)


def off_grid(ctx: GateContext) -> list[Shape]:
    """The shapes that the problem names, or a sweep of its domain, and counts of rows.

    The last rows and columns matter most, so few rows are enough.
    """
    named = ctx.odd_shapes() if ctx.problem.odd() else _sweep(ctx)
    return distinct([*named, *_row_counts(ctx)])


def _directed(ctx: GateContext, shapes: Sequence[Shape]) -> None:
    """All directed inputs at the widest shape: beyond production a kernel may take a path of its own.

    So it may be one that ignores a constructor's argument, or works in the memory of its inputs. And so it
    may for single values of an argument, such as a count of groups.
    """
    problem, widest = ctx.problem, widest_of(ctx, shapes)
    for init in _some(ctx, init_values(ctx)):
        shape = problem.with_init(widest, **init)
        ctx.check(shape, f"init {init} off the production grid", source=ctx.rich_source)
    for shape in (widest, *_argued(ctx, shapes)):
        for name in _some(ctx, list(problem.probes.get("sensitivity", {}))):
            ctx.check(shape, f"{name} off the production grid", source=name)


def _argued(ctx: GateContext, shapes: Sequence[Shape]) -> list[Shape]:
    """For some values of each constructor argument that only shapes choose, a simple one with it."""
    found, fitting = list[Shape](), simple(ctx, shapes)
    for name, argument in ctx.problem.spec.init.items():
        if argument.dim or argument.choices or argument.type not in ("int", "list"):
            continue
        having = dict[InitValue, list[Shape]]()
        for shape in fitting:
            having.setdefault(ctx.problem.full(shape).init[name], []).append(shape)
        values = some(ctx, list(having), _ARGUED if ctx.plan.level == "full" else 1)
        found += [ctx.dice.choice(having[value]) for value in values]
    return distinct(found)


def _some(ctx: GateContext, choices: list[Choice]) -> list[Choice]:
    """All of them at the full level, else one."""
    return choices if ctx.plan.level == "full" else some(ctx, choices, 1)


def _sweep(ctx: GateContext) -> Iterator[Shape]:
    """Every free dimension but the rows at many extents, the others as in production."""
    problem, rows = ctx.problem, ctx.problem.rows
    base = ctx.representatives()[0]
    extents: tuple[int, ...] = (*_EXTENTS, *_WIDE)
    if len(extents) > ctx.plan.sweep:
        chosen = sorted(ctx.new_seed() % len(extents) for _ in range(ctx.plan.sweep))
        extents = tuple(dict.fromkeys((1, 513, 8193, *(extents[i] for i in chosen))))
    for name, legal in problem.spec.dims.items():
        for i, extent in enumerate(extents):
            if name == rows or not legal.legal(extent):
                continue
            shape = problem.resize(base, **{name: extent})
            if rows is not None:
                shape = problem.resize(shape, **{rows: ctx.fit_rows(shape, (1, 2, 3, 7, 37)[i % 5])})
            yield shape


def _row_counts(ctx: GateContext) -> Iterator[Shape]:
    """From no row to more rows than a grid's y and z extents, on a small shape."""
    problem, rows = ctx.problem, ctx.problem.rows
    if rows is None:
        return
    small = min(ctx.odd_shapes(), key=ctx.problem.width)
    legal = problem.spec.dims[rows]
    if not problem.odd():
        free = {name: nearest_legal(dim, 129) for name, dim in problem.spec.dims.items() if name != rows}
        small = problem.resize(small, **free)
    for count in _ROWS:
        if legal.legal(count):
            yield problem.resize(small, **{rows: ctx.fit_rows(small, count)})
    if ctx.plan.engine == "interpreter" or not legal.legal(_MANY_PROGRAMS):
        return
    many = problem.resize(small, **{rows: _MANY_PROGRAMS})
    if ctx.work(many) > ctx.plan.large_work:
        ctx.metrics["many_rows"] = f"not run: {_MANY_PROGRAMS} rows are too much work here"
        return
    yield many
    if not problem.odd():
        for extent in (1, 5):
            free = {name: nearest_legal(dim, extent) for name, dim in problem.spec.dims.items()}
            yield problem.resize(small, **free | {rows: _MANY_PROGRAMS})


def _huge(ctx: GateContext) -> None:
    """More than 2^31 elements: an offset computed in 32 bits goes astray.

    A candidate whose own buffers are too large for a worker there says so aloud; it is asked for fewer rows,
    of which such buffers still have elements enough.
    """
    problem, rows = ctx.problem, ctx.problem.rows
    if rows is None:
        return
    shape = max(ctx.representatives(), key=ctx.problem.width)
    width = ctx.problem.width(shape)
    count = _HUGE // width + 3
    if not problem.spec.dims[rows].legal(count):
        return
    shape = problem.resize(shape, **{rows: count})
    needed = int(1.2 * sum(problem.nbytes(tensor, shape) for tensor in problem.tensors))
    if free_bytes(ctx) < needed:
        ctx.metrics["huge"] = f"not run: needs {needed >> 30} GiB of free memory"
        return
    for fewer in (count, count // 2, count // 4):
        try:
            _very_many(ctx, problem.resize(shape, **{rows: fewer}), width)
        except Rejection as rejection:
            if rejection.fault is not FaultKind.OUT_OF_MEMORY or fewer == count // 4:
                raise
        else:
            less = "" if fewer == count else f"; out of memory at {count * width}"
            ctx.metrics["huge"] = f"{fewer * width} elements{less}"
            return


def _very_many(ctx: GateContext, shape: Shape, width: int) -> None:
    spec = ctx.spec(shape, source=ctx.rich_source)
    for part, outputs in ctx.windows(spec, extra=(_HUGE // width, _HUGE // width // 2)):
        ctx.require_accurate(part, outputs, f"{shape.dims[str(ctx.problem.rows)]} rows")
