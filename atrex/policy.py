"""The policy under which a result counts: results are compared only under the same one."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

# What decides acceptance and what a latency means; a change of any of it is another policy.
_FILES = (
    "gates",
    "contract.py",
    "dsl",
    "fallback/coverage.py",
    "fallback/operations.py",
    "faults.py",
    "inputs.py",
    "judge.py",
    "kept.py",
    "measure.py",
    "perturb.py",
    "problem.py",
    "protocol.py",
    "statistics.py",
    "timing.py",
    "tracing.py",
    "verify.py",
    "withhold.py",
    "worker.py",
)


@cache
def policy_hash() -> str:
    """First 16 hex digits of the sha256 over the sources of gates and measurement."""
    root = Path(__file__).resolve().parent
    paths = [
        path
        for name in _FILES
        for path in ([root / name] if name.endswith(".py") else (root / name).glob("*.py"))
    ]
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
