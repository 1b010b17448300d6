"""What a dishonest or broken candidate may try. Runs inside a sandboxed worker, never in the test process.

`serve` does what a request names; an action returns what it achieved, or the name of the exception.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import honest

from atrex.channel import Channel, ChannelClosed

HEADER = struct.Struct("!IBQ")
LIBC = ctypes.CDLL(None, use_errno=True)


def serve(channel: Channel) -> None:
    """Answer {"do": action, ...arguments} with {"result": ...} or {"error": ..., "message": ...}."""
    while True:
        try:
            message, fds = channel.receive()
        except ChannelClosed:
            return
        action = ACTIONS[message.pop("do")]
        try:
            channel.send({"result": action(channel, *fds, **message)})
        except (MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:  # noqa: BLE001 - the test reads what was raised
            channel.send({"error": type(error).__name__, "message": str(error)[:500]})


def raise_at_once(channel: Channel) -> None:
    raise RuntimeError("an entry that fails")


def hang_on_start(channel: Channel) -> None:
    """Never read the request: its sender must not block either."""
    time.sleep(3600)


# Ends without an answer.


def hang(channel: Channel) -> None:
    while True:
        pass


def stop_itself(channel: Channel) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def segfault(channel: Channel) -> None:
    ctypes.string_at(0)


def bus_error(channel: Channel) -> None:
    import mmap

    with open("empty", "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        view = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
        view[0] = 1


def abort(channel: Channel) -> None:
    os.abort()


def exit_zero(channel: Channel) -> None:
    os._exit(0)


def close_channel(channel: Channel) -> None:
    channel.close()
    time.sleep(3600)


def spin_in_children(channel: Channel, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    hang(channel)


# Memory and processes.


def allocate(channel: Channel) -> None:
    hoard = []
    while True:
        hoard.append(bytearray(16 << 20))


def allocate_shared(channel: Channel) -> None:
    """Shared mappings do not count against RLIMIT_DATA."""
    import mmap

    hoard = []
    while True:
        hoard.append(mmap.mmap(-1, 16 << 20))
        hoard[-1].write(b"x" * (16 << 20))


def allocate_unmapped(channel: Channel) -> None:
    """Memory files that nobody maps are resident in no process."""
    hoard = []
    while True:
        hoard.append(os.memfd_create("hoard"))
        os.write(hoard[-1], b"x" * (16 << 20))


def allocate_in_children(channel: Channel, count: int, each: int) -> None:
    for _ in range(count):
        if os.fork() == 0:
            keep = bytearray(os.urandom(1 << 20) * (each >> 20))
            time.sleep(3600)
            os._exit(len(keep) & 1)
    time.sleep(3600)


def share_with_children(channel: Channel, count: int) -> int:
    """Honest: children that share their parent's pages use little memory."""
    keep = bytearray(os.urandom(1 << 20) * 200)
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            time.sleep(0.5)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return len(keep)


def fork_until_refused(channel: Channel) -> int:
    count = 0
    while True:
        try:
            child = os.fork()
        except BlockingIOError:
            return count
        if child == 0:
            time.sleep(3600)
            os._exit(0)
        count += 1


def fork_without_end(channel: Channel) -> None:
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)


