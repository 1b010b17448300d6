"""What a reference must say for torch.compile to make of it what a competent user would.

Marks are kept until somebody compiles: torch.compiler.disable imports torch._dynamo, which takes seconds in
every worker that only calls the reference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_marked: list[tuple[Callable[..., Any], bool]] = []  # and whether what the function calls is meant, too


def host_loop(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a module's function whose loop has a step a chunk or an expert.

    torch.compile would unroll it: hundreds of steps in one graph, anew for each number of them, for minutes.
    The loop stays in Python instead, and each function that it calls is compiled once.
    """
    _marked.append((function, False))
    return function


def not_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a module's function that is, with all it calls, nothing but library calls of ever other sizes."""
    _marked.append((function, True))
    return function


def heed_marks() -> None:
    """Have torch.compile heed the marks of all references that are imported by now; again is harmless."""
    while _marked:
        function, recursive = _marked.pop()
        disabled = torch.compiler.disable(function, recursive=recursive)
        setattr(sys.modules[function.__module__], function.__name__, disabled)
