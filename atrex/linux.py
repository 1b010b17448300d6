"""The few Linux calls that Python does not wrap: namespaces, mounts, capabilities, processes, mappings.

Every function raises OSError with the kernel's reason; constants are from the kernel's uapi headers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x4_0000

CAP_DAC_READ_SEARCH = 2

_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP = 1, 8, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture, as all calls since 5.1
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 0x1
_CAPABILITY_VERSION_3 = 0x2008_0522

_PROT_NONE, _MAP_FIXED = 0x0, 0x10  # the second is another on a few processors of long ago

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
)  # fmt: skip


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def _checked(result: int, call: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


def syscall(call: str, number: int, *arguments: int | ctypes.Array[ctypes.c_char] | object) -> int:
    """A raw system call; integers travel as C long, so that no high half is left undefined."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *wide), call)


def _prctl(name: str, option: int, *arguments: int) -> None:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    _checked(_libc.prctl(option, *map(ctypes.c_ulong, padded)), name)


def unshare(flags: int) -> None:
    """Move the caller (for CLONE_NEWPID: its next children) into new namespaces."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: Path, kind: str | None, flags: int, options: str | None = None) -> None:
    """mount(2)."""
    result = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    _checked(result, f"mount {target}")


def set_read_only(target: Path, read_only: bool, *, recursive: bool = False) -> None:
    """Make a mount (and, if recursive, all below it) read-only or writable; Linux 5.12."""
    attr = _MountAttr(
        attr_set=_MOUNT_ATTR_RDONLY if read_only else 0, attr_clr=0 if read_only else _MOUNT_ATTR_RDONLY
    )
    flags = _AT_RECURSIVE if recursive else 0
    path = ctypes.c_char_p(os.fsencode(target))
    size = ctypes.sizeof(attr)
    syscall("mount_setattr", _SYS_MOUNT_SETATTR, _AT_FDCWD, path, flags, ctypes.byref(attr), size)


def die_with_parent(signal_number: int) -> None:
    """Have the kernel signal the caller when the thread that forked it ends; undone by a change of uid."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Make the caller the parent of every descendant whose own parent ends."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """No execve of the caller or its descendants can gain privileges again."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def set_seccomp_filter(program: int) -> None:
    """Install the classic BPF program whose `struct sock_fprog` lies at this address."""
    _prctl("PR_SET_SECCOMP", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program)


def keep_capabilities_over_setuid() -> None:
    """Let permitted capabilities survive the next setresuid away from root."""
    _prctl("PR_SET_KEEPCAPS", _PR_SET_KEEPCAPS, 1)


def clear_capability_bounds(*kept: int) -> None:
    """Bound what file capabilities can give to `kept`; needs CAP_SETPCAP.

    What is kept must stay in the bounding set, or capset refuses to make it inheritable.
    """
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in set(range(last + 1)) - set(kept):
        _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)


def retain_capabilities(*kept: int) -> None:
    """Give up every capability but `kept` (numbers below 32), which execve then passes on."""
    mask = sum(1 << capability for capability in kept)
    header = _CapabilityHeader(version=_CAPABILITY_VERSION_3, pid=0)
    sets = (_CapabilitySets * 2)(_CapabilitySets(effective=mask, permitted=mask, inheritable=mask))
    _checked(_libc.capset(ctypes.byref(header), sets), "capset")
    _prctl("PR_CAP_AMBIENT_CLEAR_ALL", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in kept:
        _prctl("PR_CAP_AMBIENT_RAISE", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def close_pages(start: int, nbytes: int) -> None:
    """No access to these pages, from an address on a page's edge: it ends the process."""
    _checked(_libc.mprotect(start, nbytes, _PROT_NONE), "mprotect")


def map_file_at(start: int, nbytes: int, descriptor: int) -> None:
    """The beginning of a file in the place of whatever is mapped there; writes stay private."""
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    got = _libc.mmap(start, nbytes, access, flags, descriptor, 0)
    _checked(0 if got == start else -1, "mmap")
