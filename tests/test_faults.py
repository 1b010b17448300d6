"""Candidates that do not compute: each ends with the right verdict, and the harness goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from atrex.candidate import load_candidate
from atrex.judge import Engine, Timeouts
from atrex.records import FaultKind, Status, Verdict
from atrex.verify import Verifier
from traces.workload import load_workload

FAULTS = Path(__file__).parent / "faults"
HONEST = Path(__file__).parents[1] / "knowledge/kernels/cpp/rms_norm"
CASES = [case for case in load_workload().cases("rms_norm") if case.id == "rms_norm-015"]

EXPECTED = {
    "hangs": {FaultKind.TIMEOUT},
    "spins": {FaultKind.TIMEOUT},
    "segfaults": {FaultKind.ILLEGAL_ACCESS},
    "exits": {FaultKind.EXITED},
    "raises_system_exit": {FaultKind.EXITED},
    "allocates": {FaultKind.OUT_OF_MEMORY},
    "forks": {FaultKind.LAUNCH, FaultKind.TIMEOUT, FaultKind.FORBIDDEN},
    "opens_socket": {FaultKind.FORBIDDEN},
    "writes_repository": {FaultKind.FORBIDDEN},
    "writes_tmp": {FaultKind.FORBIDDEN},
    "steals_key": {FaultKind.LAUNCH},
    "floods_stdout": {None},
    "prints_fake_result": {None},
    "answers_itself": {FaultKind.EXITED, None},
    "kills_everything": {FaultKind.EXITED, None},
    "syntax_error": {FaultKind.IMPORT},
    "no_model": {FaultKind.IMPORT},
    "does_not_compile": {FaultKind.COMPILE},
}


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    os.environ["ATREX_TEST_API_KEY"] = "secret"
    timeouts = Timeouts(load=60, call=3, interpreted=3, round=10)
    with Engine("cpu", timeouts=timeouts, memory_bytes=2 << 30) as engine:
        yield Verifier(engine)
    del os.environ["ATREX_TEST_API_KEY"]


def judge(verifier: Verifier, path: Path, *gates: str) -> Verdict:
    judgement = verifier.judge(load_candidate(path, "rms_norm"), CASES, level="screen", gates=gates)
    assert not (judgement.accepted and path.parent == FAULTS)
    return judgement.verdicts[-1]


def test_every_fault_is_expected() -> None:
    assert {path.stem for path in FAULTS.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_fault(verifier: Verifier, name: str) -> None:
    repository = Path(__file__).parents[1] / "atrex"
    before = {path.name for path in repository.iterdir()}
    verdict = judge(verifier, FAULTS / f"{name}.py", "interface", "sensitivity")
    assert verdict.status is Status.FAIL, verdict
    assert verdict.fault in EXPECTED[name], verdict
    assert {path.name for path in repository.iterdir()} == before
    assert not Path("/tmp/atrex-planted").exists()
    if name == "steals_key":
        assert "found 0 keys" in verdict.reason
    if verdict.fault is None:  # it returned, so it is judged by what it returned
        assert verdict.gate == "sensitivity"
        assert "above the bound" in verdict.reason


def test_the_harness_goes_on(verifier: Verifier) -> None:
    """After all of them, an honest kernel is still accepted by the same engine."""
    kernel = next(iter(sorted(HONEST.glob("*.py"))))
    for gate in ("interface", "sensitivity"):
        verdict = judge(verifier, kernel, gate)
        assert verdict.status is Status.PASS, verdict
