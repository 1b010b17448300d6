"""Before torch is loaded, so that the tests' own judges keep still while they wait (`atrex/__init__.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import atrex

if TYPE_CHECKING:
    from atrex.judge import Engine

assert atrex.WORKER


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """One for all: its fork server takes seconds to load torch."""
    from atrex.judge import Engine

    with Engine("cpu", threads=1) as made:
        yield made
