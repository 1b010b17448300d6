"""A command-line agent as an author: one session in a prepared directory, then what it saved, the last first.

The session's record is written when it ends, so that a run which is killed later does not pay for another.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from agent.context import Context
from agent.events import AUTHORED, Missed, Proposal
from agent.prompts.statement import Brief
from agent.workspace.prepare import prepare
from agent.workspace.session import PROMPT, Limits, Session
from agent.workspace.session import run as run_session
from agent.workspace.split import split
from agent.workspace.tools import Tool
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.runs import Run, write_atomic
from atrex.spending import Spending

HIDDEN_SHARE = 0.25  # of the cases
MOST_VERSIONS = 5  # of what it saved that are tried
SHARE_OF_TIME = 0.6  # of the run's seconds, for the session: the rest judges and measures


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a tool's session may use."""

    tool: Tool
    model: str
    seconds: float
    tokens: int | None
    dollars: float | None
    prompt: str = PROMPT


class ToolAuthor:
    """Implements `Author` with a command-line agent."""

    def __init__(self, run: Run, brief: Brief, assignment: Assignment, say: Callable[[str], object]) -> None:
        """`say` takes a line for people."""
        self._run, self._brief, self._assignment, self._say = run, brief, assignment, say
        self._session: Session | None = None

    def write(self, context: Context) -> Proposal | Missed | None:
        """Its versions, the last first; None after them. Raises EnvironmentProblem without tool or key."""
        session = self._session = self._session or self._recorded() or self._work(context)
        versions = _newest(session)
        spent = _spending(session) if context.answers == 0 else Spending()
        if not versions and context.answers == 0:
            why = session.objection or session.detail or "it saved no version of the kernel"
            return Missed(reason=f"{session.tool} ({session.reason}): {why}", spent=spent)
        if context.answers >= len(versions):
            return None
        number = len(session.versions) - context.answers
        candidate = replace(versions[context.answers], parent=context.base.id)
        because = f"version {number} of {len(session.versions)} that {session.tool} saved"
        if candidate.id in context.ids:
            return Missed(reason="the file has been tried before", because=because, spent=spent)
        return Proposal(
            origin="model",
            candidate=candidate,
            base=context.base.id,
            kernel=f"{AUTHORED}{candidate.id[:12]}",
            because=because,
            technique=session.tool,
            spent=spent,
        )

    def _recorded(self) -> Session | None:
        path = self._run.path / "session.json"
        try:
            return Session.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            field = ".".join(map(str, error.errors()[0]["loc"]))
            raise UsageError(f"{path}: field {field}: not readable; delete it for a new session") from None

    def _work(self, context: Context) -> Session:
        brief, work = self._brief, self._assignment
        directory = self._run.path / "workspace"
        shutil.rmtree(directory, ignore_errors=True)  # of a session that was killed
        visible, hidden = split(brief.cases, context.seed, HIDDEN_SHARE)
        knowledge = context.knowledge
        workspace = prepare(
            directory, brief.problem, visible, brief.device, brief.dsl, hidden=hidden, knowledge=knowledge
        )
        self._say(f"{work.tool} works in {directory} for at most {work.seconds:.0f} s")
        session = run_session(
            workspace,
            work.tool,
            limits=Limits(seconds=work.seconds, tokens=work.tokens, dollars=work.dollars),
            transcript=self._run.path / "transcript.jsonl",
            prompt=work.prompt,
            model=work.model,
            hide=[self._run.ledger],
        )
        self._say(f"{work.tool} ended ({session.reason}) after {session.seconds:.0f} s. {session.detail}")
        if len(session.walls) < 2:
            self._say(f"the walls around it were only: {', '.join(session.walls) or 'none'}")
        write_atomic(self._run.path / "session.json", session.model_dump_json(indent=1) + "\n")
        return session


def _newest(session: Session) -> Sequence[Candidate]:
    """What it left, then what it saved before, without repetition."""
    saved = [*([session.kernel] if session.kernel else []), *reversed(session.versions)]
    return list({each.id: each for each in saved}.values())[:MOST_VERSIONS]


def _spending(session: Session) -> Spending:
    """A tool names one sum of tokens; it is counted as input."""
    return Spending(
        calls=session.turns or 1,
        input_tokens=session.tokens or 0,
        dollars=session.dollars,
        seconds=session.seconds,
        estimated=session.tokens is None,
    )
