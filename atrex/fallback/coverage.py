"""Outputs that a candidate's own kernels do not write: the same bits come out when they do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atrex.candidate import imported
from atrex.inputs import bits
from atrex.judge import CandidateFault, Session
from atrex.protocol import Call, InputSpec, LaunchReport
from atrex.records import Device

# What builds or launches CUDA kernels past Triton.
_BUILDERS = ("torch.utils.cpp_extension", "cupy", "numba", "pycuda", "cuda", "ctypes", "cffi")
_LOOKED_AT = 4096  # elements of an output that may be an input's copy
_TIMED = 3
_SHORT_US = 5000.0


def can_withhold(launches: Sequence[LaunchReport], device: Device, source: str) -> bool:
    """Whether all of the candidate's own kernels that a traced call launched can be made to do nothing.

    On a CPU all can, and on a GPU those of a file that imports nothing which builds others, whatever a trace
    from the candidate's process may claim. Else what was launched decides, and never a comment.
    """
    own = [one for one in launches if one.origin == "own"]
    builds = any(f"{name}.".startswith(f"{one}.") for name in imported(source) for one in _BUILDERS)
    return bool(own) and (device == "cpu" or not builds or all(one.stoppable for one in own))


def written_by_others(
    session: Session, spec: InputSpec, inputs: Mapping[str, Tensor], before: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Names of the outputs that are the same without the candidate's own kernels, and no copy of an input.

    The process must not have seen these inputs: the call without kernels comes first, so that nothing right
    lies in memory by chance. An output that is what it was `before`, on other inputs, says nothing, nor does
    a wrapper that cannot do without what its kernels write. Raises CandidateFault where the call with them
    fails.
    """
    call = Call(inputs=spec, poison="nan", withhold=True, fresh_model=True)
    try:
        without = session.run(call)[0].outputs
    except CandidateFault:
        return ()
    plain = session.run(Call(inputs=spec))[0].outputs
    return tuple(
        name
        for name, earlier in before.items()
        if name in without
        and name in plain
        and _same(without[name], plain[name])
        and not _same(earlier, plain[name])
        and not _copied(plain[name], inputs)
    )


def unaccounted(session: Session, spec: InputSpec) -> float:
    """Share of a call's time that is left when the candidate's own kernels do nothing, PyTorch's taken off.

    Who has a library compute out of sight (NumPy, a thread) and a kernel of its own copy the result needs
    about as long without the kernel. The shortest of some calls; 0 where what is left is short by itself (a
    wrapper's Python), and where a wrapper cannot do without what its kernels write.
    """
    plain = Call(inputs=spec, deliver=False)
    without = plain.model_copy(update={"withhold": True})
    accounting = without.model_copy(update={"account": True})
    try:
        reports = [outcome.report for outcome in session.run(*[plain, without, accounting] * _TIMED)]
    except CandidateFault:
        return 0.0
    whole, rest = (min(report.call_us for report in reports[i::3]) for i in (0, 1))
    left = rest - min(report.operations_us for report in reports[2::3])
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
