"""Regular expressions of rules, restricted so that no name of a trace can make one run for long.

Names come from files of others, and rules from users; Python's matcher backtracks. So a pattern's worst case
is bounded before it is used: a search begins at each of the `MOST_TEXT` characters that it sees, unless the
pattern begins with `^`; a repeat multiplies what follows by the number of lengths it can have; alternatives
add up. A pattern of more than 2 ** `MOST_BITS` steps is refused, as are a repeat of what varies in length
itself, whose cost is exponential, and back-references.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import log2
from typing import Any

MOST_TEXT = 600  # characters of a name that patterns see; what follows are arguments of templates
MOST_PATTERN = 1000
MOST_BITS = 21.0  # 2 ** 21 steps are less than a tenth of a second, for a name made for it

_parser: Any = getattr(re, "_parser")  # noqa: B009  (no public access to a parsed pattern)
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The compiled pattern. Raises ValueError if it is none, or might run for long."""
    if len(pattern) > MOST_PATTERN:
        raise ValueError(f"pattern of {len(pattern)} characters; at most {MOST_PATTERN}")
    try:
        compiled = re.compile(pattern, re.ASCII)  # without other alphabets, ten times as quick
        bits = _bits(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if not pattern.startswith("^"):
        bits += log2(MOST_TEXT)
    if bits > MOST_BITS:
        raise ValueError(
            f"{pattern!r} may take 2^{bits:.0f} steps: begin it with ^, or use fewer of .* and ?"
        )
    return compiled


def cut(text: str) -> str:
    """The part of a name that patterns see."""
    return text[:MOST_TEXT]


def _bits(tree: Iterable[Any]) -> float:
    """Binary logarithm of the number of ways in which a part can match. Raises ValueError."""
    total = 0.0
    for operation, argument in tree:
        name = str(operation)
        if name in _REPEATS:
            least, most, body = argument
            within = _bits(body)
            if within and int(most) > 1:
                raise ValueError("a repeat of what varies in length itself may run for ever: write it out")
            total += within + log2(min(int(most), MOST_TEXT) - min(int(least), MOST_TEXT) + 1)
        elif name == "BRANCH":
            total += log2(sum(2.0 ** _bits(alternative) for alternative in argument[1]))
        elif name in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
            total += _bits(argument[-1])
        elif name == "ATOMIC_GROUP":
            total += _bits(argument)
        elif name.startswith("GROUPREF"):
            raise ValueError("a back-reference may run for long: leave it out")
    return total
