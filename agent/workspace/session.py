"""One session of a command-line agent in a prepared directory: limits, transcript, what came of it."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from agent.models.keys import Key
from agent.workspace import tools
from agent.workspace.guard import Plan
from agent.workspace.harvest import Harvest, used_bytes
from agent.workspace.leaks import remove_holders
from agent.workspace.meters import Meter
from agent.workspace.prepare import Workspace
from agent.workspace.process import Agent
from agent.workspace.stream import Lines, Tail, Transcript, event
from agent.workspace.tools import Tool
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.records import Record
from traces.workload import WORKLOADS

PROMPT = (
    "Read TASK.md in this directory and do what it asks: write kernel.py, check it with ./verify and "
    "./measure, and make it faster until the gains end or you are stopped. Nobody answers questions."
)
Reason = Literal["done", "time", "tokens", "dollars", "turns", "disk", "failed", "interrupted"]

_TICK = 0.2  # seconds between looks at the limits while the tool is silent, and between records
_SLOW_TICK = 1.0  # seconds between looks at the disk
_KEEP_TICK = 5.0  # seconds between records of a session that has nothing new but its length
_KEY_TROUBLE = re.compile(r"log ?in|api key|authenticat|unauthori[sz]ed|\b401\b", re.IGNORECASE)


class Limits(Record):
    """What ends a session; None: no limit. Tokens count whole prompts, cached or not, and output."""

    seconds: Annotated[float, Field(gt=0)]
    tokens: Annotated[int, Field(ge=1)] | None = None
    dollars: Annotated[float, Field(gt=0)] | None = None
    turns: Annotated[int, Field(ge=1)] | None = None
    disk_bytes: Annotated[int, Field(ge=1)] = 4 << 30
    """Of the whole directory, caches and temporary files included."""
    transcript_bytes: Annotated[int, Field(ge=1)] = 64 << 20
    grace: Annotated[float, Field(ge=0)] = 5.0
    """Seconds between SIGTERM and SIGKILL."""


class Session(Record):
    """What became of a session."""

    tool: Tool
    version: str
    model: str = ""
    """As the tool names it; empty if it does not."""
    reason: Reason = "interrupted"
    """`interrupted`: Atrex ended first, or has not come to the session's end yet."""
    detail: str = ""
    """One line, where there is something to say."""
    seconds: float = 0.0
    tokens: int | None = None
    """None, here and below: the tool has not said."""
    dollars: float | None = None
    turns: int | None = None
    versions: tuple[Candidate, ...] = ()
    """Every version of the kernel that was seen, in order; the newest are kept."""
    kernel: Candidate | None = None
    """The version that was left; while nothing has ended, the last that was whole."""
    objection: str = ""
    """Why that is none."""
    transcript: Path
    garbage: int = 0
    """Lines that are no events."""
    walls: tuple[str, ...] = ()
    """What stood around the tool: see agent.workspace.guard."""


Keep = Callable[[Session], object]


def run(
    workspace: Workspace,
    tool: Tool,
    *,
    limits: Limits,
    transcript: Path,
    prompt: str = PROMPT,
    model: str = "",
    hide: Sequence[Path] = (),
    keep: Keep = lambda _: None,
) -> Session:
    """Let a tool work in the directory until it ends or a limit ends it.

    `hide`: directories and files that the tool should not see besides the workloads, such as the run's own.
    `keep` takes the session as it stands (`interrupted`), again when it has changed, and at its end: after
    any exception, Ctrl-C among them, the last one holds what was used and saved.
    Raises EnvironmentProblem (exit 3) if the tool is not installed, does not start or has no key.
    """
    started = time.monotonic()
    if transcript.resolve().is_relative_to(workspace.directory.resolve()):
        raise UsageError(f"{transcript}: a transcript is kept outside the tool's directory")
    executable, key = tools.locate(tool), tools.key_of(tool)
    home, harvest = _new_home(workspace, tool), Harvest(workspace, tool, [key])
    meter = tools.meter(tool, home, model)
    try:
        environment = tools.environment(tool, home)
        version = tools.version(tool, executable, environment)
        environment |= {tools.PROGRAMS[tool].keys[0]: key.reveal()}
        command = tools.command(tool, executable, model, limits.turns, limits.dollars)
        hidden = tuple(str(path.resolve()) for path in (WORKLOADS, *hide))
        plan = Plan((str(workspace.directory.resolve()),), hidden, limits.grace)
        with (
            Transcript(transcript, [key], limits.transcript_bytes) as kept,
            Agent(command, workspace.directory, environment, prompt, plan) as agent,
        ):
            blank = Session(tool=tool, version=version, transcript=transcript, walls=agent.walls)
            work = _Work(agent, meter, harvest, kept, limits, workspace.directory, started, blank, keep)
            return work.to_the_end(key)
    finally:
        shutil.rmtree(home, ignore_errors=True)
        remove_holders(workspace.directory, [key])


def _new_home(workspace: Workspace, tool: Tool) -> Path:
    """An empty home with what the tool expects there. Raises UsageError."""
    home = workspace.directory.resolve() / workspace.home.name
    try:
        if home.is_symlink():
            home.unlink()
        shutil.rmtree(home, ignore_errors=True)  # of a session that was killed
        tools.settings(tool, home).mkdir(parents=True)
        (home / "tmp").mkdir()
    except OSError as error:
        raise UsageError(f"{home}: cannot be made ({error.strerror})") from None
    return home


End = tuple[Reason, str]


