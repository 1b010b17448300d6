"""Under which machine and software a number was measured."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from atrex.errors import EnvironmentProblem
from atrex.records import Device, Provenance


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def provenance(hardware: str, device: Device) -> Provenance:
    """Versions of everything that can change a measurement on this machine."""
    import torch

    return Provenance(
        hardware=hardware,
        device=device,
        harness=installed("atrex") or "source tree",
        torch=torch.__version__,
        triton=installed("triton"),
        python=platform.python_version(),
        driver=_driver() if device == "cuda" else None,
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
