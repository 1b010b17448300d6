"""Clocks, temperature and power of the GPU while it was measured; recorded, never changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atrex.records import Device


def gpu_telemetry(device: Device) -> Callable[[], dict[str, Any]]:
    """A reader of the state of PyTorch's first GPU as fields of `Latency`; empty on a CPU or without NVML."""
    if device != "cuda":
        return dict
    import pynvml
    import torch

    try:
        pynvml.nvmlInit()  # which knows nothing of CUDA_VISIBLE_DEVICES: its first GPU may be another
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    except pynvml.NVMLError:
        return dict
    return lambda: {
        "sm_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        "memory_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
        "temperature_c": int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        "power_w": float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000,
    }
