"""What counts as a witness: measured on outputs made here, without a worker."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from atrex.gates.context import GateContext, make_plan
from atrex.inputs import build_inputs
from atrex.judge import CandidateFault, Outcome, Session
from atrex.problem import Expected, load_problem
from atrex.protocol import Call, CallReport
from atrex.records import FaultKind
from tests.mutation.legal import Drawer, Trial
from tests.mutation.witness import CLEAR, Difference, Grounds, difference_of, exact, search, truth_of
from traces.workload import load_workload

CPU = torch.device("cpu")


def context(operator: str) -> GateContext:
    return GateContext(
        gate="witness",
        session=cast(Session, None),  # drawing inputs needs no candidate
        problem=load_problem(operator),
        cases=load_workload().cases(operator),
        plan=make_plan("full", "interpreter"),
        seed=0,
        command="",
        sanitized=lambda: cast(Session, None),
    )


def trials(operator: str, seed: int = 1) -> list[Trial]:
    return list(Drawer(context(operator), random.Random(seed)).trials())


def outcome(outputs: dict[str, Tensor], broken: tuple[str, ...] = ()) -> Outcome:
    return Outcome(CallReport(structure="tensor", outputs=(), broken_guards=broken), outputs, {})


def difference(
    operator: str, change: dict[str, Any] | None = None, broken: tuple[str, ...] = ()
) -> Difference | None:
    """Of the eager reference's outputs on a trial, with some of them replaced by functions of them."""
    problem, trial = load_problem(operator), trials(operator)[1]
    inputs, _ = build_inputs(problem, trial.spec.model_copy(update={"guard": None}), CPU)
    truth = truth_of(problem, trial, inputs)
    outputs = {name: value.clone() for name, value in truth.eager.items()}
    for name, function in (change or {}).items():
        outputs[name] = function(outputs[name])
    return difference_of(problem, truth, outcome(outputs, broken))


def put(value: float) -> Any:
    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[3] = value
        return tensor

    return change


def neighbour(tensor: Tensor) -> Tensor:
    """The next bf16 towards zero: at most three halves of an ulp off."""
    return torch.nextafter(tensor, torch.zeros_like(tensor))


def test_the_reference_is_right() -> None:
    for operator in ("rms_norm", "reshape_and_cache", "moe_topk_gating_softmax"):
        assert difference(operator) is None


def test_errors_are_measured_against_the_bound() -> None:
    found = difference("rms_norm", {"out": neighbour})
    assert found is not None
    assert 1 < found.ratio < CLEAR
    found = difference("rms_norm", {"out": lambda out: out * 1.02})
    assert found is not None
    assert CLEAR <= found.ratio < 100
    found = difference("rms_norm", {"out": put(math.nan)})
    assert found is not None
    assert found.ratio == math.inf
    assert found.what.startswith("out[3] is nan")


@pytest.mark.parametrize(
    ("operator", "change"),
    [
        ("reshape_and_cache", {"key_cache": lambda cache: -cache}),
        ("rms_norm", {"out": lambda out: out[1:]}),
        ("rms_norm", {"out": lambda out: out.float()}),
        ("moe_topk_gating_softmax", {"topk_ids": lambda ids: ids.roll(1, -1)}),
    ],
)
def test_bits_forms_and_checked_outputs_have_no_bound(operator: str, change: dict[str, Any]) -> None:
    found = difference(operator, change)
    assert found is not None
    assert found.ratio == math.inf


def test_every_nan_is_the_same_nan() -> None:
    value = torch.tensor([1.0, math.nan, 2.0], dtype=torch.bfloat16)
    other = (value.view(torch.int16) ^ torch.tensor([0, -32768, 0], dtype=torch.int16)).view(torch.bfloat16)
    expected = Expected(value, torch.zeros(3))
    assert exact("out", other, expected) is None
    found = exact("out", -other, expected)
    assert found == Difference(math.inf, "out: bits differ in 2 of 3 elements")


