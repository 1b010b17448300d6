"""fused_qkv_rope: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: qkv [T, (H + 2 Hkv) D] bf16 or fp16, positions [T] int32, optional qkv_bias [(H + 2 Hkv) D]; q
[T, H, D], k [T, Hkv, D], v [T, Hkv, D]. Formula: rotary position embedding (Su et al., "RoFormer",
arXiv:2104.09864) in the half-split layout of GPT-NeoX: of the first R = rope_dim elements of a head,
x[i] and x[i + R/2] turn by the angle position / base^(2i/R). A bias is added before; v is only split off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 23  # elements at a time: 64 MiB of fp64, and a dozen temporaries of that size
_LAST_POSITION = 131072  # of the domain of `positions` in problem.yaml
# Roundings of an angle that the contract's n + rounding_steps = 1 + 8 stand for.
_ANGLE_STEPS = 9


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Width of a packed row. Raises ValueError where rope_dim does not fit a head."""
    rope, head = init["rope_dim"], dims["head_dim"]
    if rope % 2 or not 2 <= rope <= head:
        raise ValueError(f"rope_dim {rope} is not an even number from 2 to head_dim {head}")
    return {"qkv_width": (dims["num_heads"] + 2 * dims["num_kv_heads"]) * head}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: qkv ~ N(0, 1), consecutive positions from 0, no bias."""
    positions = torch.arange(draw.dims["total_tokens"], dtype=torch.int32, device=draw.device)
    return {"qkv": _normal(draw), "positions": positions.remainder_(_LAST_POSITION + 1)}


def _split(init: Init, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Heads of q, k and v, [T, heads, D] each, without a copy."""
    counts = [init["num_heads"], init["num_kv_heads"], init["num_kv_heads"]]
    q, k, v = qkv.unflatten(-1, (sum(counts), init["head_dim"])).split(counts, dim=1)
    return q, k, v


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: q and k turn together, in fp32."""
    qkv, rope = inputs["qkv"], init["rope_dim"]
    exponent = torch.arange(0, rope, 2, dtype=torch.float32, device=qkv.device) / rope
    angle = inputs["positions"].float()[:, None] * (1.0 / init["rope_base"] ** exponent)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    bias = inputs.get("qkv_bias")
    turning = qkv if bias is None else qkv.float() + bias.float()  # fp32 until the rotation is done
    heads, kv_heads = init["num_heads"], init["num_kv_heads"]
    split = turning.unflatten(-1, (heads + 2 * kv_heads, init["head_dim"]))
    first, second, rest = split[:, : heads + kv_heads].tensor_split((rope // 2, rope), dim=-1)
    first, second = first.float(), second.float()
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(qkv.dtype)
    turned = torch.cat((turned, rest.to(qkv.dtype)), -1)
    q, k = turned.split((heads, kv_heads), dim=1)
    return {
        "q": q.contiguous(),
        "k": k.contiguous(),
        "v": split[:, heads + kv_heads :].to(qkv.dtype, memory_format=torch.contiguous_format, copy=True),
    }


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, a block of tokens at a time.

    Rotation: with x the biased inputs, x1 cos - x2 sin has rounding errors relative to the magnitudes
    of its two products: the bias u, a cosine 4 u (2 ulp), a product u and a sum u, of 9.

    Angle: fp32 kernels compute the angle a = p f, f = base^-e, e = 2i/R, in several ways: a power and a
    quotient or product (8 u and u, as CUDA's powf is within 4 ulp), or exp(-e log base), whose argument
    is formed by up to three roundings, each of which moves f by u e log(base). So a is off by at most
    u a (9 + 3 e log(base)): 0.07 rad at p = 131072 in the fastest frequencies, and 5e-4 rad at p = 1000.
    The derivative of the result by the angle is at most hypot(x1, x2) in magnitude, and the error of
    the result at most that times the error of the angle. Divided by the nine roundings of the contract:

        terms = |x1 cos| + |x2 sin| + a (1 + e log(base) / 3) hypot(x1, x2)

    What is not rotated is copied, or is one sum: |x| with a bias, 0 without.
    """
    qkv, bias = inputs["qkv"], inputs.get("qkv_bias")
    rope, half = init["rope_dim"], init["rope_dim"] // 2
    heads = init["num_heads"] + init["num_kv_heads"]
    exponent = torch.arange(half, dtype=torch.float64, device=qkv.device) * (2 / rope)
    log_base = math.log(init["rope_base"])
    spread = 1 + exponent * log_base * (3 / _ANGLE_STEPS)
    frequency = torch.exp(-exponent * log_base)
    shape = (qkv.shape[0], heads, init["head_dim"])
    value, terms = (torch.empty(shape, dtype=torch.float64, device=qkv.device) for _ in range(2))
    step = max(1, _ORACLE_CHUNK // qkv.shape[1])
    for start in range(0, qkv.shape[0], step):
        part = slice(start, start + step)
        x = qkv[part].double() if bias is None else qkv[part].double() + bias.double()
        x = x.unflatten(-1, (-1, init["head_dim"]))[:, :heads]
        angle = inputs["positions"][part].double()[:, None, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        first, second = x[..., :half], x[..., half:rope]
        value[part, :, :half] = first * cos - second * sin
        value[part, :, half:rope] = second * cos + first * sin
        value[part, :, rope:] = x[..., rope:]
        turning = angle * spread * torch.hypot(first, second)
        terms[part, :, :half] = (first * cos).abs() + (second * sin).abs() + turning
        terms[part, :, half:rope] = (second * cos).abs() + (first * sin).abs() + turning
        terms[part, :, rope:] = x[..., rope:].abs() * (bias is not None)
    q, k = (slice(None, init["num_heads"]), slice(init["num_heads"], None))
    copied = _split(init, qkv)[2]
    if bias is not None:
        copied = (copied.double() + _split(init, bias[None])[2].double()).to(qkv.dtype)
    return {
        "q": Expected(value[:, q], terms[:, q]),
        "k": Expected(value[:, k], terms[:, k]),
        "v": Expected(copied, copied.new_zeros(()).expand(copied.shape)),
    }


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T tokens of H + 2 Hkv heads, without a bias as in production.

    Per rotated element two products and a sum; per token and frequency the angle, its cosine and its
    sine. The frequencies themselves are constants of the model.
    """
    tokens, heads = shape.dims["total_tokens"], shape.dims["num_heads"] + shape.dims["num_kv_heads"]
    rope = int(str(shape.init["rope_dim"]))
    width = shape.dims["qkv_width"]
    return Cost(
        flops={"fp32": float(tokens * (3 * heads * rope + 3 * (rope // 2)))},
        read_bytes=2 * tokens * width + 4 * tokens,
        write_bytes=2 * tokens * width,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few tokens with the same heads."""
    return init, {**input, "total_tokens": min(input["total_tokens"], 19)}


def _odd(
    tokens: int, heads: int, kv_heads: int, head: int, rope: int, dtype: str, base: float = 10000.0
) -> tuple[Init, Input]:
    extents = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head}
    init = {**extents, "rope_dim": rope, "rope_base": base}
    return init, {"total_tokens": tokens, **extents, "dtype": dtype}


# Tiles of tokens and heads that are never full, as many kv heads as q heads and more, one head,
# rope_dim below head_dim (a quarter, half, all but two) and of 2, heads whose size is no power of two,
# and other bases.
ODD = (
    _odd(0, 4, 2, 64, 64, "bf16"),
    _odd(1, 1, 1, 2, 2, "bf16"),
    _odd(2, 1, 1, 128, 128, "fp16"),
    _odd(3, 5, 1, 64, 32, "bf16"),
    _odd(7, 32, 4, 128, 128, "bf16"),
    _odd(5, 40, 8, 128, 128, "fp16"),
    _odd(13, 3, 3, 80, 80, "bf16"),
    _odd(17, 7, 1, 96, 48, "fp16"),
    _odd(31, 2, 5, 128, 32, "bf16", 500000.0),
    _odd(33, 9, 3, 72, 70, "bf16", 1000000.0),
    _odd(63, 6, 2, 256, 64, "bf16", 10000000.0),
    _odd(65, 1, 1, 576, 64, "fp16"),
    _odd(3, 2, 1, 512, 512, "bf16"),
    _odd(127, 4, 1, 100, 26, "bf16"),
    _odd(129, 16, 16, 64, 64, "fp16", 100.0),
    _odd(257, 2, 1, 192, 128, "bf16"),
    _odd(1025, 1, 2, 32, 6, "bf16"),
    _odd(3, 129, 17, 128, 128, "bf16"),
    _odd(19, 3, 1, 7, 4, "bf16"),
    _odd(65537, 1, 1, 8, 8, "fp16"),
)


def _normal(draw: Draw) -> Tensor:
    return draw.normal((draw.dims["total_tokens"], draw.dims["qkv_width"]), 1.0, draw.dtype)


def _positions(draw: Draw, low: float, high: float) -> Tensor:
    """Log-uniform from 2^low to below 2^high, in no order, with the last legal one where high is 17."""
    exponent = low + (high - low) * draw.uniform((draw.dims["total_tokens"],))
    positions = torch.exp2(exponent).to(torch.int32)
    if high == 17:
        positions[1::7] = _LAST_POSITION
    return positions


def biased(draw: Draw) -> dict[str, Tensor]:
    """qkv and bias ~ N(0, 1) at arbitrary positions up to the last."""
    return {
        "qkv": _normal(draw),
        "positions": _positions(draw, 0, 17),
        "qkv_bias": draw.normal((draw.dims["qkv_width"],), 1.0, draw.dtype),
    }


def bias_alone(draw: Draw) -> dict[str, Tensor]:
    """Nothing but the bias: what is rotated, and v, is the bias."""
    inputs = biased(draw)
    return {**inputs, "qkv": torch.zeros_like(inputs["qkv"]), "positions": _positions(draw, 0, 8)}


def short_context(draw: Draw) -> dict[str, Tensor]:
    """Positions below 1024, where a fp32 angle is good to 1e-4 and more: a narrow cosine is seen."""
    return {"qkv": _normal(draw), "positions": _positions(draw, 0, 10)}


def long_context(draw: Draw) -> dict[str, Tensor]:
    """Decoding near the end of the longest context: beyond any table, and beyond what fp16 counts."""
    return {"qkv": _normal(draw), "positions": _positions(draw, 15, 17)}


def slow_frequencies(draw: Draw) -> dict[str, Tensor]:
    """Values only where the angle turns slowest: small angles, which base and exponent decide."""
    inputs = short_context(draw)
    half = int(draw.init["rope_dim"]) // 2
    heads = inputs["qkv"].view(-1, draw.dims["qkv_width"] // draw.dims["head_dim"], draw.dims["head_dim"])
    heads[..., : half // 2] = 0
    heads[..., half : half + half // 2] = 0
    return {**inputs, "positions": _positions(draw, 8, 12)}


def cancelling(draw: Draw) -> dict[str, Tensor]:
    """x1 = sin a + d cos a, x2 = cos a - d sin a up to rounding: of the first half only d is left.

    d is a few units in the last place of the inputs, so that the result is small but never 0 by their
    rounding. Positions below 256, where the angle is good enough to tell: cosines or products rounded
    to bf16 or fp16 leave errors nearly as large as d.
    """
    positions = _positions(draw, 0, 8)
    rope, half = int(draw.init["rope_dim"]), int(draw.init["rope_dim"]) // 2
    exponent = torch.arange(half, dtype=torch.float64, device=draw.device) * (2 / rope)
    angle = positions.double()[:, None, None] * float(draw.init["rope_base"]) ** -exponent
    qkv = _normal(draw).view(-1, draw.dims["qkv_width"] // draw.dims["head_dim"], draw.dims["head_dim"])
    shape = (qkv.shape[0], qkv.shape[1], half)
    radius = 1 + draw.uniform(shape)
    rest = 4 * torch.finfo(draw.dtype).eps * (1 + draw.uniform(shape))
    qkv[..., :half] = (radius * angle.sin() + rest * angle.cos()).to(draw.dtype)
    qkv[..., half:rope] = (radius * angle.cos() - rest * angle.sin()).to(draw.dtype)
    return {"qkv": qkv.flatten(1), "positions": positions}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"cancelling": cancelling},
    "sensitivity": {
        "biased": biased,
        "bias_alone": bias_alone,
        "short_context": short_context,
        "long_context": long_context,
        "slow_frequencies": slow_frequencies,
    },
}
