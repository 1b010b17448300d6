"""Watching a candidate on a GPU: what is asked of its worker, and what its answers are worth.

All of it happens in sandboxed workers; here their claims are read, checked and put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from agent.profiling import ncu, resources, timeline
from agent.profiling.records import Kernel, Timeline
from agent.profiling.resources import Resources
from atrex.errors import EnvironmentProblem
from atrex.judge import CandidateFault, HarnessError
from atrex.protocol import InputSpec, LaunchReport


class Watched(Protocol):
    """What profiling needs of `atrex.judge.Session`."""

    def trace(self, spec: InputSpec, /) -> tuple[LaunchReport, ...]:
        """Operations and kernels of one call. Raises CandidateFault."""
        ...

    def profile(self, spec: InputSpec, /, *, marked: bool = False) -> Mapping[str, Any]:
        """Events and resources of a warm call; nothing if it is marked for ncu. Raises CandidateFault."""
        ...


Behind = Callable[[tuple[str, ...]], AbstractContextManager[Watched]]
"""A session whose fork server runs behind the given words; on leaving, that server has ended."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the collectors saw of one call on a GPU."""

    timeline: Timeline | None = None
    launched: tuple[Kernel, ...] = ()
    resources: Mapping[str, Resources] | None = None
    counted: tuple[Kernel, ...] = ()
    notes: tuple[str, ...] = ()


def watch(session: Watched, behind: Behind, spec: InputSpec) -> Seen:
    """Timeline and resources from a warm worker, counters of the candidate's own kernels from one behind ncu.

    Whatever fails is a note, except the candidate in its own worker. Raises CandidateFault, HarnessError.
    """
    own = [one for one in session.trace(spec) if one.origin == "own" and one.device_us > 0]
    claims = session.profile(spec)
    events = claims.get("events")
    calls, launched, notes = timeline.read(events if isinstance(events, list) else [])
    taken, complaints = resources.read(claims.get("resources"))

    def run(wrapper: tuple[str, ...]) -> None:
        with behind(wrapper) as watched:
            watched.profile(spec, marked=True)

    try:
        counters = ncu.collect(run, [one.name for one in own], sum(one.count for one in own))
    except (CandidateFault, HarnessError, EnvironmentProblem, OSError) as error:
        counters = ncu.Collected(notes=(f"no hardware counters: {str(error)[:200]}",))
    return Seen(calls, launched, taken, counters.kernels, (*notes, *complaints, *counters.notes))
