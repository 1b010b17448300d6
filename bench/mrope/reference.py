"""mrope: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: q [T, Hq D], k [T, Hkv D] bf16, cos and sin [3, T, R/2] fp32 with R = rotary_dim; q and k out as
they came. Formula: multimodal rotary embedding (Wang et al., "Qwen2-VL", arXiv:2409.12191, section 2.1):
each frequency takes its angle from time, height or width, by sections [t, h, w] of consecutive frequencies,
or interleaved. Halves are rotated (neox), or pairs of neighbours; what is beyond R passes through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 24  # elements at a time: 128 MiB of fp64


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Widths of rows. Raises ValueError for sections or a rotary_dim that do not fit."""
    head, rotary, section = dims["head_size"], dims["rotary_dim"], tuple(init["mrope_section"])
    if rotary > head:
        raise ValueError(f"rotary_dim {rotary} is above head_size {head}")
    if len(section) != 3 or min(section) < 0 or sum(section) != rotary // 2:
        raise ValueError(f"mrope_section {list(section)} is not three numbers with the sum {rotary // 2}")
    return {
        "q_width": dims["num_query_heads"] * head,
        "k_width": dims["num_kv_heads"] * head,
        "frequencies": rotary // 2,
    }


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: q, k ~ N(0, 1); cos and sin of the positions of a text with an image in it.

    Height and width walk over a grid of 64 columns while time stands still, and frequencies are those of
    base 10^6, as in Qwen2-VL.
    """
    token = torch.arange(draw.dims["token_count"], device=draw.device)
    positions = torch.stack((token // 4096, token // 64 % 64, token % 64)).double()
    exponent = torch.arange(draw.dims["frequencies"], device=draw.device) / draw.dims["frequencies"]
    angle = positions[:, :, None] * 1e6 ** -exponent.double()
    return {**_normal(draw), "cos": angle.cos().float(), "sin": angle.sin().float()}


def _selected(init: Init, table: Tensor) -> Tensor:
    """Of a table [3, T, R/2] each frequency's own axis: [T, R/2]."""
    time, height, width = init["mrope_section"]
    if not init["mrope_interleaved"]:
        parts = table.split((time, height, width), dim=-1)
        return torch.cat([part[axis] for axis, part in enumerate(parts)], dim=-1)
    chosen = table[0].clone()
    chosen[:, 1 : 3 * height : 3] = table[1, :, 1 : 3 * height : 3]
    chosen[:, 2 : 3 * width : 3] = table[2, :, 2 : 3 * width : 3]
    return chosen


