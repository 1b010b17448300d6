"""silu_and_mul: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: x [R, 2 F] bf16, out [R, F] bf16; R is the product of a case's leading dimensions. Formula:
silu(gate) * up, gate and up the halves of a row, silu(a) = a / (1 + exp(-a)) in fp32 and rounded to bf16
before the product (Shazeer, "GLU Variants Improve Transformer", 2020). x [R, 1]: silu(x).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape
from bench.rounding import interval

_ORACLE_CHUNK = 1 << 24  # elements at a time: 128 MiB of fp64, and some eight temporaries of that size
_U = 2.0**-24  # unit roundoff of the fp32 accumulator
_STEPS = 8  # rounding_steps of problem.yaml
_TINY = 2.0**-126  # smallest normal number of fp32


def extents(init: Init, input: Input) -> dict[str, int]:
    """Leading dimensions flattened: shape [..., 2 F] becomes rows and last."""
    *leading, last = input["shape"]
    return {"rows": math.prod(leading), "last": last}


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The width of the output. Raises ValueError for a row that has no halves."""
    last = dims["last"]
    if last % 2 and last != 1:
        raise ValueError(f"the last dimension is {last}: neither even nor 1")
    return {"features": max(1, last // 2)}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """x ~ N(0, 1): operators.md names no distribution, and projections before a SwiGLU are of this size."""
    return {"x": draw.normal(_extent(draw), 1.0, torch.bfloat16)}


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: silu of bf16 computes in fp32 and rounds once."""
    x = inputs["x"]
    if x.shape[-1] == 1:
        return {"out": functional.silu(x)}
    gate, up = x.chunk(2, -1)
    return {"out": functional.silu(gate) * up}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64 with its named rounding of silu to bf16, a block of rows at a time.

    fp32 has s = silu(a) to a relative u (k + (1 - sigmoid(a)) |a|): k roundings, and that of the argument,
    which exp(-a) multiplies by |a| and the division by 1 + exp(-a) passes on by its share in the sum. Below
    2^-126 fp32's exponential overflows or its reciprocal is subnormal: |a| 2^-126 absolute. So the rounded
    s is one of those between both ends of that interval: nearly always one value, near a tie two
    neighbours, and `slack` is what the other would change. The product with the other half is exact in fp32
    (16 bits) and rounded once: `terms` is 0. With one column nothing is rounded before the end, and the
    interval's two parts are `terms` and `slack`.
    """
    x = inputs["x"]
    rows, last = x.shape
    width = max(1, last // 2)
    value, slack = (torch.empty((rows, width), dtype=torch.float64, device=x.device) for _ in range(2))
    terms = torch.zeros((rows, 1), dtype=torch.float64, device=x.device).expand(rows, width)
    step = max(1, _ORACLE_CHUNK // last)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        gate = x[part, :width].double()
        silu = gate / (1 + torch.exp(-gate))
        amplified = silu.abs() * gate.abs() / (1 + torch.exp(gate))
        if last == 1:
            value[part], slack[part] = silu, gate.abs() * _TINY + _U * amplified
            continue
        up = x[part, width:].double()
        reach = _U * (_STEPS * silu.abs() + amplified) + gate.abs() * _TINY
        middle, low, high = interval(silu, reach)
        value[part] = middle * up
        slack[part] = torch.maximum(middle - low, high - middle) * up.abs()
    return {"out": Expected(value, value.abs() if last == 1 else terms, slack)}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for R rows of F results.

    Per result the negation, exponential, addition and division of silu, and the product (5 F; 4 for a
    last dimension of 1, which has no product).
    """
    rows, last, features = (shape.dims[name] for name in ("rows", "last", "features"))
    return Cost(
        flops={"fp32": float(rows * features * (4 if last == 1 else 5))},
        read_bytes=2 * rows * last,
        write_bytes=2 * rows * features,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows of the same width."""
    shape = extents(init, input)
    return init, {**input, "shape": [min(shape["rows"], 31), shape["last"]]}


# `last` cannot be swept freely: odd widths but 1 have no halves. Widths around vectors of 8 and 16 bytes (F
# = 1, 3, 4, 7, 8, 9), around tiles (127 to 513, 1023 to 4097), a prime, one far above production, and no
# row at all.
ODD: tuple[tuple[Init, Input], ...] = tuple(
    ({}, {"shape": shape})
    for shape in (
        [1, 1],
        [1000, 1],
        [3, 2],
        [1025, 2],
        [5, 6],
        [7, 8],
        [3, 14],
        [2, 16],
        [129, 18],
        [13, 100],
        [17, 254],
        [3, 258],
        [2, 1022],
        [5, 1026],
        [2, 3, 1538],
        [1, 2046],
        [3, 2050],
        [2, 4098],
        [7, 8194],
        [1, 12290],
        [2, 24574],
        [1, 65542],
        [0, 1536],
        [0, 1],
    )
)


def _extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["rows"], draw.dims["last"]


def _halves(gate: Tensor, up: Tensor, last: int) -> dict[str, Tensor]:
    x = gate if last == 1 else torch.cat((gate, up), -1)
    return {"x": x.to(torch.bfloat16)}


def _gate_extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["rows"], draw.dims["features"]


def wide(draw: Draw) -> dict[str, Tensor]:
    """Gates ~ N(-1, 3) and ups ~ N(0, 2) + 1: halves that cannot be swapped, silu of both signs."""
    gate = draw.normal(_gate_extent(draw), 3.0, torch.float32) - 1
    up = draw.normal(_gate_extent(draw), 2.0, torch.float32) + 1
    return _halves(gate, up, draw.dims["last"])


def every_exponent(draw: Draw) -> dict[str, Tensor]:
    """Gates ±2^-30 to ±2^6 and ups ±2^-20 to ±2^20: silu near 0 is a / 2, far left it is a exp(a)."""
    gate = (1 + draw.uniform(_gate_extent(draw))) * torch.exp2(draw.uniform(_gate_extent(draw)) * 36 - 30)
    up = (1 + draw.uniform(_gate_extent(draw))) * torch.exp2(
        (draw.uniform(_gate_extent(draw)) * 41).floor() - 20
    )
    return _halves(gate * _sign(draw), up * _sign(draw), draw.dims["last"])


def saturated(draw: Draw) -> dict[str, Tensor]:
    """Gates from -120 to 120: exp(-a) over- and underflows, silu is 0 or a.

    The first is positive, so that the least case has a result to compare with.
    """
    gate = draw.uniform(_gate_extent(draw)) * 240 - 120
    gate[:1, 0].abs_()
    return _halves(gate, draw.normal(_gate_extent(draw), 1.0, torch.float32), draw.dims["last"])


def left_tail(draw: Draw) -> dict[str, Tensor]:
    """Gates from -40 to 0 under ups of 2^20: a sigmoid from tanh, or in fp16, has no digit left there."""
    gate = draw.uniform(_gate_extent(draw)) * -40
    up = (1 + draw.uniform(_gate_extent(draw))) * 2.0**20
    return _halves(gate, up, draw.dims["last"])


def _sign(draw: Draw) -> Tensor:
    return torch.where(draw.uniform(_gate_extent(draw)) < 0.5, -1.0, 1.0)


def fine_products(draw: Draw) -> dict[str, Tensor]:
    """Gates ~ N(2, 1) and ups 1 + odd/128: the product of two rounded factors needs all of its 16 bits.

    A silu that is not rounded to bf16 before the product, or one rounded from bf16 arithmetic, shows here.
    """
    gate = draw.normal(_gate_extent(draw), 1.0, torch.float32) + 2
    odd = (draw.uniform(_gate_extent(draw)) * 64).floor() * 2 + 1
    return _halves(gate, 1 + odd / 128, draw.dims["last"])


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"fine_products": fine_products},
    "sensitivity": {
        "wide": wide,
        "every_exponent": every_exponent,
        "saturated": saturated,
        "left_tail": left_tail,
    },
}
