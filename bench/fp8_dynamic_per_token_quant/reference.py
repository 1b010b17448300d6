"""fp8_dynamic_per_token_quant: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: x [T, H] bf16, q [T, H] FP8, scale [T] fp32. Formula: one scale per row, max(amax, 1e-12) /
max_fp8, and q = clamp(x * (1 / scale)), as serving engines quantise the activations of FP8 linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atrex.fp8 import FP8, FP8_MAX
from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 25  # elements at a time: 256 MiB of fp64
_FLOOR = 1e-12  # of amax


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: activations x ~ N(0, 1)."""
    return {"x": draw.normal((draw.dims["token_count"], draw.dims["hidden_size"]), 1.0, torch.bfloat16)}


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it.

    The maximum is exact in bf16, and a bf16 tensor times an fp32 one multiplies in fp32: neither
    needs a widened copy of x.
    """
    x = inputs["x"]
    scale = x.abs().amax(-1).float().clamp(min=_FLOOR) / FP8_MAX
    scaled = (x * scale.reciprocal()[:, None]).clamp_(-FP8_MAX, FP8_MAX)
    return {"q": scaled.to(FP8), "scale": scale}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, a block of rows at a time; the quotient before its rounding to FP8.

    A maximum is exact, so only divisions and a product err, and all errors are relative: `terms` is
    the result itself. With the approximate fp32 division of GPU compilers (2 ulp, so 4 u) the scale is
    within 4 u. Its reciprocal (4 u more) times x (u), or x / scale, is within 9 u, and 10 steps with
    the store. Near a tie either FP8 code is then in bounds.
    """
    x = inputs["x"]
    rows, hidden = x.shape
    quotient = torch.empty((rows, hidden), dtype=torch.float64, device=x.device)
    scales = torch.empty((rows,), dtype=torch.float64, device=x.device)
    step = max(1, _ORACLE_CHUNK // hidden)
    for start in range(0, rows, step):
        block = x[start : start + step].double()
        lowest, highest = block.aminmax(dim=-1)
        scale = torch.maximum(highest, -lowest).clamp(min=_FLOOR) / FP8_MAX
        quotient[start : start + step] = (block / scale[:, None]).clamp(-FP8_MAX, FP8_MAX)
        scales[start : start + step] = scale
    return {"q": Expected(quotient, quotient.abs()), "scale": Expected(scales, scales)}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T rows of H elements.

    A quotient per element and one for the scale: a reciprocal per row is a way to compute the
    quotients, not further work. Comparisons and conversions are not arithmetic.
    """
    rows, hidden = shape.dims["token_count"], shape.dims["hidden_size"]
    return Cost(
        flops={"fp32": float(rows * (hidden + 1))},
        read_bytes=2 * rows * hidden,
        write_bytes=rows * hidden + 4 * rows,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows of the same width."""
    return init, {**input, "token_count": min(input["token_count"], 31)}


def _extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["token_count"], draw.dims["hidden_size"]


def _signs(draw: Draw, shape: Sequence[int]) -> Tensor:
    return torch.where(draw.uniform(shape) < 0.5, -1.0, 1.0)


def uneven_rows(draw: Draw) -> dict[str, Tensor]:
    """N(0, 1) in rows whose scales differ by powers of two from 2^-8 to 2^8: none may leak."""
    rows, hidden = _extent(draw)
    exponent = (draw.uniform((rows, 1)) * 17).floor() - 8
    return {"x": (draw.normal((rows, hidden), 1.0, torch.float32) * torch.exp2(exponent)).to(torch.bfloat16)}


def one_outlier(draw: Draw) -> dict[str, Tensor]:
    """One large element of either sign, at a drawn place of each row, and the rest 2^10 below it.

    Whoever misses one lane of the maximum, or its sign, gets a scale 1000 times too small.
    """
    rows, hidden = _extent(draw)
    x = _signs(draw, (rows, hidden)) * (1 + draw.uniform((rows, hidden)))
    place = draw.integers((rows, 1), hidden, torch.int64)
    return {"x": x.scatter_(1, place, 1024 * _signs(draw, (rows, 1))).to(torch.bfloat16)}


def outlier_at_the_ends(draw: Draw) -> dict[str, Tensor]:
    """The large element is the last of even rows and the first of odd ones."""
    rows, hidden = _extent(draw)
    x = _signs(draw, (rows, hidden)) * (1 + draw.uniform((rows, hidden)))
    x[0::2, -1] *= 256
    x[1::2, 0] *= 256
    return {"x": x.to(torch.bfloat16)}


def wide_range(draw: Draw) -> dict[str, Tensor]:
    """Magnitudes from the row's largest down to 2^-17 of it: into the subnormal codes of FP8."""
    rows, hidden = _extent(draw)
    exponent = -17 * draw.uniform((rows, hidden))
    exponent.scatter_(1, draw.integers((rows, 1), hidden, torch.int64), 0.0)
    return {"x": (_signs(draw, (rows, hidden)) * torch.exp2(exponent)).to(torch.bfloat16)}


def near_floor(draw: Draw) -> dict[str, Tensor]:
    """Rows whose amax goes from 1e-14 to 1e-8 around the floor of 1e-12, every fifth all zero."""
    rows, hidden = _extent(draw)
    amax = torch.pow(10.0, -14 + 6 * draw.uniform((rows, 1)))
    amax[draw.uniform((rows, 1)) < 0.2] = 0
    x = _signs(draw, (rows, hidden)) * (0.5 + draw.uniform((rows, hidden))) * amax
    return {"x": x.to(torch.bfloat16)}


def extreme_scales(draw: Draw) -> dict[str, Tensor]:
    """amax from 1 up to 2^127, the last binade of bf16: no overflow on the way, and nothing in fp16."""
    rows, hidden = _extent(draw)
    exponent = (draw.uniform((rows, 1)) * 127).floor()
    x = _signs(draw, (rows, hidden)) * (1 + draw.uniform((rows, hidden)) / 2)
    return {"x": (x * torch.exp2(exponent)).to(torch.bfloat16)}


# Directed inputs by the gate that uses them. There is no sum that a narrow accumulator could spoil.
PROBES = {
    "sensitivity": {
        "uneven_rows": uneven_rows,
        "one_outlier": one_outlier,
        "outlier_at_the_ends": outlier_at_the_ends,
        "wide_range": wide_range,
        "near_floor": near_floor,
        "extreme_scales": extreme_scales,
    },
}
