"""fused_rmsnorm_quant: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: x and residual [T, H] bf16, weight [H] bf16; q [T, H] FP8, scale [T, 1] fp32, residual_out
[T, H] bf16. Formula: residual_out = x + residual, rounded to bf16; normed = residual_out *
rsqrt(mean(residual_out^2) + eps) * weight in fp32 (Zhang and Sennrich, 2019), rounded to bf16; scale =
amax(|normed|) / max_fp8 per row, 1 where that is 0; q = normed / scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atrex.fp8 import FP8, FP8_MAX
from atrex.problem import Draw, Expected, Init, Input, Precision
from atrex.records import Cost, Shape
from bench.rounding import rounded

_ORACLE_CHUNK = 1 << 24  # elements at a time: 128 MiB of fp64, and some eight temporaries of that size
# fp32 roundings of `normed` after the sum: divide, add eps, rsqrt (2 ulp: 4 u), two products, a spare one.
_NORM_STEPS = 9


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs, as for rms_norm: x, residual ~ N(0, 0.02), weight ~ 1 + N(0, 0.02)."""
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
    root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + init["eps"])
    normed = (wide * root * inputs["weight"].float()).to(total.dtype)
    scale = normed.abs().amax(-1, keepdim=True).float() / FP8_MAX
    scale = torch.where(scale == 0, 1.0, scale)
    quotient = (normed / scale).clamp_(-FP8_MAX, FP8_MAX)
    return {"q": quotient.to(FP8), "scale": scale, "residual_out": total}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64 with its two named roundings to bf16, a block of rows at a time.

    residual_out has one right value (problem.yaml). fp32 has |normed| to a relative g = u (min(H,
    6 sqrt(H)) + 9), so its bf16 value is one of those between the roundings of |normed| (1 - g) and
    |normed| (1 + g): nearly always a single value, next to a tie two neighbours. Rounding and
    maximum are monotone, so intervals carry over: amax lies between the largest lower and the largest
    upper value of the row, and a quotient between lower / largest and upper / smallest scale. `slack`
    is what these intervals reach beyond the value. What is left is relative, as in
    fp8_dynamic_per_token_quant: `terms` is the value, for 10 roundings of the scale and the quotient.
    """
    x, residual, weight = inputs["x"], inputs["residual"], inputs["weight"].double()
    rows, hidden = x.shape
    quotient, slack = (torch.empty((rows, hidden), dtype=torch.float64, device=x.device) for _ in range(2))
    scale, scale_slack = (torch.empty((rows, 1), dtype=torch.float64, device=x.device) for _ in range(2))
    total = torch.empty_like(x)
    growth = Precision("fp32", hidden, _NORM_STEPS).growth
    step = max(1, _ORACLE_CHUNK // hidden)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        total[part] = (x[part].double() + residual[part].double()).to(x.dtype)
        block = total[part].double()
        normed = block * torch.rsqrt(block.square().mean(-1, keepdim=True) + init["eps"]) * weight
        size = normed.abs()
        low, middle, high = (rounded(size * factor) for factor in (1 - growth, 1.0, 1 + growth))
        least, scale[part], most = (_scale(level) for level in (low, middle, high))
        scale_slack[part] = torch.maximum(scale[part] - least, most - scale[part])
        value = middle / scale[part]
        above = (high / least).clamp(max=FP8_MAX) - value
        slack[part] = torch.maximum(above, value - low / most).clamp(min=0)
        quotient[part] = torch.copysign(value, normed)
    return {
        "q": Expected(quotient, quotient.abs(), slack),
        "scale": Expected(scale, scale, scale_slack),
        "residual_out": Expected(total, total.new_zeros(()).expand(total.shape)),
    }


def _scale(size: Tensor) -> Tensor:
    scale = size.amax(-1, keepdim=True) / FP8_MAX
    return torch.where(scale == 0, 1.0, scale)


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T rows of H elements.

    Per element the addition of the residual, a square and an addition, the products with the root and
    the weight, and the quotient (6 H); per row the division by H, the addition of eps, the reciprocal
    root and the scale (4).
    """
    rows, hidden = shape.dims["token_count"], shape.dims["hidden_size"]
    return Cost(
        flops={"fp32": float(rows * (6 * hidden + 4))},
        read_bytes=4 * rows * hidden + 2 * hidden,
        write_bytes=3 * rows * hidden + 4 * rows,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows of the same width."""
    return init, {**input, "token_count": min(input["token_count"], 37)}


def _extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["token_count"], draw.dims["hidden_size"]


def _signs(draw: Draw, shape: Sequence[int]) -> Tensor:
    return torch.where(draw.uniform(shape) < 0.5, -1.0, 1.0)


def _unit_weight(draw: Draw) -> Tensor:
    return torch.ones(draw.dims["hidden_size"], dtype=torch.bfloat16, device=draw.device)


def _halved(draw: Draw, total: Tensor) -> dict[str, Tensor]:
    """Inputs whose sum is exactly `total`, which bf16 must hold, under a weight of one."""
    half = (total / 2).to(torch.bfloat16)
    return {"x": half, "residual": half.clone(), "weight": _unit_weight(draw)}


def wide_parameters(draw: Draw) -> dict[str, Tensor]:
    """x and residual ~ N(0, 1) times a power of two of each row, under weights far from 1, some zero."""
    rows, hidden = _extent(draw)
    exponent = (draw.uniform((rows, 1)) * 9).floor() - 4
    x, residual = (draw.normal((rows, hidden), 1.0, torch.float32) * torch.exp2(exponent) for _ in range(2))
    weight = draw.normal((hidden,), 2.0, torch.bfloat16)
    weight[draw.uniform((hidden,)) < 0.05] = 0
    return {"x": x.to(torch.bfloat16), "residual": residual.to(torch.bfloat16), "weight": weight}


def tiny_inputs(draw: Draw) -> dict[str, Tensor]:
    """Rows whose mean square goes from far below the usual eps (1e-5) to far above it."""
    rows, hidden = _extent(draw)
    exponent = torch.linspace(-16, -4, max(rows, 1), device=draw.device)[:rows, None]
    x, residual = (draw.normal((rows, hidden), 1.0, torch.float32) * torch.exp2(exponent) for _ in range(2))
    weight = draw.normal((hidden,), 0.5, torch.bfloat16) + 1
    return {"x": x.to(torch.bfloat16), "residual": residual.to(torch.bfloat16), "weight": weight}


def faint_rows(draw: Draw) -> dict[str, Tensor]:
    """Rows of 2^-100 to 2^-20, far below eps: their results are as faint, and their scales must be, too."""
    rows, hidden = _extent(draw)
    exponent = torch.linspace(-100, -20, max(rows, 1), device=draw.device)[:rows, None]
    x, residual = (draw.normal((rows, hidden), 1.0, torch.float32) * torch.exp2(exponent) for _ in range(2))
    weight = draw.normal((hidden,), 0.5, torch.bfloat16) + 1
    return {"x": x.to(torch.bfloat16), "residual": residual.to(torch.bfloat16), "weight": weight}


def cancelled_rows(draw: Draw) -> dict[str, Tensor]:
    """residual = -x but for a small rest in two rows of three; where nothing is left the scale is 1."""
    rows, hidden = _extent(draw)
    x = draw.normal((rows, hidden), 4.0, torch.float32).to(torch.bfloat16).float()
    rest = draw.normal((rows, hidden), 0.125, torch.float32)
    rest[1::3] = 0
    weight = draw.normal((hidden,), 0.5, torch.bfloat16) + 1
    return {"x": x.to(torch.bfloat16), "residual": (rest - x).to(torch.bfloat16), "weight": weight}


def lost_bits(draw: Draw) -> dict[str, Tensor]:
    """x of one sign with 8 significant bits, a residual of 1/64 of it: the sum must be rounded first.

    Whoever normalises the unrounded sum is off by up to half a bf16 ulp before `normed` is rounded.
    """
    rows, hidden = _extent(draw)
    x = 1 + draw.integers((rows, hidden), 128).float() / 128
    residual = (draw.uniform((rows, hidden)) - 0.5) / 16
    weight = draw.normal((hidden,), 0.5, torch.bfloat16) + 1
    return {"x": x.to(torch.bfloat16), "residual": residual.to(torch.bfloat16), "weight": weight}


def one_outlier(draw: Draw) -> dict[str, Tensor]:
    """One element 2^15 times the others, at a drawn place: the rest gets subnormal codes of FP8."""
    rows, hidden = _extent(draw)
    total = _signs(draw, (rows, hidden)) * (1 + draw.uniform((rows, hidden)))
    place = draw.integers((rows, 1), hidden, torch.int64)
    total.scatter_(1, place, 2.0**16 * _signs(draw, (rows, 1)))
    return _halved(draw, total)


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """One large value at a different place in each row among many that must still be counted.

    The large square is 4H/3 and the others sum to about H: added one by one to an accumulator of
    8 significand bits they vanish, as they do when a running sum is rounded to bf16 or fp16.
    """
    rows, hidden = _extent(draw)
    total = 1 + draw.uniform((rows, hidden)) * 0.25
    slots = torch.linspace(0, hidden - 1, max(rows, 1), device=draw.device)[:rows].round().long()
    return _halved(draw, total.scatter_(1, slots[:, None], (4 * hidden / 3) ** 0.5))


def fine_squares(draw: Draw) -> dict[str, Tensor]:
    """residual_out = 1 + odd/128: each square needs 15 significand bits, which bf16 products lose."""
    rows, hidden = _extent(draw)
    odd = (draw.uniform((rows, hidden)) * 32).floor() * 2 + 1
    return _halved(draw, 1 + odd / 128)


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation, "fine_squares": fine_squares},
    "sensitivity": {
        "wide_parameters": wide_parameters,
        "tiny_inputs": tiny_inputs,
        "faint_rows": faint_rows,
        "cancelled_rows": cancelled_rows,
        "lost_bits": lost_bits,
        "one_outlier": one_outlier,
    },
}
