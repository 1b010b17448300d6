"""PyTorch's fused calls are held to the bound that every candidate is held to."""

from __future__ import annotations

import importlib

import pytest
import torch

from atrex.gates.outputs import judge_outputs
from atrex.inputs import draw_values
from atrex.problem import BENCH, load_problem
from atrex.protocol import InputSpec
from traces.workload import load_workload

CPU = torch.device("cpu")
OPERATORS = sorted(path.parent.name for path in BENCH.glob("*/library.py"))


def test_there_are_some() -> None:
    assert "rms_norm" in OPERATORS


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_library_call_is_right_on_every_kind_of_input(operator: str) -> None:
    problem = load_problem(operator)
    call = importlib.import_module(f"bench.{operator}.library").library
    cases = load_workload(operators=[operator]).cases(operator)[::7]
    shapes = [problem.shape(problem.small(case)) for case in cases] + list(problem.odd())[:8]
    sources = ["production", *(name for probes in problem.probes.values() for name in probes)]
    for shape in shapes:
        for source in sources:
            inputs = draw_values(problem, InputSpec(shape=shape, seed=3, source=source), CPU)
            before = {name: value.clone() for name, value in inputs.items()}
            outputs = call(problem.full(shape).init, inputs)
            assert all(
                torch.equal(before[name].view(torch.uint8), inputs[name].view(torch.uint8)) for name in inputs
            ), "inputs changed"
            assert list(outputs) == list(problem.spec.outputs)
            found, _ = judge_outputs(problem, shape, inputs, outputs)
            assert found is None, (shape.label(), source, found)
