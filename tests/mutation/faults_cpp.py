"""Faults of C++ kernels in source strings: textual, and only where a pattern can mean one thing."""

from __future__ import annotations

import ast
import re

from tests.mutation.sites import Sites, short
from tests.mutation.source import Edit, Source

# Fault, pattern, replacement. Each match is one mutant.
_PATTERNS: tuple[tuple[str, str, str], ...] = (
    ("off_by_one", r"(?<=; )(\w+) < (\w+)(?=;)", r"\1 < \2 - 1"),
    ("comparison_flip", r"(?<=; )(\w+) < (\w+)(?=;)", r"\1 <= \2"),
    ("drop_eps", r" \+ eps\b", ""),
    ("drop_scale", r" \* (?:scale|gain|factor)\b", ""),
    ("drop_scale", r"\bsum / \w+", "sum"),
    # A statement, not the step of a for loop, which would never end.
    ("drop_addend", r"(?<=[\w\]]) \+= (?=\w[^;)\n]*(?:\([^()]*\)[^;)\n]*)*;)", " = "),
    ("wrong_stride", r" \* \w*stride\b", ""),
    ("constant", r"(?:std::)?\bsqrt(?=\()", ""),
    ("sign_flip", r" \+ (?=eps\b)", " - "),
)


def cpp_faults(code: Source, fault: str) -> Sites:
    """Changes of one fault class in the string literals that hold C++."""
    for node in ast.walk(code.tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and "#include" in node.value):
            continue
        start, text = code.span(node)[0], code.segment(node)
        for name, pattern, replacement in _PATTERNS:
            for match in re.finditer(pattern, text) if name == fault else ():
                first = start + len(text[: match.start()].encode())
                edit = Edit(first, first + len(match[0].encode()), match.expand(replacement))
                at = ast.Constant("", lineno=code.line(first), col_offset=code.column(first))
                line = text[text.rfind("\n", 0, match.start()) + 1 : text.find("\n", match.end())]
                yield at, f"{short(match[0])} -> {edit.text.strip() or 'nothing'} in {short(line)}", (edit,)
