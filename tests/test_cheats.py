"""Dishonest kernels: each trick in `cheats/` is caught, by the gate that its docstring names.

Nothing here imports a trick: every one runs in a sandboxed worker, as any candidate does.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from atrex.audit.tasks import allclose
from atrex.candidate import Candidate, load_candidate
from atrex.gates import GATE_NAMES
from atrex.gates.context import Level
from atrex.inputs import build_inputs
from atrex.judge import CandidateFault, Engine, Timeouts, new_seed
from atrex.measure import measure_case, protocol_for
from atrex.protocol import Call, InputSpec
from atrex.records import Case, Device, FaultKind, Status, Verdict
from atrex.verify import Verifier
from traces.workload import load_workload

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
calibration: Any = importlib.import_module("calibration")

ROOT = Path(__file__).parent / "cheats"
REPOSITORY = Path(__file__).parents[1]
SECRET = "sk-do-not-leak"
ELSEWHERE = ("measurement", "sandbox")  # what no gate can see, or need not

# Three production cases of each operator, in different buckets, and one that is timed.
FEW = {
    "rms_norm": ("rms_norm-015", "rms_norm-006", "rms_norm-048"),
    "silu_and_mul": ("silu_and_mul-000", "silu_and_mul-017", "silu_and_mul-031"),
    "l2_norm": ("l2_norm-000", "l2_norm-001", "l2_norm-006"),
    "causal_conv1d": ("causal_conv1d-000", "causal_conv1d-001", "causal_conv1d-004"),
    "linear_sigmoid_mul": ("linear_sigmoid_mul-005", "linear_sigmoid_mul-007", "linear_sigmoid_mul-006"),
}
TIMED = {
    "rms_norm": {"token_count": 256, "hidden_size": 2048},
    "silu_and_mul": {"shape": [128, 4096]},
    "l2_norm": {"num_tokens": 128, "hidden_size": 2048},
    "causal_conv1d": {"token_count": 128, "dim": 1024, "width": 4},
    "linear_sigmoid_mul": {"token_count": 2048, "hidden_size": 64, "out_features": 1024},
}
SLOWEST = 1.3  # a claim of being faster than this against the honest kernel is one that was believed

# Their results need not look right to anybody: they hope for a judge whose own values they change or see.
NEVER_RIGHT = {
    "silu_and_mul/zero_output",
    "silu_and_mul/result_without_memory",
    "l2_norm/constant_output",
    "l2_norm/one_row_expanded",
    "silu_and_mul/patched_allclose",
    "silu_and_mul/reference_memory",
    "rms_norm/zeroes_input",
    "causal_conv1d/work_on_a_thread",
    "l2_norm/lazy_subclass",
}

# One for each kind, quick enough to be looked at in every run of the suite.
REPRESENTATIVES = {
    "interface": "l2_norm/lazy_subclass",
    "authenticity": "causal_conv1d/never_launched",
    "full_write": "l2_norm/reuses_its_own_block",
    "purity": "rms_norm/zeroes_input",
    "sensitivity": "l2_norm/constant_output",
    "accumulation": "l2_norm/fp16_squares",
    "accuracy": "rms_norm/every_other_square",
    "shapes": "l2_norm/right_for_production_width",
    "measurement": "rms_norm/clock_runs_slowly",
    "sandbox": "rms_norm/replaces_a_gate",
}

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@dataclass(frozen=True, slots=True)
class Cheat:
    """One file: what must catch it, where it exists, and what it does."""

    path: Path
    gate: str
    only: str
    what: str

    @property
    def operator(self) -> str:
        """The victim."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """Unique within the set."""
        return f"{self.operator}/{self.path.stem}"

    def candidate(self) -> Candidate:
        """The file as the judge takes it."""
        return load_candidate(self.path, self.operator)

    def runs_on(self, device: Device) -> bool:
        """Whether the trick exists there: C++ runs on the CPU only."""
        return self.only in ("", device) and not (device == "cuda" and self.candidate().dsl == "cpp")


def read_cheat(path: Path) -> Cheat:
    """The header of a file, which is not run. Raises ValueError if it is not as it must be."""
    return Cheat(path, *calibration.read_header(path, (*GATE_NAMES, *ELSEWHERE)))


FILES = [read_cheat(path) for path in sorted(ROOT.glob("*/*.py"))]
CHEATS = [cheat for cheat in FILES if cheat.gate != "none"]
HONEST = [cheat for cheat in FILES if cheat.gate == "none"]


def chosen(device: Device, *, but: frozenset[str] = frozenset()) -> list[Any]:
    """Parameters: the tricks that exist on a device."""
    return [pytest.param(c, id=c.name) for c in CHEATS if c.runs_on(device) and c.name not in but]


@pytest.fixture(scope="module")
def cpu() -> Iterator[Verifier]:
    yield from _verifier("cpu")


@pytest.fixture(scope="module")
def cuda() -> Iterator[Verifier]:
    yield from _verifier("cuda")


def _verifier(device: Device) -> Iterator[Verifier]:
    os.environ["ATREX_TEST_API_KEY"] = SECRET
    with Engine(device, timeouts=Timeouts(load=180, call=300, round=120)) as engine:
        verifier = Verifier(engine)
        yield verifier
        verifier.close()
    del os.environ["ATREX_TEST_API_KEY"]


def cases(operator: str) -> list[Case]:
    """A few production cases."""
    return [case for case in load_workload().cases(operator) if case.id in FEW[operator]]


def judge(verifier: Verifier, cheat: Cheat, *gates: str, level: Level) -> tuple[Verdict, ...]:
    """The verdicts of these gates, each looked at whatever the others said."""
    candidate = cheat.candidate()
    try:
        few = cases(cheat.operator)
        return verifier.judge(candidate, few, level=level, gates=gates, keep_going=True).verdicts
    finally:
        verifier.engine.forget(candidate)


def require_caught(verifier: Verifier, cheat: Cheat, *, level: Level) -> None:
    """What the header promises: a rejection by the gate, by the measurement, or at the walls."""
    if cheat.gate == "measurement":
        require_no_gain(verifier, cheat)
    elif cheat.gate == "sandbox":
        require_walls(verifier, cheat)
    else:
        (verdict,) = judge(verifier, cheat, cheat.gate, level=level)
        require_rejection(verdict)


def require_rejection(verdict: Verdict) -> None:
    """FAIL for what the trick does, not for a crash. Skips where the machine lacks what the check needs."""
    lacking = [value for value in verdict.metrics.values() if str(value).startswith("not run")]
    if verdict.status is Status.PASS and lacking:
        pytest.skip(f"{verdict.gate} {lacking[0]}")
    assert verdict.status is Status.FAIL, f"{verdict.gate}: {verdict.status.value} {verdict.reason}"
    sanitized = verdict.gate == "bounds" and verdict.fault in (FaultKind.ILLEGAL_ACCESS, FaultKind.EXITED)
    assert verdict.fault is None or sanitized, f"it broke instead: {verdict.reason}"
    assert verdict.witness is not None
    assert f"--gate {verdict.gate} --seed" in verdict.witness.command


def require_no_gain(verifier: Verifier, cheat: Cheat) -> None:
    """Its claim is refused and it is named, or measured beside the honest kernel it is no faster."""
    dsl = cheat.candidate().dsl
    control = next(h for h in HONEST if h.operator == cheat.operator and h.path.stem == f"honest_{dsl}")
    engine = verifier.engine
    case = cases(cheat.operator)[0].model_copy(update={"input": TIMED[cheat.operator]})
    rules = replace(protocol_for(engine.device), case_seconds=0.5)
    candidate = cheat.candidate()
    accused, speedup, said = "", 0.0, ""
    with engine.session(control.candidate()) as honest, engine.session(candidate) as cheating:
        try:
            ours, theirs = measure_case([honest, cheating], case, rules)
            speedup = theirs.ratio_to(ours).median
        except CandidateFault as fault:
            accused, said = fault.candidate, str(fault)
    engine.forget(candidate)
    assert accused in ("", candidate.id), f"the honest kernel was accused: {said}"
    assert speedup < SLOWEST, f"a speed-up of {speedup:.2f} was believed"


def require_walls(verifier: Verifier, cheat: Cheat) -> None:
    """Rejected; files and processes are as before, no secret was seen, and the next candidate is served."""
    control = next(h for h in HONEST if h.operator == cheat.operator and h.runs_on(verifier.engine.device))
    judge(verifier, control, "interface", level="screen")
    files, processes = _own_files(), _processes()
    verdicts = judge(verifier, cheat, "interface", "sensitivity", level="screen")
    assert verdicts[-1].status is Status.FAIL, verdicts
    assert not any(SECRET in verdict.reason for verdict in verdicts)
    assert _own_files() == files
    assert _processes() <= processes
    assert not list(verifier.engine.scratch.rglob("atrex-planted*"))
    (verdict,) = judge(verifier, control, "interface", level="screen")
    assert verdict.status is Status.PASS, verdict


def _own_files() -> dict[str, int]:
    """Our own sources, and when each was last written."""
    packages = (REPOSITORY / "atrex", REPOSITORY / "bench")
    return {str(path): path.stat().st_mtime_ns for root in packages for path in root.rglob("*.py")}


def _processes() -> set[int]:
    """All that runs below this process."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def looks_right(verifier: Verifier, cheat: Cheat) -> bool:
    """The usual check: one call on production inputs, compared with eager PyTorch by allclose."""
    candidate, case = cheat.candidate(), cases(cheat.operator)[1]
    with verifier.engine.session(candidate) as session:
        problem = session.problem
        shape = problem.shape(problem.small(case))
        spec = InputSpec(shape=shape, seed=new_seed())
        outputs = session.run(Call(inputs=spec))[0].outputs
        inputs, _ = build_inputs(problem, spec, verifier.engine.torch_device)
        expected = problem.reference(shape, inputs)
    verifier.engine.forget(candidate)
    return allclose(outputs, expected)


