"""What a reference must say for torch.compile to make of it what a competent user would."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")


def host_loop(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function whose loop has a step a chunk or an expert.

    torch.compile would unroll it: hundreds of steps in one graph, anew for each number of them, for minutes.
    The loop stays in Python instead, and each function that it calls is compiled once.
    """
    return cast(Callable[P, R], torch.compiler.disable(function, recursive=False))


def not_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function, with all that it calls, that is nothing but library calls of ever other sizes."""
    return cast(Callable[P, R], torch.compiler.disable(function))
