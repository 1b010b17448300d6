"""Registers, spills and shared memory of a compiled kernel, and how many blocks an SM holds with them.

The worker reads them off the compiled Triton kernel (`inside.resources`); here they are checked and used.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt, TypeAdapter, ValidationError

from agent.profiling.records import Resource
from atrex.records import Record

WARPS_PER_SM = 64  # compute capability 8.0, 9.0 and 10.0, as all limits here
_REGISTERS_PER_SM = 64 << 10
_REGISTER_UNIT = 256  # a warp's registers are allotted in these
_BLOCKS_PER_SM = 32
_SHARED_PER_SM = {"sm_80": 164 << 10, "sm_90": 228 << 10, "sm_100": 228 << 10}
_SYSTEM_SHARED = 1 << 10  # of each block, for the driver


class Resources(Record):
    """What one compiled kernel takes."""

    registers: Annotated[int, Field(ge=0)]
    """A thread."""
    spilled: Annotated[int, Field(ge=0)]
    """Words of local memory a thread, which is what Triton counts as spills."""
    shared_bytes: Annotated[int, Field(ge=0)]
    """A block."""
    warps: PositiveInt
    """A block."""


_REPORT: TypeAdapter[dict[str, Resources]] = TypeAdapter(dict[str, Resources])


def read(found: object) -> tuple[dict[str, Resources], tuple[str, ...]]:
    """Resources by kernel as a worker reports them, and a note if its report is none."""
    try:
        return _REPORT.validate_python(found), ()
    except ValidationError:
        return {}, ("the worker's report on compiled kernels could not be read",)


def limits(architecture: str, registers: int, shared_bytes: int, warps: int) -> dict[Resource, int]:
    """Blocks that an SM can hold, by what limits them; empty for an architecture that is not listed.

    CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Raises ValueError for a
    block without warps.
    """
    if warps < 1:
        raise ValueError(f"a block has at least one warp, not {warps}")
    if architecture not in _SHARED_PER_SM:
        return {}
    a_warp = -(-max(1, registers) * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    return {
        "registers": max(1, _REGISTERS_PER_SM // (a_warp * warps)),
        "shared memory": max(1, _SHARED_PER_SM[architecture] // (shared_bytes + _SYSTEM_SHARED)),
        "warps": max(1, WARPS_PER_SM // warps),
        "blocks": _BLOCKS_PER_SM,
    }
