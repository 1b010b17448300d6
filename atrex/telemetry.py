"""Clocks, temperature and power of the GPU while it was measured; recorded, never changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atrex.records import Device


def gpu_telemetry(device: Device) -> Callable[[], dict[str, Any]]:
    """A reader of the first GPU's state as fields of `Latency`; an empty one on a CPU or without NVML."""
    if device != "cuda":
        return dict
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError:
        return dict
    return lambda: {
        "sm_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        "memory_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
        "temperature_c": int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        "power_w": float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000,
    }
