"""Checkers of memory accesses: AddressSanitizer in a worker on the CPU, compute-sanitizer around CUDA's."""

from __future__ import annotations

import shutil
from pathlib import Path

from atrex.dsl import cpp
from atrex.errors import EnvironmentProblem
from atrex.records import Device


def sanitizer_environment(device: Device) -> dict[str, str]:
    """What a checked worker needs in its environment. Raises EnvironmentProblem where there is no checker."""
    if device == "cuda":
        return {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # so that each tensor has its own allocation
    runtime = cpp.asan_runtime()
    if runtime is None:
        raise EnvironmentProblem("the C++ compiler has no AddressSanitizer runtime (libasan)")
    return {
        "LD_PRELOAD": str(runtime),
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=66:detect_odr_violation=0",
        "ATREX_CXX_SANITIZE": "address",
    }


class ComputeSanitizer:
    """The tool with its logs in `directory`, one for each process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read = dict[str, int]()  # characters of each log

    def command(self) -> tuple[str, ...]:
        """What to put before a command line. Raises EnvironmentProblem where there is no tool."""
        tool = shutil.which("compute-sanitizer")
        if tool is None:
            raise EnvironmentProblem("compute-sanitizer is not on the PATH (it comes with the CUDA toolkit)")
        log = self._directory / "compute-sanitizer-%p"
        return (tool, "--tool", "memcheck", "--target-processes", "all", "--log-file", str(log))

    def finding(self) -> str:
        """The first violation logged since this was last asked, or an empty string."""
        for log in self._directory.glob("compute-sanitizer-*"):
            text = log.read_text(errors="replace")
            seen, self._read[log.name] = self._read.get(log.name, 0), len(text)
            lines = [line.strip("= ") for line in text[seen:].splitlines()]
            for i, line in enumerate(lines):
                if line.startswith(("Invalid", "Out-of-range", "Misaligned")):
                    return "; ".join(lines[i : i + 2])
        return ""
