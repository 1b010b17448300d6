"""From a profile to ranked bottlenecks. Formulas and their sources: docs/profiling.md.

Everything here is arithmetic on the profile: the same profile and bound give the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

from agent.profiling.records import Bottleneck, Kernel, Kind, Profile, Resource
from agent.profiling.resources import WARPS_PER_SM
from atrex.records import Bound

LEAST_LOSS = 0.02  # of the median: less cannot be told from noise
LEAST_CAUSE = 0.01  # of the median, for one cause
LOW_OCCUPANCY = 0.5  # more rarely helps: NVIDIA Best Practices Guide, "Occupancy"
NEAR_PEAK = 0.8  # of a roof: what well-written kernels reach
POOR_SECTORS = 0.75  # of a sector's bytes used
EXCESS = 1.25  # traffic over the fewest bytes
FEW_TENSOR = 0.25  # of all cycles: products that are fed well take half of them and more
LONG_STALL = 0.3  # of all waiting
PARALLEL_US = 50.0  # ten times what opening a parallel region costs: below, one thread is right
TENSOR_DTYPES = ("bf16", "fp16", "fp8", "tf32", "int8")

_QUERIES: dict[Kind, str] = {
    "launch_bound": "launch-bound gpu-idle-gaps decode-shapes unfused-elementwise",
    "few_programs": "few-programs few-rows",
    "tail_wave": "tail-wave",
    "spills": "register-spills register-pressure very-long-rows",
    "low_occupancy": "low-occupancy",
    "uncoalesced": "uncoalesced-access many-load-instructions unaligned-input",
    "excess_traffic": "l2-thrashing l2-misses reads-input-twice",
    "in_flight": "long-scoreboard latency-bound memory-bound",
    "barrier": "cross-warp-barrier latency-bound",
    "bank_conflicts": "shared-memory-bank-conflicts",
    "off_tensor_cores": "low-tensor-core-use compute-bound",
    "single_threaded": "slower-with-more-threads memory-bound",
    "unvectorised": "scalar-reduction compute-bound-on-cached-data",
    "write_allocate": "write-allocate-traffic memory-bound",
    "memory_bound": "memory-bound unknown-headroom",
    "compute_bound": "compute-bound",
}
_CPU_QUERIES: dict[Kind, str] = {
    "launch_bound": "launch-bound call-overhead decode-shapes",
    "memory_bound": "memory-bound page-faults strided-rows",
}
_ORDER: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class _Cause:
    kind: Kind
    us: float
    evidence: str
    words: str = ""  # of the query, beside the kind's own


def bottlenecks(profile: Profile, bound: Bound) -> tuple[Bottleneck, ...]:
    """What the candidate loses time on, most recoverable time first; empty if nothing is to be had.

    No bottleneck claims more than median - attainable (the vendor's bound where none was measured).
    """
    lost = profile.median_us - _attainable(bound)
    if lost <= LEAST_LOSS * profile.median_us:
        return ()
    rules = (_launches, _traffic, *_NATIVE) if profile.device == "cpu" else (_launches, _traffic)
    causes = [cause for rule in rules for cause in rule(profile, bound)]
    causes += _of_kernels(profile, bound)
    found = {c.kind: c.us for c in causes if c.us > LEAST_CAUSE * profile.median_us}
    rest = lost - max((min(lost, us) for us in found.values()), default=0.0)
    if rest > LEAST_CAUSE * profile.median_us:
        causes.append(_unexplained(profile, bound, rest))
    kept = [_bottleneck(c, profile, lost) for c in causes if c.us > LEAST_CAUSE * profile.median_us]
    return tuple(sorted(kept, key=lambda b: (-b.recoverable_us, _ORDER.index(b.kind))))


def lines(found: tuple[Bottleneck, ...]) -> tuple[str, ...]:
    """One short line a bottleneck, for a prompt."""
    return tuple(f"{b.kind}: {b.evidence} (up to {b.recoverable_us:.3g} µs to gain)" for b in found)


def _bottleneck(cause: _Cause, profile: Profile, lost: float) -> Bottleneck:
    queries = _QUERIES | (_CPU_QUERIES if profile.device == "cpu" else {})
    return Bottleneck(
        kind=cause.kind,
        evidence=cause.evidence,
        recoverable_us=min(cause.us, lost),
        query=f"{queries[cause.kind]} {cause.words}".strip(),
    )


def _attainable(bound: Bound) -> float:
    return bound.sol_us if bound.attainable_us is None else bound.attainable_us


def _unexplained(profile: Profile, bound: Bound, rest: float) -> _Cause:
    """What no cause accounts for: the roof that the case stays below."""
    if bound.limiter == "memory":
        evidence = (
            f"{profile.bytes_per_s / 1e9:.3g} GB/s of {profile.peak_bytes_per_s / 1e9:.3g} GB/s, "
            f"counting the fewest bytes"
        )
        return _Cause("memory_bound", rest, evidence)
    peak = profile.peak_flops_per_s
    evidence = f"{profile.flops_per_s / 1e12:.3g} TFLOP/s" + (f" of {peak / 1e12:.3g}" if peak else "")
    return _Cause("compute_bound", rest, evidence)


# The whole call


def _launches(profile: Profile, bound: Bound) -> Iterator[_Cause]:
    """Gaps and launches that fusion or a graph would remove; or a call that is all start-up."""
    if bound.sol_us < 0.5 * _attainable(bound):
        excess = profile.median_us - _attainable(bound)
        evidence = f"a call takes {profile.median_us:.3g} µs for {bound.sol_us:.3g} µs of work"
        threads = profile.native is not None and profile.native.parallel and profile.threads > 1
        words = "slower-with-more-threads" if threads else ""
        yield _Cause("launch_bound", excess, evidence + (", and opens threads" if threads else ""), words)
        return
    if (timeline := profile.timeline) is None:
        return
    gaps = max(0.0, profile.median_us - timeline.busy_us)
    starts = max(0, timeline.launches - 1) * profile.launch_floor_us
    if timeline.launches > 1 or gaps > 2 * profile.launch_floor_us:
        evidence = (
            f"launches a call: {timeline.launches}; the device works {timeline.busy_us:.3g} of "
            f"{profile.median_us:.3g} µs"
        )
        yield _Cause("launch_bound", max(gaps, starts), evidence)


def _traffic(profile: Profile, _bound: Bound) -> Iterator[_Cause]:
    """Bytes beyond the fewest, at peak bandwidth."""
    if not profile.kernels or any(kernel.dram_bytes is None for kernel in profile.kernels):
        return
    moved = sum(kernel.dram_bytes or 0.0 for kernel in profile.kernels)
    fewest = profile.read_bytes + profile.write_bytes
    if fewest and moved > EXCESS * fewest:
        hits = [kernel.l2_hit for kernel in profile.kernels if kernel.l2_hit is not None]
        hit = f", L2 hit rate {100 * min(hits):.0f} %" if hits else ""
        evidence = f"{moved / 1e6:.3g} MB of device memory traffic, {moved / fewest:.2f} x the fewest{hit}"
        yield _Cause("excess_traffic", 1e6 * (moved - fewest) / profile.peak_bytes_per_s, evidence)


# C++


def _threads(profile: Profile, bound: Bound) -> Iterator[_Cause]:
    native = profile.native
    if native is None or native.parallel or profile.threads < 2 or _attainable(bound) < PARALLEL_US:
        return
    evidence = f"one thread of {profile.threads}: the source opens no parallel region"
    yield _Cause("single_threaded", profile.median_us * (1 - 1 / profile.threads), evidence)


def _scalar_loops(profile: Profile, _bound: Bound) -> Iterator[_Cause]:
    native = profile.native
    if native is None or native.handmade:
        return
    scalar = [loop for loop in native.loops if loop.vector_bytes is None]
    if scalar:
        lanes = native.vector_bytes // 4
        first = scalar[0]
        evidence = f"{len(scalar)} of {len(native.loops)} inner loops stay scalar, as line {first.line}: "
        evidence += f"`{first.source[:60]}`: {first.reason or 'no reason given'}"
        share = len(scalar) / len(native.loops)
        yield _Cause("unvectorised", profile.median_us * share * (1 - 1 / lanes), evidence)


def _write_allocate(profile: Profile, bound: Bound) -> Iterator[_Cause]:
    native = profile.native
    cached = profile.cache_bytes is None or profile.write_bytes <= profile.cache_bytes
    if native is None or native.streaming or cached or bound.limiter != "memory":
        return
    evidence = f"{profile.write_bytes / 1e6:.3g} MB of output are read before they are overwritten"
    yield _Cause("write_allocate", 1e6 * profile.write_bytes / profile.peak_bytes_per_s, evidence)


_NATIVE = (_threads, _scalar_loops, _write_allocate)


# Kernels


@dataclass(frozen=True, slots=True)
class _Seen:
    """One kernel with its part of the median, and how near the busiest unit is to its roof."""

    kernel: Kernel
    us: float
    use: float
    profile: Profile
    bound: Bound


Rule = Callable[[_Seen], _Cause | None]


def _of_kernels(profile: Profile, bound: Bound) -> list[_Cause]:
    """Causes by kernel, added up by kind; the evidence is that of the kernel that loses most."""
    total = sum(kernel.duration_us for kernel in profile.kernels)
    if total <= 0:
        return []
    busy = min(profile.median_us, profile.timeline.busy_us if profile.timeline else math.inf)
    merged: dict[Kind, list[_Cause]] = {}
    for kernel in profile.kernels:
        seen = _Seen(kernel, busy * kernel.duration_us / total, _use(kernel, profile, bound), profile, bound)
        for cause in (rule(seen) for rule in _KERNEL_RULES):
            if cause is not None:
                merged.setdefault(cause.kind, []).append(cause)
    return [_merge(causes, many=len(profile.kernels) > 1) for causes in merged.values()]


def _merge(causes: list[_Cause], *, many: bool) -> _Cause:
    worst = max(causes, key=lambda cause: cause.us)
    also = f"; launches like it: {len(causes) - 1}" if many and len(causes) > 1 else ""
    return _Cause(worst.kind, sum(cause.us for cause in causes), worst.evidence + also, worst.words)


def _use(kernel: Kernel, profile: Profile, bound: Bound) -> float:
    known = [share for share in (kernel.dram, kernel.sm, kernel.tensor) if share is not None]
    return max(known) if known else min(1.0, _attainable(bound) / profile.median_us)


def _name(kernel: Kernel) -> str:
    """A kernel's name for people; it may come from a hostile worker."""
    name = "".join(letter if letter.isprintable() else "?" for letter in kernel.name)
    return name if len(name) <= 40 else name[:37] + "..."


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.0f} %"


