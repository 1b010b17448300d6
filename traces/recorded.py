"""What a profile records of an operation's inputs, once read: extents, types, scalars, the step around it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from traces.phases import Step
from traces.profile import Entry
from traces.scalars import is_kept

Extents = tuple[int, ...]

_MOST_JSON = 1 << 16  # characters of shapes, types or scalars that are read


class Unknown(Exception):
    """The trace does not hold what an expression asks for; the text says what."""


class LeftOut(Unknown):
    """An argument that was not recorded, and that the problem has a default for."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What an entry records of its operation's inputs, and of the step around it."""

    dims: tuple[Any, ...]  # of each input: extents, or those of each tensor of a list
    dtypes: tuple[str, ...]
    scalars: tuple[str, ...]  # texts; empty for what is no scalar
    step: Step | None


def recorded(entry: Entry, step: Step | None) -> Recorded:
    """The inputs of an entry's operation. Raises Unknown, with the reason, where there are none."""
    if entry.graph:
        raise Unknown("replayed from a captured graph: no shapes")
    if not entry.operator:
        raise Unknown("launched outside of any operation: no shapes")
    if not entry.shapes:
        raise Unknown("shapes were not recorded (record_shapes)")
    dims, dtypes = _array(entry.shapes), _array(entry.dtypes or "[]")
    scalars = (item if is_kept(item) else "" for item in _array(entry.scalars or "[]"))
    return Recorded(tuple(map(_tuples, dims)), tuple(map(str, dtypes)), tuple(scalars), step)


def _array(text: str) -> list[Any]:
    try:
        found = json.loads(text) if len(text) <= _MOST_JSON else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise Unknown("the recorded shapes cannot be read")
    return found


def _tuples(item: Any) -> Any:
    """Extents as a tuple of integers, a list of tensors as a tuple of those; empty for anything else."""
    if not isinstance(item, list):
        return ()
    if all(type(part) is int for part in item):
        return tuple(item)
    return tuple(_tuples(part) for part in item)
