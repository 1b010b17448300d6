"""The dynamic pass on a CPU: in the sandbox, kernels of Triton in the interpreter and of C++ compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from atrex.candidate import load_candidate
from atrex.commands.common import operator_cases
from atrex.fallback.coverage import can_withhold
from atrex.fallback.dynamic import examine, few_cases
from atrex.fallback.operations import permitted
from atrex.fallback.records import FileReport, Outcome
from atrex.fallback.static import analyse
from atrex.judge import Engine
from atrex.problem import load_problem
from atrex.protocol import LaunchReport
from atrex.records import Status
from atrex.tracing import operations_by_id
from atrex.verify import Verifier

LABELLED = Path(__file__).parents[1] / "fallbacks/files"
CHEATS = Path(__file__).parents[1] / "cheats"
HONEST = Path(__file__).parents[1] / "honest"
SLOW = pytest.mark.slow


def seen(engine: Engine, path: Path, operator: str) -> FileReport:
    cases = few_cases(operator, operator_cases("atrex-bench", operator), 1, reduced=True)
    return examine(engine, load_candidate(path, operator), cases, analyse(path, operator=operator))


@pytest.mark.parametrize(
    ("path", "operator", "verdict"),
    [
        (HONEST / "silu_and_mul/triton/tiles.py", "silu_and_mul", Outcome.KERNEL),
        (HONEST / "rms_norm/cpp/scalar.py", "rms_norm", Outcome.KERNEL),
        (LABELLED / "gemm_in_cublas_gate_in_triton.py", "linear_sigmoid_mul", Outcome.PARTIAL),
        (LABELLED / "kernel_never_launched.py", "rms_norm", Outcome.DEAD_KERNEL),
        (LABELLED / "exec_of_built_text.py", "silu_and_mul", Outcome.FALLBACK),
        pytest.param(LABELLED / "custom_op_launches.py", "l2_norm", Outcome.KERNEL, marks=SLOW),
        (LABELLED / "triton_op_with_wrap_triton.py", "rms_norm", Outcome.KERNEL),
        pytest.param(
            LABELLED / "kernel_used_in_custom_op_by_dotted_name.py",
            "silu_and_mul",
            Outcome.KERNEL,
            marks=SLOW,
        ),
        pytest.param(
            LABELLED / "library_impl_hides_an_activation.py", "silu_and_mul", Outcome.PARTIAL, marks=SLOW
        ),
        pytest.param(LABELLED / "windows_by_unfold.py", "causal_conv1d", Outcome.KERNEL, marks=SLOW),
        (CHEATS / "l2_norm/numpy_computes.py", "l2_norm", Outcome.PARTIAL),
        (CHEATS / "l2_norm/torch_on_a_thread.py", "l2_norm", Outcome.PARTIAL),
    ],
    ids=lambda value: getattr(value, "stem", str(value)),
)
def test_a_verdict_from_what_ran(engine: Engine, path: Path, operator: str, verdict: Outcome) -> None:
    report = seen(engine, path, operator)
    assert report.verdict is verdict, report
    assert len(report.cases) == 1
    assert report.cases[0].verdict is verdict, report.cases


def test_operations_are_named_with_their_sizes(engine: Engine) -> None:
    report = seen(engine, LABELLED / "gemm_in_cublas_gate_in_triton.py", "linear_sigmoid_mul")
    product = next(one for one in report.cases[0].seen if one.name.startswith("aten::addmm"))
    assert product.origin == "compute"
    assert product.sizes.count("[") == 3


def test_what_no_trace_shows_is_seen_without_the_kernels(engine: Engine) -> None:
    """NumPy computes, an own kernel is launched on the side: no operation of PyTorch is dispatched."""
    (case,) = seen(engine, CHEATS / "l2_norm/numpy_computes.py", "l2_norm").cases
    assert not [one for one in case.seen if one.origin == "compute"]
    assert case.not_own == ("out",)


def test_a_path_that_no_case_takes_stays(engine: Engine) -> None:
    report = seen(engine, LABELLED / "grad_mode_goes_to_torch.py", "layer_norm")
    assert report.cases[0].verdict is Outcome.KERNEL, report.cases
    assert report.verdict is Outcome.PARTIAL


def test_a_contract_may_leave_a_call_to_a_library(engine: Engine) -> None:
    path, operator = LABELLED / "gemm_in_cublas_gate_in_triton.py", "linear_sigmoid_mul"
    problem = load_problem(operator)
    contract = problem.contract.model_copy(update={"library_calls": ("aten::addmm",)})
    lenient = type(problem)(problem.spec.model_copy(update={"contract": contract}), problem.module)
    cases = few_cases(operator, operator_cases("atrex-bench", operator), 1, reduced=True)
    with Verifier(engine) as verifier:
        verdicts = [
            verifier.judge(
                load_candidate(path, operator), cases, level="screen", gates=["authenticity"], problem=one
            )
            for one in (problem, lenient)
        ]
    assert [one.verdicts[0].status for one in verdicts] == [Status.FAIL, Status.PASS]


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("aten::mm.out", True),
        ("torch.mm", True),
        ("torch.ops.aten.mm.default", True),
        ("aten::mul.Tensor", False),
    ],
)
def test_names_of_one_operation(name: str, allowed: bool) -> None:
    assert permitted(name, ["aten::mm"]) is allowed


def test_a_runtime_s_call_with_an_operation_s_number_is_not_taken_for_it() -> None:
    """As seen on an H200: a Triton launch outside any operation had the number of a reduction."""
    seen = [(7, "aten::max"), (7, "cuLaunchKernelEx"), (9, "cudaLaunchKernel"), (11, "aten::empty")]
    assert operations_by_id(seen) == {7: "aten::max", 11: "aten::empty"}


@pytest.mark.parametrize(
    ("launched", "possible"),
    [
        ([("own", True), ("setup", False)], True),
        (
            [("own", True), ("own", False)],
            False,
        ),  # a CUDA kernel beside: what it writes would look like nobody's
        ([("compute", False)], False),
    ],
)
def test_what_was_launched_says_whether_it_can_be_withheld(
    launched: list[tuple[str, bool]], possible: bool
) -> None:
    seen = [LaunchReport(name="k", origin=origin, count=1, stoppable=can) for origin, can in launched]
    builds = "from torch.utils.cpp_extension import load_inline"
    assert can_withhold(seen, "cuda", builds) == possible
    own = launched[0][0] == "own"
    for device, source in (
        ("cpu", builds),
        ("cuda", "import triton"),
        ("cuda", "# cpp_extension"),
    ):
        assert can_withhold(seen, device, source) == own, "no trace is believed where none is needed"