def _few_programs(seen: _Seen) -> _Cause | None:
    blocks, units = seen.kernel.blocks, seen.profile.multiprocessors
    if not blocks or not units or blocks >= units:
        return None
    evidence = f"{_name(seen.kernel)} has {blocks} blocks for {units} SMs"
    return _Cause("few_programs", seen.us * (1 - blocks / units), evidence)


def _tail_wave(seen: _Seen) -> _Cause | None:
    waves = seen.kernel.waves
    if waves is None:
        waves = _waves(seen.kernel, seen.profile.multiprocessors)
    if waves is None or waves <= 1:
        return None
    evidence = f"{_name(seen.kernel)} runs {waves:.2f} waves: the last one is {_percent(waves % 1)} full"
    return _Cause("tail_wave", seen.us * (1 - waves / math.ceil(waves)), evidence)


def _waves(kernel: Kernel, units: int | None) -> float | None:
    """Grid / blocks that fit at once; None where either is not known."""
    if not kernel.blocks or not units or not kernel.limits:
        return None
    return kernel.blocks / (units * min(kernel.limits.values()))


def _spills(seen: _Seen) -> _Cause | None:
    kernel = seen.kernel
    if kernel.local_share:
        evidence = f"{_percent(kernel.local_share)} of the sectors that {_name(kernel)} moves are spills"
        return _Cause("spills", seen.us * kernel.local_share, evidence)
    if kernel.local_share is None and kernel.spilled and kernel.registers:
        evidence = f"{_name(kernel)} spills {kernel.spilled} registers beside {kernel.registers}"
        share = kernel.spilled / (kernel.spilled + kernel.registers)
        return _Cause("spills", seen.us * share, evidence)
    return None


