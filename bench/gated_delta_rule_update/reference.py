"""gated_delta_rule_update: inputs, eager reference, fp64 oracle and cost.

Shapes: A_log [Hv] fp32, a [B, T, Hv], dt_bias [Hv], q, k [B, T, Hq, K], v [B, T, Hv, V], b [B, T, Hv] bf16,
initial_state [states, Hv, K, V] fp32, initial_state_indices [B] int32; out [B, T, Hv, V] bf16, final_state
like initial_state. v head n reads q/k head n // (Hv / Hq). Formula, in fp32, token after token from
S = initial_state[index]: d = exp(-exp(A_log) softplus(a + dt_bias)), beta = sigmoid(b), q and k divided by
max(norm, 1e-6) if asked; S = d S; u = (v - S^T k) beta; S = S + k u^T; out = S^T (q scale): Yang, Kautz and
Hatamizadeh, "Gated Delta Networks" (2024), whose chunked form the reference takes for more than one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape
from bench.compiling import host_loop
from bench.gated_delta_rule_update import probes
from bench.gated_delta_rule_update.errors import Gates, out_terms, state_terms

_CHUNK = 64
_LEAST_NORM = 1e-6
_GATE_FLOPS = 11  # a + dt_bias; product, exp, log1p, quotient; product; exp; and the sigmoid's four

PROBES = probes.PROBES


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Nothing follows from the extents. Raises ValueError for an uneven group or too few states."""
    if dims["num_q_heads"] and dims["num_v_heads"] % dims["num_q_heads"]:
        raise ValueError(f"num_v_heads is {dims['num_v_heads']}, not a multiple of num_q_heads")
    if dims["state_count"] < dims["batch_size"]:
        raise ValueError(f"state_count is {dims['state_count']}, fewer than sequences")
    return {}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: all N(0, 1); k ~ N(0, K^-1/2) where it is not normalised, to stay finite."""
    return probes.drawn(draw)


def _scale(init: Init, keys: int) -> float:
    scale = init["scale"]
    return float(keys**-0.5 if scale is None else scale)


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it, in fp32: one step for one token, chunks for more."""
    states, where = inputs["initial_state"], inputs["initial_state_indices"].long()
    a, dt_bias = inputs["a"].float(), inputs["dt_bias"].float()
    softplus = functional.softplus(a + dt_bias, init["softplus_beta"], init["softplus_threshold"])
    decay, beta = -inputs["A_log"].exp() * softplus, inputs["b"].float().sigmoid()
    q, k, v = (inputs[name].float() for name in ("q", "k", "v"))
    if init["use_qk_l2norm"]:
        q, k = (functional.normalize(tensor, dim=-1, eps=_LEAST_NORM) for tensor in (q, k))
    q, ratio, tokens = q * _scale(init, k.shape[-1]), v.shape[2] // k.shape[2], v.shape[1]
    if tokens == 1:
        q, k = (tensor.repeat_interleave(ratio, dim=2) for tensor in (q, k))
        out, state = _step(q[:, 0], k[:, 0], v[:, 0], beta[:, 0], decay[:, 0], states[where])
        out = out[:, None]
    elif tokens:
        out, state = _chunks(q, k, v, beta, decay, states[where])
    else:
        out, state = v, states[where]
    return {"out": out.to(inputs["v"].dtype), "final_state": states.index_copy(0, where, state)}


