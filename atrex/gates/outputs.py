"""Judging a call's outputs: each as its declaration says, against reference and oracle on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from atrex.gates.comparators import Mismatch, accuracy_mismatch, bit_mismatch
from atrex.problem import Expected, Problem
from atrex.records import Scalar, Shape

Finding = tuple[str, Mismatch]  # an output, and what is wrong with it


def judge_outputs(
    problem: Problem,
    shape: Shape,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    *,
    factor: float = 1.0,
) -> tuple[Finding | None, dict[str, Scalar]]:
    """The first output that is wrong, and the worst metrics of all. `factor` scales every error bound.

    Raises IllConditionedError where the reference itself is too far from the oracle to judge anybody by.
    """
    worst: dict[str, Scalar] = {}
    declared_outputs = problem.spec.outputs
    checked = [name for name, declared in declared_outputs.items() if declared.compare == "checked"]
    eager, oracle = dict[str, Tensor](), dict[str, Expected]()
    if len(checked) < len(declared_outputs):
        eager, oracle = problem.reference(shape, inputs), problem.oracle(shape, inputs)
    for name, declared in declared_outputs.items():
        if name in checked:
            continue
        got, expected = outputs[name], oracle[name]
        if got.shape != expected.value.shape:
            what = f"has the shape {list(got.shape)}, right is {list(expected.value.shape)}"
            return (name, Mismatch((), "", "", what, {})), worst
        if declared.compare == "exact":
            mismatch = bit_mismatch(got, expected.value.to(got.dtype))
        else:
            precision = problem.precision(name, shape)
            signed = problem.contract.signed_zeros
            mismatch, metrics = accuracy_mismatch(
                got, eager[name], expected, precision, factor, signed_zeros=signed
            )
            keep_worst(worst, metrics)
        if mismatch:
            return (name, mismatch), worst
    if checked and (complaint := problem.check(shape, inputs, outputs)):
        return (checked[0], Mismatch((), "", "", complaint, {})), worst
    return None, worst


def keep_worst(worst: dict[str, Scalar], metrics: Mapping[str, Scalar]) -> None:
    """Take up the errors of another comparison where they are larger."""
    for name, value in metrics.items():
        if isinstance(value, float):
            worst[name] = max(value, float(worst.get(name) or 0.0))
