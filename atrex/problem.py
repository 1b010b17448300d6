"""A problem: what an operator must compute, over which inputs, under which contract.

`bench/<operator>/problem.yaml` states it and `bench/<operator>/reference.py` computes it; docs/problems.md
explains both. The judge and the worker load the same problem and draw the same inputs from the same seed.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from atrex.contract import CASE_DTYPE, DTYPES, Contract, InputTensor, OutputTensor, ProblemSpec, parse_spec
from atrex.errors import UsageError
from atrex.records import Case, Cost, InitValue, Shape, Status

BENCH = Path(__file__).resolve().parent.parent / "bench"

LAMBDA = 6.0  # 2 exp(-18): below 1e-7 per element, and real errors are far from the bound
UNIT_ROUNDOFF = {"fp32": 2.0**-24, "fp64": 2.0**-53}

Init = Mapping[str, Any]  # constructor arguments by name
Input = Mapping[str, Any]  # what a workload states of a case: extents, lists of lengths, a dtype


@dataclass(frozen=True, slots=True)
class Expected:
    """An fp64 result with, per element, what its error bound is made of.

    `terms` is the sum of magnitudes that rounding errors of the declared accumulator grow from. `slack` is a
    further absolute allowance, for roundings to a narrower dtype that the contract names within the function:
    such an intermediate value may round either way.
    """

    value: Tensor
    terms: Tensor
    slack: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Precision:
    """What an output's error bound depends on besides its values: see atrex.gates.comparators."""

    accumulator: str
    reduced: int  # length of the sum
    rounding_steps: int

    @property
    def units(self) -> float:
        """Relative error of such a sum and the roundings beside it, in units of roundoff."""
        return min(self.reduced, LAMBDA * math.sqrt(self.reduced)) + self.rounding_steps

    @property
    def growth(self) -> float:
        """The same as a number: the factor of `terms` in the bound."""
        return UNIT_ROUNDOFF[self.accumulator] * self.units


@dataclass(frozen=True, slots=True)
class Draw:
    """One seeded draw of inputs: the same seed gives the same bits on the same kind of device."""

    shape: Shape
    generator: torch.Generator
    device: torch.device

    @property
    def init(self) -> Init:
        """Constructor arguments of the candidate."""
        return self.shape.init

    @property
    def dims(self) -> Mapping[str, int]:
        """Extents by name, derived ones included."""
        return self.shape.dims

    @property
    def lengths(self) -> Mapping[str, tuple[int, ...]]:
        """Lists of extents by name."""
        return self.shape.lengths

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of tensors whose dtype each case names."""
        return DTYPES[self.shape.dtype]

    def normal(self, shape: Sequence[int], std: float, dtype: torch.dtype) -> Tensor:
        """N(0, std) drawn in `dtype`."""
        empty = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        return empty.normal_(0.0, std, generator=self.generator)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """U[0, 1) in fp32."""
        empty = torch.empty(tuple(shape), dtype=torch.float32, device=self.device)
        return empty.uniform_(0.0, 1.0, generator=self.generator)

    def integers(self, shape: Sequence[int], below: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Uniform integers in [0, below)."""
        empty = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        return empty.random_(0, max(1, below), generator=self.generator)

    def permutation(self, count: int) -> Tensor:
        """A random order of [0, count), int64."""
        return torch.randperm(count, generator=self.generator, device=self.device)


