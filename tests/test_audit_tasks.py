"""The task audit: what counts as wrong, what escapes, what is equivalent, and what the command says of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from atrex.audit import tasks
from atrex.audit.page import escaped, render, summary
from atrex.audit.stirred import LEVELS, stirred
from atrex.audit.tasks import Finding, OperatorAudit, allclose, audit_operator
from atrex.audit.trivial import evened, load_shortcuts
from atrex.cli import main
from atrex.contract import ProblemSpec
from atrex.inputs import bits, draw_values
from atrex.problem import Draw, Expected, Problem, load_problem, operators
from atrex.protocol import InputSpec
from atrex.records import Case
from traces.workload import load_workload

CPU = torch.device("cpu")
SPEC = ProblemSpec.model_validate(
    {
        "schema_version": 1,
        "operator": "toy",
        "summary": "weight * x + old + bias, where somebody asks for one",
        "init": {"factor": {"type": "float", "default": 1.0, "min": 0.5, "max": 64.0}},
        "dims": {"rows": {"min": 1, "max": 1 << 20}, "columns": {"min": 1, "max": 4096}},
        "rows": "rows",
        "inputs": {
            "x": {"shape": ["rows", "columns"], "dtype": "fp32", "role": "data"},
            "old": {"shape": ["rows", "columns"], "dtype": "fp32", "role": "data"},
            "weight": {"shape": ["columns"], "dtype": "fp32", "role": "parameter"},
            "bias": {"shape": ["columns"], "dtype": "fp32", "role": "parameter", "optional": True},
            "hint": {"shape": ["rows"], "dtype": "int32", "role": "index", "index": {"below": "rows"}},
        },
        "outputs": {"out": {"shape": ["rows", "columns"], "dtype": "fp32"}},
        "returns": "tensor",
        "contract": {"accumulator": "fp32", "rounding_steps": 4},
    }
)


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Nothing old, weights near 1, no bias: production inputs that are nearly blind."""
    extent = (draw.dims["rows"], draw.dims["columns"])
    return {
        "x": draw.normal(extent, 0.02, torch.float32),
        "old": torch.zeros(extent),
        "weight": 1 + draw.normal(extent[1:], 0.01, torch.float32),
        "hint": draw.integers(extent[:1], extent[0]),
    }


def rich(draw: Draw) -> dict[str, Tensor]:
    """Every input matters, but the hint, which never does."""
    extent = (draw.dims["rows"], draw.dims["columns"])
    x, old = (draw.normal(extent, 1.0, torch.float32) for _ in range(2))
    weight, bias = (draw.normal(extent[1:], 1.0, torch.float32) for _ in range(2))
    hint = draw.integers(extent[:1], extent[0])
    return {"x": x, "old": old, "weight": weight, "bias": bias, "hint": hint}


