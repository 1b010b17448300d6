"""The judge's side of the isolation: a fork server, and the workers it starts.

A request gets one reply or a `WorkerDied`, always by its deadline; after a `WorkerDied` nothing that the
worker started is left. The judge never trusts a byte from a worker: see `atrex.channel`.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from atrex.channel import Channel, ChannelClosed, ProtocolError, sealed_memory
from atrex.errors import EnvironmentProblem
from atrex.records import FaultKind
from atrex.sandbox import PACKAGE, Layer, SandboxPolicy, scrubbed_environment

_LOG_BYTES = 1 << 20  # what a worker prints beyond this is dropped
_KEPT_LOG_BYTES = 1 << 16  # of that, what is kept after its end
_SPAWN_TIMEOUT = 60.0  # seconds; on a busy machine a spawn takes a fraction of one
_GRACE = 2.0  # seconds for a warden to end by itself
_TOOL_GRACE = 60.0  # for a tool around the server, which writes its report at the end


class WorkerDied(Exception):
    """A worker that did not answer; it is dead, and so is everything it started."""

    def __init__(self, kind: FaultKind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class _ServerGone(Exception):
    """The fork server ended before it started the worker."""


class WorkerProcess:
    """One sandboxed worker: requests, its log, and its end. A context manager that kills it.

    `layers` are the walls of its sandbox, as it reported them before any candidate code ran.
    """

    def __init__(self, channel: socket.socket, leash: socket.socket, log: int) -> None:
        self._leash = Channel(leash, max_fds=1)
        self._channel = Channel(channel, watch=leash.fileno())
        self._log = log
        self._last_words: bytes | None = None
        self._warden: int | None = None  # a pidfd: it cannot come to mean another process
        self._death: WorkerDied | None = None
        self._ending = threading.Lock()
        self.layers: tuple[Layer, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def greet(self, deadline: float) -> None:
        """Wait until the worker stands in its sandbox; raises what `Channel.receive` raises."""
        _, (self._warden,) = self._leash.receive(deadline=deadline)
        hello, _ = self._channel.receive(deadline=deadline)
        self.layers = tuple(Layer(**layer) for layer in hello["layers"])

    def request(
        self, message: Mapping[str, Any], *, timeout: float, fds: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Send `message` (and duplicates of `fds`) and return the reply.

        `timeout` is in seconds, for sending and answering together. Raises WorkerDied.
        """
        if self._death is not None:
            raise self._death
        deadline = time.monotonic() + timeout
        ticket = secrets.randbits(64)
        try:
            self._channel.send(message, fds=fds, ticket=ticket, deadline=deadline)
            reply, _ = self._channel.receive(deadline=deadline)
            if self._channel.ticket != ticket:
                raise ProtocolError("a reply that does not answer the request")
        except TimeoutError:
            raise self._died(FaultKind.TIMEOUT, f"no answer within {timeout:g} s") from None
        except ProtocolError as error:
            raise self._died(FaultKind.EXITED, f"the worker broke the protocol: {error}") from None
        except ChannelClosed:
            raise self._died(*self._obituary()) from None
        return reply

    def log_tail(self, n: int = 2000) -> str:
        """The last `n` bytes that the worker printed, of the first MiB."""
        text = self._read_log(n) if self._last_words is None else self._last_words[-n:]
        return text.decode(errors="replace")

    def cpu_seconds(self) -> float:
        """Processor time of everything that the worker started, its ended children included."""
        if self._warden is None:
            return 0.0
        warden = Path(f"/proc/self/fdinfo/{self._warden}").read_text().partition("Pid:")[2].split()[0]
        return sum(_ticks(pid) for pid in _descendants(warden)) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kill everything the worker ever started, and wait until it is gone."""
        with self._ending:
            if self._last_words is not None:
                return
            self._channel.close()
            self._leash.close()
            if self._warden is not None:
                if not _ended(self._warden, _GRACE):
                    signal.pidfd_send_signal(self._warden, signal.SIGKILL)
                    _ended(self._warden, _GRACE)
                os.close(self._warden)
            self._last_words = self._read_log(_KEPT_LOG_BYTES)
            os.close(self._log)
            self._death = self._death or WorkerDied(FaultKind.EXITED, "the judge killed the worker")

    def interrupt(self) -> None:
        """Kill the worker while another thread waits for its answer: that thread sees it die."""
        with self._ending:
            if self._last_words is None and self._warden is not None:
                with suppress(ProcessLookupError):  # it has ended by itself
                    signal.pidfd_send_signal(self._warden, signal.SIGKILL)

    def _died(self, kind: FaultKind, detail: str) -> WorkerDied:
        self._death = WorkerDied(kind, detail)
        self.kill()
        return self._death

    def _obituary(self) -> tuple[FaultKind, str]:
        """What the warden says of the worker's end; a worker may also have closed the channel and live."""
        try:
            report, _ = self._leash.receive(deadline=time.monotonic() + _GRACE)
            return FaultKind(report["kind"]), str(report["detail"])
        except TimeoutError:
            return FaultKind.EXITED, "the worker closed its channel"
        except ChannelClosed:
            return FaultKind.EXITED, "the worker's warden was killed, or the fork server was"

    def _read_log(self, n: int) -> bytes:
        # The write position is shared with the worker, which can move it: to make its own log useless.
        end = min(os.lseek(self._log, 0, os.SEEK_CUR), _LOG_BYTES)
        start = max(0, end - n)
        return os.pread(self._log, end - start, start)


