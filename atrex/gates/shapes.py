"""shapes: right off the production grid, from empty to more than 2^31 elements."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import torch

from atrex.gates.context import GateContext
from atrex.inputs import first_dim, row_inputs

# 1, primes, powers of two and their neighbours, multiples of three tiles and one more.
_EXTENTS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 63, 65, 100, 127, 129, 255, 257, 384, 500, 511, 513, 769)
_WIDE = (1000, 1023, 1025, 1536, 2047, 2049, 3072, 4093, 4097, 6151, 8191, 8193, 12289, 16385, 32771, 65536)
_MANY_PROGRAMS = 65537  # one more than the y and z extents of a CUDA grid, and odd
_HUGE = 1 << 31


def run(ctx: GateContext) -> None:
    """Sweep the domain; the last rows and columns matter most, so few rows are enough."""
    shapes = list(dict.fromkeys(tuple(sorted(dims.items())) for dims in _sweep(ctx)))
    for items in shapes:
        ctx.check(dict(items), "off the production grid", source=ctx.rich_source)
    ctx.metrics["shapes"] = len(shapes)
    if ctx.plan.huge:
        _huge(ctx)


def _sweep(ctx: GateContext) -> Iterator[dict[str, int]]:
    rows = first_dim(ctx.problem)
    domain = ctx.problem.spec.dims
    base = ctx.representatives()[0]
    extents: tuple[int, ...] = (*_EXTENTS, *_WIDE)
    if len(extents) > ctx.plan.sweep:
        chosen = sorted(ctx.new_seed() % len(extents) for _ in range(ctx.plan.sweep))
        extents = tuple(dict.fromkeys((1, 513, 8193, *(extents[i] for i in chosen))))
    for name, legal in domain.items():
        for i, extent in enumerate(extents):
            if name == rows or not legal.min <= extent <= legal.max:
                continue
            dims = base | {name: extent, rows: (1, 2, 3, 7, 37)[i % 5]}
            yield dims | {rows: ctx.fit_rows(dims, dims[rows])}
    small = base | {name: min(129, legal.max) for name, legal in domain.items()}
    for count in (0, 1, 2, 63, 65, 127, 1025):
        if domain[rows].min <= count:
            yield small | {rows: ctx.fit_rows(small, count)}
    if ctx.plan.engine != "interpreter" and domain[rows].max >= _MANY_PROGRAMS:
        for extent in (1, 5, 128):
            yield small | {name: extent for name in domain if name != rows} | {rows: _MANY_PROGRAMS}


def _huge(ctx: GateContext) -> None:
    """More than 2^31 elements: an offset computed in 32 bits goes astray."""
    rows = first_dim(ctx.problem)
    dims = max(ctx.representatives(), key=lambda d: ctx.elements(d | {rows: 1}))
    width = ctx.elements(dims | {rows: 1})
    count = _HUGE // width + 3
    if not ctx.problem.row_independent or count > ctx.problem.spec.dims[rows].max:
        return
    large = len(row_inputs(ctx.problem)) + len(ctx.problem.spec.outputs)
    needed = int(large * _HUGE * 2 * 1.2)
    if _free_bytes(ctx) < needed:
        ctx.metrics["huge"] = f"not run: needs {needed >> 30} GiB of free memory"
        return
    spec = ctx.spec(dims | {rows: count}, source=ctx.rich_source)
    for part, outputs in ctx.windows(spec, extra=(_HUGE // width, _HUGE // width // 2)):
        ctx.require_accurate(part, outputs, f"{count} rows, more than 2^31 elements")
    ctx.metrics["huge"] = f"{count * width} elements"


def _free_bytes(ctx: GateContext) -> int:
    if ctx.session.engine.device == "cuda":
        return torch.cuda.mem_get_info()[0]
    return int(psutil.virtual_memory().available * 0.6)  # what a worker may hold
