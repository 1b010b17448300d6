"""chunk_gated_delta_rule_state: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.chunk_gated_delta_rule_state.reference import reference

_CHUNK = 64


def state_frozen(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state passed through: nothing fades and nothing is written."""
    return reference(init, {**inputs, **{name: torch.zeros_like(inputs[name]) for name in ("k", "g")}})


def last_chunk_forgotten(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The final state is that before the last chunk."""
    kept = (inputs["k"].shape[1] - 1) // _CHUNK * _CHUNK
    before = {n: t[:, :kept] if n in ("k", "w", "u", "g") else t for n, t in inputs.items()}
    final = reference(init, before)["final_state"] if kept > 0 else inputs["initial_state"]
    return {**reference(init, inputs), "final_state": final}


def first_gate_for_all(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Only the decay of a chunk's last token counts: no weight within a chunk."""
    g = inputs["g"].clone()
    for start in range(0, g.shape[1], _CHUNK):
        part = g[:, start : start + _CHUNK]
        part.copy_(part[:, -1:].expand_as(part).clone())
    return reference(init, {**inputs, "g": g})


SHORTCUTS = {
    "state passed through": state_frozen,
    "last chunk not in the final state": last_chunk_forgotten,
    "no decay within a chunk": first_gate_for_all,
}
