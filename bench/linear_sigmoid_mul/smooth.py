"""linear_sigmoid_mul as differentiable PyTorch in the dtype of its inputs, for its gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.gradient import narrow
from atrex.problem import Init


def smooth(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """sigmoid of a linear layer, rounded to bf16 before it, times post_mul_mat."""
    gate = narrow(inputs["hidden_states"] @ inputs["weight"].T + inputs["bias"])
    return {"out": torch.sigmoid(gate) * inputs["post_mul_mat"]}
