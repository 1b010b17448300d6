"""Comparing outputs: bit equality, classes of special values, and the componentwise error bound.

The bound. Let u be the unit roundoff of the declared accumulator, n the reduction length and k the
number of further roundings the contract allows. A sum of n terms in any order has, with probability
above 1 - 2 exp(-lambda^2 / 2) per element, a relative forward error of at most lambda sqrt(n) u times
the sum of magnitudes (N. J. Higham and T. Mary, "A new approach to probabilistic rounding error
analysis", SIAM J. Sci. Comput. 41, 2019); no term count below n can exceed the worst case n u
(N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 4.2). So

    g = u (min(n, lambda sqrt(n)) + k) * terms + slack + floor,    |out - oracle| <= ulp(|oracle| + g) / 2 + g

where ulp is that of the output dtype, slack what the contract allows for intermediate roundings to a narrower
dtype that it names, and floor a few subnormal units of the accumulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from atrex.inputs import bits
from atrex.problem import Expected, Precision
from atrex.records import Scalar

_SUBNORMAL_UNIT = {"fp32": 2.0**-149, "fp64": 2.0**-1074}
ILL_CONDITIONED = 0.10  # an eager error above this share of scale makes a comparison inconclusive
EAGER_FACTOR = 2.0
CHOICE = 1000.0  # slack above so many times the rest of a bound: one of two neighbours, and both are right
_FINITE, _ZERO = 0, 4  # classes of values: see _classes
_SLICE = 1 << 26  # elements compared at a time, in a dozen fp64 temporaries
_SUMMED = ("value", "error", "eager", "allowed")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The worst offending element of a comparison."""

    index: tuple[int, ...]
    expected: str
    got: str
    what: str
    metrics: dict[str, Scalar]


class IllConditionedError(Exception):
    """The eager reference is itself too far from the oracle to judge anybody by."""


def error_bound(expected: Expected, dtype: torch.dtype, precision: Precision, factor: float = 1.0) -> Tensor:
    """Componentwise bound in fp64 on |out - oracle|.

    `factor` scales what is an estimate, for a threshold sweep: roundings that the contract names within the
    function and the one of the output may go either way in any honest kernel, and stay.
    """
    g = factor * (precision.growth * expected.terms + 4 * _SUBNORMAL_UNIT[precision.accumulator])
    if expected.slack is not None:
        g = g + expected.slack
    return half_ulp(expected.value.abs() + g, dtype) + g


def half_ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Half a unit in the last place of `dtype` at a magnitude given in fp64 (subnormals included)."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(magnitude.clamp(min=info.smallest_normal))[1] - 1
    return torch.ldexp(torch.full_like(magnitude, info.eps / 2), exponent)


def bit_mismatch(got: Tensor, expected: Tensor) -> Mismatch | None:
    """The first element whose bits differ, or None. Both tensors have the same dtype."""
    if got.shape != expected.shape:
        return Mismatch((), str(list(expected.shape)), str(list(got.shape)), "shapes differ", {})
    different = bits(got) != bits(expected)
    if not bool(different.any()):
        return None
    count = int(different.sum())
    index = _unravel(int(torch.argmax(different.flatten().to(torch.uint8))), different.shape)
    return Mismatch(index, _show(expected, index), _show(got, index), "bits differ", {"different": count})


def class_mismatch(
    got: Tensor,
    eager: Tensor,
    oracle: Tensor,
    allowed: Tensor | None = None,
    terms: Tensor | None = None,
    *,
    signed_zeros: bool = True,
) -> Mismatch | None:
    """Where NaN, +Inf, -Inf or the sign of a zero differs though eager and oracle agree on it.

    Where `allowed` bounds the error, a value that is not zero but may be rounded to it may also stay above it
    or come out with the other sign: that follows from the order of a sum. So does what is left where the
    `terms` (the sum of their magnitudes) of a zero are none: big + small - big.
    """
    if _ordinary(got) and _ordinary(eager):
        return None
    expected, found, usual = (_classes(one, signed_zeros) for one in (oracle.to(eager.dtype), got, eager))
    wrong = (found != expected) & (usual == expected)
    if allowed is not None:
        near_zero = (oracle != 0) & (oracle.abs() <= allowed)
        if terms is not None:
            near_zero |= (oracle == 0) & (terms > 0) & (got.double().abs() <= allowed)
        wrong &= ~(near_zero & _is_number(found) & _is_number(expected))
    # A finite non-zero value may be any finite value here: its size is the accuracy bound's business.
    if not bool(wrong.any()):
        return None
    index = _unravel(int(torch.argmax(wrong.flatten().to(torch.uint8))), wrong.shape)
    return Mismatch(
        index,
        _show(eager, index),
        _show(got, index),
        "special value lost or made",
        {"wrong": int(wrong.sum())},
    )


def _classes(value: Tensor, signed_zeros: bool) -> Tensor:
    """0 finite, 1 NaN, 2 +Inf, 3 -Inf, 4 +0 (or any zero), 5 -0."""
    value = _with_predicates(value)
    zero = value == 0
    result = value.isnan() + 2 * value.isposinf().byte() + 3 * value.isneginf().byte() + 4 * zero.byte()
    return result + (zero & value.signbit()) if signed_zeros else result


def _ordinary(value: Tensor) -> bool:
    """Whether all of it is finite and not zero."""
    value = _with_predicates(value)
    return bool((value.isfinite() & (value != 0)).all())


