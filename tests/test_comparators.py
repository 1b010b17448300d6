"""Comparators: the bound against exact rational arithmetic, and what they let through and do not."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from atrex.gates.comparators import (
    IllConditionedError,
    Mismatch,
    accuracy_mismatch,
    bit_mismatch,
    class_mismatch,
    error_bound,
    half_ulp,
)
from atrex.inputs import bits
from atrex.problem import Expected, Precision

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Significand bits, and the exponents of the smallest and the largest normal number (IEEE 754, and bf16).
FORMATS = {BF16: (8, -126, 127), FP16: (11, -14, 15), FP32: (24, -126, 127)}
DTYPES = pytest.mark.parametrize("dtype", FORMATS, ids=["bf16", "fp16", "fp32"])
TIGHT = Precision("fp32", 1, 0)
INF, NAN = math.inf, math.nan


def ulp(magnitude: Fraction, dtype: torch.dtype) -> Fraction:
    """Distance of neighbours at a magnitude, from the definition of the format."""
    digits, lowest, _ = FORMATS[dtype]
    exponent = lowest
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    return Fraction(2) ** (exponent - digits + 1)


def rounded(value: Fraction, dtype: torch.dtype) -> float:
    """The value rounded to nearest, ties to even, in exact arithmetic."""
    unit = ulp(abs(value), dtype)
    digits, _, highest = FORMATS[dtype]
    nearest = round(value / unit) * unit  # round() of a Fraction takes ties to even
    largest = (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** highest
    return float(nearest) if abs(nearest) <= largest else math.copysign(INF, value)


def neighbour(value: float, dtype: torch.dtype, steps: int) -> float:
    """The number `steps` places further from zero (nearer, for negative steps)."""
    moved = bits(torch.tensor([value], dtype=dtype)) + steps
    return float(moved.view(dtype)[0])


def accuracy(
    got: list[float], eager: list[float], oracle: list[float], dtype: torch.dtype, factor: float = 1.0
) -> Mismatch | None:
    """Compare under a contract that allows the last rounding and nothing else."""
    value = torch.tensor(oracle, dtype=torch.float64)
    ours, theirs = (torch.tensor(values, dtype=torch.float64).to(dtype) for values in (got, eager))
    return accuracy_mismatch(ours, theirs, Expected(value, torch.zeros_like(value)), TIGHT, factor)[0]


def interesting(dtype: torch.dtype) -> list[float]:
    """Representable magnitudes: subnormals, powers of two and their neighbours, the largest."""
    info = torch.finfo(dtype)
    tiny = info.smallest_normal * info.eps
    return [tiny, 3 * tiny, info.smallest_normal, 0.75, 1.0, 1.5, 2.0, 3.0, 2.0**10, info.max / 2, info.max]


class TestBound:
    @DTYPES
    @pytest.mark.parametrize("factor", [0.0, 0.25, 1.0, 4.0])
    def test_it_is_the_formula_in_exact_arithmetic(self, dtype: torch.dtype, factor: float) -> None:
        precision = Precision("fp32", 4096, 8)
        values = [0.0, *(sign * v * 1.000123 for v in interesting(dtype)[:-1] for sign in (1, -1))]
        terms = [abs(v) * 1.5 for v in values]
        expected = Expected(torch.tensor(values).double(), torch.tensor(terms).double())
        bound = error_bound(expected, dtype, precision, factor)
        g = Fraction(1, 2**24) * (6 * 64 + 8)  # lambda sqrt(n) + k
        for at, value in enumerate(expected.value.tolist()):
            slack = Fraction(factor) * (g * Fraction(float(expected.terms[at])) + 4 * Fraction(1, 2**149))
            exact = ulp(abs(Fraction(value)) + slack, dtype) / 2 + slack
            assert float(bound[at]) == pytest.approx(float(exact), rel=1e-12, abs=0)

    @pytest.mark.parametrize(("n", "units"), [(1, 1), (16, 16), (36, 36), (100, 60), (65536, 1536)])
    def test_no_sum_is_allowed_more_than_its_worst_case(self, n: int, units: float) -> None:
        assert Precision("fp32", n, 5).growth == (units + 5) * 2.0**-24
        assert Precision("fp64", n, 5).growth == (units + 5) * 2.0**-53

    def test_slack_is_added_as_it_is(self) -> None:
        value, terms = torch.tensor([1.5], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        plain = error_bound(Expected(value, terms), BF16, TIGHT)
        wide = error_bound(Expected(value, terms, torch.full_like(value, 0.25)), BF16, TIGHT)
        assert float(wide - plain) == 0.25

    @DTYPES
    @given(magnitude=st.floats(min_value=1e-45, max_value=3e38))
    def test_half_a_unit_in_the_last_place(self, dtype: torch.dtype, magnitude: float) -> None:
        got = float(half_ulp(torch.tensor([magnitude], dtype=torch.float64), dtype)[0])
        assert Fraction(got) == ulp(Fraction(magnitude), dtype) / 2


class TestAccuracy:
    @DTYPES
    @given(fraction=st.floats(min_value=1.0, max_value=2.0), scale=st.floats(min_value=0.0, max_value=1.0))
    def test_a_correctly_rounded_result_passes(
        self, dtype: torch.dtype, fraction: float, scale: float
    ) -> None:
        digits, lowest, highest = FORMATS[dtype]
        exponent = round(lowest - digits + scale * (highest - lowest + digits))
        value = math.ldexp(fraction, min(exponent, highest))
        got = rounded(Fraction(value), dtype)
        assert accuracy([1.0, got], [1.0, got], [1.0, value], dtype) is None

    @DTYPES
    def test_a_neighbour_fails(self, dtype: torch.dtype) -> None:
        values = interesting(dtype)[:-1]
        for value in values[3:] if dtype is FP32 else values:  # the floor is 4 subnormal units of fp32
            power = math.frexp(value)[0] == 0.5 and value > torch.finfo(dtype).smallest_normal
            # Below a power of two neighbours are half as far: the first is within half an upper ulp.
            for steps in (1, -2 if power else -1):
                for sign in (1.0, -1.0):
                    got = sign * neighbour(value, dtype, steps)
                    mismatch = accuracy([1.0, got], [1.0, sign * value], [1.0, sign * value], dtype)
                    assert mismatch is not None, f"{got} for {value}"
                    assert mismatch.index == (1,)
                    assert accuracy([sign * value], [sign * value], [sign * value], dtype) is None

    @DTYPES
    @pytest.mark.parametrize("got", [1.5, 1.25, 3.0, 192.0])
    @pytest.mark.parametrize("side", [1, -1])
    def test_an_error_passes_exactly_up_to_the_bound(self, dtype: torch.dtype, got: float, side: int) -> None:
        precision = Precision("fp32", 1 << 12, 8)
        terms = torch.tensor([7.0], dtype=torch.float64)
        g = precision.growth * 7.0 + 4 * 2.0**-149
        bound = float(ulp(Fraction(got), dtype) / 2) + g
        ours = torch.tensor([got], dtype=dtype)
        for share, passes in ((1 - 1e-6, True), (1 + 1e-6, False)):
            value = torch.tensor([got + side * bound * share], dtype=torch.float64)
            mismatch, metrics = accuracy_mismatch(ours, ours, Expected(value, terms), precision)
            assert (mismatch is None) == passes
            assert metrics["worst_error_over_bound"] == pytest.approx(share, rel=1e-9)

    def test_the_factor_sweeps_the_threshold(self) -> None:
        """Of all but the rounding of the output, which is no estimate: half an ulp at any factor."""
        precision = Precision("fp32", 4096, 8)
        terms, half = torch.tensor([4.0], dtype=torch.float64), 2.0**-8
        g = precision.growth * 4.0
        ours = torch.tensor([1.5], dtype=BF16)
        for factor in (0.25, 1.0, 8.0):
            for share, passes in ((0.99, True), (1.01, False)):
                value = torch.tensor([1.5 + half + share * factor * g], dtype=torch.float64)
                mismatch, _ = accuracy_mismatch(ours, ours, Expected(value, terms), precision, factor)
                assert (mismatch is None) == passes, (factor, share)

    def test_which_side_of_a_tie_one_element_falls_to_is_no_part_of_the_rms(self) -> None:
        precision = Precision("fp32", 4, 8)
        value, slack = torch.ones(4096, dtype=torch.float64), torch.zeros(4096, dtype=torch.float64)
        slack[7] = 2.0**-8
        expected = Expected(value, value, slack)
        eager = value.float()
        other_side = eager.clone()
        other_side[7] += 2.0**-8
        mismatch, metrics = accuracy_mismatch(other_side, eager, expected, precision)
        assert mismatch is None
        assert metrics["rms_error"] == 0.0
        assert metrics["worst_error_over_bound"] == pytest.approx(1.0, abs=1e-3)
        too_far = eager.clone()
        too_far[7] += 1.01 * 2.0**-8
        mismatch, _ = accuracy_mismatch(too_far, eager, expected, precision)
        assert mismatch is not None
        assert mismatch.index == (7,)
        all_off = other_side + 2.0**-21  # within g, eight units, but eager has no error at all
        mismatch, _ = accuracy_mismatch(all_off, eager, expected, precision)
        assert mismatch is not None
        assert "RMS" in mismatch.what

    def test_errors_within_the_bound_may_not_be_twice_those_of_eager(self) -> None:
        # In fp32 with a long sum the bound is many ulps wide, and eager is exact here.
        precision = Precision("fp32", 1 << 16, 8)
        value = torch.full((64,), 1.5, dtype=torch.float64)
        expected = Expected(value, value)
        bound = float(error_bound(expected, FP32, precision)[0])
        exact = value.float()
        for share, passes in ((0.1, True), (0.3, False)):
            got = exact + share * bound
            mismatch, metrics = accuracy_mismatch(got, exact, expected, precision)
            assert float(metrics["worst_error_over_bound"] or 0) < 1
            assert (mismatch is None) == passes
        assert mismatch is not None
        assert "twice the eager" in mismatch.what

    def test_a_running_sum_in_bf16_fails(self) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(8, 512, generator=generator).to(BF16)
        precision = Precision("fp32", 512, 1)
        exact = x.double().sum(-1)
        expected = Expected(exact, exact)
        eager = x.float().sum(-1).to(BF16)
        total = torch.zeros(8, dtype=BF16)
        for column in x.T:
            total = total + column  # rounded to bf16 each time
        assert accuracy_mismatch(total, eager, expected, precision)[0] is not None
        chunks = torch.zeros(8, dtype=BF16)
        for block in x.float().split(64, dim=1):
            chunks = (chunks.float() + block.sum(-1)).to(BF16)
        assert accuracy_mismatch(chunks, eager, expected, precision)[0] is not None
        assert accuracy_mismatch(eager, eager, expected, precision)[0] is None

    def test_the_worst_element_is_shown(self) -> None:
        value = torch.ones(3, 4, dtype=torch.float64)
        got = value.to(BF16)
        got[1, 2], got[2, 3] = 1.0625, -7.0
        mismatch, metrics = accuracy_mismatch(got, value.to(BF16), Expected(value, value), TIGHT)
        assert mismatch is not None
        assert (mismatch.index, mismatch.expected, mismatch.got) == ((2, 3), "1", "-7 (0xc0e0)")
        assert mismatch.metrics == metrics

    @DTYPES
    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_a_finite_result_that_is_lost(self, dtype: torch.dtype, bad: float) -> None:
        mismatch = accuracy([1.0, bad], [1.0, 2.0], [1.0, 2.0], dtype)
        assert mismatch is not None
        assert (mismatch.index, mismatch.what[:9]) == ((1,), "error inf")
        assert all(math.isfinite(float(m)) for m in mismatch.metrics.values() if isinstance(m, float))

    @DTYPES
    def test_overflow_gives_infinity_where_rounding_does(self, dtype: torch.dtype) -> None:
        info = torch.finfo(dtype)
        beyond = info.max * 1.01
        assert accuracy([INF], [INF], [beyond], dtype) is None
        assert accuracy([info.max], [INF], [beyond], dtype) is not None
        assert accuracy([-INF], [INF], [beyond], dtype) is not None
        assert accuracy([INF], [info.max], [info.max], dtype) is not None
        assert accuracy([info.max], [info.max], [info.max], dtype) is None

    def test_where_eager_and_oracle_disagree_nobody_is_judged(self) -> None:
        # Eager overflows in fp32 where fp64 does not.
        for got in (INF, NAN, 0.0, 3.0):
            assert accuracy([got, 1.0], [NAN, 1.0], [5.0, 1.0], BF16) is None

    def test_an_ill_conditioned_reference_judges_nobody(self) -> None:
        with pytest.raises(IllConditionedError, match="eager RMS error"):
            accuracy([1.0, 1.0], [1.0, 1.2], [1.0, 1.0], BF16)
        assert accuracy([1.0, 1.0], [1.0, 1.1], [1.0, 1.0], BF16) is None

    def test_slices_give_the_verdict_of_the_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is too large for fp64 copies is compared slice by slice: same element, same metrics."""
        expected = Expected(torch.linspace(-3, 3, 60).double().view(4, 15), torch.full((4, 15), 2.0).double())
        eager = expected.value.to(BF16)
        got = eager.clone()
        got[0, 3] += 0.1
        got[2, 7] += 0.5
        lost = eager.clone()
        lost[3, 1] = NAN
        whole = [accuracy_mismatch(case, eager, expected, TIGHT) for case in (got, lost, eager)]
        monkeypatch.setattr("atrex.gates.comparators._SLICE", 7)
        sliced = [accuracy_mismatch(case, eager, expected, TIGHT) for case in (got, lost, eager)]
        for (mismatch, metrics), (expected_mismatch, expected_metrics) in zip(sliced, whole, strict=True):
            assert metrics == pytest.approx(expected_metrics)
            assert (mismatch and mismatch.index) == (expected_mismatch and expected_mismatch.index)
        assert whole[0][0] is not None
        assert whole[0][0].index == (2, 7)
        assert whole[1][0] is not None
        assert whole[1][0].index == (3, 1)
        assert whole[2][0] is None

    def test_nothing_to_compare(self) -> None:
        assert accuracy([], [], [], BF16) is None

    def test_a_result_of_zeros(self) -> None:
        assert accuracy([0.0], [0.0], [0.0], BF16) is None
        assert accuracy([2.0**-133], [0.0], [0.0], BF16) is not None


