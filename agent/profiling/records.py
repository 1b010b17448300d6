"""What was seen of one candidate on one case, and what it means: frozen records for ledger and prompt.

All times are microseconds a call, all shares lie in [0, 1], and what nobody could see is None.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from atrex.records import Device, Record

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Extents = tuple[int, int, int]

Resource = Literal["registers", "shared memory", "warps", "blocks"]
"""What limits how many blocks an SM holds at once."""

Kind = Literal[
    "launch_bound",
    "few_programs",
    "tail_wave",
    "spills",
    "low_occupancy",
    "uncoalesced",
    "excess_traffic",
    "in_flight",
    "barrier",
    "bank_conflicts",
    "off_tensor_cores",
    "single_threaded",
    "unvectorised",
    "write_allocate",
    "memory_bound",
    "compute_bound",
]
"""Causes first; the last two say only that a roof is not reached."""


class Kernel(Record):
    """One launch on a GPU."""

    name: str
    duration_us: NotNegative
    grid: Extents | None = None
    block: Extents | None = None
    registers: int | None = None
    """Registers a thread."""
    spilled: int | None = None
    """Registers a thread that live in local memory."""
    shared_bytes: int | None = None
    """Shared memory a block, static and dynamic."""
    limits: dict[Resource, PositiveInt] = {}
    """Blocks that an SM can hold, by the resource that would limit them."""
    occupancy: Share | None = None
    """Warps resident on average, of those that an SM can hold."""
    waves: NotNegative | None = None
    """Grid / (blocks that the whole device holds at once)."""
    dram: Share | None = None
    """Of the peak bandwidth of device memory."""
    sm: Share | None = None
    """Of the peak rate of the busiest unit of the SMs."""
    tensor: Share | None = None
    """Cycles in which the tensor cores were active."""
    dram_bytes: NotNegative | None = None
    l2_hit: Share | None = None
    sector_use: Share | None = None
    """Bytes used of each 32-byte sector that global loads and stores moved, the worse of both."""
    local_share: Share | None = None
    """Sectors moved for local memory (spills, stack), of all that local and global accesses moved."""
    conflict_share: Share | None = None
    """Wavefronts of shared memory that bank conflicts added, of all."""
    stalls: dict[str, Share] = {}
    """Why warps waited, by reason as ncu names it; shares of all waiting."""

    @property
    def blocks(self) -> int | None:
        """Blocks in the grid."""
        return prod(self.grid) if self.grid else None

    @property
    def warps(self) -> int | None:
        """Warps in a block."""
        return -(-prod(self.block) // 32) if self.block else None


class Timeline(Record):
    """One warm call as the device lived it."""

    launches: int
    """Kernels, copies and fills."""
    busy_us: NotNegative
    """Time in which anything ran."""
    idle_us: NotNegative
    """Gaps between the first start and the last end: with launches of their own, not replayed as a graph."""
    host_us: NotNegative | None = None
    """From the start of the first launch call to the end of the last."""


class Loop(Record):
    """One innermost loop of a C++ source, as the compiler reports it."""

    line: int
    source: str
    """The line itself, without its indentation."""
    vector_bytes: int | None = None
    """Width of the vectors that it was vectorised with; None: it was not."""
    reason: str = ""
    """Why not, in the compiler's words."""


class Native(Record):
    """A C++ source, seen without running it."""

    loops: tuple[Loop, ...] = ()
    vector_bytes: int = 16
    """Width of this machine's widest vectors."""
    handmade: bool = False
    """It uses vector types or intrinsics itself: what the compiler leaves scalar may be no loss."""
    parallel: bool = False
    """It opens threads."""
    streaming: bool = False
    """It stores past the caches."""


class Profile(Record):
    """One candidate on one case."""

    schema_version: Literal[1] = 1
    candidate: str
    operator: str
    case: str
    device: Device
    hardware: str
    median_us: Annotated[float, Field(gt=0)]
    flops: NotNegative
    read_bytes: int
    write_bytes: int
    memory_us: NotNegative
    """What the case's traffic takes at the peaks below."""
    compute_us: NotNegative
    """What its operations take, each at the peak of its dtype."""
    peak_bytes_per_s: Annotated[float, Field(gt=0)]
    calibrated: bool
    """The peaks were measured on this machine; otherwise they are the vendor's."""
    launch_floor_us: NotNegative = 0.0
    """The cheapest call; 0 where it was not measured."""
    multiprocessors: PositiveInt | None = None
    """SMs of a GPU, logical CPUs of a host."""
    cache_bytes: PositiveInt | None = None
    """The last-level cache."""
    threads: PositiveInt = 1
    """CPU threads that the candidate may use."""
    kernels: tuple[Kernel, ...] = ()
    timeline: Timeline | None = None
    native: Native | None = None
    notes: tuple[str, ...] = ()
    """What could not be seen, and why."""

    @property
    def bytes_per_s(self) -> float:
        """Achieved, counting the fewest bytes that the case must move."""
        return 1e6 * (self.read_bytes + self.write_bytes) / self.median_us

    @property
    def flops_per_s(self) -> float:
        """Achieved, counting the semantic operations."""
        return 1e6 * self.flops / self.median_us

    @property
    def peak_flops_per_s(self) -> float | None:
        """Peak for the case's mix of dtypes; None without operations."""
        return 1e6 * self.flops / self.compute_us if self.compute_us else None


class Bottleneck(Record):
    """One cause of lost time. Causes overlap: their recoverable times do not add up."""

    kind: Kind
    evidence: str
    """A short sentence with the numbers."""
    recoverable_us: Annotated[float, Field(gt=0)]
    """By the formula of docs/profiling.md; at most median - attainable."""
    query: str
    """Words for the knowledge base: symptoms that its items carry."""
