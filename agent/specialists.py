"""Several kernel files made one that chooses between them by case bucket.

    <the incumbent; its class is Model_1>
    # atrex: part 2
    <the specialist; its global names end in _2>
    # atrex: parts {"base": 1, "rules": [[{"token_count": 64}, 2], [{}, 1]]}
    <a class Model that calls the part of the first rule whose bounds all hold>

A merged file that is merged again gains a part, and loses those that no rule names any more.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from agent import dispatch, renaming
from agent.buckets import Bucket, Grid, retable
from agent.dispatch import Rule
from agent.lab import Config
from agent.renaming import Names, Unmergeable
from atrex.candidate import MAX_SOURCE_BYTES, Candidate
from atrex.errors import UsageError
from atrex.problem import Problem
from atrex.records import Case

_PART = "# atrex: part "
_RULES = "# atrex: parts "
_STRUCTURE = re.compile(r"^([ \t]*)# atrex: (parts? .*?)[ \t]*$", re.MULTILINE)
_MARKERS = re.compile(r"^([ \t]*)# atrex: (dispatch|end|parts? .*?)[ \t]*$", re.MULTILINE)
_MOST_RULES = 64  # of a merged file that is taken apart: the cells of its grid grow with a power of them
_OWN = renaming.names("import torch\nclass Model(torch.nn.Module): ...")  # what the dispatcher binds


class Undispatchable(Unmergeable):
    """A dimension of the buckets that neither a constructor argument nor an input's shape shows."""

    def __init__(self, dim: str) -> None:
        super().__init__(f"no constructor argument and no input's shape shows {dim}")
        self.dim = dim


def merge(
    problem: Problem,
    grid: Grid,
    incumbent: Candidate,
    specialist: Candidate,
    buckets: Sequence[Bucket],
    cases: Sequence[Case],
    note: str = "",
) -> Candidate:
    """One file in which the specialist serves some buckets of `grid`, and the incumbent all others.

    A bucket without any of `cases` goes with its neighbours in dimensions that the file cannot see. Raises
    Unmergeable, with one line saying why, if the two do not fit into one file; Undispatchable if the buckets
    cannot be told apart without asking the device; UsageError as `Grid.bucket`.
    """
    if (incumbent.operator, incumbent.dsl) != (specialist.operator, specialist.dsl):
        raise Unmergeable(f"a {specialist.dsl} kernel of {specialist.operator} does not go with this one")
    try:
        served = _with_unused(problem, grid, buckets, cases)
        source = _merged(problem, grid, incumbent.source, specialist.source, served)
    except RecursionError:
        raise Unmergeable("the source is nested too deeply") from None
    if len(source.encode()) > MAX_SOURCE_BYTES:
        raise Unmergeable(f"together they are longer than {MAX_SOURCE_BYTES} bytes")
    return Candidate(incumbent.operator, incumbent.dsl, source, parent=incumbent.id, note=note)


def visible(problem: Problem) -> dict[str, str]:
    """By dimension, the expression in `forward` that shows it: a constructor argument, else a shape."""
    spec = problem.spec
    shown: dict[str, str] = {}
    for name, tensor in spec.inputs.items():
        for axis, dim in enumerate(tensor.shape if not tensor.optional else ()):
            if isinstance(dim, str):
                shown.setdefault(dim, f"{name}.shape[{axis}]")
    # An argument that follows from an extent which every shape states is always given.
    return shown | {init.dim: f"self.{name}" for name, init in spec.init.items() if init.dim in spec.dims}


def _with_unused(
    problem: Problem, grid: Grid, buckets: Sequence[Bucket], cases: Sequence[Case]
) -> list[Bucket]:
    """These buckets, and those without cases that differ from one of them in unseen dimensions only."""
    shown, used = visible(problem), set(grid.group(cases))

    def seen(bucket: Bucket) -> list[int]:
        return [i for i, dim in zip(bucket.index, bucket.dims, strict=True) if dim in shown]

    places = [seen(bucket) for bucket in buckets]
    return [b for b in grid.buckets if b in buckets or (b not in used and seen(b) in places)]


def _merged(problem: Problem, grid: Grid, incumbent: str, specialist: str, buckets: Sequence[Bucket]) -> str:
    parts = _Parts.read(problem, incumbent) or _Parts.single(problem, incumbent)
    moved: dict[Bucket, Config] = {}
    for piece, served in _pieces(problem, grid, specialist, buckets):
        parts, number = parts.holding(problem, piece)
        moved |= {bucket: {"part": number} for bucket in served}
    source = parts.ruled(retable(parts.rules, grid, moved)).source(problem)
    if _table(source) != _table(incumbent):
        raise Unmergeable("the dispatch table of the incumbent could not be read any more")
    return source


