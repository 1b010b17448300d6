"""The witness search: a legal call on which a mutant is provably wrong and its honest kernel is right.

It asks no gate. Wrong means: an error of four times the documented bound or more (`CLEAR`), other bits in an
exact output, an output that `check` refuses, NaN or infinity where eager and oracle agree on something else,
or a write outside the tensors. Beyond the bound, but not by that factor, a witness is called marginal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atrex.gates.comparators import ILL_CONDITIONED, IllConditionedError, error_bound
from atrex.inputs import as_contiguous, bits, build_inputs
from atrex.judge import CandidateFault, Outcome, Session
from atrex.problem import Expected, Problem
from atrex.records import FaultKind, Shape
from tests.mutation.legal import Trial

CLEAR = 4.0
_LEAST = 40  # calls before the mutant's own time ends a search
_CRASHES = 3  # calls that end in a fault before a search is given up


@dataclass(frozen=True, slots=True)
class Difference:
    """How wrong outputs are: their error over the bound (infinite for what has none), and what is seen."""

    ratio: float
    what: str


@dataclass(frozen=True, slots=True)
class Truth:
    """What is right on one trial's inputs."""

    trial: Trial
    inputs: dict[str, Tensor]
    eager: dict[str, Tensor]
    oracle: dict[str, Expected]


@dataclass(frozen=True, slots=True)
class Witness:
    """A trial on which a mutant is wrong."""

    trial: Trial
    difference: Difference

    @property
    def clear(self) -> bool:
        """Whether no argument about the bound's constants can explain it."""
        return self.difference.ratio >= CLEAR


@dataclass(frozen=True, slots=True)
class Search:
    """What a search came to: the witness, or why there is none."""

    witness: Witness | None
    calls: int
    why: str = ""


@dataclass
class Grounds:
    """Trials with their truths, on which the honest kernel is right: drawn once, used for all its mutants."""

    problem: Problem
    honest: Session
    source: Iterator[Trial]
    doubts: list[str] = field(
        default_factory=list
    )  # trials on which the honest kernel is not within the bound
    _known: list[Truth] = field(default_factory=list)

    def __iter__(self) -> Iterator[Truth]:
        yield from self._known
        for trial in self.source:
            if (truth := self._truth(trial)) is not None:
                self._known.append(truth)
                yield truth

    def _truth(self, trial: Trial) -> Truth | None:
        device = self.honest.engine.torch_device
        plain = trial.spec.model_copy(update={"layouts": {}, "guard": None})
        inputs = as_contiguous(build_inputs(self.problem, plain, device)[0])
        try:
            truth = truth_of(self.problem, trial, inputs)
            outcome = self.honest.run(trial.call)[0]
        except (IllConditionedError, torch.OutOfMemoryError):
            return None
        except CandidateFault as fault:
            if not (trial.may_refuse and fault.kind is FaultKind.REFUSED):
                self.doubts.append(f"{trial.label}: {fault.kind.value}: {fault.message[:160]}")
            return None
        difference = difference_of(self.problem, truth, outcome)
        if difference is not None and difference.ratio > 1:
            self.doubts.append(f"{trial.label}: {difference.what}")
            return None
        return truth


def truth_of(problem: Problem, trial: Trial, inputs: dict[str, Tensor]) -> Truth:
    """Reference and oracle. Raises IllConditionedError where the reference itself is too far off."""
    shape = trial.spec.shape
    eager, oracle = problem.reference(shape, inputs), problem.oracle(shape, inputs)
    for name, declared in problem.spec.outputs.items():
        if declared.compare == "bound" and _ill_conditioned(eager[name].double(), oracle[name].value):
            raise IllConditionedError(f"the reference itself is wrong in {name}")
    return Truth(trial, inputs, eager, oracle)


def _ill_conditioned(eager: Tensor, value: Tensor) -> bool:
    """Whether the reference's RMS error is above a tenth of the result's RMS."""
    judged = value.isfinite() & eager.isfinite()
    error = torch.where(judged, eager - value, 0.0).square().sum().sqrt()
    return bool(error > ILL_CONDITIONED * torch.where(judged, value, 0.0).square().sum().sqrt())


