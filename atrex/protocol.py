"""Messages between judge and worker, and the recipe by which both build the same inputs."""

from __future__ import annotations

from typing import Any, Literal, get_args

from atrex.contract import LayoutKind
from atrex.records import Device, FaultKind, Record, Shape

Fill = Literal["nan", "huge"]  # NaN, and 2^100 (or the largest value of an integer)
SpecialName = Literal["nan", "inf", "-inf", "0", "-0", "subnormal", "-subnormal", "max", "one"]


SPECIALS: tuple[SpecialName, ...] = tuple(name for name in get_args(SpecialName) if name != "one")


class Edit(Record):
    """A change to one input after it is drawn."""

    kind: Literal["scale", "place", "permute_rows", "broadcast_rows", "take_rows", "negate_rows"]
    input: str
    exponent: int = 0  # scale: times 2^exponent
    at: tuple[int, ...] = ()  # place: flat indices; take_rows, negate_rows: the rows
    values: tuple[SpecialName, ...] = ()  # place: one value for each index
    turns: tuple[int, ...] = ()  # take_rows: by how much each row is rotated along its last axis
    seed: int = 0  # permute_rows


class InputSpec(Record):
    """Everything that determines a set of inputs, to the bit and to the address pattern."""

    shape: Shape
    seed: int
    source: str = "production"
    edits: tuple[Edit, ...] = ()
    layouts: dict[str, LayoutKind] = {}
    guard: Fill | None = None  # content of the guard bands around each input
    tile_rows: int | None = None  # draw this many rows and repeat them: very large inputs at little cost
    turned: bool = False  # with tile_rows: rotate each repetition by one more, so that no two rows are equal

    @property
    def dims(self) -> dict[str, int]:
        """The extents of the shape."""
        return self.shape.dims

    def label(self) -> str:
        """Short text for a witness."""
        parts = [self.source] if self.source != "production" else []
        parts += [f"{edit.kind}({edit.input})" for edit in self.edits]
        parts += [f"{name}:{layout}" for name, layout in self.layouts.items() if layout != "contiguous"]
        return " ".join(parts)


class Load(Record):
    """First request of every worker: compile and import the candidate."""

    kind: Literal["load"] = "load"
    operator: str
    dsl: str
    source: str
    device: Device
    threads: int
    foreign: dict[str, Any] | None = None  # an atrex.foreign.spec.ForeignProblem; None: the operator's own


class GradientRequest(Record):
    """Which gradients a call is to give instead of its outputs, of outputs that weigh N(0, scale)."""

    inputs: tuple[str, ...]
    seed: int
    scale: float = 1.0


class Call(Record):
    """One call of the candidate within a `Run`."""

    inputs: InputSpec
    same_buffers: bool = False  # write the new inputs over the previous call's, at the same addresses
    new_tensors: bool = False  # with same_buffers: as new tensors there, whose version counters start anew
    fresh_model: bool = False
    poison: Fill | None = None  # fill free memory and fresh allocations first
    guard_outputs: bool = False
    closed_pages: bool = False  # CPU: inputs lie between pages that nobody may touch
    check_addresses: bool = False  # Triton interpreter: check every address
    disturb: int | None = None  # seed: perturb the allocator, and run load beside the call
    side_stream: bool = False  # CUDA: call on another stream, and read without device synchronisation
    withhold: bool = False  # the candidate's own kernels do nothing: what comes out was written by others
    account: bool = False  # time PyTorch's operations, under a dispatch mode by which a candidate can tell
    deliver: bool = True  # send the outputs at once; otherwise they wait for `Fetch`
    deliver_inputs: bool = False  # send the inputs as they are after the call
    hold: bool = False  # the outputs live on, and are sent as they are after the last call of the `Run`
    gradients: GradientRequest | None = None  # send these, by the name of the input


class Run(Record):
    """Call the candidate one or more times in a row, in one process."""

    kind: Literal["run"] = "run"
    calls: tuple[Call, ...]


class Fetch(Record):
    """Rows [start, stop) of dimension 0 of each output of the last call."""

    kind: Literal["fetch"] = "fetch"
    start: int
    stop: int


class Trace(Record):
    """Call once under the dispatcher and launch tracers."""

    kind: Literal["trace"] = "trace"
    inputs: InputSpec


class Profile(Record):
    """Call warm under torch's profiler; or, in a worker behind ncu, in a marked range that ncu profiles."""

    kind: Literal["profile"] = "profile"
    inputs: InputSpec
    marked: bool = False


class Prepare(Record):
    """Set one case up for timing: rotating inputs beyond the last-level cache, warm-up, capture."""

    kind: Literal["prepare"] = "prepare"
    inputs: InputSpec
    seeds: tuple[int, ...]  # one set of inputs each
    flush_bytes: int


class Round(Record):
    """Time `passes` passes over all the prepared sets; one sample a pass."""

    kind: Literal["round"] = "round"
    passes: int  # none: only change what is asked for
    flush: bool = True  # evict the last-level cache before each pass
    restore: bool = False  # put the state that calls update in place back first
    spoil: bool = False  # overwrite the outputs first: what is checked later was written by a timed call
    edits: tuple[Edit, ...] = ()  # change every set's inputs first, in place: nothing remembered is right


class Keep(Record):
    """Describe what the last round left for set `index`; deliver rows [start, stop) of the outputs `sliced`.

    Other outputs are delivered whole. The answer holds two reports: of all, and of what is delivered.
    """

    kind: Literal["keep"] = "keep"
    index: int
    sliced: tuple[str, ...] = ()
    start: int = 0
    stop: int = 0


class Trim(Record):
    """Give up tensors of earlier requests and the memory that the allocator keeps for the next ones."""

    kind: Literal["trim"] = "trim"


Request = Load | Run | Fetch | Trace | Profile | Prepare | Round | Trim | Keep


class Fault(Record):
    """Why the candidate did not return."""

    kind: FaultKind
    message: str


class TensorReport(Record):
    """One tensor as the worker saw it; `offset` is where its bytes lie in the arena, -1: not sent."""

    name: str
    python_type: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    nbytes: int
    offset: int = -1
    aliases: tuple[str, ...] = ()
    strided: bool = True
    requires_grad: bool = False


class CallReport(Record):
    """What came back from one call."""

    structure: str  # "tensor", "dict", "tuple", or the name of the type that came back
    outputs: tuple[TensorReport, ...]
    inputs: tuple[TensorReport, ...] = ()
    held: tuple[TensorReport, ...] = ()
    call_us: float = 0.0  # of the worker's clock
    operations_us: float = 0.0  # of a call that accounts: PyTorch's, on the thread that was called
    broken_guards: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()


class LaunchReport(Record):
    """One operation or kernel seen by a tracer."""

    name: str
    origin: str  # own, setup, glue, compute, library
    count: int
    stoppable: bool = False  # `atrex.withhold` can have it do nothing
    device_us: float = 0.0
    stream: int = 0
    sizes: str = ""  # of an operation's tensors, where they were largest


class Reply(Record):
    """The worker's only kind of answer."""

    fault: Fault | None = None
    harness_error: str | None = None  # an exception outside candidate code
    calls: tuple[CallReport, ...] = ()
    launches: tuple[LaunchReport, ...] = ()
    profile: dict[str, Any] = {}  # Kineto's events, and what compiled Triton kernels take
    samples_us: tuple[float, ...] = ()
    host_us: float | None = None
    method: Literal["graph", "events", "wall"] | None = None
    engine: str = ""
    notes: tuple[str, ...] = ()
