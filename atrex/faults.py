"""What candidate code raises, as the kind of fault that it is. Runs in the worker."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from atrex import protocol
from atrex.records import FaultKind

# What the sandbox's walls answer: permissions, read-only mounts, a network without interfaces.
_WALLS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENETUNREACH, errno.EAFNOSUPPORT}
_REFUSALS = (NotImplementedError, TypeError, ValueError, AssertionError)  # many kernels assert what they need


class CandidateError(Exception):
    """The candidate failed in a way that its own fault kind describes."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.fault = protocol.Fault(kind=kind, message=message[:2000])


@contextmanager
def candidate_code(*, importing: bool = False) -> Iterator[None]:
    """Give whatever candidate code raises, at once or when the device is waited for, a fault kind."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - candidate code may raise anything at all
        fault = classify(error)
        general = fault.kind in (FaultKind.LAUNCH, FaultKind.REFUSED)
        kind = FaultKind.IMPORT if importing and general else fault.kind
        raise CandidateError(kind, fault.message) from None


def classify(error: BaseException) -> protocol.Fault:
    """The fault kind of an exception that candidate code raised."""
    if isinstance(error, CandidateError):
        return error.fault
    names = {cls.__name__ for cls in type(error).__mro__}
    text = f"{type(error).__name__}: {error}"
    kind = FaultKind.LAUNCH
    if names & {"CompileError", "CompilationError", "CompileTimeAssertionFailure", "PTXASError"}:
        kind = FaultKind.COMPILE
    elif isinstance(error, MemoryError) or "OutOfMemoryError" in names or "can't allocate memory" in text:
        kind = FaultKind.OUT_OF_MEMORY
    elif "illegal memory access" in text or "misaligned address" in text:
        kind = FaultKind.ILLEGAL_ACCESS
    elif isinstance(error, OSError) and error.errno in _WALLS:
        kind = FaultKind.FORBIDDEN
    elif isinstance(error, SystemExit):
        kind = FaultKind.EXITED
    elif isinstance(error, _REFUSALS):
        kind = FaultKind.REFUSED
    return protocol.Fault(kind=kind, message=_where(error, text)[:2000])


def _where(error: BaseException, text: str) -> str:
    """The exception with the last line of the candidate's own code that raised it."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith("candidate.py")]
    first_line = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return f"{first_line} (candidate line {frames[-1].lineno})" if frames else first_line