def _table(source: str) -> tuple[Rule, ...] | None:
    try:
        return dispatch.read(source)
    except UsageError:
        return None


# Parts


@dataclass(frozen=True, slots=True)
class _Piece:
    """A text that is to become a part, and the number that its names end in if it was one elsewhere."""

    text: str
    features: frozenset[str]  # from `__future__`
    number: int | None = None

    @property
    def entry(self) -> str:
        """The name of its class."""
        return "Model" if self.number is None else f"Model_{self.number}"


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a file by number, and which part serves what (`part` in a rule's configuration)."""

    base: int
    texts: Mapping[int, str]
    rules: tuple[Rule, ...]

    @classmethod
    def single(cls, problem: Problem, source: str) -> _Parts:
        """A file of another kind as the one part of a merged file: only its class gets another name."""
        _require_entry(problem, source, "Model")
        found = renaming.names(source)
        if found.bound.get("torch", _OWN.bound["torch"]) != _OWN.bound["torch"]:
            raise Unmergeable("the incumbent calls something else torch")
        number = next(n for n in count(1) if f"Model_{n}" not in found.words)
        renamed = renaming.rename(source, {"Model": f"Model_{number}"})
        text = _without_markers(renamed, _STRUCTURE, f"of an earlier part {number}").rstrip()
        return cls(number, {number: text}, (Rule({}, {"part": number}),))

    @classmethod
    def read(cls, problem: Problem, source: str) -> _Parts | None:
        """The parts of a merged file; None if it is none, or one that was changed across its parts."""
        head, marked, tail = source.rpartition(f"\n{_RULES}")
        stated = _stated(tail.partition("\n")[0]) if marked else None
        if stated is None:
            return None
        base, rules = stated
        first, *others = re.split(rf"^{_PART}(\d{{1,6}})\n", head, flags=re.MULTILINE)
        texts = {base: first.rstrip()}
        texts |= {int(n): text.strip() for n, text in zip(others[::2], others[1::2], strict=True)}
        try:
            for number, text in texts.items():
                _require_entry(problem, text, f"Model_{number}")
            intact = tail.strip() == _tail(problem, base, rules).removeprefix(_RULES)
            found = [renaming.names(text) for text in texts.values()]
        except Unmergeable:
            return None
        known = len(texts) == 1 + len(others) // 2 and {_part(rule) for rule in rules} <= set(texts)
        apart = not any(one.free & set(other.bound) for one in found for other in found)
        return cls(base, texts, rules) if intact and known and apart else None

    def source(self, problem: Problem) -> str:
        """The file. Raises Undispatchable."""
        parts = [f"{_PART}{n}\n{text}" for n, text in self.texts.items() if n != self.base]
        return "\n\n\n".join([self.texts[self.base], *parts, _tail(problem, self.base, self.rules)]) + "\n"

    def ruled(self, rules: tuple[Rule, ...]) -> _Parts:
        """These parts under other rules, without the parts that no rule names (but with the first)."""
        used = {_part(rule) for rule in rules}
        if len(used) == 1:
            raise Unmergeable("one part serves every bucket, so there is nothing to choose between")
        texts = {n: text for n, text in self.texts.items() if n in used or n == self.base}
        return replace(self, texts=texts, rules=rules)

    def holding(self, problem: Problem, piece: _Piece) -> tuple[_Parts, int]:
        """These parts and this one, with its number; nothing changes if it is among them already."""
        if piece.number == self.base and piece.text == self.texts[self.base]:
            return self, self.base
        _require_entry(problem, piece.text, piece.entry)
        renaming.require_renamable(piece.text)
        own = renaming.names(piece.text)
        for number, text in self.texts.items():
            if number != self.base and _suffixed(piece, own, number, self._names(number)) == text:
                return self, number
        rest = self._names()
        if taken := (own.free & set(rest.bound)) | (own.operations & rest.operations):
            raise Unmergeable(
                f"the specialist takes {min(taken)} from elsewhere, and the incumbent defines it"
            )
        number = max(self.texts) + 1
        while set(_new_names(piece, own, number, rest).values()) & (own.words | rest.words):
            number += 1
        text = _suffixed(piece, own, number, rest)
        first = renaming.with_futures(self.texts[self.base], piece.features)
        return replace(self, texts={**self.texts, self.base: first, number: text}), number

    def _names(self, without: int | None = None) -> Names:
        """The global names of all parts but one, and of the dispatcher."""
        return renaming.union(_OWN, *(renaming.names(t) for n, t in self.texts.items() if n != without))


def _pieces(
    problem: Problem, grid: Grid, specialist: str, buckets: Sequence[Bucket]
) -> list[tuple[_Piece, list[Bucket]]]:
    """What of the specialist serves which buckets: all of it, or some parts of a merged file."""
    parts = _Parts.read(problem, specialist)
    if parts is None:
        return [(_Piece(specialist, renaming.futures(specialist)), list(buckets))]
    features = renaming.futures(parts.texts[parts.base])
    served: dict[int, list[Bucket]] = {}
    for cell in grid.refine(parts.rules).buckets:
        if any(bucket.holds(cell.corner) for bucket in buckets):
            number = int(str(dispatch.lookup(parts.rules, cell.corner)["part"]))
            served.setdefault(number, []).append(cell)
    return [(_Piece(parts.texts[number], features, number), cells) for number, cells in served.items()]


def _new_names(piece: _Piece, own: Names, number: int, rest: Names) -> dict[str, str]:
    """New names for the globals of a piece, but for imports that mean the same in the rest of the file."""
    new: dict[str, str] = {}
    for name, targets in own.bound.items():
        imported = len(targets) == 1 and "" not in targets
        alike = rest.bound[name] == targets if name in rest.bound else name not in rest.free
        if not (imported and alike):
            stem = name.removesuffix(f"_{piece.number}")
            new[name] = f"{name if stem in own.bound else stem}_{number}"
    return new


def _suffixed(piece: _Piece, own: Names, number: int, rest: Names) -> str:
    """The piece as part `number`, without the comments that mark what a file has only once."""
    text = renaming.rename(piece.text, _new_names(piece, own, number, rest))
    return _without_markers(renaming.without_futures(text), _MARKERS, f"of part {number}").strip()


def _without_markers(text: str, markers: re.Pattern[str], owner: str) -> str:
    """The text with other comments in the place of marks. Raises Unmergeable if one is in a string."""
    changed = markers.sub(rf"\1# \2 {owner}", text)
    if not renaming.same_code(changed, text):
        raise Unmergeable("a mark of a table or a part stands in a string")
    return changed


def _require_entry(problem: Problem, source: str, name: str) -> None:
    """Raises Unmergeable unless there is such a class, and its methods take what the dispatcher passes."""
    classes = [n for n in renaming.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name]
    if len(classes) != 1:
        raise Unmergeable(f"the file has {len(classes)} classes {name} at its top level, not one")
    methods = {n.name: n for n in classes[0].body if isinstance(n, ast.FunctionDef)}
    if "__call__" in methods or re.search(r"register_\w*hook", source):
        raise Unmergeable("a call of the class does more than its method `forward`")
    for method, wanted in (("__init__", problem.spec.init), ("forward", problem.spec.inputs)):
        if method in methods and (lacking := _lacking(methods[method], wanted)):
            raise Unmergeable(f"{name}.{method} does not take {lacking[0]}")


def _lacking(method: ast.FunctionDef, wanted: Iterable[str]) -> list[str]:
    """The keywords that a method does not take."""
    args = method.args
    return [] if args.kwarg else sorted(set(wanted) - {one.arg for one in (*args.args, *args.kwonlyargs)})


# The dispatcher


def _part(rule: Rule) -> int:
    return int(str(rule.config["part"]))


def _stated(text: str) -> tuple[int, tuple[Rule, ...]] | None:
    """The first part and the rules as the dispatcher's mark states them; None if it states none."""
    try:
        stated: Any = json.loads(text)
        base, pairs = stated["base"], stated["rules"][:_MOST_RULES]
        rules = tuple(Rule(dict(bounds), {"part": part}) for bounds, part in pairs)
        numbers = [base, *(n for rule in rules for n in (*rule.bounds.values(), *rule.config.values()))]
        legal = all(type(number) is int for number in numbers) and rules and not rules[-1].bounds
        return (base, rules) if legal else None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _tail(problem: Problem, base: int, rules: Sequence[Rule]) -> str:
    """The mark that states the rules, and the class that follows them. Raises Undispatchable."""
    shown = visible(problem)
    if hidden := [dim for rule in rules for dim in rule.bounds if dim not in shown]:
        raise Undispatchable(hidden[0])
    mark = json.dumps({"base": base, "rules": [[rule.bounds, _part(rule)] for rule in rules]})
    used = sorted({_part(rule) for rule in rules})
    asked = {dim for rule in rules for dim in rule.bounds if shown[dim].startswith("self.")}
    lines = [
        f"{_RULES}{mark}",
        "import torch",
        "",
        "",
        "class Model(torch.nn.Module):",
        '    """Calls the part of this file that serves inputs of these extents."""',
        "",
        f"    def __init__({', '.join(['self', *_arguments(problem)])}) -> None:",
        "        super().__init__()",
        *(f"        {shown[dim]} = {shown[dim].removeprefix('self.')}" for dim in sorted(asked)),
        "        # Methods, since to call a module costs a microsecond more.",
        *(line for part in used for line in _construction(problem, shown, rules, part)),
        "",
        f"    def forward({', '.join(['self', *_inputs(problem)])}):",
        *(line for rule in rules for line in _choice(problem, shown, rule)),
    ]
    return "\n".join(lines)


def _arguments(problem: Problem) -> list[str]:
    """The constructor's parameters; an extent without a default is always given, and comes first."""
    spec, given, others = problem.spec, list[str](), list[str]()
    for name, init in spec.init.items():
        if init.default is None and init.dim in spec.dims:
            given.append(f"{name}: {init.type}")
        else:
            optional = " | None" if init.default is None else ""
            others.append(f"{name}: {init.type}{optional} = {init.default!r}")
    return given + others


def _inputs(problem: Problem) -> list[str]:
    inputs = problem.spec.inputs.items()
    needed = [f"{name}: torch.Tensor" for name, tensor in inputs if not tensor.optional]
    return needed + [f"{name}: torch.Tensor | None = None" for name, tensor in inputs if tensor.optional]


def _construction(problem: Problem, shown: Mapping[str, str], rules: Sequence[Rule], part: int) -> list[str]:
    """Make a part, if these constructor arguments can lead to it: it may refuse others."""
    passed = ", ".join(f"{name}={name}" for name in problem.spec.init)
    lines = [
        f"self.part_{part} = Model_{part}({passed})",
        f"self.serve_{part} = self.part_{part}.forward",
    ]
    if condition := _reachable(shown, rules, part):
        return [f"        if {condition}:", *(f"            {line}" for line in lines)]
    return [f"        {line}" for line in lines]


def _reachable(shown: Mapping[str, str], rules: Sequence[Rule], part: int) -> str:
    """The condition on constructor arguments alone under which a rule may choose a part; empty: always."""
    ways = list[str]()
    for number, rule in enumerate(rules):
        if _part(rule) != part:
            continue
        known, shapes = _split(shown, rule)
        terms = [_condition(shown, known)] if known else []
        for earlier in rules[:number]:
            fixed, free = _split(shown, earlier)
            # Where the earlier rule's bounds on shapes are no tighter, its others decide.
            if fixed and all(shapes.get(dim, limit + 1) <= limit for dim, limit in free.items()):
                terms.append(f"not ({_condition(shown, fixed)})")
        if not terms:
            return ""
        ways.append(" and ".join(terms))
    return " or ".join(ways).replace("self.", "")


def _split(shown: Mapping[str, str], rule: Rule) -> tuple[dict[str, int], dict[str, int]]:
    """A rule's bounds on constructor arguments, and those on shapes."""
    known = {dim: limit for dim, limit in rule.bounds.items() if shown[dim].startswith("self.")}
    return known, {dim: limit for dim, limit in rule.bounds.items() if dim not in known}


def _condition(shown: Mapping[str, str], bounds: Mapping[str, int]) -> str:
    return " and ".join(f"{shown[dim]} <= {limit}" for dim, limit in bounds.items())


def _choice(problem: Problem, shown: Mapping[str, str], rule: Rule) -> list[str]:
    passed = ", ".join(f"{name}={name}" for name in problem.spec.inputs)
    call = f"return self.serve_{_part(rule)}({passed})"
    if not rule.bounds:
        return [f"        {call}"]
    dims = ", ".join(rule.bounds)
    return [f"        if {_condition(shown, rule.bounds)}:  # {dims}", f"            {call}"]
