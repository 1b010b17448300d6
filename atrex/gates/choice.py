"""Which shapes a gate picks out of many, and what there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import psutil
import torch

from atrex.gates.context import GateContext
from atrex.records import Shape

Choice = TypeVar("Choice")

_FALLBACK = 6  # of the simplest shapes, where hardly any is simple


def simple(ctx: GateContext, shapes: Sequence[Shape]) -> list[Shape]:
    """Those that are not empty and take a moment, the simplest first."""
    ascending = sorted((shape for shape in shapes if ctx.problem.elements(shape)), key=ctx.work)
    return [
        s for place, s in enumerate(ascending) if place < _FALLBACK or ctx.work(s) <= ctx.plan.simple_work
    ]


def some(ctx: GateContext, choices: Sequence[Choice], most: int) -> list[Choice]:
    """So many of them at most, drawn at random."""
    return ctx.dice.sample(choices, min(len(choices), most))


def widest_of(ctx: GateContext, shapes: Sequence[Shape]) -> Shape:
    """The shape of the longest rows, with three of them; without independent rows the largest."""
    problem, rows = ctx.problem, ctx.problem.rows
    widest = max(shapes, key=problem.elements if rows is None else problem.width)
    return widest if rows is None else problem.resize(widest, **{rows: ctx.fit_rows(widest, 3)})


def free_bytes(ctx: GateContext) -> int:
    """What a worker may hold."""
    if ctx.session.engine.device == "cuda":
        return torch.cuda.mem_get_info()[0]
    return int(psutil.virtual_memory().available * 0.6)