def _low_occupancy(seen: _Seen) -> _Cause | None:
    limit = _limiting(seen.kernel)
    occupancy = seen.kernel.occupancy
    if occupancy is None and limit is not None and seen.kernel.warps:
        occupancy = min(1.0, seen.kernel.limits[limit] * seen.kernel.warps / WARPS_PER_SM)
    if limit is None or occupancy is None or occupancy >= LOW_OCCUPANCY or seen.use >= NEAR_PEAK:
        return None
    used, words = f"{seen.kernel.shared_bytes} bytes of shared memory a block", "latency-bound"
    if limit == "registers":
        used, words = f"{seen.kernel.registers} registers a thread", "register-pressure"
    evidence = f"{_name(seen.kernel)}: occupancy {_percent(occupancy)}, limited by {used}"
    return _Cause("low_occupancy", seen.us * (1 - max(seen.use, occupancy)), evidence, words)


def _limiting(kernel: Kernel) -> Resource | None:
    """Registers or shared memory, where one of them alone keeps blocks out."""
    if not kernel.limits:
        return None
    order: tuple[Resource, ...] = ("warps", "blocks", "registers", "shared memory")
    first = min(order, key=lambda name: kernel.limits.get(name, math.inf))
    return first if first in ("registers", "shared memory") else None


