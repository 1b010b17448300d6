"""A search's ledger read back: its events, and the judgements beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from agent.events import AnyEvent, Event, load_event
from atrex.errors import UsageError
from atrex.ledger import read
from atrex.records import Judgement, Record

EVENT_ENTRY, JUDGEMENT_ENTRY = "search", "judgement"


class JudgementRecord(Record):
    """A judgement in the ledger, beside the search's own events."""

    judgement: Judgement


def records(ledger: Path) -> Iterator[AnyEvent | JudgementRecord]:
    """What a search wrote, in order. Raises UsageError for an entry that is none of these."""
    for entry in read(ledger):
        try:
            if entry.kind == EVENT_ENTRY:
                yield load_event(json.dumps(entry.payload))
            elif entry.kind == JUDGEMENT_ENTRY:
                yield JudgementRecord.model_validate(entry.payload)
        except ValidationError as error:
            field = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise UsageError(f"{ledger}: entry {entry.seq}, field {field}: not readable") from None


def events(ledger: Path) -> tuple[AnyEvent, ...]:
    """The search's events alone."""
    return tuple(each for each in records(ledger) if isinstance(each, Event))
