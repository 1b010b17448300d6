"""gated_rms_norm as differentiable PyTorch in the dtype of its inputs, for its gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Init


def smooth(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """rms_norm of x, gated by z before or after."""
    x, z = inputs["x"], inputs["z"]
    gate = torch.sigmoid(z) if init["activation"] == "sigmoid" else functional.silu(z)
    if not init["norm_before_gate"]:
        x = x * gate
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + init["eps"]) * inputs["weight"]
    return {"out": out * gate if init["norm_before_gate"] else out}
