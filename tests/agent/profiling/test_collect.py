"""Profiles of real candidates on this CPU, and of what a GPU's collectors would hand over."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.profiling import collect
from agent.profiling.diagnose import bottlenecks, lines
from agent.profiling.watch import watch
from atrex.candidate import Candidate
from atrex.errors import EnvironmentProblem
from atrex.judge import CandidateFault, Engine, HarnessError
from atrex.problem import load_problem
from atrex.protocol import InputSpec, LaunchReport
from atrex.records import Case, FaultKind
from atrex.roofline import (
    Calibration,
    Hardware,
    bound,
    cpu_name,
    detect,
    load_hardware,
    store_calibration,
)

ROOT = Path(__file__).parents[3]
FIXTURES = Path(__file__).parent / "fixtures"
KERNELS = sorted((ROOT / "knowledge" / "kernels" / "cpp" / "rms_norm").glob("*.py"))
PROBLEM = load_problem("rms_norm")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def case(tokens: int, hidden: int) -> Case:
    size = {"token_count": tokens, "hidden_size": hidden}
    return Case(operator="rms_norm", id=f"{tokens}x{hidden}", input=size, phase="prefill", weight=1)


def candidate(path: Path) -> Candidate:
    return Candidate("rms_norm", "cpp", path.read_text(encoding="utf-8"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Hardware, Calibration]:
    """This CPU, with the stored peaks of another: tests are not to depend on how busy it is now."""
    monkeypatch.setenv("ATREX_HOME", str(tmp_path))
    stored = Calibration.model_validate_json((FIXTURES / "cpu" / "calibration.json").read_bytes())
    here = stored.provenance.model_copy(update={"hardware": cpu_name()})
    calibration = stored.model_copy(update={"provenance": here})
    store_calibration(calibration)
    return detect("cpu"), calibration


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_a_reference_kernel_on_this_cpu(path: Path, machine: tuple[Hardware, Calibration]) -> None:
    hardware, calibration = machine
    large = case(4096, 4096)
    limit = bound(PROBLEM.cost(PROBLEM.shape(large)), hardware, calibration)
    assert limit.attainable_us is not None
    median = 2 * limit.attainable_us
    profile = collect.on_cpu(candidate(path), large, PROBLEM, median, hardware, calibration, threads=2)
    assert profile.native is not None
    assert profile.notes == ()
    assert (profile.native.handmade, profile.native.parallel) == (True, True)
    assert profile.bytes_per_s == pytest.approx((profile.read_bytes + profile.write_bytes) / median * 1e6)
    assert profile.memory_us + profile.launch_floor_us == pytest.approx(limit.attainable_us)
    assert profile.peak_bytes_per_s == calibration.copy_bytes_per_s
    assert 0 < profile.compute_us < profile.memory_us
    (found,) = bottlenecks(profile, limit)
    assert found.kind == "memory_bound"
    assert found.recoverable_us == pytest.approx(limit.attainable_us)
    assert "GB/s of 69 GB/s" in lines((found,))[0]


def test_an_honest_scalar_kernel_on_this_cpu(machine: tuple[Hardware, Calibration]) -> None:
    """Measured on the machine of the calibration, which was busy: 42.8 ms for 67 MB."""
    hardware, calibration = machine
    scalar = candidate(ROOT / "tests" / "honest" / "rms_norm" / "cpp" / "scalar.py")
    large = case(4096, 4096)
    profile = collect.on_cpu(scalar, large, PROBLEM, 42_796.0, hardware, calibration, threads=2)
    limit = bound(PROBLEM.cost(PROBLEM.shape(large)), hardware, calibration)
    found = {each.kind: each for each in bottlenecks(profile, limit)}
    assert next(iter(found)) == "single_threaded"
    assert "lanes[i % 16] +=" in found["unvectorised"].evidence


def test_a_candidate_of_another_dsl_has_no_loops(machine: tuple[Hardware, Calibration]) -> None:
    eager = Candidate("rms_norm", "torch", "class Model: ...\n")
    profile = collect.on_cpu(eager, case(64, 128), PROBLEM, 30.0, machine[0], None)
    assert profile.native is None
    assert not profile.calibrated
    assert profile.notes == ("this machine is not calibrated: peaks are its vendor's",)


@pytest.mark.slow
@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_measured_in_the_sandbox(engine: Engine, path: Path) -> None:
    from agent.instrument import Instrument
    from atrex.measure import protocol_for

    hardware = load_hardware("H200")  # its vendor's peaks: only the order of magnitude is looked at
    rules = protocol_for("cpu", quick=True)
    lab = Instrument(engine, PROBLEM, hardware, None, rules, lambda _: Path("unsaved.py"))
    try:
        small = case(256, 1024)
        measured = lab.measure(candidate(path), [small])[small.id]
    finally:
        lab.close()
    profile = collect.on_cpu(candidate(path), small, PROBLEM, measured.median_us, hardware, None, threads=1)
    assert profile.median_us == measured.median_us
    assert 0 < profile.bytes_per_s < profile.peak_bytes_per_s
    assert bottlenecks(profile, lab.bound(small))


EVENTS = json.loads((FIXTURES / "kineto" / "five_small_kernels.json").read_text())["traceEvents"]
OWN = LaunchReport(name="_scale_kernel", origin="own", count=1, device_us=3.0)
TAKEN = {"_scale_kernel": {"registers": 40, "spilled": 8, "shared_bytes": 2048, "warps": 4}}


@dataclass
class Recorded:
    """A session that answers what a worker on a GPU would, and remembers what it was asked."""

    claims: Any = field(default_factory=lambda: {"events": EVENTS, "resources": TAKEN})
    launches: tuple[LaunchReport, ...] = (
        OWN,
        LaunchReport(name="pow", origin="library", count=1, device_us=2),
    )
    failure: Exception | None = None
    wrappers: list[tuple[str, ...]] = field(default_factory=list)
    marked: list[bool] = field(default_factory=list)

    def trace(self, _spec: InputSpec, /) -> tuple[LaunchReport, ...]:
        return self.launches

    def profile(self, _spec: InputSpec, /, *, marked: bool = False) -> Any:
        self.marked.append(marked)
        if marked and self.failure:
            raise self.failure
        return {} if marked else self.claims

    @contextmanager
    def behind(self, wrapper: tuple[str, ...]) -> Iterator[Recorded]:
        self.wrappers.append(wrapper)
        yield self


SPEC = InputSpec(shape=PROBLEM.shape(case(64, 1024)), seed=1)


@pytest.fixture
def with_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ncu"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


def test_what_a_gpu_s_collectors_hand_over(with_ncu: None) -> None:
    session = Recorded()
    seen = watch(session, session.behind, SPEC)
    assert session.marked == [False, True]
    assert "regex:^(_scale_kernel)$" in session.wrappers[0]
    profile = collect.on_cuda(
        Candidate("rms_norm", "triton", "class Model: ...\n"),
        case(64, 1024),
        PROBLEM,
        41.5,
        load_hardware("H200"),
        None,
        seen=seen,
    )
    own = next(kernel for kernel in profile.kernels if kernel.name == "_scale_kernel")
    assert (own.registers, own.spilled, own.shared_bytes) == (40, 8, 2048)
    assert own.limits["registers"] == 12
    library = profile.kernels[0]
    assert (library.spilled, library.limits["registers"]) == (None, 16)
    assert profile.kernels[-1].limits == {}  # a fill
    assert profile.multiprocessors == 132
    assert "ncu printed no table" in profile.notes
    limit = bound(PROBLEM.cost(PROBLEM.shape(case(64, 1024))), load_hardware("H200"), None)
    assert {"launch_bound", "few_programs"} <= {each.kind for each in bottlenecks(profile, limit)}


@pytest.mark.parametrize(
    "claims", [{}, {"events": 7, "resources": []}, {"events": ["x"], "resources": {"k": 1}}]
)
def test_a_worker_that_claims_nonsense_costs_only_its_profile(with_ncu: None, claims: dict[str, Any]) -> None:
    session = Recorded(claims=claims)
    seen = watch(session, session.behind, SPEC)
    assert (seen.timeline, seen.launched, seen.resources) == (None, (), {})
    assert any("compiled kernels could not be read" in note for note in seen.notes)


@pytest.mark.parametrize(
    "failure",
    [CandidateFault(FaultKind.TIMEOUT, "too slow"), EnvironmentProblem("only root"), HarnessError("a bug")],
)
def test_what_fails_behind_ncu_is_a_note(with_ncu: None, failure: Exception) -> None:
    session = Recorded(failure=failure)
    seen = watch(session, session.behind, SPEC)
    assert seen.timeline is not None
    assert seen.notes == (f"no hardware counters: {failure}",)


def test_a_candidate_without_kernels_of_its_own_is_not_run_behind_ncu(with_ncu: None) -> None:
    session = Recorded(launches=())
    seen = watch(session, session.behind, SPEC)
    assert session.marked == [False]
    assert "ncu was not run: the call launches no kernel" in seen.notes
