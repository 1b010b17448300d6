"""What a tool leaves in its directory: every version of the kernel that it saved, and how much it wrote."""

from __future__ import annotations

import ast
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agent.models.keys import Key
from agent.workspace.leaks import holds
from agent.workspace.prepare import Workspace
from atrex.candidate import Candidate, load_candidate
from atrex.errors import UsageError

MOST_VERSIONS = 64
MOST_LETTERS = 16 << 20  # of all versions together; an honest kernel has some 10 000
_SMALLEST_FILE = 4096  # bytes that an empty file is counted as, so that inodes are bounded too


def read_kernel(path: Path, operator: str) -> Candidate:
    """The kernel file as a candidate; it is read, never run. Raises UsageError, one line.

    The file is opened once and must be a plain one: a process of the tool's could put a pipe in its place.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        link = error.errno == errno.ELOOP
        why = "a link, not a plain file" if link else f"cannot be read ({error.strerror})"
        raise UsageError(f"{path.name}: {why}") from None
    place = f"/proc/self/fd/{descriptor}"
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{path.name}: not a plain file")
        return load_candidate(Path(place), operator)
    except UsageError as error:
        raise UsageError(str(error).replace(place, path.name)) from None
    finally:
        os.close(descriptor)


class Harvest:
    """The versions of kernel.py in the order in which they appeared; the newest are kept."""

    def __init__(self, workspace: Workspace, author: str, keys: Sequence[Key]) -> None:
        """A version that holds one of the keys is none: its source would be kept, shown and run."""
        self._workspace = workspace
        self._author = author
        self._keys = keys
        self._seen: tuple[int, ...] | None = None
        self._versions: dict[str, Candidate] = {}
        self._count = 0
        self.newest: Candidate | None = None
        """The version that was last seen in place, whether or not it had been there before."""

    @property
    def versions(self) -> tuple[Candidate, ...]:
        """Distinct versions that are whole kernels by their form, the skeleton not among them."""
        return tuple(self._versions.values())

    def look(self) -> None:
        """Take in the present version, if it is a new one; half-written files are passed over."""
        try:
            info = os.lstat(self._workspace.kernel)
        except OSError:
            return
        if (seen := (info.st_ino, info.st_size, info.st_mtime_ns)) == self._seen:
            return
        self._seen = seen
        try:
            self._take(read_kernel(self._workspace.kernel, self._workspace.operator))
        except UsageError:
            return

    def last(self) -> Candidate:
        """The version that was left. Raises UsageError, one line, if that is no kernel."""
        candidate = read_kernel(self._workspace.kernel, self._workspace.operator)
        if candidate.id == self._workspace.skeleton.id:
            raise UsageError(f"{self._workspace.kernel.name}: still the skeleton")
        return self._take(candidate)

    def _take(self, candidate: Candidate) -> Candidate:
        if candidate.id == self._workspace.skeleton.id:
            return candidate
        self.newest = self._versions.get(candidate.id) or self._new(candidate)
        return self.newest

    def _new(self, candidate: Candidate) -> Candidate:
        source = candidate.source
        if why := "holds a key" if holds(source, self._keys) else _incomplete(source):
            raise UsageError(f"{self._workspace.kernel.name}: {why}")
        self._count += 1
        found = replace(candidate, note=f"{self._author}, version {self._count}")
        self._versions[found.id] = found
        while self._too_many():
            del self._versions[next(iter(self._versions))]
        return found

    def _too_many(self) -> bool:
        """Whether the oldest has to go: all of them are written to the disk whenever one is new."""
        size = sum(len(version.source) for version in self._versions.values())
        return len(self._versions) > MOST_VERSIONS or (size > MOST_LETTERS and len(self._versions) > 1)


def _incomplete(source: str) -> str:
    """Why this is no whole kernel; empty if it may be one. A file that is being written lacks its end."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "not Python"
    models = (node for node in nodes if isinstance(node, ast.ClassDef) and node.name == "Model")
    return "" if any(models) else "defines no class Model"


def used_bytes(directory: Path, limit: int) -> int:
    """Bytes on disk below a directory; counting stops once they exceed the limit."""
    used, folders = 0, [str(directory)]
    while folders and used <= limit:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    info = entry.stat(follow_symlinks=False)
                    used += max(info.st_blocks * 512, _SMALLEST_FILE)
                    if stat.S_ISDIR(info.st_mode):
                        folders.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # nested so deeply that it cannot be measured
                return limit + 1
    return used
