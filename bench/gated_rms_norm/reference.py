"""gated_rms_norm: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: x and z [R, H] bf16, weight [H] bf16, out [R, H] bf16. Formula, with n(y) = y * rsqrt(mean(y^2) + eps)
(Zhang and Sennrich, 2019): n(x) * weight * act(z) if `norm_before_gate`, else n(x * act(z)) * weight, all in
fp32 and rounded once; act is silu (also called swish) or the sigmoid. A row is one head of linear attention.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 24  # elements at a time: 128 MiB of fp64, and some twelve temporaries of that size
_TINY = 2.0**-126  # smallest normal number of fp32
_LARGEST = (2 - 2.0**-23) * 2.0**127  # of fp32


# 1 + n/128 for these n: the squares need 15 significand bits, and rounded to 8 all become smaller (n^2 mod
# 128 is 33 to 57), by 0.2 % of the sum; roundings in both directions would leave nothing of it.
_FINE = (7, 13, 17, 21, 43, 47, 51)


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs, as rms_norm has them: x, z ~ N(0, 0.02), weight ~ 1 + N(0, 0.02)."""
    hidden = draw.dims["hidden_size"]
    return {
        "x": draw.normal(_extent(draw), 0.02, torch.bfloat16),
        "z": draw.normal(_extent(draw), 0.02, torch.bfloat16),
        "weight": draw.normal((hidden,), 0.02, torch.bfloat16) + 1,
    }


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it."""
    wide, z = inputs["x"].float(), inputs["z"].float()
    gate = torch.sigmoid(z) if init["activation"] == "sigmoid" else functional.silu(z)
    if not init["norm_before_gate"]:
        wide = wide * gate
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + init["eps"])
    out = wide * scale * inputs["weight"].float()
    if init["norm_before_gate"]:
        out = out * gate
    return {"out": out.to(inputs["x"].dtype)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, a block of rows at a time.

    Squares do not cancel and the rest are products, so errors are relative, and grow from the result itself;
    but exp(-z) multiplies its argument's relative error by |z|, of which a = |z| (1 - sigmoid(z)) reaches the
    gate. Gating first, the mean inherits such errors too, weighted with the squares: |value| (1 + a +
    mean(y^2 a) / mean(y^2)). `slack`: where the sigmoid is below 2^-126, fp32's exponential overflows or its
    reciprocal is subnormal, and the gate may be 0.

    Where some of the factors together pass the range of fp32 and all of them do not (with a special value
    among them), the order of the products decides between the result and infinity: NaN stands for "either".
    """
    x, z, weight = inputs["x"], inputs["z"], inputs["weight"].double()
    value, terms, slack = (torch.empty(x.shape, dtype=torch.float64, device=x.device) for _ in range(3))
    step = max(1, _ORACLE_CHUNK // x.shape[1])
    for start in range(0, x.shape[0], step):
        part = slice(start, start + step)
        block, argument = x[part].double(), z[part].double()
        share = torch.sigmoid(argument)
        gate = share if init["activation"] == "sigmoid" else argument / (1 + torch.exp(-argument))
        least = _TINY if init["activation"] == "sigmoid" else argument.abs() * _TINY
        amplified = argument.abs() * torch.sigmoid(-argument)
        if init["norm_before_gate"]:
            scale = torch.rsqrt(block.square().mean(-1, keepdim=True) + init["eps"])
        else:
            squares = (block * gate).square()
            mean = squares.mean(-1, keepdim=True)
            scale = torch.rsqrt(mean + init["eps"])
            inherited = (squares * amplified).mean(-1, keepdim=True) / mean
            amplified = amplified + torch.where(mean > 0, inherited, 0.0)
        ungated = block * scale * weight
        result = ungated * gate
        most = torch.ones_like(result)
        for factor in (block, scale, weight, gate):
            most *= factor.abs().clamp(min=1)
        value[part] = result.masked_fill((most > _LARGEST) & (result.abs() <= _LARGEST), torch.nan)
        terms[part] = result.abs() * (1 + amplified)
        slack[part] = ungated.abs() * least
    return {"out": Expected(value, terms, slack)}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for R rows of H elements.

    Per element a square and an addition, the products with scale, weight and gate, and the negation,
    exponential, addition and division of the activation (9 H); per row the division by H, the addition of
    eps and the reciprocal root (3).
    """
    rows, hidden = shape.dims["rows"], shape.dims["hidden_size"]
    return Cost(
        flops={"fp32": float(rows * (9 * hidden + 3))},
        read_bytes=4 * rows * hidden + 2 * hidden,
        write_bytes=2 * rows * hidden,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """Fewer rows of the same width."""
    return init, {**input, "rows": min(input["rows"], 1021)}


def _case(rows: int, hidden: int, before: bool = True, activation: str = "silu") -> tuple[Init, Input]:
    init = {"eps": 1.0e-6, "norm_before_gate": before, "activation": activation}
    return init, {"rows": rows, "hidden_size": hidden}


# Both forms and every activation (production has one of each) at widths of 1, around vectors and tiles,
# primes, and one that leaves a single-pass kernel's registers; row counts around 2^k; no row at all.
ODD: tuple[tuple[Init, Input], ...] = (
    _case(1, 1),
    _case(5, 1, False),
    _case(3, 7, True, "sigmoid"),
    _case(129, 8, False, "swish"),
    _case(2, 31, True, "swish"),
    _case(7, 33, False, "sigmoid"),
    _case(65, 64, False),
    _case(33, 127),
    _case(17, 128, False),
    _case(1025, 128, True, "sigmoid"),
    _case(31, 129, False, "sigmoid"),
    _case(3, 192),
    _case(2, 257, False),
    _case(5, 511, True, "sigmoid"),
    _case(3, 513, False, "swish"),
    _case(2, 1021),
    _case(3, 2049, False),
    _case(2, 4097, True, "swish"),
    _case(1, 12289, False),
    _case(2, 32768),
    _case(2, 12289, True, "sigmoid"),
    _case(0, 128),
    _case(0, 1, False, "sigmoid"),
)


def _extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["rows"], draw.dims["hidden_size"]


def _by_row(draw: Draw, first: float, last: float) -> Tensor:
    rows = draw.dims["rows"]
    return torch.linspace(first, last, max(rows, 1), device=draw.device)[:rows, None]


def _inputs(draw: Draw, x: Tensor, z: Tensor, weight: Tensor | None = None) -> dict[str, Tensor]:
    """These data in bf16, under weights of both signs unless others are given."""
    if weight is None:
        weight = draw.normal((draw.dims["hidden_size"],), 1.0, torch.bfloat16)
    return {"x": x.to(torch.bfloat16), "z": z.to(torch.bfloat16), "weight": weight}


def _normal(draw: Draw, std: float = 1.0) -> Tensor:
    return draw.normal(_extent(draw), std, torch.float32)


def _plain(draw: Draw, x: Tensor) -> dict[str, Tensor]:
    """x under a weight of one and a gate without effect on which of its elements count: z = 20."""
    weight = torch.ones(draw.dims["hidden_size"], dtype=torch.bfloat16, device=draw.device)
    return _inputs(draw, x, torch.full_like(x, 20.0), weight)


def wide_parameters(draw: Draw) -> dict[str, Tensor]:
    """x ~ N(0, 1), z ~ N(0, 2), weights of both signs, some zero: both forms and both activations differ."""
    hidden = draw.dims["hidden_size"]
    weight = draw.normal((hidden,), 2.0, torch.bfloat16)
    weight[draw.uniform((hidden,)) < 0.05] = 0
    return _inputs(draw, _normal(draw), _normal(draw, 2.0), weight)


def gate_tail(draw: Draw) -> dict[str, Tensor]:
    """Gates from -40 to 0 under large weights: a sigmoid from tanh, or in fp16, has no digit left there."""
    weight = draw.normal((draw.dims["hidden_size"],), 2.0**20, torch.bfloat16)
    return _inputs(draw, _normal(draw), draw.uniform(_extent(draw)) * -40, weight)


def saturated_gate(draw: Draw) -> dict[str, Tensor]:
    """Gates from -120 to 120: exp(-z) over- and underflows, the sigmoid is 0 or 1.

    The first is open, so that the least case has a result to compare with.
    """
    z = draw.uniform(_extent(draw)) * 240 - 120
    z[:1, 0].abs_()
    return _inputs(draw, _normal(draw), z)


def tiny_inputs(draw: Draw) -> dict[str, Tensor]:
    """Rows whose mean square goes from far below the usual eps (1e-6) to far above it."""
    return _inputs(draw, _normal(draw) * torch.exp2(_by_row(draw, -16, -4)), _normal(draw) + 2)


def uneven_rows(draw: Draw) -> dict[str, Tensor]:
    """Rows whose scales differ by powers of two from 2^-20 to 2^20: no row may leak into the next."""
    scale = torch.exp2((draw.uniform((draw.dims["rows"], 1)) * 41).floor() - 20)
    return _inputs(draw, _normal(draw) * scale, _normal(draw))


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """One large value at a different place in each row among many that must still be counted.

    The large square is 4H/3 and the others sum to about H: added one by one to an accumulator of
    8 significand bits they vanish, as they do when a running sum is rounded to bf16 or fp16.
    """
    hidden = draw.dims["hidden_size"]
    x = 1 + draw.uniform(_extent(draw)) * 0.25
    slots = _by_row(draw, 0, hidden - 1).round().long()
    return _plain(draw, x.scatter_(1, slots, (4 * hidden / 3) ** 0.5))


def fine_squares(draw: Draw) -> dict[str, Tensor]:
    """x from _FINE: squares rounded to bf16 before they are added make the sum too small."""
    fine = torch.tensor(_FINE, device=draw.device)[draw.integers(_extent(draw), len(_FINE)).long()]
    return _plain(draw, 1 + fine / 128)


def fine_products(draw: Draw) -> dict[str, Tensor]:
    """Factors with all of bf16's bits in use: a normalised value or gate rounded to bf16 shows."""
    odd = (draw.uniform((draw.dims["hidden_size"],)) * 64).floor() * 2 + 1
    z = draw.uniform(_extent(draw)) * 4 - 1
    return _inputs(draw, _normal(draw), z, (1 + odd / 128).to(torch.bfloat16))


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {
        "stagnation": stagnation,
        "fine_squares": fine_squares,
        "fine_products": fine_products,
    },
    "sensitivity": {
        "wide_parameters": wide_parameters,
        "gate_tail": gate_tail,
        "saturated_gate": saturated_gate,
        "tiny_inputs": tiny_inputs,
        "uneven_rows": uneven_rows,
    },
}