def _with_predicates(value: Tensor) -> Tensor:
    """The eight-bit dtypes have none; in fp32 they keep every value."""
    return value.float() if value.element_size() == 1 else value


def _is_number(classes: Tensor) -> Tensor:
    return (classes == _FINITE) | (classes >= _ZERO)


def accuracy_mismatch(
    got: Tensor,
    eager: Tensor,
    expected: Expected,
    precision: Precision,
    factor: float = 1.0,
    *,
    signed_zeros: bool = True,
) -> tuple[Mismatch | None, dict[str, Scalar]]:
    """The element that exceeds its bound the most, and metrics of the comparison.

    Judged where eager and oracle are both finite; elsewhere the classes must agree. Raises
    IllConditionedError when the eager reference's error is above a tenth of the result's scale.
    """
    tally = _Tally(signed_zeros)
    for start in range(0, got.numel(), _SLICE):
        part = slice(start, start + _SLICE)
        slack = None if expected.slack is None else _flat(expected.slack, got)[part]
        own = Expected(_flat(expected.value, got)[part], _flat(expected.terms, got)[part], slack)
        tally.add(start, _flat(got, got)[part], _flat(eager, got)[part], own, precision, factor)
    rms = {name: math.sqrt(total / max(1, got.numel())) for name, total in tally.squares.items()}
    if rms["eager"] > ILL_CONDITIONED * rms["value"] and rms["value"] > 0:
        raise IllConditionedError(f"eager RMS error {rms['eager']:.3g} against a scale of {rms['value']:.3g}")
    metrics: dict[str, Scalar] = {
        "worst_error_over_bound": _finite(tally.worst),
        "rms_error": _finite(rms["error"]),
        "eager_rms_error": _finite(rms["eager"]),
    }
    mismatch = tally.worst_element if tally.worst > 1.0 else None
    if mismatch is None and rms["error"] > EAGER_FACTOR * rms["eager"] + rms["allowed"] / 8:
        what = f"RMS error {rms['error']:.4g} above twice the eager reference's {rms['eager']:.4g}"
        return Mismatch((), "", "", what, metrics), metrics
    mismatch = mismatch or tally.lost_special
    if mismatch is None:
        return None, metrics
    return replace(mismatch, index=_unravel(mismatch.index[0], got.shape), metrics=metrics), metrics


@dataclass(slots=True)
class _Tally:
    """What a comparison has seen so far, slice by slice: fp64 copies of a whole output need not fit."""

    signed_zeros: bool
    squares: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMMED, 0.0))
    worst: float = 0.0
    worst_element: Mismatch | None = None  # indices are flat
    lost_special: Mismatch | None = None

    def add(
        self, start: int, got: Tensor, eager: Tensor, expected: Expected, precision: Precision, factor: float
    ) -> None:
        """Take up one slice, one-dimensional, that begins at element `start`."""
        value = expected.value
        wide, eager_wide = got.double(), eager.double()
        judged = value.isfinite() & eager_wide.isfinite()
        allowed = error_bound(expected, got.dtype, precision, factor)
        regular = judged if expected.slack is None else judged & ~_choices(expected.slack, allowed)
        error = torch.where(judged, (wide - value).abs(), 0.0)
        # Where the bound reaches past the largest value, rounding may give infinity.
        limit = torch.finfo(got.dtype).max
        error = torch.where(judged & wide.isinf() & (value.abs() + allowed >= limit), 0.0, error)
        error = torch.where(error.isnan(), torch.inf, error)
        eager_error = torch.where(judged, (eager_wide - value).abs(), 0.0)
        for name, part in zip(_SUMMED, (value, error, eager_error, allowed), strict=True):
            self.squares[name] += float(torch.where(regular, part, 0.0).square().sum())
        share = torch.where(allowed > 0, error / allowed, torch.where(error > 0, torch.inf, 0.0))
        at = int(torch.argmax(share))
        if float(share[at]) > self.worst:
            self.worst = float(share[at])
            what = f"error {float(error[at]):.4g} above the bound {float(allowed[at]):.4g}"
            exact = f"{float(value[at]):.9g}"
            self.worst_element = Mismatch((start + at,), exact, _show(got, (at,)), what, {})
        if self.lost_special is None and (
            lost := class_mismatch(got, eager, value, allowed, expected.terms, signed_zeros=self.signed_zeros)
        ):
            self.lost_special = replace(lost, index=(start + lost.index[0],))


def _choices(slack: Tensor, allowed: Tensor) -> Tensor:
    """Where a value is one of two far apart: an fp32 result next to a tie of a rounding to bf16 before it.

    Next to a tie either is right. Ties are rare, and one that falls to the other side outweighs the errors of
    all the rest in an RMS, which would then tell of a coin.
    """
    return slack > CHOICE * (allowed - slack)


def _flat(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.broadcast_to(like.shape).reshape(-1)


def _finite(value: float) -> float:
    return value if abs(value) < 1e300 else 1e300


def _unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index = list[int]()
    for extent in reversed(shape):
        flat, rest = divmod(flat, extent)
        index.append(rest)
    return tuple(reversed(index))


def _show(tensor: Tensor, index: tuple[int, ...]) -> str:
    element = tensor[index]
    code = int(bits(element.reshape(1))[0]) & ((1 << 8 * element.element_size()) - 1)
    return f"{float(element):.9g} (0x{code:0{2 * element.element_size()}x})"
