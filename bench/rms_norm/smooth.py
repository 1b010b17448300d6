"""rms_norm as differentiable PyTorch in the dtype of its inputs, for its gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init


def smooth(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """x rsqrt(mean(x^2) + eps) weight."""
    x = inputs["x"]
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + init["eps"])
    return {"out": x * scale * inputs["weight"]}
