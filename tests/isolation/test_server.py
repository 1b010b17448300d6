"""Life and death of the fork server, and what is left of the sandbox on lesser machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from atrex import sandbox
from atrex.errors import EnvironmentProblem
from atrex.process import ForkServer, WorkerDied
from atrex.records import FaultKind
from atrex.sandbox import Limits, SandboxPolicy

from .conftest import refused, wait_until

HERE = Path(__file__).parent
ENVIRONMENT = {"PYTHONPATH": str(HERE)}


@pytest.fixture
def light() -> Iterator[ForkServer]:
    with ForkServer(preload=["hostile"], environment=ENVIRONMENT) as server:
        yield server


def policy(scratch: Path) -> SandboxPolicy:
    return SandboxPolicy(scratch, Limits(memory_bytes=1 << 30))


def test_a_dead_server_is_started_again(light: ForkServer, scratch: Path) -> None:
    old = light.spawn("hostile:serve", policy(scratch))
    below = [p.pid for p in psutil.Process(light.pid).children(recursive=True)]
    os.kill(light.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied) as caught:
        old.request({"do": "hang"}, timeout=5)
    assert caught.value.kind is FaultKind.EXITED
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in below))
    with light.spawn("hostile:serve", policy(scratch)) as worker:
        assert worker.request({"do": "ping"}, timeout=5) == {"result": "pong"}


def test_closing_the_server_ends_its_workers(scratch: Path) -> None:
    with ForkServer(preload=["hostile"], environment=ENVIRONMENT) as server:
        worker = server.spawn("hostile:serve", policy(scratch))
        worker.request({"do": "daemonise"}, timeout=5)
        below = [server.pid, *(p.pid for p in psutil.Process(server.pid).children(recursive=True))]
    assert len(below) >= 3
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in below))


def test_everything_ends_with_a_killed_judge(scratch: Path) -> None:
    code = f"""
        import sys, psutil
        from pathlib import Path
        from atrex.process import ForkServer
        from atrex.sandbox import Limits, SandboxPolicy
        server = ForkServer(preload=["hostile"], environment={{"PYTHONPATH": {str(HERE)!r}}})
        worker = server.spawn("hostile:serve", SandboxPolicy(Path({str(scratch)!r}), Limits(1 << 30)))
        worker.request({{"do": "daemonise"}}, timeout=5)
        print(server.pid, *(p.pid for p in psutil.Process(server.pid).children(recursive=True)), flush=True)
        worker.request({{"do": "hang"}}, timeout=60)
    """
    judge = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert judge.stdout is not None
    pids = [int(pid) for pid in judge.stdout.readline().split()]
    assert len(pids) >= 3
    judge.kill()
    judge.wait()
    judge.stdout.close()
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_preload_that_fails_is_named() -> None:
    with pytest.raises(EnvironmentProblem, match="cannot import no_such_module"):
        ForkServer(preload=["no_such_module"], environment={})


def test_a_wrapper_that_fails_is_named() -> None:
    with pytest.raises(EnvironmentProblem, match="no such tool"):
        ForkServer(preload=[], environment={}, wrapper=["sh", "-c", "echo no such tool >&2; exit 1"])


def test_secrets_are_refused_in_the_environment() -> None:
    with pytest.raises(ValueError, match="MY_API_KEY"):
        ForkServer(preload=[], environment={"MY_API_KEY": "x"})


def test_relative_paths_are_refused() -> None:
    with pytest.raises(ValueError, match="absolute: scratch"):
        SandboxPolicy(Path("scratch"), Limits(1 << 30))


def test_probe_tells_what_a_worker_gets() -> None:
    names = {layer.name for layer in sandbox.probe()}
    assert {"pid namespace", "network namespace", "landlock files", "limits", "watchdog"} <= names


# Lesser machines. Each wrapper takes something away from the server before it starts.


def _works(*wrapper: str) -> bool:
    return os.geteuid() == 0 and subprocess.run([*wrapper, "true"], capture_output=True).returncode == 0


NO_NAMESPACES = (
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-ec",
    'for n in user pid net mnt ipc; do echo 0 > /proc/sys/user/max_${n}_namespaces; done; exec "$@"',
    "sh",
)


def test_without_namespaces(scratch: Path) -> None:
    if not _works(*NO_NAMESPACES):
        pytest.skip("cannot take namespaces away here")
    with ForkServer(preload=["hostile"], environment=ENVIRONMENT, wrapper=NO_NAMESPACES) as server:
        with server.spawn("hostile:serve", policy(scratch)) as worker:
            active = {layer.name: layer.active for layer in worker.layers}
            assert not active["pid namespace"]
            assert not active["network namespace"]
            assert active["landlock files"]
            for pid in (server.pid, os.getpid()):
                assert worker.request({"do": "kill", "pid": pid}, timeout=5)["error"] == "PermissionError"
            assert refused(worker.request({"do": "kill_parent"}, timeout=5))
            outside = str(scratch.parent / "planted")
            assert worker.request({"do": "write", "path": outside}, timeout=5)["error"] == "PermissionError"
            assert refused(worker.request({"do": "write", "path": "/dev/shm/planted"}, timeout=5))
            assert refused(worker.request({"do": "tcp_listen"}, timeout=5))
            reply = worker.request({"do": "read", "path": f"/proc/{os.getpid()}/environ"}, timeout=5)
            assert reply["error"] == "PermissionError"
            worker.request({"do": "daemonise"}, timeout=5)
        assert not psutil.Process(server.pid).children(recursive=True)
        with server.spawn("hostile:serve", policy(scratch)) as worker, pytest.raises(WorkerDied) as caught:
            worker.request({"do": "allocate_in_children", "count": 6, "each": 300 << 20}, timeout=15)
        assert caught.value.kind is FaultKind.OUT_OF_MEMORY
        assert not psutil.Process(server.pid).children(recursive=True)


def test_under_a_tool_that_follows_process_ids(scratch: Path) -> None:
    """compute-sanitizer around a GPU worker: every wall but the PID namespace, and still no survivor."""
    with ForkServer(preload=["hostile"], environment=ENVIRONMENT, wrapper=("env",)) as server:
        with server.spawn("hostile:serve", SandboxPolicy(scratch, Limits(1 << 30), cuda=True)) as worker:
            active = {layer.name for layer in worker.layers if layer.active}
            if "mount namespace" not in active:
                pytest.skip("needs a mount namespace")
            assert {"read-only mounts", "network namespace", "landlock files", "session"} <= active
            assert not active & {"pid namespace", "private /proc"}
            for pid in (server.pid, os.getpid()):
                assert refused(worker.request({"do": "kill", "pid": pid}, timeout=5))
            worker.request({"do": "daemonise"}, timeout=5)
        assert not psutil.Process(server.pid).children(recursive=True)


def test_as_an_ordinary_user(scratch: Path, tmp_path: Path) -> None:
    """The interpreter may lie in root's closed home; an overlay opens it to the user in private."""
    (tmp_path / "upper").mkdir()
    (tmp_path / "work").mkdir()
    script = (
        f"cd {tmp_path}; mount -t overlay overlay -o lowerdir=/root,upperdir=upper,workdir=work /root; "
        'chmod 755 /root; exec setpriv --reuid=12345 --regid=12345 --clear-groups --inh-caps=-all "$@"'
    )
    ordinary = ("unshare", "--mount", "sh", "-ec", script, "sh")
    if not _works(*ordinary):
        pytest.skip("cannot become an ordinary user here")
    os.chown(scratch, 12345, 12345)
    with ForkServer(preload=["hostile"], environment=ENVIRONMENT, wrapper=ordinary) as server:
        with server.spawn("hostile:serve", policy(scratch)) as worker:
            active = {layer.name: layer.active for layer in worker.layers}
            assert active["landlock files"]
            assert worker.request({"do": "session"}, timeout=5)["result"]["uid"] == 12345
            assert refused(worker.request({"do": "become_root"}, timeout=5))
            assert worker.request({"do": "compile_and_call"}, timeout=30) == {"result": 42}
            if active["pid namespace"]:
                worker.request({"do": "kill", "pid": -1}, timeout=5)
            worker.request({"do": "daemonise"}, timeout=5)
        assert not psutil.Process(server.pid).children(recursive=True)
        with server.spawn("hostile:serve", policy(scratch)) as worker, pytest.raises(WorkerDied) as caught:
            worker.request({"do": "allocate_unmapped"}, timeout=15)
        assert caught.value.kind is FaultKind.OUT_OF_MEMORY


def test_processor_time_of_a_worker(light: ForkServer, scratch: Path) -> None:
    """What it and its children spend is read from outside, whether they have ended or not."""
    with light.spawn("hostile:serve", policy(scratch)) as worker:
        worker.request({"do": "ping"}, timeout=5)
        idle = worker.cpu_seconds()
        worker.request({"do": "busy_child", "seconds": 0.5}, timeout=20)
        assert worker.cpu_seconds() > idle + 0.3
