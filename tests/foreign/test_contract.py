"""From a reference to a contract: recipes, literals, the look at what a reference does, and its YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from atrex.channel import MAX_FRAME
from atrex.errors import UsageError
from atrex.foreign.drawing import ForeignInputs
from atrex.foreign.literal import Unencodable, decode, encode, pattern
from atrex.foreign.messages import Describe, Source
from atrex.foreign.module import bounded
from atrex.foreign.recipe import Recipe, guess, with_example
from atrex.foreign.referee import Referee
from atrex.foreign.spec import ForeignProblem, from_yaml, to_yaml
from atrex.foreign.verify import candidate_entry
from atrex.foreign.widen import Magnitudes, Survey, Widened
from atrex.problem import Draw, Problem
from atrex.records import Shape

from .conftest import FUNCTION, TASK

CPU = torch.device("cpu")


def drawn(recipe: Recipe, shape: tuple[int, ...], seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return recipe.draw(Draw(Shape(dims={}), generator, CPU), shape)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


@pytest.mark.parametrize(
    ("example", "kind"),
    [
        (torch.randn(40, 50), "normal"),
        (torch.rand(40, 50) * 3 + 1, "uniform"),
        (torch.tensor([1.0, -2.0, 3.0]), "uniform"),
        (torch.randint(-3, 9, (50,)), "integers"),
        (torch.randperm(33), "permutation"),
        (torch.tensor([0, 4, 4, 9]), "example"),
        (torch.eye(12), "scaled"),
        (torch.softmax(torch.randn(5, 30), -1), "scaled"),
        ((torch.rand(40, 50) < 0.5).float(), "values"),
        (torch.randn(40, 50).bfloat16(), "normal"),
    ],
)
def test_a_recipe_draws_what_its_example_is_like(example: Tensor, kind: str) -> None:
    recipe = guess(example)
    assert recipe.kind == kind
    value = drawn(recipe, tuple(example.shape))
    assert value.dtype == example.dtype
    assert value.shape == example.shape
    assert torch.equal(value, drawn(recipe, tuple(example.shape)))
    wide, span = example.double(), float(example.double().max() - example.double().min())
    assert float(value.double().min()) >= float(wide.min()) * 2 - 2 * span - 3
    assert float(value.double().max()) <= float(wide.max()) * 2 + 2 * span + 3
    if kind != "example":
        assert not torch.equal(value, drawn(recipe, tuple(example.shape), seed=4))


def test_integers_stay_in_the_range_of_the_example() -> None:
    value = drawn(guess(torch.randint(-3, 9, (500,))), (500,))
    assert set(value.tolist()) == set(range(-3, 9))


def test_a_scaled_example_keeps_its_structure() -> None:
    spd = torch.randn(8, 8)
    spd = spd @ spd.T + 8 * torch.eye(8)
    value = drawn(guess(spd), (8, 8))
    torch.linalg.cholesky(value)
    assert torch.allclose(value / value[0, 0], spd / spd[0, 0])


def test_an_example_has_no_values_for_another_shape() -> None:
    with pytest.raises(ValueError, match="no values for"):
        drawn(with_example(torch.eye(3), "scaled"), (4, 4))


@pytest.mark.parametrize("data", ["", "@@@", "eJwDAAAAAAE="])
def test_damaged_examples_are_refused(data: str) -> None:
    recipe = with_example(torch.ones(4), "example").model_copy(update={"data": data})
    with pytest.raises(ValueError, match=r"damaged|holds"):
        recipe.example()


def test_an_example_that_is_too_large_is_not_carried() -> None:
    with pytest.raises(ValueError, match="too large"):
        with_example(torch.zeros(1 << 19), "example")


def test_literals_survive_the_way_through_json() -> None:
    tensors: dict[str, Tensor] = {}
    value = {"a": [torch.ones(2), 3, (1.5, float("inf"))], "b": torch.float16, "c": None, "d": "x"}
    node = encode(value, "v", tensors)
    assert list(tensors) == ["v_a_0"]
    back = decode(node, tensors, CPU)
    assert back["a"][0] is tensors["v_a_0"]
    assert back["a"][2] == (1.5, float("inf"))
    assert (back["b"], back["c"], back["d"]) == (torch.float16, None, "x")
    assert pattern(node) == {"a": ["v_a_0", None, None], "b": None, "c": None, "d": None}


@pytest.mark.parametrize("value", [object(), {1: 2}, lambda: 0])
def test_what_cannot_be_written_down_is_said(value: object) -> None:
    with pytest.raises(Unencodable):
        encode(value, "v", {})


@pytest.mark.parametrize("node", [{"a": 1, "b": 2}, {"evil": 1}, {"dtype": "load"}])
def test_foreign_literals_are_refused(node: object) -> None:
    with pytest.raises(ValueError, match=r"no argument|no dtype"):
        decode(node, {}, CPU)


def test_a_survey_tells_sums_from_other_functions() -> None:
    x, w = torch.randn(4, 30), torch.randn(30, 5)
    with Survey() as sums:
        torch.relu(x @ w) - 1
    assert (sums.linear, sums.pointwise, sums.reduced) == (True, False, 31)
    with Survey() as smooth:
        torch.exp(x) * 2
    assert (smooth.linear, smooth.pointwise, smooth.reduced) == (False, True, 1)
    with Survey() as normalised:
        x / x.sum()
    assert not normalised.linear


def test_widened_runs_ignore_narrow_dtypes() -> None:
    x = torch.randn(5, 5).double()
    with Widened():  # type: ignore[no-untyped-call]
        got = (x.half().float() * torch.full((5,), 0.1, dtype=torch.float32)).to(torch.bfloat16)
    assert got.dtype == torch.float64
    assert torch.allclose(got, x * 0.1, rtol=1e-15)


def test_magnitudes_bound_sums_that_cancel() -> None:
    x = torch.randn(6, 20).double()
    w = torch.randn(20).double()
    with Magnitudes():  # type: ignore[no-untyped-call]
        got = (x.abs() * w.abs()).sum(1) * -2 - 1.5
    assert torch.allclose(got, (x * w).abs().sum(1) * 2 + 1.5)


def test_bounds_by_scale_grow_with_what_eager_errs() -> None:
    wide = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    exact = bounded(wide.float(), wide, None)
    assert exact.slack is not None
    assert float(exact.slack.max()) == 0
    off = bounded((wide + 0.25).float(), wide, None)
    assert off.slack is not None
    assert float(off.slack.max()) == pytest.approx(1.0, rel=1e-5)  # EXCESS times a quarter
    assert torch.equal(bounded(wide.float(), wide, wide.abs() * 3).terms, wide.abs() * 3)


def described(source: Source):  # type: ignore[no-untyped-def]
    request = Describe(source=source, device="cpu", threads=1)
    answer = Referee().answer(request.model_dump(mode="json"), ())
    assert not answer.failure
    return answer


def test_a_module_is_described() -> None:
    answer = described(Source(text=TASK))
    (call,) = answer.calls
    assert answer.entry is not None
    assert (answer.entry.kind, answer.entry.init) == ("model", (1.5,))
    assert list(call.tensors) == ["x", "shift"]
    assert (call.pointwise, call.linear, call.random, call.narrow) == (True, True, False, "")


def test_constructing_a_module_is_no_part_of_its_function() -> None:
    text = """
