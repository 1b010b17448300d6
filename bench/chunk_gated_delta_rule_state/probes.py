"""Inputs of chunk_gated_delta_rule_state, and those directed at one mistake or scale each.

Shapes as in `reference`: k, w, u, g, initial_state and initial_state_indices.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Draw

_CHUNK = 64


def extents_of(draw: Draw) -> tuple[int, int, int, int, int, int]:
    """B, T, Hk, Hv, K and V."""
    names = ("batch_size", "token_count", "num_k_heads", "num_v_heads", "key_dim", "value_dim")
    batch, tokens, groups, heads, keys, values = (draw.dims[name] for name in names)
    return batch, tokens, groups, heads, keys, values


def drawn(draw: Draw, g: Tensor) -> dict[str, Tensor]:
    """k and w of length about 1, u and all states ~ N(0, 1), each sequence a state of its own in no order."""
    batch, tokens, groups, heads, keys, values = extents_of(draw)
    pool = draw.dims["state_count"]
    return {
        "k": draw.normal((batch, tokens, groups, keys), keys**-0.5, torch.bfloat16),
        "w": draw.normal((batch, tokens, heads, keys), keys**-0.5, torch.bfloat16),
        "u": draw.normal((batch, tokens, heads, values), 1.0, torch.bfloat16),
        "g": g,
        "initial_state": draw.normal((pool, heads, keys, values), 1.0, torch.float32),
        "initial_state_indices": _indices(draw),
    }


def _indices(draw: Draw) -> Tensor:
    """States in a random order that does not begin with 0, which a kernel without the indices would take."""
    order = draw.permutation(draw.dims["state_count"])
    order = torch.where(order[0] == 0, order.roll(1), order)
    return order[: draw.dims["batch_size"]].to(torch.int32)


def _accumulated(draw: Draw, most: float) -> Tensor:
    """Gates as a model has them: sums of -U(0, most) since the beginning of each chunk."""
    batch, tokens, _, heads, _, _ = extents_of(draw)
    steps = functional.pad(-draw.uniform((batch, tokens, heads)) * most, (0, 0, 0, -tokens % _CHUNK))
    sums: Tensor = steps.double().unflatten(1, (-1, _CHUNK)).cumsum(2).flatten(1, 2)
    return sums[:, :tokens].float()


def model_gates(draw: Draw) -> dict[str, Tensor]:
    """Gates as a model has them in even heads, in no order in odd ones, where half of the v_s must be 0.

    Decays of about 0.3 a chunk leave something of the first state after several.
    """
    ordered = _accumulated(draw, 0.04)
    odd = torch.arange(ordered.shape[2], device=ordered.device) % 2 == 1
    return drawn(draw, torch.where(odd, -draw.uniform(ordered.shape) * 2, ordered))


def rising_gates(draw: Draw) -> dict[str, Tensor]:
    """Gates that rise within a chunk: g_last - g > 0 for all but the last token, and none may count."""
    return drawn(draw, -16 - _accumulated(draw, 0.25))


def level_gates(draw: Draw) -> dict[str, Tensor]:
    """Gates of 0: ties of the mask, and nothing decays; w of 1/64 keep what piles up finite."""
    batch, tokens, _, heads, _, _ = extents_of(draw)
    inputs = drawn(draw, torch.zeros((batch, tokens, heads), device=draw.device))
    return {**inputs, "w": inputs["w"] / 64}


def shut_gates(draw: Draw) -> dict[str, Tensor]:
    """Gates accumulated to about -320: all of S goes with each chunk, and exp(-g) alone would be infinite."""
    return drawn(draw, _accumulated(draw, 10.0))


def loud_states(draw: Draw) -> dict[str, Tensor]:
    """States 2^0 to 2^12 in size: that of another index, sequence or head, or its transpose, shows."""
    inputs = drawn(draw, _accumulated(draw, 0.02))
    pool, heads = draw.dims["state_count"], draw.dims["num_v_heads"]
    scale = torch.exp2((draw.uniform((pool, heads, 1, 1)) * 13).floor())
    return {**inputs, "initial_state": inputs["initial_state"] * scale}


def same_keys(draw: Draw) -> dict[str, Tensor]:
    """The keys of a head all alike, and w as them: S is a sum of one sign under a true contraction."""
    inputs = drawn(draw, _accumulated(draw, 0.001))
    key = inputs["k"][:, :1].expand(inputs["k"].shape).contiguous()
    ratio = draw.dims["num_v_heads"] // draw.dims["num_k_heads"]
    weight = (key / _CHUNK).repeat_interleave(ratio, dim=2)
    return {**inputs, "k": key, "w": weight, "u": (1 + inputs["u"].abs() / 4).to(torch.bfloat16)}


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """Small values of one sign added to states of 256 that do not decay: kept in bf16 they would vanish."""
    batch, tokens, _, heads, _, _ = extents_of(draw)
    inputs = drawn(draw, torch.zeros((batch, tokens, heads), device=draw.device))
    changed = {"k": inputs["k"].abs(), "w": inputs["w"] / 4096, "u": inputs["u"].abs() / 64}
    return {**inputs, **changed, "initial_state": 256 + inputs["initial_state"].abs()}


def fine_products(draw: Draw) -> dict[str, Tensor]:
    """u - w h and k^T v_s that cancel but for products of 15 significand bits, which narrow ones lose."""
    batch, tokens, _, heads, keys, _ = extents_of(draw)
    inputs = drawn(draw, torch.zeros((batch, tokens, heads), device=draw.device))
    sign = 1 - 2 * (torch.arange(keys, device=draw.device) % 2)
    turn = 1 - 2 * (torch.arange(tokens, device=draw.device) % 2)[:, None, None]
    size = 2.0 ** -round(keys**0.5)
    changed = {
        "k": _fine(inputs["k"]) * turn / 8,
        "w": _fine(inputs["w"]) * sign * size,
        "u": _fine(inputs["u"]) * 2.0**-6,
    }
    fine = {name: value.to(torch.bfloat16) for name, value in changed.items()}
    return {**inputs, **fine, "initial_state": _fine(inputs["initial_state"])}


def _fine(value: Tensor) -> Tensor:
    """The like of it in [1, 1.25) with 8 significand bits, of which the last is set."""
    return 1 + ((value.float().abs() * 37 % 1 * 16).floor() * 2 + 1) / 128


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation, "fine_products": fine_products, "same_keys": same_keys},
    "sensitivity": {
        "model_gates": model_gates,
        "rising_gates": rising_gates,
        "level_gates": level_gates,
        "shut_gates": shut_gates,
        "loud_states": loud_states,
    },
}
