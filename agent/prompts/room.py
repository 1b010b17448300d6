"""Room in a prompt: sections with a rank, and as many of them as a budget of tokens holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BYTES_PER_TOKEN = 3.0
"""Code comes to 3 to 4 bytes a token with the tokenisers in use; the low end, so that a prompt fits."""


def tokens(text: str) -> int:
    """Estimated tokens of a text, from its UTF-8 bytes."""
    return int(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN) + 1


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with entries under it, the most important first; entries that do not fit are left out."""

    heading: str
    entries: tuple[str, ...]
    rank: int
    """0: every entry is kept whatever the budget; else the lower the sooner it gets room."""


def fit(sections: Sequence[Section], budget: int) -> str:
    """The sections in their order, with the entries that `budget` tokens hold, chosen by rank.

    Of a section's entries the first ones are kept; how many were left out is said.
    """
    kept = {id(section): 0 for section in sections}
    left = budget
    for section in sorted(sections, key=lambda each: each.rank):
        for number, entry in enumerate(section.entries):
            cost = tokens(entry) + (tokens(section.heading) if number == 0 else 0)
            if section.rank and cost > left:
                break
            left -= cost
            kept[id(section)] += 1
    return "\n\n".join(
        _text(section, kept[id(section)]) for section in sections if section.entries and kept[id(section)]
    )


def _text(section: Section, count: int) -> str:
    lines = [f"## {section.heading}", *section.entries[:count]]
    if left := len(section.entries) - count:
        lines.append(f"({left} more did not fit)")
    return "\n".join(lines)
