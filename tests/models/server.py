"""A model server on loopback: real wire formats over HTTP, a script of answers, and a record of requests."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

from tests.models import wire
from tests.models.wire import Api, Text

KEY_HERE = "{key}"  # in a status's message: the key that came with the request


@dataclass(frozen=True)
class Status:
    """An HTTP error with the body that the real servers send; `code` is the machine's word for it."""

    status: int
    message: str = "it went wrong"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """A connection that breaks: before the headers, or in the middle of a reply."""

    when: Literal["before", "middle"] = "before"
    text: str = "half of a reply"


@dataclass(frozen=True)
class Ends:
    """A stream that ends in good order before its last event."""

    text: str = "half of a reply"


@dataclass(frozen=True)
class Slow:
    """A reply whose bytes come one by one, `pause_s` apart."""

    text: str = "slow"
    pause_s: float = 0.02


@dataclass(frozen=True)
class Raw:
    """Any bytes at all; in a stream they come after its first event if `begun`."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200
    begun: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamError:
    """An error event in a stream that began with status 200."""

    kind: str = "overloaded_error"
    message: str = "it went wrong"


Answer = Text | Status | Cut | Ends | Slow | Raw | StreamError


@dataclass(frozen=True)
class Received:
    """One request as it came over the wire; the names of its headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def api(self) -> Api:
        return wire.PATHS[self.path]

    @property
    def key(self) -> str:
        """The key it was sent with, wherever the API puts it."""
        return self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")


Script = Iterable[Answer] | Callable[[Received], Answer]


class ModelServer:
    """Serves from entry to exit of its `with`. After the last answer of a list every request gets a 400."""

    def __init__(self, script: Script) -> None:
        self._script = script if callable(script) else None
        self._answers = [] if callable(script) else list(script)
        self._lock = threading.Lock()
        self.received: list[Received] = []
        self.connections: list[socket.socket] = []
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.model_server = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """The base URL for the Anthropic SDK."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def openai_url(self) -> str:
        """The base URL for the OpenAI SDK."""
        return self.url + "/v1"

    def answer(self, request: Received) -> Answer:
        """The next answer of the script."""
        with self._lock:
            self.received.append(request)
            if self._script is not None:
                return self._script(request)
            return self._answers.pop(0) if self._answers else Status(400, "the script is at its end")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        for connection in self.connections:  # a client may keep its own for ever
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # slow bytes go out one by one

    def setup(self) -> None:
        super().setup()
        self.server.model_server.connections.append(self.connection)  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(size))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Received(self.path, headers, body)
        if request.path not in wire.PATHS:
            self._whole(404, b'{"error": {"message": "no such path"}}')
            return
        answer = self.server.model_server.answer(request)  # type: ignore[attr-defined]
        try:
            self._say(answer, request)
        except ConnectionError:
            self.close_connection = True  # the client had enough

    def _say(self, answer: Answer, request: Received) -> None:
        api, streams = request.api, bool(request.body.get("stream"))
        match answer:
            case Status():
                message = answer.message.replace(KEY_HERE, request.key)
                data = wire.error_body(api, answer.status, message, answer.code)
                self._whole(answer.status, json.dumps(data).encode(), headers=answer.headers)
            case Raw(begun=True):
                self._stream([self._first(api), answer.body])
            case Raw():
                self._whole(answer.status, answer.body, answer.content_type, answer.headers)
            case Cut(when="before"):
                self._hang_up()
            case StreamError():
                message = answer.message.replace(KEY_HERE, request.key)
                self._stream([self._first(api), wire.frame(wire.error_event(api, answer.kind, message))])
            case Text():
                self._text(answer, api, streams)
            case Slow():
                self._slow(answer, api, streams)
            case Cut() | Ends():
                self._half(answer, api, streams)

    def _text(self, say: Text, api: Api, streams: bool) -> None:
        if streams:
            self._stream(wire.frame(event) for event in wire.EVENTS[api](say))
        else:
            self._whole(200, json.dumps(wire.BODIES[api](say)).encode())

    def _half(self, answer: Cut | Ends, api: Api, streams: bool) -> None:
        """Some events, or half of a body; then nothing more."""
        if streams:
            events = [wire.frame(event) for event in wire.EVENTS[api](Text(answer.text, piece=4))]
            sent = [frame for frame in events[:5] if b"stop" not in frame]
            self._stream(sent, ends=isinstance(answer, Ends))
        else:
            data = json.dumps(wire.BODIES[api](Text(answer.text))).encode()
            self._head(200, "application/json", {"content-length": str(len(data))})
            self.wfile.write(data[: len(data) // 2])
        if isinstance(answer, Cut) or not streams:
            self._hang_up()

    def _slow(self, answer: Slow, api: Api, streams: bool) -> None:
        say = Text(answer.text)
        frames = [wire.frame(event) for event in wire.EVENTS[api](say)]
        data = b"".join(frames) if streams else json.dumps(wire.BODIES[api](say)).encode()
        kind = "text/event-stream" if streams else "application/json"
        self._head(200, kind, {"content-length": str(len(data))})
        for byte in data:
            self.wfile.write(bytes([byte]))
            time.sleep(answer.pause_s)

    def _first(self, api: Api) -> bytes:
        return wire.frame(next(wire.EVENTS[api](Text("begun"))))

    def _head(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        ids = {"request-id": "req_header", "x-request-id": "req_header"}
        for name, value in {"content-type": content_type, **ids, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _whole(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._head(status, content_type, {"content-length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _stream(self, frames: Iterable[bytes], *, ends: bool = True) -> None:
        self._head(200, "text/event-stream; charset=utf-8", {"transfer-encoding": "chunked"})
        for data in frames:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        if ends:
            self.wfile.write(b"0\r\n\r\n")

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the tests' output clean."""
