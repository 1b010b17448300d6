"""The labelled files: what is flagged, and as what."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from atrex.fallback.records import Outcome

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
labels: Any = importlib.import_module("fallback_labels")
FILES = [one for which in labels.SETS for one in labels.labelled(which)]


def test_the_set_is_whole() -> None:
    on_disk = {path for which in labels.SETS for path in (labels.ROOT / which).glob("*.py")}
    assert on_disk == {one.path for one in FILES}
    counts = Counter(one.label for one in FILES)
    assert len(FILES) >= 120
    assert all(counts[outcome] >= 5 for outcome in Outcome)


def test_precision_and_recall() -> None:
    assert min(labels.rates(FILES)) >= labels.BAR


@pytest.mark.parametrize("one", FILES, ids=lambda one: one.name)
def test_flagged_as_labelled(one: Any) -> None:
    """A trick that is seen through counts: where nothing was to be known, a fallback may be found."""
    allowed = {one.label}
    if one.label is Outcome.UNRESOLVED:
        allowed |= {Outcome.FALLBACK, Outcome.PARTIAL}
    assert one.report.verdict in allowed, one.report
