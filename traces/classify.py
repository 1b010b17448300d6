"""What each entry of a profile is: one of our operators at a case, or a named class outside them.

    placed = classify(profiles, load_rules())

The first rule that matches an entry says its operator, and how its shapes make a case, in the words of the
operator's problem, which is asked whether the case is legal. Whatever the trace does not hold leaves the
entry without a case, with the reason; what no rule matches is `unplaced`. No entry is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

from atrex.records import Case
from traces.names import readable
from traces.phases import phase_of
from traces.placed import UNPLACED, Placed
from traces.profile import Entry, Profile
from traces.recorded import Unknown
from traces.rules import Compiled, Finder, Rules, Texts, load_rules
from traces.shapes import evaluate

__all__ = ["classify", "load_rules", "suggest"]

_SHOWN = 100  # characters of a name in a suggested pattern
Sides = tuple[dict[str, Any], dict[str, Any]]


def classify(profiles: Iterable[Profile], rules: Rules) -> tuple[Placed, ...]:
    """Every entry of every profile, in their order, with what it is."""
    placer = _Placer(Finder(rules))
    return tuple(placer.place(profile.digest, entry) for profile in profiles for entry in profile.entries)


@dataclass(frozen=True, slots=True)
class _Found:
    """What is said of all entries that agree in names, shapes and annotations; times and counts apart."""

    placed: dict[str, Any]  # fields of `Placed`
    main: bool
    per_call: int


@dataclass(slots=True)
class _Placer:
    """Places entries; those that differ in their times, device or profile only are looked at once."""

    finder: Finder
    _found: dict[tuple[object, ...], _Found] = field(default_factory=dict)

    def place(self, digest: str, entry: Entry) -> Placed:
        """One entry, placed."""
        kind, kernel, _device, *rest = entry.key
        key = (kind, kernel, *rest)
        if (found := self._found.get(key)) is None:
            found = self._found[key] = self._look(entry)
        calls = -(-entry.launches // found.per_call) if found.main else 0
        return Placed(digest=digest, entry=entry, calls=calls, **found.placed)

    def _look(self, entry: Entry) -> _Found:
        texts = Texts(entry)
        compiled = self.finder.find(texts)
        if compiled is None:
            phase, source = phase_of(texts.step, "unknown", UNPLACED, {})
            placed = {"target": UNPLACED, "ours": False, "phase": phase, "phase_from": source}
            return _Found(placed, main=True, per_call=1)
        rule = compiled.rule
        init, input, why = _case(compiled, texts)
        phase, source = phase_of(texts.step, rule.phase or "unknown", rule.target, input)
        placed = {"target": rule.target, "ours": compiled.ours, "rule": rule.name, "why": why}
        placed |= {"phase": phase, "phase_from": source, "init": init, "input": input}
        return _Found(placed, rule.main, rule.per_call)


def _case(compiled: Compiled, texts: Texts) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Constructor arguments and inputs of an entry's case, or why it has none."""
    rule = compiled.rule
    if not compiled.ours:
        return {}, {}, ""
    if not rule.main:
        return {}, {}, rule.why or "a further kernel of a call"
    try:
        from_ = texts.recorded()
        if not rule.case:
            return {}, {}, rule.why or "not in the shapes of this kernel"
        init, input = _split(rule.target, evaluate(compiled.case, from_))
    except Unknown as reason:
        return {}, {}, str(reason)
    if complaint := _complaint(rule.target, init, input):
        return {}, {}, f"outside of the operator's domain: {complaint}"
    return init, input, ""


def _split(operator: str, values: dict[str, Any]) -> Sides:
    """Constructor arguments and inputs, as the problem divides them; some extents are both.

    Arguments that the rule does not name take the problem's defaults, by being left out. So do the lengths of
    queries where they are those of the keys.
    """
    from atrex.problem import load_problem  # loads torch

    spec = load_problem(operator).spec
    if values.get("query_lens") == values.get("seq_lens"):
        values = {name: value for name, value in values.items() if name != "query_lens"}
    init = {name: value for name, value in values.items() if name in spec.init}
    input = {n: value for n, value in values.items() if n not in spec.init or spec.init[n].dim}
    return init, input


def _complaint(operator: str, init: dict[str, Any], input: dict[str, Any]) -> str:
    from atrex.problem import load_problem  # loads torch

    case = Case(operator=operator, id="trace", init=init, input=input, phase="prefill", weight=0.0)
    return load_problem(operator).complaint(case)


def suggest(entry: Entry) -> str:
    """The rule, as YAML, that would place an entry: its target is for the reader to correct.

    The text is an item of the list `rules:` of a file that `load_rules` takes.
    """
    subject = "kernel" if entry.kernel else "operator"
    name = readable(entry.kernel) if entry.kernel else entry.operator
    plain = name.removeprefix("void ")
    core = (re.split(r"[<(]", plain, maxsplit=1)[0] or plain)[:_SHOWN]
    rule: dict[str, Any] = {"name": _slug(core), "target": "other"}
    if entry.kind != "kernel":
        rule["kind"] = entry.kind
    rule[subject] = "^(void )?" + re.escape(core) if core == plain[: len(core)] else re.escape(core)
    rule["examples"] = [{subject: getattr(entry, subject), "kind": entry.kind}]
    lines = yaml.safe_dump([rule], sort_keys=False, width=1 << 20, allow_unicode=False).splitlines()
    lines[1] += "  # or an operator of bench/, or another class"
    return "".join(f"  {line}\n" for line in lines)


def _slug(text: str) -> str:
    """A name for a rule, made of a kernel's."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].rstrip("-") or "unnamed"
