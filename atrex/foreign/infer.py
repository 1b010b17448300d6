"""A contract from a reference's example calls: what the calls have in common, and what a look at it shows."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from atrex.contract import (
    DTYPES,
    Contract,
    DimSpec,
    IndexDomain,
    InitSpec,
    InputTensor,
    LayoutContract,
    LayoutKind,
    OutputTensor,
    ProblemSpec,
)
from atrex.foreign.client import Referee, UnusableReference
from atrex.foreign.literal import pattern
from atrex.foreign.messages import CallInfo
from atrex.foreign.module import make_problem
from atrex.foreign.recipe import Recipe
from atrex.foreign.spec import CALL, REDUCTION, Call, Entry, ForeignProblem, Unjudged
from atrex.gates.comparators import bit_mismatch
from atrex.gates.context import Undecided
from atrex.inputs import draw_values
from atrex.problem import Problem
from atrex.protocol import InputSpec

_NAMES = {str(dtype).removeprefix("torch."): name for name, dtype in DTYPES.items()}
_LAYOUTS: tuple[LayoutKind, ...] = (
    "row_stride",
    "odd_row_stride",
    "inner_stride",
    "offset",
    "transposed",
    "expanded",
    "strided",
)
_MAX_EXTENT = 1 << 24


def infer(referee: Referee, operator: str, entry: Entry, summary: str = "") -> list[ForeignProblem]:
    """One problem for each group of example calls that take and return tensors of the same kinds.

    Raises UnusableReference where no problem can be made at all.
    """
    description = referee.describe()
    groups: dict[str, list[CallInfo]] = {}
    notes = [f"left out: {reason}" for reason in description.skipped]
    for call in description.calls:
        if reason := _unsupported(call):
            notes.append(f"left out: {reason}")
            continue
        groups.setdefault(_kind(call), []).append(call)
    if not groups:
        raise UnusableReference("; ".join(dict.fromkeys(notes)) or "the reference has no example call")
    problems = []
    for number, calls in enumerate(groups.values()):
        name = operator if len(groups) == 1 else f"{operator}.{number}"
        problems.append(
            _with_fitting_recipes(referee, name, entry, calls, tuple(dict.fromkeys(notes)), summary)
        )
    return problems


def operator_name(title: str, text: str) -> str:
    """A name that no other reference has."""
    plain = re.sub(r"\W+", "_", title).strip("_")[-80:] or "reference"
    return f"foreign.{plain}.{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _unsupported(call: CallInfo) -> str:
    """Why a call cannot be judged at all; empty if it can."""
    for name, tensor in {**call.tensors, **call.outputs}.items():
        if tensor.dtype not in _NAMES:
            return f"{name} is {tensor.dtype}, which a contract cannot state"
    if not call.tensors:
        return "a call without tensors"
    if call.random:
        return "the reference's result differs from call to call: there is nothing to compare with"
    if unseen := set(call.changed) - set(call.aliases):
        return f"the reference writes to its input {sorted(unseen)[0]} without returning it"
    return ""


def _kind(call: CallInfo) -> str:
    tensors = [(n, t.dtype, len(t.shape)) for n, t in call.tensors.items()]
    outputs = [(n, t.dtype, len(t.shape)) for n, t in call.outputs.items()]
    where = [pattern(node) for node in call.args], {n: pattern(node) for n, node in call.kwargs.items()}
    places = [where[0], {n: p for n, p in where[1].items() if p is not None}]
    return json.dumps([tensors, outputs, places, call.returns, sorted(call.aliases)])


def _with_fitting_recipes(
    referee: Referee,
    operator: str,
    entry: Entry,
    calls: Sequence[CallInfo],
    notes: tuple[str, ...],
    summary: str,
) -> ForeignProblem:
    """The freest recipes under which the reference still works: drawn, scaled examples, the examples."""
    depth = max(len(tensor.recipes) for call in calls for tensor in call.tensors.values())
    objections = list[str]()
    for level in range(depth):
        problem = _problem(operator, entry, calls, level, notes, summary)
        try:
            why = _objection(referee, problem)
        except Undecided as undecided:
            why = undecided.reason
        if why:
            objections.append(why)
            continue
        if objections:
            kept = "scaled" if level == 1 else "kept as they are"
            note = f"example inputs are {kept}: {objections[0]}"
            problem = problem.model_copy(update={"notes": (*problem.notes, note)})
        return _judgeable(referee, problem)
    raise UnusableReference(f"its example inputs cannot be drawn again: {objections[-1]}")


def _problem(
    operator: str,
    entry: Entry,
    calls: Sequence[CallInfo],
    level: int,
    notes: tuple[str, ...],
    summary: str,
) -> ForeignProblem:
    axes = _Axes(calls)
    first = calls[0]
    inputs = {name: _input(name, calls, level, axes) for name in first.tensors}
    outputs = {name: _output(name, calls, axes) for name in first.outputs}
    pointwise = all(_elementwise(call) for call in calls)
    floating = tuple(n for n, t in inputs.items() if DTYPES[t.dtype].is_floating_point)
    magnitudes = all(call.linear and not call.narrow for call in calls)
    unjudged = _unjudged(calls, magnitudes=magnitudes, pointwise=pointwise and bool(floating))
    compute = max(call.compute for call in calls)
    spec = ProblemSpec(
        schema_version=1,
        operator=operator,
        summary=summary or f"inferred from {len(calls)} example call{'s' * (len(calls) > 1)}",
        init={CALL: InitSpec(type="str", default="0")},
        dims={
            name: DimSpec(min=1 if low else 0, max=max(high, 1))
            for name, (low, high) in axes.ranges().items()
        },
        derived=(*axes.derived, REDUCTION),
        inputs=inputs,
        outputs=outputs,
        returns=first.returns,
        contract=Contract(
            accumulator="fp64" if any(t.dtype == "fp64" for t in outputs.values()) else "fp32",
            reduced=REDUCTION,
            rounding_steps=8 + 4 * max(compute, 1),
            specials=floating if pointwise else (),
            signed_zeros=False,  # max(-0, 0) may be either, and nobody has said which
            updates=first.aliases,
            layouts=LayoutContract(exact=False, must=(), may_refuse=_layouts(calls, level)),
            may_be_unsupported=tuple(g for g, why in unjudged.items() if why.status == "UNSUPPORTED"),
        ),
    )
    made = tuple(
        Call(
            args=call.args,
            kwargs=call.kwargs,
            dims=axes.extents(i),
            derived={**axes.derived_extents(i), REDUCTION: _reduction(call)},
            recipes={name: _recipe(call, name, level) for name in inputs},
        )
        for i, call in enumerate(calls)
    )
    return ForeignProblem(
        problem=spec, entry=entry, calls=made, magnitudes=magnitudes, unjudged=unjudged, notes=notes
    )


def _unjudged(calls: Sequence[CallInfo], *, magnitudes: bool, pointwise: bool) -> dict[str, Unjudged]:
    """Gates that would find nothing because there is nothing to look at: they say so instead of passing."""
    unjudged: dict[str, Unjudged] = {
        "shapes": Unjudged(status="UNSUPPORTED", reason="the contract lets no dimension vary")
    }
    if narrow := next((call.narrow for call in calls if call.narrow), ""):
        reason = f"the reference does not run in fp64: {narrow}"
        for gate in ("sensitivity", "accumulation", "accuracy", "shapes"):
            unjudged[gate] = Unjudged(status="INCONCLUSIVE", reason=reason)
    elif not magnitudes:
        reason = "no directed sums are known for this function"
        unjudged["accumulation"] = Unjudged(status="UNSUPPORTED", reason=reason)
    if not pointwise:
        reason = "not seen to be elementwise: how special values travel is not known"
        unjudged["specials"] = Unjudged(status="UNSUPPORTED", reason=reason)
    return unjudged


def _layouts(calls: Sequence[CallInfo], level: int) -> tuple[LayoutKind, ...]:
    """All, except equal rows where an input keeps a structure that equal rows would not have."""
    recipes = [_recipe(call, name, level) for call in calls for name in call.tensors]
    plain = all(recipe.any_shape for recipe in recipes)
    return _LAYOUTS if plain else tuple(kind for kind in _LAYOUTS if kind != "expanded")


def _elementwise(call: CallInfo) -> bool:
    shapes = {tensor.shape for tensor in (*call.tensors.values(), *call.outputs.values())}
    return call.pointwise and len(shapes) == 1


def _reduction(call: CallInfo) -> int:
    largest = max((extent for tensor in call.tensors.values() for extent in tensor.shape), default=1)
    return max(1, call.reduced if call.compute else largest)


def _recipe(call: CallInfo, name: str, level: int) -> Recipe:
    recipes = call.tensors[name].recipes
    return recipes[min(level, len(recipes) - 1)]


class _Axes:
    """Names for extents: axes that have the same extent in every call share one."""

    def __init__(self, calls: Sequence[CallInfo]) -> None:
        self.calls = calls
        self.names: dict[tuple[int, ...], str] = {}
        self.derived: dict[str, tuple[int, ...]] = {}
        for name, tensor in calls[0].tensors.items():
            for axis in range(len(tensor.shape)):
                key = tuple(call.tensors[name].shape[axis] for call in calls)
                self.names.setdefault(key, f"{name}_{axis}")

    def ranges(self) -> dict[str, tuple[int, int]]:
        """The least and the largest extent of each dimension."""
        return {name: (min(key), max(key)) for key, name in self.names.items()}

    def extents(self, call: int) -> dict[str, int]:
        """The extents of one call."""
        return {name: key[call] for key, name in self.names.items()}

    def derived_extents(self, call: int) -> dict[str, int]:
        """The extents of one call that only outputs have."""
        return {name: key[call] for name, key in self.derived.items()}

    def of_input(self, name: str) -> tuple[str, ...]:
        """The axes of an input."""
        ndim = len(self.calls[0].tensors[name].shape)
        return tuple(
            self.names[tuple(c.tensors[name].shape[axis] for c in self.calls)] for axis in range(ndim)
        )

    def of_output(self, name: str) -> tuple[str | int, ...]:
        """The axes of an output: an input's, a constant, or a dimension of its own."""
        axes = list[str | int]()
        for axis in range(len(self.calls[0].outputs[name].shape)):
            key = tuple(call.outputs[name].shape[axis] for call in self.calls)
            if key in self.names:
                axes.append(self.names[key])
            elif len(set(key)) == 1:
                axes.append(key[0])
            else:
                self.derived[f"{name}_{axis}"] = key
                axes.append(f"{name}_{axis}")
        return tuple(axes)


