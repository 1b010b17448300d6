"""layer_norm as differentiable PyTorch in the dtype of its inputs, for its gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init


def smooth(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """(x - mean) rsqrt(variance + eps) weight + bias."""
    x = inputs["x"]
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + init["eps"])
    return {"out": centred * scale * inputs["weight"] + inputs["bias"]}
