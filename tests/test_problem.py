"""Problem files: the one that is there, its spellings, and errors that name file and field."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from atrex.contract import ProblemSpec, parse_spec
from atrex.errors import UsageError
from atrex.problem import BENCH, expand, load_problem, operators, resolve_operator
from atrex.records import Case

CASE = Case(
    operator="rms_norm", id="x-0", input={"hidden_size": 8, "token_count": 3}, phase="decode", weight=1
)
GOOD = (BENCH / "rms_norm" / "problem.yaml").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "problem.yaml"


def complaint(file: Path, text: str) -> str:
    """The one line said about a problem file of this text."""
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        parse_spec(file)
    message = str(error.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    return message.removeprefix(f"{file}: ")


class TestNames:
    def test_every_operator_has_a_directory(self) -> None:
        assert "rms_norm" in operators()

    @pytest.mark.parametrize(
        "name", ["rms_norm", "rmsnorm", "RMS-Norm", "rms norm", "RmsNorm", "rms_layer_norm"]
    )
    def test_common_spellings(self, name: str) -> None:
        assert resolve_operator(name) == "rms_norm"
        assert load_problem(name).operator == "rms_norm"

    @pytest.mark.parametrize("name", ["rms_nrom", "rmsnrm", "rms_norms", "rms_nor"])
    def test_a_near_miss_is_named(self, name: str) -> None:
        with pytest.raises(UsageError, match=f"unknown operator '{name}'; did you mean rms_norm"):
            resolve_operator(name)

    @pytest.mark.parametrize("name", ["", "???", "zzzz", "../.."])
    def test_anything_else_is_told_what_there_is(self, name: str) -> None:
        with pytest.raises(UsageError, match="unknown operator"):
            resolve_operator(name)


class TestParse:
    def test_the_published_file(self, file: Path) -> None:
        file.write_text(GOOD)
        spec = parse_spec(file)
        assert spec == ProblemSpec.model_validate(yaml.safe_load(GOOD))
        assert spec.contract.reduced == "hidden_size"

    def test_text_that_is_no_yaml(self, file: Path) -> None:
        assert complaint(file, "inputs: [1, 2\ndims: {").startswith("not YAML: ")

    @pytest.mark.parametrize("text", ["", "[]", "just words", "3"])
    def test_yaml_that_is_no_mapping(self, file: Path, text: str) -> None:
        assert complaint(file, text).startswith("field (top level): ")

    @pytest.mark.parametrize(
        ("old", "new", "field"),
        [
            ("schema_version: 1", "schema_version: 2", "schema_version"),
            ("operator: rms_norm\n", "", "operator"),
            ("returns: tensor", "returns: list", "returns"),
            ("summary:", "sumary:", "summary"),
            ("{min: 1, max: 65536}", "{min: 1}", "dims.hidden_size.max"),
            ("{min: 1, max: 65536}", "{min: one, max: 65536}", "dims.hidden_size.min"),
            ("role: parameter", "role: weight", "inputs.weight.role"),
            (
                "shape: [hidden_size], dtype: bf16, role",
                "shape: hidden_size, dtype: bf16, role",
                "inputs.weight.shape",
            ),
            ("accumulator: fp32", "accumulator: bf16", "contract.accumulator"),
            ("rounding_steps: 8", "rounding_steps: some", "contract.rounding_steps"),
            ("deterministic: true", "deterministic: maybe", "contract.deterministic"),
            ("[row_stride, odd_row_stride, offset]", "[row_strides]", "contract.layouts.must.0"),
            ("kind: row_permutation", "kind: rows", "contract.relations.0"),
            ("type: float, default", "type: double, default", "init.eps.type"),
            ("max: 1.0}", "max: .inf}", "init.eps.max"),
            ("token_count: [64, 2048]", "token_count: 64", "buckets.token_count"),
        ],
    )
    def test_a_bad_field_is_named(self, file: Path, old: str, new: str, field: str) -> None:
        assert GOOD.count(old) == 1
        assert complaint(file, GOOD.replace(old, new)).startswith(f"field {field}")

    def test_an_unknown_field_is_an_error(self, file: Path) -> None:
        assert complaint(file, GOOD + "tolerance: 0.05\n").startswith("field tolerance: ")


class TestProblem:
    def test_init_values_override_defaults(self) -> None:
        problem = load_problem("rms_norm")
        plain, own = CASE, CASE.model_copy(update={"init": {"eps": 0.5}})
        assert problem.shape(plain).init == {}  # a candidate is given what the case states
        assert problem.full(problem.shape(plain)).init == {"eps": 1e-6}
        assert problem.full(problem.shape(own)).init == {"eps": 0.5}

    def test_shapes_and_dtypes_of_a_case(self) -> None:
        problem = load_problem("rms_norm")
        shape = problem.shape(CASE)
        assert shape.dims == {"token_count": 3, "hidden_size": 8}
        out = problem.spec.outputs["out"]
        assert problem.tensor_shape(out, shape) == (3, 8)
        assert problem.tensor_dtype(out, shape) is torch.bfloat16
        assert problem.resize(shape, token_count=5).dims == {"token_count": 5, "hidden_size": 8}

    def test_run_lengths_are_expanded(self) -> None:
        assert expand([3, [5, 2], 0]) == (3, 5, 5, 0)

    def test_sources_are_found_by_name(self) -> None:
        problem = load_problem("rms_norm")
        assert problem.source("production") == problem.module.make_inputs
        for probes in problem.module.PROBES.values():
            for name, source in probes.items():
                assert problem.source(name) == source
        with pytest.raises(KeyError, match="nothing"):
            problem.source("nothing")

    @pytest.mark.parametrize("truth", [False, True])
    def test_a_truth_is_no_number_of_a_constructor(self, truth: bool) -> None:
        """False would be a block of no places, by which a shape divides."""
        sizes = {"token_count": 9, "top_k": 8, "num_experts": 1}
        case = Case(
            operator="moe_align_block_size", id="moe_align_block_size-900", phase="decode", weight=0.1,
            init={"block_size": truth, "num_experts": 1}, input=sizes,
        )  # fmt: skip
        assert load_problem("moe_align_block_size").complaint(case).startswith(f"init block_size is {truth}")