def formula(init: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> Tensor:
    bias = inputs.get("bias", torch.zeros(()))
    return (inputs["weight"] * inputs["x"] + inputs["old"] + bias) * init["factor"]


def oracle(init: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    wide = {name: value.double() for name, value in inputs.items()}
    return {"out": Expected(formula(init, wide), formula(init, {n: t.abs() for n, t in wide.items()}))}


def toy(**changes: Any) -> Problem:
    """The problem above, with parts of its module replaced."""
    parts = {
        "make_inputs": make_inputs,
        "reference": lambda init, inputs: {"out": formula(init, inputs)},
        "oracle": oracle,
        "PROBES": {"sensitivity": {"rich": rich}},
    }
    return Problem(SPEC, SimpleNamespace(**(parts | changes)))


def cases(*rows: int) -> list[Case]:
    return [
        Case(
            operator="toy",
            id=f"toy-{index:03d}",
            input={"rows": count, "columns": 8},
            phase="decode",
            weight=1,
        )
        for index, count in enumerate(rows)
    ]


def audit(problem: Problem, *rows: int, **shortcuts: Callable[..., dict[str, Tensor]]) -> OperatorAudit:
    return audit_operator(problem, cases(*(rows or (5,))), device=CPU, small=True, shortcuts=shortcuts)


def by_kernel(result: OperatorAudit) -> dict[str, Finding]:
    return {finding.kernel: finding for finding in result.findings}


class TestVerdicts:
    def test_what_production_inputs_show(self) -> None:
        found = by_kernel(audit(toy(), 5, 9))["x := 0"]
        assert (found.verdict, found.source) == ("rejected", "production")
        assert (found.cases, found.production, found.rejected) == (2, 2, 2)

    def test_what_allclose_accepts_and_the_bound_does_not(self) -> None:
        found = by_kernel(audit(toy(), 5, 9))["weight := 1"]
        assert (found.allclose, found.production, found.verdict) == (2, 2, "rejected")
        assert "above the bound" in found.why

    @pytest.mark.parametrize("kernel", ["old := 0", "bias absent", "bias := 0", "bias := 1"])
    def test_what_only_a_probe_shows(self, kernel: str) -> None:
        found = by_kernel(audit(toy()))[kernel]
        assert (found.allclose, found.production, found.rejected) == (1, 0, 1)
        assert (found.verdict, found.source) == ("rejected", "rich")

    def test_what_only_other_constructor_arguments_show(self) -> None:
        found = by_kernel(audit(toy()))["factor = 1.0 whatever is asked"]
        assert (found.allclose, found.rejected, found.verdict) == (1, 0, "rejected")
        assert found.source == "rich, off the grid"

    def test_an_input_that_never_matters_is_equivalent(self) -> None:
        result = audit(toy())
        found = by_kernel(result)
        assert {found[name].verdict for name in ("hint := 0", "hint := 0, 1, 2 …")} == {"equivalent"}
        assert "2 equivalent" in summary([result])
        assert not escaped([result])

    def test_without_probes_kernels_escape_and_are_named(self) -> None:
        result = audit(toy(PROBES={}))
        found = by_kernel(result)
        assert escaped([result]) == [f"toy ({name})" for name in found if found[name].verdict == "escapes"]
        assert {"toy (old := 0)", "toy (bias absent)", "toy (bias := 1)"} <= set(escaped([result]))
        assert found["old := 0"].source in LEVELS
        assert found["x := 0"].verdict == "rejected"
        assert "ESCAPED: toy (old := 0)" in summary([result])

    def test_a_probe_that_is_blind_to_one_input_lets_just_that_one_through(self) -> None:
        def blind(draw: Draw) -> dict[str, Tensor]:
            return {**rich(draw), "old": torch.zeros(draw.dims["rows"], draw.dims["columns"])}

        result = audit(toy(PROBES={"sensitivity": {"blind": blind}}))
        assert escaped([result]) == ["toy (old := 0)"]


class TestShortcuts:
    def test_a_wrong_one_is_rejected(self) -> None:
        result = audit(toy(), skipped=lambda init, inputs: {"out": inputs["x"] * init["factor"]})
        found = by_kernel(result)["skipped"]
        assert (found.own, found.allclose, found.verdict) == (True, 1, "rejected")

    def test_a_right_one_is_equivalent_and_said_to_be_written_as_wrong(self) -> None:
        result = audit(toy(), honest=lambda init, inputs: {"out": formula(init, inputs)})
        assert by_kernel(result)["honest"].verdict == "equivalent"
        assert "(1 of them written as wrong)" in summary([result])

    def test_one_that_raises_never_ran(self) -> None:
        def broken(init: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            raise ValueError("no such tensor")

        result = audit(toy(), broken=broken)
        assert by_kernel(result)["broken"].verdict == "does not run"
        assert "never ran: toy (broken)" in summary([result])
        assert "no such tensor" in render([result], "atrex", [])


class TestSources:
    def test_equal_small_cases_count_as_many(self) -> None:
        def small(init: Any, given: Any) -> Any:
            return init, {**given, "rows": 3}

        found = by_kernel(audit(toy(small=small), 5, 9, 17))
        assert found["all zeros"].cases == found["all zeros"].production == 3

    def test_a_source_that_the_reference_fails_judges_nobody(self) -> None:
        def off(init: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            out = formula(init, inputs)
            return {"out": out * 1.001 if "bias" in inputs else out}

        result = audit(toy(reference=off))
        assert by_kernel(result)["old := 0"].verdict != "rejected"
        assert any(note.startswith("rich at rows=5") for note in result.notes)

    def test_rows_are_cut_visibly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tasks, "_MOST_ELEMENTS", {"cpu": 8 * 3 * 4})
        result = audit(toy(), 100)
        assert any("of 100 rows" in note for note in result.notes)
        assert by_kernel(result)["x := 0"].rejected == 1

    def test_what_does_not_fit_is_skipped_visibly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tasks.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
        result = audit(toy(), 100)
        assert result.notes[0].startswith("toy-000: skipped")
        assert "skipped" in render([result], "atrex audit-tasks", [("torch", "x")])


class TestParts:
    def test_lengths_evened_out_keep_their_total(self) -> None:
        assert evened(torch.tensor([5, 1, 1])).tolist() == [2, 2, 3]
        assert evened(torch.tensor([0, 5, 6, 7])).tolist() == [0, 2, 4, 7]

    @pytest.mark.parametrize("level", LEVELS)
    def test_stirred_indices_stay_in_their_domain(self, level: str) -> None:
        problem = load_problem("reshape_and_cache")
        shape = problem.shape_of({}, {"shape": [20, 1, 2], "block_size": 8, "blocks": 4})
        inputs = stirred(problem, shape, level, torch.Generator().manual_seed(1))
        slots = [slot for slot in inputs["slot_mapping"].tolist() if slot != -1]
        assert 0 < len(slots) < 20
        assert len(set(slots)) == len(slots)
        assert max(slots) < 32
        assert bool((inputs["key_cache"] != 0).any())

    def test_allclose_is_that_of_torch(self) -> None:
        right = {"a": torch.tensor([1.0, -torch.inf]), "b": torch.tensor([3], dtype=torch.int32)}
        assert allclose({"a": torch.tensor([1.05, -torch.inf]), "b": right["b"]}, right)
        assert not allclose({"a": torch.tensor([1.07, -torch.inf]), "b": right["b"]}, right)
        assert not allclose({"a": torch.tensor([1.0, 0.0]), "b": right["b"]}, right)
        assert not allclose({"a": right["a"][:1], "b": right["b"]}, right)
        assert not allclose({"a": torch.tensor([torch.nan, -torch.inf]), "b": right["b"]}, right)


@pytest.mark.parametrize("operator", [name for name in operators() if load_shortcuts(name)])
def test_shortcuts_are_well_formed(operator: str) -> None:
    """Names, shapes and dtypes of the declared outputs; inputs stay as they were."""
    problem = load_problem(operator)
    case = load_workload(operators=[operator]).cases(operator)[0]
    shape = problem.shape(problem.small(case))
    for source in ("production", next(iter(problem.probes["sensitivity"]))):
        inputs = draw_values(problem, InputSpec(shape=shape, seed=3, source=source), CPU)
        before = {name: value.clone() for name, value in inputs.items()}
        right = problem.reference(shape, inputs)
        for name, shortcut in load_shortcuts(operator).items():
            outputs = shortcut(problem.full(shape).init, inputs)
            assert {n: (t.dtype, t.ndim) for n, t in outputs.items()} == {
                n: (t.dtype, t.ndim) for n, t in right.items()
            }, name
            assert all(bool((bits(inputs[n]) == bits(t)).all()) for n, t in before.items()), name


@pytest.mark.slow
@pytest.mark.parametrize("operator", operators())
def test_nothing_escapes(operator: str) -> None:
    chosen = load_workload(operators=[operator]).cases(operator)[:2]
    assert not escaped([audit_operator(load_problem(operator), chosen, device=CPU, small=True)])


class TestCommand:
    def test_a_sound_problem(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        page = tmp_path / "page.md"
        common = ["--device", "cpu", "--scale", "small"]
        assert (
            main(["audit-tasks", "--op", "rmsnorm", "--cases", "2", *common, "--json", "-o", str(page)]) == 0
        )
        said = json.loads(capsys.readouterr().out)
        assert said["command"] == "atrex audit-tasks --op rmsnorm --device cpu --scale small --cases 2"
        assert said["operators"][0]["cases"] == 2
        text = page.read_text(encoding="utf-8")
        assert said["command"] in text
        assert f"torch {torch.__version__}" in text

    def test_a_gap_in_the_probes_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(load_problem("reshape_and_cache").module, "PROBES", {})
        common = ["--cases", "1", "--device", "cpu", "--scale", "small"]
        assert main(["audit-tasks", "--op", "reshape_and_cache", *common]) == 1
        said = capsys.readouterr()
        assert "reshape_and_cache (key_cache := 0)" in said.err.splitlines()[-1]
        assert "ESCAPED" in said.out

    def test_cases_of_no_operator(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["audit-tasks", "--case", "3", "--device", "cpu"]) == 2
        assert "--op" in capsys.readouterr().err
