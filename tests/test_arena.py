"""What a worker says of a tensor in shared memory: read where it can be true, else refused unread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch

from atrex.arena import Arena, ArenaWriter, ImpossibleReport
from atrex.protocol import TensorReport

CPU = torch.device("cpu")
HONEST: dict[str, Any] = {"dtype": "bfloat16", "shape": (3, 5), "offset": 64}


def report(**said: Any) -> TensorReport:
    told = {"name": "out", "python_type": "torch.Tensor", "device": "cpu", "nbytes": 30, **HONEST, **said}
    return TensorReport(**told)


@pytest.fixture
def arena() -> Iterator[Arena]:
    with closing(Arena(4096)) as arena:
        yield arena


def test_what_was_written_is_read(arena: Arena) -> None:
    writer = ArenaWriter([os.dup(arena.fd)])
    values = [torch.randn(3, 5), torch.arange(7), torch.randn(4).to(torch.float8_e4m3fn)]
    offsets = [writer.write(value) for value in values]
    writer.close()
    for value, offset in zip(values, offsets, strict=True):
        dtype = str(value.dtype).removeprefix("torch.")
        got = arena.read(report(dtype=dtype, shape=tuple(value.shape), offset=offset), CPU)
        assert torch.equal(got.view(torch.uint8), value.view(torch.uint8))


@pytest.mark.parametrize(
    "lie",
    [
        {"dtype": "quint8"},  # to copy one out of raw memory ends the process
        {"dtype": "nn"},
        {"dtype": "no_such_thing"},
        {"shape": (-1, 5)},
        {"shape": (0, 1 << 63)},
        {"shape": (1 << 40, 1 << 40)},
        {"offset": -64},
        {"offset": 1},
        {"offset": 1 << 20},
    ],
    ids=str,
)
def test_what_cannot_be_true_is_not_read(arena: Arena, lie: dict[str, Any]) -> None:
    with pytest.raises(ImpossibleReport, match="the worker reported a tensor"):
        arena.read(report(**lie), CPU)
