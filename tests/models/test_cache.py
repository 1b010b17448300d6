"""Replies on disk: found by content, whole or not there, never paid twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.models import cache
from agent.models.cache import Cached, Replay, address
from agent.models.records import Message, Provider, Reply, Request, Sampling, Stop, Usage
from atrex.errors import EnvironmentProblem, UsageError
from tests.models.conftest import Dialect, Serve
from tests.models.server import Status
from tests.models.wire import Text

ASK = Request(system="s", messages=(Message(role="user", text="ü?"),))


class Paid:
    """A model that counts what it is asked."""

    provider: Provider = "compatible"
    name = "m"

    def __init__(self, text: str = "answer", then: Callable[[], None] = lambda: None) -> None:
        self.text, self.then, self.asked = text, then, 0

    def complete(self, request: Request, *, seconds: float | None = None) -> Reply:
        self.asked += 1
        usage = Usage(input_tokens=3, output_tokens=2, cached_tokens=1)
        return Reply(text=self.text, stop=Stop.END, usage=usage, cost=0.5, model="m-1", seconds=1.25)


def test_the_second_asking_is_free_and_says_so(tmp_path: Path) -> None:
    paid = Paid("line\n\u2028ü\x00")
    model = Cached(paid, tmp_path / "deep" / "replies")
    first, second = model.complete(ASK), model.complete(ASK)
    assert (paid.asked, first.recorded, second.recorded) == (1, False, True)
    assert second.model_copy(update={"recorded": False}) == first
    assert (model.provider, model.name) == ("compatible", "m")


def test_a_replay_needs_no_network_no_key_and_no_sdk(
    dialect: Dialect, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(Text("once"))
    model = dialect.open(server)
    first = Cached(model, tmp_path).complete(ASK)
    monkeypatch.delenv(dialect.variable)
    again = Replay(model.provider, "the-model", tmp_path).complete(ASK)
    assert again == first.model_copy(update={"recorded": True})
    assert len(server.received) == 1


def test_what_is_not_on_record_is_a_clear_error(tmp_path: Path) -> None:
    Cached(Paid(), tmp_path).complete(ASK)
    replay = Replay("compatible", "m", tmp_path)
    other = ASK.model_copy(update={"system": "t"})
    with pytest.raises(UsageError, match=r"no reply of compatible \(m\) to this request is on") as caught:
        replay.complete(other)
    assert address("compatible", "m", other) in str(caught.value)
    with pytest.raises(UsageError, match="no such directory"):
        Replay("compatible", "m", tmp_path / "none")


CHANGES: list[dict[str, Any]] = [
    {"system": "S"},
    {"messages": (Message(role="user", text="u?"),)},
    {"messages": (Message(role="user", text="ü?", stable=True),)},
    {"max_output_tokens": 5},
    {"sampling": Sampling(temperature=0.0)},
    {"sampling": Sampling(extra={"a": 1})},
    {"sampling": Sampling(extra={"a": True})},
    {"sample": 1},
]


def test_every_part_of_the_question_is_part_of_its_address() -> None:
    requests = [ASK, *(ASK.model_copy(update=change) for change in CHANGES)]
    addresses = {address("openai", "m", request) for request in requests}
    addresses |= {address("openai", "n", ASK), address("compatible", "m", ASK)}
    assert len(addresses) == len(CHANGES) + 3


def test_the_address_is_stable() -> None:
    """Replies recorded by an earlier version stay found: change VERSION if this has to change."""
    one = Request(messages=(Message(role="user", text="é"),), sampling=Sampling(extra={"b": 1, "a": [2.5]}))
    two = Request(messages=(Message(role="user", text="é"),), sampling=Sampling(extra={"a": [2.5], "b": 1}))
    expected = "099fb08c9c3ce301b1662721af9454a582a45b85a284b375dbd71f0e0bcdd0e6"
    assert address("anthropic", "m", one) == address("anthropic", "m", two)
    assert address("anthropic", "m", one) == expected


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "not a recorded reply"),
        (lambda data: data[: len(data) // 2], "not a recorded reply"),
        (lambda data: b"\xff" + data, "not a recorded reply"),
        (lambda data: data.replace(b'"text": "answer"', b'"text": 5'), "reply.text"),
        (lambda data: data.replace(b'"system": "s"', b'"system": "x"'), "answers another request"),
        (lambda data: data.replace(b'"schema_version": 1', b'"schema_version": 2'), "newer Atrex"),
    ],
)
def test_a_damaged_file_is_named_and_not_paid_over(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    paid = Paid()
    Cached(paid, tmp_path).complete(ASK)
    (file,) = tmp_path.iterdir()
    assert damage(file.read_bytes()) != file.read_bytes()
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UsageError, match=words) as caught:
        Cached(paid, tmp_path).complete(ASK)
    assert str(file) in str(caught.value)
    assert paid.asked == 1


def test_a_failure_is_not_recorded(streaming: Dialect, serve: Serve, tmp_path: Path) -> None:
    model = Cached(streaming.open(serve(Status(401), Text("now"))), tmp_path)
    with pytest.raises(EnvironmentProblem):
        model.complete(ASK)
    assert list(tmp_path.iterdir()) == []
    assert model.complete(ASK).text == "now"


def test_a_directory_that_takes_no_file_is_known_before_anything_is_paid(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    paid = Paid()
    with pytest.raises(EnvironmentProblem, match="choose another directory"):
        Cached(paid, tmp_path / "file" / "replies")
    assert paid.asked == 0


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Cached(Paid(), tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentProblem, match="No space left"):
            model.complete(ASK)
    assert list(tmp_path.iterdir()) == []


def _killed(directory: Path, at: str) -> None:
    """A process that asks, and is killed just before or just after the reply has its name."""
    replace = os.replace

    def then_die(source: Any, target: Any) -> None:
        if at == "after":
            replace(source, target)
        os.kill(os.getpid(), signal.SIGKILL)

    cache.os.replace = then_die  # type: ignore[attr-defined]
    Cached(Paid(), directory).complete(ASK)


@pytest.mark.parametrize(("at", "asked"), [("before", 1), ("after", 0)])
def test_a_kill_leaves_a_whole_reply_or_none(tmp_path: Path, at: str, asked: int) -> None:
    child = multiprocessing.get_context("fork").Process(target=_killed, args=(tmp_path, at))
    child.start()
    child.join(20)
    assert child.exitcode == -signal.SIGKILL
    paid = Paid()
    assert Cached(paid, tmp_path).complete(ASK).text == "answer"
    assert paid.asked == asked
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["request"]["system"] == "s"