def _input(name: str, calls: Sequence[CallInfo], level: int, axes: _Axes) -> InputTensor:
    tensor = calls[0].tensors[name]
    dtype = _NAMES[tensor.dtype]
    if not DTYPES[dtype].is_floating_point:
        recipes = [_recipe(call, name, level) for call in calls]
        largest = max(_largest(recipe) for recipe in recipes)
        least = min(int(recipe.low) for recipe in recipes)
        domain = IndexDomain(below=largest + 1, also=tuple(range(max(least, -64), 0)))
        return InputTensor(shape=axes.of_input(name), dtype=dtype, role="index", index=domain)
    widest = max(len(t.shape) for t in calls[0].tensors.values())
    # What keeps a structure is no place for the gates' own changes: rows of "data" are negated.
    structured = any(not _recipe(call, name, level).any_shape for call in calls)
    parameter = structured or not tensor.shape or (len(tensor.shape) == 1 and widest > 1)
    return InputTensor(shape=axes.of_input(name), dtype=dtype, role="parameter" if parameter else "data")


def _largest(recipe: Recipe) -> int:
    if recipe.data:
        example = recipe.example()
        return int(example.max()) if example.numel() else 0
    return max(recipe.shape, default=1) - 1 if recipe.kind == "permutation" else int(recipe.high)


