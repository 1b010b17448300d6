"""What the judge asks the process that runs a foreign reference, and what it answers: nothing but data."""

from __future__ import annotations

from typing import Any, Literal

from atrex.foreign.recipe import Recipe
from atrex.foreign.spec import Entry
from atrex.protocol import TensorReport
from atrex.records import Device, Record

Style = Literal["auto", "module", "function", "tested", "arrays"]
Mode = Literal["eager", "wide", "magnitudes"]


class Source(Record):
    """A reference: the text of its file, the modules beside it, and how to find example inputs.

    module: class Model, get_inputs, get_init_inputs. function: a function and get_inputs. tested: a function
    above a line of #, below which a test calls it. arrays: main() between read_inputs() and emit().
    """

    text: str
    name: str = ""  # the function's, where the file defines several
    style: Style = "auto"
    beside: dict[str, str] = {}  # modules that it imports, by name
    arrays: tuple[dict[str, tuple[int, ...]], ...] = ()  # style arrays: extents of the inputs, a call each
    dtype: str = "float32"  # style arrays


class Describe(Record):
    """First request: run the file, and describe every example call."""

    kind: Literal["describe"] = "describe"
    source: Source
    device: Device
    threads: int


class Evaluate(Record):
    """Call the reference on tensors in the second memory; its outputs go to the first."""

    kind: Literal["evaluate"] = "evaluate"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[TensorReport, ...]
    modes: tuple[Mode, ...]


class TensorInfo(Record):
    """One tensor of an example call; recipes from the freest to the one that keeps it as it is."""

    shape: tuple[int, ...]
    dtype: str
    recipes: tuple[Recipe, ...] = ()


class CallInfo(Record):
    """One example call, and what a look at it says of the function."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: dict[str, TensorInfo]
    returns: Literal["tensor", "tuple", "dict"]
    outputs: dict[str, TensorInfo]
    aliases: dict[str, str] = {}  # input -> output that shares its memory
    changed: tuple[str, ...] = ()  # inputs that it writes to
    random: bool = False
    pointwise: bool = False
    linear: bool = False
    compute: int = 0  # operations that compute
    reduced: int = 1  # length of the sums, all in all
    narrow: str = ""  # why it does not run in fp64


class Answer(Record):
    """The only kind of answer."""

    failure: str = ""  # what the reference, or its format, did wrong
    entry: Entry | None = None
    calls: tuple[CallInfo, ...] = ()
    skipped: tuple[str, ...] = ()  # example calls that were left out, and why
    results: dict[Mode, tuple[TensorReport, ...]] = {}