Source = Callable[[Draw], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Problem:
    """An operator's specification together with its reference module (docs/problems.md)."""

    spec: ProblemSpec
    module: Any

    @property
    def operator(self) -> str:
        """The canonical operator name."""
        return self.spec.operator

    @property
    def contract(self) -> Contract:
        """What a candidate promises beyond the formula."""
        return self.spec.contract

    @property
    def argument(self) -> str:
        """How a command line names this problem."""
        return str(getattr(self.module, "ARGUMENT", "") or f"--op {self.operator}")

    @property
    def foreign(self) -> dict[str, Any] | None:
        """What a worker needs to draw this problem's inputs; None for an operator, which it knows."""
        return cast("dict[str, Any] | None", getattr(self.module, "PAYLOAD", None))

    @property
    def unjudged(self) -> Mapping[str, tuple[Status, str]]:
        """Gates that cannot be judged for this problem: their verdict and its reason."""
        return cast(Mapping[str, tuple[Status, str]], getattr(self.module, "UNJUDGED", {}))

    @property
    def probes(self) -> Mapping[str, Mapping[str, Source]]:
        """Directed inputs by the gate that uses them and by name."""
        return cast(Mapping[str, Mapping[str, Source]], getattr(self.module, "PROBES", {}))

    def source(self, name: str) -> Source:
        """The input generator called `name`: "production", or a probe. Raises KeyError."""
        if name == "production":
            return cast(Source, self.module.make_inputs)
        for probes in self.probes.values():
            if name in probes:
                return probes[name]
        raise KeyError(name)

    def full(self, shape: Shape) -> Shape:
        """The shape with every constructor argument, defaults included: what the module's functions see."""
        return shape.model_copy(update={"init": {**self._defaults(), **shape.init}})

    def reference(self, shape: Shape, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Eager PyTorch in the production dtypes."""
        return cast(dict[str, Tensor], self.module.reference(self.full(shape).init, inputs))

    def oracle(self, shape: Shape, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
        """The result in fp64, with what its error bound is made of."""
        return cast(dict[str, Expected], self.module.oracle(self.full(shape).init, inputs))

    def following(
        self, shape: Shape, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Expected]]:
        """Reference and oracle; a recurrence of roundings goes from what a candidate's outputs say of it."""
        follow = getattr(self.module, "follow", None)
        if follow is None:
            return self.reference(shape, inputs), self.oracle(shape, inputs)
        return cast(
            tuple[dict[str, Tensor], dict[str, Expected]], follow(self.full(shape).init, inputs, outputs)
        )

    def smooth(self, shape: Shape, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The formula as differentiable PyTorch in the dtype of its inputs, where there are gradients."""
        module = importlib.import_module(f"bench.{self.operator}.smooth")
        return cast(dict[str, Tensor], module.smooth(self.full(shape).init, inputs))

    def cost(self, shape: Shape) -> Cost:
        """Semantic work and the fewest bytes that must move."""
        return cast(Cost, self.module.cost(self.full(shape)))

    # -- shapes --------------------------------------------------------------------------------

    def shape(self, case: Case) -> Shape:
        """The shape of a production case."""
        return self.shape_of(case.init, case.input)

    def with_dims(self, case: Case) -> Case:
        """The case with all extents of its shape: some cases state lengths or a whole shape instead."""
        return case.model_copy(update={"input": {**self.shape(case).dims, **case.input}})

    def shape_of(self, init: Init, input: Input) -> Shape:
        """A shape from what a workload states: constructor arguments, extents, lists of lengths, a dtype.

        Raises ValueError, TypeError or KeyError where that is not enough.
        """
        stated = {**input}
        if convert := getattr(self.module, "extents", None):
            stated = convert({**self._defaults(), **init}, input)
        lengths = {name: expand(stated[name]) for name in self.spec.lengths}
        for name in self.spec.dims:
            if type(stated.get(name)) is not int:
                raise ValueError(f"{name} is {stated.get(name)!r}, not an integer")
        dims = {name: stated[name] for name in self.spec.dims}
        dtype = str(stated.get("dtype") or next(iter(self.spec.case_dtypes), ""))
        return self._complete(Shape(init=dict(init), dims=dims, lengths=lengths, dtype=dtype))

    def resize(self, shape: Shape, **dims: int) -> Shape:
        """The shape with other extents of free dimensions; what follows from them follows."""
        free = {name: shape.dims[name] for name in self.spec.dims}
        return self._complete(shape.model_copy(update={"dims": free | dims}))

    def with_init(self, shape: Shape, **init: InitValue) -> Shape:
        """The shape with other constructor arguments."""
        return self._complete(shape.model_copy(update={"init": {**shape.init, **init}}))

    def _complete(self, shape: Shape) -> Shape:
        """Derived extents, and constructor arguments that follow from extents."""
        dims = {name: shape.dims[name] for name in self.spec.dims}
        init = dict(shape.init)
        for name, spec in self.spec.init.items():
            if spec.dim in dims:
                init[name] = dims[str(spec.dim)]
        if derive := getattr(self.module, "derive", None):
            dims |= derive({**self._defaults(), **init}, dims, shape.lengths)
        return shape.model_copy(update={"init": init, "dims": dims})

    def _defaults(self) -> dict[str, InitValue]:
        return {name: spec.default for name, spec in self.spec.init.items()}

    def small(self, case: Case) -> Case:
        """A production case reduced to what a CPU computes in a moment; the same kind of shape."""
        if reduce := getattr(self.module, "small", None):
            init, input = reduce({**self._defaults(), **case.init}, case.input)
            return case.model_copy(update={"init": init, "input": input})
        return case

    def complaint(self, case: Case) -> str:
        """What is wrong with a case of this operator; empty if nothing is."""
        if unknown := set(case.init) - set(self.spec.init):
            return f"init {sorted(unknown)[0]} is unknown; known: {', '.join(self.spec.init)}"
        for name, limits in self.spec.init.items():
            value = case.init.get(name, limits.default)
            if isinstance(value, bool) and limits.type != "bool":
                return f"init {name} is {value}, legal is a value of type {limits.type}"
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and not _between(float(cast(float, value)), limits.min, limits.max):
                return f"init {name} is {value}; legal is {limits.min} to {limits.max}"
            if limits.choices and value not in limits.choices:
                return f"init {name} is {value!r}; legal is one of {', '.join(limits.choices)}"
        try:
            shape = self.shape(case)
        except (KeyError, TypeError, ValueError) as error:
            return f"input {error}"
        for name, legal in self.spec.dims.items():
            if not legal.legal(extent := shape.dims[name]):
                step = f" in steps of {legal.multiple_of}" if legal.multiple_of > 1 else ""
                return f"input {name} is {extent}; legal is {legal.min} to {legal.max}{step}"
        for name, legal in self.spec.lengths.items():
            if bad := [length for length in shape.lengths[name] if not legal.legal(length)]:
                return f"input {name} holds {bad[0]}; legal is {legal.min} to {legal.max}"
        if shape.dtype and shape.dtype not in self.spec.case_dtypes:
            return f"input dtype is {shape.dtype!r}; legal is one of {', '.join(self.spec.case_dtypes)}"
        return ""

    def tensor_shape(self, tensor: InputTensor | OutputTensor, shape: Shape) -> tuple[int, ...]:
        """The extents of a declared tensor."""
        return tuple(axis if isinstance(axis, int) else shape.dims[axis] for axis in tensor.shape)

    def tensor_dtype(self, tensor: InputTensor | OutputTensor, shape: Shape) -> torch.dtype:
        """The dtype of a declared tensor."""
        return DTYPES[shape.dtype if tensor.dtype == CASE_DTYPE else tensor.dtype]

    @property
    def tensors(self) -> tuple[InputTensor | OutputTensor, ...]:
        """All declared tensors."""
        return (*self.spec.inputs.values(), *self.spec.outputs.values())

    def nbytes(self, tensor: InputTensor | OutputTensor, shape: Shape) -> int:
        """Bytes of a declared tensor."""
        return math.prod(self.tensor_shape(tensor, shape)) * self.tensor_dtype(tensor, shape).itemsize

    def width(self, shape: Shape) -> int:
        """Elements of a row of the largest tensor that has rows."""
        sliced = [tensor for tensor in self.tensors if tensor.shape[:1] == (self.rows,)]
        return max([1, *(math.prod(self.tensor_shape(tensor, shape)[1:]) for tensor in sliced)])

    def fitting_rows(self, shape: Shape, rows: int, most: int) -> int:
        """So many rows, or as many as have `most` elements; one at least, unless none is wanted."""
        return max(1, min(rows, most // self.width(shape))) if rows else 0

    def precision(self, output: str, shape: Shape) -> Precision:
        """The declared precision of an output: its own, else the contract's."""
        own, contract = self.spec.outputs[output], self.contract
        reduced = own.reduced or contract.reduced
        steps = contract.rounding_steps if own.rounding_steps is None else own.rounding_steps
        length = max(1, shape.dims[reduced]) if reduced else 1
        return Precision(own.accumulator or contract.accumulator, length, steps)

    def elements(self, shape: Shape) -> int:
        """Elements of the largest declared tensor."""
        return max(math.prod(self.tensor_shape(tensor, shape)) for tensor in self.tensors)

    def odd(self) -> tuple[Shape, ...]:
        """Legal shapes off the production grid that the module names; none: `dims` may be swept freely."""
        return tuple(self.shape_of(init, input) for init, input in getattr(self.module, "ODD", ()))

    def paths(self) -> tuple[Shape, ...]:
        """Shapes, named by the module, of kinds that take a path of their own and that production lacks."""
        return tuple(self.shape_of(init, input) for init, input in getattr(self.module, "PATHS", ()))

    def check(self, shape: Shape, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> str:
        """What is wrong with outputs of which several answers are right; empty if nothing is."""
        return cast(str, self.module.check(self.full(shape).init, inputs, outputs))

    @property
    def rows(self) -> str | None:
        """The dimension along which slices are computed on their own, if there is one."""
        return self.spec.rows

    def row_inputs(self) -> tuple[str, ...]:
        """Inputs whose leading dimension is the row dimension."""
        return tuple(n for n, t in self.spec.inputs.items() if self.rows and t.shape[:1] == (self.rows,))

    def row_outputs(self) -> tuple[str, ...]:
        """Outputs whose leading dimension is the row dimension."""
        return tuple(n for n, t in self.spec.outputs.items() if self.rows and t.shape[:1] == (self.rows,))


def expand(lengths: Sequence[Any]) -> tuple[int, ...]:
    """A list of lengths, in which [length, repeat] stands for as many equal ones."""
    plain = list[int]()
    for entry in lengths:
        length, repeat = (entry, 1) if isinstance(entry, int) else entry
        plain += [int(length)] * int(repeat)
    return tuple(plain)


def operators() -> tuple[str, ...]:
    """Names of all operators that have a problem file."""
    return tuple(sorted(path.parent.name for path in BENCH.glob("*/problem.yaml")))


@cache
def load_problem(name: str) -> Problem:
    """The problem of an operator, by any of its spellings.

    Raises UsageError naming the near miss for an unknown name, or the file and field for a bad file.
    """
    operator = resolve_operator(name)
    return Problem(_load_spec(operator), importlib.import_module(f"bench.{operator}.reference"))


def resolve_operator(name: str) -> str:
    """Canonical operator name for `rms_norm`, `rmsnorm`, `RMS-Norm` … Raises UsageError."""
    known = {_plain(operator): operator for operator in operators()}
    for operator in operators():
        known |= {_plain(alias): operator for alias in _load_spec(operator).aliases}
    if (plain := _plain(name)) in known:
        return known[plain]
    near = get_close_matches(plain, known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]}?" if near else f"known: {', '.join(operators())}"
    raise UsageError(f"unknown operator {name!r}; {hint}")


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


@cache
def _load_spec(operator: str) -> ProblemSpec:
    return parse_spec(BENCH / operator / "problem.yaml")


def _between(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)
