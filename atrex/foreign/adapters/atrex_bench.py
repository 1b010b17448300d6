"""Atrex-Bench: candidates with class Model for the operators that this repository knows.

A file belongs to the operator that its folder, or the beginning of its own name, spells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from atrex.errors import UsageError
from atrex.foreign.adapters.item import Item, labels_of, python_files
from atrex.problem import operators, resolve_operator

_MODEL = re.compile(r"^class Model\b", re.MULTILINE)


def find(directory: Path) -> Iterator[Item]:
    """Every file with class Model."""
    labels = labels_of(directory)
    files, unreadable = python_files(directory)
    yield from unreadable
    for path, text in files:
        if not _MODEL.search(text):
            continue
        name = str(path.relative_to(directory).with_suffix(""))
        operator = _operator(path, directory)
        unusable = "" if operator else "neither its folder nor its name is that of an operator"
        label = labels.get(name, labels.get(path.stem))
        yield Item(name, path, text, operator=operator, label=label, unusable=unusable)


def _operator(path: Path, directory: Path) -> str:
    folders = path.relative_to(directory).parts[-2::-1]
    for spelled in (path.stem, *folders, directory.name):
        try:
            return resolve_operator(spelled)
        except UsageError:
            continue
    longest = sorted(operators(), key=len, reverse=True)
    return next((name for name in longest if path.stem.startswith(name)), "")
