"""The ptxas that Triton assembles with: with another one a kernel is other code, and sometimes wrong.

On Hopper two faults of ptxas hit products on the tensor cores (`wgmma`). 12.8.93, which Triton 3.6 brings
along, takes an operand's address from a register that it never wrote: `benchmarks/sass_check.py` shows it
without a GPU, and others saw its results (fla-org/flash-linear-attention, pull request 1262). Those before
13.3 may use a register again while a product still reads it (CUDA 13.3 release notes, after
triton-lang/triton, pull request 11781).
"""

from __future__ import annotations

import re

Capability = tuple[int, int]

RIGHT_ON_HOPPER = (13, 3)
_HOPPER = 9


def assembler(capability: Capability) -> str | None:
    """Version of the ptxas that Triton uses for a GPU, as "12.8"; None where it has none."""
    try:
        from triton.backends.nvidia.compiler import get_ptxas  # not every machine has a Triton

        return str(get_ptxas(10 * capability[0] + capability[1]).version)
    except (ImportError, AttributeError, RuntimeError):
        return None


def fault(capability: Capability, version: str) -> str:
    """What is known to be wrong with an assembler's code for a GPU, and the remedy; empty if nothing is."""
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if capability[0] != _HOPPER or found >= RIGHT_ON_HOPPER:
        return ""
    wanted = ".".join(map(str, RIGHT_ON_HOPPER))
    return (
        f"assembles some tensor-core products on Hopper wrongly (docs/gates.md); let TRITON_PTXAS_PATH name "
        f"one of {wanted} or later"
    )
