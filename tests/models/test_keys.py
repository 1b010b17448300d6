"""Keys come from the environment and end in one header: not in a text, a record, a log, or another server."""

from __future__ import annotations

import logging
import pickle
import sys
import traceback
from pathlib import Path

import pytest

from agent.models import keys
from agent.models.cache import Cached
from agent.models.claude import Claude
from agent.models.gpt import Chat, Responses
from atrex.errors import AtrexError, EnvironmentProblem, UsageError
from tests.models.conftest import ASK, PACKAGES, SENTINEL, VARIABLES, Dialect, Serve
from tests.models.server import Raw, Status, StreamError
from tests.models.wire import Text

ECHO = "you sent {key}, which is wrong"


def test_the_key_goes_to_the_server(dialect: Dialect, serve: Serve) -> None:
    server = serve(Text("fine"))
    dialect.open(server).complete(ASK)
    assert server.received[0].key == SENTINEL


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_a_server_that_echoes_the_key(
    streaming: Dialect, serve: Serve, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(AtrexError, match="key removed") as caught:
        streaming.open(serve(*[Status(status, ECHO, headers={"request-id": SENTINEL})] * 4)).complete(ASK)
    error: BaseException | None = caught.value
    while error is not None:
        assert SENTINEL not in "".join(traceback.format_exception(error)) + repr(error)
        error = error.__cause__ or error.__context__


def test_an_echo_inside_a_stream(streaming: Dialect, serve: Serve) -> None:
    with pytest.raises(AtrexError, match="key removed") as caught:
        streaming.open(serve(StreamError("invalid_request_error", ECHO))).complete(ASK)
    assert SENTINEL not in str(caught.value)


def test_an_echo_that_would_be_cut_in_the_middle_of_the_key(streaming: Dialect, serve: Serve) -> None:
    with pytest.raises(AtrexError) as caught:
        streaming.open(serve(Status(400, "x" * 290 + "{key}"))).complete(ASK)
    assert "sk-" not in str(caught.value)


def test_an_echo_in_a_body_of_no_form(dialect: Dialect, serve: Serve) -> None:
    with pytest.raises(AtrexError) as caught:
        dialect.open(serve(Raw(f"<b>{SENTINEL}</b>".encode(), "text/html", 401))).complete(ASK)
    assert SENTINEL not in str(caught.value)


def test_an_echo_in_the_reply_is_taken_out_of_the_record(
    dialect: Dialect, serve: Serve, tmp_path: Path
) -> None:
    say = Text(f"your key is {SENTINEL}!", model=f"m-{SENTINEL}")
    reply = Cached(dialect.open(serve(say)), tmp_path).complete(ASK)
    assert reply.text == "your key is [key removed]!"
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert SENTINEL not in repr(reply) + reply.model_dump_json() + written


def test_a_refusal_that_echoes_the_key(dialect: Dialect, serve: Serve) -> None:
    reply = dialect.open(serve(Status(400, ECHO, code="invalid_prompt"))).complete(ASK)
    assert SENTINEL not in repr(reply)


def test_no_log_at_any_level_has_it(dialect: Dialect, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for name in ("anthropic", "openai", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        dialect.open(serve(Status(500, ECHO), Text(SENTINEL))).complete(ASK)
    for name in ("anthropic", "openai", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    assert caplog.records
    assert SENTINEL not in caplog.text


def test_nothing_prints_it(streaming: Dialect) -> None:
    model = streaming.open("http://127.0.0.1:1")
    assert SENTINEL not in repr(model) + str(model) + repr(model._key) + repr(model._client)
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(model._key)


@pytest.mark.parametrize("api", ["messages", "responses"])
@pytest.mark.parametrize("value", [None, "", "  \n"])
def test_a_missing_key_is_named(api: str, value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(PACKAGES[api])
    monkeypatch.delenv(VARIABLES[api])
    if value is not None:
        monkeypatch.setenv(VARIABLES[api], value)
    with pytest.raises(EnvironmentProblem, match=f"^{VARIABLES[api]} is not set") as caught:
        (Claude if api == "messages" else Responses)("m")
    assert caught.value.exit_code == 3


def test_a_server_of_ones_own_needs_no_key_and_never_gets_openais(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai")
    monkeypatch.delenv("ATREX_BASE_URL_KEY")
    for variable in ("OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_WEBHOOK_SECRET"):
        monkeypatch.setenv(variable, SENTINEL)
    server = serve(Text("the word none is kept"))
    reply = Chat("m", base_url=server.openai_url).complete(ASK)
    assert reply.text == "the word none is kept"
    assert server.received[0].key == "none"
    assert SENTINEL not in str(server.received[0])


def test_a_redirect_does_not_carry_the_key_away(dialect: Dialect, serve: Serve) -> None:
    thief = serve(Text("thanks"))
    server = serve(Raw(b"", status=307, headers={"location": f"{thief.url}/v1/messages"}))
    with pytest.raises(EnvironmentProblem, match="307"):
        dialect.open(server).complete(ASK)
    assert thief.received == []


def test_a_key_with_a_line_break_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-first\nsecond")
    with pytest.raises(EnvironmentProblem, match="SOME_KEY holds a space") as caught:
        keys.needed("SOME_KEY")
    assert "first" not in str(caught.value)
    monkeypatch.setenv("SOME_KEY", " sk-around-it\n")
    assert keys.needed("SOME_KEY").reveal() == "sk-around-it"


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://host/v1",
        "http://",
        "http://host:port/v1",
        "http://me:secret@h/v1",
        "http://h/v1?key=secret",
    ],
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="--base-url") as caught:
        Chat("m", base_url=url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("package", ["anthropic", "openai"])
def test_a_missing_package_is_named_with_the_pip_line(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EnvironmentProblem, match=f'pip install "{package}>=') as caught:
        (Claude if package == "anthropic" else Responses)("m")
    assert caught.value.exit_code == 3