class TestBits:
    def test_equal_bits_are_equal_whatever_they_mean(self) -> None:
        value = torch.tensor([NAN, -0.0, INF, 2.0**-133], dtype=BF16)
        assert bit_mismatch(value, value.clone()) is None

    def test_the_first_difference_and_their_number(self) -> None:
        expected = torch.zeros(2, 3, dtype=BF16)
        got = expected.clone()
        got[0, 2], got[1, 0] = -0.0, NAN
        mismatch = bit_mismatch(got, expected)
        assert mismatch is not None
        assert (mismatch.index, mismatch.metrics) == ((0, 2), {"different": 2})
        assert (mismatch.expected, mismatch.got) == ("0 (0x0000)", "-0 (0x8000)")

    def test_a_nan_of_another_payload_differs(self) -> None:
        value = torch.tensor([NAN], dtype=FP32)
        other = (bits(value) ^ 1).view(FP32)
        assert other.isnan()
        assert bit_mismatch(other, value) is not None

    def test_layouts_do_not_matter(self) -> None:
        value = torch.arange(6.0).reshape(2, 3)
        assert bit_mismatch(value.T.contiguous().T, value) is None

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.float64])
    def test_other_types(self, dtype: torch.dtype) -> None:
        value = torch.tensor([1, 2, 3], dtype=dtype)
        assert bit_mismatch(value.clone(), value) is None
        mismatch = bit_mismatch(value + torch.tensor([0, 0, 1], dtype=dtype), value)
        assert mismatch is not None
        assert mismatch.index == (2,)

    def test_nothing_to_compare(self) -> None:
        assert bit_mismatch(torch.empty(0, 4), torch.empty(0, 4)) is None