class ForkServer:
    """A process that has imported `preload` and forks workers; a context manager.

    `environment` is added to the scrubbed environment of the server, and so of every worker (a flag that
    an import reads, such as TRITON_INTERPRET, belongs here). `wrapper` is put before its command line.
    Safe to share between threads. Raises EnvironmentProblem when it does not start.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str],
        environment: Mapping[str, str],
        wrapper: Sequence[str] = (),
        startup_timeout: float = 120,
    ) -> None:
        self._preload = tuple(preload)
        self._environment = scrubbed_environment(None, environment)
        self._environment["PYTHONPATH"] = _import_path(environment.get("PYTHONPATH", ""))
        self._wrapper = tuple(wrapper)
        self._startup_timeout = startup_timeout
        self._lock = threading.Lock()
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the server (of its wrapper, if it has one), which leads its own session."""
        return self._process.pid

    def spawn(
        self, entry: str, policy: SandboxPolicy, *, environment: Mapping[str, str] | None = None
    ) -> WorkerProcess:
        """Start a worker that calls `entry` ("module:function") with its Channel, inside the sandbox.

        A server that has died is started again, once. Raises EnvironmentProblem.
        """
        request = {
            "entry": entry,
            "policy": policy.to_json(),
            "environment": dict(environment or {}),
            "wrapped": bool(self._wrapper),
        }
        with self._lock:
            try:
                return self._spawn(request)
            except _ServerGone:
                self._stop()
                self._start()
            try:
                return self._spawn(request)
            except _ServerGone as error:
                raise EnvironmentProblem(f"the fork server dies: {error}") from None

    def close(self) -> None:
        """End the server, and with it every worker."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._log = sealed_memory("atrex-forkserver-log", _LOG_BYTES)
        # -P: the current directory, which may hold anything, is not an import path.
        command = [*self._wrapper, sys.executable, "-P", "-m", "atrex.forkserver", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                env=self._environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is the judge's to answer
            )
        self._control = Channel(ours)
        problem = self._await_preload()
        if problem:
            self._stop()
            raise EnvironmentProblem(f"the fork server did not start: {problem}")

    def _await_preload(self) -> str | None:
        deadline = time.monotonic() + self._startup_timeout
        try:
            self._control.send({"preload": self._preload}, deadline=deadline)
            reply, _ = self._control.receive(deadline=deadline)
        except TimeoutError:
            return f"its imports took more than {self._startup_timeout:g} s"
        except ChannelClosed:
            size = min(os.lseek(self._log, 0, os.SEEK_CUR), _LOG_BYTES)
            printed = os.pread(self._log, size, 0).decode(errors="replace").strip()
            return printed.splitlines()[-1] if printed else "it ended without a word"
        error = reply["error"]
        return None if error is None else str(error)

    def _spawn(self, request: Mapping[str, Any]) -> WorkerProcess:
        deadline = time.monotonic() + _SPAWN_TIMEOUT
        channel, their_channel = socket.socketpair()
        leash, their_leash = socket.socketpair()
        log = sealed_memory("atrex-worker-log", _LOG_BYTES)
        worker = WorkerProcess(channel, leash, log)
        try:
            with their_channel, their_leash:
                fds = (their_channel.fileno(), log, their_leash.fileno())
                self._control.send(request, fds=fds, deadline=deadline)
            worker.greet(deadline)
        except (ChannelClosed, TimeoutError, ProtocolError) as error:
            worker.kill()
            if self._gone():
                raise _ServerGone(str(error)) from None
            said = worker.log_tail().strip().splitlines()[-1:] or [str(error)]
            raise EnvironmentProblem(f"a worker did not reach its sandbox: {said[0]}") from None
        return worker

    def _gone(self) -> bool:
        """Whether the server has closed its end; it sends nothing but its first message."""
        return _ended(self._control.fileno(), 0.5) if self._control.fileno() >= 0 else True

    def _stop(self) -> None:
        """Idempotent: the server ends at the end of file, its wardens with it."""
        if self._control.fileno() < 0:
            return
        self._control.close()
        try:
            self._process.wait(_TOOL_GRACE if self._wrapper else _GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._log)


def _import_path(first: str) -> str:
    """PYTHONPATH of a server: what it is given, what the judge has, and a checkout that is not installed."""
    paths = [*first.split(os.pathsep), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    if (PACKAGE.parent / "pyproject.toml").exists():
        paths.append(str(PACKAGE.parent))
    return os.pathsep.join(dict.fromkeys(filter(None, paths)))


def _ended(descriptor: int, timeout: float) -> bool:
    """Whether a pidfd's process ends, or a socket's peer is gone, within `timeout` seconds."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout * 1000))


def _descendants(pid: str) -> Iterator[str]:
    """All processes below one, without a look at the others of the machine."""
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                    yield child
                    yield from _descendants(child)


def _ticks(pid: str) -> int:
    """Clock ticks of a process in user and kernel mode, and of its children that have ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15])
    return 0


def make_scratch() -> Path:
    """A directory for workers' own ones, with a TMPDIR for the fork server and compute-sanitizer."""
    scratch = Path(tempfile.mkdtemp(prefix="atrex-"))
    scratch.chmod(0o711)
    (scratch / "tmp").mkdir()
    (scratch / "tmp").chmod(0o1777)
    return scratch
