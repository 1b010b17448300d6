"""fused_rmsnorm_quant: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.fp8 import FP8, FP8_MAX
from atrex.problem import Init
from bench.fused_rmsnorm_quant.reference import reference


def residual_not_added(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Norm and codes of x; the residual goes on as it came."""
    alone = reference(init, {**inputs, "residual": inputs["residual"] * 0})
    return {**alone, "residual_out": inputs["residual"]}


def norm_skipped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weighted sum quantised: codes hardly tell, since they do not depend on a row's size."""
    total = inputs["x"] + inputs["residual"]
    weighted = (total.float() * inputs["weight"].float()).to(total.dtype)
    scale = weighted.abs().amax(-1, keepdim=True).float() / FP8_MAX
    scale = torch.where(scale == 0, 1.0, scale)
    return {"q": (weighted / scale).to(FP8), "scale": scale, "residual_out": total}


def identity_scale(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The normalised values cast; every scale is 1."""
    right = reference(init, inputs)
    cast = (right["q"].float() * right["scale"]).to(FP8)
    return {**right, "q": cast, "scale": torch.ones_like(right["scale"])}


SHORTCUTS = {
    "residual not added": residual_not_added,
    "norm skipped": norm_skipped,
    "identity scale": identity_scale,
}
