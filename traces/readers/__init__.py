"""Readers of profilers' files: one module a format, each with

    sniff(head: bytes, path: Path) -> bool  # whether the first bytes, unpacked, are of its format
    read(path: Path) -> Reading             # the launches of a file; raises UnreadableTrace

A reader makes launches of what the tool wrote; `traces.condense` adds them up, the same way for every tool.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas

from atrex.errors import UsageError
from traces.condense import Condensed
from traces.profile import UNKNOWN, Format


class UnreadableTrace(UsageError):
    """A file that no profile can be made of, and why: one line that names the file (exit 2)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader found in one file."""

    format: Format
    # The launch table, one row a launch (columns: `traces.condense.COLUMNS`); or entries that the reader has
    # added up itself, where a table would not fit in memory.
    launches: pandas.DataFrame | Condensed
    hardware: str = UNKNOWN  # the device's name, as the tool gives it
    rank: int | None = None
    world_size: int | None = None
    complaints: tuple[str, ...] = ()  # what could not be used, a line each, with how many


__all__ = ["Reading", "UnreadableTrace"]
