"""Indices out of range are refused before the device sees them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atrex.audit.checked import CheckedIndices

X = torch.arange(12.0).view(3, 4)
BEYOND = torch.tensor([0, 3])
MASK = torch.tensor([True, False, True])


@pytest.mark.parametrize(
    "use",
    [
        lambda: X[BEYOND],
        lambda: X[:, BEYOND + 1],
        lambda: X[MASK, BEYOND + 1],
        lambda: X[torch.tensor([-4])],
        lambda: X.clone().index_put_((BEYOND,), torch.zeros(2, 4)),
        lambda: X.index_select(0, BEYOND),
        lambda: X.gather(0, BEYOND[None]),
        lambda: torch.zeros(3).scatter(0, BEYOND, 1.0),
        lambda: torch.zeros(3, 4).index_add(0, BEYOND, torch.ones(2, 4)),
        lambda: torch.nn.functional.embedding(BEYOND, X),
    ],
)
def test_out_of_range_is_one_clear_error(use: Callable[[], Tensor]) -> None:
    with CheckedIndices(), pytest.raises(IndexError, match="an index is out of range for a dimension of"):
        use()


def test_what_is_legal_is_left_as_it_is() -> None:
    def results() -> list[Tensor]:
        low = torch.tensor([-1, 0, 2])
        return [
            X[low], X[:, low], X[MASK], X[MASK, torch.tensor([3, 0])], X[low[:0]],
            X.index_select(1, low.abs()), X.gather(1, low.abs()[:, None]),
            torch.zeros(3).scatter(0, low.abs(), 1.0),
        ]  # fmt: skip

    plain = results()
    with CheckedIndices():
        assert all(torch.equal(one, other) for one, other in zip(results(), plain, strict=True))
