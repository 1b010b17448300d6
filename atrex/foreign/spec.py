"""The records of a foreign problem: what is inferred from a reference, printed, edited and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import model_validator

from atrex import strict_yaml
from atrex.contract import ProblemSpec
from atrex.errors import UsageError
from atrex.foreign.recipe import Recipe
from atrex.records import Record

CALL = "call"  # the constructor argument by which a shape says which of the reference's calls it is
REDUCTION = "reduction"  # the derived dimension that stands for the length of the longest sum


class Entry(Record):
    """How to call what a foreign file defines.

    model: a class, constructed with `init` and `keywords` after seeding (parameters follow from the seed),
    then called as it is: in training mode, unless it says otherwise, as KernelBench does. function: a
    function. arrays: a function of one dict of NumPy arrays that returns one.
    """

    kind: Literal["model", "function", "arrays"]
    name: str
    init: tuple[Any, ...] = ()  # see atrex.foreign.literal
    keywords: dict[str, Any] = {}
    seed: int = 42


class Call(Record):
    """One call of the reference: its arguments, the extents it has, and how its tensors are drawn again."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    dims: dict[str, int]
    derived: dict[str, int] = {}
    recipes: dict[str, Recipe]

    @property
    def redrawn(self) -> bool:
        """Whether any input differs from seed to seed."""
        return any(recipe.redrawn for recipe in self.recipes.values())


class Unjudged(Record):
    """A gate that cannot be judged for this problem, and why: its verdict in place of the gate's."""

    status: Literal["UNSUPPORTED", "INCONCLUSIVE"]
    reason: str


class ForeignProblem(Record):
    """A problem made from a reference: plain data, all that a candidate's worker gets to know of it."""

    schema_version: Literal[1] = 1
    problem: ProblemSpec
    entry: Entry  # of the candidate
    calls: tuple[Call, ...]
    vary: tuple[str, ...] = ()  # dimensions that may have any legal extent
    shapes: tuple[dict[str, int], ...] = ()  # further extents to judge at, by dimension
    magnitudes: bool = False  # error terms are the function of absolute values; otherwise by scale
    unjudged: dict[str, Unjudged] = {}
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        spec = self.problem
        if not self.calls:
            raise ValueError("a problem needs at least one call")
        for number, call in enumerate(self.calls):
            if set(call.recipes) != set(spec.inputs):
                raise ValueError(f"calls.{number}.recipes are not those of the inputs")
            if missing := set(spec.dims) - set(call.dims):
                raise ValueError(f"calls.{number}.dims lacks {sorted(missing)[0]!r}")
        if unknown := sorted(set(self.vary) - set(spec.dims)):
            raise ValueError(f"vary names the unknown dimension {unknown[0]!r}")
        fixed = {
            d
            for c in self.calls
            for n, r in c.recipes.items()
            if not r.any_shape
            for d in spec.inputs[n].shape
        }
        if stuck := sorted(set(self.vary) & {str(dim) for dim in fixed}):
            raise ValueError(f"{stuck[0]!r} cannot vary: an input with it is drawn from an example")
        for number, shape in enumerate(self.shapes):
            if set(shape) != set(spec.dims):
                raise ValueError(f"shapes.{number} must name the dimensions {', '.join(spec.dims)}")
        return self


def to_yaml(problem: ForeignProblem) -> str:
    """The contract as a person reads and edits it; values that are the default are left out."""
    plain = problem.model_dump(mode="json", exclude_defaults=True)
    plain = {"schema_version": 1, **plain}
    plain["problem"] = {"schema_version": 1, **plain["problem"]}
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110))


def from_yaml(path: Path) -> ForeignProblem:
    """An edited contract. Raises UsageError naming the file, the field and what is wrong."""
    problem = strict_yaml.read(path, lambda data: ForeignProblem.model_validate_json(json.dumps(data)))
    from atrex.gates import GATE_NAMES  # a worker, which imports this module too, has no need of them

    if unknown := sorted(set(problem.unjudged) - set(GATE_NAMES)):
        raise UsageError(f"{path}: unjudged names the unknown gate {unknown[0]!r}")
    if problem.problem.contract.gradients:
        raise UsageError(f"{path}: gradients are not judged for a reference: remove contract.gradients")
    return problem
