"""Scalar arguments of operations, as torch.profiler records them with their shapes: "Concrete Inputs".

    kept(["", "1e-06", "[512, 4096]", "/home/alice"])    # '["","1e-06","[512, 4096]",""]'
    value("1e-06")                                       # 1e-06

Each argument is a text: empty for tensors and for what is not recorded, else a value as PyTorch prints it
(torch/csrc/profiler/collection.cpp keeps integers, floats, truth values and lists of them). Nothing else is
kept: no free text enters a profile this way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from traces.profile import UNKNOWN

MOST_ARGUMENTS = 128
MOST_NUMBERS = 64  # of a list: longer ones say little, and differ from launch to launch
MOST_CHARACTERS = 256  # of one argument

Scalar = bool | int | float
Value = Scalar | tuple[Scalar | None, ...] | None

_DIGITS = r"(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})"
_ONE = rf"(?:True|False|None|[-+]?(?:inf|nan|{_DIGITS}(?:e[-+]?[0-9]{{1,3}})?))"
_WHOLE = re.compile(rf"{_ONE}|\[(?:{_ONE}(?:, ?{_ONE})*)?\]")
_WORDS: dict[str, bool | None] = {"True": True, "False": False, "None": None}


def kept(texts: Sequence[Any]) -> str:
    """What stays of an operation's arguments: a JSON array of texts; empty if nothing does."""
    if len(texts) > MOST_ARGUMENTS:
        return UNKNOWN
    found = [text if is_kept(text) else "" for text in texts]
    return json.dumps(found, separators=(",", ":")) if any(found) else UNKNOWN


def is_kept(text: Any) -> bool:
    """Whether it is a number, a truth value, None or a list of those that is not too long."""
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
        return False
    return text.count(",") < MOST_NUMBERS and bool(_WHOLE.fullmatch(text))


def value(text: str) -> Value:
    """The value of a text for which `is_kept` holds; a list is a tuple."""
    if text.startswith("["):
        inner = text[1:-1]
        return tuple(_one(part.strip()) for part in inner.split(",")) if inner else ()
    return _one(text)


def _one(text: str) -> Scalar | None:
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if text.lstrip("+-").isdigit() else float(text)
