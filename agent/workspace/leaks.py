"""Where a tool's key may have gone: it is taken out of every text, and whatever else holds it is not kept."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from agent.models.keys import Key


def scrub(text: str, keys: Sequence[Key]) -> str:
    """The text without any key."""
    for key in keys:
        text = key.scrub(text)
    return text


def holds(text: str, keys: Sequence[Key]) -> bool:
    """Whether a file's text has a key in it."""
    return scrub(text, keys) != text


def remove_holders(directory: Path, keys: Sequence[Key]) -> None:
    """Remove every plain file below a directory that has a key in it.

    Nobody writes there any more. A file that cannot be read is left: the tool had no more rights than we.
    """
    secrets = [key.reveal().encode() for key in keys if holds(key.reveal(), [key])]
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names):
            try:
                if _has(path, secrets):
                    path.unlink()
            except OSError:
                continue


def _has(path: Path, secrets: Sequence[bytes]) -> bool:
    """Whether a file has one of them in it; only plain ones are read: others might have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or not info.st_size:
            return False
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(secret) >= 0 for secret in secrets)
    finally:
        os.close(descriptor)
