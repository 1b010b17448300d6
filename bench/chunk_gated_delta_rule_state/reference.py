"""chunk_gated_delta_rule_state: inputs, eager reference, fp64 oracle, check, directed probes and cost.

Shapes: k [B, T, Hk, K], w [B, T, Hv, K], u [B, T, Hv, V] bf16, g [B, T, Hv] fp32, initial_state
[states, Hv, K, V] fp32, initial_state_indices [B] int32; h [B, chunks, Hv, K, V] and v_new [B, T, Hv, V]
bf16, final_state like initial_state. v head n reads k head n // (Hv / Hk). Formula, chunk after chunk of
C = 64 tokens or what is left, from S = initial_state[index]: h = bf16(S); v = u - w h; v_new = bf16(v);
v_s = bf16(v exp(g_last - g)) where g_last - g <= 0, else 0; S = S exp(g_last) + k^T v_s: the state pass of
Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024). All in fp32 but for the three roundings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from atrex.inputs import bits
from atrex.problem import Draw, Expected, Init, Input, Precision
from atrex.records import Cost, Shape
from bench.chunk_gated_delta_rule_state import probes
from bench.compiling import host_loop
from bench.rounding import interval, rounded

_CHUNK = 64
_BF16_ULP, _BF16_LEAST = 2.0**-7, 2.0**-133  # spacing at 1, and of the subnormals
_FP32_ULP, _FP32_LEAST = 2.0**-23, 2.0**-149
_STEPS = 8  # fp32 roundings beside a sum: difference of gates, exp (3 ulp), products, the adding to S


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Chunks, the last one ragged or not. Raises ValueError for an uneven group or too few states."""
    if dims["num_k_heads"] and dims["num_v_heads"] % dims["num_k_heads"]:
        raise ValueError(f"num_v_heads is {dims['num_v_heads']}, not a multiple of num_k_heads")
    if dims["state_count"] < dims["batch_size"]:
        raise ValueError(f"state_count is {dims['state_count']}, fewer than sequences")
    return {"chunks": -(-dims["token_count"] // _CHUNK)}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: gates -U(0, 1); u and the states ~ N(0, 1); k and w ~ N(0, K^-1/2).

    Keys and w of length about 1, as a model's are, keep the recursion finite: a chunk adds about 0.35 of S to
    what a decay of exp(-1/2) on average leaves. At N(0, 1) each chunk would make S some hundred times larger.
    """
    shape = tuple(draw.dims[name] for name in ("batch_size", "token_count", "num_v_heads"))
    return probes.drawn(draw, -draw.uniform(shape))


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: a loop over chunks, as each needs the last one's state.

    The matrix products are in fp32, because torch rounds the result of one in bf16. What does not need the
    state is made for all chunks beforehand.
    """
    return _eager(inputs, None)


def follow(
    init: Init, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Expected]]:
    """Reference and oracle, each step of them from the h that the candidate gave.

    Whether an infinite w makes +Inf or -Inf hangs on the signs in h, which near zero may be either.
    """
    return _eager(inputs, outputs["h"]), _oracle(inputs, outputs["h"])


def _eager(inputs: Mapping[str, Tensor], given: Tensor | None) -> dict[str, Tensor]:
    """The reference; `given` holds the h to feed back, without it that is S rounded."""
    k, u, states = inputs["k"], inputs["u"], inputs["initial_state"]
    batch, tokens, groups, keys = k.shape
    heads, values = u.shape[2:]
    key, weight, fresh, g = (_chunked(inputs[name].float()) for name in ("k", "w", "u", "g"))
    key = key.repeat_interleave(heads // groups, dim=2).transpose(-1, -2)
    last = g[..., -1]
    gap = last[..., None] - g
    keep, decay = torch.where(gap <= 0, gap, -torch.inf).exp()[..., None], last.exp()[..., None, None]
    where = inputs["initial_state_indices"].long()
    state = states[where]
    h = torch.empty((batch, key.shape[1], heads, keys, values), dtype=k.dtype, device=k.device)
    v_new = torch.empty((batch, key.shape[1], heads, _CHUNK, values), dtype=k.dtype, device=k.device)
    state = _scan(state, h, v_new, h if given is None else given, (key, weight, fresh, keep, decay))
    flat = v_new.transpose(2, 3).flatten(1, 2)[:, :tokens].contiguous()
    return {"h": h, "v_new": flat, "final_state": states.index_copy(0, where, state)}


@host_loop
def _scan(state: Tensor, h: Tensor, v_new: Tensor, fed: Tensor, chunks: tuple[Tensor, ...]) -> Tensor:
    """Fill h and v_new chunk by chunk, from `fed`, which may be h; the state after the last one."""
    for i in range(h.shape[1]):
        h[:, i] = state
        state, v_new[:, i] = _advance(state, fed[:, i], *(tensor[:, i] for tensor in chunks))
    return state


def _advance(
    state: Tensor, fed: Tensor, key: Tensor, weight: Tensor, fresh: Tensor, keep: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """The state after one chunk, and the chunk's values; `fed` is the state before it, rounded."""
    value = fresh - weight @ fed.float()
    scaled = (value * keep).to(fed.dtype).float()
    return state * decay + key @ scaled, value


def _chunked(tensor: Tensor) -> Tensor:
    """[B, T, H, ...] as [B, n, H, C, ...]: the last chunk padded with its last gate, or else with zeros.

    So the last of a padded chunk's gates is its own last token's, and what is padded adds nothing.
    """
    rest = -tensor.shape[1] % _CHUNK
    if rest and tensor.ndim == 3:
        tensor = torch.cat((tensor, tensor[:, -1:].expand(-1, rest, -1)), dim=1)
    elif rest:
        tensor = functional.pad(tensor, (0, 0, 0, 0, 0, rest))
    chunks: Tensor = tensor.unflatten(1, (-1, _CHUNK))
    return chunks.transpose(2, 3)


@dataclass(frozen=True, slots=True)
class _Step:
    """One chunk of every sequence in fp64: what it must be, and how far fp32 may have it from that."""

    span: slice  # its tokens
    state: Tensor  # S before it, [B, Hv, K, V]
    state_error: Tensor
    value: Tensor  # v, [B, Hv, C, V], before it is rounded
    value_error: Tensor


def _steps(inputs: Mapping[str, Tensor], given: Tensor | None) -> Iterator[_Step]:
    """The recursion in fp64, and after the last chunk the state that it leaves (with no tokens).

    `given` holds the h to feed back; without it, it is S rounded. With n terms in a sum G(n) = u (min(n, 6
    sqrt(n)) + 8). Then v is within G(K) (|u| + |w| |h|) of the value here. v_s may round to either end of the
    interval that this, and G(1) (1 + |g_last - g|) of the gate, leave around it: D, most often 0. So S is
    within E of the value here, where E grows by exp(g_last) E + |k|^T D + G(C) (|k|^T |v_s| + (1 + |g_last|)
    exp(g_last) |S|) a chunk: h is given, so that nothing of it goes through w.
    """
    k, w, u, g = (inputs[name] for name in ("k", "w", "u", "g"))
    ratio = u.shape[2] // k.shape[2]
    state = inputs["initial_state"][inputs["initial_state_indices"].long()].double()
    error = torch.zeros_like(state)
    for i, start in enumerate(range(0, u.shape[1], _CHUNK)):
        span = slice(start, min(start + _CHUNK, u.shape[1]))
        key, weight, fresh = (tensor[:, span].double().transpose(1, 2) for tensor in (k, w, u))
        gate = g[:, span].double().transpose(1, 2)[..., None]
        key = key.repeat_interleave(ratio, dim=1).transpose(-1, -2)
        fed = rounded(state) if given is None else given[:, i].double()
        value = fresh - weight @ fed
        value_error = _growth(weight.shape[-1]) * (fresh.abs() + weight.abs() @ fed.abs())
        yield _Step(span, state, error, value, value_error)
        last = gate[:, :, -1:]
        counts, gap = last <= gate, last - gate
        keep = torch.where(counts, gap, 0.0).exp()
        exact = value * keep
        spread = value_error * keep + _growth(1) * (1 + gap.abs()) * exact.abs()
        middle, low, high = interval(exact, spread)
        scaled = torch.where(counts, middle, 0.0)
        ends = torch.where(counts, torch.maximum(high - middle, middle - low), 0.0)
        decay, size = last.exp(), key.abs()
        growth = _growth(scaled.shape[-2])
        error = decay * (error + growth * (1 + last.abs()) * state.abs())
        error = error + size @ (ends + growth * scaled.abs())
        state = state * decay + key @ scaled
    yield _Step(slice(u.shape[1], u.shape[1]), state, error, state[..., :0, :], state[..., :0, :])


def _growth(terms: int) -> float:
    """Error of a sum of so many terms and of the roundings beside it, for a unit sum of magnitudes."""
    return Precision("fp32", terms, _STEPS).growth


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """One right answer in fp64, that of a kernel without any error before the named roundings.

    Others are as right, and `check` judges: `terms` states the size of the values and no more.
    """
    return _oracle(inputs, None)


def _oracle(inputs: Mapping[str, Tensor], given: Tensor | None) -> dict[str, Expected]:
    """The oracle; `given` as in `_steps`."""
    states, u = inputs["initial_state"], inputs["u"]
    chunks = -(-u.shape[1] // _CHUNK)
    h = states.new_empty((u.shape[0], chunks, *states.shape[1:]), dtype=torch.float64)
    v_new = torch.empty(u.shape, dtype=torch.float64, device=u.device)
    final = states.double()
    for i, step in enumerate(_steps(inputs, given)):
        if i == chunks:
            final[inputs["initial_state_indices"].long()] = step.state
            break
        h[:, i], v_new[:, step.span] = step.state, step.value.transpose(1, 2)
    return {
        name: Expected(value, value.abs())
        for name, value in (("h", h), ("v_new", v_new), ("final_state", final))
    }


def check(init: Init, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> str:
    """What is wrong with the outputs, given that they are one run of the recursion; empty if nothing is.

    Each h must be a rounding of the S that follows from the initial state and the h before it, each v_new one
    of u - w h, the states that are indexed the S after the last chunk, within the errors of `_steps` and half
    a unit of the output; states that are not indexed must have kept their bits.
    """
    given, states = outputs["h"], inputs["initial_state"]
    final, where = outputs["final_state"], inputs["initial_state_indices"].long()
    for i, step in enumerate(_steps(inputs, given)):
        if i < given.shape[1]:
            value = outputs["v_new"][:, step.span].transpose(1, 2)
            found = _beyond(f"h, chunk {i},", given[:, i], step.state, step.state_error)
            found = found or _beyond(f"v_new, chunk {i},", value, step.value, step.value_error)
        else:
            found = _beyond("final_state", final[where], step.state, step.state_error)
        if found:
            return found
    spare = torch.ones(states.shape[0], dtype=torch.bool, device=states.device)
    spare[where] = False
    changed = (bits(final) != bits(states)).flatten(1).any(1) & spare
    return f"final_state {int(changed.nonzero()[0])} changed, which no index names" if changed.any() else ""


def _beyond(what: str, got: Tensor, value: Tensor, error: Tensor) -> str:
    """The worst element beyond its error and half a unit of its dtype, judged where a number is due."""
    narrow = got.dtype is torch.bfloat16
    ulp, least = (_BF16_ULP, _BF16_LEAST) if narrow else (_FP32_ULP, _FP32_LEAST)
    error = error + 4 * _FP32_LEAST
    exponent = torch.frexp(value.abs() + error)[1] - 1
    allowed = error + (torch.ldexp(torch.full_like(value, ulp), exponent)).clamp(min=least) / 2
    share = torch.where(value.isfinite(), (got.double() - value).abs() / allowed, 0.0)
    share = torch.where(share.isnan(), torch.inf, share)
    if not share.numel() or float(share.max()) <= 1:
        return ""
    at = tuple(int(place) for place in torch.unravel_index(share.argmax(), share.shape))
    off = f"{float(share[at]):.3g} times the bound from {float(value[at]):.9g}"
    return f"{what} is {float(got[at]):.9g} at {at}, {off}"


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes.

    Matrix units, operands bf16: w h and k^T v_s, 2 K V a token and v head each, the additions to u and to the
    decayed S among them. fp32, for each v head: the difference of gates, its exponential and V
    products a token, the exponential and K V products of the decay a chunk. Bytes: each tensor once, of the
    pool of states those that are indexed.
    """
    names = ("batch_size", "token_count", "num_k_heads", "num_v_heads", "key_dim", "value_dim", "chunks")
    batch, tokens, groups, heads, keys, values, chunks = (shape.dims[name] for name in names)
    plain = tokens * (values + 2) + chunks * (keys * values + 1)
    state = 4 * heads * keys * values
    read = 2 * tokens * (groups * keys + heads * keys + heads * values) + 4 * tokens * heads + state + 4
    written = 2 * heads * values * (chunks * keys + tokens) + state
    return Cost(
        flops={
            "bf16": float(4 * batch * tokens * heads * keys * values),
            "fp32": float(batch * heads * plain),
        },
        read_bytes=batch * read,
        write_bytes=batch * written,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """Two k heads, as many v heads to each, three chunks with the same ragged end, and three states."""
    ratio, groups = input["num_v_heads"] // input["num_k_heads"], min(2, input["num_k_heads"])
    tokens = input["token_count"]
    tokens = tokens if tokens <= 3 * _CHUNK else 2 * _CHUNK + (tokens % _CHUNK or _CHUNK)
    pool = min(input["state_count"], input["batch_size"] + 2)
    changed = {
        "token_count": tokens,
        "num_k_heads": groups,
        "num_v_heads": groups * ratio,
        "state_count": pool,
    }
    return init, {**input, **changed}


def _odd(
    tokens: int, heads: tuple[int, int], dims: tuple[int, int], batch: int = 1, spare: int = 2
) -> tuple[Init, Input]:
    input: Input = {
        "batch_size": batch,
        "token_count": tokens,
        "num_k_heads": heads[0],
        "num_v_heads": heads[1],
        "key_dim": dims[0],
        "value_dim": dims[1],
        "state_count": batch + spare,
    }
    return {"chunk_size": _CHUNK}, input


# Chunks that are full, one short and one over; a last chunk of one token; groups of 1, 3, 4 and 8 heads, also
# an odd number of them; batches, with and without spare states; K and V unequal, below a tile, no power of
# two; many chunks; no token at all, when the states must come back as they were.
ODD: tuple[tuple[Init, Input], ...] = (
    _odd(1, (1, 1), (1, 1)),
    _odd(1, (2, 4), (128, 128)),
    _odd(63, (1, 2), (64, 64)),
    _odd(64, (1, 1), (128, 128), spare=0),
    _odd(65, (1, 2), (128, 128)),
    _odd(127, (2, 2), (64, 128)),
    _odd(129, (1, 3), (128, 64)),
    _odd(191, (1, 1), (16, 16)),
    _odd(66, (3, 3), (96, 80)),
    _odd(100, (1, 8), (32, 48)),
    _odd(70, (1, 2), (256, 128)),
    _odd(67, (1, 1), (128, 256)),
    _odd(130, (2, 8), (33, 17)),
    _odd(5, (8, 16), (64, 64), spare=1),
    _odd(65, (1, 2), (64, 64), batch=3),
    _odd(1, (2, 4), (32, 32), batch=37, spare=0),
    _odd(128, (2, 2), (64, 32), batch=2, spare=7),
    _odd(1031, (1, 1), (32, 32)),
    _odd(0, (2, 4), (64, 64)),
    # Small enough for an interpreter: several sequences, other ratios of heads, odd sizes.
    _odd(3, (2, 4), (16, 16), batch=3, spare=4),
    _odd(65, (1, 3), (17, 9)),
    _odd(70, (1, 2), (16, 24), batch=2),
    _odd(0, (2, 4), (16, 16)),
)

PROBES = probes.PROBES
