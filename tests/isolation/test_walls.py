"""What a worker must not reach, tried from inside; and the honest work that must go on."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atrex.channel import sealed_memory
from atrex.process import ForkServer, WorkerProcess
from atrex.sandbox import PACKAGE, Limits, SandboxPolicy

from .conftest import refused

Spawn = Callable[..., WorkerProcess]
NEEDED = ("landlock files", "network namespace", "private /proc")


@pytest.fixture
def attempt(worker: WorkerProcess) -> Callable[..., dict[str, Any]]:
    """Have the worker try something, and make sure that it is alive afterwards."""
    missing = [layer for layer in worker.layers if layer.name in NEEDED and not layer.active]
    if missing:
        pytest.skip(f"this machine lacks {missing[0].name}: {missing[0].detail}")

    def act(action: str, **arguments: Any) -> dict[str, Any]:
        reply = worker.request({"do": action, **arguments}, timeout=10)
        assert worker.request({"do": "ping"}, timeout=5) == {"result": "pong"}
        return reply

    return act


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    path.write_text("accepted: false")
    path.chmod(0o666)
    return path


def test_every_layer_is_active_here(worker: WorkerProcess) -> None:
    inactive = [layer for layer in worker.layers if not layer.active]
    if os.geteuid() != 0:
        pytest.skip("needs root for every layer")
    assert not inactive


def test_network(attempt: Callable[..., dict[str, Any]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert refused(attempt("tcp", port=port))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(0.2)
        assert refused(attempt("udp", port=receiver.getsockname()[1]))
        with pytest.raises(TimeoutError):
            receiver.recv(16)
    assert refused(attempt("tcp_listen"))
    name = f"atrex-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        assert refused(attempt("abstract", name=name))


def test_secrets(attempt: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    environment = attempt("environment")["result"]
    assert "PATH" in environment
    assert not [name for name in environment if "KEY" in name or "TOKEN" in name]
    assert "secret" not in environment["/proc/self/environ"]
    assert attempt("read_parent_environment")["error"] == "PermissionError"
    assert attempt("read", path=f"/proc/{os.getpid()}/environ")["error"] == "FileNotFoundError"
    assert len(attempt("processes")["result"]) == 2  # its warden and itself
    assert attempt("read", path="/etc/shadow")["error"] == "PermissionError"


def test_files_of_the_judge(attempt: Callable[..., dict[str, Any]], ledger: Path) -> None:
    for action in ("read", "write", "append", "truncate", "remove", "hard_link"):
        assert refused(attempt(action, path=str(ledger))), action
    assert attempt("read_through_link", path=str(ledger))["error"] == "PermissionError"
    assert refused(attempt("read_by_handle", path=str(ledger)))
    assert ledger.read_text() == "accepted: false"


def test_home_directory(attempt: Callable[..., dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory(prefix=".atrex-test-", dir=Path.home()) as folder:
        key = Path(folder, "id_ed25519")
        key.write_text("private")
        assert attempt("read", path=str(key))["error"] == "PermissionError"


@pytest.mark.parametrize(
    "path",
    [PACKAGE / "records.py", PACKAGE / "planted.py", PACKAGE.parent / "planted", Path("/tmp/atrex-planted")],
)
def test_writes_outside_scratch(attempt: Callable[..., dict[str, Any]], path: Path) -> None:
    before = path.read_bytes() if path.exists() else None
    assert refused(attempt("write", path=str(path)))
    assert (path.read_bytes() if path.exists() else None) == before


def test_repository_is_closed_but_for_our_packages(attempt: Callable[..., dict[str, Any]]) -> None:
    assert "Layer" in attempt("read", path=str(PACKAGE / "sandbox.py"))["result"]
    project = PACKAGE.parent / "pyproject.toml"
    if not project.exists():
        pytest.skip("not a source checkout")
    assert attempt("read", path=str(project))["error"] == "PermissionError"


def test_other_processes(attempt: Callable[..., dict[str, Any]], server: ForkServer) -> None:
    for pid in (os.getpid(), server.pid):
        assert refused(attempt("kill", pid=pid))
        assert refused(attempt("attach", pid=pid))
    assert attempt("attach", pid=1)["error"] in ("PermissionError", "OSError")
    attempt("kill", pid=-1)
    attempt("kill_parent")
    assert os.getsid(server.pid) == server.pid != os.getsid(0)


def test_rights(attempt: Callable[..., dict[str, Any]], scratch: Path) -> None:
    assert attempt("become_root")["error"] == "PermissionError"
    assert attempt("remount")["error"] == "PermissionError"
    assert attempt("raise_limits")["error"] in ("PermissionError", "ValueError")
    assert attempt("make_device")["error"] == "PermissionError"
    assert attempt("spare_descriptors")["result"] == []
    session = attempt("session")["result"]
    assert session["uid"] != 0
    assert (session["cwd"], session["stdin"]) == (str(scratch), "")


def test_a_buffer_of_the_judge_keeps_its_size(worker: WorkerProcess) -> None:
    size = 100 << 20  # more than any file a worker may write
    buffer = sealed_memory("test", size)
    try:
        reply = worker.request({"do": "fill_buffer", "byte": 7}, timeout=10, fds=[buffer])
        assert reply == {"result": size}
        assert os.pread(buffer, 4, size - 4) == b"\7\7\7\7"
        assert refused(worker.request({"do": "shrink_buffer"}, timeout=5, fds=[buffer]))
        assert os.fstat(buffer).st_size == size
    finally:
        os.close(buffer)


# Honest work.


def test_torch_threads(worker: WorkerProcess) -> None:
    assert worker.request({"do": "matmul"}, timeout=20) == {"result": 0.0}


def test_compiler(worker: WorkerProcess) -> None:
    assert worker.request({"do": "compile_and_call"}, timeout=30) == {"result": 42}


def test_triton_interpreter(worker: WorkerProcess) -> None:
    assert worker.request({"do": "triton_add"}, timeout=30) == {"result": [1.0, 2.0, 3.0, 4.0]}


def test_another_interpreter_starts(worker: WorkerProcess) -> None:
    code = "import tempfile, json; print(json.dumps([1]), tempfile.mkdtemp())"
    assert worker.request({"do": "run_python", "code": code}, timeout=20)["result"].startswith("[1] ")


def test_scratch_persists_for_the_next_worker(spawn: Spawn, scratch: Path) -> None:
    first, second = spawn(), None
    first.request({"do": "keep_note", "text": "compiled"}, timeout=5)
    second = spawn()  # while the first lives
    for worker in (first, second):
        assert worker.request({"do": "read", "path": "note"}, timeout=5)["result"] == "compiled"
    second.request({"do": "keep_note", "text": "again"}, timeout=5)
    assert (scratch / "note").read_text() == "again"


def test_read_paths(server: ForkServer, scratch: Path, ledger: Path) -> None:
    policy = SandboxPolicy(scratch, Limits(1 << 30), read_paths=(ledger,))
    with server.spawn("hostile:serve", policy) as worker:
        assert worker.request({"do": "read", "path": str(ledger)}, timeout=5)["result"] == "accepted: false"
        assert refused(worker.request({"do": "write", "path": str(ledger)}, timeout=5))


def test_an_assembler_that_the_user_chose_can_be_run_and_its_neighbour_cannot(scratch: Path) -> None:
    chosen, beside = scratch.parent / "ptxas", scratch.parent / "other"
    for tool in (chosen, beside):
        tool.write_text("#!/bin/sh\necho assembled\n")
        tool.chmod(0o755)
    environment = {"PYTHONPATH": str(Path(__file__).parent), "TRITON_PTXAS_PATH": str(chosen)}
    with (
        ForkServer(preload=["hostile"], environment=environment) as server,
        server.spawn("hostile:serve", SandboxPolicy(scratch, Limits(1 << 30))) as worker,
    ):
        if any(layer.name == "landlock files" and not layer.active for layer in worker.layers):
            pytest.skip("this machine lacks landlock")
        assert worker.request({"do": "run_tool", "path": str(chosen)}, timeout=20) == {
            "result": "assembled\n"
        }
        assert refused(worker.request({"do": "run_tool", "path": str(beside)}, timeout=20))


def test_a_worker_starts_in_tenths_of_a_second(spawn: Spawn) -> None:
    best = 10.0
    for _ in range(3):
        start = time.perf_counter()
        spawn().request({"do": "ping"}, timeout=5)
        best = min(best, time.perf_counter() - start)
    assert best < 0.5


def test_signals_are_python_defaults(worker: WorkerProcess) -> None:
    code = f"import signal; print(signal.getsignal({int(signal.SIGCHLD)}) == signal.SIG_DFL)"
    assert worker.request({"do": "run_python", "code": code}, timeout=20)["result"] == "True\n"
    assert sys.executable