def _rotated(init: Init, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    heads = x.unflatten(-1, (-1, init["head_size"]))
    turning, rest = heads[..., : init["rotary_dim"]].float(), heads[..., init["rotary_dim"] :]
    if init["is_neox_style"]:
        first, second = turning.chunk(2, dim=-1)
    else:
        first, second = turning[..., 0::2], turning[..., 1::2]
    halves = (first * cos - second * sin, second * cos + first * sin)
    turned = torch.cat(halves, -1) if init["is_neox_style"] else torch.stack(halves, -1).flatten(-2)
    return torch.cat((turned.to(x.dtype), rest), -1).flatten(1)


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it."""
    cos, sin = (_selected(init, inputs[name])[:, None] for name in ("cos", "sin"))
    return {name: _rotated(init, inputs[name], cos, sin) for name in ("q", "k")}


def _axes(init: Init, device: torch.device) -> Tensor:
    """The axis of each frequency, as operators.md words it: [R/2] int64."""
    i = torch.arange(init["rotary_dim"] // 2, device=device)
    time, height, width = (int(count) for count in init["mrope_section"])
    if not init["mrope_interleaved"]:
        return (i >= time).long() + (i >= time + height).long()
    return ((i % 3 == 1) & (i <= 3 * height)).long() + 2 * ((i % 3 == 2) & (i <= 3 * width)).long()


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The rotation in fp64 through an index of frequencies, a block of tokens at a time.

    Element e of a head is turned with its partner e': out[e] = x[e] cos + s x[e'] sin, s = -1 for the
    first of a pair. Two products and a sum, so `terms` is |x[e] cos| + |x[e'] sin|; what passes
    through is copied, without any error.
    """
    device, head, rotary = inputs["q"].device, init["head_size"], init["rotary_dim"]
    element = torch.arange(rotary, device=device)
    if init["is_neox_style"]:
        partner, sign = (element + rotary // 2) % rotary, torch.where(element < rotary // 2, -1.0, 1.0)
        frequency = element % (rotary // 2)
    else:
        partner, sign, frequency = element ^ 1, torch.where(element % 2 == 0, -1.0, 1.0), element // 2
    axis = _axes(init, device)[frequency]
    result = dict[str, Expected]()
    for name in ("q", "k"):
        x = inputs[name]
        value, terms = x.double(), torch.zeros(x.shape, dtype=torch.float64, device=device)
        step = max(1, _ORACLE_CHUNK // x.shape[1])
        for start in range(0, x.shape[0], step):
            part = slice(start, start + step)
            cos, sin = (inputs[n][:, part][axis, :, frequency].double().T[:, None] for n in ("cos", "sin"))
            heads = x[part].double().unflatten(-1, (-1, head))
            own, other = heads[..., :rotary] * cos, heads[..., partner] * sin
            value[part].unflatten(-1, (-1, head))[..., :rotary] = own + sign * other
            terms[part].unflatten(-1, (-1, head))[..., :rotary] = own.abs() + other.abs()
        result[name] = Expected(value, terms)
    return result


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for T tokens of Hq + Hkv heads.

    Per rotated element two products and a sum. Of cos and sin each frequency's own axis is read.
    """
    tokens, rotary = shape.dims["token_count"], shape.dims["rotary_dim"]
    heads = shape.dims["num_query_heads"] + shape.dims["num_kv_heads"]
    moved = 2 * tokens * heads * shape.dims["head_size"]
    return Cost(
        flops={"fp32": float(3 * tokens * heads * rotary)},
        read_bytes=moved + 2 * 4 * tokens * (rotary // 2),
        write_bytes=moved,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few tokens with the same heads."""
    return init, {**input, "token_count": min(input["token_count"], 19)}


def _odd(
    tokens: int,
    heads: tuple[int, int],
    sizes: tuple[int, int],
    section: tuple[int, int, int],
    style: str,
) -> tuple[Init, Input]:
    """`sizes` are head_size and rotary_dim; `style` says interleaved, neox, both or neither."""
    common = {"head_size": sizes[0], "rotary_dim": sizes[1]}
    flags = {"mrope_interleaved": "interleaved" in style, "is_neox_style": "neox" in style}
    counts = {"token_count": tokens, "num_query_heads": heads[0], "num_kv_heads": heads[1]}
    return {**common, "mrope_section": section, **flags}, {**counts, **common}


# All four styles, sections that are unequal, empty or of one axis only (so that an axis taken for
# another is seen), rotary_dim below head_size, heads of no power of two, more kv heads than q heads.
ODD = (
    _odd(0, (16, 1), (128, 128), (16, 24, 24), "neox"),
    _odd(1, (16, 1), (128, 128), (16, 24, 24), "neox"),
    _odd(2, (1, 1), (2, 2), (0, 0, 1), "neox"),
    _odd(3, (16, 4), (128, 128), (24, 20, 20), "neox interleaved"),
    _odd(5, (3, 1), (128, 128), (24, 20, 20), "interleaved"),
    _odd(7, (16, 1), (128, 128), (16, 24, 24), "neither"),
    _odd(13, (5, 2), (128, 64), (8, 12, 12), "neox"),
    _odd(17, (7, 7), (128, 64), (12, 10, 10), "neox interleaved"),
    _odd(31, (2, 3), (80, 80), (16, 12, 12), "neox"),
    _odd(33, (3, 1), (96, 48), (10, 7, 7), "interleaved"),
    _odd(37, (4, 1), (72, 40), (3, 5, 12), "neither"),
    _odd(63, (2, 1), (64, 64), (32, 0, 0), "neox"),
    _odd(65, (2, 1), (64, 64), (0, 32, 0), "neox"),
    _odd(65, (2, 1), (64, 64), (0, 0, 32), "neither"),
    _odd(127, (6, 2), (256, 64), (11, 11, 10), "neox interleaved"),
    _odd(129, (1, 1), (64, 32), (16, 0, 0), "neox interleaved"),
    _odd(100, (9, 3), (100, 26), (5, 4, 4), "neox interleaved"),
    _odd(257, (2, 1), (128, 128), (62, 1, 1), "neox interleaved"),
    _odd(9, (2, 1), (64, 64), (8, 16, 8), "neox interleaved"),  # each axis ends where no other one does
    _odd(11, (2, 1), (64, 64), (8, 8, 16), "interleaved"),
    _odd(3, (1, 1), (512, 512), (100, 80, 76), "neox"),
    _odd(19, (28, 4), (128, 128), (16, 24, 24), "neox"),
    _odd(3, (129, 17), (64, 64), (1, 30, 1), "neox"),
    _odd(1025, (1, 1), (16, 16), (2, 3, 3), "interleaved"),
    _odd(65537, (1, 1), (8, 6), (1, 1, 1), "neox"),
)


def _normal(draw: Draw) -> dict[str, Tensor]:
    tokens = draw.dims["token_count"]
    return {
        "q": draw.normal((tokens, draw.dims["q_width"]), 1.0, torch.bfloat16),
        "k": draw.normal((tokens, draw.dims["k_width"]), 1.0, torch.bfloat16),
    }


def _table(draw: Draw) -> tuple[int, int, int]:
    return 3, draw.dims["token_count"], draw.dims["frequencies"]


def free_tables(draw: Draw) -> dict[str, Tensor]:
    """All N(0, 1), cos and sin independently and off the unit circle: every entry stands for itself."""
    return {
        **_normal(draw),
        "cos": draw.normal(_table(draw), 1.0, torch.float32),
        "sin": draw.normal(_table(draw), 1.0, torch.float32),
    }


def axes_apart(draw: Draw) -> dict[str, Tensor]:
    """Tables whose axes differ by factors of 64: a frequency of the wrong axis is wrong by as much."""
    size = torch.tensor([1.0, 64.0, 4096.0], device=draw.device)[:, None, None]
    inputs = free_tables(draw)
    return {**inputs, "cos": inputs["cos"] * size, "sin": inputs["sin"] * size}


def cos_alone(draw: Draw) -> dict[str, Tensor]:
    """No sine: what is left are the products with the cosine."""
    inputs = free_tables(draw)
    return {**inputs, "sin": torch.zeros_like(inputs["sin"])}


def sin_alone(draw: Draw) -> dict[str, Tensor]:
    """No cosine: what is left are the partners, each with its sign."""
    inputs = free_tables(draw)
    return {**inputs, "cos": torch.zeros_like(inputs["cos"])}


def uneven_heads(draw: Draw) -> dict[str, Tensor]:
    """Heads whose scales differ by powers of two: none may leak into the next."""
    inputs = free_tables(draw)
    for name in ("q", "k"):
        heads = inputs[name].unflatten(1, (-1, draw.dims["head_size"]))
        heads *= torch.exp2((draw.uniform((*heads.shape[:2], 1)) * 21).floor() - 10).to(heads.dtype)
    return inputs


def cancelling(draw: Draw) -> dict[str, Tensor]:
    """x1 = x2 and cos = sin but for 2^-12: the first of each pair is what fp32 products leave.

    Tables rounded to bf16 or TF32, or products rounded to bf16, leave nothing or twice as much.
    """
    inputs = _normal(draw)
    rotary, neox = draw.dims["rotary_dim"], bool(draw.init["is_neox_style"])
    for x in inputs.values():
        heads = x.unflatten(1, (-1, draw.dims["head_size"]))
        if neox:
            heads[..., rotary // 2 : rotary] = heads[..., : rotary // 2]
        else:
            heads[..., 1:rotary:2] = heads[..., 0:rotary:2]
    cos = 0.5 + draw.uniform(_table(draw))
    return {**inputs, "cos": cos, "sin": cos * (1 - 2.0**-12 * (1 + draw.uniform(_table(draw))))}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"cancelling": cancelling},
    "sensitivity": {
        "free_tables": free_tables,
        "axes_apart": axes_apart,
        "cos_alone": cos_alone,
        "sin_alone": sin_alone,
        "uneven_heads": uneven_heads,
    },
}