class _Work:
    """Reads what a tool says while it works, and watches its limits."""

    def __init__(
        self,
        agent: Agent,
        meter: Meter,
        harvest: Harvest,
        kept: Transcript,
        limits: Limits,
        directory: Path,
        started: float,
        blank: Session,
        keep: Keep,
    ) -> None:
        self.agent, self.meter, self.harvest, self.kept = agent, meter, harvest, kept
        self.limits, self.directory, self.started = limits, directory, started
        self.blank, self.keep = blank, keep
        self.lines, self.complaints = Lines(), Tail()
        self.garbage = 0
        self._next_look = self._next_record = 0.0
        self._recorded: object = None

    def to_the_end(self, key: Key) -> Session:
        """The whole session: the tool ends by itself, by a limit, or by an exception on our side."""
        try:
            stopped, code = self.follow(), self.ended()
        except BaseException:
            self.keep(self.so_far())  # at once: ending the tool takes seconds, in which Ctrl-C may come again
            self.ended()
            self.keep(self.so_far())
            raise
        reason, detail = stopped or _own_end(self.meter, code, self.complaints.text, key.variable)
        detail = " ".join(self.kept.scrub(detail).split())[:500]
        self.kept.note("stderr", self.complaints.text)
        self.kept.note("end", f"{reason}: {detail}" if detail else reason)
        detail = "; ".join(filter(None, [detail, self.kept.trouble]))
        kernel, objection = _left(self.harvest)
        session = self.so_far(reason=reason, detail=detail, kernel=kernel, objection=objection)
        self.keep(session)
        return session

    def ended(self) -> int:
        """End the tool and take in its last words and deeds; its exit code."""
        code = self.agent.end()
        self.drain()
        self.harvest.look()
        self.meter.poll()
        return code

    def so_far(self, **more: object) -> Session:
        """The session as it stands, without a key in any of its words."""
        meter = self.meter
        sums = {"tokens": meter.tokens, "dollars": meter.dollars, "turns": meter.turns}
        saved = {"versions": self.harvest.versions, "kernel": self.harvest.newest}
        seen = {"model": meter.model, "garbage": self.garbage, "seconds": time.monotonic() - self.started}
        found = self.blank.model_copy(update={**seen, **sums, **saved, **more})
        texts = {name: self.kept.scrub(text) for name, text in found if isinstance(text, str)}
        return found.model_copy(update=texts)

    def follow(self) -> End | None:
        """Return when the tool has ended or given up (None), or with the limit that it has reached."""
        with selectors.DefaultSelector() as selector:
            for stream in (self.agent.stdout, self.agent.stderr):
                selector.register(stream, selectors.EVENT_READ)
            while True:
                ready = selector.select(_TICK)
                for key, _ in ready:
                    if not self._read(key.fd):
                        selector.unregister(key.fileobj)
                self.harvest.look()
                self._record()
                if end := self._reached():
                    return end
                if self.meter.outcome == "failed" or (not ready and self.agent.code is not None):
                    return None

    def drain(self) -> None:
        """Read what an ended tool has left in the pipe: its last words may hold its sums."""
        os.set_blocking(self.agent.stdout.fileno(), False)
        with suppress(BlockingIOError):
            while self._read(self.agent.stdout.fileno()):
                pass
        for line in self.lines.rest():
            self._line(line)

    def _read(self, descriptor: int) -> bool:
        data = os.read(descriptor, 1 << 16)
        if descriptor == self.agent.stderr.fileno():
            self.complaints.feed(data)
        else:
            for line in self.lines.feed(data):
                self._line(line)
        return bool(data)

    def _line(self, line: bytes) -> None:
        found = event(line)
        self.garbage += found is None
        if found is None or self.meter.read(found):
            self.kept.add(line)

    def _record(self) -> None:
        """Keep the session, where it has changed; a kill has no time for that."""
        now = time.monotonic()
        if now < self._next_record:
            return
        self._next_record = now + _TICK
        meter, age = self.meter, int((now - self.started) / _KEEP_TICK)
        state = (meter.tokens, meter.dollars, meter.turns, self.harvest.newest, age)
        if state != self._recorded:
            self.keep(self.so_far())
            self._recorded = state

    def _reached(self) -> End | None:
        limits, meter = self.limits, self.meter
        now = time.monotonic()
        if now - self.started > limits.seconds:
            return "time", f"{limits.seconds:g} s are over"
        if now >= self._next_look:
            self._next_look = now + _SLOW_TICK
            meter.poll()
            if used_bytes(self.directory, limits.disk_bytes) > limits.disk_bytes:
                return "disk", f"the directory holds more than {limits.disk_bytes >> 20} MiB"
        if limits.tokens is not None and (meter.tokens or 0) > limits.tokens:
            return "tokens", f"{meter.tokens} tokens of {limits.tokens}"
        return self._spent()

    def _spent(self) -> End | None:
        limit, meter = self.limits.dollars, self.meter
        if limit is None:
            return None
        if meter.dollars is not None and meter.dollars > limit:
            return "dollars", f"${meter.dollars:.4f} of ${limit:g}"
        if meter.dollars is None and meter.tokens and not meter.keeps_budget:
            return (
                "failed",
                f"no price is known for {meter.model or 'its model'}: no limit on dollars can be kept",
            )
        return None


def _own_end(meter: Meter, code: int, complaints: str, variable: str) -> End:
    """How a tool ended that no limit of ours had ended."""
    if meter.outcome == "done" and code == 0:
        return "done", ""
    last = complaints.splitlines()[-1] if complaints else ""
    detail = meter.message or last or f"it ended with exit code {code} and without a result"
    if meter.outcome in ("turns", "dollars"):
        return meter.outcome, detail
    remedy = f"; is {variable} a key that works?" if _KEY_TROUBLE.search(detail) else ""
    return "failed", detail[:400] + remedy


def _left(harvest: Harvest) -> tuple[Candidate | None, str]:
    try:
        return harvest.last(), ""
    except UsageError as error:
        return None, str(error)