def _output(name: str, calls: Sequence[CallInfo], axes: _Axes) -> OutputTensor:
    dtype = _NAMES[calls[0].outputs[name].dtype]
    exact = not DTYPES[dtype].is_floating_point
    return OutputTensor(shape=axes.of_output(name), dtype=dtype, compare="exact" if exact else "bound")


def _objection(referee: Referee, problem: ForeignProblem) -> str:
    """What is wrong with the redrawn inputs: the reference makes NaN of them where it made none before."""
    made = make_problem(problem, referee)
    for number in range(len(problem.calls)):
        outputs = _outputs(made, number, seed=1)
        for name, value in outputs.items():
            if value.is_floating_point() and value.numel() and bool(value.isnan().all()):
                return f"{name} is NaN on redrawn inputs"
            declared = made.spec.outputs[name]
            wanted = made.tensor_shape(declared, _shape(made, number))
            if tuple(value.shape) != wanted:
                return f"{name} is {list(value.shape)} on redrawn inputs, {list(wanted)} on the example"
    return ""


def _judgeable(referee: Referee, problem: ForeignProblem) -> ForeignProblem:
    """What another seed shows: a function whose result does not change cannot show a memory between calls."""
    made = make_problem(problem, referee)
    for number in range(len(problem.calls)):
        one, two = _outputs(made, number, seed=1), _outputs(made, number, seed=2)
        same = all(bit_mismatch(one[name], two[name]) is None for name in one)
        if same and sum(value.numel() for value in one.values()) > 8:
            reason = "other inputs of the same kind give the same result"
            unjudged = problem.unjudged | {"purity": Unjudged(status="INCONCLUSIVE", reason=reason)}
            return problem.model_copy(update={"unjudged": unjudged})
    return problem


def _shape(problem: Problem, number: int) -> Any:
    return problem.shape(problem.module.cases()[number])


def _outputs(problem: Problem, number: int, seed: int) -> dict[str, Tensor]:
    shape = _shape(problem, number)
    device = torch.device(problem.module.referee.engine.device)
    inputs = draw_values(problem, InputSpec(shape=shape, seed=seed), device)
    outputs: dict[str, Tensor] = problem.module.referee.evaluate(
        problem.module.problem.calls[number].args,
        problem.module.problem.calls[number].kwargs,
        inputs,
        ("eager",),
        problem.module.room(inputs),
    )["eager"]
    return outputs
