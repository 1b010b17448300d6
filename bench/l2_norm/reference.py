"""l2_norm: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: x [T, H] bf16, out [T, H] bf16. Formula: x * rsqrt(sum(x^2) + eps) over each row: the Euclidean norm
with eps inside the root, as linear-attention layers normalise their queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 25  # elements at a time: 256 MiB of fp64


# 1 + n/128 for these n: the squares need 15 significand bits, and rounded to 8 all become smaller (n^2 mod
# 128 is 33 to 57), by 0.2 % of the sum; roundings in both directions would leave nothing of it.
_FINE = (7, 13, 17, 21, 43, 47, 51)


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: x ~ N(0, 0.02), as rms_norm has it (operators.md names no other)."""
    return {"x": draw.normal(_extent(draw), 0.02, torch.bfloat16)}


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it."""
    x = inputs["x"].float()
    scale = torch.rsqrt(x.square().sum(-1, keepdim=True) + init["eps"])
    return {"out": (x * scale).to(inputs["x"].dtype)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, a block of rows at a time.

    Every term of the sum is a square, so nothing cancels and the magnitude that rounding errors
    grow from (`terms`) is the result itself.
    """
    x = inputs["x"]
    value = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    step = max(1, _ORACLE_CHUNK // x.shape[1])
    for start in range(0, x.shape[0], step):
        block = x[start : start + step].double()
        squares = torch.linalg.vecdot(block, block).unsqueeze(-1)
        value[start : start + step] = block / (squares + init["eps"]).sqrt()
    return {"out": Expected(value, value.abs())}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T rows of H elements.

    Per element a square, its addition and the product with the scale (3 H); per row the addition of eps
    and the reciprocal root (2).
    """
    rows, hidden = shape.dims["num_tokens"], shape.dims["hidden_size"]
    return Cost(
        flops={"fp32": float(rows * (3 * hidden + 2))},
        read_bytes=2 * rows * hidden,
        write_bytes=2 * rows * hidden,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows of the same width."""
    return init, {**input, "num_tokens": min(input["num_tokens"], 61)}


def _extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["num_tokens"], draw.dims["hidden_size"]


def _by_row(draw: Draw, first: float, last: float) -> Tensor:
    rows = draw.dims["num_tokens"]
    return torch.linspace(first, last, max(rows, 1), device=draw.device)[:rows, None]


def wide(draw: Draw) -> dict[str, Tensor]:
    """x ~ N(0.25, 1), every row with a scale of its own between 1/2 and 2: no row's norm is another's."""
    x = draw.normal(_extent(draw), 1.0, torch.float32) + 0.25
    scale = torch.exp2(draw.uniform((draw.dims["num_tokens"], 1)) * 2 - 1)
    return {"x": (x * scale).to(torch.bfloat16)}


def tiny_inputs(draw: Draw) -> dict[str, Tensor]:
    """Rows whose sum of squares goes from far below the usual eps (1e-6) to far above it.

    Also tells eps inside the root from eps added to the norm, and from a norm clamped at eps.
    """
    x = draw.normal(_extent(draw), draw.dims["hidden_size"] ** -0.5, torch.float32)
    return {"x": (x * torch.exp2(_by_row(draw, -16, -4))).to(torch.bfloat16)}


def uneven_rows(draw: Draw) -> dict[str, Tensor]:
    """Rows whose scales differ by powers of two from 2^-20 to 2^20, and rows of zeros between them."""
    rows = draw.dims["num_tokens"]
    scale = torch.exp2((draw.uniform((rows, 1)) * 41).floor() - 20)
    scale[draw.uniform((rows, 1)) < 0.1] = 0
    return {"x": (draw.normal(_extent(draw), 1.0, torch.float32) * scale).to(torch.bfloat16)}


def one_element(draw: Draw) -> dict[str, Tensor]:
    """Rows whose norm is nearly all in one element, from the last to the first: none may be missed."""
    rows, hidden = _extent(draw)
    x = draw.normal((rows, hidden), hidden**-0.5 / 8, torch.float32)
    slots = _by_row(draw, hidden - 1, 0).round().long()
    return {"x": x.scatter_(1, slots, 3.0).to(torch.bfloat16)}


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """One large value at a different place in each row among many that must still be counted.

    The large square is 4H/3 and the others sum to about H: added one by one to an accumulator of
    8 significand bits they vanish, as they do when a running sum is rounded to bf16 or fp16.
    """
    hidden = draw.dims["hidden_size"]
    x = 1 + draw.uniform(_extent(draw)) * 0.25
    slots = _by_row(draw, 0, hidden - 1).round().long()
    return {"x": x.scatter_(1, slots, (4 * hidden / 3) ** 0.5).to(torch.bfloat16)}


def fine_squares(draw: Draw) -> dict[str, Tensor]:
    """x from _FINE: squares rounded to bf16 before they are added make the sum too small."""
    fine = torch.tensor(_FINE, device=draw.device)[draw.integers(_extent(draw), len(_FINE)).long()]
    return {"x": (1 + fine / 128).to(torch.bfloat16)}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation, "fine_squares": fine_squares},
    "sensitivity": {
        "wide": wide,
        "tiny_inputs": tiny_inputs,
        "uneven_rows": uneven_rows,
        "one_element": one_element,
    },
}
