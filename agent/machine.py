"""What a job must know of the machine before it starts."""

from __future__ import annotations

from collections.abc import Callable

from atrex.calibrate import calibrate
from atrex.records import Device
from atrex.roofline import Calibration, hardware_name, load_calibration


def calibration_of(device: Device, say: Callable[[str], None]) -> Calibration | None:
    """Measured peaks of this machine; measured now if they never were."""
    found = load_calibration(hardware_name(device), device)
    if found is None:
        say("calibrating this machine (once)")
        found = calibrate(device, True)
    return found
