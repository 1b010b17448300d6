"""causal_conv1d: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional

from atrex.problem import Init
from bench.causal_conv1d.reference import reference


def convolution_skipped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The activation of the bias alone."""
    y = inputs["bias"][:, None].expand_as(inputs["x"]).contiguous()
    return {"out": functional.silu(y) if init["activation"] == "silu" else y}


def newest_tap(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each token by itself: the last tap, no history."""
    weight = inputs["weight"].clone()
    weight[:, :-1] = 0
    return reference(init, {**inputs, "weight": weight})


def taps_reversed(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A convolution in the strict sense, where the operator is a correlation."""
    return reference(init, {**inputs, "weight": inputs["weight"].flip(1)})


def linear_activation(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No exponential: production's y is near 0, where silu(y) is y / 2."""
    y = reference({**init, "activation": "none"}, inputs)["out"]
    return {"out": y / 2 if init["activation"] == "silu" else y}


SHORTCUTS = {
    "convolution skipped": convolution_skipped,
    "newest tap alone": newest_tap,
    "taps reversed": taps_reversed,
    "silu by its tangent": linear_activation,
}
