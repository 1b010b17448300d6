"""What ncu and Kineto wrote on an H200 (benchmarks/profiles.py), and the diagnosis that is right for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.profiling import ncu, timeline
from agent.profiling.collect import joined
from agent.profiling.diagnose import bottlenecks
from agent.profiling.records import Kind, Profile
from atrex.records import Bound

FIXTURES = Path(__file__).parent / "fixtures" / "h200"
OPERATORS = ("rms_norm", "silu_and_mul", "block_scaled_mm")


def recorded(operator: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{operator}.json").read_text(encoding="utf-8"))
    return found


def rebuilt(operator: str) -> Profile:
    """The profile made again of the raw texts, with what else was known of the run."""
    record = recorded(operator)
    seen = ncu.parse((FIXTURES / f"{operator}.csv").read_text(encoding="utf-8"))
    calls, launched, notes = timeline.read(record["events"])
    assert (notes, seen.notes) == ((), ())
    return Profile(
        **record["profile"] | {"kernels": joined(launched, seen.kernels), "timeline": calls, "notes": notes}
    )


def bound(profile: Profile, limiter: str) -> Bound:
    """What the machine had allowed: the roofs that the profile names, and its launch floor."""
    sol = max(profile.memory_us, profile.compute_us)
    return Bound(sol_us=sol, attainable_us=sol + profile.launch_floor_us, limiter=limiter)


@pytest.mark.parametrize("operator", OPERATORS)
def test_counters_and_launch_agree(operator: str) -> None:
    (kernel,) = ncu.parse((FIXTURES / f"{operator}.csv").read_text(encoding="utf-8")).kernels
    _, (launched,), _ = timeline.read(recorded(operator)["events"])
    assert kernel.name == launched.name
    assert (kernel.grid, kernel.block) == (launched.grid, launched.block)
    assert kernel.registers == launched.registers
    assert kernel.duration_us == pytest.approx(launched.duration_us, rel=0.1)
    assert sum(kernel.stalls.values()) == pytest.approx(1)


def test_the_bytes_of_a_plain_norm_are_those_that_it_needs() -> None:
    """Up to what stays in the L2 when the kernel ends."""
    profile = rebuilt("rms_norm")
    moved = profile.kernels[0].dram_bytes
    assert moved is not None
    assert profile.cache_bytes is not None
    needed = profile.read_bytes + profile.write_bytes
    assert needed - profile.cache_bytes <= moved <= 1.02 * needed


@pytest.mark.parametrize(
    ("operator", "limiter", "expected"),
    [
        ("rms_norm", "memory", []),  # 73.2 us where 72.0 can be had
        ("silu_and_mul", "memory", ["memory_bound"]),
        # FP8 widened to bf16 on the way: the ALUs are busier than the tensor cores.
        ("block_scaled_mm", "fp8", ["off_tensor_cores", "low_occupancy", "bank_conflicts", "tail_wave"]),
    ],
)
def test_diagnosis(operator: str, limiter: str, expected: list[Kind]) -> None:
    profile = rebuilt(operator)
    assert [found.kind for found in bottlenecks(profile, bound(profile, limiter))] == expected
