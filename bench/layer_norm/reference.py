"""layer_norm: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: x [R, H] bf16, weight and bias [H] bf16, out [R, H] bf16; R is the product of a case's leading
dimensions. Formula: (x - m) * rsqrt(v + eps) * weight + bias, with m and v the mean and the biased variance
of a row (Ba, Kiros and Hinton, "Layer Normalization", 2016).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 24  # elements at a time: 128 MiB of fp64, and some six temporaries of that size


# 1 + n/128 for these n: the squares need 15 significand bits, and rounded to 8 all become smaller (n^2 mod
# 128 is 33 to 57), by 0.2 % of the sum; roundings in both directions would leave nothing of it.
_FINE = (7, 13, 17, 21, 43, 47, 51)


def extents(init: Init, input: Input) -> dict[str, int]:
    """Leading dimensions flattened: shape [..., H] becomes rows and last."""
    *leading, last = input["shape"]
    return {"rows": math.prod(leading), "last": last}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs, as rms_norm has them: x, bias ~ N(0, 0.02), weight ~ 1 + N(0, 0.02)."""
    hidden = draw.dims["last"]
    return {
        "x": draw.normal(_extent(draw), 0.02, torch.bfloat16),
        "weight": draw.normal((hidden,), 0.02, torch.bfloat16) + 1,
        "bias": draw.normal((hidden,), 0.02, torch.bfloat16),
    }


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: layer_norm of bf16 computes in fp32 and rounds once.

    Its backward on a CPU sums the gradients of weight and bias in their dtype and keeps each row's mean and
    scale in it (torch 2.13): where a gradient is wanted there, all is widened.
    """
    x, weight, bias = operands = tuple(inputs[name] for name in ("x", "weight", "bias"))
    if not x.is_cuda and any(operand.requires_grad for operand in operands):
        x, weight, bias = (operand.float() for operand in operands)
    out = functional.layer_norm(x, x.shape[-1:], weight, bias, init["eps"])
    return {"out": out.to(inputs["x"].dtype)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, a block of rows at a time.

    Rounding errors, with r = rsqrt(v + eps) and d = x - m. The mean's error is g mean|x|, which shifts all d
    alike: g mean|x| r |w| in the result. A variance computed from differences (in two passes, or by updates)
    has a relative error of at most g (1 + mean|x| / sqrt(v)) (Chan, Golub and LeVeque, "Algorithms for
    Computing the Sample Variance", 1983), half of which r inherits. So, with the rest of the chain,

        terms = |w| (|d| r + mean|x| r (1 + |d| r / 2)) + |bias|.

    mean(x^2) - m^2 has an error of g mean(x^2) / v instead: it is not within the bound where the mean is
    large beside the spread (probe `offset_rows`), which is its known defect and not a matter of fp32.
    """
    x, weight, bias = inputs["x"], inputs["weight"].double(), inputs["bias"].double()
    value, terms = (torch.empty(x.shape, dtype=torch.float64, device=x.device) for _ in range(2))
    step = max(1, _ORACLE_CHUNK // x.shape[1])
    for start in range(0, x.shape[0], step):
        part = slice(start, start + step)
        block = x[part].double()
        scale = torch.rsqrt(block.var(-1, correction=0, keepdim=True) + init["eps"])
        normed = (block - block.mean(-1, keepdim=True)) * scale
        value[part] = normed * weight + bias
        level = block.abs().mean(-1, keepdim=True) * scale
        size = normed.abs()
        terms[part] = weight.abs() * (size + level * (1 + size / 2)) + bias.abs()
    return {"out": Expected(value, terms)}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for R rows of H elements.

    Per element the addition to the mean, the subtraction, the square and its addition, the products with
    scale and weight and the bias (7 H); per row two divisions by H, the addition of eps and the root (4).
    """
    rows, hidden = shape.dims["rows"], shape.dims["last"]
    return Cost(
        flops={"fp32": float(rows * (7 * hidden + 4))},
        read_bytes=2 * rows * hidden + 4 * hidden,
        write_bytes=2 * rows * hidden,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows of the same width."""
    shape = extents(init, input)
    return init, {**input, "shape": [min(shape["rows"], 37), shape["last"]]}


def _extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["rows"], draw.dims["last"]


def _by_row(draw: Draw, first: float, last: float) -> Tensor:
    rows = draw.dims["rows"]
    return torch.linspace(first, last, max(rows, 1), device=draw.device)[:rows, None]


def _parameters(draw: Draw) -> dict[str, Tensor]:
    """Weights and biases of size about 1 and of both signs."""
    hidden = draw.dims["last"]
    return {
        "weight": draw.normal((hidden,), 1.0, torch.bfloat16),
        "bias": draw.normal((hidden,), 1.0, torch.bfloat16),
    }


def _identity(draw: Draw) -> dict[str, Tensor]:
    hidden = draw.dims["last"]
    weight = torch.ones(hidden, dtype=torch.bfloat16, device=draw.device)
    return {"weight": weight, "bias": torch.zeros_like(weight)}


def wide_parameters(draw: Draw) -> dict[str, Tensor]:
    """Rows of mean and spread of their own, weights of both signs and some zero, biases of size 1."""
    rows, hidden = _extent(draw)
    spread = torch.exp2(draw.uniform((rows, 1)) * 2 - 1)
    centre = draw.uniform((rows, 1)) * 4 - 2
    x = draw.normal((rows, hidden), 1.0, torch.float32) * spread + centre
    parameters = _parameters(draw)
    parameters["weight"][draw.uniform((hidden,)) < 0.05] = 0
    return {"x": x.to(torch.bfloat16), **parameters}


def offset_rows(draw: Draw) -> dict[str, Tensor]:
    """Rows that lie close together far from 0: mean(x^2) - mean^2 loses the variance to cancellation.

    A row holds 128 * 2^e or, in one place out of 16 (one at least), the next bf16 value: the mean is 500
    times the spread, of either sign. Its square's 17 bits and the sum's next ones do not fit into 24.
    """
    rows, hidden = _extent(draw)
    few = draw.uniform((rows, hidden)) < 1 / 16
    few.scatter_(1, _by_row(draw, 0, hidden - 1).round().long(), True)
    scale = torch.exp2((draw.uniform((rows, 1)) * 9).floor())
    scale = torch.where(draw.uniform((rows, 1)) < 0.5, -scale, scale)
    return {"x": ((128 + few.float()) * scale).to(torch.bfloat16), **_parameters(draw)}


def tiny_inputs(draw: Draw) -> dict[str, Tensor]:
    """Rows whose variance goes from far below the usual eps (1e-5) to far above it, some constant."""
    rows, hidden = _extent(draw)
    x = draw.normal((rows, hidden), 1.0, torch.float32) * torch.exp2(_by_row(draw, -14, -2))
    constant = draw.uniform((rows, 1)) < 0.1
    return {"x": torch.where(constant, x[:, :1], x).to(torch.bfloat16), **_parameters(draw)}


def uneven_rows(draw: Draw) -> dict[str, Tensor]:
    """Rows whose scales differ by powers of two from 2^-20 to 2^20: no row may leak into the next."""
    scale = torch.exp2((draw.uniform((draw.dims["rows"], 1)) * 41).floor() - 20)
    x = draw.normal(_extent(draw), 1.0, torch.float32) * scale
    return {"x": x.to(torch.bfloat16), **_parameters(draw)}


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """One large value at a different place in each row among many that must still be counted.

    Its square is larger than the sum of all the others': added to it one by one in 8 significand bits they
    vanish.
    """
    hidden = draw.dims["last"]
    x = 1 + draw.uniform(_extent(draw)) * 0.25
    x[:, 1::2] -= 1.5
    slots = _by_row(draw, 0, hidden - 1).round().long()
    return {"x": x.scatter_(1, slots, (4 * hidden / 3) ** 0.5).to(torch.bfloat16), **_identity(draw)}


def level_sum(draw: Draw) -> dict[str, Tensor]:
    """Values of one sign: a running sum of 8 or 11 significand bits stops growing long before the end."""
    x = 1 + draw.uniform(_extent(draw)) * 0.5
    return {"x": x.to(torch.bfloat16), **_identity(draw)}


def fine_squares(draw: Draw) -> dict[str, Tensor]:
    """±x from _FINE in pairs, so that the mean is 0: bf16 squares make the variance too small."""
    fine = torch.tensor(_FINE, device=draw.device)[draw.integers(_extent(draw), len(_FINE)).long()]
    x = 1 + fine / 128
    half = draw.dims["last"] // 2
    x[:, half : 2 * half] = -x[:, :half]
    x[:, 2 * half :] = 0
    return {"x": x.to(torch.bfloat16), **_identity(draw)}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation, "level_sum": level_sum, "fine_squares": fine_squares},
    "sensitivity": {
        "wide_parameters": wide_parameters,
        "offset_rows": offset_rows,
        "tiny_inputs": tiny_inputs,
        "uneven_rows": uneven_rows,
    },
}
