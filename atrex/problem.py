"""A problem: what an operator must compute, over which inputs, under which contract.

`bench/<operator>/problem.yaml` states it and `bench/<operator>/reference.py` computes it. Both the
judge and the worker load the same problem and draw the same inputs from the same seed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
import yaml
from pydantic import ValidationError
from torch import Tensor

from atrex.errors import UsageError
from atrex.records import Case, Cost, Record, Scalar

BENCH = Path(__file__).resolve().parent.parent / "bench"

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
}

LayoutKind = Literal[
    "contiguous", "row_stride", "odd_row_stride", "offset", "transposed", "expanded", "strided"
]
Init = Mapping[str, Scalar]
Dims = Mapping[str, int]


class InitSpec(Record):
    """A constructor argument of `Model`."""

    type: Literal["float", "int", "bool", "str"]
    default: Scalar = None
    min: float | None = None
    max: float | None = None


class DimSpec(Record):
    """The legal range of one dimension."""

    min: int
    max: int


class InputTensor(Record):
    """A tensor argument of `Model.forward`; a parameter is constant between steps of a model."""

    shape: tuple[str, ...]
    dtype: str
    role: Literal["data", "parameter"]


class OutputTensor(Record):
    """A tensor that `Model.forward` returns."""

    shape: tuple[str, ...]
    dtype: str


class LayoutContract(Record):
    """Layouts of the inputs that must work, and those that a candidate may refuse clearly."""

    exact: bool = False  # bit-equal to the contiguous run; otherwise within the error bound of it
    must: tuple[LayoutKind, ...] = ()
    may_refuse: tuple[LayoutKind, ...] = ()


class RowPermutation(Record):
    """Permuting dimension 0 of `input` permutes dimension 0 of `output`, bit for bit."""

    kind: Literal["row_permutation"]
    input: str
    output: str


class PowerOfTwo(Record):
    """Inputs and init scaled by 2^(k * power) scale each output by 2^(k * power), bit for bit."""

    kind: Literal["power_of_two"]
    scale: dict[str, int]
    init: dict[str, int] = {}
    output: dict[str, int]
    exponents: tuple[int, ...]


class Contract(Record):
    """What beyond the formula a candidate promises."""

    accumulator: Literal["fp32", "fp64"]
    reduced: str | None = None
    rounding_steps: int
    deterministic: bool = True
    specials: tuple[str, ...] = ()
    layouts: LayoutContract = LayoutContract()
    may_be_unsupported: tuple[str, ...] = ()
    relations: tuple[RowPermutation | PowerOfTwo, ...] = ()


class ProblemSpec(Record):
    """The whole of problem.yaml."""

    schema_version: Literal[1]
    operator: str
    aliases: tuple[str, ...] = ()
    summary: str
    init: dict[str, InitSpec] = {}
    dims: dict[str, DimSpec]
    inputs: dict[str, InputTensor]
    outputs: dict[str, OutputTensor]
    returns: Literal["tensor", "dict", "tuple"]
    contract: Contract
    buckets: dict[str, tuple[int, ...]] = {}


@dataclass(frozen=True, slots=True)
class Expected:
    """An fp64 result and, per element, the sum of magnitudes that rounding errors grow from."""

    value: Tensor
    terms: Tensor


@dataclass(frozen=True, slots=True)
class Draw:
    """One seeded draw of inputs: the same seed gives the same bits on the same kind of device."""

    init: Init
    dims: Dims
    generator: torch.Generator
    device: torch.device

    def normal(self, shape: tuple[int, ...], std: float, dtype: torch.dtype) -> Tensor:
        """N(0, std) drawn in `dtype`."""
        empty = torch.empty(shape, dtype=dtype, device=self.device)
        return empty.normal_(0.0, std, generator=self.generator)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """U[0, 1) in fp32."""
        empty = torch.empty(shape, dtype=torch.float32, device=self.device)
        return empty.uniform_(0.0, 1.0, generator=self.generator)


Source = Callable[[Draw], dict[str, Tensor]]


class ReferenceModule(Protocol):
    """What `bench/<operator>/reference.py` provides."""

    PROBES: Mapping[str, Mapping[str, Source]]

    def make_inputs(self, draw: Draw) -> dict[str, Tensor]: ...
    def reference(self, init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
    def oracle(self, init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]: ...
    def cost(self, init: Init, dims: Dims) -> Cost: ...


@dataclass(frozen=True, slots=True)
class Problem:
    """An operator's specification together with its reference implementation."""

    spec: ProblemSpec
    module: ReferenceModule

    @property
    def operator(self) -> str:
        """The canonical operator name."""
        return self.spec.operator

    @property
    def contract(self) -> Contract:
        """What a candidate promises beyond the formula."""
        return self.spec.contract

    def source(self, name: str) -> Source:
        """The input generator called `name`: "production", or a probe. Raises KeyError."""
        if name == "production":
            return self.module.make_inputs
        for probes in self.module.PROBES.values():
            if name in probes:
                return probes[name]
        raise KeyError(name)

    def init(self, given: Init) -> dict[str, Scalar]:
        """Constructor arguments: those given over the defaults."""
        defaults = {name: spec.default for name, spec in self.spec.init.items()}
        return {**defaults, **given}

    def complaint(self, case: Case) -> str:
        """What is wrong with a case of this operator; empty if nothing is."""
        if unknown := set(case.init) - set(self.spec.init):
            return f"init {sorted(unknown)[0]} is unknown; known: {', '.join(self.spec.init)}"
        for name, limits in self.spec.init.items():
            value = case.init.get(name, limits.default)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and not _between(float(value or 0), limits.min, limits.max):
                return f"init {name} is {value}; legal is {limits.min} to {limits.max}"
        for name, legal in self.spec.dims.items():
            extent = case.input.get(name)
            if type(extent) is not int or not legal.min <= extent <= legal.max:
                return f"input {name} is {extent!r}; legal is an integer from {legal.min} to {legal.max}"
        return ""

    def dims(self, case: Case) -> dict[str, int]:
        """The dimensions of a production case."""
        return {name: int(case.input[name]) for name in self.spec.dims}

    def output_shape(self, name: str, dims: Dims) -> tuple[int, ...]:
        """The declared shape of an output for these dimensions."""
        return tuple(dims[dim] for dim in self.spec.outputs[name].shape)

    def output_dtype(self, name: str) -> torch.dtype:
        """The declared dtype of an output."""
        return DTYPES[self.spec.outputs[name].dtype]

    @property
    def row_independent(self) -> bool:
        """Rows of the first input are computed on their own, so a slice of rows can be judged alone."""
        return any(relation.kind == "row_permutation" for relation in self.contract.relations)


def operators() -> tuple[str, ...]:
    """Names of all operators that have a problem file."""
    return tuple(sorted(path.parent.name for path in BENCH.glob("*/problem.yaml")))


@cache
def load_problem(name: str) -> Problem:
    """The problem of an operator, by any of its spellings.

    Raises UsageError naming the near miss for an unknown name, or the file and field for a bad file.
    """
    operator = resolve_operator(name)
    spec = _load_spec(operator)
    module = importlib.import_module(f"bench.{operator}.reference")
    return Problem(spec, cast(ReferenceModule, module))


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


class _UniqueKeys(yaml.SafeLoader):
    """YAML whose mappings name each key once: PyYAML keeps the last of two without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            problem = f"the key {twice!r} stands twice"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_mapping(node, deep)


def parse_spec(path: Path) -> ProblemSpec:
    """Read and validate one problem.yaml. Raises UsageError naming the file, the field and the remedy."""
    try:
        data: Any = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
        return ProblemSpec.model_validate(data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {_one_line(error)}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(top level)"
        raise UsageError(f"{path}: field {field}: {first['msg']}") from None


def _between(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
