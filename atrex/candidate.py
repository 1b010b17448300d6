"""A candidate kernel: one self-contained source file, identified by its content."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from atrex.errors import UsageError
from atrex.records import Dsl

MAX_SOURCE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Candidate:
    """Source text for one operator; nothing of it is ever imported by the process that judges."""

    operator: str
    dsl: Dsl
    source: str
    parent: str | None = None
    note: str = ""

    @property
    def id(self) -> str:
        """Hex sha256 of operator, dsl and source: the name under which everything is recorded."""
        digest = hashlib.sha256()
        for part in (self.operator, self.dsl, self.source):
            digest.update(part.encode("utf-8", "surrogatepass"))
            digest.update(b"\0")
        return digest.hexdigest()


def load_candidate(path: Path, operator: str, dsl: Dsl | None = None) -> Candidate:
    """Read a candidate file; the dsl is the stated one, or is read off the imports.

    Raises UsageError if the file cannot be read as UTF-8 text of at most 4 MiB.
    """
    source = read_source(path, "cannot read the candidate file")
    return Candidate(operator, dsl or detect_dsl(source), source)


def read_source(path: Path, unreadable: str = "cannot be read") -> str:
    """The text of a source file. Raises UsageError unless it is UTF-8 text of at most 4 MiB."""
    try:
        # A pipe under a source's name would be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path}: {unreadable} (no regular file)")
            data = file.read(MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {unreadable} ({error.strerror})") from None
    if len(data) > MAX_SOURCE_BYTES:
        raise UsageError(f"{path}: longer than {MAX_SOURCE_BYTES} bytes, the most that is read")
    try:
        return data.decode("utf-8-sig")  # a byte-order mark is no part of the source
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None


def detect_dsl(source: str) -> Dsl:
    """The language of the kernels in a candidate, from its imports only (the code is not run).

    A file that does not parse is called ``torch``: the worker will report why it fails.
    """
    modules = imported(source)
    if any("gluon" in name for name in modules):
        return "gluon"
    if any(name.split(".")[0] == "triton" for name in modules):
        return "triton"
    known: tuple[Dsl, ...] = get_args(Dsl)
    return next((dsl for dsl in known if f"atrex.dsl.{dsl}" in modules), "torch")


def imported(source: str) -> set[str]:
    """Full names of what a file's import statements name; nothing if it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    modules = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return modules
