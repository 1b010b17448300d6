"""linear_sigmoid_mul: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Init


def gemm_skipped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sigmoid of the bias alone."""
    post = inputs["post_mul_mat"]
    return {"out": (torch.sigmoid(inputs["bias"].float()) * post).to(post.dtype)}


def gate_skipped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Half of post_mul_mat: production's gates are near 0."""
    return {"out": inputs["post_mul_mat"] / 2}


def linear_sigmoid(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No exponential: 1/2 + gate / 4, which is the sigmoid near 0."""
    gate = functional.linear(inputs["hidden_states"], inputs["weight"], inputs["bias"])
    share = (0.5 + gate.float() / 4).clamp(0, 1)
    return {"out": (share * inputs["post_mul_mat"]).to(gate.dtype)}


SHORTCUTS = {
    "GEMM skipped": gemm_skipped,
    "half of post_mul_mat": gate_skipped,
    "sigmoid by its tangent": linear_sigmoid,
}
