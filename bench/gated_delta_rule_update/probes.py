"""Inputs of gated_delta_rule_update, and those directed at one mistake or scale each.

Shapes as in `reference`: A_log, a, dt_bias, q, k, v, b, initial_state and initial_state_indices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atrex.problem import Draw


def drawn(draw: Draw, key: float | None = None) -> dict[str, Tensor]:
    """All N(0, 1), every sequence a state of its own in no order.

    k ~ N(0, key); left out: 1 where the operator normalises it, else K^-1/2, as keys of length above sqrt(2)
    need not keep the recurrence finite.
    """
    names = ("batch_size", "token_count", "num_q_heads", "num_v_heads", "key_dim", "value_dim", "state_count")
    batch, tokens, groups, heads, keys, values, pool = (draw.dims[name] for name in names)
    if key is None:
        key = 1.0 if draw.init["use_qk_l2norm"] else keys**-0.5
    return {
        "A_log": draw.normal((heads,), 1.0, torch.float32),
        "a": draw.normal((batch, tokens, heads), 1.0, torch.bfloat16),
        "dt_bias": draw.normal((heads,), 1.0, torch.bfloat16),
        "q": draw.normal((batch, tokens, groups, keys), 1.0, torch.bfloat16),
        "k": draw.normal((batch, tokens, groups, keys), key, torch.bfloat16),
        "v": draw.normal((batch, tokens, heads, values), 1.0, torch.bfloat16),
        "b": draw.normal((batch, tokens, heads), 1.0, torch.bfloat16),
        "initial_state": draw.normal((pool, heads, keys, values), 1.0, torch.float32),
        "initial_state_indices": _indices(draw),
    }


def _indices(draw: Draw) -> Tensor:
    """States in a random order that does not begin with 0, which a kernel without the indices would take."""
    order = draw.permutation(draw.dims["state_count"])
    order = torch.where(order[0] == 0, order.roll(1), order)
    return order[: draw.dims["batch_size"]].to(torch.int32)


def _short_keys(draw: Draw) -> dict[str, Tensor]:
    """As drawn, with keys of length 0.4 to 1.2: the recurrence stays finite with and without their norm.

    Then |1 - beta |k|^2| is below 1 for any beta.
    """
    inputs = drawn(draw)
    key = inputs["k"].float()
    length = 0.4 + 0.8 * draw.uniform((*key.shape[:-1], 1))
    norm = torch.linalg.vector_norm(key, dim=-1, keepdim=True).clamp(min=1e-3)
    return {**inputs, "k": (key / norm * length).to(torch.bfloat16)}


def uneven(draw: Draw) -> dict[str, Tensor]:
    """Keys of unequal length below sqrt(2), decays from 0.1 to 0.99, every argument of size about 1."""
    inputs = _short_keys(draw)
    return {**inputs, "A_log": -3 + 3 * draw.uniform(inputs["A_log"].shape)}


def gates_apart(draw: Draw) -> dict[str, Tensor]:
    """a and b from -120 to 120: softplus is exponential, curved or linear, and exp may overflow."""
    inputs = _short_keys(draw)
    changed = {name: (draw.uniform(inputs[name].shape) * 240 - 120).to(torch.bfloat16) for name in ("a", "b")}
    # A token in four has gates of ordinary size: at the ends d and beta are 0 or 1.
    ordinary = draw.uniform(inputs["a"].shape) < 0.25
    changed = {name: torch.where(ordinary, inputs[name], value) for name, value in changed.items()}
    return {**inputs, **changed, "A_log": inputs["A_log"] - 4}


def short_vectors(draw: Draw) -> dict[str, Tensor]:
    """q and k of lengths 1e-8 to 1e-3, some of 0: max(norm, 1e-6), and not an eps under the root."""
    inputs = _short_keys(draw)
    for name in ("q", "k"):
        vector = inputs[name].float()
        exponent = draw.uniform((*vector.shape[:-1], 1)) * 5 - 8
        length = torch.where(draw.uniform(exponent.shape) < 0.1, 0.0, 10.0**exponent)
        norm = torch.linalg.vector_norm(vector, dim=-1, keepdim=True).clamp(min=1e-3)
        inputs[name] = (vector / norm * length).to(torch.bfloat16)
    return inputs


def uneven_heads(draw: Draw) -> dict[str, Tensor]:
    """v heads and states by powers of two from 2^-10 to 2^10: no head or state may take another's."""
    inputs = _short_keys(draw)
    scale = torch.exp2((draw.uniform((draw.dims["num_v_heads"], 1)) * 21).floor() - 10)
    pool = torch.exp2((draw.uniform((draw.dims["state_count"], 1, 1, 1)) * 9).floor() - 4)
    return {
        **inputs,
        "v": (inputs["v"] * scale).to(torch.bfloat16),
        "initial_state": inputs["initial_state"] * scale[..., None] * pool,
    }


def long_memory(draw: Draw) -> dict[str, Tensor]:
    """Decays of about 0.9995 and small beta: a state in bf16 or fp16 no longer takes what a token adds."""
    inputs = _short_keys(draw)
    changed = {"A_log": inputs["A_log"] / 4 - 7, "b": (inputs["b"] / 4 - 5).to(torch.bfloat16)}
    return {**inputs, **changed, "v": 1 + inputs["v"].abs() / 4}


def fresh(draw: Draw) -> dict[str, Tensor]:
    """States of zero, as of a new sequence, and b from -16 to -4: all there is comes from a small beta."""
    inputs = _short_keys(draw)
    b = (draw.uniform(inputs["b"].shape) * 12 - 16).to(torch.bfloat16)
    return {**inputs, "b": b, "initial_state": torch.zeros_like(inputs["initial_state"])}


def one_key(draw: Draw) -> dict[str, Tensor]:
    """One key for all tokens of a head, of one sign, and q as it: S is a running mean of v."""
    inputs = long_memory(draw)
    key = inputs["k"].abs()[:, :1].expand(inputs["k"].shape).contiguous()
    return {**inputs, "k": key, "q": key.clone(), "initial_state": inputs["initial_state"].abs()}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"long_memory": long_memory, "one_key": one_key},
    "sensitivity": {
        "uneven": uneven,
        "gates_apart": gates_apart,
        "short_vectors": short_vectors,
        "uneven_heads": uneven_heads,
        "fresh": fresh,
    },
}
