"""What an adapter finds in a directory: one kernel, with what it is to be held against."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrex.candidate import read_source
from atrex.errors import UsageError
from atrex.foreign.messages import Source

Label = bool | None  # what the source says: right, wrong, nothing


@dataclass(frozen=True, slots=True)
class Item:
    """One kernel of an audit. `unusable`: why it cannot be judged, known without running anything."""

    id: str
    path: Path
    kernel: str
    source: Source | None = None  # its reference
    argument: str = ""  # how a command line names the reference
    operator: str = ""  # one of our operators instead of a reference
    label: Label = None
    unusable: str = ""


Adapter = Callable[[Path], Iterator[Item]]


def python_files(directory: Path) -> tuple[list[tuple[Path, str]], list[Item]]:
    """All Python files below a directory with their text, by name; and an item for each that has none.

    What cannot be read may be a kernel: it gets a row that says why it was not judged.
    """
    found, unreadable = list[tuple[Path, str]](), list[Item]()
    for path in sorted(directory.rglob("*.py")):
        if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in path.parts):
            try:
                found.append((path, read_source(path)))
            except UsageError as error:
                name = str(path.relative_to(directory).with_suffix(""))
                unreadable.append(Item(name, path, "", unusable=str(error)))
    return found, unreadable


def read_json(path: Path) -> Any:
    """A JSON file. Raises UsageError naming it."""
    try:
        return json.loads(read_source(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file. Raises UsageError naming file and line."""
    for number, line in enumerate(read_source(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path}:{number}: not an object")
        yield row


def labels_of(directory: Path) -> dict[str, bool]:
    """labels.json of a directory: item or file name to whether the source calls it right."""
    path = directory / "labels.json"
    if not path.is_file():
        return {}
    data = read_json(path)
    if not isinstance(data, dict) or not all(isinstance(value, bool) for value in data.values()):
        raise UsageError(f"{path}: must map names to true (right) or false (wrong)")
    return data
