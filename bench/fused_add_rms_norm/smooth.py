"""fused_add_rms_norm as differentiable PyTorch in the dtype of its inputs, for its gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.gradient import narrow
from atrex.problem import Init


def smooth(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sum, rounded to bf16, and its rms_norm.

    The gradient that comes back through the norm is rounded as a tensor of its own, as the sum is one, before
    the residual's is added to it.
    """
    total = narrow(inputs["x"] + inputs["residual"])
    normed = narrow(total)
    scale = torch.rsqrt(normed.square().mean(-1, keepdim=True) + init["eps"])
    return {"out": normed * scale * inputs["weight"], "residual": total}
