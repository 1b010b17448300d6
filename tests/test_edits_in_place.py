"""Edits in a tensor's own memory: the same values as a changed copy has."""

from __future__ import annotations

import pytest
import torch

from atrex.inputs import (
    apply_edit,
    apply_edit_in_place,
    bits,
)
from atrex.protocol import Edit


class TestInPlace:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
    @pytest.mark.parametrize("shape", [(5, 7), (4, 3, 2), (6,)])
    def test_the_same_as_a_changed_copy(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        one = Edit(kind="place", input="x", at=(0, 3), values=("one", "nan"))
        rows = Edit(kind="negate_rows", input="x", at=(1, 3))
        scale = Edit(kind="scale", input="x", exponent=2)
        for edit in (one, rows, *((scale,) if dtype.itemsize > 1 else ())):
            for spread in (False, True):
                x = torch.randn(*shape).to(dtype)
                if spread:
                    x = torch.randn(2 * shape[0], *shape[1:]).to(dtype)[::2]
                expected = apply_edit(x, edit)
                apply_edit_in_place(x, edit)
                assert torch.equal(bits(x).contiguous(), bits(expected).contiguous())
