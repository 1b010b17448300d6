"""causal_conv1d: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: x [dim, T], weight [dim, width], bias [dim], initial_state [1, dim, width - 1], out [dim, T], all
bf16. Formula: with s the state followed by x, y[c, t] = bias[c] + sum_j weight[c, j] s[c, t + j] in fp32,
rounded to bf16; out = silu(y) in fp32, rounded to bf16, or y: the short convolution of Gu and Dao, "Mamba"
(2023), as engines run it over a prompt, channel by channel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Draw, Expected, Init, Input, Precision
from atrex.records import Cost, Shape
from bench.rounding import interval

_ORACLE_CHUNK = 1 << 24  # elements at a time: 128 MiB of fp64, and about ten of that size
_SUM_STEPS = 2  # fp32 roundings of y beside the sum of its products: the bias, a spare one
_TINY = 2.0**-126  # smallest normal number of fp32
_LOWEST_AT, _LOWEST = -1.2784645427610738, -0.27846454276107380  # where silu is least, and its value there
_SILU_FLOPS = 4  # negation, exponential, addition, division


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The state holds one token less than the convolution reads."""
    return {"history": dims["width"] - 1}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production inputs: all N(0, 0.02)."""
    return _normal(draw, 0.02, 0.02, 0.02)


def _normal(draw: Draw, data: float, weight: float, bias: float) -> dict[str, Tensor]:
    """Normal inputs: x and the state of one standard deviation, weight and bias each of its own."""
    channels, width, history = draw.dims["dim"], draw.dims["width"], draw.dims["history"]
    return {
        "x": draw.normal((channels, draw.dims["token_count"]), data, torch.bfloat16),
        "weight": draw.normal((channels, width), weight, torch.bfloat16),
        "bias": draw.normal((channels,), bias, torch.bfloat16),
        "initial_state": draw.normal((1, channels, history), data, torch.bfloat16),
    }


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: a grouped convolution, in bf16, sums in fp32.

    For a compiler it is written out, tap by tap: Inductor's convolution rounds before it adds the bias
    (torch 2.11 on an H200), and does not fuse with what follows.
    """
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    if not x.shape[1]:
        return {"out": torch.empty_like(x)}
    sequence = torch.cat((inputs["initial_state"], x[None]), dim=2)
    if torch.compiler.is_compiling():
        y = _tap_by_tap(sequence[0].float(), weight.float(), bias.float()).to(x.dtype)
        return {"out": functional.silu(y) if init["activation"] == "silu" else y}
    if x.shape[0] == 1:  # not depthwise to PyTorch: another kernel, which rounds before it adds the bias
        sequence, weight, bias = sequence.repeat(1, 2, 1), weight.repeat(2, 1), bias.repeat(2)
    y = functional.conv1d(sequence, weight[:, None], bias, groups=weight.shape[0])[0, : x.shape[0]]
    return {"out": functional.silu(y) if init["activation"] == "silu" else y}


