"""Kernels of a candidate that do nothing for the length of a call. Runs in the worker.

What an output holds then was written by somebody else. CUDA and C++ modules that a candidate builds past
`atrex.dsl.cpp` are out of reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from atrex.dsl import cpp


@contextmanager
def withheld(device: torch.device) -> Iterator[None]:
    """Launches of Triton, Gluon and `atrex.dsl.cpp` return at once."""
    with ExitStack() as stack:
        stack.enter_context(cpp.withheld())
        if device.type == "cuda":
            stack.enter_context(_compiled_kernels())
        else:
            _interpreted(stack)
        yield


@contextmanager
def _compiled_kernels() -> Iterator[None]:
    """Both ways to a kernel: through its function, and through one that was compiled before."""
    try:
        from triton.compiler.compiler import CompiledKernel
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield
        return
    with ExitStack() as stack:
        for owner, name, replacement in (
            (JITFunction, "run", _nothing),
            (CompiledKernel, "__getitem__", lambda _kernel, _grid: _nothing),
            (CompiledKernel, "run", property(lambda _kernel: _nothing)),
        ):
            stack.enter_context(mock.patch.object(owner, name, replacement, create=True))
        yield


def _nothing(*_args: Any, **_options: Any) -> None:
    """A launch that is withheld."""


def _interpreted(stack: ExitStack) -> None:
    import sys

    if "triton" in sys.modules:  # a candidate without Triton leaves it out
        from atrex.dsl import interpreter

        stack.enter_context(interpreter.withheld())
