"""From the words of a command line to a model, its API and its cache."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.models.cache import Cached, Replay
from agent.models.call import PINS
from agent.models.choose import DEFAULTS, open_model
from agent.models.records import Message, Request
from atrex.errors import UsageError
from tests.models.conftest import Serve
from tests.models.server import Received
from tests.models.wire import Text

LOCAL = "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("agent", "words", "provider", "name"),
    [
        ("claude", {}, "anthropic", DEFAULTS["claude"]),
        ("claude", {"model": "claude-x", "base_url": "http://127.0.0.1:1"}, "anthropic", "claude-x"),
        ("gpt", {}, "openai", DEFAULTS["gpt"]),
        ("gpt", {"api": "chat"}, "openai-chat", DEFAULTS["gpt"]),
        ("gpt", {"model": "qwen", "base_url": LOCAL}, "compatible", "qwen"),
    ],
)
def test_agents(agent: Any, words: dict[str, Any], provider: str, name: str, tmp_path: Path) -> None:
    pytest.importorskip({"claude": "anthropic", "gpt": "openai"}[agent])
    model = open_model(agent, **words)
    assert (model.provider, model.name) == (provider, name)
    cached = open_model(agent, **words, cache=tmp_path)
    assert isinstance(cached, Cached)
    replay = open_model(agent, **words, replay=tmp_path)
    assert isinstance(replay, Replay)
    assert (replay.provider, replay.name) == (cached.provider, cached.name) == (provider, name)


@pytest.mark.parametrize(
    ("agent", "words", "remedy"),
    [
        ("gpt", {"base_url": LOCAL}, "--model"),
        ("gpt", {"base_url": LOCAL, "model": "m", "api": "responses"}, "Chat Completions"),
        ("claude", {"api": "chat"}, "one API"),
    ],
)
def test_words_that_do_not_fit_together(agent: Any, words: dict[str, Any], remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy):
        open_model(agent, **words)


def test_the_extra_and_the_pip_lines_name_the_same_versions() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    if "models" not in project["optional-dependencies"]:
        pytest.skip("pyproject.toml has no extra `models` yet")
    assert sorted(PINS.values()) == sorted(project["optional-dependencies"]["models"])


def test_a_scripted_conversation(serve: Serve) -> None:
    """What longer tests use the server for: an answer that depends on the question."""
    pytest.importorskip("openai")

    def script(received: Received) -> Text:
        return Text("second" if "first" in str(received.body["messages"]) else "first")

    server = serve(script)
    model = open_model("gpt", model="m", base_url=server.openai_url)
    ask = Message(role="user", text="go")
    reply = model.complete(Request(messages=(ask,)))
    answer = Message(role="assistant", text=reply.text)
    again = model.complete(Request(messages=(ask, answer, ask)))
    assert (reply.text, again.text) == ("first", "second")
    assert [received.api for received in server.received] == ["chat", "chat"]