def _step(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: q, k [B, Hv, K], v [B, Hv, V], beta, decay [B, Hv] to out [B, Hv, V] and the next state."""
    state = state * decay.exp()[..., None, None]
    update = (v - (k[..., None, :] @ state)[..., 0, :]) * beta[..., None]
    state = state + k[..., :, None] * update[..., None, :]
    return (q[..., None, :] @ state)[..., 0, :], state


def _chunks(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The same recurrence, 64 tokens at a time.

    With G the sum of decays since the chunk began, token i has u_i = beta_i (v_i - exp(G_i) S^T k_i -
    sum_(j<i) exp(G_i - G_j) (k_i k_j) u_j): a unit lower triangular system (the UT transform of Yang et al.,
    "Parallelizing Linear Transformers with the Delta Rule", 2024), solved for all chunks at once. Only what
    needs the state before a chunk goes in a loop.
    """
    (batch, tokens, groups, _), (heads, values) = k.shape, v.shape[2:]
    q, k, v, beta, decay = (_chunked(tensor, groups) for tensor in (q, k, v, beta, decay))
    total = decay.cumsum(-1)
    between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    keys = k.transpose(-1, -2)
    system = (k @ keys) * between * beta[..., None]
    weight = k * (beta * total.exp())[..., None]
    solved = torch.linalg.solve_triangular(
        system, torch.cat((v * beta[..., None], weight), dim=-1), upper=False, unitriangular=True
    )
    fresh, weight = solved.split((values, k.shape[-1]), dim=-1)
    scores, query = (q @ keys) * between, q * total.exp()[..., None]
    last = total[..., -1:]
    carried = (k * (last - total).exp()[..., None]).transpose(-1, -2)
    kept = last.exp()[..., None]
    state, out = _scan(state.unflatten(1, (groups, -1)), (fresh, weight, query, scores, kept, carried))
    flat = out.movedim(4, 2).reshape(batch, -1, heads, values)
    return flat[:, :tokens], state.flatten(1, 2)


@host_loop
def _scan(state: Tensor, chunks: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The state after the last chunk, and the outputs of all."""
    out = torch.empty_like(chunks[0])
    for i in range(out.shape[1]):
        state, out[:, i] = _advance(state, *(tensor[:, i] for tensor in chunks))
    return state, out


def _advance(
    state: Tensor,
    fresh: Tensor,
    weight: Tensor,
    query: Tensor,
    scores: Tensor,
    kept: Tensor,
    carried: Tensor,
) -> tuple[Tensor, Tensor]:
    """The state after one chunk, and its outputs."""
    update = fresh - weight @ state
    return state * kept + carried @ update, query @ state + scores @ update


def _chunked(tensor: Tensor, groups: int) -> Tensor:
    """[B, T, H, ...] as [B, n, G, H / G, C, ...], the last chunk padded with zeros, which add nothing."""
    batch, tokens, heads = tensor.shape[:3]
    padding = (0, 0) * (tensor.ndim - 2) + (0, -tokens % _CHUNK)
    padded = functional.pad(tensor, padding)
    return padded.view(batch, -1, _CHUNK, groups, heads // groups, *tensor.shape[3:]).movedim(2, 4)


@dataclass(frozen=True, slots=True)
class _Run:
    """The recurrence in fp64: its results, and of every token what the error bound needs."""

    out: Tensor  # [T, B, Hv, V]
    update: Tensor  # u, [T, B, Hv, V]
    state: Tensor  # [B, Hv, K, V]


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The recurrence in fp64, token after token, all sequences and heads at once.

    `terms` bounds the error of an honest fp32 kernel, recurrent or chunked, in units of u: see `errors`.
    States that are not indexed have no error at all.
    """
    gates = Gates.of(init, inputs)
    q, k = (_normal(init, inputs[name]) for name in ("q", "k"))
    ratio = inputs["v"].shape[2] // inputs["k"].shape[2]
    q, k = (tensor.movedim(0, 1).repeat_interleave(ratio, dim=2) for tensor in (q, k))  # [T, B, Hv, K]
    v, scale = inputs["v"].double().movedim(0, 1), _scale(init, k.shape[-1])
    where = inputs["initial_state_indices"].long()
    first = inputs["initial_state"][where].double()
    run = _recur(q, k, v, gates, first)
    norms = [torch.linalg.vector_norm(tensor, dim=-1)[..., None] for tensor in (q, k)]
    normal = k.shape[-1] if init["use_qk_l2norm"] else 0
    reach, error = state_terms(gates, norms[1], v, run.update, first, k.shape[-1], normal)
    final, terms = (
        inputs["initial_state"].double(),
        torch.zeros_like(inputs["initial_state"], dtype=torch.float64),
    )
    final[where] = run.state
    terms[where] = error[-1, :, :, None].expand(run.state.shape)
    spread = out_terms(norms[0], reach[1:], error[1:], k.shape[-1], normal)
    return {
        "out": Expected(run.out.movedim(1, 0) * scale, spread.movedim(1, 0) * abs(scale)),
        "final_state": Expected(final, terms),
    }


def _normal(init: Init, tensor: Tensor) -> Tensor:
    wide: Tensor = tensor.double()
    if init["use_qk_l2norm"]:
        wide = wide / torch.linalg.vector_norm(wide, dim=-1, keepdim=True).clamp(min=_LEAST_NORM)
    return wide


def _recur(q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: Tensor) -> _Run:
    """Every token in turn: a loop, because this is what the chunked form is judged by."""
    shape = state.shape
    state = state.flatten(0, 1).clone()  # [B Hv, K, V], changed in place
    decay, beta = (tensor.flatten(1)[..., None, None] for tensor in (gates.decay.exp(), gates.beta))
    query, key, value = (tensor.flatten(1, 2)[..., None, :] for tensor in (q, k, v))
    out, update = torch.empty_like(value), torch.empty_like(value)
    for i in range(v.shape[0]):
        state *= decay[i]
        update[i] = torch.baddbmm(value[i], key[i], state, alpha=-1) * beta[i]
        state.baddbmm_(key[i].transpose(1, 2), update[i])
        out[i] = torch.bmm(query[i], state)
    return _Run(out.view(v.shape), update.view(v.shape), state.view(shape))


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes.

    A token and v head: S by d (K V), v - S^T k, S + k u^T and S^T q (2 K V each), all of which the chunked
    form makes matrix products of. Their operands need fp32's 24 bits, which tensor cores have from several
    products in tf32 (or bf16): at least one, so they are counted at its rate, and no kernel beats that. fp32:
    u by beta (V) and the gates; a token and q head: the scale (K), and each norm, if asked, K squares, K - 1
    additions, root, maximum and K quotients; a v head: -exp(A_log). Bytes: each tensor once, of the pool of
    states those that are indexed.
    """
    names = ("batch_size", "token_count", "num_q_heads", "num_v_heads", "key_dim", "value_dim")
    batch, tokens, groups, heads, keys, values = (shape.dims[name] for name in names)
    norms = 2 * (3 * keys + 1) if shape.init["use_qk_l2norm"] else 0
    plain = batch * tokens * (heads * (values + _GATE_FLOPS) + groups * (keys + norms)) + 2 * heads
    state = 4 * heads * keys * values
    read = 2 * tokens * (2 * groups * keys + heads * (values + 2)) + state + 4
    return Cost(
        flops={"tf32": float(7 * batch * tokens * heads * keys * values), "fp32": float(plain)},
        read_bytes=batch * read + 6 * heads,
        write_bytes=batch * (2 * tokens * heads * values + state),
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """Two q heads, as many v heads to each, and no more tokens than two chunks and the same ragged end."""
    ratio, groups = input["num_v_heads"] // input["num_q_heads"], min(2, input["num_q_heads"])
    tokens = input["token_count"]
    tokens = tokens if tokens <= 2 * _CHUNK else 2 * _CHUNK + tokens % _CHUNK
    return init, {**input, "token_count": tokens, "num_q_heads": groups, "num_v_heads": groups * ratio}


def _odd(
    tokens: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    batch: int = 1,
    spare: int = 1,
    **init: float | bool,
) -> tuple[Init, Input]:
    input: Input = {
        "batch_size": batch,
        "token_count": tokens,
        "num_q_heads": heads[0],
        "num_v_heads": heads[1],
        "key_dim": dims[0],
        "value_dim": dims[1],
        "state_count": batch + spare,
    }
    return init, input


# One token for one and for many sequences, with and without spare states; few tokens, as in speculative
# decoding; chunks that are full, one short and one over; groups of 1, 3, 4 and 8 heads, also an odd number of
# them; K and V unequal, below a tile, no power of two; constructor arguments off their defaults; no token at
# all, when the states must come back as they were.
ODD: tuple[tuple[Init, Input], ...] = (
    _odd(1, (1, 1), (1, 1)),
    _odd(1, (1, 2), (128, 128), batch=17, spare=0),
    _odd(1, (2, 4), (64, 128), batch=5, spare=9),
    _odd(1, (16, 32), (16, 16)),
    _odd(1, (3, 3), (96, 80), use_qk_l2norm=False),
    _odd(2, (1, 2), (128, 128)),
    _odd(3, (2, 4), (64, 64), batch=3),
    _odd(5, (1, 3), (128, 64), softplus_beta=2.5, softplus_threshold=1.0),
    _odd(31, (1, 8), (32, 48)),
    _odd(63, (1, 2), (64, 64), scale=1.0),
    _odd(64, (1, 1), (128, 128), spare=0),
    _odd(65, (1, 2), (128, 128)),
    _odd(67, (1, 1), (128, 256), use_qk_l2norm=False),
    _odd(70, (1, 2), (256, 128)),
    _odd(127, (2, 2), (64, 128), batch=2),
    _odd(129, (2, 8), (33, 17)),
    _odd(521, (1, 1), (32, 32)),
    _odd(0, (2, 4), (64, 64)),
    # Small enough for an interpreter: several sequences, other ratios of heads, odd sizes.
    _odd(3, (2, 4), (16, 16), batch=3, spare=4),
    _odd(2, (1, 3), (17, 9)),
    _odd(9, (1, 1), (33, 17)),
    _odd(0, (2, 4), (16, 16)),
)
