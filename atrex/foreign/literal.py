"""Arguments of a call as JSON: tensors become names, everything else is written out.

Plain values stand for themselves; what JSON lacks is an object with one key: a tensor {"tensor": name}, a
float that is no number {"float": "inf"}, a tuple, list or dict with its items, a dtype, a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_DEPTH = 8


class Unencodable(ValueError):
    """An argument that cannot be written down as data."""


def encode(value: Any, name: str, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    """The JSON of a value; its tensors are put under `name`, or `name_0`, `name_1` … within a list.

    Raises Unencodable.
    """
    if depth > _DEPTH:
        raise Unencodable(f"{name} is nested deeper than {_DEPTH}")
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, torch.nn.Parameter):
            raise Unencodable(f"{name} is a {type(value).__name__}")
        while name in tensors:
            name += "_"
        tensors[name] = value
        return {"tensor": name}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": ""}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        items = [encode(item, f"{name}_{i}", tensors, depth + 1) for i, item in enumerate(value)]
        return {kind: items}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {k: encode(v, f"{name}_{k}", tensors, depth + 1) for k, v in value.items()}}
    raise Unencodable(f"{name} is a {type(value).__name__}, which cannot be written down")


def decode(node: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """The inverse. Raises ValueError for JSON that `encode` does not write."""
    if not isinstance(node, dict):
        return node
    if len(node) != 1:
        raise ValueError(f"no argument: {node!r}")
    (kind, content), *_ = node.items()
    readers: dict[str, Callable[[], Any]] = {
        "tensor": lambda: tensors[content],
        "float": lambda: float(content),
        "dtype": lambda: _dtype(content),
        "device": lambda: device,
        "tuple": lambda: tuple(decode(item, tensors, device) for item in content),
        "list": lambda: [decode(item, tensors, device) for item in content],
        "dict": lambda: {key: decode(item, tensors, device) for key, item in content.items()},
    }
    if kind not in readers:
        raise ValueError(f"no argument: {node!r}")
    return readers[kind]()


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype: {name!r}")
    return dtype


def pattern(node: Any) -> Any:
    """A node without its values: calls of one pattern take their tensors at the same places."""
    if not isinstance(node, dict):
        return None
    (kind, content), *_ = node.items()
    if kind == "tensor":
        return content
    if kind in ("tuple", "list"):
        parts = [pattern(item) for item in content]
        return parts if any(part is not None for part in parts) else None
    if kind == "dict":
        inner = {key: pattern(item) for key, item in content.items()}
        return inner if any(part is not None for part in inner.values()) else None
    return None
