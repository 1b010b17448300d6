"""What counts as a clear refusal, and what does not."""

from __future__ import annotations

import pytest

from atrex.faults import classify
from atrex.records import FaultKind


@pytest.mark.parametrize("error", [NotImplementedError, TypeError, ValueError, AssertionError])
def test_a_refusal(error: type[Exception]) -> None:
    assert classify(error("rows must be packed")).kind is FaultKind.REFUSED


def test_a_failure_is_no_refusal() -> None:
    assert classify(RuntimeError("CUDA error: invalid configuration")).kind is FaultKind.LAUNCH
    assert (
        classify(type("CompileTimeAssertionFailure", (AssertionError,), {})("bad tile")).kind
        is FaultKind.COMPILE
    )
