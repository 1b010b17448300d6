"""Processes of our own beside one another: fresh ones, which do not outlive the one that started them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from atrex import linux


def process_pool(processes: int, prepare: Callable[[], None] | None = None) -> ProcessPoolExecutor:
    """A pool of spawned processes, each of which calls `prepare` first.

    `concurrent.futures` leaves them behind when their parent is killed: they finish what they have and
    then wait for ever. The kernel ends these with their parent, and their workers end with them. Use it from
    the main thread: the end of the thread that submits first is theirs.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(prepare,))


def _begin(prepare: Callable[[], None] | None) -> None:
    linux.die_with_parent(signal.SIGKILL)
    if prepare is not None:
        prepare()
