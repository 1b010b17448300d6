"""Profiles: what was measured, what the machine can do, and what the collectors of the device saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.profiling import native
from agent.profiling.records import Kernel, Profile
from agent.profiling.resources import Resources, limits
from agent.profiling.timeline import plain
from agent.profiling.watch import Seen
from atrex.candidate import Candidate
from atrex.problem import Problem
from atrex.records import Case, Cost, Device
from atrex.roofline import Calibration, Hardware, bound


def on_cpu(
    candidate: Candidate,
    case: Case,
    problem: Problem,
    median_us: float,
    hardware: Hardware,
    calibration: Calibration | None,
    *,
    threads: int = 1,
) -> Profile:
    """Profile of a measured candidate on this CPU; of dsl cpp also its loops. Runs no candidate code.

    `threads`: what the candidate was measured with.
    """
    profile = _measured("cpu", candidate, case, problem, median_us, hardware, calibration)
    seen, notes = native.look(candidate.source) if candidate.dsl == "cpp" else (None, ())
    update = {"threads": threads, "native": seen, "notes": profile.notes + notes}
    return profile.model_copy(update=update)


def on_cuda(
    candidate: Candidate,
    case: Case,
    problem: Problem,
    median_us: float,
    hardware: Hardware,
    calibration: Calibration | None,
    *,
    seen: Seen,
) -> Profile:
    """Profile of a measured candidate on this GPU, with what `watch` saw of it."""
    profile = _measured("cuda", candidate, case, problem, median_us, hardware, calibration)
    known = seen.resources or {}
    kernels = tuple(
        _with_resources(kernel, known, hardware.architecture)
        for kernel in joined(seen.launched, seen.counted)
    )
    update = {"timeline": seen.timeline, "kernels": kernels, "notes": profile.notes + seen.notes}
    return profile.model_copy(update=update)


def joined(launched: Sequence[Kernel], counted: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Every launch of the call, with ncu's counters where ncu saw a kernel of this name.

    The nth launch of a name takes ncu's nth row of it. Durations stay those of the timeline: replayed
    kernels run alone and from a cold cache. Without a timeline, ncu's rows are all there is.
    """
    if not launched:
        return tuple(counted)
    waiting: dict[str, list[Kernel]] = {}
    for kernel in counted:
        waiting.setdefault(plain(kernel.name), []).append(kernel)
    return tuple(
        _filled(one, rows.pop(0)) if (rows := waiting.get(plain(one.name))) else one for one in launched
    )


def _filled(launched: Kernel, counted: Kernel) -> Kernel:
    """What ncu saw, and from the launch what it did not."""
    seen = {name: value for name, value in counted if value not in (None, {})}
    return launched.model_copy(update=seen | {"name": launched.name, "duration_us": launched.duration_us})


def _with_resources(kernel: Kernel, resources: Mapping[str, Resources], architecture: str) -> Kernel:
    """Spills from the compiler, and the limits that follow from registers and shared memory."""
    known = resources.get(plain(kernel.name))
    if known:
        taken = {"registers": known.registers, "shared_bytes": known.shared_bytes, "spilled": known.spilled}
        kernel = kernel.model_copy(update=taken)
    warps = known.warps if known else kernel.warps
    if kernel.limits or kernel.registers is None or not warps:
        return kernel
    held = limits(architecture, kernel.registers, kernel.shared_bytes or 0, warps)
    return kernel.model_copy(update={"limits": held})


def _measured(
    device: Device,
    candidate: Candidate,
    case: Case,
    problem: Problem,
    median_us: float,
    hardware: Hardware,
    calibration: Calibration | None,
) -> Profile:
    """What every profile holds: the measured median beside what the case needs at the machine's peaks."""
    cost = problem.cost(problem.shape(case))
    alone = cost.model_copy(update={"read_bytes": 0, "write_bytes": 0})
    floor = calibration.launch_floor_us if calibration else 0.0
    if calibration:
        peak, memory = calibration.peak_bytes_per_s, calibration.memory_seconds(cost)
    else:
        peak, memory = hardware.memory_bytes_per_s, cost.bytes / hardware.memory_bytes_per_s
    return Profile(
        candidate=candidate.id,
        operator=candidate.operator,
        case=case.id,
        device=device,
        hardware=hardware.name,
        median_us=median_us,
        flops=sum(cost.flops.values()),
        read_bytes=cost.read_bytes,
        write_bytes=cost.write_bytes,
        memory_us=1e6 * memory,
        compute_us=_compute_us(alone, hardware, calibration),
        peak_bytes_per_s=peak,
        calibrated=calibration is not None,
        launch_floor_us=floor,
        multiprocessors=hardware.multiprocessors,
        cache_bytes=hardware.l2_bytes,
        notes=() if calibration else ("this machine is not calibrated: peaks are its vendor's",),
    )


def _compute_us(alone: Cost, hardware: Hardware, calibration: Calibration | None) -> float:
    """The roofline of a case that moves no byte."""
    found = bound(alone, hardware, calibration)
    if found.attainable_us is None or calibration is None:
        return found.sol_us
    return max(0.0, found.attainable_us - calibration.launch_floor_us)
