"""What is sent: the question, what the API demands, and of the parameters only those that the user set."""

from __future__ import annotations

from typing import Any

import pytest

from agent.models.gpt import Chat
from agent.models.records import Message, Request, Sampling
from atrex.errors import UsageError
from tests.models.conftest import ASK, Dialect, FakeClock, Serve, speaking
from tests.models.wire import Api, Text

EPHEMERAL = {"type": "ephemeral"}


def sent(dialect: Dialect, serve: Serve, request: Request) -> dict[str, Any]:
    server = serve(Text("fine"))
    dialect.open(server).complete(request)
    (received,) = server.received
    return received.body


def asked(**changes: Any) -> Request:
    return ASK.model_copy(update=changes)


def test_nothing_but_the_question(dialect: Dialect, serve: Serve) -> None:
    body = sent(dialect, serve, ASK)
    assert body.pop("stream", False) is dialect.stream
    if dialect.api == "chat" and dialect.stream:
        assert body.pop("stream_options") == {"include_usage": True}
    question = {"role": "user", "content": "Write one."}
    block = {"type": "text", "text": "Write one."}
    system = {"type": "text", "text": "You write kernels.", "cache_control": EPHEMERAL}
    assert (
        body
        == {
            "messages": {
                "model": "the-model",
                "max_tokens": 32_000,
                "system": [system],
                "messages": [{"role": "user", "content": [block]}],
            },
            "responses": {"model": "the-model", "instructions": "You write kernels.", "input": [question]},
            "chat": {
                "model": "the-model",
                "messages": [{"role": "system", "content": "You write kernels."}, question],
            },
        }[dialect.api]
    )


def test_without_a_system_text_none_is_sent(streaming: Dialect, serve: Serve) -> None:
    body = sent(streaming, serve, asked(system=""))
    assert not {"system", "instructions"} & set(body)
    assert "system" not in [message["role"] for message in body.get("messages", [])]


def test_every_parameter_the_user_set(streaming: Dialect, serve: Serve) -> None:
    api = streaming.api
    plain = {"temperature": 0.25, "top_p": 0.9}
    further = {"messages": {"top_k": 7}, "responses": {}, "chat": {"top_k": 7, "seed": 3}}[api]
    sampling = Sampling(**plain, **further, effort="low", extra={"metadata": {"user_id": "u"}})
    body = sent(streaming, serve, asked(sampling=sampling, max_output_tokens=77))
    effort = {
        "messages": {"output_config": {"effort": "low"}},
        "responses": {"reasoning": {"effort": "low"}},
        "chat": {"reasoning_effort": "low"},
    }[api]
    limit = {"messages": "max_tokens", "responses": "max_output_tokens", "chat": "max_tokens"}[api]
    wanted = {**plain, **further, **effort, limit: 77, "metadata": {"user_id": "u"}}
    assert {name: body.get(name) for name in wanted} == wanted
    bare = {"model", "stream", "stream_options", "system", "instructions", "messages", "input"}
    assert set(body) - bare == set(wanted)


def test_zero_is_a_value_that_was_set(streaming: Dialect, serve: Serve) -> None:
    assert sent(streaming, serve, asked(sampling=Sampling(temperature=0.0)))["temperature"] == 0.0


@pytest.mark.parametrize(
    ("api", "sampling"),
    [
        ("messages", Sampling(seed=1)),
        ("responses", Sampling(seed=1)),
        ("responses", Sampling(top_k=1)),
        ("messages", Sampling(extra={"messages": []})),
        ("responses", Sampling(extra={"input": ""})),
        ("chat", Sampling(extra={"stream": False})),
        ("chat", Sampling(extra={"max_tokens": 1})),
        ("messages", Sampling(extra={"model": "another"})),
        ("chat", Sampling(temperature=0.5, extra={"temperature": 0.6})),
        ("messages", Sampling(effort="low", extra={"output_config": {"effort": "high"}})),
    ],
    ids=str,
)
def test_a_parameter_that_cannot_be_sent_is_named(
    fake_clock: FakeClock, serve: Serve, api: Api, sampling: Sampling
) -> None:
    server = serve(Text("fine"))
    with pytest.raises(UsageError, match="leave it out"):
        speaking(api, fake_clock).open(server).complete(asked(sampling=sampling))
    assert server.received == []


def test_stable_messages_end_a_cached_prefix(streaming: Dialect, serve: Serve) -> None:
    def user(text: str, stable: bool = False) -> Message:
        return Message(role="user", text=text, stable=stable)

    answer = Message(role="assistant", text="a", stable=True)
    messages = (user("1", True), user("2", True), user("3"), answer, user("4", True), user("5"))
    body = sent(streaming, serve, asked(messages=messages))
    if streaming.api != "messages":
        assert "cache_control" not in str(body)
        return
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    blocks = [block for turn in body["messages"] for block in turn["content"]]
    assert [block["text"] for block in blocks] == ["1", "2", "3", "a", "4", "5"]
    marked = [block["text"] for block in blocks if "cache_control" in block]
    assert marked == ["2", "a", "4"]  # with the system text four, which is all that the API takes


def test_equal_messages_are_not_confused(streaming: Dialect, serve: Serve) -> None:
    same = Message(role="user", text="again", stable=True)
    body = sent(streaming, serve, asked(messages=(same, same, same, same)))
    if streaming.api == "messages":
        blocks = body["messages"][0]["content"]
        assert ["cache_control" in block for block in blocks] == [False, True, True, True]


def test_the_draw_number_is_not_sent(streaming: Dialect, serve: Serve) -> None:
    assert sent(streaming, serve, ASK) == sent(streaming, serve, asked(sample=9))


def test_the_limit_has_its_new_name_at_openai() -> None:
    pytest.importorskip("openai")
    elsewhere, openai = Chat("m", base_url="http://127.0.0.1:1/v1"), Chat("m")
    assert (elsewhere.provider, elsewhere._limit) == ("compatible", "max_tokens")
    assert (openai.provider, openai._limit) == ("openai-chat", "max_completion_tokens")
