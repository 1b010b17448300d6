"""l2_norm as differentiable PyTorch in the dtype of its inputs, for its gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init


def smooth(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """x rsqrt(sum(x^2) + eps)."""
    x = inputs["x"]
    return {"out": x * torch.rsqrt(x.square().sum(-1, keepdim=True) + init["eps"])}
