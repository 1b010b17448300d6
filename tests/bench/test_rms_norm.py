"""rms_norm: formula, oracle, cost, and probes that really expose what they are for."""

from __future__ import annotations

from collections.abc import Callable

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor

from atrex.contract import DTYPES
from atrex.gates.comparators import accuracy_mismatch
from atrex.inputs import draw_values
from atrex.problem import Expected, load_problem
from atrex.protocol import InputSpec
from atrex.records import Shape
from bench.rms_norm import reference as module
from traces.workload import load_workload

CPU = torch.device("cpu")
PROBLEM = load_problem("rms_norm")
CASES = load_workload().cases("rms_norm")
LENGTHS = (128, 1152, 8192)  # the shortest, an odd one and the longest of production
SOURCES = ("production", *(name for probes in module.PROBES.values() for name in probes))
Sum = Callable[[Tensor], Tensor]  # squares [T, H] fp32 to their sums [T, 1] fp32


def drawn(source: str, rows: int, hidden: int, seed: int = 3, eps: float = 1e-6) -> dict[str, Tensor]:
    shape = shape_of(rows, hidden, eps)
    return draw_values(PROBLEM, InputSpec(shape=shape, seed=seed, source=source), CPU)


def shape_of(rows: int, hidden: int, eps: float = 1e-6) -> Shape:
    return Shape(init={"eps": eps}, dims={"token_count": rows, "hidden_size": hidden})


def kernel(inputs: dict[str, Tensor], total: Sum, eps: float = 1e-6) -> Tensor:
    """A kernel that is right but for how it adds the squares."""
    x = inputs["x"].float()
    mean = total(x * x) / x.shape[1]
    return (x * torch.rsqrt(mean + eps) * inputs["weight"].float()).to(torch.bfloat16)


def judged(got: Tensor, inputs: dict[str, Tensor], eps: float = 1e-6) -> tuple[bool, float]:
    """Whether a result is accepted, and its worst error over the bound."""
    init = {"eps": eps}
    eager, oracle = module.reference(init, inputs)["out"], module.oracle(init, inputs)["out"]
    precision = PROBLEM.precision("out", shape_of(got.shape[0], got.shape[1]))
    mismatch, metrics = accuracy_mismatch(got, eager, oracle, precision)
    return mismatch is None, float(metrics["worst_error_over_bound"] or 0)