# -- the set itself ------------------------------------------------------------------------------------


def test_there_are_enough_of_every_kind() -> None:
    assert len(CHEATS) >= 40
    assert sum(cheat.runs_on("cuda") for cheat in CHEATS) >= 40
    assert {cheat.operator for cheat in CHEATS} == set(FEW)
    assert {cheat.gate for cheat in CHEATS} >= {*REPRESENTATIVES}


def test_every_operator_has_an_honest_control_in_both_languages() -> None:
    assert {(h.operator, h.candidate().dsl) for h in HONEST} == {
        (o, d) for o in FEW for d in ("cpp", "triton")
    }


def test_lists_name_what_exists() -> None:
    gates = {cheat.name: cheat.gate for cheat in CHEATS}
    assert {kind: gates[name] for kind, name in REPRESENTATIVES.items()} == {k: k for k in REPRESENTATIVES}
    assert set(NEVER_RIGHT) <= set(gates)


@pytest.mark.parametrize(
    ("docstring", "complaint"),
    [
        ("A trick.", "gate: "),
        ("gate: vibes\nA trick.", "gate: vibes"),
        ("gate: purity\nonly: tpu\nA trick.", "only: tpu"),
        ("gate: purity", "in a sentence"),
    ],
)
def test_a_bad_header_is_named(tmp_path: Path, docstring: str, complaint: str) -> None:
    path = tmp_path / "cheat.py"
    path.write_text(f'"""{docstring}"""\n')
    with pytest.raises(ValueError, match=complaint):
        read_cheat(path)


