"""fused_qk_rmsnorm: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.fused_qk_rmsnorm.reference import reference


def _q_width(init: Init, inputs: Mapping[str, Tensor]) -> int:
    return int(init["head_num"]) * inputs["q_weight"].shape[0]


def k_not_normalised(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """q alone; k passes through as v does."""
    width = _q_width(init, inputs)
    right = reference(init, inputs)["out"]
    return {"out": torch.cat((right[:, :width], inputs["hidden_states"][:, width:]), -1)}


def one_weight(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weight of q for k as well."""
    return reference(init, {**inputs, "k_weight": inputs["q_weight"]})


def one_norm_a_row(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One mean square for all q heads of a token, and one for its k heads."""
    hidden, size = inputs["hidden_states"], inputs["q_weight"].shape[0]
    width, k_width = _q_width(init, inputs), int(init["kv_head_num"]) * size
    parts = []
    for part, name in ((hidden[:, :width], "q_weight"), (hidden[:, width : width + k_width], "k_weight")):
        scale = torch.rsqrt(part.float().square().mean(-1, keepdim=True) + init["eps"])
        heads = (part.float() * scale).to(part.dtype).unflatten(-1, (-1, size))
        parts.append((heads * inputs[name]).flatten(-2))
    return {"out": torch.cat((*parts, hidden[:, width + k_width :]), -1)}


SHORTCUTS = {
    "k not normalised": k_not_normalised,
    "weight of q for k": one_weight,
    "one norm for all heads": one_norm_a_row,
}
