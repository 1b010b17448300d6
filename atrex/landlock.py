"""Landlock: an unprivileged process restricts itself and its descendants, for good.

Interface and ABI history: Linux, Documentation/userspace-api/landlock.rst. Files since ABI 1 (5.13),
TCP since 4 (6.7), device ioctls since 5 (6.10), signals and abstract Unix sockets since 6 (6.12).
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Mapping
from enum import IntFlag
from functools import reduce
from operator import or_
from pathlib import Path

from atrex.linux import syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _PATH_BENEATH = 1, 1

NETWORK_ABI = 4
SCOPE_ABI = 6


class Access(IntFlag):
    """What may be done with a file or below a directory."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


_EVERYTHING = reduce(or_, Access)
_OF_A_FILE = Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE | Access.IOCTL_DEV
_SINCE = {2: Access.REFER, 3: Access.TRUNCATE, 5: Access.IOCTL_DEV}

READ = Access.EXECUTE | Access.READ_FILE | Access.READ_DIR
DEVICE = Access.READ_FILE | Access.WRITE_FILE | Access.IOCTL_DEV
WRITE = _EVERYTHING & ~(Access.MAKE_CHAR | Access.MAKE_BLOCK | Access.IOCTL_DEV)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """The kernel's Landlock ABI; OSError where it has none or it is switched off."""
    return syscall("landlock", _CREATE_RULESET, None, 0, _GET_VERSION)


def restrict(rules: Mapping[Path, Access]) -> int:
    """Allow the file access in `rules` and nothing else; no TCP; no signal or abstract socket outside.

    Needs no_new_privs. Paths that the caller cannot reach are skipped. Returns the ABI that was used.
    """
    version = abi()
    late = [access for since, access in _SINCE.items() if version < since]
    handled = reduce(lambda known, access: known & ~access, late, _EVERYTHING)
    ruleset = _Ruleset(
        files=handled,
        network=0b11 if version >= NETWORK_ABI else 0,
        scoped=0b11 if version >= SCOPE_ABI else 0,
    )
    # An older kernel accepts a longer structure as long as what it does not know is zero.
    size = ctypes.sizeof(ruleset)
    descriptor = syscall("landlock_create_ruleset", _CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    try:
        for path, access in rules.items():
            _allow(descriptor, path, access & handled)
        syscall("landlock_restrict_self", _RESTRICT_SELF, descriptor, 0)
    finally:
        os.close(descriptor)
    return version


def _allow(ruleset: int, path: Path, access: Access) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            access &= _OF_A_FILE
        rule = _PathBeneath(allowed=access, parent=parent)
        syscall("landlock_add_rule", _ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)
