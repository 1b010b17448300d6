"""mrope: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from atrex.problem import Init
from bench.mrope.reference import reference


def no_rotation(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """q and k as they are."""
    return {"q": inputs["q"], "k": inputs["k"]}


def time_alone(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A plain rope: the time axis for every frequency."""
    tables = {name: inputs[name][:1].expand_as(inputs[name]) for name in ("cos", "sin")}
    return reference(init, {**inputs, **tables})


def k_not_rotated(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """q alone turns."""
    return {**reference(init, inputs), "k": inputs["k"]}


SHORTCUTS = {
    "no rotation": no_rotation,
    "time axis for every frequency": time_alone,
    "k not rotated": k_not_rotated,
}
