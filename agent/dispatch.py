"""The literal dispatch table of a kernel file: the only part of a file that the search edits.

    # atrex: dispatch
    DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
        ({"token_count": 64}, {"variant": "row", "num_warps": 4}),
        ({}, {"variant": "multirow", "num_warps": 8}),
    ]
    # atrex: end

Each rule holds inclusive upper bounds by dimension name and a configuration. The first rule whose bounds
all hold is used; the last rule has no bounds.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agent.lab import Config
from atrex.errors import UsageError
from atrex.records import Scalar

BEGIN, END = "# atrex: dispatch", "# atrex: end"
_ANNOTATION = "list[tuple[dict[str, int], dict[str, object]]]"


@dataclass(frozen=True, slots=True)
class Rule:
    """Inclusive upper bounds by dimension, and the configuration that is used below them."""

    bounds: dict[str, int]
    config: Config

    def holds(self, point: Mapping[str, int]) -> bool:
        """True iff every bounded dimension of `point` is at most its bound. Raises KeyError if one lacks."""
        return all(point[name] <= limit for name, limit in self.bounds.items())


def lookup(rules: Sequence[Rule], point: Mapping[str, int]) -> Config:
    """The configuration that a kernel with these rules uses at `point`."""
    return next(rule.config for rule in rules if rule.holds(point))


def read(source: str, where: str = "kernel") -> tuple[Rule, ...]:
    """Parse the table. Raises UsageError, naming `where` and the remedy, if it is missing or malformed."""
    return tuple(Rule(dict(rule.bounds), dict(rule.config)) for rule in _parsed(source, where))


@lru_cache(maxsize=256)  # a search looks at the same few files thousands of times
def _parsed(source: str, where: str) -> tuple[Rule, ...]:
    lines, begin, end = _block(source, where)
    literal = _literal("".join(lines[begin + 1 : end]), where)
    if not isinstance(literal, list) or not literal:
        raise UsageError(f"{where}: DISPATCH must be a list with at least one (bounds, configuration)")
    rules = tuple(_rule(entry, number, where) for number, entry in enumerate(literal))
    if rules[-1].bounds:
        raise UsageError(f"{where}: the last rule of DISPATCH has bounds; end the table with ({{}}, …)")
    return rules


def write(source: str, rules: Sequence[Rule], where: str = "kernel") -> str:
    """Replace the table; everything outside the two markers stays the same, byte for byte.

    Raises UsageError as `read`, ValueError for rules that do not end with one without bounds.
    """
    if not rules or rules[-1].bounds:
        raise ValueError("a dispatch table ends with a rule without bounds")
    lines, begin, end = _block(source, where)
    newline = "\r\n" if lines[begin].endswith("\r\n") else "\n"
    table = [f"DISPATCH: {_ANNOTATION} = [", *(f"    {_text(rule)}," for rule in rules), "]", ""]
    return "".join((*lines[: begin + 1], newline.join(table), *lines[end:]))


def tunable(source: str) -> bool:
    """True iff the file marks a dispatch table (which may still be malformed)."""
    return any(line.strip() == BEGIN for line in source.splitlines())


def _block(source: str, where: str) -> tuple[list[str], int, int]:
    lines = source.splitlines(keepends=True)
    places = [[i for i, line in enumerate(lines) if line.strip() == marker] for marker in (BEGIN, END)]
    for marker, found in zip((BEGIN, END), places, strict=True):
        if len(found) != 1:
            raise UsageError(f"{where}: the line '{marker}' must stand exactly once, found {len(found)}")
    (begin,), (end,) = places
    if end < begin:
        raise UsageError(f"{where}: '{END}' stands before '{BEGIN}'; swap them")
    return lines, begin, end


def _literal(block: str, where: str) -> Any:
    try:
        body = ast.parse(block).body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{where}: the dispatch block is not Python: {error}") from None
    match body:
        case [
            ast.AnnAssign(target=ast.Name(id="DISPATCH"), value=ast.expr() as value)
            | ast.Assign(targets=[ast.Name(id="DISPATCH")], value=value)
        ]:
            pass
        case _:
            raise UsageError(f"{where}: the dispatch block must be one assignment to DISPATCH")
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise UsageError(f"{where}: DISPATCH must be a literal: no names, calls or arithmetic") from None


def _rule(entry: Any, number: int, where: str) -> Rule:
    match entry:
        case (dict() as bounds, dict() as config):
            pass
        case _:
            raise UsageError(f"{where}: DISPATCH[{number}] must be a tuple (bounds, configuration)")
    if not all(isinstance(name, str) and type(limit) is int for name, limit in bounds.items()):
        raise UsageError(f"{where}: DISPATCH[{number}]: bounds must map dimension names to integers")
    if not all(isinstance(name, str) and isinstance(value, Scalar) for name, value in config.items()):
        raise UsageError(f"{where}: DISPATCH[{number}]: a configuration maps tunables to plain values")
    return Rule(bounds, config)


def _text(rule: Rule) -> str:
    bounds, config = (
        "{" + ", ".join(f"{_value(name)}: {_value(value)}" for name, value in mapping.items()) + "}"
        for mapping in (rule.bounds, rule.config)
    )
    return f"({bounds}, {config})"


def _value(value: Scalar) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot stand in a dispatch table: it is not a Python literal")
    return json.dumps(value) if isinstance(value, str) and value.isascii() else repr(value)
