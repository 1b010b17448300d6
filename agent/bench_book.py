"""What a benchmark has found so far, kept in its ledger entry by entry, so that a kill costs one case.

Three kinds of entry: `judgement`, `note` (why a case has no measurement) and `result`. A note is written
before the result that it explains: a kill in between leaves a case that is simply measured again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import ValidationError

from atrex.errors import UsageError
from atrex.ledger import RESULT, Entry, Ledger, merge_results, read
from atrex.policy import policy_hash
from atrex.records import Judgement, Record, Result
from atrex.report.workload import Scale

NOTE_ENTRY, JUDGEMENT_ENTRY = "note", "judgement"


def bench_policy(scale: Scale) -> str:
    """The policy of a benchmark's results: its short protocol, and reduced shapes, are not other results'."""
    return f"{policy_hash()}-bench" + ("-small" if scale == "small" else "")


class Note(Record):
    """Why one case has no measurement of one candidate."""

    candidate: str
    operator: str
    case: str
    reason: str


class Judged(Record):
    """A judgement, and the policy under which it was made."""

    policy: str
    judgement: Judgement


Key = tuple[str, str, str]  # candidate, operator, case


@dataclass(slots=True)
class Book:
    """Results, notes and judgements of this machine and under one policy; others are left out."""

    ledger: Ledger
    policy: str
    results: dict[Key, Result] = field(default_factory=dict)
    notes: dict[Key, str] = field(default_factory=dict)
    judgements: dict[str, Judgement] = field(default_factory=dict)

    def load(self) -> int:
        """Take up what an earlier session recorded; returns how many results. Raises UsageError."""
        everything = read(self.ledger.path, lambda damage: None)  # the ledger has told of damage on opening
        entries = [one for one in everything if one.hardware == self.ledger.hardware]
        for key, result in merge_results(entries).items():
            if key.policy == self.policy:
                self.results[key.candidate, key.operator, key.case] = result
        self._load_others(entries)
        return len(self.results)

    def _load_others(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            try:
                if entry.kind == NOTE_ENTRY:
                    note = Note.model_validate(entry.payload)
                    self.notes[note.candidate, note.operator, note.case] = note.reason
                elif entry.kind == JUDGEMENT_ENTRY:
                    judged = Judged.model_validate_json(json.dumps(entry.payload))
                    if judged.policy == self.policy:
                        self.judgements[judged.judgement.candidate] = judged.judgement
            except ValidationError as error:
                where = ".".join(str(part) for part in error.errors()[0]["loc"])
                text = f"{self.ledger.path}: entry {entry.seq}, field {where}: not readable"
                raise UsageError(text) from None

    def add(self, result: Result, reason: str = "") -> None:
        """Record one case; `reason` says why it has no latency."""
        key = (result.candidate, result.operator, result.case)
        if reason:
            note = Note(candidate=result.candidate, operator=result.operator, case=result.case, reason=reason)
            self.ledger.append(NOTE_ENTRY, note)
            self.notes[key] = reason
        self.ledger.append(RESULT, result)
        self.results[key] = result

    def judge(self, judgement: Judgement) -> None:
        """Record a judgement."""
        self.ledger.append(JUDGEMENT_ENTRY, Judged(policy=self.policy, judgement=judgement))
        self.judgements[judgement.candidate] = judgement
