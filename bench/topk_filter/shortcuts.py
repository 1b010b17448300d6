"""topk_filter: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init


def _kept(init: Init, logits: Tensor) -> int:
    return min(int(init["top_k"]), logits.shape[-1])


def threshold_assumed(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No selection: the quantile of N(0, 1), which production logits follow."""
    logits = inputs["logits"]
    share = torch.tensor(1 - _kept(init, logits) / logits.shape[-1], dtype=torch.float64)
    return {"out": logits.masked_fill(logits < float(torch.special.ndtri(share)), -math.inf)}


def ties_dropped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Exactly k entries of each row, whichever of those that tie with the k-th."""
    logits = inputs["logits"]
    values, index = logits.topk(_kept(init, logits), dim=-1)
    return {"out": torch.full_like(logits, -math.inf).scatter_(-1, index, values)}


def maximum_alone(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Greedy: the largest entry of each row."""
    logits = inputs["logits"]
    return {"out": logits.masked_fill(logits < logits.amax(-1, keepdim=True), -math.inf)}


SHORTCUTS = {
    "threshold assumed": threshold_assumed,
    "ties dropped": ties_dropped,
    "maximum alone": maximum_alone,
}
