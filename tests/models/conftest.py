"""The three APIs behind one fixture, a clock that nobody waits for, and keys that must never show up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.models.claude import Claude
from agent.models.gpt import Chat, Responses
from agent.models.records import Limits, Message, Request
from agent.models.remote import Remote
from agent.models.retry import Clock
from tests.models.server import ModelServer
from tests.models.wire import Api

SENTINEL = "sk-sentinel-0123456789abcdef-never-print-me"
VARIABLES = {
    "messages": "ANTHROPIC_API_KEY",
    "responses": "OPENAI_API_KEY",
    "chat": "ATREX_BASE_URL_KEY",
}
PACKAGES = {"messages": "anthropic", "responses": "openai", "chat": "openai"}
ASK = Request(system="You write kernels.", messages=(Message(role="user", text="Write one."),))


@dataclass
class FakeClock:
    """Time moves when somebody sleeps."""

    time: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def clock(self) -> Clock:
        return Clock(self.now, self.sleep)


@dataclass
class Dialect:
    """One API, with or without streaming: opens models of it against a server."""

    api: Api
    stream: bool
    clock: FakeClock

    def open(self, server: ModelServer | str, name: str = "the-model", **options: Any) -> Remote:
        root = server if isinstance(server, str) else server.url
        options = {
            "clock": self.clock.clock(),
            "limits": Limits(attempts=4),
            "stream": self.stream,
            **options,
        }
        if self.api == "messages":
            return Claude(name, base_url=root, **options)
        kind = Responses if self.api == "responses" else Chat
        return kind(name, base_url=f"{root}/v1", **options)

    @property
    def variable(self) -> str:
        return VARIABLES[self.api]


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, SENTINEL)
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(
    params=[(api, stream) for api in ("messages", "responses", "chat") for stream in (True, False)],
    ids=lambda param: f"{param[0]}-{'stream' if param[1] else 'json'}",
)
def dialect(request: pytest.FixtureRequest, fake_clock: FakeClock) -> Dialect:
    """Every API, streaming and not."""
    api, stream = request.param
    return speaking(api, fake_clock, stream=stream)


@pytest.fixture(params=["messages", "responses", "chat"])
def streaming(request: pytest.FixtureRequest, fake_clock: FakeClock) -> Dialect:
    """Every API, streaming."""
    return speaking(request.param, fake_clock)


def speaking(api: Api, clock: FakeClock, *, stream: bool = True) -> Dialect:
    """One API; skips the test where its SDK is not installed."""
    pytest.importorskip(PACKAGES[api], reason=f"the package {PACKAGES[api]} is not installed")
    return Dialect(api, stream, clock)


Serve = Callable[..., ModelServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers with the given answers, and stops them after the test."""
    running: list[ModelServer] = []

    def start(*answers: Any) -> ModelServer:
        script = answers[0] if len(answers) == 1 and callable(answers[0]) else answers
        server = ModelServer(script)
        running.append(server.__enter__())
        return server

    yield start
    for server in running:
        server.__exit__(None, None, None)
