"""What a tool's events say of tokens, dollars and how it went; docs/cli_agents.md shows the formats.

Events come from a tool that works on hostile input: every field may be absent, absurd or of another type.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from agent.models import prices
from agent.models.records import Usage
from agent.workspace.stream import Lines, event

Outcome = Literal["done", "failed", "turns", "dollars"]
_MOST = 1 << 50  # more tokens than there are


class Meter(Protocol):
    """Sums over the events of one session; None is: the tool has not said."""

    model: str
    outcome: Outcome | None
    """None until the tool says that it has ended, or cannot go on."""
    message: str
    """The tool's last complaint."""
    keeps_budget: ClassVar[bool]
    """Whether the tool itself stops at a sum of dollars."""

    @property
    def tokens(self) -> int | None:
        """All that was billed: prompts in whole, cached or not, and output."""
        ...

    @property
    def dollars(self) -> float | None:
        """The tool's own sum, else tokens times the published prices."""
        ...

    @property
    def turns(self) -> int | None:
        """Calls of the model."""
        ...

    def read(self, event: dict[str, Any]) -> bool:
        """Take an event in. False: no more than a piece of what a later event says whole."""
        ...

    def poll(self) -> None:
        """Look for figures that are not among the events."""
        ...


@dataclass
class ClaudeMeter:
    """Claude Code's stream-json. A message comes in pieces that repeat its usage, so it is kept by its id."""

    keeps_budget: ClassVar[bool] = True
    model: str = ""
    outcome: Outcome | None = None
    message: str = ""
    _messages: dict[str, tuple[str, dict[str, int]]] = field(default_factory=dict)
    _open: dict[str, str] = field(default_factory=dict)  # the message being streamed, by (sub)agent
    _result: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int | None:
        counted = sum(_total(usage) for _, usage in self._messages.values())
        said = _total(_counts(self._result.get("usage")))
        return max(counted, said) if self._messages or self._result else None

    @property
    def dollars(self) -> float | None:
        said = _amount(self._result.get("total_cost_usd"))
        if said is not None:
            return said
        costs = [prices.cost("anthropic", [model], _usage(usage)) for model, usage in self._messages.values()]
        return math.fsum(cost for cost in costs if cost is not None) if costs and None not in costs else None

    @property
    def turns(self) -> int | None:
        return _count(self._result.get("num_turns")) or len(self._messages) or None

    def read(self, event: dict[str, Any]) -> bool:
        match event:
            case {"type": "stream_event", "event": dict(inner)}:
                return self._stream(inner, str(event.get("parent_tool_use_id")))
            case {"type": "assistant", "message": dict(message)}:
                self._count(message)
                if event.get("error"):
                    self.message = _text(message.get("content")) or str(event["error"])
            case {"type": "system", "subtype": "init", "model": str(model)}:
                self.model = model
            case {"type": "system", "subtype": "api_retry", "error_status": 401 | 403 as status}:
                self.outcome, self.message = (
                    "failed",
                    f"the API refuses the key (HTTP {status})",
                )  # it retries
            case {"type": "system", "subtype": "api_retry", "error": str(error)}:
                self.message = f"the API does not answer: {error}"
            case {"type": "result"}:
                self._end(event)
        return True

    def poll(self) -> None:
        return

    def _stream(self, inner: dict[str, Any], agent: str) -> bool:
        match inner:
            case {"type": "message_start", "message": dict(message)}:
                self._open[agent] = str(message.get("id"))
                self._count(message)
            case {"type": "message_delta", "usage": dict(usage)} if agent in self._open:
                self._count({"id": self._open[agent], "usage": usage})  # the only place of the final output
        return False

    def _count(self, message: dict[str, Any]) -> None:
        model, name = message.get("model"), str(message.get("id"))
        if model == "<synthetic>":  # Claude Code's own words: no call was made
            return
        known, before = self._messages.get(name, ("", {}))
        now = _counts(message.get("usage"))
        usage = {key: max(now.get(key, 0), before.get(key, 0)) for key in {*now, *before}}
        self._messages[name] = (known or str(model or ""), usage)

    def _end(self, event: dict[str, Any]) -> None:
        self._result = event
        kinds: dict[object, Outcome] = {"error_max_turns": "turns", "error_max_budget_usd": "dollars"}
        wrong = event.get("is_error") or event.get("subtype") != "success"
        self.outcome = kinds.get(event.get("subtype"), "failed") if wrong else "done"
        if wrong:
            said = event.get("errors")
            words = " ".join(map(str, said)) if isinstance(said, list) else ""
            self.message = str(event.get("result") or words or self.message or event.get("subtype"))


