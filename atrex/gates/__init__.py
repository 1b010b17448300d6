"""The twelve gates, cheapest first. Each module holds one property; `docs/gates.md` explains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atrex.gates import (
    accumulation,
    accuracy,
    authenticity,
    bounds,
    determinism,
    full_write,
    gradients,
    interface,
    layouts,
    purity,
    sensitivity,
    shapes,
    specials,
)
from atrex.gates.context import GateContext
from atrex.problem import Problem


@dataclass(frozen=True, slots=True)
class Gate:
    """A property, and the procedure that looks for a violation of it.

    `run` returns if it finds none, and raises Rejection or Undecided otherwise.
    """

    name: str
    property: str
    tolerance_free: bool
    run: Callable[[GateContext], None]


GATES: tuple[Gate, ...] = (
    Gate("interface", "exactly the declared structure", True, interface.run),
    Gate("authenticity", "the candidate's own kernel does the work", True, authenticity.run),
    Gate("full_write", "every output element is written, nothing stale is read", True, full_write.run),
    Gate("purity", "inputs untouched, no memory between calls", True, purity.run),
    Gate("sensitivity", "every input matters, at every scale", False, sensitivity.run),
    Gate("accumulation", "the declared precision is kept", False, accumulation.run),
    Gate("specials", "NaN, infinities, signed zeros and subnormals travel", True, specials.run),
    Gate("layouts", "strides, offsets, transposes, expansions", False, layouts.run),
    Gate("determinism", "same bits every run", True, determinism.run),
    Gate("bounds", "no access outside the tensors", True, bounds.run),
    Gate("accuracy", "close to the fp64 oracle on production cases", False, accuracy.run),
    Gate("shapes", "right off the production grid", False, shapes.run),
)
GATE_NAMES = tuple(gate.name for gate in GATES)
GRADIENTS = Gate("gradients", "each gradient right, linear in what comes from above", False, gradients.run)


def gates_for(problem: Problem) -> tuple[Gate, ...]:
    """The twelve, and a thirteenth where the operator can be differentiated."""
    return (*GATES, GRADIENTS) if problem.contract.gradients else GATES
