"""Replies of every kind, from the real SDKs over HTTP: what is a reply is never an exception."""

from __future__ import annotations

import json

import pytest

from agent.models.records import Limits, Stop, Usage
from tests.models.conftest import ASK, Dialect, FakeClock, Serve, speaking
from tests.models.server import Raw, Slow, Status
from tests.models.wire import Api, Text, frame

PRICED = {"messages": "claude-opus-5", "responses": "gpt-6.1-sol", "chat": "gpt-6.1-sol"}


def test_a_reply_has_text_usage_model_and_request_id(dialect: Dialect, serve: Serve) -> None:
    text = "def kernel():\n    return 'ß ∑ 🚀'\n" * 5
    reply = dialect.open(serve(Text(text, input=100, cached=60, output=7))).complete(ASK)
    assert (reply.text, reply.stop, reply.model) == (text, Stop.END, "the-model")
    assert reply.usage == Usage(input_tokens=100, output_tokens=7, cached_tokens=60)
    assert (reply.request_id, reply.attempts, reply.recorded) == ("req_header", 1, False)
    assert reply.cost is None  # nobody sells "the-model"


def test_a_known_model_has_a_cost(dialect: Dialect, serve: Serve) -> None:
    name = PRICED[dialect.api]
    say = Text("x", input=1_000_000 if dialect.api == "messages" else 200_000, output=0, model=name)
    reply = dialect.open(serve(say), name).complete(ASK)
    assert reply.cost == {"messages": 5.0, "responses": 0.4, "chat": None}[dialect.api]


def test_a_dated_snapshot_costs_what_its_model_costs_and_another_tier_is_unknown(
    streaming: Dialect, serve: Serve
) -> None:
    name = PRICED[streaming.api]
    dated = name + ("-20260724" if streaming.api == "messages" else "-2026-09-29")
    server = serve(Text("x", model=dated), Text("x", model=name, tier="priority"))
    model = streaming.open(server, name)
    assert (model.complete(ASK).cost is None) == (streaming.api == "chat")
    assert model.complete(ASK).cost is None


@pytest.mark.parametrize(
    ("say", "stop", "text"),
    [
        (Text("cut o", stop="length"), Stop.LENGTH, "cut o"),
        (Text("", stop="length"), Stop.LENGTH, ""),
        (Text(""), Stop.EMPTY, ""),
        (Text(" \n"), Stop.EMPTY, " \n"),
        (Text("", stop="tool"), Stop.TOOL, ""),
        (Text("what?", stop="unknown"), Stop.MALFORMED, "what?"),
    ],
)
def test_replies_that_are_no_answer(dialect: Dialect, serve: Serve, say: Text, stop: Stop, text: str) -> None:
    reply = dialect.open(serve(say)).complete(ASK)
    assert (reply.stop, reply.text) == (stop, text)
    assert reply.usage == Usage(input_tokens=100, output_tokens=20)


def test_a_refusal_is_a_reply(dialect: Dialect, serve: Serve) -> None:
    reply = dialect.open(serve(Text("I will not.", stop="refusal"))).complete(ASK)
    assert reply.stop is Stop.REFUSED
    assert "I will not." in reply.text + reply.detail
    assert reply.usage is not None


def test_a_prompt_that_the_server_declines_is_a_refusal(dialect: Dialect, serve: Serve) -> None:
    reply = dialect.open(serve(Status(400, "flagged", code="invalid_prompt"))).complete(ASK)
    assert (reply.stop, reply.detail, reply.usage, reply.cost) == (Stop.REFUSED, "flagged", None, None)


def test_a_tool_call_beside_text_keeps_the_text(dialect: Dialect, serve: Serve) -> None:
    reply = dialect.open(serve(Text("Let me look.", stop="tool"))).complete(ASK)
    assert reply.text == "Let me look."
    assert reply.stop is (Stop.END if dialect.api == "responses" else Stop.TOOL)


def test_thoughts_and_commentary_are_not_the_answer(dialect: Dialect, serve: Serve) -> None:
    reply = dialect.open(serve(Text("The answer.", thinking="First I think."))).complete(ASK)
    assert (reply.text, reply.stop) == ("The answer.", Stop.END)


