"""Under which machine and software a number was measured."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from atrex.assembler import assembler
from atrex.errors import EnvironmentProblem
from atrex.records import Device, Provenance


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _harness() -> str:
    """Version of the harness, and the commit of a checkout (with a + where its files differ from it)."""
    name = installed("atrex") or "source tree"
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return name
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return name
    return f"{name} ({found.stdout.strip()})" if found.returncode == 0 else name


def provenance(hardware: str, device: Device) -> Provenance:
    """Versions of everything that can change a measurement on this machine."""
    import torch

    return Provenance(
        hardware=hardware,
        device=device,
        harness=_harness(),
        torch=torch.__version__,
        triton=installed("triton"),
        python=platform.python_version(),
        driver=_driver() if device == "cuda" else None,
        ptxas=assembler(torch.cuda.get_device_capability()) if device == "cuda" else None,
        compiler=_compiler(),
        threads=torch.get_num_threads() if device == "cpu" else None,
    )


def _compiler() -> str | None:
    from atrex.dsl import cpp

    try:
        return cpp.compiler_version()
    except EnvironmentProblem:
        return None


def _driver() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
