"""Proposers whose files somebody writes: an author for structure, and the tuner for parameters in between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from agent.context import Context
from agent.events import ALL_CASES, AnyEvent, Missed, Proposal
from agent.lab import Proposer
from agent.state import WON
from atrex.spending import Spending

TUNER_PATIENCE = 3
"""Proposals of the tuner in a row that gain nothing before the author is asked again."""


class Author(Protocol):
    """Whoever writes whole files."""

    def write(self, context: Context) -> Proposal | Missed | None:
        """A file, an answer that is none, or None when there will be no more. Raises AtrexError."""
        ...


class AuthorProposer:
    """Implements `agent.lab.Proposer`: what a file declares is tuned before more is asked for."""

    def __init__(self, name: str, author: Author, tuner: Proposer) -> None:
        """`name` is the agent's, for reports."""
        self.name = name
        self._author, self._tuner = author, tuner

    def propose(self, context: Context, /) -> Proposal | Missed | None:
        """A move of the tuner while those help; else what the author writes."""
        tune = context.tunables and not context.repair and not _tuned_out(context)
        move = self._tuner.propose(context) if tune else None
        return move or self._author.write(context)


def _tuned_out(context: Context) -> bool:
    """Whether the tuner's last proposals on the kernel at hand gained nothing."""
    steps = dict[int, bool]()
    for attempt in context.attempts:
        if attempt.kernel == context.base_kernel and attempt.bucket != ALL_CASES:
            steps[attempt.step] = steps.get(attempt.step, False) or attempt.finding in WON
    recent = [steps[step] for step in sorted(steps)][-TUNER_PATIENCE:]
    return len(recent) == TUNER_PATIENCE and not any(recent)


class Recorded:
    """Implements `Author` with the answers of an earlier run, in their order, at no cost."""

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        """Takes what models answered there, candidates or not."""
        self._answers = [
            event
            for event in events
            if isinstance(event, Missed) or (isinstance(event, Proposal) and event.origin == "model")
        ]

    def write(self, context: Context) -> Proposal | Missed | None:
        """The answer that came as the n-th there; None after the last."""
        if context.answers >= len(self._answers):
            return None
        recorded = self._answers[context.answers]
        if isinstance(recorded, Proposal) and recorded.candidate.id in context.ids:
            reason = "the file has been tried before"
            return Missed(reason=reason, because=recorded.because, spent=Spending())
        return recorded.model_copy(update={"spent": Spending(), "elapsed": 0.0})
