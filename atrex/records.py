"""Records that cross a process or a disk: frozen pydantic models that refuse unknown fields.

An illegal result cannot be built: a rejected candidate has no latency, and so no speed-up.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import groupby
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

SCHEMA_VERSION = 1

Scalar = bool | int | float | str | None
InitValue = Scalar | tuple[int, ...]
Device = Literal["cpu", "cuda"]
Dsl = Literal["torch", "triton", "gluon", "cuda", "cpp"]
Phase = Literal["prefill", "decode"]


class Record(BaseModel):
    """Base of every record: immutable, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Status(StrEnum):
    """Outcome of one gate; the five are never merged."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNSUPPORTED = "UNSUPPORTED"  # the candidate refuses clearly
    INCONCLUSIVE = "INCONCLUSIVE"  # the reference itself is too ill-conditioned to judge
    ERROR = "ERROR"  # the harness's fault, never the candidate's


class FaultKind(StrEnum):
    """How a candidate failed before its numbers could be compared; kinds stay apart."""

    IMPORT = "import"  # the file does not parse or import, or has no usable class Model
    COMPILE = "compile"  # its C++, CUDA or Triton source does not compile
    LAUNCH = "launch"  # forward() raised
    REFUSED = "refused"  # forward() raised a clear refusal (NotImplementedError, TypeError, ValueError)
    ILLEGAL_ACCESS = "illegal access"
    OUT_OF_MEMORY = "out of memory"
    TIMEOUT = "timeout"
    EXITED = "exited"  # the process ended or broke the protocol without answering
    FORBIDDEN = "forbidden"  # the sandbox refused something the candidate tried
    WRONG = "wrong output"  # of a timed call, where the judge looked


class Shape(Record):
    """What a call's tensors are made from: constructor arguments, extents, lists of extents, a dtype."""

    init: dict[str, InitValue] = {}
    dims: dict[str, int]
    lengths: dict[str, tuple[int, ...]] = {}
    dtype: str = ""

    def label(self) -> str:
        """Short text for a witness."""
        parts = [f"{name}={extent}" for name, extent in self.dims.items()]
        parts += [f"{name}=[{_runs(lengths)}]" for name, lengths in self.lengths.items()]
        return ",".join(parts + ([self.dtype] if self.dtype else []))


def _runs(lengths: tuple[int, ...]) -> str:
    """Lengths with equal neighbours as length x repeat; many are cut."""
    runs = [(length, sum(1 for _ in group)) for length, group in groupby(lengths)]
    shown = " ".join(f"{length}x{repeat}" if repeat > 1 else str(length) for length, repeat in runs[:8])
    return shown + (" …" if len(runs) > 8 else "")


class Case(Record):
    """One production shape of an operator."""

    operator: str
    id: str
    init: dict[str, InitValue] = {}
    input: dict[str, Any]
    phase: Phase
    weight: Annotated[float, Field(ge=0)]
    call_count: int | None = None
    seen_in: str = ""
    production_us: dict[str, float] = {}


class Witness(Record):
    """Where a gate saw the failure, and the one command that shows it again."""

    case: str
    seed: int
    transform: str = ""
    output: str = ""
    index: tuple[int, ...] = ()
    expected: str = ""
    got: str = ""
    command: str = ""


class Verdict(Record):
    """The answer of one gate."""

    gate: str
    status: Status
    tolerance_free: bool
    reason: str = ""
    fault: FaultKind | None = None
    witness: Witness | None = None
    metrics: dict[str, Scalar] = {}
    seconds: float = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.status is not Status.PASS and not self.reason:
            raise ValueError(f"a verdict {self.status} needs a reason")
        if self.status is Status.PASS and (self.fault or self.witness):
            raise ValueError("a verdict PASS has neither fault nor witness")
        return self