class TestClasses:
    VALUES = (NAN, INF, -INF, 0.0, -0.0, 1.5)

    @pytest.mark.parametrize("expected", VALUES)
    @pytest.mark.parametrize("got", VALUES)
    def test_every_pair(self, got: float, expected: float) -> None:
        mismatch = class_mismatch(self._one(got), self._one(expected), self._one(expected).double())
        assert (mismatch is None) == (str(got) == str(expected))
        if mismatch:
            assert mismatch.index == (0, 1)

    def test_the_size_of_a_finite_value_is_not_its_class(self) -> None:
        assert class_mismatch(self._one(-9.0), self._one(1.5), self._one(1.5).double()) is None

    @pytest.mark.parametrize("got", VALUES)
    def test_what_eager_and_oracle_see_differently_is_left_out(self, got: float) -> None:
        assert class_mismatch(self._one(got), self._one(NAN), self._one(1.5).double()) is None

    def test_an_oracle_that_underflows_or_overflows_in_the_output(self) -> None:
        tiny = torch.tensor([[1.0, -1e-60]], dtype=torch.float64)
        assert class_mismatch(self._one(-0.0), self._one(-0.0), tiny) is None
        assert class_mismatch(self._one(0.0), self._one(-0.0), tiny) is not None
        assert class_mismatch(self._one(0.0), self._one(-0.0), tiny, signed_zeros=False) is None
        assert class_mismatch(self._one(NAN), self._one(-0.0), tiny, signed_zeros=False) is not None
        huge = torch.tensor([[1.0, 1e60]], dtype=torch.float64)
        assert class_mismatch(self._one(INF), self._one(INF), huge) is None
        assert class_mismatch(self._one(3e38), self._one(INF), huge) is not None

    @pytest.mark.parametrize("got", [0.0, -0.0, 2.0**-133, -(2.0**-133)])
    def test_a_value_that_may_be_rounded_to_zero_may_have_either_sign(self, got: float) -> None:
        """FP8 has its last number at 2^-9: two orders of a sum give zeros of both signs."""
        tiny = torch.tensor([[1.0, -1e-60]], dtype=torch.float64)
        allowed = torch.full_like(tiny, 1e-30)
        assert class_mismatch(self._one(got), self._one(-0.0), tiny, allowed) is None
        nothing = torch.tensor([[1.0, -0.0]], dtype=torch.float64)
        kept = class_mismatch(self._one(got), self._one(-0.0), nothing, allowed)
        assert (kept is None) == (str(got) == "-0.0")

    @pytest.mark.parametrize("got", [0.0, -0.0, 2.0**-133, -(2.0**-133)])
    def test_what_is_left_of_terms_that_cancel_follows_from_their_order(self, got: float) -> None:
        """big + small - big is small or nothing; what has no terms but zeros is nothing."""
        none = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        allowed, cancel = torch.full_like(none, 1e-3), torch.ones_like(none)
        assert class_mismatch(self._one(got), self._one(0.0), none, allowed, cancel) is None
        kept = class_mismatch(self._one(got), self._one(0.0), none, allowed, torch.zeros_like(none))
        assert (kept is None) == (str(got) == "0.0")

    @pytest.mark.parametrize("got", [NAN, INF, 2.0])
    def test_terms_that_cancel_leave_no_more_than_the_bound(self, got: float) -> None:
        none = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        allowed, cancel = torch.full_like(none, 1e-3), torch.ones_like(none)
        assert class_mismatch(self._one(got), self._one(0.0), none, allowed, cancel) is not None

    @pytest.mark.parametrize("got", [NAN, INF, -INF])
    def test_a_value_near_zero_must_stay_a_number(self, got: float) -> None:
        tiny = torch.tensor([[1.0, -1e-60]], dtype=torch.float64)
        assert class_mismatch(self._one(got), self._one(-0.0), tiny, torch.full_like(tiny, 1e-30)) is not None

    @staticmethod
    def _one(value: float) -> Tensor:
        return torch.tensor([[1.0, value]], dtype=BF16)
