"""Outputs that a candidate's own kernels do not write: the same bits come out when they do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atrex.inputs import bits
from atrex.judge import CandidateFault, Session
from atrex.protocol import Call, InputSpec, LaunchReport
from atrex.records import Device

_LOOKED_AT = 4096  # elements of an output that may be an input's copy
_TIMED = 3
_SHORT_US = 5000.0


def can_withhold(launches: Sequence[LaunchReport], device: Device) -> bool:
    """Whether all of the candidate's own kernels that a traced call launched can be made to do nothing.

    What was launched decides, never what the file says: a comment is enough to look like another language.
    On a CPU all can, whatever a trace from the candidate's process may claim.
    """
    own = [one for one in launches if one.origin == "own"]
    return bool(own) and (device == "cpu" or all(one.stoppable for one in own))


def written_by_others(
    session: Session, spec: InputSpec, plain: Mapping[str, Tensor], inputs: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Names of the outputs that are the same without the candidate's own kernels, and no copy of an input.

    Memory is poisoned, so that nothing right lies there by chance. A wrapper that cannot do without what its
    kernels write says nothing.
    """
    call = Call(inputs=spec, poison="nan", withhold=True, fresh_model=True)
    try:
        without = session.run(call)[0].outputs
    except CandidateFault:
        return ()
    return tuple(
        name
        for name, value in plain.items()
        if name in without and _same(without[name], value) and not _copied(value, inputs)
    )


def unaccounted(session: Session, spec: InputSpec) -> float:
    """Share of a call's time that is left when the candidate's own kernels do nothing, PyTorch's taken off.

    Who has a library compute out of sight (NumPy, a thread) and a kernel of its own copy the result needs
    about as long without the kernel. The shortest of some calls; 0 where what is left is short by itself (a
    wrapper's Python), and where a wrapper cannot do without what its kernels write.
    """
    plain = Call(inputs=spec, deliver=False)
    calls = [plain] * _TIMED + [plain.model_copy(update={"withhold": True})] * _TIMED
    try:
        reports = [outcome.report for outcome in session.run(*calls)]
    except CandidateFault:
        return 0.0
    whole = min(report.call_us for report in reports[:_TIMED])
    left = min(report.call_us - report.operations_us for report in reports[_TIMED:])
    return left / max(1.0, whole) if left > _SHORT_US else 0.0


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, and more than zeros, which a buffer may hold to begin with."""
    if one.shape != other.shape or one.dtype != other.dtype or not bool((other != 0).any()):
        return False
    return torch.equal(bits(one), bits(other))


def _copied(output: Tensor, inputs: Mapping[str, Tensor]) -> bool:
    """Whether its first elements are all found in one input, as they are or cast: copies are glue."""
    few = output.flatten()[:_LOOKED_AT].contiguous()
    for value in inputs.values():
        alike = value.dtype.is_floating_point == few.dtype.is_floating_point
        if alike and bool(torch.isin(bits(few), bits(value.to(few.dtype).flatten())).all()):
            return True
    return False