def _uncoalesced(seen: _Seen) -> _Cause | None:
    kernel = seen.kernel
    if kernel.sector_use is None or kernel.sector_use >= POOR_SECTORS:
        return None
    if kernel.dram is not None and kernel.sm is not None and kernel.dram < kernel.sm:
        return None  # its memory is not what it waits for
    evidence = f"{_name(kernel)} uses {_percent(kernel.sector_use)} of the bytes of each sector it moves"
    return _Cause("uncoalesced", seen.us * (1 - kernel.sector_use), evidence)


def _waiting(kind: Kind, reason: str, what: str) -> Rule:
    """Warps wait for one thing while every unit is below its roof."""

    def rule(seen: _Seen) -> _Cause | None:
        share = seen.kernel.stalls.get(reason, 0.0)
        if share < LONG_STALL or seen.use >= NEAR_PEAK:
            return None
        evidence = f"{_name(seen.kernel)} waits {_percent(share)} of its stalls for {what}, "
        evidence += f"with its busiest unit at {_percent(seen.use)}"
        return _Cause(kind, seen.us * (1 - seen.use) * share, evidence)

    return rule


def _bank_conflicts(seen: _Seen) -> _Cause | None:
    kernel = seen.kernel
    waiting = kernel.stalls.get("short_scoreboard", 0.0) + kernel.stalls.get("mio_throttle", 0.0)
    if not kernel.conflict_share or not waiting:
        return None
    evidence = f"bank conflicts are {_percent(kernel.conflict_share)} of {_name(kernel)}'s wavefronts "
    evidence += f"in shared memory, which {_percent(waiting)} of its stalls wait for"
    return _Cause("bank_conflicts", seen.us * kernel.conflict_share * waiting, evidence)


def _off_tensor_cores(seen: _Seen) -> _Cause | None:
    kernel = seen.kernel
    family = seen.bound.limiter.partition("_")[0]
    if kernel.tensor is None or kernel.tensor >= FEW_TENSOR or family not in TENSOR_DTYPES:
        return None
    evidence = f"{_name(kernel)} uses the tensor cores in {_percent(kernel.tensor)} of its cycles, "
    evidence += f"and {family} arithmetic is the limit"
    return _Cause("off_tensor_cores", max(0.0, seen.us - seen.profile.compute_us), evidence)


_KERNEL_RULES: tuple[Rule, ...] = (
    _few_programs,
    _tail_wave,
    _spills,
    _low_occupancy,
    _uncoalesced,
    _waiting("in_flight", "long_scoreboard", "memory"),
    _waiting("barrier", "barrier", "other warps at a barrier"),
    _bank_conflicts,
    _off_tensor_cores,
)