import torch.nn as nn
import torch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(30, 4)

    def forward(self, x):
        return torch.relu(self.layer(x))


def get_inputs():
    return [torch.randn(5, 30)]
"""
    (call,) = described(Source(text=text)).calls
    assert (call.linear, call.reduced, call.compute) == (True, 31, 2)


def test_the_calls_of_a_test_are_recorded_by_kind() -> None:
    answer = described(Source(text=FUNCTION, name="shrink"))
    assert [list(call.tensors) for call in answer.calls] == [
        ["input", "other"],
        ["input", "other"],
        ["input"],
    ]
    assert answer.calls[1].kwargs == {"alpha": 3}


def test_an_answer_fits_a_frame_whatever_the_examples() -> None:
    body = "return [torch.randn(170, 170) for _ in range(40)]"
    text = f"import torch\ndef reference(*many):\n    return many[0] + 1\ndef get_inputs():\n    {body}\n"
    answer = described(Source(text=text))
    assert len(answer.model_dump_json()) < MAX_FRAME
    assert {tensor.recipes[0].kind for tensor in answer.calls[0].tensors.values()} == {"normal"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "no get_inputs"),
        ("def get_inputs():\n    return []\ndef a(): pass\ndef b(): pass", "which function"),
        ("class Model: pass\ndef get_inputs():\n    return []", "no class Model"),
        (f"def f(): pass\n{'#' * 146}\ndef test_g(): pass\n", "no function"),
        ("import torch\ndef reference(x): return 3\ndef get_inputs(): return [torch.ones(2)]", "not tensors"),
        ("this is no Python", "SyntaxError"),
    ],
)
def test_what_is_no_reference_is_said(text: str, reason: str) -> None:
    answer = Referee().answer(
        Describe(source=Source(text=text), device="cpu", threads=1).model_dump(mode="json"), ()
    )
    assert reason in answer.failure


def test_a_kernels_entry_is_seen_from_its_text() -> None:
    model = described(Source(text=TASK)).entry
    function = described(Source(text=FUNCTION, name="shrink")).entry
    assert candidate_entry("class Model: pass\nclass ModelNew: pass", model).name == "ModelNew"
    assert candidate_entry("class Model: pass", model).init == (1.5,)
    assert candidate_entry("def kernel_function(): pass", function).name == "kernel_function"
    assert candidate_entry("def shrink(): pass\nclass Model: pass", function).kind == "function"
    assert candidate_entry("class Model: pass", function).kind == "model"
    assert candidate_entry("not Python", function).name == "shrink"


CONTRACT = """\
problem:
  schema_version: 1
  operator: foreign.mine
  summary: a test
  init: {call: {type: str, default: '0'}}
  dims: {n: {min: 1, max: 2000}}
  derived: [reduction]
  inputs: {x: {shape: [n], dtype: fp32, role: data}}
  outputs: {out: {shape: [n], dtype: fp32}}
  returns: tensor
  contract: {accumulator: fp32, reduced: reduction, rounding_steps: 8, may_be_unsupported: [shapes]}
