"""Search against uniform random search, live: the same start, the same seconds, the same gates.

    python benchmarks/live_search.py rms_norm silu_and_mul --device cuda --seconds 90 --output live.md

Of each operator the first reference kernel that all gates accept is the start of both. The tuner
(`search`, dropout on) and uniform random search, whose wins go before the gates at once, get `--seconds`
each; what is promoted after that does not count. Then the start and both champions are timed beside one
another under the protocol of a final measurement: S as `atrex.score` defines it, and paired speed-ups over
the start. A row is written as soon as it is known. `--cases`: about as many, spread over buckets and sizes,
instead of all.

`--events` keeps what happened in every search, a line of JSON an event with the search's own seconds.

With `--lanes` several of these steps (`live_lane.py`) are under way at once; whenever one times, all others
are stopped and their clocks stand still (`turns.py`).
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

from live_lane import WAYS, Found, Lane, NoStart, Terms, Way, enter, in_lane, say
from measured import called, conditions
from turns import Turns

from agent.lab import TimingFault
from agent.machine import calibration_of
from atrex.candidate import Candidate
from atrex.commands.common import choose_device
from atrex.errors import run_script
from atrex.pool import process_pool
from atrex.problem import resolve_operator
from atrex.records import Device

RATIOS = ("search / start", "random / start", "search / random")
COLUMNS = ("operator", "cases", "S start", "S search", "S random", *RATIOS, "steps")


@dataclass(slots=True)
class Comparison:
    """How far one operator has come."""

    operator: str
    candidates: dict[str, Candidate] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """A method of Lane for an operator, what else it is given, and what to do with what it returns."""

    operator: str
    method: Callable[..., Any]
    then: Callable[[Any], None]
    arguments: tuple[Any, ...] = ()


class Comparisons:
    """Leads operators through their steps; what is begun comes to its end before another operator begins."""

    def __init__(self, row: Callable[[str], None]) -> None:
        self.row, self.failed = row, set[str]()
        self._ready = deque[Step]()

    def run(self, operators: Sequence[str], pool: ProcessPoolExecutor, lanes: int) -> None:
        """Compare them all; a row each."""
        for operator in operators:
            self._ready.append(Step(operator, Lane.start, partial(self._started, Comparison(operator))))
        running = dict[Future[Any], Step]()
        while self._ready or running:
            while self._ready and len(running) < lanes:
                step = self._ready.popleft()
                running[pool.submit(in_lane, step.method, step.operator, *step.arguments)] = step
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                self._conclude(running.pop(future), future)

    def _conclude(self, step: Step, future: Future[Any]) -> None:
        try:
            step.then(future.result())
        except (NoStart, TimingFault) as error:
            if step.operator not in self.failed:
                self.row(f"| {step.operator} | | not compared: {error} |")
            self.failed.add(step.operator)

    def _started(self, of: Comparison, found: tuple[Candidate, float]) -> None:
        of.candidates["start"] = found[0]
        for way in reversed(WAYS):
            then = partial(self._searched, of, way)
            self._ready.appendleft(Step(of.operator, Lane.search, then, (way, *found)))

    def _searched(self, of: Comparison, way: Way, found: tuple[Candidate, int]) -> None:
        of.candidates[way], of.steps[way] = found
        if len(of.steps) == len(WAYS):
            self._ready.appendleft(Step(of.operator, Lane.measure, self._measured, (of.candidates, of.steps)))

    def _measured(self, found: Found) -> None:
        self.row(found.row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare both on some operators; 1 if an operator could not be."""
    parser = argparse.ArgumentParser(description="Search against random search, live.")
    parser.add_argument("operators", nargs="+", type=resolve_operator)
    parser.add_argument("--device", default="auto", choices=("auto", *get_args(Device)))
    parser.add_argument("--seconds", type=float, default=90.0, help="of each search")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, help="the most cases of an operator; all without")
    parser.add_argument("--lanes", type=int, default=1, help="steps under way at once")
    parser.add_argument("--events", type=Path, help="keep the events of all searches in this folder")
    parser.add_argument("--output", type=Path, help="write the Markdown page here instead of printing it")
    asked = parser.parse_args(arguments)
    device = choose_device(asked.device)
    calibration_of(device, print)  # once, before anybody else uses the device
    command = called(__file__, arguments)
    page = ["# Search against uniform random search, live", "", f"{conditions(command, device)}.", ""]
    page += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]

    def row(line: str) -> None:
        page.append(line)
        say(line)
        if asked.output:
            asked.output.write_text("\n".join(page) + "\n", encoding="utf-8")

    if asked.events:
        asked.events.mkdir(parents=True, exist_ok=True)
    terms = Terms(device, asked.seconds, asked.seed, asked.cases, asked.events)
    turns = Turns(get_context("spawn"), asked.lanes)
    comparisons = Comparisons(row)
    with process_pool(asked.lanes, partial(enter, terms, turns)) as pool:
        comparisons.run(asked.operators, pool, asked.lanes)
    if not asked.output:
        print("\n".join(page))
    return 1 if comparisons.failed else 0


if __name__ == "__main__":
    run_script(main)
