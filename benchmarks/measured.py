"""Under what a page was made: command, date, machine and software, on one line that is alike on all pages."""

from __future__ import annotations

import time
from functools import cache

from atrex.provenance import provenance
from atrex.records import Device
from atrex.report.workload_text import stack
from atrex.roofline import hardware_name


@cache  # a page is written anew after every row, and versions are asked of compilers
def conditions(command: str, device: Device) -> str:
    """The line, without a full stop. Raises EnvironmentProblem for a device that is not there."""
    known = provenance(hardware_name(device), device)
    return f"`{command}`, {time.strftime('%Y-%m-%d')}, {known.hardware}, {stack(known)}"
