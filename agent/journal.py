"""Durable execution of a search: its budget, and the journal through which every effect goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agent.events import AnyEvent, Event, Finished, RunStarted
from agent.state import SearchState, fold
from atrex.errors import UsageError

E = TypeVar("E", bound=Event)
Clock = Callable[[], float]
Record = Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use, over all its sessions. Raises UsageError if neither seconds nor steps bound it."""

    seconds: float | None = None
    steps: int | None = None
    reserve: float = 0.15
    """Share of the seconds after the start-up that the search leaves to the caller's final measurement."""

    def __post_init__(self) -> None:
        if self.seconds is None and self.steps is None:
            raise UsageError("a search needs a budget: give seconds, steps or both")
        if not 0 <= self.reserve < 1:
            raise UsageError(f"budget: reserve must lie in [0, 1), got {self.reserve}")

    def allows(self, state: SearchState, elapsed: float) -> bool:
        """True iff one more trial, of average length, fits into what is left.

        What asking took is no part of the average: `Funds` sees to it, and what was saved needs no question.
        """
        if self.steps is not None and state.step >= self.steps:
            return False
        began = state.run.elapsed
        average = (elapsed - began - state.spent.seconds) / state.step if state.step else 0.0
        return elapsed + max(average, 0.0) < self.end(began)

    def end(self, began: float) -> float:
        """Seconds of the run at which a search ends that began at some; infinite where none bound it."""
        return math.inf if self.seconds is None else began + (self.seconds - began) * (1 - self.reserve)


class Journal:
    """Reads recorded events back as long as there are any, then records new ones; keeps the state."""

    def __init__(
        self,
        start: RunStarted,
        recorded: Sequence[AnyEvent],
        record: Record,
        clock: Clock,
        began: float | None = None,
    ) -> None:
        """Begin the run, or go on with it; `record` returns when an event is durable.

        `began` is when this session did, on `clock`; None: now.

        The end of a session is no step of the search: recorded `finished` events are passed over. Raises
        UsageError if `recorded` belongs to a run that was started differently.
        """
        self._recorded = [event for event in recorded if not isinstance(event, Finished)]
        self._next = 0
        self._record = record
        self._clock = clock
        self._began = clock() if began is None else began
        self._before = recorded[-1].elapsed if recorded else 0.0
        started = self._event(RunStarted, lambda: start)
        if started.model_copy(update={"elapsed": start.elapsed}) != start:
            raise UsageError("the ledger is of another run (start, seed, cases or policy); start a new one")
        self.state: SearchState = fold([started])

    @property
    def elapsed(self) -> float:
        """Seconds of the run so far, earlier sessions included."""
        return self._before + self._clock() - self._began

    @property
    def upcoming(self) -> AnyEvent | None:
        """The event that will be read back next; None when the recorded ones are used up."""
        return self._recorded[self._next] if self._next < len(self._recorded) else None

    def emit(self, kind: type[E], make: Callable[[], E]) -> E:
        """Read the next event back, or make it and record it; then the state holds it.

        Raises UsageError if the recorded event is of another kind: the loop has changed since.
        """
        event = self._event(kind, make)
        self.state = self.state.apply(event)
        return event

    def _event(self, kind: type[E], make: Callable[[], E]) -> E:
        upcoming = self.upcoming
        if upcoming is None:
            made = make()
            event = made.model_copy(update={"elapsed": self.elapsed})
            self._record(event)
            return event
        if not isinstance(upcoming, kind):
            raise UsageError(
                f"the ledger has '{upcoming.kind}' as event {self._next} of the search, where this version "
                f"of atrex goes on with {kind.__name__}; start a new run"
            )
        self._next += 1
        return upcoming
