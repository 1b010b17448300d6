"""Rules that say which operator, or which class outside ours, a launch belongs to: traces/rules*.yaml.

    rules = load_rules()                      # the built-in ones
    rules = load_rules(Path("mine.yaml"))     # those of a file first, then the built-in ones

docs/traces_rules.md has the form of a rule. The first rule that matches wins. Each rule has examples, names
of kernels or operations that it must win; that is checked whenever a file is loaded, so a rule that an
earlier one hides, or whose patterns match nothing, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from atrex import strict_yaml
from atrex.errors import UsageError
from atrex.records import Phase, Record
from traces.names import fused_operations, readable
from traces.patterns import compile_pattern, cut
from traces.phases import step_of
from traces.placed import UNPLACED
from traces.profile import Entry, Kind
from traces.recorded import Recorded, Unknown, recorded
from traces.shapes import Condition, Expression, parse_condition, parse_expression

BUILT_IN = Path(__file__).resolve().parent / "rules.yaml"
REST = BUILT_IN.with_name("rules_rest.yaml")  # tried after those
BENCH = Path(__file__).resolve().parent.parent / "bench"
REMEDY = "see docs/traces_rules.md for the form"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=80)]
Target = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=80)]
T = TypeVar("T")

CaseValue = bool | int | float | str | list[int]

# Fields of a rule that are patterns, and the texts of an entry that each is searched in.
TEXTS: dict[str, Callable[[Entry], tuple[str, ...]]] = {
    "kernel": lambda entry: (readable(entry.kernel),),
    "operator": lambda entry: (entry.operator,),
    "stack": lambda entry: entry.stack,
    "module": lambda entry: (entry.module,),
    "annotation": lambda entry: entry.annotations,
}


class Example(Record):
    """What a rule must win: the texts of an entry, as a profiler writes them."""

    kernel: str = ""
    operator: str = ""
    stack: tuple[str, ...] = ()  # operations around `operator`, outermost first
    module: str = ""
    shapes: str = ""
    dtypes: str = ""
    scalars: str = ""
    annotations: tuple[str, ...] = ()
    kind: Kind = "kernel"

    def entry(self) -> Entry:
        """The entry of one launch of it."""
        stack = (*self.stack, *((self.operator,) if self.operator else ()))
        texts = self.model_dump(exclude={"stack"})
        return Entry(**texts, stack=stack, launches=1, device_us=1.0, busy_us=1.0)


class Rule(Record):
    """Which entries go where. Of its patterns and conditions, all that are given must hold."""

    name: Name
    target: Target
    kind: Kind | None = "kernel"  # null: kernels, copies and fills alike
    kernel: str = ""
    operator: str = ""
    stack: str = ""
    module: str = ""
    annotation: str = ""
    fused: tuple[str, ...] = ()  # operations that a kernel of Inductor's must name
    not_fused: tuple[str, ...] = ()  # and that it must not
    where: tuple[str, ...] = ()  # comparisons of shapes
    phase: Phase | None = None  # where the kernel serves one phase only
    main: bool = True  # false: a further kernel of a call, which counts no call
    per_call: Annotated[int, Field(ge=1)] = 1  # launches of one call
    case: dict[str, CaseValue] = Field(default_factory=dict)
    why: str = ""  # why there is no case
    examples: Annotated[tuple[Example, ...], Field(min_length=1)]

    @field_validator("examples", mode="before")
    @classmethod
    def _names(cls, given: Any) -> Any:
        """A text is the name of a kernel."""
        if not isinstance(given, list):
            return given
        return [{"kernel": item} if isinstance(item, str) else item for item in given]

    @model_validator(mode="after")
    def _consistent(self) -> Rule:
        if self.target == UNPLACED:
            raise ValueError(f"{UNPLACED} is what no rule matches: name an operator or a class")
        if self.kind in ("kernel", None) and not any((*self.patterns.values(), self.fused)):
            raise ValueError("matches all kernels: give kernel, operator, stack, module, annotation or fused")
        if self.case and (self.why or not self.main):
            raise ValueError("case: leave it out where main is false, or why says that there is none")
        return self

    @property
    def patterns(self) -> dict[str, str]:
        """The patterns that are given, by the field whose texts they are searched in."""
        return {name: pattern for name in TEXTS if (pattern := getattr(self, name))}


class RuleFile(Record):
    """A file of rules; each is read on its own, so that an error can name it."""

    classes: dict[Target, str] = Field(default_factory=dict)  # targets outside our operators: what they are
    rules: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]


class Texts:
    """What rules see of an entry: its names, cut to a length that patterns are quick on, and its shapes."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.step = entry, step_of(entry.annotations)
        self.fields = {name: tuple(map(cut, texts(entry))) for name, texts in TEXTS.items()}
        self._recorded: Recorded | Unknown | None = None

    def fuses(self, these: tuple[str, ...], none_of: tuple[str, ...]) -> bool:
        """Whether it is a kernel of Inductor's with all of these operations, and none of those."""
        named = fused_operations(self.fields["kernel"][0])
        if not named or any(f"_{name}_" in named for name in none_of):
            return False
        return all(f"_{name}_" in named for name in these)

    def recorded(self) -> Recorded:
        """The inputs of its operation. Raises Unknown."""
        if self._recorded is None:
            try:
                self._recorded = recorded(self.entry, self.step)
            except Unknown as reason:
                self._recorded = reason
        if isinstance(self._recorded, Unknown):
            raise self._recorded
        return self._recorded

    def holds(self, conditions: tuple[Condition, ...]) -> bool:
        """Whether all comparisons of shapes hold; not if there are no shapes."""
        try:
            from_ = self.recorded()
        except Unknown:
            return False
        return all(condition(from_) for condition in conditions)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A rule, ready to be tried."""

    rule: Rule
    patterns: dict[str, Callable[[str], object]]
    where: tuple[Condition, ...]
    case: tuple[tuple[str, Expression], ...]
    ours: bool

    def holds(self, texts: Texts) -> bool:
        """Whether everything but its patterns holds for an entry."""
        rule = self.rule
        if rule.kind is not None and rule.kind != texts.entry.kind:
            return False
        if (rule.fused or rule.not_fused) and not texts.fuses(rule.fused, rule.not_fused):
            return False
        return not self.where or texts.holds(self.where)


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules, in the order in which they are tried."""

    compiled: tuple[Compiled, ...]
    classes: dict[str, str]  # targets outside our operators, with what they are

    @property
    def targets(self) -> tuple[str, ...]:
        """All targets: the operators of bench/, and the classes."""
        return (*operators(), *self.classes)


