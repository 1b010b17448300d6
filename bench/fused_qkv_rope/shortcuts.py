"""fused_qkv_rope: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.fused_qkv_rope.reference import reference


def no_rotation(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The split alone: the angle of position 0 for all."""
    return reference(init, {**inputs, "positions": torch.zeros_like(inputs["positions"])})


def k_not_rotated(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """q alone turns."""
    return {**reference(init, inputs), "k": no_rotation(init, inputs)["k"]}


def other_way(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turned by the negative angle."""
    return reference(init, {**inputs, "positions": -inputs["positions"]})


def positions_in_bf16(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Positions rounded to eight bits: production's are below 256 in small cases."""
    return reference(init, {**inputs, "positions": inputs["positions"].bfloat16().to(torch.int32)})


SHORTCUTS = {
    "no rotation": no_rotation,
    "k not rotated": k_not_rotated,
    "rotated the other way": other_way,
    "positions in bf16": positions_in_bf16,
}
