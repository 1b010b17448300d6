"""gated_rms_norm: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.gated_rms_norm.reference import reference


def _with_gate(init: Init, inputs: Mapping[str, Tensor], gate: Tensor) -> dict[str, Tensor]:
    wide = inputs["x"].float()
    if not init["norm_before_gate"]:
        wide = wide * gate
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + init["eps"]) * inputs["weight"].float()
    return {"out": (out * gate if init["norm_before_gate"] else out).to(inputs["x"].dtype)}


def gate_skipped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A plain rms_norm."""
    return _with_gate(init, inputs, torch.ones_like(inputs["z"].float()))


def linear_gate(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No exponential: production gates are near 0, where sigmoid(z) is 1/2 + z / 4."""
    z = inputs["z"].float()
    share = 0.5 + z / 4
    return _with_gate(init, inputs, share if init["activation"] == "sigmoid" else z * share)


def norm_skipped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """x times the gate times the weight."""
    z = inputs["z"].float()
    gate = torch.sigmoid(z) if init["activation"] == "sigmoid" else torch.nn.functional.silu(z)
    return {"out": (inputs["x"].float() * gate * inputs["weight"].float()).to(inputs["x"].dtype)}


def other_order(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Norm and gate in the wrong order."""
    return reference({**init, "norm_before_gate": not init["norm_before_gate"]}, inputs)


SHORTCUTS = {
    "gate skipped": gate_skipped,
    "activation by two terms of its series": linear_gate,
    "norm skipped": norm_skipped,
    "norm and gate in the wrong order": other_order,
}