@dataclass
class CodexMeter:
    """Codex's JSONL, which tells usage only at the end, and its rollout files, which tell it by the call."""

    keeps_budget: ClassVar[bool] = False
    home: Path
    """$CODEX_HOME."""
    model: str = ""
    outcome: Outcome | None = None
    message: str = ""
    _said: int | None = None
    _rollouts: dict[Path, _Rollout] = field(default_factory=dict)

    @property
    def tokens(self) -> int | None:
        seen = [rollout.tokens for rollout in self._rollouts.values() if rollout.turns]
        return max(sum(seen), self._said or 0) if seen or self._said is not None else None

    @property
    def dollars(self) -> float | None:
        costs = [cost for rollout in self._rollouts.values() for cost in rollout.costs]
        return math.fsum(cost for cost in costs if cost is not None) if costs and None not in costs else None

    @property
    def turns(self) -> int | None:
        return sum(rollout.turns for rollout in self._rollouts.values()) or None

    def read(self, event: dict[str, Any]) -> bool:
        match event:
            case {"type": "turn.completed"}:
                self.outcome = "done"
                usage = event.get("usage")
                if isinstance(usage, dict):  # of the whole thread
                    self._said = _count(usage.get("input_tokens")) + _count(usage.get("output_tokens"))
            case {"type": "turn.failed", "error": {"message": str(message)}}:
                self.outcome, self.message = "failed", message
            case {"type": "error", "message": str(message)}:
                self.message = message
        return True

    def poll(self) -> None:
        for path in sorted(self.home.glob("sessions/*/*/*/rollout-*.jsonl"))[:_MOST_ROLLOUTS]:
            rollout = self._rollouts.setdefault(path, _Rollout(path, self.model))
            rollout.read()
            self.model = rollout.model or self.model


_MOST_ROLLOUTS = 64
_PIECE = 1 << 20


class _Rollout:
    """One session file of Codex, read as it grows; the tool's own processes may have put anything there."""

    def __init__(self, path: Path, model: str) -> None:
        self.model = model
        self.tokens = 0
        self.costs: list[float | None] = []
        self._path, self._offset, self._lines = path, 0, Lines()

    @property
    def turns(self) -> int:
        """Calls of the model."""
        return len(self.costs)

    def read(self) -> None:
        """Take in what was added since the last time."""
        for data in self._added():
            for line in self._lines.feed(data):
                if b'"token_count"' in line or b'"turn_context"' in line:
                    self._entry(event(line) or {})

    def _added(self) -> Iterator[bytes]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                data = os.pread(descriptor, _PIECE, self._offset)
                self._offset += len(data)
                yield data
        finally:
            os.close(descriptor)

    def _entry(self, entry: dict[str, Any]) -> None:
        match entry:
            case {"type": "turn_context", "payload": {"model": str(model)}}:
                self.model = model
            case {"type": "event_msg", "payload": {"info": {"total_token_usage": dict(total)} as info}}:
                tokens = _count(total.get("input_tokens")) + _count(total.get("output_tokens"))
                if tokens > self.tokens:  # the same figures may be told again
                    self.tokens = tokens
                    self.costs.append(self._cost(info.get("last_token_usage")))

    def _cost(self, last: object) -> float | None:
        if not isinstance(last, dict):
            return None
        counts = {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}
        counts |= {"cached_input_tokens": "cached_tokens", "cache_write_input_tokens": "written_tokens"}
        fields = {ours: _count(last.get(theirs)) for theirs, ours in counts.items()}
        if fields["cached_tokens"] + fields["written_tokens"] > fields["input_tokens"]:
            return None
        return prices.cost("openai", [self.model], Usage(**fields))


_FIELDS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def _counts(usage: object) -> dict[str, int]:
    return {name: _count(usage.get(name)) for name in _FIELDS} if isinstance(usage, dict) else {}


def _total(usage: dict[str, int]) -> int:
    return sum(usage.values())


def _usage(usage: dict[str, int]) -> Usage:
    read, wrote = usage.get(_FIELDS[2], 0), usage.get(_FIELDS[3], 0)
    whole = usage.get(_FIELDS[0], 0) + read + wrote  # Anthropic counts the three apart
    return Usage(
        input_tokens=whole, output_tokens=usage.get(_FIELDS[1], 0), cached_tokens=read, written_tokens=wrote
    )


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MOST else 0


def _amount(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _MOST:
        return None
    return float(value)


def _text(content: object) -> str:
    parts = content if isinstance(content, list) else []
    return " ".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
