"""per_token_group_quant_fp8: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: x [T, H] bf16, quantized [T, H] FP8, scales [T, H / group_size] fp32. Formula: one scale per
row and group, amax / max_fp8 but at least 1e-10, as SGLang and vLLM quantise activations for
block-scaled GEMMs (after the fine-grained quantisation of DeepSeek-V3, arXiv:2412.19437, section 3.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atrex.fp8 import FP8, FP8_QUANT_MAX
from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 25  # elements at a time: 256 MiB of fp64
_FLOOR = 1e-10  # of a scale


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Groups of a row. Raises ValueError where the last group would not be full."""
    hidden, size = dims["hidden_size"], init["group_size"]
    if hidden % size:
        raise ValueError(f"hidden_size {hidden} is not a multiple of group_size {size}")
    return {"groups": hidden // size}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: activations x ~ N(0, 1)."""
    return {"x": draw.normal((draw.dims["token_count"], draw.dims["hidden_size"]), 1.0, torch.bfloat16)}


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it.

    The maximum is exact in bf16, and a bf16 tensor over an fp32 one divides in fp32: neither needs
    a widened copy of x.
    """
    x = inputs["x"]
    groups = x.unflatten(-1, (-1, init["group_size"]))
    scales = (groups.abs().amax(-1).float() / FP8_QUANT_MAX).clamp(min=_FLOOR)
    quotient = (groups / scales[..., None]).clamp_(-FP8_QUANT_MAX, FP8_QUANT_MAX)
    return {"quantized": quotient.to(FP8).view(x.shape), "scales": scales}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, a block of rows at a time; the quotient before its rounding to FP8.

    A maximum is exact, so only divisions err, and all errors are relative: `terms` is the result
    itself. With the approximate fp32 division of GPU compilers (2 ulp, so 4 u) the scale is within
    4 u. The quotient is x / scale (4 u more) or x * (1 / scale) (4 u and a product, u): 9 u with the
    scale's own error, and 10 steps with the store. Near a tie either FP8 code is then in bounds.
    """
    x, size = inputs["x"], init["group_size"]
    rows, hidden = x.shape
    quotient = torch.empty((rows, hidden), dtype=torch.float64, device=x.device)
    scales = torch.empty((rows, hidden // size), dtype=torch.float64, device=x.device)
    step = max(1, _ORACLE_CHUNK // hidden)
    for start in range(0, rows, step):
        block = x[start : start + step].double().reshape(-1, hidden // size, size)
        lowest, highest = block.aminmax(dim=-1)
        scale = (torch.maximum(highest, -lowest) / FP8_QUANT_MAX).clamp(min=_FLOOR)
        scaled = (block / scale[..., None]).clamp(-FP8_QUANT_MAX, FP8_QUANT_MAX)
        quotient[start : start + step] = scaled.flatten(1)
        scales[start : start + step] = scale
    return {"quantized": Expected(quotient, quotient.abs()), "scales": Expected(scales, scales)}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T rows of H elements in G groups.

    A quotient per element and one per scale; comparisons and conversions are not arithmetic.
    """
    rows, hidden, groups = (shape.dims[name] for name in ("token_count", "hidden_size", "groups"))
    return Cost(
        flops={"fp32": float(rows * (hidden + groups))},
        read_bytes=2 * rows * hidden,
        write_bytes=rows * hidden + 4 * rows * groups,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows of the same width."""
    return init, {**input, "token_count": min(input["token_count"], 31)}


def _odd(group_size: int, token_count: int, hidden_size: int) -> tuple[Init, Input]:
    return {"group_size": group_size}, {"token_count": token_count, "hidden_size": hidden_size}


# Tiles of rows or groups that are never full, one group or many to a row, group sizes beside the
# powers of two and beside 128, and a count of rows above the y extent of a CUDA grid.
ODD = (
    _odd(128, 0, 256),
    _odd(128, 1, 128),
    _odd(128, 7, 384),
    _odd(128, 3, 5120 + 128),
    _odd(128, 127, 1152),
    _odd(128, 129, 640),
    _odd(128, 1025, 128),
    _odd(128, 2, 65536),
    _odd(64, 5, 64),
    _odd(64, 33, 4160),
    _odd(32, 17, 1312),
    _odd(16, 65, 48),
    _odd(8, 13, 4104),
    _odd(1, 3, 37),
    _odd(7, 31, 91),
    _odd(100, 2, 700),
    _odd(96, 63, 960),
    _odd(256, 5, 7168),
    _odd(256, 3, 512),
    _odd(1000, 2, 3000),
    _odd(127, 1, 1397),
    _odd(4096, 3, 8192),
    _odd(5000, 2, 10000),
    _odd(16384, 1, 32768),
    _odd(128, 65537, 128),
)


def _signs(draw: Draw, shape: Sequence[int]) -> Tensor:
    return torch.where(draw.uniform(shape) < 0.5, -1.0, 1.0)


def _grouped(draw: Draw) -> tuple[int, int, int]:
    return draw.dims["token_count"], draw.dims["groups"], int(draw.init["group_size"])


def _as_rows(draw: Draw, groups: Tensor) -> dict[str, Tensor]:
    return {"x": groups.to(torch.bfloat16).view(draw.dims["token_count"], draw.dims["hidden_size"])}


def uneven_groups(draw: Draw) -> dict[str, Tensor]:
    """N(0, 1) in groups whose scales differ by powers of two from 2^-8 to 2^8: none may leak."""
    rows, groups, size = _grouped(draw)
    exponent = (draw.uniform((rows, groups, 1)) * 17).floor() - 8
    return _as_rows(draw, draw.normal((rows, groups, size), 1.0, torch.float32) * torch.exp2(exponent))


def one_outlier(draw: Draw) -> dict[str, Tensor]:
    """One large element of either sign, at a drawn place of each group, and the rest 2^10 below it.

    Whoever misses one lane of the maximum, or its sign, gets a scale 1000 times too small.
    """
    rows, groups, size = _grouped(draw)
    x = _signs(draw, (rows, groups, size)) * (1 + draw.uniform((rows, groups, size)))
    place = draw.integers((rows, groups, 1), size, torch.int64)
    return _as_rows(draw, x.scatter_(2, place, 1024 * _signs(draw, (rows, groups, 1))))


def wide_range(draw: Draw) -> dict[str, Tensor]:
    """Magnitudes from the group's largest down to 2^-17 of it: into the subnormal codes of FP8."""
    rows, groups, size = _grouped(draw)
    exponent = -17 * draw.uniform((rows, groups, size))
    exponent.scatter_(2, draw.integers((rows, groups, 1), size, torch.int64), 0.0)
    return _as_rows(draw, _signs(draw, exponent.shape) * torch.exp2(exponent))


def near_floor(draw: Draw) -> dict[str, Tensor]:
    """Groups whose amax goes from 1e-10 to 1e-6 (the floor acts below 4.5e-8), every fifth all zero."""
    rows, groups, size = _grouped(draw)
    amax = torch.pow(10.0, -10 + 4 * draw.uniform((rows, groups, 1)))
    amax[draw.uniform((rows, groups, 1)) < 0.2] = 0
    return _as_rows(
        draw, _signs(draw, (rows, groups, size)) * (0.5 + draw.uniform((rows, groups, size))) * amax
    )


def extreme_scales(draw: Draw) -> dict[str, Tensor]:
    """amax from 1 up to 2^127, the last binade of bf16: no overflow on the way, and nothing in fp16."""
    rows, groups, size = _grouped(draw)
    exponent = (draw.uniform((rows, groups, 1)) * 127).floor()
    x = _signs(draw, (rows, groups, size)) * (1 + draw.uniform((rows, groups, size)) / 2)
    return _as_rows(draw, x * torch.exp2(exponent))


# Directed inputs by the gate that uses them. There is no sum that a narrow accumulator could spoil.
PROBES = {
    "sensitivity": {
        "uneven_groups": uneven_groups,
        "one_outlier": one_outlier,
        "wide_range": wide_range,
        "near_floor": near_floor,
        "extreme_scales": extreme_scales,
    },
}