@dataclass(slots=True)
class Finder:
    """Finds rules. It remembers which patterns a text matched: texts repeat far more often than entries."""

    rules: Rules
    _matched: dict[tuple[str, str], dict[int, bool]] = field(default_factory=dict)

    def find(self, texts: Texts) -> Compiled | None:
        """The first rule that matches an entry; None if none does."""
        known = {name: [self._known(name, text) for text in values] for name, values in texts.fields.items()}
        for number, compiled in enumerate(self.rules.compiled):
            if all(self._any(number, name, known[name]) for name in compiled.patterns) and compiled.holds(
                texts
            ):
                return compiled
        return None

    def _known(self, name: str, text: str) -> tuple[str, dict[int, bool]]:
        """A text, with what is known of the rules whose pattern for a field it matches."""
        return text, self._matched.setdefault((name, text), {})

    def _any(self, number: int, name: str, known: list[tuple[str, dict[int, bool]]]) -> bool:
        """Whether a rule's pattern for a field matches any of an entry's texts."""
        for text, matched in known:
            if number not in matched:
                matched[number] = bool(self.rules.compiled[number].patterns[name](text))
            if matched[number]:
                return True
        return False


@cache
def operators() -> tuple[str, ...]:
    """Names of our operators, from the directories of bench/: no problem is loaded."""
    return tuple(sorted(path.parent.name for path in BENCH.glob("*/problem.yaml")))


def load_rules(path: Path | None = None) -> Rules:
    """The built-in rules; with a file, its rules before them.

    Raises UsageError, one line: file, rule, field and remedy.
    """
    return _built_in() if path is None else _load(path, _built_in())


@cache
def _built_in() -> Rules:
    return _load(BUILT_IN, _load(REST, Rules((), {})))


def _load(path: Path, then: Rules) -> Rules:
    file = strict_yaml.read(path, RuleFile.model_validate, f"; {REMEDY}")
    classes = {**then.classes, **file.classes}
    if both := sorted(set(classes) & set(operators())):
        raise UsageError(f"{path}: classes: {both[0]} is an operator of bench/: name the class otherwise")
    taken = {compiled.rule.name for compiled in then.compiled}
    own = list[Compiled]()
    for number, raw in enumerate(file.rules):
        own.append(_compiled(path, str(raw.get("name") or f"number {number + 1}"), raw, classes, taken))
    rules = Rules((*own, *then.compiled), classes)
    _check_examples(path, own, Finder(rules))
    return rules


def _compiled(
    path: Path, name: str, raw: dict[str, Any], classes: Iterable[str], taken: set[str]
) -> Compiled:
    """One rule of a file; its name joins `taken`. Raises UsageError."""
    try:
        rule = Rule.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "(the rule)"
        raise _wrong(path, name, place, first["msg"]) from None
    if name in taken:
        raise _wrong(path, name, "name", "another rule has it; give every rule a name of its own")
    taken.add(name)
    if rule.target not in operators() and rule.target not in classes:
        message = f"{rule.target} is no operator of bench/ and no class; add it to classes:, or correct it"
        raise _wrong(path, name, "target", message)
    patterns = {place: _tried(path, name, place, compile_pattern, p) for place, p in rule.patterns.items()}
    return Compiled(
        rule=rule,
        patterns={place: pattern.search for place, pattern in patterns.items()},
        where=tuple(_tried(path, name, "where", parse_condition, text) for text in rule.where),
        case=tuple((key, _expression(path, name, key, value)) for key, value in rule.case.items()),
        ours=rule.target in operators(),
    )


def _expression(path: Path, name: str, key: str, value: CaseValue) -> Expression:
    """Texts are expressions; numbers, truth values and lists stand for themselves."""
    if isinstance(value, str):
        return _tried(path, name, f"case.{key}", parse_expression, value)
    literal: Any = value
    return lambda _from: literal


def _tried(path: Path, name: str, place: str, make: Callable[[str], T], text: str) -> T:
    try:
        return make(text)
    except ValueError as error:
        raise _wrong(path, name, place, str(error)) from None


def _wrong(path: Path, name: str, place: str, message: str) -> UsageError:
    line = " ".join(message.removeprefix("Value error, ").split())
    return UsageError(f"{path}: rule {name}: field {place}: {line}; {REMEDY}")


def _check_examples(path: Path, own: Iterable[Compiled], finder: Finder) -> None:
    """Every rule must win its examples. Raises UsageError."""
    for compiled in own:
        for example in compiled.rule.examples:
            winner = finder.find(Texts(example.entry()))
            if winner is not compiled:
                shown = example.kernel or example.operator or example.module
                by = f"won by rule {winner.rule.name}" if winner else "matched by no rule, nor by this one"
                message = f"{shown[:100]!r} is {by}; correct the patterns, or the order of the rules"
                raise _wrong(path, compiled.rule.name, "examples", message)