def in_lanes(dtype: torch.dtype, lanes: int) -> Sum:
    """A sum kept in `dtype` by a number of lanes, which are then added pairwise."""

    def total(squares: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(squares, (0, -squares.shape[1] % lanes))
        kept = torch.zeros(squares.shape[0], lanes, dtype=dtype)
        for column in padded.unflatten(1, (-1, lanes)).unbind(1):
            kept = (kept.float() + column).to(dtype)
        while kept.shape[1] > 1:
            left, right = kept.float().chunk(2, dim=1)
            kept = (left + right).to(dtype)
        return kept.float()

    return total


def in_chunks(dtype: torch.dtype, size: int) -> Sum:
    """A sum exact within a chunk whose running total is kept in `dtype`, as a tiled loop keeps it."""

    def total(squares: Tensor) -> Tensor:
        kept = torch.zeros(squares.shape[0], 1, dtype=dtype)
        for chunk in squares.split(size, dim=1):
            kept = (kept.float() + chunk.sum(1, keepdim=True)).to(dtype)
        return kept.float()

    return total


def of_rounded(dtype: torch.dtype) -> Sum:
    return lambda squares: squares.to(dtype).float().sum(1, keepdim=True)


def of_tf32(nearest: bool) -> Sum:
    """A product with ones on tensor cores: fp32 operands lose their last 13 bits."""

    def total(squares: Tensor) -> Tensor:
        code = squares.contiguous().view(torch.int32) + (0x1000 if nearest else 0)
        return (code & ~0x1FFF).view(torch.float32).sum(1, keepdim=True)

    return total


def full(squares: Tensor) -> Tensor:
    return squares.sum(1, keepdim=True)


class TestFormula:
    @pytest.mark.parametrize("source", SOURCES)
    @pytest.mark.parametrize("eps", [0.0, 1e-6, 1.0])
    def test_the_oracle_against_multiple_precision(self, source: str, eps: float) -> None:
        inputs = drawn(source, 3, 37, eps=eps)
        oracle = module.oracle({"eps": eps}, inputs)["out"]
        assert oracle.value.dtype is torch.float64
        with mpmath.workdps(60):
            weight = [mpmath.mpf(w) for w in inputs["weight"].tolist()]
            for row, values in enumerate(inputs["x"].tolist()):
                mean = mpmath.fsum(mpmath.mpf(v) ** 2 for v in values) / 37
                scale = 1 / mpmath.sqrt(mean + mpmath.mpf(eps))
                for column, value in enumerate(values):
                    exact = mpmath.mpf(value) * scale * weight[column]
                    error = abs(mpmath.mpf(float(oracle.value[row, column])) - exact)
                    assert error <= 8 * mpmath.mpf(2) ** -53 * abs(exact)
        assert torch.equal(oracle.terms, oracle.value.abs())

    @pytest.mark.parametrize("source", SOURCES)
    @pytest.mark.parametrize("hidden", [1, 129, 1024])
    def test_eager_is_within_the_bound(self, source: str, hidden: int) -> None:
        inputs = drawn(source, 16, hidden)
        accepted, worst = judged(module.reference({"eps": 1e-6}, inputs)["out"], inputs)
        assert accepted, worst
        assert worst > 0.9 or hidden == 1  # no idle bound: most of it is the last rounding

    def test_eager_is_torchs_own(self) -> None:
        inputs = drawn("production", 5, 64)
        wide = [inputs[name].float() for name in ("x", "weight")]
        theirs = torch.nn.functional.rms_norm(wide[0], (64,), wide[1], 1e-6).to(torch.bfloat16)
        assert torch.equal(module.reference({"eps": 1e-6}, inputs)["out"], theirs)

    def test_the_oracle_works_in_blocks_of_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inputs = drawn("wide_parameters", 33, 16)
        whole = module.oracle({"eps": 1e-6}, inputs)["out"].value
        monkeypatch.setattr(module, "_ORACLE_CHUNK", 16 * 5)
        assert torch.equal(module.oracle({"eps": 1e-6}, inputs)["out"].value, whole)

    def test_no_rows(self) -> None:
        inputs = drawn("production", 0, 8)
        assert module.reference({"eps": 1e-6}, inputs)["out"].shape == (0, 8)
        assert module.oracle({"eps": 1e-6}, inputs)["out"].value.shape == (0, 8)


class TestSignature:
    @pytest.mark.parametrize("source", SOURCES)
    @pytest.mark.parametrize("dims", [(0, 4), (1, 1), (7, 33)])
    def test_inputs_are_as_declared(self, source: str, dims: tuple[int, int]) -> None:
        inputs = drawn(source, *dims)
        named = dict(zip(("token_count", "hidden_size"), dims, strict=True))
        assert list(inputs) == list(PROBLEM.spec.inputs)
        for name, declared in PROBLEM.spec.inputs.items():
            assert inputs[name].shape == tuple(named[dim] for dim in declared.shape)
            assert inputs[name].dtype is DTYPES[declared.dtype]
            assert inputs[name].isfinite().all()

    def test_outputs_are_as_declared(self) -> None:
        inputs = drawn("production", 7, 33)
        outputs, oracle = module.reference({"eps": 0.0}, inputs), module.oracle({"eps": 0.0}, inputs)
        assert list(outputs) == list(oracle) == list(PROBLEM.spec.outputs)
        for name, got in outputs.items():
            declared = PROBLEM.spec.outputs[name]
            assert got.shape == PROBLEM.tensor_shape(declared, shape_of(7, 33))
            assert got.dtype is PROBLEM.tensor_dtype(declared, shape_of(7, 33))
            assert isinstance(oracle[name], Expected)

    def test_production_inputs_are_distributed_as_published(self) -> None:
        inputs = drawn("production", 512, 2048)
        assert float(inputs["x"].float().std()) == pytest.approx(0.02, rel=0.01)
        assert float(inputs["x"].float().mean()) == pytest.approx(0, abs=1e-4)
        weight = inputs["weight"].float()
        assert float(weight.mean()) == pytest.approx(1, abs=2e-3)
        assert float(weight.std()) == pytest.approx(0.02, rel=0.1)

    def test_cost_by_counting(self) -> None:
        cost = module.cost(shape_of(3, 5))
        assert cost.flops == {"fp32": 3 * (5 + 5 + 1 + 1 + 1 + 5 + 5)}
        inputs = drawn("production", 3, 5)
        assert cost.read_bytes == sum(t.numel() * t.element_size() for t in inputs.values())
        assert cost.write_bytes == 3 * 5 * 2

    def test_every_case_is_in_the_domain(self) -> None:
        assert {case.input["hidden_size"] for case in CASES} >= set(LENGTHS)
        assert not [PROBLEM.complaint(case) for case in CASES if PROBLEM.complaint(case)]


WRONG_SUMS: dict[str, Sum] = {
    "bf16 accumulator": in_lanes(torch.bfloat16, 1),
    "bf16 accumulator in 32 lanes": in_lanes(torch.bfloat16, 32),
    "bf16 accumulator in 128 lanes": in_lanes(torch.bfloat16, 128),
    "bf16 running total of chunks": in_chunks(torch.bfloat16, 256),
    "fp16 accumulator": in_lanes(torch.float16, 1),
    "fp16 accumulator in 128 lanes": in_lanes(torch.float16, 128),
    "fp16 running total of chunks": in_chunks(torch.float16, 256),
}
WRONG_SQUARES: dict[str, Sum] = {
    "bf16 squares": of_rounded(torch.bfloat16),
    "fp16 squares": of_rounded(torch.float16),
    "tf32 squares, rounded": of_tf32(True),
    "tf32 squares, cut off": of_tf32(False),
}


class TestProbes:
    @pytest.mark.parametrize("hidden", LENGTHS)
    @pytest.mark.parametrize("name", WRONG_SUMS)
    def test_stagnation_exposes_a_narrow_accumulator(self, name: str, hidden: int) -> None:
        inputs = drawn("stagnation", 8, hidden)
        accepted, worst = judged(kernel(inputs, WRONG_SUMS[name]), inputs)
        assert not accepted
        assert worst > 1.02

    @pytest.mark.parametrize("hidden", LENGTHS)
    @pytest.mark.parametrize("name", WRONG_SQUARES)
    def test_fine_squares_expose_narrow_products(self, name: str, hidden: int) -> None:
        inputs = drawn("fine_squares", 8, hidden)
        accepted, worst = judged(kernel(inputs, WRONG_SQUARES[name]), inputs)
        assert not accepted
        assert worst > 1.01

    @pytest.mark.parametrize("source", module.PROBES["accumulation"])
    @pytest.mark.parametrize("total", [full, in_lanes(torch.float32, 1), in_chunks(torch.float32, 64)])
    def test_a_sum_in_fp32_passes_in_any_order(self, source: str, total: Sum) -> None:
        for hidden in LENGTHS:
            inputs = drawn(source, 8, hidden)
            assert judged(kernel(inputs, total), inputs)[0]

    def test_each_row_of_stagnation_has_its_large_value_elsewhere(self) -> None:
        x = drawn("stagnation", 64, 1024)["x"]
        places = x.argmax(dim=1).tolist()
        assert len(set(places)) == 64
        assert (places[0], places[-1]) == (0, 1023)

    def test_fine_squares_need_fifteen_bits(self) -> None:
        x = drawn("fine_squares", 4, 256)["x"].double()
        numerators = (x.square() * 2**14).long()
        assert torch.equal(numerators.double(), x.square() * 2**14)
        assert (numerators % 2 == 1).all()

    def test_wide_parameters_show_a_weight_that_is_left_out(self) -> None:
        inputs = drawn("wide_parameters", 8, 256)
        ones = inputs | {"weight": torch.ones(256, dtype=torch.bfloat16)}
        assert not judged(kernel(ones, full), inputs)[0]
        assert (inputs["weight"] == 0).any()
        assert (inputs["weight"] < 0).any()

    @pytest.mark.parametrize("wrong", [0.0, 1e-5, 9e-7])
    def test_tiny_inputs_show_a_wrong_eps(self, wrong: float) -> None:
        inputs = drawn("tiny_inputs", 8, 256)
        assert judged(kernel(inputs, full), inputs)[0]
        assert not judged(kernel(inputs, full, eps=wrong), inputs)[0]
        production = drawn("production", 8, 256)
        mean = production["x"].float().square().mean()
        assert mean > 100e-6  # why production inputs alone would hardly tell

    def test_uneven_rows_show_a_leak_into_the_next(self) -> None:
        inputs = drawn("uneven_rows", 16, 256)
        assert judged(kernel(inputs, full), inputs)[0]
        leaked = kernel(inputs, lambda squares: full(squares) + full(squares).roll(1, 0) * 2.0**-12)
        assert not judged(leaked, inputs)[0]

    def test_production_inputs_alone_miss_some(self) -> None:
        """Why the probes are there."""
        inputs = drawn("production", 8, 8192)
        assert judged(kernel(inputs, of_tf32(True)), inputs)[0]
        assert judged(kernel(inputs, of_rounded(torch.float16)), inputs)[0]
