"""One attempt under way: what has arrived of a reply, and the guards on its size and its time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

from agent.models.records import Limits, Stop, Usage
from agent.models.retry import Clock
from atrex.errors import EnvironmentProblem

T = TypeVar("T")

PINS = {"anthropic": "anthropic>=2.14,<3", "openai": "openai>=3.57,<4"}


class Tripped(Exception):
    """A guard stopped the reading; the call says which."""


class BrokenOff(Exception):
    """The line ended in good order, the reply did not."""


class Call:
    """What one attempt has brought so far; the text never grows beyond the limit."""

    def __init__(self, limits: Limits, clock: Clock, seconds_left: float) -> None:
        self.stop = Stop.MALFORMED
        self.detail = ""
        self.usage: Usage | None = None
        self.model = ""
        self.status = 0
        self.request_id = ""
        self.content_type = ""
        self.standard_rate = True  # False where the server billed another tier than the price table's
        self.too_long = self.too_late = False
        self._text: list[str] = []
        self._limits = limits
        self._clock = clock
        self._deadline = clock.now() + seconds_left
        self._room = limits.reply_bytes
        self._wire_room = limits.wire_bytes

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def add(self, text: str) -> None:
        """Append text. Raises Tripped when it is more than a reply may have; what fits is kept."""
        data = text.encode("utf-8", "replace")  # half a surrogate pair, see Key.scrub
        self._text.append(data[: self._room].decode("utf-8", "ignore"))
        self._room -= len(data)
        if self._room < 0:
            self.too_long = True
            raise Tripped

    def replace(self, text: str) -> None:
        """Take the reply's final text for what came in pieces."""
        self._text.clear()
        self._room = self._limits.reply_bytes
        self.add(text)

    def count(self, size: int) -> None:
        """Account for bytes off the line. Raises Tripped beyond the limit or the deadline."""
        self._wire_room -= size
        self.too_long = self._wire_room < 0
        self.too_late = self._clock.now() >= self._deadline
        if self.too_long or self.too_late:
            raise Tripped

    def timeouts(self) -> tuple[float, float]:
        """Seconds of silence, and to connect, that are a timeout: never more than what is left."""
        left = max(self._deadline - self._clock.now(), 0.001)
        return min(self._limits.idle_s, left), min(self._limits.connect_s, left)

    def watch(self, response: Any) -> None:
        """A hook of the HTTP client: see the headers, and every byte that comes after them."""
        self.status, headers = response.status_code, response.headers
        self.request_id = headers.get("request-id") or headers.get("x-request-id") or ""
        self.content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        response.stream = _watched(response, self)


def _watched(response: Any, call: Call) -> Any:
    """The response's bytes, counted; in the stream class of whichever HTTP library the SDK uses."""
    library = http_library(type(response))
    inner = response.stream

    class Watched(library.SyncByteStream):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[bytes]:
            for chunk in inner:
                call.count(len(chunk))
                yield chunk

        def close(self) -> None:
            inner.close()

    return Watched()


def http_library(kind: type[Any]) -> Any:
    """The HTTP library that a client or a response comes from: httpx2 today, httpx in older SDKs."""
    bases = (base for base in kind.__mro__ if base.__name__ in ("Client", "Response"))
    return importlib.import_module(next(bases).__module__.partition(".")[0])


@cache
def trusted(library: Any) -> Any:
    """Whom the HTTP library trusts by default, read once: reading it takes a tenth of a second."""
    return library.create_ssl_context()


def load_sdk(name: str) -> ModuleType:
    """The SDK, imported only when a model is really used. Raises EnvironmentProblem with the pip line."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise EnvironmentProblem(
            f'the package {name} is not installed; python -m pip install "{PINS[name]}"'
        ) from None


def field(value: object, path: str, kind: type[T]) -> T | None:
    """The attribute at a dotted path, if it is of that kind: the SDKs build objects without checking them."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def items(value: object, name: str) -> list[Any]:
    """The list at an attribute; empty if there is none."""
    return field(value, name, list) or []


def usage_of(prompt: int | None, output: int | None, cached: int | None, written: int | None) -> Usage | None:
    """A usage, or None where the server's numbers are missing or contradict each other."""
    read, wrote = cached or 0, written or 0
    if prompt is None or output is None or min(prompt, output, read, wrote) < 0 or read + wrote > prompt:
        return None
    return Usage(input_tokens=prompt, output_tokens=output, cached_tokens=read, written_tokens=wrote)
