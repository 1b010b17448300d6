"""The calibration set: wrong kernels that allclose accepts, and the gate that must reject each; controls.

Nothing here imports a specimen: every one runs in a sandboxed worker, as any candidate does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from atrex.contract import Family
from atrex.gates import GATE_NAMES
from atrex.gates.context import Level
from atrex.judge import Engine
from atrex.problem import load_problem, operators
from atrex.records import Device, Judgement, Status, Verdict
from atrex.verify import Verifier
from traces.workload import load_workload

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
calibration: Any = importlib.import_module("calibration")

MUTANTS = calibration.mutants()
HONEST = calibration.honest_kernels()
PROBLEM = load_problem("rms_norm")
CASES = load_workload().cases("rms_norm")
FEW = [case for case in CASES if case.id in ("rms_norm-015", "rms_norm-006", "rms_norm-048")]  # 3 widths

# Mutants that get past the gate they name, and what input would show them. Each is a debt, not a wish.
ESCAPES: dict[str, str] = {}

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# One for each gate, quick enough to be looked at in every run of the suite.
REPRESENTATIVES = (
    "rms_norm/cpp/returns_fp32",
    "rms_norm/triton/falls_back",
    "rms_norm/cpp/skips_pruned",
    "rms_norm/cpp/weight_widened_once",
    "rms_norm/triton/eps_outside_root",
    "rms_norm/cpp/bf16_squares",
    "rms_norm/cpp/nan_swallowed",
    "rms_norm/triton/row_stride_ignored",
    "rms_norm/cpp/stochastic_rounding",
    "rms_norm/triton/reads_next_row",
    "rms_norm/cpp/double_rounding",
    "rms_norm/cpp/tail_not_processed",
)


# And one for each other family of operators.
FAMILIES = (
    "silu_and_mul/triton/sigmoid_from_tanh",
    "linear_sigmoid_mul/triton/bias_ignored",
    "unified_attention/triton/rescale_missing",
    "fused_moe/triton/weights_normalised",
    "moe_topk_gating_softmax/triton/maximum_starts_at_zero",
    "per_token_group_quant_fp8/triton/skips_tail_of_row",
    "gated_delta_rule_update/triton/norm_floor_dropped",
    "reshape_and_cache/triton/slots_consecutive",
)


def specimens(chosen: list[Any], device: Device, *others: pytest.MarkDecorator) -> list[Any]:
    """Parameters: those that can be judged on a device, known escapes marked, and all with `others`."""

    def marks(name: str) -> list[pytest.MarkDecorator]:
        # Strictly: an escape that a gate sees one day must be taken off the list.
        known = [pytest.mark.xfail(reason=ESCAPES[name], strict=True)] if name in ESCAPES else []
        return [*known, *others]

    return [pytest.param(s, id=s.name, marks=marks(s.name)) for s in chosen if s.runs_on(device)]


@pytest.fixture(scope="module")
def cpu(engine: Engine) -> Iterator[Verifier]:
    with Verifier(engine) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def cuda() -> Iterator[Verifier]:
    with Engine("cuda") as engine, Verifier(engine) as verifier:
        yield verifier


def judge(verifier: Verifier, specimen: Any, *gates: str, level: Level, cases: Any = None) -> Judgement:
    candidate = specimen.candidate()
    cases = cases or load_workload(operators=[specimen.operator]).cases(specimen.operator)
    try:
        return verifier.judge(candidate, cases, level=level, gates=gates or GATE_NAMES, keep_going=True)
    finally:
        verifier.engine.forget(candidate)


def require_rejection(verdict: Verdict) -> None:
    """FAIL, with a reason and a witness. Skips where the machine lacks what the check needs."""
    lacking = [value for value in verdict.metrics.values() if str(value).startswith("not run")]
    if verdict.status is Status.PASS and lacking:
        pytest.skip(f"{verdict.gate} {lacking[0]}")
    assert verdict.status is Status.FAIL, f"{verdict.gate}: {verdict.status.value} {verdict.reason}"
    assert verdict.reason
    assert verdict.witness is not None
    assert f"--gate {verdict.gate} --seed" in verdict.witness.command


def require_acceptance(judgement: Judgement) -> None:
    assert judgement.accepted, judgement.objection


# -- the set itself ------------------------------------------------------------------------------------


def test_every_gate_has_a_mutant_in_both_languages_on_a_cpu() -> None:
    ours = [mutant for mutant in MUTANTS if mutant.operator == PROBLEM.operator]
    covered = {(mutant.dsl, mutant.gate) for mutant in ours if mutant.runs_on("cpu")}
    assert covered == {(dsl, gate) for dsl in ("cpp", "triton") for gate in GATE_NAMES}


def test_every_gate_has_a_triton_mutant_on_cuda() -> None:
    assert {mutant.gate for mutant in MUTANTS if mutant.runs_on("cuda")} == set(GATE_NAMES)


def test_every_specimen_says_what_it_is() -> None:
    assert all(mutant.gate in GATE_NAMES and mutant.what for mutant in MUTANTS)
    assert all(kernel.honest and kernel.what for kernel in HONEST)
    for specimen in (*MUTANTS, *HONEST):
        assert specimen.candidate().dsl == specimen.dsl, specimen.path


def test_representatives_are_one_for_each_gate() -> None:
    named = {mutant.name: mutant for mutant in MUTANTS}
    assert [named[name].gate for name in REPRESENTATIVES] == list(GATE_NAMES)


def test_every_family_has_a_mutant_for_each_gate_that_can_apply_to_it() -> None:
    """Data movement and codes have no sums; nothing special travels through codes and routes."""
    lacking = {("scatter", "accumulation"), ("quantisation", "accumulation")}
    lacking |= {("quantisation", "specials"), ("routing", "specials")}
    families = {mutant.family for mutant in MUTANTS}
    assert families == set(get_args(Family))
    wanted = {(family, gate) for family in families for gate in GATE_NAMES} - lacking
    assert wanted <= {(mutant.family, mutant.gate) for mutant in MUTANTS}


def test_every_operator_has_an_honest_kernel() -> None:
    assert {kernel.operator for kernel in HONEST} == set(operators())


def test_escapes_are_mutants() -> None:
    assert set(ESCAPES) <= {mutant.name for mutant in MUTANTS}


@pytest.mark.parametrize(
    ("docstring", "complaint"),
    [
        ("Wrong somehow.", "must begin with"),
        ("gate: vibes\nWrong somehow.", "'vibes'"),
        ("gate: bounds\nonly: tpu\nWrong somehow.", "no device"),
        ("gate: bounds", "in a sentence"),
    ],
)
def test_a_bad_header_is_named(tmp_path: Path, docstring: str, complaint: str) -> None:
    path = tmp_path / "mutant.py"
    path.write_text(f'"""{docstring}"""\n')
    with pytest.raises(ValueError, match=complaint):
        calibration.read_specimen(path)


# -- a look at it, in every run --------------------------------------------------------------------------


OURS = [m for m in MUTANTS if m.operator == "rms_norm"]


@pytest.mark.parametrize(
    "mutant",
    [
        *specimens(OURS[::8], "cpu"),
        *specimens([m for m in OURS if m not in OURS[::8]], "cpu", pytest.mark.slow),
    ],
)
def test_allclose_accepts(cpu: Verifier, mutant: Any) -> None:
    """The faults are real ones: the usual check on production inputs does not see them."""
    case = next(case for case in CASES if case.id == "rms_norm-048")  # 53 x 7168
    candidate = mutant.candidate()
    with cpu.engine.session(candidate) as session:
        assert calibration.allclose_accepts(session, PROBLEM.resize(PROBLEM.shape(case), token_count=9))
    cpu.engine.forget(candidate)


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_a_screening_rejects(cpu: Verifier, name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    judgement = judge(cpu, mutant, mutant.gate, level="screen", cases=FEW)
    require_rejection(judgement.verdicts[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_one_of_every_family_is_rejected(cpu: Verifier, name: str) -> None:
    """By a screening, or where that drew no shape which shows the fault, by the whole gate."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    verdict = judge(cpu, mutant, mutant.gate, level="screen").verdicts[0]
    if verdict.status is Status.PASS:
        verdict = judge(cpu, mutant, mutant.gate, level="full").verdicts[0]
    require_rejection(verdict)


