"""What the agent needs from the outside, as Protocols: an instrument, a knowledge base, a proposer.

The search never imports the instrument: an adapter that runs judge, timer and roofline on this machine
implements `Lab`, and so does a synthetic cost surface in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import Field

from agent.profiling.records import Bottleneck
from atrex.candidate import Candidate
from atrex.errors import AtrexError
from atrex.records import Bound, Case, Dsl, Judgement, Latency, Ratio, Record, Scalar

if TYPE_CHECKING:
    from agent.context import BucketDiagnosis, Context
    from agent.events import Missed, Proposal

Level = Literal["screen", "full"]
Config = dict[str, Scalar]
Tunables = dict[str, tuple[Scalar, ...]]


class Comparison(Record):
    """One case timed for a candidate and an incumbent, paired and interleaved."""

    ratio: Ratio
    """Incumbent time / candidate time: above 1 the candidate is faster."""
    candidate_us: Annotated[float, Field(gt=0)]
    incumbent_us: Annotated[float, Field(gt=0)]


class TimingFault(Exception):
    """The candidate failed while it was timed, after it had passed the gates: crash, timeout, false claim.

    Or the machine did; then the message begins with HARNESS, and says nothing about the candidate.
    """

    HARNESS = "harness: "

    @property
    def of_machine(self) -> bool:
        """Whether the candidate is not to blame."""
        return str(self).startswith(self.HARNESS)


class Unanswered(Exception):
    """A proposer has failed for good: its model, which would fail other searches, too."""

    def __init__(self, error: AtrexError) -> None:
        super().__init__(str(error))
        self.error = error


class Lab(Protocol):
    """The instrument, seen from the search. All times are microseconds a call."""

    def judge(self, candidate: Candidate, *, level: Level, cases: Sequence[Case]) -> Judgement:
        """Run the gates: `screen` is the cheap selection of them, `full` is all of them."""
        ...

    def compare(
        self, candidate: Candidate, incumbent: Candidate, cases: Sequence[Case]
    ) -> dict[str, Comparison]:
        """Paired timing of every case, by its id. Two calls give independent measurements.

        Raises TimingFault, with one line saying why, if the candidate does not hold.
        """
        ...

    def measure(self, candidate: Candidate, cases: Sequence[Case]) -> dict[str, Latency]:
        """Latency of every case, by its id. Raises TimingFault."""
        ...

    def bound(self, case: Case) -> Bound:
        """Roofline of one case on this machine."""
        ...


class Profiler(Protocol):
    """Finds out what a candidate of a measured time loses it to."""

    def __call__(self, candidate: Candidate, case: Case, median_us: float, /) -> tuple[Bottleneck, ...]:
        """Causes, the costliest first. Raises TimingFault."""
        ...


class ReferenceKernel(Record):
    """A kernel of the knowledge base as plain data: its file, and what may be varied in it."""

    name: str
    dsl: Dsl
    source: str
    tunables: Tunables = {}
    """Every tunable with its legal values; numeric values are in ascending order."""
    technique: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()

    def candidate(self, operator: str) -> Candidate:
        """The kernel as it is shipped."""
        return Candidate(operator, self.dsl, self.source, note=f"kernel {self.name}")


class Passage(Record):
    """A note of the knowledge base, or a part of one."""

    name: str
    text: str


class Knowledge(Record):
    """What a retrieval found, best first."""

    kernels: tuple[ReferenceKernel, ...] = ()
    passages: tuple[Passage, ...] = ()


class Retrieve(Protocol):
    """Finds knowledge for a diagnosis, in an order that depends on nothing else."""

    def __call__(self, diagnoses: Sequence[BucketDiagnosis], /) -> Knowledge: ...


class Proposer(Protocol):
    """Where candidates come from."""

    @property
    def name(self) -> str:
        """Name in reports: `search`, `claude` …"""
        ...

    def propose(self, context: Context, /) -> Proposal | Missed | None:
        """Return the next candidate, or None when nothing is left to try in this context.

        A model that was asked in vain has missed: that is a step, and its cost is recorded.

        The same context gives the same proposal: chance comes from `context.seed` and `context.step`.
        """
        ...
