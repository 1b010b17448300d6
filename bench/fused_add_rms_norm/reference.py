"""fused_add_rms_norm: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: x and residual [T, H] bf16, weight [H] bf16; out and residual [T, H] bf16. Formula: residual' = x +
residual, rounded to bf16; out = residual' * rsqrt(mean(residual'^2) + eps) * weight in fp32, rounded once
(Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, with eps inside the root).
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
    """Production-like inputs, as rms_norm has them: x, residual ~ N(0, 0.02), weight ~ 1 + N(0, 0.02)."""
    rows, hidden = draw.dims["token_count"], draw.dims["hidden_size"]
    return {
        "x": draw.normal((rows, hidden), 0.02, torch.bfloat16),
        "residual": draw.normal((rows, hidden), 0.02, torch.bfloat16),
        "weight": draw.normal((hidden,), 0.02, torch.bfloat16) + 1,
    }


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it."""
    total = inputs["x"] + inputs["residual"]
    wide = total.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + init["eps"])
    return {"out": (wide * scale * inputs["weight"].float()).to(total.dtype), "residual": total}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64 with its named rounding of the sum to bf16, a block of rows at a time.

    The rounded sum has one right value (problem.yaml), so nothing of its rounding enters the bound of
    `out`. All terms of the mean are squares: nothing cancels, and `terms` is the result itself.
    """
    x, residual, weight = inputs["x"], inputs["residual"], inputs["weight"].double()
    value = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    total = torch.empty_like(x)
    step = max(1, _ORACLE_CHUNK // x.shape[1])
    for start in range(0, x.shape[0], step):
        part = slice(start, start + step)
        total[part] = (x[part].double() + residual[part].double()).to(x.dtype)
        block = total[part].double()
        value[part] = block * torch.rsqrt(block.square().mean(-1, keepdim=True) + init["eps"]) * weight
    return {
        "out": Expected(value, value.abs()),
        "residual": Expected(total, total.new_zeros(()).expand(total.shape)),
    }


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T rows of H elements.

    Per element the addition of the residual, a square and its addition, and the products with the scale
    and the weight (5 H); per row the division by H, the addition of eps and the reciprocal root (3).
    """
    rows, hidden = shape.dims["token_count"], shape.dims["hidden_size"]
    return Cost(
        flops={"fp32": float(rows * (5 * hidden + 3))},
        read_bytes=4 * rows * hidden + 2 * hidden,
        write_bytes=4 * rows * hidden,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows of the same width."""
    return init, {**input, "token_count": min(input["token_count"], 37)}


def _extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["token_count"], draw.dims["hidden_size"]


def _halved(draw: Draw, total: Tensor) -> dict[str, Tensor]:
    """Inputs whose sum is exactly `total`, which bf16 must hold, under a weight of one."""
    half = (total / 2).to(torch.bfloat16)
    weight = torch.ones(draw.dims["hidden_size"], dtype=torch.bfloat16, device=draw.device)
    return {"x": half, "residual": half.clone(), "weight": weight}


def wide_parameters(draw: Draw) -> dict[str, Tensor]:
    """x ~ N(0, 1), residual ~ N(0, 3), weights far from 1, of both signs, some of them zero.

    The sum has more bits than bf16: a kernel that normalises it before it is rounded shows in `out`.
    """
    rows, hidden = _extent(draw)
    weight = draw.normal((hidden,), 2.0, torch.bfloat16)
    weight[draw.uniform((hidden,)) < 0.05] = 0
    return {
        "x": draw.normal((rows, hidden), 1.0, torch.bfloat16),
        "residual": draw.normal((rows, hidden), 3.0, torch.bfloat16),
        "weight": weight,
    }


def cancelling(draw: Draw) -> dict[str, Tensor]:
    """residual = -x up to an eighth: the sum is exact, smaller than both, and all that must be normalised."""
    rows, hidden = _extent(draw)
    x = draw.normal((rows, hidden), 1.0, torch.bfloat16)
    nudge = 1 + (draw.uniform((rows, hidden)) - 0.5) / 4
    residual = (-x.float() * nudge).to(torch.bfloat16)
    return {"x": x, "residual": residual, "weight": draw.normal((hidden,), 1.0, torch.bfloat16)}


def lost_addends(draw: Draw) -> dict[str, Tensor]:
    """Addends 2^0 to 2^14 apart, half of them exact ties: the rounding of the sum, and its ties, decide.

    The smaller is an odd multiple of half a unit of the larger, or a random value; roles alternate by row.
    """
    rows, hidden = _extent(draw)
    large = (1 + (draw.uniform((rows, hidden)) * 128).floor() / 128) * _sign(draw)
    tie = (2 * (draw.uniform((rows, hidden)) * 8).floor() + 1) / 256
    loose = draw.normal((rows, hidden), 1.0, torch.float32)
    loose *= torch.exp2(-(draw.uniform((rows, hidden)) * 15).floor())
    small = torch.where(draw.uniform((rows, hidden)) < 0.5, tie * _sign(draw), loose)
    swap = torch.arange(rows, device=draw.device)[:, None] % 2 == 1
    return {
        "x": torch.where(swap, small, large).to(torch.bfloat16),
        "residual": torch.where(swap, large, small).to(torch.bfloat16),
        "weight": draw.normal((hidden,), 1.0, torch.bfloat16),
    }


def _sign(draw: Draw) -> Tensor:
    return torch.where(draw.uniform(_extent(draw)) < 0.5, -1.0, 1.0)


def tiny_inputs(draw: Draw) -> dict[str, Tensor]:
    """Rows whose mean square goes from far below the usual eps (1e-6) to far above it."""
    rows, hidden = _extent(draw)
    scale = torch.exp2(torch.linspace(-16, -4, max(rows, 1), device=draw.device)[:rows, None])
    x, residual = (draw.normal((rows, hidden), 1.0, torch.float32) * scale for _ in range(2))
    weight = draw.normal((hidden,), 0.5, torch.bfloat16) + 1
    return {"x": x.to(torch.bfloat16), "residual": residual.to(torch.bfloat16), "weight": weight}


def uneven_rows(draw: Draw) -> dict[str, Tensor]:
    """Rows whose scales differ by powers of two from 2^-20 to 2^20: no row may leak into the next."""
    rows, hidden = _extent(draw)
    scale = torch.exp2((draw.uniform((rows, 1)) * 41).floor() - 20)
    x, residual = (draw.normal((rows, hidden), 1.0, torch.float32) * scale for _ in range(2))
    weight = draw.normal((hidden,), 1.0, torch.bfloat16)
    return {"x": x.to(torch.bfloat16), "residual": residual.to(torch.bfloat16), "weight": weight}


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """One large sum at a different place in each row among many that must still be counted.

    The large square is 4H/3 and the others sum to about H: added one by one to an accumulator of
    8 significand bits they vanish, as they do when a running sum is rounded to bf16 or fp16.
    """
    rows, hidden = _extent(draw)
    total = 1 + draw.uniform((rows, hidden)) * 0.25
    slots = torch.linspace(0, hidden - 1, max(rows, 1), device=draw.device)[:rows].round().long()
    return _halved(draw, total.scatter_(1, slots[:, None], (4 * hidden / 3) ** 0.5))


def fine_squares(draw: Draw) -> dict[str, Tensor]:
    """Sums from _FINE: squares rounded to bf16 before they are added make the sum too small."""
    fine = torch.tensor(_FINE, device=draw.device)[draw.integers(_extent(draw), len(_FINE)).long()]
    inputs = _halved(draw, 1 + fine / 128)
    weight = 1 + (draw.uniform((draw.dims["hidden_size"],)) * 128).floor() / 128
    return {**inputs, "weight": weight.to(torch.bfloat16)}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation, "fine_squares": fine_squares},
    "sensitivity": {
        "wide_parameters": wide_parameters,
        "cancelling": cancelling,
        "lost_addends": lost_addends,
        "tiny_inputs": tiny_inputs,
        "uneven_rows": uneven_rows,
    },
}
