"""What bench/<operator>/reference.py is for our operators, made from a foreign problem and its referee."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from atrex.foreign.client import Referee
from atrex.foreign.drawing import ForeignInputs
from atrex.foreign.spec import ForeignProblem
from atrex.gates.comparators import half_ulp
from atrex.gates.context import Undecided
from atrex.problem import Expected, Init, Problem
from atrex.records import Status

EXCESS = 4.0  # a candidate may err this many times as far as eager does, beyond the rounding of the output


class ForeignModule(ForeignInputs):
    """Reference and oracle besides: the judge's side, with the referee that computes them."""

    def __init__(self, problem: ForeignProblem, referee: Referee, argument: str = "") -> None:
        super().__init__(problem)
        self.referee = referee
        self.ARGUMENT = argument
        self._last: tuple[Mapping[str, Tensor], dict[str, Tensor], dict[str, Expected]] | None = None

    def reference(self, init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The reference as its author runs it."""
        return self._evaluate(init, inputs)[0]

    def oracle(self, init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
        """The same in fp64. Raises Undecided where an exact output hangs on the reference's own rounding."""
        return self._evaluate(init, inputs)[1]

    def _evaluate(
        self, init: Init, inputs: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Expected]]:
        if self._last is not None and self._last[0] is inputs:
            return self._last[1], self._last[2]
        call = self.call(init)
        modes: Sequence[Any] = (
            ("eager", "wide", "magnitudes") if self.problem.magnitudes else ("eager", "wide")
        )
        results = self.referee.evaluate(call.args, call.kwargs, inputs, modes, self.room(inputs))
        eager, wide = results["eager"], results["wide"]
        expected: dict[str, Expected] = {}
        for name, declared in self.problem.problem.outputs.items():
            shapes = {tuple(r[name].shape) if name in r else () for r in results.values()}
            if name not in eager or len(shapes) > 1:
                reason = f"{name} of the reference has another shape in fp64, or is not there"
                raise Undecided(Status.INCONCLUSIVE, reason)
            if declared.compare == "exact":
                if not torch.equal(eager[name].double(), wide[name].double()):
                    reason = f"{name} of the reference itself differs between {eager[name].dtype} and fp64"
                    raise Undecided(Status.INCONCLUSIVE, reason)
                expected[name] = Expected(eager[name], eager[name].double().abs())
            else:
                terms = results["magnitudes"][name] if self.problem.magnitudes else None
                expected[name] = bounded(eager[name], wide[name].double(), terms)
        self._last = (inputs, eager, expected)
        return eager, expected

    def room(self, inputs: Mapping[str, Tensor]) -> int:
        """Bytes for outputs in fp64: those of the contract at the extents that the inputs have."""
        spec = self.problem.problem
        dims: dict[str, int] = {}
        for name, tensor in inputs.items():
            axes = zip(spec.inputs[name].shape, tensor.shape, strict=True)
            dims |= {axis: extent for axis, extent in axes if isinstance(axis, str)}
        most = {n: max(c.derived.get(n, 1) for c in self.problem.calls) for n in spec.derived}
        total = 0
        for output in spec.outputs.values():
            extents = [
                axis if isinstance(axis, int) else dims.get(axis, most.get(axis, 1)) for axis in output.shape
            ]
            total += 8 * math.prod(extents) + 4096
        return total


def bounded(eager: Tensor, wide: Tensor, magnitudes: Tensor | None) -> Expected:
    """The fp64 result with what its error bound is made of (docs/foreign.md, "Error bounds").

    Where the function of absolute values bounds the sums of magnitudes, that is `terms`. Elsewhere terms are
    the result's own magnitude plus its scale, and slack is EXCESS times what eager itself errs at most beyond
    the rounding of its output.
    """
    if magnitudes is not None:
        return Expected(wide, torch.maximum(magnitudes.double().abs(), wide.abs()))
    judged = wide.isfinite() & eager.double().isfinite()
    value = torch.where(judged, wide, 0.0)
    scale = value.square().mean().sqrt() if value.numel() else value.sum()
    error = torch.where(judged, (eager.double() - wide).abs() - half_ulp(value.abs(), eager.dtype), 0.0)
    worst = error.clamp(min=0).max() if error.numel() else error.sum()
    return Expected(wide, value.abs() + scale, torch.full_like(value, EXCESS * float(worst)))


def make_problem(problem: ForeignProblem, referee: Referee, argument: str = "") -> Problem:
    """The problem as gates, sessions and workers take it."""
    return Problem(problem.problem, ForeignModule(problem, referee, argument))
