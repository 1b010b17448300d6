"""What goes wrong on the way: what may pass is tried again, the rest ends at once in one line."""

from __future__ import annotations

import json
import re
import socket

import pytest

from agent.models.failures import ModelUnavailable
from agent.models.records import Limits, Stop
from agent.models.retry import Clock
from atrex.errors import AtrexError, EnvironmentProblem, UsageError
from tests.models.conftest import ASK, Dialect, FakeClock, Serve, speaking
from tests.models.server import Cut, Ends, Raw, Slow, Status, StreamError
from tests.models.wire import Text, frame

OK = Text("fine")


@pytest.mark.parametrize(
    "failure",
    [Status(429), Cut("before"), Cut("middle"), Raw(b"<html>bad gateway</html>", "text/html", 502)],
    ids=str,
)
def test_what_may_pass_is_tried_again(dialect: Dialect, serve: Serve, failure: Status) -> None:
    server = serve(failure, failure, OK)
    reply = dialect.open(server).complete(ASK)
    assert (reply.text, reply.attempts, len(server.received)) == ("fine", 3, 3)
    first, second = dialect.clock.slept
    assert 0.5 <= first <= 1.0 <= second <= 2.0
    assert reply.seconds == pytest.approx(first + second)
    assert server.received[0].body == server.received[2].body
    assert {r.headers["x-stainless-retry-count"] for r in server.received} == {"0"}  # none of the SDK's own


def test_every_status_that_may_pass(streaming: Dialect, serve: Serve) -> None:
    passing = [408, 429, 500, 502, 503, 504, 529]
    model = streaming.open(serve(*[Status(status) for status in passing], OK), limits=Limits(attempts=9))
    assert model.complete(ASK).attempts == 8


@pytest.mark.parametrize(
    ("headers", "least"),
    [
        ({"retry-after": "17"}, 17.0),
        ({"retry-after": "0.25"}, 0.5),
        ({"retry-after-ms": "2500", "retry-after": "9"}, 2.5),
        ({"retry-after": "nonsense"}, 0.5),
        ({"retry-after": "-3"}, 0.5),
        ({"retry-after": "inf"}, 0.5),
    ],
)
def test_retry_after_is_the_least_wait(
    streaming: Dialect, serve: Serve, headers: dict[str, str], least: float
) -> None:
    reply = streaming.open(serve(Status(429, headers=headers), OK)).complete(ASK)
    assert reply.text == "fine"
    assert least <= streaming.clock.slept[0] <= max(least, 1.0)


@pytest.mark.parametrize("kind", ["overloaded_error", "api_error", "rate_limit_error", "server_error"])
def test_an_error_inside_a_stream_is_tried_again(streaming: Dialect, serve: Serve, kind: str) -> None:
    assert streaming.open(serve(StreamError(kind), OK)).complete(ASK).attempts == 2


def test_a_stream_that_ends_too_early_is_tried_again(streaming: Dialect, serve: Serve) -> None:
    reply = streaming.open(serve(Ends(), Raw(b"", "text/event-stream"), OK)).complete(ASK)
    assert (reply.text, reply.attempts) == ("fine", 3)


def test_an_unknown_error_inside_a_stream_ends_at_once(streaming: Dialect, serve: Serve) -> None:
    server = serve(StreamError("invented_last_week", "no such thing"), OK)
    with pytest.raises(UsageError, match="no such thing"):
        streaming.open(server).complete(ASK)
    assert len(server.received) == 1


def test_a_policy_error_inside_a_stream_is_a_refusal(streaming: Dialect, serve: Serve) -> None:
    reply = streaming.open(serve(StreamError("bio_policy", "not this"))).complete(ASK)
    assert (reply.stop, reply.detail) == (Stop.REFUSED, "not this")


@pytest.mark.parametrize("stream", [True, False])
def test_a_response_that_failed_is_tried_again(fake_clock: FakeClock, serve: Serve, stream: bool) -> None:
    error = {"code": "server_error", "message": "sorry"}
    failed = {"id": "resp_1", "object": "response", "status": "failed", "error": error, "output": []}
    event = frame(("response.failed", {"type": "response.failed", "response": failed}))
    raw = Raw(event, begun=True) if stream else Raw(json.dumps(failed).encode())
    reply = speaking("responses", fake_clock, stream=stream).open(serve(raw, OK)).complete(ASK)
    assert (reply.text, reply.attempts) == ("fine", 2)


def test_an_endless_error_page_is_an_error_all_the_same(streaming: Dialect, serve: Serve) -> None:
    endless = Raw(b"x" * 300_000, "text/html", 503)
    reply = streaming.open(serve(endless, OK), limits=Limits(reply_bytes=1000)).complete(ASK)
    assert (reply.text, reply.attempts) == ("fine", 2)


PERMANENT = [
    (Status(400, "temperature is deprecated"), UsageError, "temperature is deprecated.*parameter"),
    (Status(401, "invalid key"), EnvironmentProblem, "refuses the key.*check {variable}"),
    (Status(402, "no money"), EnvironmentProblem, "credit"),
    (Status(403, "not for you"), EnvironmentProblem, "permit.*{variable}"),
    (Status(404, "no model x"), UsageError, "--model the-model"),
    (Status(413, "too many bytes"), UsageError, "shorten the prompt"),
    (Status(422, "what"), UsageError, "refuses the request"),
    (Status(429, "pay", code="insufficient_quota"), EnvironmentProblem, "add credit"),
    (Status(429, "pay", code="credit_balance_exhausted"), EnvironmentProblem, "add credit"),
    (Status(429, "pay", code="enforced_spend_limit_reached"), EnvironmentProblem, "add credit"),
]
NOT_THIS_API = [
    (Status(401, "invalid key"), EnvironmentProblem, "check {variable}"),
    (Raw(b"{not json", status=200), EnvironmentProblem, "does not speak this API.*--base-url"),
    (Raw(b"<html>a login page</html>", "text/html"), EnvironmentProblem, "does not speak this API"),
    (Raw(b"", "text/html", 302, headers={"location": "/elsewhere"}), EnvironmentProblem, "302"),
]


