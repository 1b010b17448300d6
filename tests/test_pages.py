"""Memory that PyTorch cannot give: a block that is seen many times over."""

from __future__ import annotations

import os

import psutil
import pytest
import torch

from atrex import pages
from atrex.inputs import repeat_rows
from atrex.pages import seen_repeatedly


def block_of(rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.arange(rows * width).remainder(251).view(rows, width).to(dtype)


@pytest.mark.parametrize(
    ("rows", "width", "dtype"),
    [(61, 2048, torch.bfloat16), (7, 1000, torch.float32), (13, 4096, torch.float8_e4m3fn)],
)
@pytest.mark.parametrize("extra", [0, 1, 5])
def test_the_same_as_a_copy(
    rows: int, width: int, dtype: torch.dtype, extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_LEAST_BYTES", 1 << 20)
    block, many = block_of(rows, width, dtype), 1000 * rows + extra
    seen = seen_repeatedly(block, many)
    assert seen is not None
    assert seen.shape == (many, width)
    assert seen.is_contiguous()
    assert torch.equal(seen.view(torch.uint8), block.view(torch.uint8).repeat(1001, 1)[:many])
    assert torch.equal(repeat_rows(block, many).view(torch.uint8), seen.view(torch.uint8))


def test_a_write_changes_one_place() -> None:
    block = block_of(61, 2048)
    seen = seen_repeatedly(block, 61 * 1100)
    assert seen is not None
    seen[61 * 3 + 4, 5] = -1
    changed = (seen != block.repeat(1100, 1)).nonzero()
    assert changed.tolist() == [[61 * 3 + 4, 5]]
    assert bool((block >= 0).all())


def test_its_memory_is_a_block_s_and_is_given_back() -> None:
    block, process = block_of(61, 8192), psutil.Process()
    before, files = process.memory_full_info().pss, len(os.listdir("/proc/self/fd"))
    mapped = process.memory_info().vms
    for _ in range(3):
        seen = seen_repeatedly(block, 61 * 2000)  # 2 GB
        assert seen is not None
        assert float(seen.max()) == 250
        assert process.memory_full_info().pss - before < 1 << 28
        del seen
    assert process.memory_info().vms - mapped < 1 << 28
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.parametrize(
    ("rows", "width", "many"),
    [(61, 8192, 100), (4099, 8192, 4 * 4099), (1021, 65537, 1 << 20), (1, 2048, 1 << 20)],
)
def test_what_would_not_pay_is_left_alone(rows: int, width: int, many: int) -> None:
    """Too little, a large block, one whose end meets a page's only after gigabytes, too many mappings."""
    assert seen_repeatedly(torch.zeros(rows, width, dtype=torch.bfloat16), many) is None
