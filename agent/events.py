"""What happens in a search, as records: the ledger's lines, and all that the search's state is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from agent.dropout import DropoutPolicy, Item
from agent.lab import Comparison, Config, Level, Tunables
from agent.promote import PromotionPolicy
from atrex.candidate import Candidate
from atrex.records import Bound, Case, Judgement, Latency, Ratio, Record
from atrex.spending import Spending

Finding = Literal[
    "promoted",
    "nominated",
    "runner-up",
    "advanced",
    "no gain",
    "unconfirmed",
    "wrong",
    "unjudged",
    "suspect",
    "untested",
    "missed",
]
"""`nominated`: a move that beat the incumbent and every other nominee of its bucket in one comparison; a
second one and the gates are to come. `runner-up`: it beat the incumbent, but another nominee is faster.
`advanced`: better than its base in a dropout episode, not than the incumbent. `unconfirmed`: it won once and
not again. `unjudged`: the harness could not judge it, twice running. `suspect`: one of several moves in a
wrong candidate. `untested`: in a wrong candidate, but another move is to blame. `missed`: what a model
answered is no candidate."""
AUTHORED = "model "
"""What the name of a kernel begins with that a model wrote; the id of its first file follows."""
ALL_CASES = "*"
"""In place of a bucket's name: the whole workload."""


class Event(Record):
    """Base of every event."""

    elapsed: float = 0.0
    """Seconds of the run that had passed, over all its sessions."""


class RunStarted(Event):
    """Everything that the run depends on, apart from its budget."""

    kind: Literal["run_started"] = "run_started"
    operator: str
    seed: int
    proposer: str
    start: Candidate
    """What has to be beaten, for instance the eager baseline."""
    judged_seconds: Annotated[float, Field(ge=0)] | None = None
    """What all gates took to accept the start, and so a promotion may take; None: it met none."""
    cases: tuple[Case, ...]
    buckets: dict[str, tuple[int, ...]] = {}
    """Cut points by dimension."""
    promotion: PromotionPolicy = PromotionPolicy()
    dropout: DropoutPolicy = DropoutPolicy()


class Measured(Event):
    """Latency of the start and the roofline, by case id."""

    kind: Literal["measured"] = "measured"
    candidate: str
    latencies: dict[str, Latency]
    bounds: dict[str, Bound]


class Move(Record):
    """A new configuration for one bucket."""

    bucket: str
    config: Config
    change: str
    """For people, for instance `num_warps 4 -> 8`."""
    techniques: tuple[str, ...]
    """Belief keys, the category first: `num_warps`, `num_warps=8`."""
    predicted: float
    """Expected incumbent time / candidate time."""


class Proposal(Event):
    """A candidate enters the run."""

    kind: Literal["proposed"] = "proposed"
    origin: Literal["seed", "move", "merge", "model"]
    """A whole reference kernel; new configurations; only what won of them; a file that a model wrote."""
    candidate: Candidate
    base: str
    """Id of the candidate that it changes, or competes with."""
    kernel: str
    """Name of the kernel whose table it varies."""
    tunables: Tunables = {}
    """For a seed: what may be varied in it."""
    moves: tuple[Move, ...] = ()
    predicted: float = 1.0
    because: str = ""
    technique: str = ""
    """Of a model's file, in its own words: what dropout may hide."""
    spent: Spending = Spending()

    @property
    def authored(self) -> bool:
        """Whether the file is a model's, with whatever configuration, and no kernel of the knowledge base."""
        return self.kernel.startswith(AUTHORED)

    @property
    def title(self) -> str:
        """What it is, for people: a model's hypothesis, or the kernel's name."""
        return self.because if self.origin == "model" else self.kernel


class Profiled(Event):
    """What the incumbent loses time to, on the case with the most to recover."""

    kind: Literal["profiled"] = "profiled"
    candidate: str
    case: str
    lines: tuple[str, ...] = ()
    """For people and models, the costliest cause first; or why there is no profile."""
    queries: tuple[str, ...] = ()
    """Symptoms, in the knowledge base's words."""


class Missed(Event):
    """A model was asked, and its answer is no candidate."""

    kind: Literal["missed"] = "missed"
    reason: str
    because: str = ""
    """The answer's hypothesis, where that much could be read."""
    spent: Spending = Spending()


class Judged(Event):
    """The gates have spoken."""

    kind: Literal["judged"] = "judged"
    candidate: str
    level: Level
    judgement: Judgement
    asked_again: str = ""
    """Why the harness could not judge it at first, where it was asked a second time."""


class Compared(Event):
    """A paired measurement, by case id; or why the candidate could not be timed."""

    kind: Literal["compared"] = "compared"
    candidate: str
    against: str
    comparisons: dict[str, Comparison] = {}
    fault: str = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.comparisons) == bool(self.fault):
            raise ValueError("a comparison has either results or a fault")
        return self


class Promoted(Event):
    """A candidate becomes the incumbent, or the head of the current dropout episode."""

    kind: Literal["promoted"] = "promoted"
    candidate: str
    role: Literal["incumbent", "head"]
    buckets: tuple[str, ...]
    gain: Ratio
    latency_us: dict[str, float] = {}
    """New medians by case id, for an incumbent."""


def incumbents(events: Iterable[Event], seconds: float) -> list[Promoted]:
    """The incumbents that a search had promoted when its first `seconds` were over, in order."""
    promoted = [event for event in events if isinstance(event, Promoted) and event.role == "incumbent"]
    return [event for event in promoted if event.elapsed <= seconds]


class Outcome(Record):
    """What became of one move, or of a whole kernel."""

    bucket: str
    finding: Finding
    realised: Ratio | None = None
    """Paired speed-up over the base, where it was measured."""
    reason: str = ""


class Settled(Event):
    """The attempt that the last proposal began is over."""

    kind: Literal["settled"] = "settled"
    candidate: str
    outcomes: tuple[Outcome, ...]


class DropoutStarted(Event):
    """Part of the context is hidden, and the search goes on from `ancestor`."""

    kind: Literal["dropout_started"] = "dropout_started"
    p: float
    hidden: tuple[Item, ...]
    ancestor: str


class DropoutEnded(Event):
    """The context is whole again."""

    kind: Literal["dropout_ended"] = "dropout_ended"
    found: bool
    notes: tuple[str, ...] = ()
    """What was hidden while a new best was found."""


class Finished(Event):
    """The end of a session; a later one may go on."""

    kind: Literal["finished"] = "finished"
    reason: Literal["exhausted", "budget", "interrupted", "failed"]
    best: str


AnyEvent = Annotated[
    RunStarted
    | Measured
    | Proposal
    | Missed
    | Profiled
    | Judged
    | Compared
    | Promoted
    | Settled
    | DropoutStarted
    | DropoutEnded
    | Finished,
    Field(discriminator="kind"),
]

_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


def load_event(json: str | bytes) -> AnyEvent:
    """Read an event back from its JSON. Raises pydantic.ValidationError."""
    return _ADAPTER.validate_json(json)
