"""moe_sum_reduce: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init


def _reduced(init: Init, terms: Tensor, factor: float) -> dict[str, Tensor]:
    total = terms.sum(1, dtype=torch.float32) * factor
    return {"out": (total * init["routed_scaling_factor"]).to(terms.dtype)}


def first_expert_alone(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The first of the k terms."""
    return _reduced(init, inputs["expert_outputs"][:, :1], 1.0)


def last_expert_forgotten(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All terms but the last."""
    terms = inputs["expert_outputs"]
    return _reduced(init, terms[:, : max(1, terms.shape[1] - 1)], 1.0)


def mean_for_sum(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The mean of the terms."""
    terms = inputs["expert_outputs"]
    return _reduced(init, terms, 1 / terms.shape[1])


SHORTCUTS = {
    "first expert alone": first_expert_alone,
    "last expert forgotten": last_expert_forgotten,
    "mean for sum": mean_for_sum,
}
