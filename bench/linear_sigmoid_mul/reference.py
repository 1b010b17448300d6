"""linear_sigmoid_mul: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: hidden_states [T, K], weight [N, K], bias [N], post_mul_mat [T, N], out [T, N], all bf16. Formula:
gate = hidden weight^T + bias in fp32, rounded to bf16; out = sigmoid(gate) * post_mul_mat in fp32, rounded
once: the gate of a shared expert or of an attention output.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Draw, Expected, Init, Input, Precision
from atrex.records import Cost, Shape
from bench.alignment import aligned
from bench.rounding import interval

_ORACLE_CHUNK = (
    1 << 24
)  # elements of an operand or a result at a time: 128 MiB of fp64, and some ten of that size
_GATE_STEPS = 2  # fp32 roundings of the gate beside the sum of its products: the bias, a spare one
_TINY = 2.0**-126  # smallest normal number of fp32


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production inputs: N(0, 0.02), the weight N(0, K^-1/2)."""
    rows, inner, features = _extents(draw)
    return {
        "hidden_states": draw.normal((rows, inner), 0.02, torch.bfloat16),
        "weight": draw.normal((features, inner), inner**-0.5, torch.bfloat16),
        "bias": draw.normal((features,), 0.02, torch.bfloat16),
        "post_mul_mat": draw.normal((rows, features), 0.02, torch.bfloat16),
    }


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: a linear layer of bf16 sums in fp32 and rounds once.

    At extents that are no multiples of 8 cuBLAS may round before it adds the bias, or between parts of the
    sum (torch 2.11 on an H200, seen by the gate `shapes`); there the product is kept in fp32.
    """
    hidden, weight, bias = (aligned(inputs[name]) for name in ("hidden_states", "weight", "bias"))
    if hidden.is_cuda and any(extent % 8 for extent in weight.shape):
        wide = hidden.float() @ weight.float().T  # torch.mm's out_dtype has no derivative
        gate = (wide + bias).to(hidden.dtype)
    else:
        gate = functional.linear(hidden, weight, bias)
    return {"out": (torch.sigmoid(gate.float()) * inputs["post_mul_mat"]).to(gate.dtype)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64 with its named rounding of the gate to bf16, a block of results at a time.

    fp32 has the gate to g (sum |h w| + |bias|), g = u (min(K, 6 sqrt(K)) + 2). So the rounded gate is one
    of those between the roundings of the interval's ends, often a single value, and `slack` is what the
    others would change; the sigmoid is monotone. Below 2^-126 fp32's exponential overflows or its
    reciprocal is subnormal, and the sigmoid may be 0: that is slack too. What is left is relative:
    exp(-gate) multiplies its argument's error by |gate|, of which 1 - sigmoid reaches the result: `terms`.
    """
    hidden, weight, bias, post = (inputs[n] for n in ("hidden_states", "weight", "bias", "post_mul_mat"))
    (rows, inner), features = hidden.shape, weight.shape[0]
    growth = Precision("fp32", inner, _GATE_STEPS).growth
    value, terms, slack = (torch.empty(post.shape, dtype=torch.float64, device=post.device) for _ in range(3))
    columns = min(features, max(1, _ORACLE_CHUNK // inner))
    step = max(1, _ORACLE_CHUNK // max(inner, columns))
    for first in range(0, features, columns):
        across = slice(first, first + columns)
        block, offset = weight[across].double().T, bias[across].double()
        size, reach = block.abs(), offset.abs()
        for start in range(0, rows, step):
            part = (slice(start, start + step), across)
            left, right = hidden[start : start + step].double(), post[part].double()
            exact = left @ block + offset
            spread = growth * (left.abs() @ size + reach)
            gate, low, high = interval(exact, spread)
            share = torch.sigmoid(gate)
            above, below = torch.sigmoid(high) - share, share - torch.sigmoid(low)
            value[part] = share * right
            terms[part] = value[part].abs() * (1 + gate.abs() * torch.sigmoid(-gate))
            slack[part] = (torch.maximum(above, below) + _TINY) * right.abs()
    return {"out": Expected(value, terms, slack)}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T rows, K inputs and N results.

    K products and K additions per result, the bias among them, on the matrix units; in fp32 the negation,
    exponential, addition and division of the sigmoid and the product (5).
    """
    rows, inner, features = (shape.dims[name] for name in ("token_count", "hidden_size", "out_features"))
    return Cost(
        flops={"bf16": 2.0 * rows * inner * features, "fp32": 5.0 * rows * features},
        read_bytes=2 * (rows * inner + features * inner + features + rows * features),
        write_bytes=2 * rows * features,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows; width and results an eighth, in the same ratio."""
    inner, features = (max(1, input[name] // 8) for name in ("hidden_size", "out_features"))
    rows = min(input["token_count"], 37)
    return init, {**input, "token_count": rows, "hidden_size": inner, "out_features": features}


# Extents of 1, primes, and neighbours of tiles (16, 32, 64, 128, 256) in each dimension, together and one
# at a time; rows of few programs and many columns, and the other way; the longest sum; no row at all.
ODD: tuple[tuple[Init, Input], ...] = tuple(
    ({}, {"token_count": rows, "hidden_size": inner, "out_features": features})
    for rows, inner, features in (
        (1, 1, 1),
        (5, 1, 3),
        (3, 7, 1),
        (2, 16, 16),
        (15, 31, 33),
        (17, 33, 31),
        (1, 63, 65),
        (63, 64, 129),
        (64, 65, 64),
        (65, 127, 63),
        (129, 128, 127),
        (127, 129, 128),
        (13, 192, 257),
        (255, 96, 17),
        (257, 72, 100),
        (31, 509, 251),
        (7, 1024, 513),
        (1, 2047, 96),
        (2, 2049, 1),
        (1, 16, 8193),
        (1025, 40, 24),
        (3, 32768, 17),
        (0, 64, 64),
    )
)


def _extents(draw: Draw) -> tuple[int, int, int]:
    """T, K and N."""
    return draw.dims["token_count"], draw.dims["hidden_size"], draw.dims["out_features"]


def _post(draw: Draw) -> Tensor:
    rows, _, features = _extents(draw)
    return draw.normal((rows, features), 1.0, torch.bfloat16)


def _inputs(draw: Draw, hidden: Tensor, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """These operands in bf16, and what they gate ~ N(0, 1)."""
    operands = {"hidden_states": hidden, "weight": weight, "bias": bias}
    return {**{name: t.to(torch.bfloat16) for name, t in operands.items()}, "post_mul_mat": _post(draw)}


def _gates(draw: Draw, bias: float, spread: float = 3.0) -> dict[str, Tensor]:
    """Gates ~ N(bias, spread), half of the variance from the bias and half from the product."""
    rows, inner, features = _extents(draw)
    each = spread * 0.5**0.5
    return _inputs(
        draw,
        draw.normal((rows, inner), 1.0, torch.float32),
        draw.normal((features, inner), each * inner**-0.5, torch.float32),
        draw.normal((features,), each, torch.float32) + bias,
    )


def open_and_shut(draw: Draw) -> dict[str, Tensor]:
    """Gates ~ N(-5, 3): the sigmoid is near its exponential tail, where a gate's last bit shows in `out`.

    A skipped product, bias or sigmoid, a bf16 sum and a gate that is not rounded are all far outside the
    bound.
    """
    return _gates(draw, -5.0)


def shut(draw: Draw) -> dict[str, Tensor]:
    """Gates ~ N(-40, 8): the sigmoid is exp(gate), below what tanh or fp16 can tell from 0."""
    return _gates(draw, -40.0, 8.0)


def saturated(draw: Draw) -> dict[str, Tensor]:
    """Gates from -120 to 120: exp(-gate) over- and underflows, the sigmoid is 0 or 1.

    The first is open, so that the least case has a result to compare with.
    """
    inputs = _gates(draw, 0.0, 1.0)
    bias = draw.uniform((draw.dims["out_features"],)) * 240 - 120
    bias[0].abs_()
    return {**inputs, "bias": bias.to(torch.bfloat16)}


def uneven_columns(draw: Draw) -> dict[str, Tensor]:
    """Columns of hidden_states by 2^e, those of weight by 2^-e, |e| to 20: fp16 operands cannot hold them."""
    inputs = _gates(draw, -5.0)
    scale = torch.exp2((draw.uniform((draw.dims["hidden_size"],)) * 41).floor() - 20)
    hidden, weight = inputs["hidden_states"] * scale, inputs["weight"] / scale
    return {**inputs, "hidden_states": hidden.to(torch.bfloat16), "weight": weight.to(torch.bfloat16)}


def uneven_rows(draw: Draw) -> dict[str, Tensor]:
    """Each row and each result with a level of its own: neither may leak into the next, or be transposed."""
    rows, _, features = _extents(draw)
    inputs = _gates(draw, -5.0)
    hidden = inputs["hidden_states"] * torch.exp2((draw.uniform((rows, 1)) * 3).floor() - 2)
    post = inputs["post_mul_mat"] * torch.exp2((draw.uniform((rows, features)) * 41).floor() - 20)
    return {**inputs, "hidden_states": hidden.to(torch.bfloat16), "post_mul_mat": post.to(torch.bfloat16)}


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """Products of one sign that add up to about -8: a running sum in bf16 stops, or wanders, on its way."""
    rows, inner, features = _extents(draw)
    return _inputs(
        draw,
        0.5 + draw.uniform((rows, inner)),
        (draw.uniform((features, inner)) + 0.5) * (-8 / inner),
        draw.normal((features,), 1.0, torch.float32),
    )


def cancelling(draw: Draw) -> dict[str, Tensor]:
    """Sums that climb to 80 in the first half of K and come down to -5 in the second.

    At the top bf16 counts in halves and loses what remains; fp32's error stays below the gate's last bit.
    """
    rows, inner, features = _extents(draw)
    half = inner // 2
    hidden = 1 + draw.uniform((rows, inner)) * 0.5
    hidden[:, half : 2 * half] = hidden[:, :half]
    rise = (0.5 + draw.uniform((features, half))) * (64 / max(half, 1))
    rest = torch.zeros((features, inner - 2 * half), device=draw.device)
    weight = torch.cat((rise, rise * -(1 + 2.0**-4), rest), -1)
    return _inputs(draw, hidden, weight, draw.normal((features,), 1.0, torch.float32))


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation, "cancelling": cancelling},
    "sensitivity": {
        "open_and_shut": open_and_shut,
        "shut": shut,
        "saturated": saturated,
        "uneven_columns": uneven_columns,
        "uneven_rows": uneven_rows,
    },
}
