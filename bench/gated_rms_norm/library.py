"""gated_rms_norm through PyTorch's fused rms_norm, in fp32: bf16 between norm and gate would round twice."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Init


def library(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """x, z [R, H] bf16: rms_norm(x) weight act(z), or rms_norm(x act(z)) weight."""
    wide, z, weight = (inputs[name].float() for name in ("x", "z", "weight"))
    gate = torch.sigmoid(z) if init["activation"] == "sigmoid" else functional.silu(z)
    shape, eps = wide.shape[-1:], init["eps"]
    if init["norm_before_gate"]:
        out = functional.rms_norm(wide, shape, weight, eps) * gate
    else:
        out = functional.rms_norm(wide * gate, shape, weight, eps)
    return {"out": out.to(inputs["x"].dtype)}
