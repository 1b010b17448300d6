"""fused_qk_rmsnorm: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: hidden_states [T, (Hq + 2 Hkv) D], q_weight and k_weight [D], out as hidden_states; fp16 or bf16. A
row holds Hq query heads, then Hkv key heads, then Hkv value heads. Formula: y = x * rsqrt(mean(x^2) + eps)
over each q and k head in fp32 (Zhang and Sennrich, 2019), rounded to the dtype; out = y * weight in the
dtype; v as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input, Precision
from atrex.records import Cost, Shape
from bench.rounding import rounded

_ORACLE_CHUNK = 1 << 24  # elements at a time: 128 MiB of fp64, and some eight temporaries of that size
_NORM_STEPS = (
    8  # fp32 roundings of y beside the sum: divide, add eps, rsqrt (2 ulp: 4 u), product, a spare one
)


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The width of a row: q, k and v heads side by side."""
    return {"width": (dims["head_num"] + 2 * dims["kv_head_num"]) * dims["size_per_head"]}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs, as rms_norm has them: hidden ~ N(0, 0.02), weights ~ 1 + N(0, 0.02)."""
    size = draw.dims["size_per_head"]
    return {
        "hidden_states": draw.normal((draw.dims["num_tokens"], draw.dims["width"]), 0.02, draw.dtype),
        "q_weight": draw.normal((size,), 0.02, draw.dtype) + 1,
        "k_weight": draw.normal((size,), 0.02, draw.dtype) + 1,
    }


def _norm(heads: Tensor, weight: Tensor, eps: float) -> Tensor:
    x: Tensor = heads.unflatten(-1, (-1, weight.shape[0])).float()
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return ((x * scale).to(weight.dtype) * weight).flatten(-2)


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it."""
    hidden, q_weight, k_weight = inputs["hidden_states"], inputs["q_weight"], inputs["k_weight"]
    size = q_weight.shape[0]
    widths = [init["head_num"] * size, init["kv_head_num"] * size, init["kv_head_num"] * size]
    q, k, v = hidden.split(widths, -1)
    return {"out": torch.cat((_norm(q, q_weight, init["eps"]), _norm(k, k_weight, init["eps"]), v), -1)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64 with its named rounding of y, a block of rows at a time.

    fp32 has y to a relative g = u (min(D, 6 sqrt(D)) + 8): squares do not cancel. So its rounded value is
    one of those between the roundings of y (1 - g) and y (1 + g): nearly always a single value, near a
    tie two neighbours, and `slack` is what the other would change. Their product with a weight has at most 22
    bits, so fp32 has it exactly, and `out` is it rounded once: `terms` is 0, as it is for v.
    """
    hidden = inputs["hidden_states"]
    size, eps = inputs["q_weight"].shape[0], init["eps"]
    heads = (init["head_num"], init["kv_head_num"])
    weights = [
        inputs[name].double().expand(n, size) for name, n in zip(("q_weight", "k_weight"), heads, strict=True)
    ]
    weight = torch.cat(weights)
    normed = weight.numel()
    growth = Precision("fp32", size, _NORM_STEPS).growth
    value = hidden.double()
    slack = torch.zeros_like(value)
    for start in range(0, hidden.shape[0], step := max(1, _ORACLE_CHUNK // normed)):
        part = slice(start, start + step)
        x = value[part, :normed].reshape(-1, *weight.shape)
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        middle, low, high = (rounded(y * factor, hidden.dtype) for factor in (1.0, 1 - growth, 1 + growth))
        change = torch.maximum((middle - low).abs(), (high - middle).abs()) * weight.abs()
        value[part, :normed], slack[part, :normed] = (middle * weight).flatten(1), change.flatten(1)
    return {"out": Expected(value, value.new_zeros(()).expand(value.shape), slack)}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T rows of Hq + Hkv heads that are normalised and Hkv that are copied.

    Per element of a q or k head a square and an addition, and the products with the scale and the weight (4
    D); per head the division by D, the addition of eps and the reciprocal root (3). A product of two fp16
    or bf16 values is one fp32 product and a rounding, on the same unit.
    """
    rows, q_heads, kv_heads, size, width = (
        shape.dims[name] for name in ("num_tokens", "head_num", "kv_head_num", "size_per_head", "width")
    )
    return Cost(
        flops={"fp32": float(rows * (q_heads + kv_heads) * (4 * size + 3))},
        read_bytes=2 * rows * width + 4 * size,
        write_bytes=2 * rows * width,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows of the same width."""
    return init, {**input, "num_tokens": min(input["num_tokens"], 16)}


def _case(dtype: str, tokens: int, q_heads: int, kv_heads: int, size: int) -> tuple[Init, Input]:
    heads = {"head_num": q_heads, "kv_head_num": kv_heads, "size_per_head": size}
    return heads, {"num_tokens": tokens, **heads, "dtype": dtype}


# Both dtypes (production has fp16 alone). Head sizes of 1, around vectors and tiles, not a power of two
# (72, 80, 96, 192), primes, and long ones; as many k as q heads, more, and not a divisor; no token at all.
ODD: tuple[tuple[Init, Input], ...] = (
    _case("bf16", 1, 1, 1, 1),
    _case("fp16", 5, 3, 2, 7),
    _case("bf16", 3, 40, 8, 128),
    _case("fp16", 2, 5, 5, 64),
    _case("bf16", 7, 2, 3, 8),
    _case("fp16", 1, 1, 1, 129),
    _case("fp16", 3, 16, 16, 72),
    _case("bf16", 2, 12, 2, 80),
    _case("fp16", 17, 7, 1, 96),
    _case("bf16", 33, 4, 4, 127),
    _case("fp16", 3, 1, 8, 192),
    _case("bf16", 5, 6, 1, 256),
    _case("fp16", 2, 3, 1, 257),
    _case("fp16", 129, 2, 1, 16),
    _case("bf16", 2, 65, 13, 33),
    _case("fp16", 1, 128, 8, 128),
    _case("bf16", 3, 2, 1, 1021),
    _case("fp16", 2, 1, 1, 4097),
    _case("bf16", 1, 1, 1, 8192),
    _case("fp16", 0, 32, 8, 128),
)


def _heads(draw: Draw, name: str = "normed") -> tuple[int, int, int]:
    """Extents [T, heads, D] of all heads, or of those that are normalised."""
    q_heads, kv_heads = draw.dims["head_num"], draw.dims["kv_head_num"]
    count = q_heads + (kv_heads if name == "normed" else 2 * kv_heads)
    return draw.dims["num_tokens"], count, draw.dims["size_per_head"]


def _packed(draw: Draw, heads: Tensor) -> Tensor:
    """q and k heads [T, Hq + Hkv, D] and, behind them, v heads ~ N(0, 5): rows in the case's dtype."""
    rows, _, size = heads.shape
    v = draw.normal((rows, draw.dims["kv_head_num"] * size), 5.0, torch.float32)
    return torch.cat((heads.flatten(1), v), -1).to(draw.dtype)


def _inputs(draw: Draw, heads: Tensor, spread: float = 1.0) -> dict[str, Tensor]:
    """These q and k heads under weights of both signs, of different size for q and k."""
    size = draw.dims["size_per_head"]
    return {
        "hidden_states": _packed(draw, heads),
        "q_weight": draw.normal((size,), spread, draw.dtype),
        "k_weight": draw.normal((size,), 2 * spread, draw.dtype),
    }


def wide_parameters(draw: Draw) -> dict[str, Tensor]:
    """Heads ~ N(0, 1), each times its own 2^-3 to 2^3: no norm is another head's or the row's."""
    rows, count, size = _heads(draw)
    scale = torch.exp2((draw.uniform((rows, count, 1)) * 7).floor() - 3)
    return _inputs(draw, draw.normal((rows, count, size), 1.0, torch.float32) * scale)


def tiny_inputs(draw: Draw) -> dict[str, Tensor]:
    """Heads whose mean square goes from far below the usual eps (1e-6) to far above it."""
    rows, count, size = _heads(draw)
    exponents = torch.linspace(-16, -4, rows * count, device=draw.device)
    scale = torch.exp2(exponents).view(rows, count, 1)
    return _inputs(draw, draw.normal((rows, count, size), 1.0, torch.float32) * scale)


def uneven_heads(draw: Draw) -> dict[str, Tensor]:
    """Heads whose scales differ by up to 2^22, within the range of fp16; some are all zeros."""
    rows, count, size = _heads(draw)
    scale = torch.exp2((draw.uniform((rows, count, 1)) * 23).floor() - 10)
    scale[draw.uniform((rows, count, 1)) < 0.05] = 0
    return _inputs(draw, draw.normal((rows, count, size), 1.0, torch.float32) * scale)


def two_roundings(draw: Draw) -> dict[str, Tensor]:
    """Weights 1 + odd * eps: y is rounded before the product, or about a third of all results differ."""
    inputs = _inputs(draw, draw.normal(_heads(draw), 1.0, torch.float32))
    return {
        **inputs,
        "q_weight": _odd(draw, (draw.dims["size_per_head"],), 1.0),
        "k_weight": -inputs["q_weight"],
    }


def _odd(draw: Draw, shape: tuple[int, ...], width: float) -> Tensor:
    """1 + an odd multiple of the dtype's eps, below 1 + width: all of its significand bits are in use."""
    eps = torch.finfo(draw.dtype).eps
    odd = 2 * (draw.uniform(shape) * (width / eps / 2)).floor() + 1
    return (1 + odd * eps).to(draw.dtype)


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """One large value at a different place in each head among many that must still be counted.

    The large square is 4D/3 and the others sum to about D: added one by one to an accumulator of
    8 significand bits they vanish, as they do when a running sum is rounded to bf16.
    """
    rows, count, size = _heads(draw)
    heads = 1 + draw.uniform((rows, count, size)) * 0.25
    slots = torch.arange(rows * count, device=draw.device).view(rows, count, 1) * 7 % size
    heads.scatter_(2, slots, (4 * size / 3) ** 0.5)
    ones = torch.ones(size, dtype=draw.dtype, device=draw.device)
    return {"hidden_states": _packed(draw, heads), "q_weight": ones, "k_weight": ones.clone()}


def fine_squares(draw: Draw) -> dict[str, Tensor]:
    """x = 1 + odd * eps: squares need twice the dtype's bits, which its own products and TF32 lose."""
    heads = _odd(draw, _heads(draw), 0.5).float()
    ones = torch.ones(draw.dims["size_per_head"], dtype=draw.dtype, device=draw.device)
    return {"hidden_states": _packed(draw, heads), "q_weight": ones, "k_weight": ones.clone()}


def large_squares(draw: Draw) -> dict[str, Tensor]:
    """Values of some 2^12: a square, or a sum of squares, in fp16 is infinite."""
    return _inputs(draw, draw.normal(_heads(draw), 4096.0, torch.float32))


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {
        "stagnation": stagnation,
        "fine_squares": fine_squares,
        "large_squares": large_squares,
    },
    "sensitivity": {
        "wide_parameters": wide_parameters,
        "tiny_inputs": tiny_inputs,
        "uneven_heads": uneven_heads,
        "two_roundings": two_roundings,
    },
}