def test_a_write_outside_is_a_witness() -> None:
    found = difference("rms_norm", broken=("allocation 0",))
    assert found == Difference(math.inf, "wrote outside of allocation 0")


def test_trials_are_repeatable_and_vary() -> None:
    first = trials("rms_norm")
    assert [t.spec for t in first] == [t.spec for t in trials("rms_norm")]
    assert first[0].spec.seed != trials("rms_norm", 2)[0].spec.seed
    assert len({t.spec.seed for t in first}) == len(first)
    kinds = {edit.kind for trial in first for edit in trial.spec.edits}
    assert {"scale", "place", "broadcast_rows"} <= kinds
    assert {trial.spec.source for trial in first} >= {"production", "tiny_inputs", "stagnation"}
    assert {kind for trial in first for kind in trial.spec.layouts.values()} >= {"odd_row_stride", "offset"}
    assert any(trial.may_refuse for trial in first)
    assert len({trial.spec.shape.dims["hidden_size"] for trial in first}) > 8


@pytest.mark.parametrize("operator", ["unified_attention", "fused_moe", "gated_delta_rule_update"])
def test_trials_are_legal(operator: str) -> None:
    """Every input can be drawn, and reference and oracle take it."""
    problem = load_problem(operator)
    for trial in trials(operator)[:8]:
        inputs, _ = build_inputs(problem, trial.spec.model_copy(update={"guard": None}), CPU)
        truth_of(problem, trial, inputs)


class Kernel:
    """A session whose candidate is a function of the inputs, in this process."""

    def __init__(self, operator: str, compute: Any) -> None:
        self.problem, self.compute = load_problem(operator), compute
        self.engine = self
        self.torch_device = CPU
        self.calls = 0

    def run(self, call: Call) -> list[Outcome]:
        self.calls += 1
        inputs, _ = build_inputs(self.problem, call.inputs, CPU)
        return [outcome(self.compute(self.problem, call.inputs.shape, inputs))]


def right(problem: Any, shape: Any, inputs: Any) -> Any:
    return problem.reference(shape, inputs)


def without_eps(problem: Any, shape: Any, inputs: Any) -> Any:
    return problem.reference(problem.with_init(shape, eps=0.0), inputs)


def raises(problem: Any, shape: Any, inputs: Any) -> Any:
    raise CandidateFault(FaultKind.LAUNCH, "no")


def searched(honest: Any, mutant: Any, seconds: float = 60.0) -> tuple[Any, Grounds]:
    grounds = Grounds(load_problem("rms_norm"), honest, iter(trials("rms_norm")[:16]))
    return search(grounds, mutant, seconds=seconds), grounds


def test_the_search_finds_a_fault_and_not_a_right_kernel() -> None:
    found, grounds = searched(Kernel("rms_norm", right), Kernel("rms_norm", without_eps))
    assert found.witness is not None
    assert found.witness.clear
    again = search(grounds, cast(Session, Kernel("rms_norm", right)), seconds=60)
    assert again.witness is None
    assert again.calls >= found.calls
    assert grounds.doubts == []


def test_a_trial_on_which_the_honest_kernel_is_wrong_witnesses_nothing() -> None:
    found, grounds = searched(Kernel("rms_norm", without_eps), Kernel("rms_norm", without_eps))
    assert found.witness is None
    assert any("times the bound" in doubt for doubt in grounds.doubts)


def test_faults_are_no_witnesses_and_a_search_ends_in_time() -> None:
    found, _ = searched(Kernel("rms_norm", right), Kernel("rms_norm", raises))
    assert (found.witness, found.why) == (None, "0 calls; launch: no")
    found, _ = searched(Kernel("rms_norm", right), Kernel("rms_norm", right), seconds=0)
    assert found.calls == 1  # four times nothing is over, too
    assert "was over" in found.why