def test_a_screening_accepts_what_the_mutants_differ_from(cpu: Verifier) -> None:
    """The same gates on the same cases pass the C++ kernel that the mutants were made of."""
    control = next(kernel for kernel in HONEST if kernel.name == "rms_norm/cpp/scalar")
    require_acceptance(judge(cpu, control, level="screen", cases=FEW))


# -- all of it -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", specimens(MUTANTS, "cpu"))
def test_the_named_gate_rejects(cpu: Verifier, mutant: Any) -> None:
    require_rejection(judge(cpu, mutant, mutant.gate, level="full").verdicts[0])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kernel", specimens(HONEST, "cpu"))
def test_all_gates_accept(cpu: Verifier, kernel: Any) -> None:
    require_acceptance(judge(cpu, kernel, level="full"))


@needs_cuda
@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", specimens(MUTANTS, "cuda"))
def test_the_named_gate_rejects_on_cuda(cuda: Verifier, mutant: Any) -> None:
    require_rejection(judge(cuda, mutant, mutant.gate, level="full").verdicts[0])


@needs_cuda
@pytest.mark.gpu
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kernel", specimens(HONEST, "cuda"))
def test_all_gates_accept_on_cuda(cuda: Verifier, kernel: Any) -> None:
    require_acceptance(judge(cuda, kernel, level="full"))
