"""fused_qk_rmsnorm through PyTorch's fused rms_norm, which knows nothing of heads within a row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Init


def library(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """hidden_states [T, (Hq + 2 Hkv) D]: each q and k head normalised, rounded, then weighted."""
    hidden, size = inputs["hidden_states"], inputs["q_weight"].shape[0]
    heads, kv_heads = init["head_num"], init["kv_head_num"]
    q, k, v = hidden.unflatten(-1, (-1, size)).split([heads, kv_heads, kv_heads], 1)
    parts = [_norm(q, inputs["q_weight"], init["eps"]), _norm(k, inputs["k_weight"], init["eps"]), v]
    return {"out": torch.cat(parts, 1).flatten(1)}


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], None, eps) * weight  # the weight comes after the rounding
