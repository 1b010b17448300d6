"""One preloaded fork server for all tests, and the check that no test leaves a process behind."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from atrex.process import ForkServer, WorkerProcess
from atrex.sandbox import Limits, SandboxPolicy

HERE = Path(__file__).parent
Spawn = Callable[..., WorkerProcess]


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTHROPIC_API_KEY", "sk-secret")
        patch.setenv("HF_TOKEN", "hf-secret")
        environment = {"PYTHONPATH": str(HERE), "TRITON_INTERPRET": "1"}
        with ForkServer(preload=["torch", "triton", "hostile"], environment=environment) as server:
            yield server


def descendants(pid: int) -> list[psutil.Process]:
    """All that runs below a process."""
    return psutil.Process(pid).children(recursive=True)


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def refused(reply: dict[str, Any]) -> bool:
    """Whether the kernel refused what a hostile action tried; a mistake in the action is no refusal."""
    return issubclass(getattr(builtins, reply.get("error", "object")), OSError)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    path = tmp_path / "scratch"
    path.mkdir()
    return path


@pytest.fixture
def spawn(server: ForkServer, scratch: Path) -> Iterator[Spawn]:
    """Start a worker on the test's scratch directory; afterwards nothing of it may be left."""
    workers: list[WorkerProcess] = []

    def start(entry: str = "hostile:serve", **limits: int) -> WorkerProcess:
        policy = SandboxPolicy(scratch, Limits(**{"memory_bytes": 1 << 30, **limits}))
        workers.append(server.spawn(entry, policy))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()
    assert not descendants(server.pid)


@pytest.fixture
def worker(spawn: Spawn) -> WorkerProcess:
    return spawn()
