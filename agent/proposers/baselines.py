"""The baselines `eager`, `compile` and `library` of any problem: what a kernel must beat to be of use."""

from __future__ import annotations

from atrex.candidate import Candidate
from atrex.contract import ProblemSpec

_EAGER = '''"""Baseline `eager`: {operator} in PyTorch, as its reference has it."""

from torch import nn

from bench.{operator}.reference import reference


class Model(nn.Module):
    """Calls the reference with the tensors as they come."""

    def __init__(self, **init):
        super().__init__()
        self.init = {{**{defaults!r}, **init}}

    def forward(self, **inputs):
        outputs = reference(self.init, inputs)
        return {returned}
'''

_LIBRARY = '''"""Baseline `library`: {operator} through the fused calls that PyTorch itself has."""

from torch import nn

from bench.{operator}.library import library


class Model(nn.Module):
    """Calls the library with the tensors as they come."""

    def __init__(self, **init):
        super().__init__()
        self.init = {{**{defaults!r}, **init}}

    def forward(self, **inputs):
        outputs = library(self.init, inputs)
        return {returned}
'''

_COMPILE = '''"""Baseline `compile`: {operator} through torch.compile.

The first dimension of every input (tokens, rows, sequences) is compiled once for all its sizes; the others
are what a model fixes, so each of their sizes gets code of its own, as it would in serving.
"""

import torch
import torch._inductor.config
from torch import nn

from bench.compiling import heed_marks
from bench.{operator}.reference import reference

heed_marks()
# Past its limit torch.compile falls back to eager without a word: that would be another baseline.
torch._dynamo.config.recompile_limit = 512
torch._dynamo.config.accumulated_recompile_limit = 4096
torch._dynamo.config.automatic_dynamic_shapes = False
# Inductor drops a rounding between two operations that it fuses; where the operator's definition names that
# rounding (silu_and_mul, fused_add_rms_norm, ...) the result would be another function's.
torch._inductor.config.emulate_precision_casts = True
if torch.__version__ < (2, 13):  # there (2.11 was seen to) a pattern drops fp32 -> bf16 -> fp32 all the same
    torch._inductor.config.pattern_matcher = False


class Model(nn.Module):
    """Calls the compiled reference."""

    def __init__(self, **init):
        super().__init__()
        constants = {{**{defaults!r}, **init}}

        def call(inputs):
            outputs = reference(constants, inputs)
            return {returned}

        # Graphs may break where a reference must know a length on the host, as they do for anybody.
        self.call = torch.compile(call)

    def forward(self, **inputs):
        for name in {batched!r}:
            torch._dynamo.maybe_mark_dynamic(inputs[name], 0)
        return self.call(inputs)
'''


def eager(spec: ProblemSpec) -> Candidate:
    """The reference in eager PyTorch."""
    return Candidate(spec.operator, "torch", _EAGER.format(**_parts(spec)), note="baseline eager")


def compiled(spec: ProblemSpec) -> Candidate:
    """The reference through torch.compile, with code for any size of the first dimension."""
    return Candidate(spec.operator, "torch", _COMPILE.format(**_parts(spec)), note="baseline compile")


def library(spec: ProblemSpec) -> Candidate:
    """PyTorch's own fused calls, for an operator that has bench/<operator>/library.py."""
    return Candidate(spec.operator, "torch", _LIBRARY.format(**_parts(spec)), note="baseline library")


def _parts(spec: ProblemSpec) -> dict[str, object]:
    names = ", ".join(f'outputs["{name}"]' for name in spec.outputs)
    returned = {"tensor": names, "dict": "outputs", "tuple": f"({names},)"}[spec.returns]
    return {
        "operator": spec.operator,
        "defaults": {name: init.default for name, init in spec.init.items()},
        "returned": returned,
        "batched": tuple(name for name, tensor in spec.inputs.items() if tensor.role == "data"),
    }
