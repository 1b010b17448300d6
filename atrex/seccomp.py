"""A seccomp filter: system calls that no kernel needs, and that have led out of sandboxes before.

It refuses (EPERM) rather than kills, and lists what is refused rather than what is allowed: GPU drivers
and compilers use many calls. `open_by_handle_at` is why it must be there: with CAP_DAC_READ_SEARCH it
opens files without a path, and Landlock takes a file that its mount does not contain for one below the
mount point, so that a handle opened through scratch would be granted scratch's rights.

Interface: Linux, Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from atrex import linux

# Audit architecture, and numbers by name; from the kernel's system call tables.
_COMMON = {"io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "mount_setattr": 442}
_REFUSED = {
    "x86_64": (
        0xC000_003E,
        {
            "open_by_handle_at": 304,
            "mount": 165,
            "umount2": 166,
            "pivot_root": 155,
            "unshare": 272,
            "setns": 308,
            "bpf": 321,
            "userfaultfd": 323,
            "perf_event_open": 298,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            **_COMMON,
        },
    ),
    "aarch64": (
        0xC000_00B7,
        {
            "open_by_handle_at": 265,
            "mount": 40,
            "umount2": 39,
            "pivot_root": 41,
            "unshare": 97,
            "setns": 268,
            "bpf": 280,
            "userfaultfd": 282,
            "perf_event_open": 241,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            **_COMMON,
        },
    ),
}
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF_0000, 0x0005_0000 | errno.EPERM
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4  # offsets in struct seccomp_data
_X32 = 0x4000_0000  # numbers from here on are x86-64's second table of the same calls


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def restrict() -> tuple[str, ...]:
    """Refuse the calls, for the caller and its descendants, for good; needs no_new_privs.

    Returns their names. Raises OSError, also on an architecture whose numbers are not listed.
    """
    machine = platform.machine()
    if machine not in _REFUSED:
        raise OSError(errno.ENOSYS, f"no system call table for {machine}")
    architecture, refused = _REFUSED[machine]
    code = _program(architecture, sorted(refused.values()))
    program = _Program(length=len(code) // 8, instructions=code)
    linux.set_seccomp_filter(ctypes.addressof(program))
    return tuple(sorted(refused))


def active() -> bool:
    """Whether the caller runs under a filter."""
    with open("/proc/self/status", encoding="utf-8") as status:
        return any(line.split() == ["Seccomp:", "2"] for line in status)


def _program(architecture: int, refused: list[int]) -> bytes:
    """Classic BPF. A jump's two numbers are how many instructions to skip if true, and if not."""
    count = len(refused)
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 0, count + 3, architecture),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, count + 1, 0, _X32),
        *((_IF_EQUAL, count - i, 0, number) for i, number in enumerate(refused)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