class Judgement(Record):
    """All verdicts on one candidate; `accepted` is derived, never set."""

    candidate: str
    operator: str
    device: Device
    level: Literal["screen", "full", "partial"]
    seed: int
    required: tuple[str, ...]  # the gates that must have spoken before a candidate can be accepted
    may_be_unsupported: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...]
    seconds: float = 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def accepted(self) -> bool:
        """True iff every required gate is PASS, or UNSUPPORTED where the contract allows it."""
        return set(self.required) <= {v.gate for v in self.verdicts} and self.blamed is None

    @property
    def blamed(self) -> Verdict | None:
        """The first verdict that keeps it from being accepted."""
        allowed = (
            v.status is Status.PASS or (v.status is Status.UNSUPPORTED and v.gate in self.may_be_unsupported)
            for v in self.verdicts
        )
        return next((v for v, passes in zip(self.verdicts, allowed, strict=True) if not passes), None)

    @property
    def objection(self) -> str:
        """Why it is not accepted, in one line; empty if it is."""
        if self.accepted:
            return ""
        if (blamed := self.blamed) is None:
            return "not all gates have spoken"
        return f"{blamed.gate} {blamed.status.value}: {blamed.reason}"

    @model_validator(mode="after")
    def _spoken_once(self) -> Self:
        names = [verdict.gate for verdict in self.verdicts]
        if len(set(names)) < len(names):
            raise ValueError("a gate speaks once in a judgement")
        if not self.required:
            raise ValueError("a judgement without required gates would accept anything")
        return self

    @model_validator(mode="before")
    @classmethod
    def _drop_derived(cls, data: Any) -> Any:
        """Let a dumped judgement load again: `accepted` is recomputed, whatever the file says."""
        if isinstance(data, dict):
            return {k: v for k, v in data.items() if k != "accepted"}
        return data


class Cost(Record):
    """Semantic work of one case: FLOPs by dtype, and the fewest bytes that must move."""

    flops: dict[str, float]
    read_bytes: int
    write_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes read once plus bytes written once."""
        return self.read_bytes + self.write_bytes


class Bound(Record):
    """Roofline of one case on one machine, in microseconds."""

    sol_us: float  # vendor peaks: speed of light
    attainable_us: float | None  # measured peaks plus the measured launch floor; None: not calibrated
    limiter: str  # "memory", or the dtype whose peak limits


class Latency(Record):
    """Device time of one call, in microseconds, and how it was measured."""

    median_us: Annotated[float, Field(gt=0)]
    p10_us: float
    p90_us: float
    n: int
    method: Literal["graph", "events", "wall"]
    host_us: float | None = None  # host time to issue one call, reported beside device time
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not 0 < self.p10_us <= self.median_us <= self.p90_us:
            raise ValueError("a latency's median lies between its 10th and 90th percentile")
        return self


class Ratio(Record):
    """Paired speed-up (other time / this time) with a confidence interval."""

    median: Annotated[float, Field(gt=0)]
    low: Annotated[float, Field(gt=0)]
    high: float
    n: Annotated[int, Field(ge=1)]
    confidence: Annotated[float, Field(ge=0, lt=1)] = 0.95

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.median <= self.high:
            raise ValueError("a ratio's median lies within its interval")
        return self

    @property
    def better(self) -> bool:
        """The interval excludes "no better"."""
        return self.low > 1.0

    @property
    def worse(self) -> bool:
        """The interval excludes "no worse"."""
        return self.high < 1.0


class Provenance(Record):
    """Machine and software under which a number was measured."""

    hardware: str
    device: Device
    harness: str
    torch: str
    triton: str | None = None
    python: str
    driver: str | None = None
    ptxas: str | None = None
    """What Triton assembles for the GPU with."""
    compiler: str | None = None
    threads: int | None = None


class Result(Record):
    """One candidate on one case: the row that scores are made of."""

    schema_version: Literal[1] = 1
    candidate: str
    operator: str
    case: str
    policy: str  # hash of the gate and measurement policy
    accepted: bool
    latency: Latency | None
    bound: Bound
    vs_eager: Ratio | None = None
    vs_compile: Ratio | None = None

    @model_validator(mode="after")
    def _no_speed_without_acceptance(self) -> Self:
        if not self.accepted and (self.latency or self.vs_eager or self.vs_compile):
            raise ValueError("a rejected candidate has no latency and no speed-up")
        return self

    @property
    def efficiency(self) -> float:
        """S of one case: sol / median; 0 unless accepted and measured."""
        return self.bound.sol_us / self.latency.median_us if self.latency else 0.0

    @property
    def attainment(self) -> float:
        """A of one case: attainable / median; 0 unless accepted, measured and calibrated."""
        if not self.latency or self.bound.attainable_us is None:
            return 0.0
        return self.bound.attainable_us / self.latency.median_us
