"""Sessions of both tools, played by doubles that really work in the directory (tools/double.py)."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.workspace import guard
from agent.workspace.prepare import Workspace
from agent.workspace.session import Limits, Session, run
from agent.workspace.tools import Tool
from atrex.errors import EnvironmentProblem, UsageError
from tests.agent.workspace.conftest import KEYS
from traces.workload import WORKLOADS

pytestmark = pytest.mark.usefixtures("doubles")
BOTH = pytest.mark.parametrize("tool", ["claude-code", "codex"])
HONEST = Path(__file__).parents[2] / "honest" / "rms_norm" / "cpp" / "scalar.py"


def session(
    workspace: Workspace,
    prompt: str,
    tool: Tool = "claude-code",
    keep: Callable[[Session], object] = lambda _: None,
    **limits: Any,
) -> Session:
    bounds = Limits(**{"seconds": 60.0, "grace": 0.3, **limits})
    transcript = workspace.directory.parent / "kept" / "transcript.jsonl"
    return run(workspace, tool, limits=bounds, transcript=transcript, prompt=prompt, keep=keep)


def marked(marker: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if marker in (p.info["cmdline"] or [])]


def gone(marker: str, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while left := marked(marker):
        if time.monotonic() > deadline:
            return not left
        time.sleep(0.05)
    return True


@BOTH
def test_versions_are_harvested_in_order(workspace: Workspace, tool: Tool) -> None:
    found = session(workspace, "versions", tool)
    assert (found.reason, found.detail, found.garbage) == ("done", "", 0)
    assert [each.source for each in found.versions] == ["class Model: a = 1\n", "class Model: b = 2\n"]
    assert [each.note for each in found.versions] == [f"{tool}, version 1", f"{tool}, version 2"]
    assert found.kernel == found.versions[0]
    assert (found.turns, found.tokens) == (6, 600)
    assert found.dollars == pytest.approx(
        {"claude-code": 600 * 15e-6, "codex": 300 * (0.2e-6 + 1.25e-6)}[tool]
    )
    assert found.model == {"claude-code": "claude-opus-5", "codex": "gpt-5.4-nano"}[tool]
    assert found.version == {"claude-code": "2.1.197 (Claude Code)", "codex": "codex-cli 0.171.0"}[tool]
    assert not workspace.home.exists()
    lines = [json.loads(line) for line in found.transcript.read_text().splitlines()]
    assert lines[-1] == {"type": "atrex", "kind": "end", "text": "done"}
    assert not any(line["type"] == "stream_event" for line in lines)


@pytest.mark.slow  # two verdicts by the real gates
@BOTH
def test_a_wrong_kernel_then_a_right_one(workspace: Workspace, tool: Tool) -> None:
    found = session(workspace, f"wrong_then_right {HONEST} --level screen", tool, seconds=280.0)
    assert found.reason == "done"
    text = found.transcript.read_text()
    assert "first exit code 1: atrex: kernel.py: not accepted: sensitivity FAIL" in text
    assert "then exit code 0" in text
    assert len(found.versions) == 2
    assert found.kernel is not None
    assert (found.kernel.source, found.kernel.dsl) == (HONEST.read_text(), "cpp")


@BOTH
def test_too_many_tokens(workspace: Workspace, tool: Tool) -> None:
    found = session(workspace, "spend 1000", tool, tokens=3500)
    assert found.reason == "tokens"
    assert found.tokens is not None
    assert found.tokens > 3500
    assert found.kernel is not None


@BOTH
def test_too_many_dollars(workspace: Workspace, tool: Tool) -> None:
    found = session(workspace, "spend 100000", tool, dollars=0.25)
    assert found.reason == "dollars"
    assert found.dollars is not None
    assert found.dollars > 0.25


def test_dollars_without_a_price_are_no_limit(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        (Path(__file__).with_name("tools") / "codex").read_text().replace("gpt-5.4-nano", "nobody-sells-it")
    )
    own = tmp_path / "tools"
    own.mkdir()
    (own / "codex").write_text(text)
    (own / "codex").chmod(0o755)
    (own / "double.py").symlink_to(Path(__file__).with_name("tools") / "double.py")
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ['PATH']}")
    found = session(workspace, "spend 1000", "codex", dollars=0.25)
    assert (found.reason, found.dollars) == ("failed", None)
    assert "no price is known for nobody-sells-it" in found.detail


def test_time_is_over(workspace: Workspace) -> None:
    found = session(workspace, "hang nobody", seconds=0.5)
    assert (found.reason, found.detail) == ("time", "0.5 s are over")


def test_a_tool_that_ignores_sigterm_and_its_children(workspace: Workspace) -> None:
    marker = f"marker-{uuid.uuid4()}"
    found = session(workspace, f"hang {marker}", tokens=50)
    assert found.reason == "tokens"  # which it says when its children are there
    assert gone(marker)


def test_without_namespaces_children_are_found_one_by_one(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The guard as it runs where the kernel gives no namespace: a shim makes unshare fail."""
    (tmp_path / "sitecustomize.py").write_text(
        "from atrex import linux\ndef refuse(flags): raise OSError(1, 'not here')\nlinux.unshare = refuse\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    marker = f"marker-{uuid.uuid4()}"
    found = session(workspace, f"hang {marker}", tokens=50)
    assert (found.reason, found.walls) == ("tokens", ())
    assert gone(marker)


def test_a_child_that_outlives_the_tool(workspace: Workspace) -> None:
    marker = f"marker-{uuid.uuid4()}"
    found = session(workspace, f"fork {marker}")
    assert (found.reason, bool(found.kernel)) == ("done", True)
    assert gone(marker)


def test_nothing_outlives_a_killed_atrex(workspace: Workspace) -> None:
    marker = f"marker-{uuid.uuid4()}"
    atrex = multiprocessing.get_context("fork").Process(target=session, args=(workspace, f"hang {marker}"))
    atrex.start()
    try:
        deadline = time.monotonic() + 60
        while len([p for p in marked(marker) if "-c" in p.cmdline()]) < 2:
            assert time.monotonic() < deadline, "the tool's children never came"
            time.sleep(0.05)
    finally:
        atrex.kill()
        atrex.join()
    assert gone(marker, 20.0)


@BOTH
def test_garbage_is_counted_and_survived(workspace: Workspace, tool: Tool) -> None:
    found = session(workspace, "garbage", tool)
    assert (found.reason, found.garbage) == ("done", 6)
    assert found.tokens == 200
    assert found.transcript.stat().st_size < 1 << 20
    assert found.objection == "kernel.py: still the skeleton"
    assert Session.model_validate_json(found.model_dump_json()) == found


def test_a_tool_that_exits_at_once(workspace: Workspace) -> None:
    found = session(workspace, "crash")
    assert (found.reason, found.detail) == ("failed", "Segmentation fault, or so it says")
    assert (found.tokens, found.dollars, found.kernel) == (None, None, None)


@BOTH
def test_a_tool_that_is_asked_to_log_in(workspace: Workspace, tool: Tool) -> None:
    found = session(workspace, "refused", tool)
    variable = {"claude-code": "ANTHROPIC_API_KEY", "codex": "CODEX_API_KEY"}[tool]
    assert found.reason == "failed"
    assert found.detail == f"Not logged in · Please run /login; is {variable} a key that works?"


def test_a_full_disk(workspace: Workspace) -> None:
    found = session(workspace, "fill", disk_bytes=20 << 20)
    assert (found.reason, found.detail) == ("disk", "the directory holds more than 20 MiB")


def test_it_sees_neither_hidden_cases_nor_other_processes(workspace: Workspace) -> None:
    shape, secret = "41239", "foreign-secret-value"
    assert any(str(size) == shape for size in workspace.hidden[0].input.values())
    found = session(workspace, f"spy {shape} rms_norm-001 {secret} {WORKLOADS}")
    text = found.transcript.read_text()
    if {guard.PROCESSES, guard.FILES} <= set(found.walls):
        assert "found [] []" in text
    else:
        assert shape not in text
        assert "rms_norm-001" not in text


@BOTH
def test_its_environment_holds_no_foreign_secret(workspace: Workspace, tool: Tool) -> None:
    text = session(workspace, "environment", tool).transcript.read_text()
    variable = {"claude-code": "ANTHROPIC_API_KEY", "codex": "CODEX_API_KEY"}[tool]
    assert f"{variable}=[key removed]" in text
    for absent in ("foreign-secret-value", "foreign-plain-value", "sk-ant-own-key", "sk-own-key"):
        assert absent not in text
    other = {"claude-code": "CODEX_API_KEY", "codex": "ANTHROPIC_API_KEY"}[tool]
    assert other not in text


@BOTH
def test_a_kernel_that_holds_a_key_is_kept_nowhere(workspace: Workspace, tool: Tool) -> None:
    kept = list[Session]()
    found = session(workspace, "leaks", tool, kept.append)
    assert (found.kernel, found.objection) == (None, "kernel.py: holds a key")
    assert [each.source for each in found.versions] == ["class Model: a = 1\n"]
    assert not any(secret in each.model_dump_json() for each in kept for secret in KEYS.values())
    files = [path for path in workspace.directory.parent.rglob("*") if path.is_file()]
    assert workspace.directory / "TASK.md" in files
    assert not [path for path in files for secret in KEYS.values() if secret in path.read_text()]


@BOTH
def test_a_key_is_in_no_word_of_a_session(workspace: Workspace, tool: Tool) -> None:
    kept = list[Session]()
    found = session(workspace, "talks", tool, kept.append)
    assert found.model == "model-[key removed]"
    assert found.detail.startswith("the key [key removed] is refused")
    assert not any(secret in each.model_dump_json() for each in kept for secret in KEYS.values())


def test_a_key_is_in_no_version_of_a_tool(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "tools"
    own.mkdir()
    (own / "claude").write_text(f"#!/bin/sh\necho 1.0 {KEYS['ANTHROPIC_API_KEY']}\n")
    (own / "claude").chmod(0o755)
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ['PATH']}")
    assert session(workspace, "nothing").version == "1.0 [key removed]"


@BOTH
def test_a_session_is_told_of_as_it_goes(workspace: Workspace, tool: Tool) -> None:
    kept = list[Session]()
    found = session(workspace, "versions", tool, kept.append)
    assert kept[-1] == found
    assert {each.reason for each in kept[:-1]} == {"interrupted"}
    assert [len(each.versions) for each in kept] == sorted(len(each.versions) for each in kept)
    sums = list(dict.fromkeys(each.tokens for each in kept))
    assert len(sums) > 2  # the first of them may be None: nothing has been told yet
    assert sums[-1] == 600
    assert Session.model_validate_json(kept[-2].model_dump_json()) == kept[-2]


@BOTH
def test_an_interrupted_session_is_told_of_to_its_last_word(workspace: Workspace, tool: Tool) -> None:
    kept, pressed = list[Session](), list[bool]()

    def keep(each: Session) -> None:
        kept.append(each)
        if each.tokens and not pressed:
            pressed.append(True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session(workspace, "farewell", tool, keep, grace=10.0)
    at_once, last = kept[-2:]
    assert (at_once.reason, len(at_once.versions)) == ("interrupted", 1)
    assert 0 < (at_once.tokens or 0) <= 100
    assert (last.reason, last.tokens) == ("interrupted", 5100)
    assert [each.source for each in last.versions] == ["class Model: a = 1\n", "class Model: b = 2\n"]
    assert last.kernel == last.versions[1]
    assert last.dollars
    assert last.seconds > 0
    assert not workspace.home.exists()


def test_the_place_around_its_directory_can_be_hidden(workspace: Workspace) -> None:
    around = workspace.directory.parent
    (around / "run.json").write_text("a seed")
    limits, transcript = Limits(seconds=60.0), around / "transcript.jsonl"
    found = run(
        workspace, "claude-code", limits=limits, transcript=transcript, prompt="called", hide=[around]
    )
    assert ("beside ['work']" if guard.FILES in found.walls else "run.json") in transcript.read_text()
    assert (around / "run.json").read_text() == "a seed"


def test_a_pipe_in_the_kernels_place_blocks_nobody(workspace: Workspace) -> None:
    found = session(workspace, "pipe")
    assert (found.reason, found.kernel, found.objection) == ("done", None, "kernel.py: not a plain file")


def test_openai_s_variable_serves_codex_too(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CODEX_API_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another-key")
    text = session(workspace, "environment", "codex").transcript.read_text()
    assert "CODEX_API_KEY=[key removed]" in text
    assert "sk-another-key" not in text


@BOTH
def test_a_tool_that_is_not_installed(
    workspace: Workspace, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentProblem, match="npm install -g") as raised:
        session(workspace, "versions", tool)
    assert raised.value.exit_code == 3
    assert tool in str(raised.value)


@BOTH
def test_a_missing_key(workspace: Workspace, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = {"claude-code": "ANTHROPIC_API_KEY", "codex": "CODEX_API_KEY"}[tool]
    monkeypatch.delenv(variable)
    with pytest.raises(EnvironmentProblem, match=variable):
        session(workspace, "versions", tool)


def test_a_transcript_in_reach_of_the_tool(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="outside the tool's directory"):
        run(workspace, "codex", limits=Limits(seconds=1), transcript=workspace.directory / "t.jsonl")
