"""The policy under which results count."""

from __future__ import annotations

from pathlib import Path

from atrex import policy


def test_every_file_that_decides_is_there() -> None:
    root = Path(policy.__file__).parent
    assert [name for name in policy._FILES if not (root / name).exists()] == []
    assert len(policy.policy_hash()) == 16