def _tap_by_tap(sequence: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The convolution of [dim, width - 1 + T] as a sum of `width` products: [dim, T]."""
    tokens = sequence.shape[1] - weight.shape[1] + 1
    y = bias[:, None]
    for j in range(weight.shape[1]):
        y = y + weight[:, j, None] * sequence[:, j : j + tokens]
    return y


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, a block of channels at a time.

    Without an activation y is the result, and `terms` the sum of the magnitudes of its terms. With silu
    fp32 has y to g (sum |w s| + |bias|), g = u (min(width, 6 sqrt(width)) + 2), so the rounded y is one of
    those between the roundings of the interval's ends, often a single value; `slack` is what the others
    would change. silu falls to its least value at -1.278 and rises after it, so an interval around that
    point is also measured there. Below 2^-126 the sigmoid may be 0 in fp32: slack too. What is left is
    relative: exp(-y) multiplies its argument's error by |y|, of which 1 - sigmoid reaches the result.
    """
    x, weight, bias, state = (inputs[name] for name in ("x", "weight", "bias", "initial_state"))
    (channels, tokens), width = x.shape, weight.shape[1]
    growth = Precision("fp32", width, _SUM_STEPS).growth
    value, terms, slack = (torch.zeros(x.shape, dtype=torch.float64, device=x.device) for _ in range(3))
    step = max(1, _ORACLE_CHUNK // max(1, tokens + width))
    for start in range(0, channels, step):
        part = slice(start, start + step)
        sequence = torch.cat((state[0, part].double(), x[part].double()), dim=1)
        y = bias[part, None].double().repeat(1, tokens)
        reach = y.abs()
        for j, tap in enumerate(weight[part].double().unbind(1)):
            product = tap[:, None] * sequence[:, j : j + tokens]
            y += product
            reach += product.abs()
        if init["activation"] == "silu":
            value[part], terms[part], slack[part] = _silu(y, growth * reach)
        else:
            value[part], terms[part] = y, reach
    return {"out": Expected(value, terms, slack)}


def _silu(exact: Tensor, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """silu of the rounded y, what its own errors grow from, and what another rounding of y would change."""
    y, low, high = interval(exact, spread)
    value = functional.silu(y)
    slack = torch.maximum((functional.silu(low) - value).abs(), (functional.silu(high) - value).abs())
    around = (low < _LOWEST_AT) & (high > _LOWEST_AT)
    slack = torch.where(around, torch.maximum(slack, value - _LOWEST), slack)
    # An infinite y is judged by its class alone.
    slack = torch.where(slack.isfinite(), slack, 0.0) + _TINY * y.abs().nan_to_num(posinf=0.0)
    return value, value.abs() * (1 + y.abs() * torch.sigmoid(-y)), slack


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T tokens of `dim` channels.

    Per element `width` products and as many additions, the bias among them, and of silu the negation,
    exponential, addition and division: fp32 on the vector units, since no two channels share an operand.
    """
    tokens, channels, width = (shape.dims[name] for name in ("token_count", "dim", "width"))
    each = 2 * width + (_SILU_FLOPS if shape.init["activation"] == "silu" else 0)
    return Cost(
        flops={"fp32": float(each * tokens * channels)},
        read_bytes=2 * channels * (tokens + width + 1 + width - 1),
        write_bytes=2 * channels * tokens,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A sixty-fourth of the channels; no more tokens than keep the case in its bucket."""
    channels, tokens = max(1, input["dim"] // 64), min(input["token_count"], 1037)
    return init, {**input, "dim": channels, "token_count": tokens}


def _odd(dim: int, tokens: int, width: int, activation: str = "silu") -> tuple[Init, Input]:
    return {"activation": activation}, {"token_count": tokens, "dim": dim, "width": width}


# Fewer tokens than the state holds, so that one window spans state and tokens; primes and neighbours of
# tiles (64, 128, 256, 512) in tokens and channels; widths other than 4; many programs along either axis; no
# token at all.
ODD: tuple[tuple[Init, Input], ...] = (
    _odd(1, 1, 4),
    _odd(1, 1, 1),
    _odd(3, 2, 4),
    _odd(5, 3, 4),
    _odd(257, 1, 4),
    _odd(2, 1, 8),
    _odd(7, 64, 4),
    _odd(31, 127, 4),
    _odd(33, 129, 2),
    _odd(64, 65, 3),
    _odd(65, 63, 4, "none"),
    _odd(63, 255, 4),
    _odd(129, 257, 4),
    _odd(127, 513, 5, "none"),
    _odd(255, 31, 4),
    _odd(100, 100, 4),
    _odd(17, 1023, 8),
    _odd(13, 40, 17),
    _odd(3, 100, 64),
    _odd(3, 4097, 4),
    _odd(8193, 2, 4, "none"),
    _odd(65537, 1, 4),
    _odd(1, 65537, 4),
    _odd(13, 0, 4),
)


def wide(draw: Draw) -> dict[str, Tensor]:
    """All N(0, 1): every tap, the bias and the state are as large as the tokens, and y goes from -8 to 8."""
    return _normal(draw, 1.0, 1.0, 1.0)


def shut(draw: Draw) -> dict[str, Tensor]:
    """y ~ N(-12, 4): silu is near its exponential tail, where the last bit of the rounded y shows."""
    inputs = _normal(draw, 1.0, 4.0 * draw.dims["width"] ** -0.5, 1.0)
    return {**inputs, "bias": inputs["bias"] - 12}


def single_taps(draw: Draw) -> dict[str, Tensor]:
    """One tap a channel, in turn, and no bias: each output is one token's product, the first the state's."""
    inputs = _normal(draw, 1.0, 1.0, 1.0)
    channels, width = inputs["weight"].shape
    chosen = torch.arange(channels, device=draw.device)[:, None] % width
    tap = torch.arange(width, device=draw.device) == chosen
    return {
        **inputs,
        "weight": torch.where(tap, inputs["weight"], 0.0),
        "bias": torch.zeros_like(inputs["bias"]),
    }


def loud_state(draw: Draw) -> dict[str, Tensor]:
    """A state 2^8 times the tokens: its order, its last column and its absence show in the first outputs."""
    inputs = _normal(draw, 0.25, 1.0, 0.25)
    return {**inputs, "initial_state": inputs["initial_state"] * 256}


def uneven_channels(draw: Draw) -> dict[str, Tensor]:
    """Channels whose tokens differ by powers of two from 2^-20 to 2^20, their taps by the inverse.

    No channel may leak into the next, and a tap or a token of another channel is out by a power of two.
    """
    inputs = _normal(draw, 1.0, 1.0, 1.0)
    scale = torch.exp2((draw.uniform((draw.dims["dim"], 1)) * 41).floor() - 20)
    changed = {
        "x": inputs["x"] * scale,
        "weight": inputs["weight"] / scale,
        "initial_state": inputs["initial_state"] * scale,
    }
    return {**inputs, **{name: value.to(torch.bfloat16) for name, value in changed.items()}}


def fine_products(draw: Draw) -> dict[str, Tensor]:
    """Products of 15 significand bits whose signs alternate: what remains is what a bf16 or fp16 sum drops.

    The tokens are all 1 + odd / 128, of one sign along the window, and so are the taps but for the sign.
    """
    channels, width, history = draw.dims["dim"], draw.dims["width"], draw.dims["history"]
    fine = [(channels, draw.dims["token_count"]), (channels, width), (1, channels, history)]
    x, weight, state = (1 + ((draw.uniform(shape) * 32).floor() * 2 + 1) / 128 for shape in fine)
    sign = 1 - 2 * (torch.arange(width, device=draw.device) % 2)
    bias = draw.normal((channels,), 0.01, torch.bfloat16)
    values = {"x": x, "weight": weight * sign, "bias": bias, "initial_state": state}
    return {name: value.to(torch.bfloat16) for name, value in values.items()}


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """A first product of about -16 after which come small ones: added to a bf16 sum they vanish.

    The sum ends near -16, where silu is exponential and shows each unit of y, and the bias is small.
    """
    channels, width = draw.dims["dim"], draw.dims["width"]
    inputs = _normal(draw, 0.25, 0.25, 0.01)
    weight = -(0.02 + 0.02 * draw.uniform((channels, width)))
    weight[:, 0] = -16 + draw.uniform((channels,))
    data = {name: 1 + inputs[name].abs().clamp(max=0.99) for name in ("x", "initial_state")}
    return {**inputs, **data, "weight": weight.to(torch.bfloat16)}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"fine_products": fine_products, "stagnation": stagnation},
    "sensitivity": {
        "wide": wide,
        "shut": shut,
        "single_taps": single_taps,
        "loud_state": loud_state,
        "uneven_channels": uneven_channels,
    },
}