def daemonise(channel: Channel) -> bool:
    """A grandchild in its own session, which ignores what it can and keeps the channel open."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            time.sleep(3600)
        os._exit(0)
    return True


def daemonise_and_exit(channel: Channel) -> None:
    daemonise(channel)
    os._exit(0)


# Output.


def flood(channel: Channel, megabytes: int) -> str:
    for _ in range(megabytes):
        print("flood " * (1 << 17))
        subprocess.run(["/bin/echo", "more"], check=False)
    LIBC.puts(b"from C")
    return "done"


def print_lines(channel: Channel, text: str) -> None:
    print(text)
    print(text, file=sys.stderr)


# Network.


def tcp(channel: Channel, port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=2)


def tcp_listen(channel: Channel) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))


def udp(channel: Channel, port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        return sender.sendto(b"secret", ("127.0.0.1", port))


def abstract(channel: Channel, name: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + name)


# Secrets and files.


def environment(channel: Channel) -> dict[str, str]:
    inherited = Path("/proc/self/environ").read_bytes().decode(errors="replace")
    return {**os.environ, "/proc/self/environ": inherited}


def read(channel: Channel, path: str) -> str:
    return Path(path).read_text(errors="replace")


def read_parent_environment(channel: Channel) -> str:
    return read(channel, f"/proc/{os.getppid()}/environ")


def processes(channel: Channel) -> list[str]:
    return [entry for entry in os.listdir("/proc") if entry.isdigit()]


def write(channel: Channel, path: str) -> None:
    Path(path).write_text("written by a candidate")


def append(channel: Channel, path: str) -> None:
    with open(path, "a") as file:
        file.write("accepted: true")


def truncate(channel: Channel, path: str) -> None:
    os.truncate(path, 0)


def remove(channel: Channel, path: str) -> None:
    os.unlink(path)


def hard_link(channel: Channel, path: str) -> None:
    os.link(path, "stolen")


def read_through_link(channel: Channel, path: str) -> str:
    os.symlink(path, "window")
    return Path("window").read_text()


def read_by_handle(channel: Channel, path: str) -> str:
    """open_by_handle_at needs CAP_DAC_READ_SEARCH, which a worker may have, and no path."""
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 8 + 128)
    mount = ctypes.c_int()
    if LIBC.name_to_handle_at(-100, path.encode(), handle, ctypes.byref(mount), 0) < 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    here = os.open(".", os.O_RDONLY)
    file = LIBC.open_by_handle_at(here, handle, os.O_RDONLY)
    if file < 0:
        raise PermissionError(ctypes.get_errno(), "open_by_handle_at")
    return os.read(file, 100).decode()


def fill_scratch(channel: Channel) -> None:
    number = 0
    while True:
        Path(f"filler{number}").write_bytes(bytes(8 << 20))
        number += 1
        time.sleep(0.02)


def large_file(channel: Channel) -> None:
    with open("large", "wb") as file:
        while True:
            file.write(bytes(1 << 20))


def make_device(channel: Channel) -> None:
    os.mknod("disk", 0o600 | 0o060000, os.makedev(254, 0))


# Other processes and rights.


def kill(channel: Channel, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_parent(channel: Channel) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.2)


def attach(channel: Channel, pid: int) -> int:
    """ptrace(PTRACE_ATTACH)."""
    if LIBC.ptrace(16, pid, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    return pid


def become_root(channel: Channel) -> None:
    os.setuid(0)


def remount(channel: Channel) -> None:
    """Gain every capability in a user namespace, then try to undo the read-only mounts."""
    LIBC.unshare(0x1002_0000)
    if LIBC.mount(b"none", b"/", None, 0x1000 | 0x20, None) < 0:
        raise PermissionError(ctypes.get_errno(), "mount")


def raise_limits(channel: Channel) -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (100_000, 100_000))


def spare_descriptors(channel: Channel) -> list[int]:
    return [fd for fd in range(3, 64) if _is_open(fd) and fd != channel.fileno()]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def session(channel: Channel) -> dict[str, Any]:
    return {"uid": os.geteuid(), "cwd": os.getcwd(), "stdin": os.read(0, 1).decode(), "sid": os.getsid(0)}


# The protocol.


def raw(channel: Channel, kind: str) -> None:
    """Bytes that are no honest frame; then nothing more."""
    body = b'{"result": "accepted"}'
    frames = {
        "garbage": os.urandom(64) * 64,
        "giant": HEADER.pack(0xFFFF_FFFF, 0, channel.ticket) + bytes(1 << 16),
        "other ticket": HEADER.pack(len(body), 0, channel.ticket ^ 1) + body,
        "no object": HEADER.pack(2, 0, channel.ticket) + b"[]",
        "not JSON": HEADER.pack(7, 0, channel.ticket) + b"\x80\x04pickle"[:7],
        "infinite": HEADER.pack(15, 0, channel.ticket) + b'{"a": Infinity}',
        "nested": HEADER.pack(1 << 20, 0, channel.ticket) + b"[" * (1 << 20),
        "descriptors": HEADER.pack(len(body), 9, channel.ticket) + body,
    }
    _push(channel, frames[kind])
    time.sleep(3600)


def trickle(channel: Channel) -> None:
    _push(channel, HEADER.pack(1000, 0, channel.ticket))
    while True:
        _push(channel, b" ")
        time.sleep(0.05)


def _push(channel: Channel, data: bytes) -> None:
    os.set_blocking(channel.fileno(), True)
    while data:
        data = data[os.write(channel.fileno(), data) :]


def answer_before_the_question(channel: Channel) -> str:
    """The judge's next request would find this in its socket."""
    body = json.dumps({"result": "prepared"}).encode()
    _push(channel, HEADER.pack(len(body), 0, channel.ticket) + body)
    return "prepared"


ACTIONS: dict[str, Callable[..., Any]] = {
    name: action
    for module in (globals(), vars(honest))
    for name, action in module.items()
    if getattr(action, "__module__", "") in ("hostile", "honest") and not name.startswith("_")
}
