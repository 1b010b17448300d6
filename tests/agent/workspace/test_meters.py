"""Tokens, dollars and endings, read from what the real tools printed, and from nonsense.

recorded/ holds what Claude Code 2.1.197 and Codex 0.171.0 printed while they worked for a scripted server on
loopback that billed 1000 + 500 + 100 and 77 tokens (Claude), and 1000 (400 cached) and 50 (Codex), per call.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.models.keys import Key
from agent.workspace.meters import ClaudeMeter, CodexMeter, Meter
from agent.workspace.stream import Lines, Transcript, event
from atrex.errors import UsageError

RECORDED = Path(__file__).with_name("recorded")


def read(meter: Meter, name: str, *, lines: slice = slice(None)) -> None:
    for line in (RECORDED / name).read_bytes().splitlines()[lines]:
        found = event(line)
        assert found is not None
        meter.read(found)


def test_claude_code() -> None:
    meter = ClaudeMeter()
    read(meter, "claude-2.1.197.jsonl")
    assert (meter.outcome, meter.message, meter.turns) == ("done", "", 2)
    assert meter.tokens == 2 * 1677
    assert meter.dollars == pytest.approx(0.0156)


def test_claude_code_before_its_end() -> None:
    meter = ClaudeMeter()
    read(meter, "claude-2.1.197.jsonl", lines=slice(0, -1))
    assert (meter.outcome, meter.turns, meter.tokens) == (None, 2, 2 * 1677)
    assert meter.dollars == pytest.approx(0.0156)  # by our prices, and the tool's own sum agrees


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("claude-2.1.197-no-login.jsonl", "failed", "Not logged in · Please run /login"),
        ("claude-2.1.197-turns.jsonl", "turns", "Reached maximum number of turns (1)"),
        ("claude-2.1.197-budget.jsonl", "dollars", "Reached maximum budget ($0.00001)"),
    ],
)
def test_how_claude_code_ends(name: str, outcome: str, words: str) -> None:
    meter = ClaudeMeter()
    read(meter, name)
    assert (meter.outcome, meter.message) == (outcome, words)


def test_claude_code_whose_key_is_refused_is_not_waited_for() -> None:
    meter = ClaudeMeter()
    retry = {"type": "system", "subtype": "api_retry", "attempt": 1, "error_status": 401}
    meter.read({**retry, "error": "authentication_failed"})
    assert (meter.outcome, meter.message) == ("failed", "the API refuses the key (HTTP 401)")


def test_codex(tmp_path: Path) -> None:
    place = tmp_path / "sessions" / "2026" / "11" / "30"
    place.mkdir(parents=True)
    shutil.copy(RECORDED / "codex-0.171.0-rollout.jsonl", place / "rollout-2026-11-30T04-23-23.jsonl")
    meter = CodexMeter(tmp_path)
    meter.poll()
    assert (meter.outcome, meter.model, meter.turns, meter.tokens) == (None, "gpt-5.4-nano", 2, 2100)
    assert meter.dollars == pytest.approx(2 * (600 * 0.2 + 400 * 0.02 + 50 * 1.25) / 1e6)
    read(meter, "codex-0.171.0.jsonl")
    assert (meter.outcome, meter.tokens) == ("done", 2100)


def test_codex_without_a_rollout(tmp_path: Path) -> None:
    meter = CodexMeter(tmp_path, "gpt-5.4-nano")
    read(meter, "codex-0.171.0.jsonl")
    meter.poll()
    assert (meter.outcome, meter.tokens, meter.dollars, meter.turns) == ("done", 2100, None, None)


def test_codex_whose_key_is_refused(tmp_path: Path) -> None:
    meter = CodexMeter(tmp_path)
    read(meter, "codex-0.171.0-unauthorised.jsonl")
    assert meter.outcome == "failed"
    assert meter.message.startswith("unexpected status 401 Unauthorized")


def test_a_rollout_that_is_a_pipe_or_a_link_is_not_read(tmp_path: Path) -> None:
    place = tmp_path / "sessions" / "2026" / "11" / "30"
    place.mkdir(parents=True)
    os.mkfifo(place / "rollout-1.jsonl")
    (place / "rollout-2.jsonl").symlink_to(RECORDED / "codex-0.171.0-rollout.jsonl")
    meter = CodexMeter(tmp_path)
    meter.poll()
    assert meter.tokens is None


_OF_EVENTS = ("type", "subtype", "message", "usage", "id", "model", "event", "error", "result", "errors")
_OF_FIGURES = ("input_tokens", "output_tokens", "total_cost_usd", "num_turns", "content", "error_status")
_KINDS = ("assistant", "system", "result", "stream_event", "message_start", "message_delta", "api_retry")
_MORE_KINDS = ("turn.completed", "turn.failed", "error", "init", "success", "error_max_turns")
NAMES = st.sampled_from((*_OF_EVENTS, *_OF_FIGURES))
WORDS = st.sampled_from((*_KINDS, *_MORE_KINDS))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
NONSENSE = st.dictionaries(
    NAMES, st.recursive(PLAIN, lambda x: st.lists(x, max_size=3) | st.dictionaries(NAMES, x, max_size=5))
)


@settings(max_examples=25, deadline=None)
@given(st.lists(NONSENSE, max_size=6))
def test_nonsense_is_read_too(events: list[dict[str, Any]]) -> None:
    for meter in (ClaudeMeter(), CodexMeter(Path("/nowhere"))):
        for each in events:
            meter.read(each)
        assert meter.tokens is None or meter.tokens >= 0
        assert meter.dollars is None or meter.dollars >= 0
        assert meter.turns is None or meter.turns >= 0
        assert isinstance(meter.message, str)
        assert meter.outcome in (None, "done", "failed", "turns", "dollars")


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 40))
def test_lines_do_not_depend_on_how_they_are_cut(parts: list[bytes], longest: int) -> None:
    whole = b"".join(parts)
    once, pieces = Lines(1000), Lines(1000)
    expected = [line for line in whole.split(b"\n") if line.strip()]
    assert [*once.feed(whole), *once.rest()] == expected
    assert [*(line for part in parts for line in pieces.feed(part)), *pieces.rest()] == expected
    short = Lines(longest)
    found = [*(line for part in parts for line in short.feed(part)), *short.rest()]
    assert all(len(line) <= max(longest, 4096) for line in found)
    assert [line for line in found if len(line) <= longest and line in expected] == [
        line for line in expected if len(line) <= longest
    ]


def test_only_objects_are_events() -> None:
    assert event(b'{"type": "x"}') == {"type": "x"}
    for line in (b"", b"[]", b"7", b"{", b"\xff", b"{" * 100_000, json.dumps("text").encode()):
        assert event(line) is None


def test_a_transcript_is_cut_and_scrubbed(tmp_path: Path) -> None:
    key = Key("SOME_KEY", "a-secret-of-some-length")
    with Transcript(tmp_path / "deep" / "t.jsonl", [key], 200) as kept:
        kept.add(b'{"env": "SOME_KEY=a-secret-of-some-length"}')
        for _ in range(9):
            kept.add(b"x" * 50)
    lines = (tmp_path / "deep" / "t.jsonl").read_text().splitlines()
    assert lines[0] == '{"env": "SOME_KEY=[key removed]"}'
    assert [len(line) for line in lines[1:4]] == [50, 50, 50]
    assert lines[4:] == ['{"type":"atrex","message":"the transcript is longer than is kept"}']


def test_a_transcript_on_a_full_disk() -> None:
    with Transcript(Path("/dev/full"), [], 1 << 20) as kept:
        kept.add(b"{}")
        kept.add(b"{}")
    assert kept.trouble == "the transcript is cut: No space left on device"


def test_a_transcript_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        Transcript(tmp_path / "file" / "t.jsonl", [], 1)