# -- a look at it, in every run --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", REPRESENTATIVES)
def test_one_of_each_kind(cpu: Verifier, kind: str) -> None:
    cheat = next(cheat for cheat in CHEATS if cheat.name == REPRESENTATIVES[kind])
    require_caught(cpu, cheat, level="screen")


# -- all of it -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cheat", chosen("cpu", but=frozenset(REPRESENTATIVES.values())))
def test_caught(cpu: Verifier, cheat: Cheat) -> None:
    require_caught(cpu, cheat, level="full" if cheat.gate == "bounds" else "screen")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cheat", [pytest.param(c, id=c.name) for c in CHEATS if c.runs_on("cpu")])
def test_a_serious_attempt(cpu: Verifier, cheat: Cheat) -> None:
    """Where it is not watched its result looks right: only the trick is wrong."""
    if cheat.name in NEVER_RIGHT or cheat.gate == "sandbox":
        pytest.skip("gives no result that could look right")
    assert looks_right(cpu, cheat)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kernel", [pytest.param(h, id=h.name) for h in HONEST])
def test_without_the_trick_it_is_accepted(cpu: Verifier, kernel: Cheat) -> None:
    """The kernels that the tricks were built around pass the same gates on the same cases."""
    wrong = [v for v in judge(cpu, kernel, *_USED, level="screen") if v.status is not Status.PASS]
    assert not wrong


_USED = tuple(gate for gate in GATE_NAMES if any(cheat.gate == gate for cheat in CHEATS))


@needs_cuda
@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cheat", [pytest.param(c, id=c.name) for c in CHEATS if c.runs_on("cuda")])
def test_caught_on_cuda(cuda: Verifier, cheat: Cheat) -> None:
    require_caught(cuda, cheat, level="full" if cheat.gate == "bounds" else "screen")


@needs_cuda
@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kernel", [pytest.param(h, id=h.name) for h in HONEST if h.runs_on("cuda")])
def test_without_the_trick_it_is_accepted_on_cuda(cuda: Verifier, kernel: Cheat) -> None:
    wrong = [v for v in judge(cuda, kernel, *_USED, level="screen") if v.status is not Status.PASS]
    assert not wrong
