"""A model's answer: a hypothesis, a predicted gain, and a whole file or edits of the one it was shown.

Nothing of it is run. What cannot be read is a MalformedAnswer with one line that says what to mend.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass

from agent import dispatch
from agent.lab import Tunables
from atrex.candidate import MAX_SOURCE_BYTES
from atrex.errors import UsageError

LONGEST_LINE = 300  # characters of a hypothesis that are kept
_FIELD = r"^[ \t*#>_-]{0,20}%s[ \t*_]{0,10}:(.{1,2000})"
_SEARCH, _MIDDLE, _REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
_LARGEST = 2**63  # of an integer that is a parameter
_PYTHON = ("python", "py", "python3", "")


class MalformedAnswer(ValueError):
    """Why an answer cannot be used, in one line."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was read of a reply."""

    hypothesis: str
    technique: str
    gain: float
    source: str
    tunables: Tunables


def parse(text: str, base: str, dims: Collection[str]) -> Answer:
    """Read an answer whose edits, if any, are of `base`; `dims` are what a dispatch table may bound.

    Raises MalformedAnswer.
    """
    head = text.partition("```")[0].partition("<<<<<<<")[0]
    hypothesis = hypothesis_of(text)
    if not hypothesis:
        raise MalformedAnswer("there is no line HYPOTHESIS: …")
    source = _source(text, base)
    return Answer(
        hypothesis=hypothesis,
        technique=_word(_field(head, "technique")) or "unnamed",
        gain=_gain(_field(head, "gain")),
        source=source,
        tunables=_tunables(_field(head, "tunables"), source, dims),
    )


def hypothesis_of(text: str) -> str:
    """The hypothesis, wherever it stands; empty if there is none."""
    return _field(text, "hypothesis")[:LONGEST_LINE]


def _field(text: str, name: str) -> str:
    found = re.search(_FIELD % name, text, re.MULTILINE | re.IGNORECASE)
    return " ".join(found[1].split()).strip("*_ ") if found else ""


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9 +-]", "", text.lower())[:40].strip()


def _gain(text: str) -> float:
    found = re.search(r"\d+(?:\.\d+)?", text)
    if not found:
        raise MalformedAnswer("there is no line GAIN: with a number such as 1.25")
    value = float(found[0])
    if not (math.isfinite(value) and 0 < value < 1e6):
        raise MalformedAnswer(f"GAIN {found[0]} is no speed-up")
    return value


def _source(text: str, base: str) -> str:
    blocks = _Blocks()
    for line in text.splitlines(keepends=True):
        blocks.take(line)
    edits, files = blocks.edits, blocks.files
    if blocks.old is not None:
        raise MalformedAnswer(f"an edit has no line {_REPLACE}")
    if edits and files:
        raise MalformedAnswer("there are both a whole file and edits; give one of them")
    source = _edited(base, edits) if edits else _only(files)
    if len(source.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
        raise MalformedAnswer(f"the file is longer than {MAX_SOURCE_BYTES} bytes")
    _check(source)
    return source


class _Blocks:
    """Fences and edits of a text, line by line: its length is the model's, so no pattern may go back."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.edits: list[tuple[str, str]] = []
        self.old: list[str] | None = None  # of the edit that is open
        self._new: list[str] | None = None
        self._marker = ""  # that ends the fence that is open
        self._file: list[str] | None = None  # its lines; None where it is of another language, or has edits

    def take(self, line: str) -> None:
        """One more line."""
        bare = line.rstrip()
        if self.old is not None:
            self._edit(line, bare)
        elif bare == _SEARCH:
            self.old, self._file = [], None
        elif not self._marker and line.startswith("```"):
            self._marker = line[: len(line) - len(line.lstrip("`"))]
            self._file = [] if bare.strip("`").strip().lower() in _PYTHON else None
        elif self._marker and bare == self._marker:
            if self._file is not None:
                self.files.append("".join(self._file))
            self._marker, self._file = "", None
        elif self._file is not None:
            self._file.append(line)

    def _edit(self, line: str, bare: str) -> None:
        assert self.old is not None
        if self._new is None and bare == _MIDDLE:
            self._new = []
        elif self._new is not None and bare == _REPLACE:
            self.edits.append(("".join(self.old), "".join(self._new)))
            self.old = self._new = None
        else:
            (self.old if self._new is None else self._new).append(line)


def _only(files: list[str]) -> str:
    if not files:
        raise MalformedAnswer("there is neither a ```python fence that is closed nor an edit")
    if len(files) > 1:
        raise MalformedAnswer(f"there are {len(files)} fences; put the whole file into one")
    return files[0]


def _edited(base: str, edits: list[tuple[str, str]]) -> str:
    for number, (old, new) in enumerate(edits, 1):
        count = base.count(old) if old.strip() else 0
        if count != 1:
            many = f"occurs {count} times in" if count else "is not in"
            raise MalformedAnswer(f"the SEARCH part of edit {number} {many} the file to improve")
        base = base.replace(old, new)
    return base


def _check(source: str) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):  # an odd escape is no concern of the run's log
            tree = ast.parse(source)
    except SyntaxError as error:
        raise MalformedAnswer(f"the file is not Python: {error.msg} (line {error.lineno})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise MalformedAnswer(f"the file is not Python: {type(error).__name__}") from None
    if not any(isinstance(node, ast.ClassDef) and node.name == "Model" for node in tree.body):
        raise MalformedAnswer("the file has no class Model at its top level")


def _tunables(text: str, source: str, dims: Collection[str]) -> Tunables:
    """Values by parameter, each in ascending order where they are numbers, that the dispatch table has."""
    if not text or text.lower() in ("none", "{}", "-", "n/a"):
        return {}
    try:
        found = json.loads(text)
        table = dispatch.read(source, "the file")
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(f"TUNABLES is not one line of JSON ({type(error).__name__})") from None
    except UsageError as error:
        raise MalformedAnswer(f"TUNABLES need a dispatch table: {error}") from None
    if not isinstance(found, dict):
        raise MalformedAnswer("TUNABLES is no JSON object of lists")
    if strange := sorted({name for rule in table for name in rule.bounds} - set(dims)):
        raise MalformedAnswer(f"DISPATCH bounds {strange[0]!r}; bounds are of {', '.join(sorted(dims))}")
    pairs = [pair for rule in table for pair in rule.config.items()]
    if odd := [name for name, value in pairs if not (_sound(name) and (value is None or _sound(value)))]:
        raise MalformedAnswer(f"DISPATCH: {odd[0]!r} has a value that is none")
    known = {name for name, _ in pairs}
    tunables: Tunables = {}
    for name, values in found.items():
        sound = isinstance(values, list) and values and all(map(_sound, values))
        if name not in known or not sound:
            raise MalformedAnswer(f"TUNABLES: {name} is no list of values for a parameter of the table")
        tunables[name] = tuple(sorted(set(values), key=lambda value: (isinstance(value, str), value)))
    return tunables


def _sound(value: object) -> bool:
    """Whether a JSON value can be a parameter's and stand in a ledger: no NaN, no half of a character."""
    if isinstance(value, str):
        return value.isprintable()
    if isinstance(value, int):
        return abs(value) < _LARGEST
    return isinstance(value, float) and math.isfinite(value)
