"""Foreign files say `device="cuda"` without need: on a machine without a GPU their tensors stay on the CPU.

It changes where tensors lie, never what is computed. What really needs a GPU still fails, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_PROPERTIES = SimpleNamespace(
    name="interpreter", multi_processor_count=16, major=9, minor=0, total_memory=1 << 34
)


class _OnCpu(TorchFunctionMode):
    """Every request for a CUDA tensor is answered with one on the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if _cuda(named.get("device")):
            named["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func is Tensor.to:
            args = (args[0], *("cpu" if _cuda(arg) else arg for arg in args[1:]))
        named.pop("pin_memory", None)
        return func(*args, **named)


def _cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.split(":")[0] == "cuda"


@contextmanager
def cuda_on_cpu(active: bool = True) -> Iterator[None]:
    """Within it a CUDA device is the CPU; nothing happens unless `active`."""
    if not active:
        yield
        return
    stand_ins: dict[str, Any] = {
        "is_available": lambda: True,
        "synchronize": lambda *_: None,
        "device": lambda *_: nullcontext(),
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "manual_seed": lambda *_: None,  # torch.manual_seed calls it
        "manual_seed_all": lambda *_: None,
        "empty_cache": lambda: None,
        "get_device_properties": lambda *_: _PROPERTIES,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: _PROPERTIES.name,
    }
    before = {name: getattr(torch.cuda, name) for name in stand_ins}
    try:
        for name, value in stand_ins.items():
            setattr(torch.cuda, name, value)
        with _OnCpu():
            yield
    finally:
        for name, value in before.items():
            setattr(torch.cuda, name, value)
