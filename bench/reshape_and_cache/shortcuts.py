"""reshape_and_cache: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.reshape_and_cache.reference import reference


def caches_not_copied(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fresh caches of zeros with the new rows."""
    empty = {name: torch.zeros_like(inputs[name]) for name in ("key_cache", "value_cache")}
    return reference(init, {**inputs, **empty})


def nothing_written(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The caches as they came."""
    return {name: inputs[name].clone() for name in ("key_cache", "value_cache")}


def rows_in_order(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Row t into slot t, wherever its slot is."""
    outputs = nothing_written(init, inputs)
    for rows, name in (("key", "key_cache"), ("value", "value_cache")):
        flat = outputs[name].flatten(0, 1)
        count = min(flat.shape[0], inputs[rows].shape[0])
        flat[:count] = inputs[rows][:count]
    return outputs


SHORTCUTS = {
    "caches not copied": caches_not_copied,
    "nothing written": nothing_written,
    "rows in order": rows_in_order,
}
