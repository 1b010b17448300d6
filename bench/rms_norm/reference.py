"""rms_norm: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: x [T, H] bf16, weight [H] bf16, out [T, H] bf16. Formula: Zhang and Sennrich, "Root Mean
Square Layer Normalization" (2019), with eps inside the root as LLM serving engines compute it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 25  # elements at a time: 256 MiB of fp64


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: x ~ N(0, 0.02), weight ~ 1 + N(0, 0.02)."""
    rows, hidden = draw.dims["token_count"], draw.dims["hidden_size"]
    return {
        "x": draw.normal((rows, hidden), 0.02, torch.bfloat16),
        "weight": draw.normal((hidden,), 0.02, torch.bfloat16) + 1,
    }


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it."""
    x = inputs["x"].float()
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + init["eps"])
    return {"out": (x * scale * inputs["weight"].float()).to(inputs["x"].dtype)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, a block of rows at a time.

    Every term of the sum is a square, so nothing cancels and the magnitude that rounding errors
    grow from (`terms`) is the result itself.
    """
    x, weight = inputs["x"], inputs["weight"].double()
    value = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    step = max(1, _ORACLE_CHUNK // max(1, x.shape[1]))
    for start in range(0, x.shape[0], step):
        block = x[start : start + step].double()
        mean = block.square().mean(-1, keepdim=True)
        value[start : start + step] = block * torch.rsqrt(mean + init["eps"]) * weight
    return {"out": Expected(value, value.abs())}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T rows of H elements.

    Per element a square, an addition, and the products with the scale and the weight (4 H); per row
    the division by H, the addition of eps and the reciprocal root (3).
    """
    rows, hidden = shape.dims["token_count"], shape.dims["hidden_size"]
    return Cost(
        flops={"fp32": float(rows * (4 * hidden + 3))},
        read_bytes=2 * rows * hidden + 2 * hidden,
        write_bytes=2 * rows * hidden,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows of the same width."""
    return init, {**input, "token_count": min(input["token_count"], 37)}


def _unit_weight(draw: Draw) -> Tensor:
    return torch.ones(draw.dims["hidden_size"], dtype=torch.bfloat16, device=draw.device)


def wide_parameters(draw: Draw) -> dict[str, Tensor]:
    """x ~ N(0, 1) under weights far from 1, of both signs, some of them zero."""
    rows, hidden = draw.dims["token_count"], draw.dims["hidden_size"]
    weight = draw.normal((hidden,), 2.0, torch.bfloat16)
    weight[draw.uniform((hidden,)) < 0.05] = 0
    return {"x": draw.normal((rows, hidden), 1.0, torch.bfloat16), "weight": weight}


def tiny_inputs(draw: Draw) -> dict[str, Tensor]:
    """Rows whose mean square goes from far below the usual eps (1e-6) to far above it."""
    rows, hidden = draw.dims["token_count"], draw.dims["hidden_size"]
    exponent = torch.linspace(-16, -4, max(rows, 1), device=draw.device)[:rows, None]
    x = draw.normal((rows, hidden), 1.0, torch.float32) * torch.exp2(exponent)
    return {"x": x.to(torch.bfloat16), "weight": draw.normal((hidden,), 0.5, torch.bfloat16) + 1}


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """One large value at a different place in each row among many that must still be counted.

    The large square is 4H/3 and the others sum to about H: added one by one to an accumulator of
    8 significand bits they vanish, as they do when a running sum is rounded to bf16 or fp16.
    """
    rows, hidden = draw.dims["token_count"], draw.dims["hidden_size"]
    x = 1 + draw.uniform((rows, hidden)) * 0.25
    slots = torch.linspace(0, hidden - 1, max(rows, 1), device=draw.device)[:rows].round().long()
    x.scatter_(1, slots[:, None], (4 * hidden / 3) ** 0.5)
    return {"x": x.to(torch.bfloat16), "weight": _unit_weight(draw)}


def fine_squares(draw: Draw) -> dict[str, Tensor]:
    """x = 1 + odd/128: each square needs 15 significand bits, which TF32 and bf16 products lose."""
    rows, hidden = draw.dims["token_count"], draw.dims["hidden_size"]
    odd = (draw.uniform((rows, hidden)) * 32).floor() * 2 + 1
    weight = 1 + (draw.uniform((hidden,)) * 128).floor() / 128
    return {"x": (1 + odd / 128).to(torch.bfloat16), "weight": weight.to(torch.bfloat16)}


def uneven_rows(draw: Draw) -> dict[str, Tensor]:
    """Rows whose scales differ by powers of two from 2^-20 to 2^20: no row may leak into the next."""
    rows, hidden = draw.dims["token_count"], draw.dims["hidden_size"]
    exponent = (draw.uniform((rows, 1)) * 41).floor() - 20
    x = draw.normal((rows, hidden), 1.0, torch.float32) * torch.exp2(exponent)
    return {"x": x.to(torch.bfloat16), "weight": draw.normal((hidden,), 1.0, torch.bfloat16)}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation, "fine_squares": fine_squares},
    "sensitivity": {
        "wide_parameters": wide_parameters,
        "tiny_inputs": tiny_inputs,
        "uneven_rows": uneven_rows,
    },
}