def search(
    grounds: Grounds, mutant: Session, *, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Search:
    """Look for a clear witness; the largest marginal one is the second best.

    It takes `seconds` of the mutant's own time, or what _LEAST calls take; with the honest kernel's calls no
    more than four times that.
    """
    best, crashes, calls, crash, spent, ended = None, 0, 0, "", 0.0, clock() + 4 * seconds
    for truth in grounds:
        began = clock()
        try:
            outcome = mutant.run(truth.trial.call)[0]
        except CandidateFault as fault:
            if truth.trial.may_refuse and fault.kind is FaultKind.REFUSED:
                continue
            crashes, crash = crashes + 1, f"{fault.kind.value}: {fault.message[:200]}"
            if crashes >= _CRASHES or fault.kind is FaultKind.TIMEOUT:
                break
            continue
        calls += 1
        difference = difference_of(grounds.problem, truth, outcome)
        if difference is not None and difference.ratio > (best.difference.ratio if best else 1.0):
            best = Witness(truth.trial, difference)
            if best.clear:
                break
        spent += clock() - began
        if (spent > seconds and calls >= _LEAST) or clock() > ended:
            crash = crash or "the time for the search was over"
            break
    return Search(best, calls, f"{calls} calls{'; ' if crash else ''}{crash}")


def difference_of(problem: Problem, truth: Truth, outcome: Outcome) -> Difference | None:
    """The worst that can be said of a call's outputs; None if they are as they should be, to the bit."""
    if outcome.report.broken_guards:
        return Difference(math.inf, f"wrote outside of {', '.join(outcome.report.broken_guards)}")
    worst: Difference | None = None
    shape = truth.trial.spec.shape
    for name, declared in problem.spec.outputs.items():
        if declared.compare == "checked":
            continue
        got, expected = outcome.outputs.get(name), truth.oracle[name]
        if got is None or got.shape != expected.value.shape or got.dtype != truth.eager[name].dtype:
            return Difference(math.inf, f"{name} has another shape or dtype")
        if declared.compare == "exact":
            found = exact(name, got, expected)
        else:
            found = _bounded(name, got, truth.eager[name], expected, problem, shape)
        if found is not None and (worst is None or found.ratio > worst.ratio):
            worst = found
    return worst or _checked(problem, truth, outcome.outputs)


def _checked(problem: Problem, truth: Truth, outputs: Mapping[str, Tensor]) -> Difference | None:
    if all(declared.compare != "checked" for declared in problem.spec.outputs.values()):
        return None
    complaint = problem.check(truth.trial.spec.shape, truth.inputs, outputs)
    return Difference(math.inf, complaint) if complaint else None


def exact(name: str, got: Tensor, expected: Expected) -> Difference | None:
    """Whether the bits are right, of all but the NaNs."""
    right = expected.value.to(got.dtype)
    wrong = bits(got) != bits(right)
    if got.is_floating_point():  # which NaN inf - inf gives is the machine's choice, not the kernel's
        wrong &= ~(got.float().isnan() & right.float().isnan())
    if not bool(wrong.any()):
        return None
    return Difference(math.inf, f"{name}: bits differ in {int(wrong.sum())} of {got.numel()} elements")


def _bounded(
    name: str, got: Tensor, eager: Tensor, expected: Expected, problem: Problem, shape: Shape
) -> Difference | None:
    if not got.numel():
        return None
    wide, value, judged = got.double(), expected.value, expected.value.isfinite() & eager.double().isfinite()
    allowed = error_bound(expected, got.dtype, problem.precision(name, shape))
    error = (wide - value).abs()
    overflow = wide.isinf() & (value.abs() + allowed >= torch.finfo(got.dtype).max)
    error = torch.where(overflow, 0.0, torch.where(error.isnan(), math.inf, error))
    share = torch.where(judged, torch.where(error > 0, error / allowed, 0.0), 0.0).flatten()
    at = int(share.argmax())
    if (ratio := float(share[at])) > 1:
        right, seen = float(value.flatten()[at]), float(wide.flatten()[at])
        what = f"{name}[{at}] is {seen:.6g}, right is {right:.6g}: {ratio:.3g} times the bound"
        return Difference(ratio, what)
    narrow = value.to(eager.dtype)
    agreed = ~judged & (_class(narrow) == _class(eager)) & (_class(got) != _class(eager))
    if bool(agreed.any()):
        at = int(agreed.flatten().to(torch.uint8).argmax())
        right, seen = float(narrow.flatten()[at]), float(wide.flatten()[at])
        return Difference(math.inf, f"{name}[{at}] is {seen:.6g}, right is {right:.6g}")
    return None


def _class(value: Tensor) -> Tensor:
    """0 finite, 1 NaN, 2 +Inf, 3 -Inf."""
    value = value.double()
    return value.isnan() * 1 + value.isposinf() * 2 + value.isneginf() * 3
