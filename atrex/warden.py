"""The warden: the trusted process above one worker, pid 1 of the worker's PID namespace.

It outlives whatever the worker does, bounds the memory and the disk space of everything the worker
started, and tells the judge how the worker ended. When it ends itself, the kernel ends all that is left
in the namespace, children that left their session included. It ends as soon as the judge closes the
leash, or the fork server is gone. Without a PID namespace it adopts orphans and kills them one by one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from atrex import linux
from atrex.channel import Channel, ChannelClosed
from atrex.records import FaultKind
from atrex.sandbox import Layer, SandboxPolicy

EXIT_OUT_OF_MEMORY = 77  # a worker whose entry ends in a MemoryError
LAYER = Layer("watchdog", True, "memory and disk of all that a worker starts, by its warden")
_TICK_MS = 50
_TICKS_PER_SCRATCH_CHECK = 20
_SMALLEST_FILE = 4096  # bytes that an empty file is counted as, so that inodes are bounded too
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
Death = tuple[FaultKind, str]


def watch(worker: int, policy: SandboxPolicy, leash: Channel, lifeline: int) -> None:
    """Guard the child process `worker` until it ends or must end; leave no process of it behind."""
    linux.adopt_orphans()
    leash.send({"warden": os.getpid()}, fds=[own := os.pidfd_open(os.getpid())])
    os.close(own)
    with contextlib.suppress(ChannelClosed):
        death = _await_death(worker, policy, leash, lifeline)
        if death is not None:
            leash.send({"kind": death[0], "detail": death[1]})
    _extinguish()


def _await_death(worker: int, policy: SandboxPolicy, leash: Channel, lifeline: int) -> Death | None:
    """How the worker ended, or why it must; None when there is nobody left to tell."""
    poller = select.poll()
    for descriptor in (os.pidfd_open(worker), leash, lifeline):
        poller.register(descriptor, select.POLLIN)
    masters = {leash.fileno(), lifeline}
    kernel_kills = _out_of_memory_kills()
    tick = 0
    while True:
        if masters & {fd for fd, _ in poller.poll(_TICK_MS)}:
            return None
        status = _reap(worker)
        if status is not None:
            return _describe(status, starved=_out_of_memory_kills() > kernel_kills)
        tick += 1
        excess = _memory_excess(policy)
        if excess is None and tick % _TICKS_PER_SCRATCH_CHECK == 0:
            excess = _scratch_excess(policy)
        if excess is not None:
            return excess


def _reap(worker: int) -> int | None:
    """Collect every ended child; the wait status of the worker once it is among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == worker:
                return status
            if pid == 0:
                break
    return None


def _describe(status: int, *, starved: bool) -> Death:
    code = os.waitstatus_to_exitcode(status)
    if code == EXIT_OUT_OF_MEMORY:
        return FaultKind.OUT_OF_MEMORY, "an allocation failed at the memory limit"
    if code >= 0:
        return FaultKind.EXITED, f"the worker exited with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code in _CRASHES:
        return FaultKind.ILLEGAL_ACCESS, f"the worker crashed with {name}"
    if -code == signal.SIGXCPU:
        return FaultKind.TIMEOUT, "the worker used up its CPU time"
    if -code == signal.SIGKILL and starved:
        return FaultKind.OUT_OF_MEMORY, "the kernel killed the worker: the machine is out of memory"
    return FaultKind.EXITED, f"the worker ended by {name}"


def _out_of_memory_kills() -> int:
    """Processes the kernel has killed for memory since boot; 0 where it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


# Memory: resident size is quick to read but counts a page in every process that shares it, so it only
# raises the suspicion, and the proportional size decides. Memory files that nobody has mapped are in
# neither; they are found through the descriptors that hold them open, as deleted files on disk are.


def _memory_excess(policy: SandboxPolicy) -> Death | None:
    limit = policy.limits.memory_bytes
    family = _family()
    held = _held_by_descriptors(family)
    if _used(family, "status", ("RssAnon:", "VmSwap:"), "RssShmem:", held) <= limit:
        return None
    used = _used(family, "smaps_rollup", ("Pss_Anon:", "SwapPss:"), "Pss_Shmem:", held)
    if used <= limit:
        return None
    return FaultKind.OUT_OF_MEMORY, f"{used >> 20} MiB in use, over the limit of {limit >> 20} MiB"


def _used(family: Iterable[int], source: str, private: tuple[str, ...], shared: str, held: int) -> int:
    """Bytes of all processes; a mapped memory file is in `shared` and in `held`, and counted once."""
    own = common = 0
    for pid in family:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/{source}").read_text().splitlines():
                if line.startswith(private):
                    own += int(line.split()[1]) << 10
                elif line.startswith(shared):
                    common += int(line.split()[1]) << 10
    return own + max(common, held)


def _held_by_descriptors(family: Iterable[int]) -> int:
    """Bytes of the files that have no name, and live as long as a descriptor or mapping of them."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in family:
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    info = os.stat(f"/proc/{pid}/fd/{descriptor}")
                    if stat.S_ISREG(info.st_mode) and info.st_nlink == 0:
                        sizes[info.st_dev, info.st_ino] = info.st_blocks * 512
    return sum(sizes.values())


def _family() -> list[int]:
    """Every descendant of this process, as numbered in the /proc that is mounted here."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                # The command's name stands in parentheses and may hold anything, parentheses too.
                fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
                parents[int(entry)] = int(fields[1])
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    family: list[int] = []
    generation = children.get(int(os.readlink("/proc/self")), [])
    while generation:
        family += generation
        generation = [child for pid in generation for child in children.get(pid, [])]
    return family


def _scratch_excess(policy: SandboxPolicy) -> Death | None:
    limit, used = policy.limits.scratch_bytes, 0
    folders = [str(policy.scratch)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    used += max(entry.stat(follow_symlinks=False).st_blocks * 512, _SMALLEST_FILE)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # nested so deeply that it cannot be measured
                return FaultKind.FORBIDDEN, "the scratch directory is nested too deeply"
        if used > limit:
            return FaultKind.FORBIDDEN, f"the scratch directory is over its limit of {limit >> 20} MiB"
    return None


def _extinguish() -> None:
    """Kill all descendants; as pid 1 of a namespace this process need only end."""
    if os.getpid() == 1:
        return
    while family := _family():
        for pid in family:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _reap(0)
        time.sleep(0.005)
