"""What a tool has used and saved in all sessions of a run, on the disk at any moment (docs/cli_agents.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from agent.events import Event, Finished, Missed, Proposal
from agent.workspace.session import Session
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.records import Record
from atrex.runs import Run, write_atomic
from atrex.spending import Spending


class Account(Record):
    """The sessions in their order; all but the last were interrupted, and the last is, or may yet be."""

    sessions: tuple[Session, ...] = ()
    refusal: str = ""
    """Why no more of them were started, if a limit was used up."""

    @classmethod
    def of(cls, run: Run) -> Account:
        """The account of a run; empty without a file. Raises UsageError if that is not readable."""
        try:
            return cls.model_validate_json(_path(run).read_bytes())
        except FileNotFoundError:
            return cls()
        except ValidationError as error:
            field = ".".join(map(str, error.errors()[0]["loc"]))
            raise UsageError(
                f"{_path(run)}: field {field}: not readable; delete it for a new session"
            ) from None

    def save(self, run: Run) -> Account:
        """Itself, on the disk. Raises EnvironmentProblem."""
        write_atomic(_path(run), self.model_dump_json(indent=1) + "\n")
        return self

    def plus(self, session: Session) -> Account:
        """With one more session."""
        return Account(sessions=(*self.sessions, session))

    @property
    def ended(self) -> bool:
        """Whether there is no session to go on with."""
        return bool(self.refusal) or (bool(self.sessions) and self.sessions[-1].reason != "interrupted")

    @property
    def versions(self) -> tuple[Candidate, ...]:
        """Distinct kernels, the newest first: of each session what it left, then what it saved before."""
        saved = dict[str, Candidate]()
        for session in reversed(self.sessions):
            left = (session.kernel,) if session.kernel else ()
            for version in (*left, *reversed(session.versions)):
                saved.setdefault(version.id, version)
        return tuple(saved.values())

    @property
    def outcome(self) -> str:
        """One line on how it ended without any version."""
        if not self.sessions:
            return f"(not started): {self.refusal}"
        last = self.sessions[-1]
        why = self.refusal or last.objection or last.detail or "it saved no version of the kernel"
        return f"({last.reason}): {why}"

    # What has been used

    @property
    def seconds(self) -> float:
        """Of all sessions."""
        return math.fsum(session.seconds for session in self.sessions)

    @property
    def spent(self) -> Spending:
        """All that the tool has told of; an unknown price stays unknown."""
        return sum(map(_spending, self.sessions), Spending())

    def tokens_left(self, limit: int | None) -> int | None:
        """Of a limit, as far as the tool has told; None: no limit."""
        return None if limit is None else limit - sum(session.tokens or 0 for session in self.sessions)

    def dollars_left(self, limit: float | None) -> float | None:
        """The same; nothing is known to be left when calls were made whose price is unknown."""
        if limit is None:
            return None
        if any(session.dollars is None and session.tokens for session in self.sessions):
            return 0.0
        return limit - math.fsum(session.dollars or 0.0 for session in self.sessions)

    def unrecorded(self, events: Sequence[Event]) -> float:
        """Seconds of sessions that a search's events do not tell of: what a killed one had taken.

        The sessions lie between the last event before the first answer and that answer, or the end of a
        search that was interrupted.
        """
        before = after = 0.0
        for event in events:
            after = event.elapsed
            if isinstance(event, Proposal | Missed):
                break
            if not isinstance(event, Finished):
                before = event.elapsed
        return max(0.0, self.seconds - (after - before))


def _path(run: Run) -> Path:
    return run.path / "session.json"


def _spending(session: Session) -> Spending:
    """A tool names one sum of tokens; it is counted as input."""
    return Spending(
        calls=session.turns or 1,
        input_tokens=session.tokens or 0,
        dollars=session.dollars,
        seconds=session.seconds,
        estimated=session.tokens is None,
    )