entry: {kind: function, name: mine}
calls:
- args: [{tensor: x}]
  dims: {n: 64}
  derived: {reduction: 4}
  recipes: {x: {kind: uniform, dtype: float32, shape: [64], low: -1.0, high: 1.0}}
unjudged:
  shapes: {status: UNSUPPORTED, reason: the contract lets no dimension vary}
"""


def read(tmp_path: Path, text: str) -> ForeignProblem:
    path = tmp_path / "contract.yaml"
    path.write_text(text)
    return from_yaml(path)


def test_a_contract_survives_printing_and_reading(tmp_path: Path) -> None:
    problem = read(tmp_path, CONTRACT)
    assert read(tmp_path, to_yaml(problem)) == problem


def test_what_may_vary_is_swept_and_the_sums_grow(tmp_path: Path) -> None:
    fixed, free = read(tmp_path, CONTRACT), read(tmp_path, CONTRACT + "vary: [n]\nshapes: [{n: 96}]\n")
    assert "shapes" in ForeignInputs(fixed).UNJUDGED
    module = ForeignInputs(free)
    assert "shapes" not in module.UNJUDGED
    shapes = Problem(free.problem, module).odd()
    assert {1, 64, 96, 1025} <= {shape.dims["n"] for shape in shapes}
    assert [shape.dims["reduction"] for shape in shapes if shape.dims["n"] == 1025] == [65, 65]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("dims: {n: 64}", "dims: {m: 64}", "lacks 'n'"),
        ("unjudged:", "vary: [q]\nunjudged:", "unknown dimension 'q'"),
        ("  shapes: {status", "  shape: {status", "unknown gate 'shape'"),
        ("kind: uniform", "kind: gaussian", "recipes.x.kind"),
        ("calls:\n", "calls: []\nother:\n", "calls|other"),
        ("schema_version: 1", "schema_version: 2", "schema_version"),
        ("unjudged:", "entry: {}\nunjudged:", "given twice"),
        ("problem:", "problem: [", "not YAML"),
    ],
)
def test_a_wrong_contract_is_one_clear_line(tmp_path: Path, before: str, after: str, reason: str) -> None:
    assert before in CONTRACT
    with pytest.raises(UsageError, match=reason) as error:
        read(tmp_path, CONTRACT.replace(before, after, 1))
    assert "\n" not in str(error.value)
