"""torch.profiler's events of one warm call, as kernels and gaps.

The events are those of `export_chrome_trace` (Kineto's output_json.cpp names the fields). They come from a
worker, which may write anything: what is not an event is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.profiling.records import Extents, Kernel, Timeline

_MOST_EVENTS = 4_000  # as many as a worker sends
_MOST_LETTERS = 200  # of a name, which templates make long
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")


class _Arguments(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    grid: Extents | None = None
    block: Extents | None = None
    registers: Annotated[int | None, Field(alias="registers per thread", ge=0)] = None
    shared: Annotated[int | None, Field(alias="shared memory", ge=0)] = None
    occupancy: Annotated[float | None, Field(alias="est. achieved occupancy %", ge=0)] = None


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    cat: Literal["kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver"]
    name: str
    ts: float
    dur: Annotated[float, Field(ge=0)]
    args: _Arguments = _Arguments()


def plain(name: str) -> str:
    """`scale` of `void ns::scale<float>(float*, int)`: by which ncu and Kineto name the same kernel."""
    name = name.replace("(anonymous namespace)::", "")
    return name.partition("(")[0].partition("<")[0].split("::")[-1].split(" ")[-1]


def read(events: Sequence[Any]) -> tuple[Timeline | None, tuple[Kernel, ...], tuple[str, ...]]:
    """Timeline and launches of one call, in the order of their start, and notes.

    `events`: of the categories kernel, gpu_memcpy, gpu_memset, cuda_runtime and cuda_driver; times in
    microseconds, as Kineto writes them. No launch: no timeline.
    """
    known, strange = _validated(events[:_MOST_EVENTS])
    notes: tuple[str, ...] = (f"{strange} events of the profiler could not be read",) if strange else ()
    if len(events) > _MOST_EVENTS:
        notes += (f"only the first {_MOST_EVENTS} of {len(events)} events were read",)
    work = sorted((e for e in known if e.cat in _WORK), key=lambda event: (event.ts, event.name))
    if not work:
        return None, (), (*notes, "the profiler saw no kernel")
    busy, end = 0.0, work[0].ts
    for event in work:
        busy += max(0.0, event.ts + event.dur - max(end, event.ts))
        end = max(end, event.ts + event.dur)
    calls = [e for e in known if e.cat in _LAUNCHES and "launch" in e.name.lower()]
    timeline = Timeline(
        launches=len(work),
        busy_us=busy,
        idle_us=max(0.0, end - work[0].ts - busy),
        host_us=max(e.ts + e.dur for e in calls) - min(e.ts for e in calls) if calls else None,
    )
    return timeline, tuple(_kernel(event) for event in work), notes


def _validated(events: Iterable[Any]) -> tuple[list[_Event], int]:
    known, strange = list[_Event](), 0
    for event in events:
        if isinstance(event, dict) and event.get("cat") not in (*_WORK, *_LAUNCHES):
            continue
        try:
            known.append(_Event.model_validate(event))
        except ValidationError:
            strange += 1
    return known, strange


def _kernel(event: _Event) -> Kernel:
    arguments = event.args
    return Kernel(
        name=event.name[:_MOST_LETTERS],
        duration_us=event.dur,
        grid=arguments.grid,
        block=arguments.block,
        registers=arguments.registers,
        shared_bytes=arguments.shared,
        # Kineto's is an estimate from the launch, no counter: an upper bound, as theoretical occupancy is.
        occupancy=None if arguments.occupancy is None else min(1.0, arguments.occupancy / 100),
    )
