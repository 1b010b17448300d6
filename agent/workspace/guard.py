"""A process between Atrex and a command-line agent, so that nothing which the agent started outlives it.

    python -P -m agent.workspace.guard LEASH PLAN COMMAND…

LEASH is the number of a socket: what the guard could arrange is written there as one line of JSON, and when
its other end closes (Atrex has had enough, or is gone) the agent gets SIGTERM, some seconds later SIGKILL,
and with it everything it started, in whatever session or group. The guard ends with the agent's exit code.

Where the kernel and the user allow it, the agent lives in namespaces of its own: it sees no process but
those below it (so it cannot read another's environment), and the file system is read-only outside the
writable directories. A wall that cannot be built is not reported, and the agent runs without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from atrex import linux

_TICK_MS = 500  # how often ended orphans are collected
_SHARED_MEMORY = "size=1g,mode=1777"
_EMPTY = "size=64k,mode=755"
PROCESSES, FILES = "own processes", "read-only files"


@dataclass(frozen=True, slots=True)
class Plan:
    """What the agent may write, what it must not see, and its seconds between SIGTERM and SIGKILL."""

    writable: tuple[str, ...]
    hidden: tuple[str, ...]
    """Files and directories; a writable directory in one of these is seen all the same."""
    grace: float

    def to_json(self) -> str:
        """One argument of the guard's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Inverse of `to_json`."""
        data = json.loads(text)
        return cls(tuple(data["writable"]), tuple(data["hidden"]), data["grace"])


def main(arguments: Sequence[str]) -> int:
    """Guard a command; the exit code is its own, or 128 and the signal's number."""
    leash, plan, command = int(arguments[0]), Plan.from_json(arguments[1]), list(arguments[2:])
    os.set_inheritable(leash, False)
    walls = _separate()
    inner = os.fork()  # the first process of the new namespace, where there is one
    if inner == 0:
        linux.die_with_parent(signal.SIGKILL)
        os._exit(_inside(leash, plan, walls, command))
    status = os.waitpid(inner, 0)[1]
    return _code(status)


def _separate() -> set[str]:
    """Leave the namespaces of processes (for the next child) and mounts."""
    if os.geteuid() != 0:
        uid, gid = os.getuid(), os.getgid()
        with contextlib.suppress(OSError):
            linux.unshare(linux.CLONE_NEWUSER)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    walls = set[str]()
    with contextlib.suppress(OSError):
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", Path("/"), None, linux.MS_REC | linux.MS_PRIVATE)
        walls.add(FILES)
        linux.unshare(linux.CLONE_NEWPID)
        walls.add(PROCESSES)
    return walls


def _inside(leash: int, plan: Plan, separated: set[str], command: list[str]) -> int:
    linux.adopt_orphans()
    walls = [name for name, build in _WALLS.items() if name in separated and _built(build, plan)]
    os.write(leash, json.dumps(walls).encode() + b"\n")
    try:
        agent = os.posix_spawn(command[0], command, os.environ, setsid=True, setsigdef=[signal.SIGPIPE])
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    status = _watch(agent, leash, plan.grace)
    _extinguish()
    return _code(status)


def _built(build: Callable[[Plan], None], plan: Plan) -> bool:
    try:
        build(plan)
    except OSError:
        return False
    return True


def _read_only(plan: Plan) -> None:
    for path in plan.writable:
        linux.mount(path, Path(path), None, linux.MS_BIND | linux.MS_REC)
    linux.set_read_only(Path("/"), True, recursive=True)
    for path in (*plan.writable, "/proc"):
        linux.set_read_only(Path(path), False)
    linux.mount("tmpfs", Path("/dev/shm"), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, _SHARED_MEMORY)
    here = os.getcwd()
    for hidden in map(Path, plan.hidden):
        if hidden.is_dir():
            _empty(hidden, [Path(path) for path in plan.writable if Path(path).is_relative_to(hidden)])
        elif hidden.exists():
            linux.mount("/dev/null", hidden, None, linux.MS_BIND)
    os.chdir(here)  # out of the directory as it was before it was mounted upon itself


def _empty(directory: Path, kept: Sequence[Path]) -> None:
    """Cover a directory by one that holds nothing but `kept`, which stay what they are."""
    held = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in kept}
    linux.mount("tmpfs", directory, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, _EMPTY)
    for path, descriptor in held.items():
        path.mkdir(parents=True)
        linux.mount(f"/proc/self/fd/{descriptor}", path, None, linux.MS_BIND | linux.MS_REC)
        os.close(descriptor)
    linux.set_read_only(directory, True)


def _own_processes(plan: Plan) -> None:
    del plan
    linux.mount("proc", Path("/proc"), "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)


_WALLS: dict[str, Callable[[Plan], None]] = {FILES: _read_only, PROCESSES: _own_processes}


def _watch(agent: int, leash: int, grace: float) -> int:
    """The wait status of the agent, once it has ended, by itself or because the leash was let go."""
    poller = select.poll()
    poller.register(os.pidfd_open(agent), select.POLLIN)
    poller.register(leash, select.POLLIN | select.POLLHUP)
    deadline: float | None = None
    while True:
        events = {descriptor for descriptor, _ in poller.poll(_TICK_MS)}
        if (status := _reap(agent)) is not None:
            return status
        if leash in events:
            poller.unregister(leash)
            deadline = time.monotonic() + grace
            _kill(-agent, signal.SIGTERM)  # its whole group
        if deadline is not None and time.monotonic() > deadline:
            _kill(-agent, signal.SIGKILL)


def _reap(agent: int) -> int | None:
    """Collect every ended child; the status of the agent once it is among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == agent:
                return status
            if pid == 0:
                break
    return None


def _extinguish() -> None:
    """Kill all that is left; the first process of a namespace need only end."""
    if os.getpid() == 1:
        return
    import psutil  # slow to import, and seldom needed

    while family := psutil.Process().children(recursive=True):
        for process in family:
            _kill(process.pid, signal.SIGKILL)
        _reap(0)
        time.sleep(0.01)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
