"""What one search is for."""

from __future__ import annotations

from dataclasses import dataclass

from atrex.records import Case


@dataclass(frozen=True, slots=True)
class Task:
    """What one search is for, and what it may use over all its sessions."""

    cases: tuple[Case, ...]
    seconds: float
    steps: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    dropout: bool = True
    measured: bool = True
    """Whether the champion is measured afresh against PyTorch at the end."""