@pytest.mark.parametrize(("answer", "kind", "words"), PERMANENT, ids=[str(row[0])[:60] for row in PERMANENT])
def test_what_will_not_pass_ends_at_once(
    streaming: Dialect, serve: Serve, answer: Status, kind: type[AtrexError], words: str
) -> None:
    ends_at_once(streaming, serve, answer, kind, words)


@pytest.mark.parametrize(("answer", "kind", "words"), NOT_THIS_API, ids=["key", "json", "page", "redirect"])
def test_what_is_not_this_api_ends_at_once(
    dialect: Dialect, serve: Serve, answer: Status, kind: type[AtrexError], words: str
) -> None:
    ends_at_once(dialect, serve, answer, kind, words)


def ends_at_once(dialect: Dialect, serve: Serve, answer: Status, kind: type[AtrexError], words: str) -> None:
    server = serve(answer, OK)
    with pytest.raises(kind, match=words.format(variable=dialect.variable)) as caught:
        dialect.open(server).complete(ASK)
    assert (len(server.received), dialect.clock.slept) == (1, [])
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None  # nothing of the SDK's hangs on it


@pytest.mark.parametrize(
    "data",
    [b"data: {broken\n\n", b'data: "text"\n\n', b"data: [1, 2]\n\n", b"data: null\n\n", b"data: 5\n\n"],
)
def test_a_stream_of_something_else(streaming: Dialect, serve: Serve, data: bytes) -> None:
    name = {"messages": b"event: message_delta\n", "responses": b"event: x\n", "chat": b""}[streaming.api]
    model = streaming.open(serve(*[Raw(name + data, "text/event-stream")] * 4))
    with pytest.raises(EnvironmentProblem, match=r"does not speak this API|broke off"):
        model.complete(ASK)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b'"x"',
        b"7",
        b"{}",
        b'{"type": 5, "object": {}, "choices": 3, "content": 8}',
        b'{"type": "message", "choices": [null, 1], "content": [null, 1]}',
        b'{"object": "response", "output": [2, null, {"type": "message", "content": [3]}]}',
        b"[" * 100_000,
    ],
    ids=lambda body: body[:20].decode(),
)
def test_odd_but_valid_json_is_a_malformed_reply_or_a_clear_error(
    streaming: Dialect, serve: Serve, body: bytes
) -> None:
    model = streaming.open(serve(Raw(body)), stream=False)
    understood = {
        "messages": body.startswith(b'{"type": "message"'),
        "responses": body.startswith(b'{"object": "response"'),
        "chat": b'"choices": [' in body,
    }
    if understood[streaming.api]:
        reply = model.complete(ASK)
        assert (reply.stop, reply.text) == (Stop.MALFORMED, "")
    else:
        with pytest.raises(EnvironmentProblem, match="does not speak this API"):
            model.complete(ASK)


def test_it_gives_up_after_the_attempts(dialect: Dialect, serve: Serve) -> None:
    server = serve(*[Status(529, "Overloaded")] * 9)
    with pytest.raises(ModelUnavailable, match=r"is busy \(529, Overloaded.*gave up after 4 attempts"):
        dialect.open(server).complete(ASK)
    assert (len(server.received), len(dialect.clock.slept)) == (4, 3)


def test_no_wait_goes_past_the_deadline(streaming: Dialect, serve: Serve) -> None:
    server = serve(Status(429, headers={"retry-after": "7200"}), OK)
    with pytest.raises(ModelUnavailable, match="in 7200 s, is past the deadline of 1800 s"):
        streaming.open(server).complete(ASK)
    assert (len(server.received), streaming.clock.slept) == (1, [])


def test_a_trickle_ends_at_the_deadline(dialect: Dialect, serve: Serve) -> None:
    limits = Limits(deadline_s=0.2)
    server = serve(Slow("never finished", pause_s=0.005))
    with pytest.raises(ModelUnavailable, match=r"did not finish within the deadline.*0\.2 s"):
        dialect.open(server, limits=limits, clock=Clock()).complete(ASK)
    assert len(server.received) == 1


def test_silence_is_a_timeout(dialect: Dialect, serve: Serve) -> None:
    server = serve(Slow("x", pause_s=0.3), OK)
    reply = dialect.open(server, limits=Limits(idle_s=0.1)).complete(ASK)
    assert (reply.text, reply.attempts) == ("fine", 2)


def test_nobody_listens(dialect: Dialect) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ModelUnavailable, match=r"Connection refused.*gave up after 4 attempts"):
            dialect.open(url).complete(ASK)
    assert len(dialect.clock.slept) == 3


def test_the_request_id_is_in_the_line(dialect: Dialect, serve: Serve) -> None:
    with pytest.raises(UsageError) as caught:
        dialect.open(serve(Status(400, "wrong\n  in two lines"))).complete(ASK)
    assert re.search(r"\(400, wrong in two lines, request req_header\)", str(caught.value))
