"""Processes beside one another on one device, each of which times as if it were alone.

Gates and compilers fill cores and leave the device idle; a timing needs it for itself, and takes a small
part of a search. So whoever times waits for its turn, and stops all that the others run meanwhile. Everyone
has a clock that stands still while it waits or is stopped: its own seconds are those it could use.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnContext

import psutil

_DRAIN = 0.02  # seconds until the device has done what stopped processes had asked of it


class Turns:
    """What the processes share; made by their parent, and given to each when it is spawned.

    Whoever ends while the others are stopped leaves them so: their parent has to end them.
    """

    def __init__(self, context: SpawnContext, places: int) -> None:
        self._timing = context.Lock()
        # Nobody may be stopped while it holds a lock of these: the one who has the turn alone writes to them.
        self._roots = context.RawArray("q", places)
        self._still = context.RawArray("d", places)

    def join(self) -> Turn:
        """Take part, with all that this process starts. Raises RuntimeError if there is no place left."""
        with self._timing:
            for place, root in enumerate(self._roots):
                if not root:
                    self._roots[place] = os.getpid()
                    return Turn(self, place)
        raise RuntimeError("more processes than places")


class Turn:
    """One process's part in the turns."""

    def __init__(self, turns: Turns, place: int) -> None:
        self._turns, self._place = turns, place
        self._waited = 0.0

    def clock(self) -> float:
        """Seconds that went by for this process alone."""
        while True:
            still: float = self._turns._still[self._place]
            now = time.monotonic()
            if self._turns._still[self._place] == still:  # else it was stopped between the two
                return now - self._waited - still

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing of the others runs inside."""
        timing, still = self._turns._timing, self._turns._still
        began = self.clock()
        with timing:
            self._waited += self.clock() - began
            others = [place for place, root in enumerate(self._turns._roots) if root and place != self._place]
            with _stopped([self._turns._roots[place] for place in others]):
                since = time.monotonic()
                try:
                    time.sleep(_DRAIN if others else 0.0)
                    yield
                finally:  # while they stand: none of them ever sees its clock ahead, or going back
                    for place in others:
                        still[place] += time.monotonic() - since


@contextmanager
def _stopped(roots: Sequence[int]) -> Iterator[None]:
    """Inside, these processes and all their descendants stand still."""
    stopped = set[psutil.Process]()
    try:
        while new := _trees(roots) - stopped:  # they fork meanwhile
            stopped |= new
            _each(new, psutil.Process.suspend)
        yield
    finally:
        _each(stopped, psutil.Process.resume)


def _trees(roots: Sequence[int]) -> set[psutil.Process]:
    """These processes with all their descendants, from one look at the machine's."""
    known = {process.pid: process for process in psutil.process_iter(["ppid"])}
    children = defaultdict[int, list[int]](list)
    for pid, process in known.items():
        children[process.info["ppid"]].append(pid)
    found, queue = set[psutil.Process](), [root for root in roots if root in known]
    while queue:
        pid = queue.pop()
        found.add(known[pid])
        queue += children[pid]
    return found


def _each(processes: Iterable[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            act(process)
