"""Every operator: signature, domain, oracle against reference, and published figures."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from atrex.gates.outputs import judge_outputs
from atrex.inputs import bits, draw_values
from atrex.problem import Problem, load_problem, operators
from atrex.protocol import InputSpec
from atrex.records import Case, Shape
from traces.workload import load_workload

CPU = torch.device("cpu")
PUBLISHED = Path(__file__).parent / "published"
EVERY = pytest.mark.parametrize("operator", operators())


@cache
def cases(operator: str) -> tuple[Case, ...]:
    return load_workload(operators=[operator]).cases(operator)


@cache
def shapes(operator: str) -> tuple[Shape, ...]:
    """Reduced production shapes of every kind, and those off the grid; each small."""
    problem = load_problem(operator)
    found = [problem.shape(problem.small(case)) for case in cases(operator)]
    found += problem.odd()
    return tuple(shape for i, shape in enumerate(found) if shape not in found[:i])


def sources(problem: Problem) -> list[str]:
    return ["production", *(name for probes in problem.probes.values() for name in probes)]


@EVERY
class TestSignature:
    def test_every_case_is_legal(self, operator: str) -> None:
        problem = load_problem(operator)
        assert not [f"{case.id}: {said}" for case in cases(operator) if (said := problem.complaint(case))]
        small = [problem.small(case) for case in cases(operator)]
        assert not [f"{case.id}: {said}" for case in small if (said := problem.complaint(case))]

    def test_inputs_are_as_declared(self, operator: str) -> None:
        problem = load_problem(operator)
        for shape, source in product(shapes(operator), sources(problem)):
            inputs = draw_values(problem, InputSpec(shape=shape, seed=5, source=source), CPU)
            wanted = [n for n, tensor in problem.spec.inputs.items() if n in inputs or not tensor.optional]
            assert list(inputs) == wanted, source
            for name, value in inputs.items():
                declared = problem.spec.inputs[name]
                assert value.shape == problem.tensor_shape(declared, shape), (source, name, shape)
                assert value.dtype is problem.tensor_dtype(declared, shape), (source, name)
                _in_domain(problem, shape, name, value)

    def test_outputs_are_as_declared(self, operator: str) -> None:
        problem = load_problem(operator)
        for shape in shapes(operator):
            inputs = draw_values(problem, InputSpec(shape=shape, seed=6), CPU)
            before = {name: value.clone() for name, value in inputs.items()}
            outputs = problem.reference(shape, inputs)
            assert all(torch.equal(bits(before[n]), bits(inputs[n])) for n in inputs), "inputs changed"
            assert list(outputs) == list(problem.spec.outputs)
            for name, value in outputs.items():
                declared = problem.spec.outputs[name]
                extents = problem.tensor_shape(declared, shape)
                assert value.dtype is problem.tensor_dtype(declared, shape), name
                if declared.bounded:
                    assert value.shape[0] <= extents[0]
                    assert value.shape[1:] == extents[1:]
                else:
                    assert value.shape == extents, (name, shape)

    def test_the_same_seed_gives_the_same_bits(self, operator: str) -> None:
        problem, shape = load_problem(operator), shapes(operator)[0]
        for source in sources(problem):
            recipe = InputSpec(shape=shape, seed=7, source=source)
            one, other = draw_values(problem, recipe, CPU), draw_values(problem, recipe, CPU)
            assert all(torch.equal(bits(one[name]), bits(other[name])) for name in one)

    def test_ranges_are_not_empty(self, operator: str) -> None:
        spec = load_problem(operator).spec
        assert all(0 <= dim.min <= dim.max for dim in spec.dims.values())
        for edges in spec.buckets.values():
            assert list(edges) == sorted(set(edges))
        for relation in spec.contract.relations:
            if relation.kind == "power_of_two":
                assert set(relation.scale) <= set(spec.inputs)
                assert set(relation.output) <= set(spec.outputs)
        assert not set(spec.contract.layouts.must) & set(spec.contract.layouts.may_refuse)

    def test_probe_names_are_unique(self, operator: str) -> None:
        names = sources(load_problem(operator))
        assert len(names) == len(set(names)) > 1


@EVERY
class TestOracle:
    def test_the_reference_is_within_its_own_bound(self, operator: str) -> None:
        """Each kind of inputs on an eighth of the shapes, each shape with an eighth of the inputs."""
        self._judge(operator, every=8)

    @pytest.mark.slow
    def test_the_reference_is_within_its_own_bound_on_every_pair(self, operator: str) -> None:
        self._judge(operator, every=1)

    @staticmethod
    def _judge(operator: str, every: int) -> None:
        problem = load_problem(operator)
        for (i, shape), (j, source) in product(enumerate(shapes(operator)), enumerate(sources(problem))):
            if (i + j) % every:
                continue
            inputs = draw_values(problem, InputSpec(shape=shape, seed=8, source=source), CPU)
            found, _ = judge_outputs(problem, shape, inputs, problem.reference(shape, inputs))
            assert found is None, (source, shape.label(), found)


def test_an_output_that_the_oracle_forgets_is_no_pass() -> None:
    problem, shape = load_problem("rms_norm"), shapes("rms_norm")[0]
    inputs = draw_values(problem, InputSpec(shape=shape, seed=9), CPU)
    outputs = problem.reference(shape, inputs)
    module = SimpleNamespace(reference=problem.module.reference, oracle=lambda init, given: {})
    with pytest.raises(KeyError, match="out"):
        judge_outputs(replace(problem, module=module), shape, inputs, outputs)


@EVERY
def test_cost_against_published_figures(operator: str) -> None:
    """A figure without a reason to differ agrees; one with a reason differs somewhere."""
    problem = load_problem(operator)
    published = yaml.safe_load((PUBLISHED / f"{operator}.yaml").read_text())
    differs = dict.fromkeys(("flops", "read_bytes", "write_bytes"), False)
    for case in cases(operator):
        figures = published[int(case.id.rsplit("-", 1)[1])]
        cost = problem.cost(problem.shape(case))
        pairs = {
            "flops": (sum(cost.flops.values()), sum(figures["W"].values())),
            "read_bytes": (cost.read_bytes, figures["read"]),
            "write_bytes": (cost.write_bytes, figures["write"]),
        }
        for name, (ours, theirs) in pairs.items():
            same = ours == pytest.approx(theirs, rel=1e-6)
            assert same or name in problem.spec.differences, (case.id, name, ours, theirs)
            differs[name] |= not same
    assert {name for name, differed in differs.items() if differed} == set(problem.spec.differences)


def _in_domain(problem: Problem, shape: Shape, name: str, value: Any) -> None:
    domain = problem.spec.inputs[name].index
    if domain is None or not value.numel():
        return
    most = shape.dims[domain.below] if isinstance(domain.below, str) else domain.below
    plain = value[~torch.isin(value, torch.tensor(domain.also, dtype=value.dtype))]
    assert bool(((plain >= 0) & (plain < most)).all()), name
    if domain.distinct:
        assert plain.unique().numel() == plain.numel(), name
