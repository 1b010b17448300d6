"""Processes that take turns: whoever has the turn runs alone, and the others' clocks stand still."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
turns: Any = importlib.import_module("turns")

CONTEXT = multiprocessing.get_context("spawn")
PAUSE = 0.1


def count(shared: Any, counter: Any, own: Any, back: Any) -> None:
    """Count as fast as it goes, and say what the own clock reads and by how much it ever went back."""
    turn = shared.join()
    began = turn.clock()
    while True:
        now = turn.clock() - began
        back.value = max(back.value, own.value - now)
        own.value = now
        counter.value += 1


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_nothing_of_the_others_runs_and_their_clocks_stand_still() -> None:
    shared, counter = turns.Turns(CONTEXT, 2), CONTEXT.RawValue("q")
    own, back = CONTEXT.RawValue("d"), CONTEXT.RawValue("d")
    other = CONTEXT.Process(target=count, args=(shared, counter, own, back), daemon=True)
    other.start()
    try:
        turn = shared.join()
        wait_for(lambda: counter.value > 0)
        began, before = time.monotonic(), own.value
        for turns_taken in range(1, 21):
            with turn.alone():
                seen = counter.value
                time.sleep(PAUSE)
                assert counter.value == seen
            wait_for(lambda seen=seen: counter.value > seen)  # type: ignore[misc]
            passed = time.monotonic() - began
            assert own.value - before <= passed - turns_taken * PAUSE, "that was not its own time"
            assert back.value == 0, "the clock had run ahead"
        with pytest.raises(RuntimeError, match="more processes than places"):
            shared.join()
    finally:
        other.kill()
        other.join()


def test_an_error_inside_ends_the_turn() -> None:
    shared = turns.Turns(CONTEXT, 1)
    turn = shared.join()
    for _ in range(2):
        with pytest.raises(ValueError, match="inside"), turn.alone():
            raise ValueError("inside")
