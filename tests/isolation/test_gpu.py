"""The same sandbox with a GPU in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from atrex.process import ForkServer, WorkerProcess
from atrex.sandbox import Limits, SandboxPolicy

from .conftest import refused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def gpu_server() -> Iterator[ForkServer]:
    preload = ["torch", "triton", "hostile"]
    with ForkServer(preload=preload, environment={"PYTHONPATH": str(HERE)}) as server:
        yield server


@pytest.fixture
def gpu_worker(gpu_server: ForkServer, scratch: Path) -> Iterator[WorkerProcess]:
    policy = SandboxPolicy(scratch, Limits(memory_bytes=32 << 30), cuda=True)
    with gpu_server.spawn("hostile:serve", policy) as worker:
        yield worker
    assert not psutil.Process(gpu_server.pid).children(recursive=True)


def test_torch_and_triton(gpu_worker: WorkerProcess) -> None:
    assert gpu_worker.request({"do": "cuda_matmul"}, timeout=120) == {"result": 0.0}
    reply = gpu_worker.request({"do": "triton_add", "device": "cuda"}, timeout=120)
    assert reply == {"result": [1.0, 2.0, 3.0, 4.0]}


def test_walls_hold_beside_the_driver(gpu_worker: WorkerProcess) -> None:
    assert not [layer for layer in gpu_worker.layers if not layer.active]
    assert refused(gpu_worker.request({"do": "write", "path": "/tmp/atrex-planted"}, timeout=10))
    assert refused(gpu_worker.request({"do": "tcp_listen"}, timeout=10))


def test_without_leave_there_is_no_gpu(gpu_server: ForkServer, scratch: Path) -> None:
    policy = SandboxPolicy(scratch, Limits(memory_bytes=8 << 30), cuda=False)
    with gpu_server.spawn("hostile:serve", policy) as worker:
        assert worker.request({"do": "cuda_matmul"}, timeout=60)["error"] == "RuntimeError"


def test_compute_sanitizer_sees_into_the_sandbox(scratch: Path) -> None:
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not on the PATH")
    log = scratch.parent / "memcheck"
    wrapper = (tool, "--tool", "memcheck", "--target-processes", "all", "--log-file", str(log))
    environment = {"PYTHONPATH": str(HERE)}
    with ForkServer(preload=["torch", "hostile"], environment=environment, wrapper=wrapper) as server:
        policy = SandboxPolicy(scratch, Limits(memory_bytes=64 << 30), cuda=True)
        with server.spawn("hostile:serve", policy) as worker:
            assert worker.request({"do": "cuda_matmul"}, timeout=120) == {"result": 0.0}
    assert "ERROR SUMMARY: 0 errors" in log.read_text()
