"""The records of problem.yaml: signature, legal domain and contract (docs/problems.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import model_validator

from atrex import strict_yaml
from atrex.fp8 import FP8
from atrex.records import InitValue, Record

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8": FP8,  # e4m3 in the variant of this platform
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
}
CASE_DTYPE = "case"  # a tensor whose dtype each case names

LayoutKind = Literal[
    "contiguous",
    "row_stride",
    "odd_row_stride",
    "inner_stride",  # of three axes and more: the last stays packed, what lies above it is apart
    "far_rows",  # so far apart that the last of them lie beyond 2^31 elements
    "offset",
    "transposed",
    "expanded",
    "strided",
]
Axis = str | int  # the name of a dimension, or a fixed extent


class InitSpec(Record):
    """A constructor argument of `Model`."""

    type: Literal["float", "int", "bool", "str", "list"]
    default: InitValue = None
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()
    dim: str | None = None  # always the extent of this dimension


class DimSpec(Record):
    """The legal range of one dimension.

    `enough`: so many stand for more in shapes that stand for a bucket (places of a pool, most of them idle).
    """

    min: int
    max: int
    multiple_of: int = 1
    enough: int | None = None

    def legal(self, extent: int) -> bool:
        """Whether a dimension may have this extent."""
        return self.min <= extent <= self.max and extent % self.multiple_of == 0


class IndexDomain(Record):
    """Legal values of an integer input: 0 up to the extent of `below`, and a few others."""

    below: Axis
    also: tuple[int, ...] = ()
    distinct: bool = False  # no legal value but those of `also` occurs twice


class InputTensor(Record):
    """A tensor argument of `Model.forward`.

    data: differs from call to call. parameter: constant between steps of a model. index: integers of a
    domain. lengths: integers that say how a packed dimension is divided, such as prefix sums.
    """

    shape: tuple[Axis, ...]
    dtype: str
    role: Literal["data", "parameter", "index", "lengths"]
    index: IndexDomain | None = None
    optional: bool = False  # may be absent (None) where the case does not ask for it
    pool: bool = False  # rows of any stride that indices pick, out of 2^31 elements and more

    @model_validator(mode="after")
    def _index_has_a_domain(self) -> Self:
        if (self.role == "index") != (self.index is not None):
            raise ValueError("an index input, and no other, states the domain of its values under `index`")
        return self


Family = Literal[
    "elementwise",
    "reduction",
    "gemm",
    "attention",
    "moe",
    "routing",
    "quantisation",
    "scan",
    "scatter",
]  # what the calibration of the gates is reported by


class OutputTensor(Record):
    """A tensor that `Model.forward` returns; what it does not say of its errors is the contract's.

    exact: equal to the oracle, bit for bit. checked: right if the reference module's `check` says so (where
    several answers are right, as with ties). bounded: the leading extent depends on values; `shape` gives the
    most it can be.
    """

    shape: tuple[Axis, ...]
    dtype: str
    compare: Literal["bound", "exact", "checked"] = "bound"
    bounded: bool = False
    accumulator: Literal["fp32", "fp64"] | None = None
    reduced: str | None = None
    rounding_steps: int | None = None


class LayoutContract(Record):
    """Layouts of the inputs that must work, and those that a candidate may refuse clearly."""

    exact: bool = False  # bit-equal to the contiguous run; otherwise within the error bound of it
    must: tuple[LayoutKind, ...] = ()
    may_refuse: tuple[LayoutKind, ...] = ()


class RowPermutation(Record):
    """Permuting the rows of all inputs that have them permutes the rows of all such outputs, bit for bit."""

    kind: Literal["row_permutation"]


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
    signed_zeros: bool = True  # whether the sign of a zero is part of the function
    updates: dict[str, str] = {}  # input that may be updated in place -> output that may alias it
    layouts: LayoutContract = LayoutContract()
    may_be_unsupported: tuple[str, ...] = ()
    library_calls: tuple[str, ...] = ()  # operations of a library that a candidate may leave to it: aten::mm
    gradients: tuple[str, ...] = ()  # inputs by which the operator can be differentiated
    relations: tuple[RowPermutation | PowerOfTwo, ...] = ()


class ProblemSpec(Record):
    """The whole of problem.yaml."""

    schema_version: Literal[1]
    operator: str
    family: Family | None = None  # None: of a kernel from elsewhere, unknown
    aliases: tuple[str, ...] = ()
    summary: str
    init: dict[str, InitSpec] = {}
    dims: dict[str, DimSpec]  # that a shape chooses freely; others follow from them (`derive`)
    derived: tuple[str, ...] = ()
    lengths: dict[str, DimSpec] = {}  # lists of extents, such as the lengths of sequences
    case_dtypes: tuple[str, ...] = ()  # what a dtype of "case" may be; the first is the default
    rows: str | None = None  # the dimension along which slices are computed on their own
    inputs: dict[str, InputTensor]
    outputs: dict[str, OutputTensor]
    returns: Literal["tensor", "dict", "tuple"]
    contract: Contract
    buckets: dict[str, tuple[int, ...]] = {}
    # Where cost differs from Atrex-Bench's published W and Q on purpose: the reason, by figure.
    differences: dict[Literal["flops", "read_bytes", "write_bytes"], str] = {}

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        known = {*self.dims, *self.derived}
        tensors: dict[str, InputTensor | OutputTensor] = {**self.inputs, **self.outputs}
        for name, tensor in tensors.items():
            if unknown := [axis for axis in tensor.shape if isinstance(axis, str) and axis not in known]:
                raise ValueError(f"{name} has the unknown dimension {unknown[0]!r}")
            if tensor.dtype not in DTYPES and not (tensor.dtype == CASE_DTYPE and self.case_dtypes):
                raise ValueError(f"{name} has the unknown dtype {tensor.dtype!r}")
        named = {self.rows, self.contract.reduced, *(out.reduced for out in self.outputs.values())}
        named |= {init.dim for init in self.init.values()} | set(self.buckets)
        if unknown := sorted(str(dim) for dim in named - {None} - known):
            raise ValueError(f"the dimension {unknown[0]!r} is neither under dims nor under derived")
        inputs = {*self.contract.specials, *self.contract.updates, *self.contract.gradients}
        if unknown := sorted(inputs - set(self.inputs)):
            raise ValueError(f"the contract names the unknown input {unknown[0]!r}")
        if unknown := sorted(set(self.contract.updates.values()) - set(self.outputs)):
            raise ValueError(f"the contract names the unknown output {unknown[0]!r}")
        return self


def parse_spec(path: Path) -> ProblemSpec:
    """Read and validate one problem.yaml. Raises UsageError naming the file, the field and the remedy."""
    return strict_yaml.read(path, ProblemSpec.model_validate)