@pytest.mark.parametrize("api", ["responses", "chat"])  # the Messages API always counts
@pytest.mark.parametrize("stream", [True, False])
def test_a_server_that_counts_nothing(fake_clock: FakeClock, serve: Serve, api: Api, stream: bool) -> None:
    reply = speaking(api, fake_clock, stream=stream).open(serve(Text("hello", usage=False))).complete(ASK)
    assert (reply.text, reply.usage, reply.cost) == ("hello", None, None)


def test_counts_that_contradict_each_other_are_no_usage(serve: Serve, dialect: Dialect) -> None:
    reply = dialect.open(serve(Text("hello", input=5, cached=50, output=1))).complete(ASK)
    assert (reply.text, reply.usage) == ("hello", None)


def test_two_megabytes_are_cut_and_marked(dialect: Dialect, serve: Serve) -> None:
    server = serve(Text("é" * 1_000_000 + "end", piece=50_000))  # 2 MB and 3 bytes
    reply = dialect.open(server).complete(ASK)
    assert reply.stop is Stop.CUT
    assert len(reply.text.encode()) == 1_000_000
    assert set(reply.text) == {"é"}
    assert len(server.received) == 1


def test_two_megabytes_pass_where_they_may(dialect: Dialect, serve: Serve) -> None:
    text = "é" * 1_000_000
    limits = Limits(reply_bytes=2_000_000)
    reply = dialect.open(serve(Text(text, piece=50_000)), limits=limits).complete(ASK)
    assert (reply.stop, reply.text == text) == (Stop.END, True)


def test_the_cut_never_splits_a_letter(dialect: Dialect, serve: Serve) -> None:
    reply = dialect.open(serve(Text("aé" * 50)), limits=Limits(reply_bytes=149)).complete(ASK)
    assert (reply.stop, reply.text) == (Stop.CUT, "aé" * 49 + "a")


def test_what_comes_over_the_line_without_being_text_is_bounded_too(streaming: Dialect, serve: Serve) -> None:
    comment = b": nothing\n\n" * 20_000
    server = serve(Raw(comment, begun=True))
    reply = streaming.open(server, limits=Limits(reply_bytes=1000)).complete(ASK)
    assert (reply.stop, reply.text) == (Stop.CUT, "")


def test_half_a_surrogate_pair_becomes_a_question_mark(dialect: Dialect, serve: Serve) -> None:
    server = serve(Text("a\ud800b", piece=1, model="m\udfff"), Status(400, "\ud800", code="invalid_prompt"))
    model = dialect.open(server)
    reply, refusal = model.complete(ASK), model.complete(ASK)
    assert (reply.text, reply.model, refusal.detail) == ("a?b", "m?", "?")
    assert json.loads(reply.model_dump_json())["text"] == "a?b"


def test_slow_bytes_are_a_reply_all_the_same(dialect: Dialect, serve: Serve) -> None:
    reply = dialect.open(serve(Slow("late", pause_s=0.0001))).complete(ASK)
    assert (reply.text, reply.stop) == ("late", Stop.END)


def test_a_chat_without_choices_is_malformed(fake_clock: FakeClock, serve: Serve) -> None:
    body = b'{"id": "1", "object": "chat.completion", "model": "m", "choices": []}'
    reply = speaking("chat", fake_clock, stream=False).open(serve(Raw(body))).complete(ASK)
    assert (reply.stop, reply.text, reply.model) == (Stop.MALFORMED, "", "m")


def test_a_chat_may_refuse_in_words(fake_clock: FakeClock, serve: Serve) -> None:
    def chunk(delta: object, finish: str | None = None) -> bytes:
        data = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "model": "m"}
        return frame((None, data))

    words = [chunk({"refusal": "I will "}), chunk({"refusal": "not."}), chunk({}, "stop")]
    message = {"role": "assistant", "content": None, "refusal": "I will not."}
    whole = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    for stream, raw in ((True, Raw(b"".join(words), "text/event-stream")), (False, Raw(whole))):
        reply = speaking("chat", fake_clock, stream=stream).open(serve(raw)).complete(ASK)
        assert (reply.stop, reply.text, reply.detail) == (Stop.REFUSED, "", "I will not.")
