"""moe_sum_reduce as differentiable PyTorch in the dtype of its inputs, for its gradients."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from atrex.problem import Init


def smooth(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sum over a token's experts, scaled."""
    return {"out": inputs["expert_outputs"].sum(1) * init["routed_scaling_factor"]}
