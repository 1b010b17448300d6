"""Under what a page was made: command, date, machine and software, on one line that is alike on all pages."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from atrex.provenance import provenance
from atrex.records import Device
from atrex.report.workload_text import stack
from atrex.roofline import hardware_name


@cache  # a page is written anew after every row, and versions are asked of compilers
def conditions(command: str, device: Device) -> str:
    """The line, without a full stop. Raises EnvironmentProblem for a device that is not there."""
    known = provenance(hardware_name(device), device)
    return f"`{command}`, {time.strftime('%Y-%m-%d')}, {known.hardware}, {stack(known)}"


def called(script: str, arguments: Sequence[str] | None = None) -> str:
    """The command that runs this file of benchmarks/, by default with what this process was called with."""
    given = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *given])
