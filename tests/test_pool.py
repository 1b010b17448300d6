"""Processes beside one another end with the one that started them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atrex.errors import UsageError
from atrex.pool import at_end, process_pool

PARENT = """
import os, time
import pytest

from atrex.errors import UsageError
from atrex.pool import at_end, process_pool

if __name__ == "__main__":
    with process_pool(2) as pool:
        print(*{future.result() for future in [pool.submit(os.getpid) for _ in range(8)]}, flush=True)
        pool.submit(time.sleep, 600)
        time.sleep(600)
"""


def test_they_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert children
        assert all(_alive(pid) for pid in children)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in children if _alive(pid)]


def test_they_are_prepared_and_bring_back_results() -> None:
    with process_pool(1, _prepare) as pool:
        assert pool.submit(os.getenv, "PREPARED").result() == "yes"
    assert "PREPARED" not in os.environ


def _prepare() -> None:
    os.environ["PREPARED"] = "yes"


def _alive(pid: int) -> bool:
    """Whether it runs; one that has ended and is not yet waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_none_at_all_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="at least one"):
        process_pool(0)


def mark_at_end(path: Path) -> None:
    at_end(path.touch)


def test_what_is_to_be_closed_is_closed_when_the_pool_ends(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    with process_pool(1) as pool:
        pool.submit(mark_at_end, closed).result()
        assert not closed.exists()
    assert closed.exists()
