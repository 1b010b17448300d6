"""chunk_delta_rule_output: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: q, k [B, T, Hq, K], v [B, T, Hv, V], h [B, chunks, Hv, K, V] bf16, g [B, T, Hv] fp32, out
[B, T, Hv, V] bf16; chunks of C = 64 tokens. v head n reads q/k head n // (Hv / Hq). Formula, within a chunk
whose state is h: A_ij = q_i k_j exp(g_i - g_j) where j <= i and g_i - g_j <= 0, else 0, rounded to bf16;
out_i = (exp(g_i) q_i h + sum_j A_ij v_j) scale in fp32, rounded to bf16: the output pass of Yang, Kautz and
Hatamizadeh, "Gated Delta Networks" (2024).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Draw, Expected, Init, Input, Precision
from atrex.records import Cost, Shape
from bench.rounding import interval

_CHUNK = 64
_ORACLE_CHUNK = 1 << 24  # elements of the largest operand at a time: 128 MiB of fp64, ten of that size
_U = 2.0**-24  # unit roundoff of the fp32 accumulator
_GATE_STEPS = 8  # fp32 roundings of A beside its sum: the difference of gates, exp (3 ulp), the product


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Chunks, the last one ragged or not, and the longest sum. Raises ValueError for an uneven group."""
    if dims["num_q_heads"] and dims["num_v_heads"] % dims["num_q_heads"]:
        raise ValueError(f"num_v_heads is {dims['num_v_heads']}, not a multiple of num_q_heads")
    return {"chunks": -(-dims["token_count"] // _CHUNK), "summed": dims["key_dim"] + _CHUNK}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: q, k, v and h ~ N(0, 1), gates -U(0, 1) as those of the state pass."""
    batch, tokens, _, heads, _, _ = _extents(draw)
    return _inputs(draw, -draw.uniform((batch, tokens, heads)))


def _extents(draw: Draw) -> tuple[int, int, int, int, int, int]:
    """B, T, Hq, Hv, K and V."""
    names = ("batch_size", "token_count", "num_q_heads", "num_v_heads", "key_dim", "value_dim")
    batch, tokens, groups, heads, keys, values = (draw.dims[name] for name in names)
    return batch, tokens, groups, heads, keys, values


def _inputs(draw: Draw, g: Tensor) -> dict[str, Tensor]:
    """q, k, v and h ~ N(0, 1) under these gates."""
    batch, tokens, groups, heads, keys, values = _extents(draw)
    return {
        "q": draw.normal((batch, tokens, groups, keys), 1.0, torch.bfloat16),
        "k": draw.normal((batch, tokens, groups, keys), 1.0, torch.bfloat16),
        "v": draw.normal((batch, tokens, heads, values), 1.0, torch.bfloat16),
        "h": draw.normal((batch, draw.dims["chunks"], heads, keys, values), 1.0, torch.bfloat16),
        "g": g,
    }


def _scale(init: Init, keys: int) -> float:
    scale = init.get("scale")
    return float(keys**-0.5 if scale is None else scale)


def _chunked(tensor: Tensor, groups: int) -> Tensor:
    """[B, T, H, ...] as [B, n, G, H / G, C, ...], the last chunk padded with zeros."""
    batch, tokens, heads = tensor.shape[:3]
    padding = (0, 0) * (tensor.ndim - 2) + (0, -tokens % _CHUNK)
    padded = functional.pad(tensor, padding)
    return padded.view(batch, -1, _CHUNK, groups, heads // groups, *tensor.shape[3:]).movedim(2, 4)


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: all chunks at once.

    The matrix products are in fp32, because torch rounds the result of one in bf16.
    """
    v, groups = inputs["v"], inputs["q"].shape[2]
    q, k, value, g = (_chunked(inputs[name].float(), groups) for name in ("q", "k", "v", "g"))
    state = inputs["h"].float().unflatten(2, (groups, -1))
    inter = (q @ state) * g.exp()[..., None]
    gap = g[..., :, None] - g[..., None, :]
    scores = (q @ k.transpose(-1, -2)) * torch.where(gap <= 0, gap, -torch.inf).exp()
    intra = scores.tril().to(v.dtype).float() @ value
    out = (inter + intra) * _scale(init, q.shape[-1])
    flat = out.movedim(4, 2).flatten(1, 2).flatten(2, 3)
    return {"out": flat[:, : v.shape[1]].to(v.dtype)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, some chunks at a time, and within them one row of every chunk after the other.

    So no product with a masked zero is ever formed, and a NaN at a token does not reach those before it.
    `terms` is the sum of magnitudes: exp(g) (1 + |g|) |q| |h|, as exp multiplies its argument's error by |g|,
    plus |A| |v|, all times the scale. A is rounded to bf16 by definition. fp32 has it within
    u (min(K, 6 sqrt(K)) + 8 + |g_i - g_j|) |q| |k| exp(g_i - g_j), so the rounded A is one of those between
    the roundings of the interval's ends, most often a single value; what the others would change is `slack`.
    """
    q, k, v, h, g = (inputs[name] for name in ("q", "k", "v", "h", "g"))
    batch, tokens, groups, keys = q.shape
    heads, values = v.shape[2:]
    value, terms, slack = (torch.empty(v.shape, dtype=torch.float64, device=v.device) for _ in range(3))
    step = max(1, _ORACLE_CHUNK // (batch * heads * max(_CHUNK, keys) * max(_CHUNK, keys, values)))
    for first in range(0, h.shape[1], step):
        span = slice(first * _CHUNK, min(tokens, (first + step) * _CHUNK))
        query, key, seen, gate = (_chunked(tensor[:, span].double(), groups) for tensor in (q, k, v, g))
        state = h[:, first : first + step].double().unflatten(2, (groups, heads // groups))
        opened = gate.exp()[..., None]
        inter, reach = (query @ state) * opened, (query.abs() @ state.abs()) * opened
        rows = [_row(i, query, key, seen, gate) for i in range(min(_CHUNK, tokens - span.start))]
        within, size, other = (torch.stack(found, dim=-2) for found in zip(*rows, strict=True))
        count = within.shape[-2]
        inter, reach = inter[..., :count, :], (reach * (1 + gate.abs()[..., None]))[..., :count, :]
        for into, found in ((value, inter + within), (terms, reach + size), (slack, other)):
            flat = found.movedim(4, 2).flatten(1, 2).flatten(2, 3)  # [B, n C, Hv, V]
            into[:, span] = flat[:, : into[:, span].shape[1]]
    scale = _scale(init, keys)
    return {"out": Expected(value * scale, terms * abs(scale), slack * abs(scale))}


def _row(i: int, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row i of A v in every chunk, [B, n, G, Hv / G, V]: value, sum of magnitudes and slack."""
    keys = q.shape[-1]
    units = Precision("fp32", keys, _GATE_STEPS).units
    query, past = q[..., i : i + 1, :], k[..., : i + 1, :].transpose(-1, -2)
    seen = v[..., : i + 1, :]
    gap = g[..., i, None, None] - g[..., None, : i + 1]
    counts = gap <= 0
    decay = torch.where(counts, gap, -torch.inf).exp()
    exact = (query @ past) * decay
    spread = _U * (units + torch.where(counts, -gap, 0.0)) * (query.abs() @ past.abs()) * decay
    middle, low, high = interval(exact, spread)
    other = torch.maximum(high - middle, middle - low)
    slack = torch.where(other.isfinite(), other, 0.0) @ seen.abs()
    slack = torch.where(slack.isfinite(), slack, 0.0)  # what is not finite is judged by its class alone
    value, size = middle @ seen, middle.abs() @ seen.abs()
    return value[..., 0, :], size[..., 0, :], slack[..., 0, :]


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes.

    Matrix units, operands bf16: q h (2 K V a token and v head), and over the pairs j <= i of a chunk q k^T
    (2 K a pair and q head: the heads of a group share it) and A v (2 V a pair and v head). fp32: for each
    pair and v head the difference of gates, its exponential and the product; for each token and v head exp(g)
    and V products with it and V with the scale; both parts add up in one accumulator. Bytes: each once.
    """
    names = ("batch_size", "token_count", "num_q_heads", "num_v_heads", "key_dim", "value_dim", "chunks")
    batch, tokens, groups, heads, keys, values, chunks = (shape.dims[name] for name in names)
    whole, rest = divmod(tokens, _CHUNK)
    pairs = (whole * _CHUNK * (_CHUNK + 1) + rest * (rest + 1)) // 2
    product = 2 * tokens * heads * keys * values + 2 * pairs * (groups * keys + heads * values)
    plain = heads * (3 * pairs + tokens * (1 + 2 * values))
    read = 2 * (2 * tokens * groups * keys + tokens * heads * values + chunks * heads * keys * values)
    return Cost(
        flops={"bf16": float(batch * product), "fp32": float(batch * plain)},
        read_bytes=batch * (read + 4 * tokens * heads),
        write_bytes=2 * batch * tokens * heads * values,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """Two q heads, as many v heads to each, and two chunks with the same ragged end."""
    ratio, groups = input["num_v_heads"] // input["num_q_heads"], min(2, input["num_q_heads"])
    tokens = input["token_count"]
    tokens = tokens if tokens <= 2 * _CHUNK else _CHUNK + (tokens % _CHUNK or _CHUNK)
    return init, {**input, "token_count": tokens, "num_q_heads": groups, "num_v_heads": groups * ratio}


def _odd(
    tokens: int, heads: tuple[int, int], dims: tuple[int, int], batch: int = 1, scale: float | None = None
) -> tuple[Init, Input]:
    init: Init = {"chunk_size": _CHUNK} if scale is None else {"chunk_size": _CHUNK, "scale": scale}
    input: Input = {
        "batch_size": batch,
        "token_count": tokens,
        "num_q_heads": heads[0],
        "num_v_heads": heads[1],
        "key_dim": dims[0],
        "value_dim": dims[1],
    }
    return init, input


# Chunks that are full, one short and one over; one token; groups of 1, 3, 4 and 8 heads, also an odd number
# of them; batches, whose chunks are counted anew; K and V unequal, below a tile, no power of two; no token.
ODD: tuple[tuple[Init, Input], ...] = (
    _odd(1, (1, 1), (1, 1)),
    _odd(1, (2, 4), (128, 128)),
    _odd(63, (1, 2), (64, 64)),
    _odd(64, (1, 1), (128, 128)),
    _odd(65, (1, 2), (128, 128)),
    _odd(127, (2, 2), (64, 128)),
    _odd(129, (1, 3), (128, 64)),
    _odd(191, (1, 1), (16, 16)),
    _odd(66, (3, 3), (96, 80)),
    _odd(100, (1, 8), (32, 48)),
    _odd(70, (1, 2), (256, 128)),
    _odd(67, (1, 1), (128, 256)),
    _odd(130, (2, 8), (33, 17)),
    _odd(5, (16, 32), (64, 64)),
    _odd(65, (1, 2), (64, 64), batch=3),
    _odd(1, (2, 4), (32, 32), batch=37),
    _odd(128, (2, 2), (64, 32), batch=2),
    _odd(93, (1, 2), (80, 80), scale=1.0),
    _odd(1031, (1, 1), (32, 32)),
    _odd(0, (2, 4), (64, 64)),
    # Small enough for an interpreter: several sequences, other ratios of heads, odd sizes.
    _odd(3, (2, 4), (16, 16), batch=3),
    _odd(65, (1, 3), (17, 9)),
    _odd(70, (1, 2), (16, 24), batch=2),
    _odd(0, (2, 4), (16, 16)),
)


def _accumulated(draw: Draw, most: float) -> Tensor:
    """Gates as a model has them: sums of -U(0, most) since the beginning of each chunk."""
    batch, tokens, _, heads, _, _ = _extents(draw)
    steps = functional.pad(-draw.uniform((batch, tokens, heads)) * most, (0, 0, 0, -tokens % _CHUNK))
    sums: Tensor = steps.double().unflatten(1, (-1, _CHUNK)).cumsum(2).flatten(1, 2)
    return sums[:, :tokens].float()


def _every(tensor: Tensor, period: int, scale: Tensor) -> Tensor:
    """The tensor with the places of its token axis scaled in turn."""
    tokens = torch.arange(tensor.shape[1], device=tensor.device) % period
    scaled: Tensor = tensor * scale[tokens].view(1, -1, *[1] * (tensor.ndim - 2))
    return scaled.to(tensor.dtype)


def model_gates(draw: Draw) -> dict[str, Tensor]:
    """Gates as a model has them in even heads, in no order in odd ones.

    So every pair of a chunk counts in even heads, and in odd ones about half of them must not.
    """
    ordered = _accumulated(draw, 0.1)
    odd = torch.arange(ordered.shape[2], device=ordered.device) % 2 == 1
    return _inputs(draw, torch.where(odd, -draw.uniform(ordered.shape) * 2, ordered))


def rising_gates(draw: Draw) -> dict[str, Tensor]:
    """Gates that rise by U(0, 1/4) a token: g_i - g_j > 0 for all earlier tokens, of which none may count."""
    return _inputs(draw, -16 - _accumulated(draw, 0.25))


def level_gates(draw: Draw) -> dict[str, Tensor]:
    """Gates of 0: exp(0) for every pair, ties of the mask included, and v of later tokens 2^12 times larger.

    Whatever a row takes from beyond the diagonal outweighs it.
    """
    batch, tokens, _, heads, _, _ = _extents(draw)
    inputs = _inputs(draw, torch.zeros((batch, tokens, heads), device=draw.device))
    scale = torch.exp2((torch.arange(_CHUNK, device=draw.device) * 12 / _CHUNK).floor())
    return {**inputs, "v": _every(inputs["v"], _CHUNK, scale)}


def shut_gates(draw: Draw) -> dict[str, Tensor]:
    """Gates accumulated to about -320: exp(g) underflows, and exp(g_i) / exp(g_j) is 0 / 0."""
    return _inputs(draw, _accumulated(draw, 10.0))


def state_only(draw: Draw) -> dict[str, Tensor]:
    """v a 2^-8th: the part of the state alone, that of another chunk or head, or its transpose, shows."""
    inputs = _inputs(draw, _accumulated(draw, 0.05))
    return {**inputs, "v": inputs["v"] / 256}


def uneven_heads(draw: Draw) -> dict[str, Tensor]:
    """v heads by powers of two from 2^-10 to 2^10, q heads too: no head may take another's keys or state."""
    inputs = _inputs(draw, _accumulated(draw, 0.2))
    groups, heads = draw.dims["num_q_heads"], draw.dims["num_v_heads"]
    scale = torch.exp2((draw.uniform((heads, 1)) * 21).floor() - 10)
    query = torch.exp2((draw.uniform((groups, 1)) * 21).floor() - 10)
    changed = {"q": inputs["q"] * query, "v": inputs["v"] * scale, "h": inputs["h"] * scale[..., None]}
    return {**inputs, **{name: value.to(torch.bfloat16) for name, value in changed.items()}}


def _fine(value: Tensor) -> Tensor:
    """The like of it in [1, 1.25) with 8 significand bits, of which the last is set."""
    return 1 + ((value.float().abs() * 37 % 1 * 16).floor() * 2 + 1) / 128


def fine_products(draw: Draw) -> dict[str, Tensor]:
    """Products of 15 significand bits whose signs alternate: what remains is what a narrow product drops."""
    batch, tokens, _, heads, _, _ = _extents(draw)
    inputs = _inputs(draw, torch.zeros((batch, tokens, heads), device=draw.device))
    sign = 1 - 2 * (torch.arange(draw.dims["key_dim"], device=draw.device) % 2)
    turn = 1 - 2 * (torch.arange(tokens, device=draw.device) % 2)[:, None, None]
    changed = {
        "q": _fine(inputs["q"]),
        "k": _fine(inputs["k"]) * sign,
        "v": _fine(inputs["v"]) * turn / 16,
        "h": _fine(inputs["h"]) * sign[:, None],
    }
    return {**inputs, **{name: value.to(torch.bfloat16) for name, value in changed.items()}}


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """Sums of one sign, with a large term at a place that differs from token to token.

    Added one by one to an accumulator of 8 significand bits the others vanish.
    """
    batch, tokens, _, heads, _, _ = _extents(draw)
    inputs = _inputs(draw, torch.zeros((batch, tokens, heads), device=draw.device))
    keys = draw.dims["key_dim"]
    changed = {name: _fine(inputs[name]) for name in ("q", "k", "v", "h")}
    place = torch.arange(tokens, device=draw.device) * 7 % keys
    large = torch.arange(keys, device=draw.device) == place[:, None]
    changed["q"] = torch.where(large[:, None], 0.75 * keys, changed["q"])
    return {**inputs, **{name: value.to(torch.bfloat16) for name, value in changed.items()}}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"fine_products": fine_products, "stagnation": stagnation},
    "sensitivity": {
        "model_gates": model_gates,
        "rising_gates": rising_gates,
        "level_gates": level_gates,
        "shut_gates": shut_gates,
        "state_only": state_only,
        "uneven_heads": uneven_heads,
    },
}
