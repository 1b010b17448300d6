"""The environment of a fork server and its workers: what is allowed, never what is merely not forbidden."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from atrex import WORKER
from atrex.records import Device

_ALLOWED = re.compile(
    r"PATH|LANG|LANGUAGE|LC_\w+|TZ|TERM|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|C_INCLUDE_PATH|CPLUS_INCLUDE_PATH|"
    r"CC|CXX|CUDAHOSTCXX|CUDA_\w+|NVIDIA_\w+|NVCC_\w+|VIRTUAL_ENV|PYTHONPATH|PYTHONHASHSEED|"
    r"OMP_\w+|MKL_\w+|OPENBLAS_\w+|KMP_\w+|GOMP_(?!SPINCOUNT)\w+|TORCH_CUDA_ARCH_LIST|TRITON_\w+|PYTORCH_\w+"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


def scrubbed_environment(scratch: Path | None, extra: Mapping[str, str]) -> dict[str, str]:
    """The allowed part of this process's environment, caches and temporary files in `scratch`, and `extra`.

    Raises ValueError when `extra` names what looks like a secret.
    """
    leaked = [name for name in extra if _SECRET.search(name)]
    if leaked:
        raise ValueError(f"not for a worker's environment: {', '.join(leaked)}")
    kept = {n: v for n, v in os.environ.items() if _ALLOWED.fullmatch(n) and not _SECRET.search(n)}
    fixed = {"USER": "atrex", "LOGNAME": "atrex", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    fixed[WORKER] = "1"
    return {**kept, **fixed, **(scratch_variables(scratch) if scratch else {}), **extra}


def scratch_variables(scratch: Path) -> dict[str, str]:
    """Home, temporary files and every cache that a compiler keeps, in `scratch`."""
    below = {
        "TMPDIR": "tmp",
        "XDG_CACHE_HOME": "cache",
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TORCH_EXTENSIONS_DIR": "extensions",
        "CUDA_CACHE_PATH": "cuda",
    }
    return {"HOME": str(scratch), **{name: str(scratch / folder) for name, folder in below.items()}}


def compiler_caches(scratch: Path) -> dict[str, str]:
    """Where our C++ compiler keeps what it built, for the candidate's next worker; Inductor stays serial."""
    return {"ATREX_CACHE_DIR": str(scratch / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def server_environment(device: Device, threads: int) -> dict[str, str]:
    """Threads of every library, and where Triton's kernels run."""
    asked = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    return asked | ({"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})


def memory_limit(device: Device) -> int:
    """Bytes of host memory a worker may hold: most of what is free now."""
    import psutil  # the judge's: a worker, which imports this module too, has no need of it

    free = int(psutil.virtual_memory().available)
    return int(free * (0.6 if device == "cpu" else 0.8))
