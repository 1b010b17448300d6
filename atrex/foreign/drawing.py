"""Inputs, shapes and probes of a foreign problem: all that a candidate's worker needs of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from atrex.contract import DTYPES
from atrex.foreign.spec import CALL, REDUCTION, Call, ForeignProblem
from atrex.problem import Draw, Init, Input, Source
from atrex.records import Case, Cost, Shape, Status

ENOUGH_SHAPES = 3  # of different extents, for a gate about shapes to say anything
_FEW_SHAPES = ("shapes", Status.UNSUPPORTED)
_EXTENTS = (1, 3, 17, 33, 63, 65, 129, 255, 257, 511, 513, 1025)


class ForeignInputs:
    """What bench/<operator>/reference.py says of inputs, for a foreign problem."""

    def __init__(self, problem: ForeignProblem) -> None:
        self.problem = problem
        self.PAYLOAD = problem.model_dump(mode="json")
        self.UNJUDGED = {gate: (Status(why.status), why.reason) for gate, why in problem.unjudged.items()}
        self.PROBES = _probes(self)
        self.ODD = tuple(self._odd())
        if len({tuple(dims.values()) for _, dims in self.ODD}) >= ENOUGH_SHAPES:
            self.UNJUDGED = {g: why for g, why in self.UNJUDGED.items() if (g, why[0]) != _FEW_SHAPES}

    def call(self, init: Init) -> Call:
        """The call that a shape stands for."""
        return self.problem.calls[int(init[CALL])]

    def derive(self, init: Init, dims: Mapping[str, int], lengths: object) -> dict[str, int]:
        """Extents of outputs that no input has, and the length of the sums at these extents."""
        del lengths
        call = self.call(init)
        grown = math.prod(dims.values()) / max(1, math.prod(call.dims[name] for name in dims))
        return {**call.derived, REDUCTION: math.ceil(call.derived[REDUCTION] * max(1.0, grown))}

    def cases(self) -> tuple[Case, ...]:
        """One case for every call of the reference."""
        spec = self.problem.problem
        return tuple(
            Case(
                operator=spec.operator,
                id=f"call-{number:03d}",
                init={CALL: str(number)},
                input={name: call.dims[name] for name in spec.dims},
                phase="prefill",
                weight=1.0,
            )
            for number, call in enumerate(self.problem.calls)
        )

    def _odd(self) -> list[tuple[Init, Input]]:
        """The calls, the smallest first; what the contract lists; a sweep over what it lets vary."""
        problem, spec = self.problem, self.problem.problem
        order = sorted(range(len(problem.calls)), key=lambda i: math.prod(problem.calls[i].dims.values()))
        init = {CALL: str(order[0])}
        base = {name: problem.calls[order[0]].dims[name] for name in spec.dims}
        shapes: list[tuple[Init, Input]] = [
            ({CALL: str(i)}, {name: problem.calls[i].dims[name] for name in spec.dims}) for i in order
        ]
        shapes += [(init, dict(shape)) for shape in problem.shapes]
        for i, extent in enumerate(_EXTENTS if problem.vary else ()):
            each = [base | {name: extent} for name in problem.vary]
            together = {n: _EXTENTS[(i + k) % len(_EXTENTS)] for k, n in enumerate(problem.vary)}
            for dims in (*each, base | together):
                legal = all(spec.dims[name].legal(dims[name]) for name in problem.vary)
                shapes += [(init, dims)] if legal else []
        return shapes

    def make_inputs(self, draw: Draw) -> dict[str, Tensor]:
        """Every input by its recipe."""
        call, inputs = self.call(draw.init), self.problem.problem.inputs
        shapes = {n: [a if isinstance(a, int) else draw.dims[a] for a in t.shape] for n, t in inputs.items()}
        return {name: call.recipes[name].draw(draw, shapes[name]) for name in inputs}

    def cost(self, shape: Shape) -> Cost:
        """The bytes of the tensors; a foreign function's operations are not counted."""
        spec = self.problem.problem
        sums = [
            sum(
                math.prod(a if isinstance(a, int) else shape.dims[a] for a in t.shape)
                * DTYPES[t.dtype].itemsize
                for t in tensors
            )
            for tensors in (spec.inputs.values(), spec.outputs.values())
        ]
        return Cost(flops={}, read_bytes=sums[0], write_bytes=sums[1])


def _probes(module: ForeignInputs) -> dict[str, dict[str, Source]]:
    """Production-like values again, a quarter of them, and directed values where sums are sums."""
    probes: dict[str, dict[str, Source]] = {
        "sensitivity": {"redrawn": module.make_inputs, "quarter": partial(_quarter, module)}
    }
    if module.problem.magnitudes:
        probes["accumulation"] = {
            "fine_values": partial(_fine, module),
            "stagnation": partial(_stagnation, module),
        }
    return probes


def _floating(module: ForeignInputs, draw: Draw) -> dict[str, bool]:
    """Which inputs are data of a plain distribution, whose values may be replaced."""
    call = module.call(draw.init)
    return {
        name: recipe.kind in ("normal", "uniform") and getattr(torch, recipe.dtype).is_floating_point
        for name, recipe in call.recipes.items()
    }


def _quarter(module: ForeignInputs, draw: Draw) -> dict[str, Tensor]:
    """Floating inputs times 1/4: signs, order and zeros stay, the scale does not."""
    values = module.make_inputs(draw)
    return {n: (v.double() / 4).to(v.dtype) if v.is_floating_point() else v for n, v in values.items()}


def _fine(module: ForeignInputs, draw: Draw) -> dict[str, Tensor]:
    """1 + odd / 2^(p-1) with the p significand bits of the dtype: what TF32 and narrower products lose."""
    values = module.make_inputs(draw)
    for name, plain in _floating(module, draw).items():
        if plain:
            value = values[name]
            steps = 1 / torch.finfo(value.dtype).eps
            odd = (draw.uniform(value.shape).double() * min(steps, 4096) / 2).floor() * 2 + 1
            sign = torch.where(draw.uniform(value.shape) < 0.5, -1.0, 1.0)
            values[name] = (sign * (1 + odd / min(steps, 8192))).to(value.dtype)
    return values


def _stagnation(module: ForeignInputs, draw: Draw) -> dict[str, Tensor]:
    """One large value in every row among many that must still be counted."""
    values = module.make_inputs(draw)
    for name, plain in _floating(module, draw).items():
        value = values[name]
        if plain and value.ndim and value.shape[-1] > 1:
            small = 1 + draw.uniform(value.shape).double() / 4
            at = draw.integers((*value.shape[:-1], 1), value.shape[-1], torch.int64)
            large = math.sqrt(value.shape[-1] * 4 / 3)
            values[name] = small.scatter(-1, at, large).to(value.dtype)
    return values
