"""What several oracles say of values that the definition rounds to a narrower dtype on the way."""

from __future__ import annotations

import torch
from torch import Tensor


def rounded(value: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """fp64 values as a narrower dtype has them, in fp64."""
    return value.to(dtype).double()


def interval(exact: Tensor, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The bf16 value of `exact`, and the least and the largest that a value within `spread` of it may have.

    Most often all three are the same; near a tie two of them are neighbours.
    """
    return rounded(exact), rounded(exact - spread), rounded(exact + spread)
