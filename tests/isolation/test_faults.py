"""Every way for a worker to end without answering gets the right kind, and the next worker is served."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil
import pytest

from atrex.process import ForkServer, WorkerDied, WorkerProcess
from atrex.records import FaultKind

from .conftest import descendants, wait_until

Spawn = Callable[..., WorkerProcess]


def death(worker: WorkerProcess, timeout: float = 15.0, **message: object) -> WorkerDied:
    with pytest.raises(WorkerDied) as caught:
        worker.request(message, timeout=timeout)
    return caught.value


@pytest.mark.parametrize(
    ("action", "kind", "detail"),
    [
        ("segfault", FaultKind.ILLEGAL_ACCESS, "SIGSEGV"),
        ("bus_error", FaultKind.ILLEGAL_ACCESS, "SIGBUS"),
        ("abort", FaultKind.EXITED, "SIGABRT"),
        ("exit_zero", FaultKind.EXITED, "code 0"),
        ("close_channel", FaultKind.EXITED, "closed its channel"),
        ("daemonise_and_exit", FaultKind.EXITED, "code 0"),
        ("allocate", FaultKind.OUT_OF_MEMORY, "limit"),
        ("allocate_shared", FaultKind.OUT_OF_MEMORY, "1024 MiB"),
        ("allocate_unmapped", FaultKind.OUT_OF_MEMORY, "1024 MiB"),
    ],
)
def test_kind_of_death(
    worker: WorkerProcess, spawn: Spawn, action: str, kind: FaultKind, detail: str
) -> None:
    died = death(worker, do=action)
    assert died.kind is kind
    assert detail in died.detail
    assert spawn().request({"do": "ping"}, timeout=5)["result"] == "pong"


@pytest.mark.parametrize("action", ["hang", "stop_itself", "trickle", "fork_without_end"])
def test_deadline(spawn: Spawn, action: str) -> None:
    worker = spawn(processes=32)
    start = time.monotonic()
    died = death(worker, do=action, timeout=0.6)
    assert died.kind is FaultKind.TIMEOUT
    assert time.monotonic() - start < 3


def test_a_worker_that_never_reads_cannot_block_the_judge(spawn: Spawn) -> None:
    worker = spawn("hostile:hang_on_start")
    start = time.monotonic()
    died = death(worker, padding="x" * (3 << 20), timeout=0.5)
    assert died.kind is FaultKind.TIMEOUT
    assert time.monotonic() - start < 3


@pytest.mark.parametrize(
    "kind",
    ["garbage", "giant", "other ticket", "no object", "not JSON", "infinite", "nested", "descriptors"],
)
def test_broken_frames(worker: WorkerProcess, kind: str) -> None:
    died = death(worker, do="raw", kind=kind, timeout=5)
    assert died.kind is FaultKind.EXITED
    assert "protocol" in died.detail


def test_an_answer_written_before_the_question_is_refused(worker: WorkerProcess) -> None:
    assert worker.request({"do": "answer_before_the_question"}, timeout=5) == {"result": "prepared"}
    assert death(worker, do="ping", timeout=5).kind is FaultKind.EXITED


def test_memory_of_children_counts(spawn: Spawn) -> None:
    died = death(spawn(), do="allocate_in_children", count=6, each=300 << 20)
    assert died.kind is FaultKind.OUT_OF_MEMORY


def test_pages_shared_with_children_count_once(worker: WorkerProcess) -> None:
    assert worker.request({"do": "share_with_children", "count": 8}, timeout=15)["result"] == 200 << 20


def test_processes_are_bounded(spawn: Spawn) -> None:
    count = spawn(processes=24).request({"do": "fork_until_refused"}, timeout=15)["result"]
    assert 8 <= count <= 24


def test_cpu_time_is_bounded(worker: WorkerProcess) -> None:
    died = death(worker, do="spin_in_children", seconds=1, timeout=10)
    assert (died.kind, "CPU" in died.detail) == (FaultKind.TIMEOUT, True)


def test_scratch_is_bounded(spawn: Spawn) -> None:
    died = death(spawn(scratch_bytes=32 << 20), do="fill_scratch")
    assert (died.kind, "scratch" in died.detail) == (FaultKind.FORBIDDEN, True)


def test_files_are_bounded(worker: WorkerProcess) -> None:
    assert worker.request({"do": "large_file"}, timeout=10)["message"].startswith("[Errno 27]")


def test_daemon_dies_with_its_worker(worker: WorkerProcess, server: ForkServer) -> None:
    assert worker.request({"do": "daemonise"}, timeout=5)["result"] is True
    assert wait_until(lambda: len(descendants(server.pid)) == 3)  # warden, worker, daemon
    worker.kill()
    assert not descendants(server.pid)


def test_log_is_bounded_and_never_blocks(worker: WorkerProcess) -> None:
    assert worker.request({"do": "print_lines", "text": "hello"}, timeout=5) == {"result": None}
    assert worker.log_tail() == "hello\nhello\n"
    assert worker.request({"do": "flood", "megabytes": 8}, timeout=10)["result"] == "done"
    assert len(worker.log_tail(10 << 20)) <= 1 << 20
    worker.kill()
    assert worker.log_tail(6) in "flood flood"


def test_what_an_entry_raises_is_in_the_log(spawn: Spawn) -> None:
    worker = spawn("hostile:raise_at_once")
    assert death(worker, do="ping").kind is FaultKind.EXITED
    assert "RuntimeError: an entry that fails" in worker.log_tail()


def test_a_dead_worker_stays_dead(worker: WorkerProcess) -> None:
    first = death(worker, do="segfault")
    assert death(worker, do="ping").kind is first.kind


def test_judge_keeps_no_descriptor_of_the_dead(spawn: Spawn) -> None:
    death(spawn(), do="exit_zero")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        death(spawn(), do="exit_zero")
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]
