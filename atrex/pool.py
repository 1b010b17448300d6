"""Processes of our own beside one another: fresh ones, which do not outlive the one that started them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.util import Finalize

from atrex import linux
from atrex.errors import UsageError


def process_pool(processes: int, prepare: Callable[[], None] | None = None) -> ProcessPoolExecutor:
    """A pool of spawned processes, each of which calls `prepare` first.

    `concurrent.futures` leaves them behind when their parent is killed: they finish what they have and
    then wait for ever. The kernel ends these with their parent, and their workers end with them. Use it from
    the main thread: the end of the thread that submits first is theirs. Raises UsageError below one process.
    """
    if processes < 1:
        raise UsageError(f"{processes} processes: at least one is needed")
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(prepare,))


def at_end(close: Callable[[], object]) -> None:
    """Have this process of a pool call `close` before it ends: what atexit holds is never called in one."""
    Finalize(None, close, exitpriority=10)


def _begin(prepare: Callable[[], None] | None) -> None:
    linux.die_with_parent(signal.SIGKILL)
    if prepare is not None:
        prepare()
