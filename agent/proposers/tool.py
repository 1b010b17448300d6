"""A command-line agent as an author: one session in a prepared directory, then what it saved, the last first.

What a session has used and saved is on the disk while it works (`agent.workspace.account`). So a run that is
killed pays for nothing twice: one that is resumed goes on with what is left of its limits, if anything is.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from agent.context import Context
from agent.events import AUTHORED, Measured, Missed, Proposal, RunStarted
from agent.examine import FULL_SCREENINGS
from agent.funds import no_limit
from agent.history import events
from agent.prompts.statement import Brief
from agent.workspace.account import Account
from agent.workspace.prepare import Workspace, prepare
from agent.workspace.session import PROMPT, Limits
from agent.workspace.session import run as run_session
from agent.workspace.split import split
from agent.workspace.tools import Tool
from atrex.runs import METADATA, Run
from atrex.spending import Spending

HIDDEN_SHARE = 0.25  # of the cases
SHARE_OF_TIME = 0.6  # of the run's seconds, and of what the search still has: the rest judges and measures
TRIALS = 2  # that must fit into the search's time after the session
LEAST_SHARE = 0.25  # of the search's time, for the session, even if they do not


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a tool may use in all its sessions."""

    tool: Tool
    model: str
    seconds: float
    tokens: int | None
    dollars: float | None
    prompt: str = PROMPT
    left: Callable[[], float] = no_limit
    """Seconds that the search still has, trials included and the final measurement not."""


class ToolAuthor:
    """Implements `Author` with a command-line agent."""

    def __init__(self, run: Run, brief: Brief, assignment: Assignment, say: Callable[[str], object]) -> None:
        """`say` takes a line for people."""
        self._run, self._brief, self._assignment, self._say = run, brief, assignment, say
        self._account: Account | None = None

    def write(self, context: Context) -> Proposal | Missed | None:
        """Its versions, the last first; None after them. Raises EnvironmentProblem without tool or key."""
        account = self._account = self._account or self._worked(context)
        tool, versions = self._assignment.tool, account.versions
        spent = account.spent if context.answers == 0 else Spending()
        if not versions and context.answers == 0:
            return Missed(reason=f"{tool} {account.outcome}", spent=spent)
        if context.answers >= len(versions):
            return None
        number = len(versions) - context.answers
        candidate = replace(versions[context.answers], parent=context.base.id)
        because = f"version {number} of {len(versions)} that {tool} saved"
        if candidate.id in context.ids:
            return Missed(reason="the file has been tried before", because=because, spent=spent)
        return Proposal(
            origin="model",
            candidate=candidate,
            base=context.base.id,
            kernel=f"{AUTHORED}{candidate.id[:12]}",
            because=because,
            technique=tool,
            spent=spent,
        )

    def _worked(self, context: Context) -> Account:
        """The account of a run whose sessions are over; the first answer carries what they have cost."""
        account = Account.of(self._run)
        return account if account.ended or context.answers else self._work(account, context)

    def _work(self, account: Account, context: Context) -> Account:
        """One session with what is left; none where that is nothing."""
        work, run = self._assignment, self._run
        seconds = min(work.seconds - account.seconds, room(work.left(), self._trial()))
        tokens, dollars = account.tokens_left(work.tokens), account.dollars_left(work.dollars)
        for name, left in (("time", seconds), ("tokens", tokens), ("dollars", dollars)):
            if left is not None and left <= 0:
                self._say(f"{work.tool} is not started: no {name} left for a session")
                refused = account.model_copy(update={"refusal": f"no {name} left for a session"})
                return refused.save(run)
        workspace = self._prepare(account, context)
        self._say(f"{work.tool} works in {workspace.directory} for at most {seconds:.0f} s")
        session = run_session(
            workspace,
            work.tool,
            limits=Limits(seconds=seconds, tokens=tokens, dollars=dollars),
            transcript=_transcript(run, len(account.sessions)),
            prompt=work.prompt,
            model=work.model,
            hide=[_outermost(run.path)],
            keep=lambda session: account.plus(session).save(run),
        )
        self._say(f"{work.tool} ended ({session.reason}) after {session.seconds:.0f} s. {session.detail}")
        if len(session.walls) < 2:
            self._say(f"the walls around it were only: {', '.join(session.walls) or 'none'}")
        return account.plus(session)

    def _prepare(self, account: Account, context: Context) -> Workspace:
        """A new directory; what an interrupted session had saved is in its kernel's place."""
        brief, directory = self._brief, self._run.path / "workspace"
        shutil.rmtree(directory, ignore_errors=True)
        visible, hidden = split(brief.cases, context.seed, HIDDEN_SHARE)
        return prepare(
            directory,
            brief.problem,
            visible,
            brief.device,
            brief.dsl,
            hidden=hidden,
            knowledge=context.knowledge,
            kernel=next((version.source for version in account.versions), ""),
        )

    def _trial(self) -> float:
        """Seconds that trying a version may take, as far as the run has judged and timed its start."""
        recorded = events(self._run.ledger) if self._run.ledger.exists() else ()
        judged = began = timed = 0.0
        for event in recorded:
            if isinstance(event, RunStarted):
                judged, began = event.judged_seconds or 0.0, event.elapsed
            elif isinstance(event, Measured):
                timed = event.elapsed - began
        # A screening and all gates; two comparisons, each of two kernels.
        return judged * (1 + 1 / FULL_SCREENINGS) + 4 * timed


def room(left: float, trial: float) -> float:
    """Seconds for a session of a search that has so many left, if a trial takes so many.

    The rest is for trying what was saved: a share, and no less than TRIALS take, unless that left hardly
    anything to save something in.
    """
    if math.isinf(left):
        return left
    return max(LEAST_SHARE * left, min(SHARE_OF_TIME * left, left - TRIALS * trial))


def _transcript(run: Run, sessions: int) -> Path:
    return run.path / ("transcript.jsonl" if not sessions else f"transcript-{sessions + 1}.jsonl")


def _outermost(run: Path) -> Path:
    """The directory of the run, or of the benchmark that it is a part of: both say the seed."""
    bench = run.parent.parent
    return bench if (bench / METADATA).is_file() else run
