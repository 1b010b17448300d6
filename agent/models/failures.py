"""What went wrong between here and a model, read from the SDKs' exceptions, and what may be tried again."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from atrex.errors import AtrexError, EnvironmentProblem, UsageError


class ModelUnavailable(EnvironmentProblem):
    """The provider did not answer within the attempts and the deadline; asking later may help."""


class Kind(StrEnum):
    """Kinds of failure, each with its own remedy; the first four may pass by themselves."""

    BUSY = "is busy"
    BROKEN = "has an error of its own"
    CONNECTION = "cannot be reached, or broke off"
    TIMEOUT = "was silent for too long"
    DEADLINE = "did not finish within the deadline"
    KEY = "refuses the key"
    FORBIDDEN = "does not permit this"
    MONEY = "has no credit left for this key, or a limit on spending is reached"
    UNKNOWN = "does not know this model or address"
    LARGE = "finds the prompt too large"
    REQUEST = "refuses the request"
    PROTOCOL = "does not speak this API"
    REFUSED = "declines the prompt"  # becomes a reply


TEMPORARY = frozenset({Kind.BUSY, Kind.BROKEN, Kind.CONNECTION, Kind.TIMEOUT})
_USAGE = frozenset({Kind.UNKNOWN, Kind.LARGE, Kind.REQUEST})
_OF_STATUS = {
    400: Kind.REQUEST,
    401: Kind.KEY,
    402: Kind.MONEY,
    403: Kind.FORBIDDEN,
    404: Kind.UNKNOWN,
    408: Kind.TIMEOUT,
    413: Kind.LARGE,
    429: Kind.BUSY,
    529: Kind.BUSY,
}
# Errors inside a stream come with status 200: the word decides.
_OF_WORD = {
    "api_error": Kind.BROKEN,
    "authentication_error": Kind.KEY,
    "billing_error": Kind.MONEY,
    "credit_balance_exhausted": Kind.MONEY,
    "enforced_spend_limit_reached": Kind.MONEY,
    "insufficient_quota": Kind.MONEY,
    "invalid_prompt": Kind.REFUSED,
    "invalid_request_error": Kind.REQUEST,
    "not_found_error": Kind.UNKNOWN,
    "organization_spend_limit_exceeded": Kind.MONEY,
    "organization_usage_limit_exceeded": Kind.MONEY,
    "overloaded_error": Kind.BUSY,
    "permission_error": Kind.FORBIDDEN,
    "project_spend_limit_exceeded": Kind.MONEY,
    "rate_limit_error": Kind.BUSY,
    "rate_limit_exceeded": Kind.BUSY,
    "request_too_large": Kind.LARGE,
    "server_error": Kind.BROKEN,
    "timeout_error": Kind.TIMEOUT,
}
_TELLING = frozenset({Kind.MONEY, Kind.REFUSED})


@dataclass(frozen=True)
class Failure:
    """One attempt that brought no reply; `text` is the server's, with the key taken out."""

    kind: Kind
    text: str = ""
    status: int | None = None
    retry_after_s: float | None = None
    request_id: str = ""

    @property
    def temporary(self) -> bool:
        """Whether trying again may help: an allow-list, so that what is new here ends at once."""
        return self.kind in TEMPORARY

    def said(self) -> str:
        """Status, words and request id in brackets, on one line; empty if the server said nothing."""
        words = " ".join(self.text.split())
        words = words if len(words) <= 300 else words[:299] + "…"
        request = f"request {self.request_id}" if self.request_id else ""
        parts = [str(self.status) if self.status else "", words, request]
        return f" ({', '.join(part for part in parts if part)})" if any(parts) else ""

    def error(self, who: str, remedy: str) -> AtrexError:
        """The exception for the user: `who`, what is wrong, what the server said, and the remedy."""
        kind = UsageError if self.kind in _USAGE else EnvironmentProblem
        if self.temporary or self.kind is Kind.DEADLINE:
            kind = ModelUnavailable
        return kind(f"{who} {self.kind.value}{self.said()}; {remedy}")


def of_status(status: int, words: tuple[str, ...]) -> Kind:
    """Kind of an HTTP answer; `words` are the types and codes in its body."""
    by_word = of_words(words)
    if by_word is Kind.MONEY or (by_word is Kind.REFUSED and status == 400):  # a 429 may mean "pay"
        return by_word
    if status < 300 and words:  # inside a stream that had begun well
        return by_word or Kind.REQUEST
    if status in _OF_STATUS:
        return _OF_STATUS[status]
    if 500 <= status < 600:
        return Kind.BROKEN
    return Kind.REQUEST if 400 <= status < 500 else Kind.PROTOCOL


def of_words(words: tuple[str, ...]) -> Kind | None:
    """Kind that an error's type or code names; the most telling one counts."""
    kinds = [kind for word in words if (kind := _of_word(word))]
    return next((kind for kind in kinds if kind in _TELLING), kinds[0] if kinds else None)


def _of_word(word: str) -> Kind | None:
    if word.endswith(("_policy", "policy_violation", "content_filter")):
        return Kind.REFUSED
    if word.isdecimal() and 400 <= int(word) < 600:  # vLLM's code of an error inside a stream
        return of_status(int(word), ())
    return _OF_WORD.get(word)


def from_exception(error: Exception) -> Failure:
    """The failure an exception of an SDK, or of the HTTP library below it, stands for."""
    names = {kind.__name__ for kind in type(error).__mro__}
    body = getattr(error, "body", None)
    status = getattr(error, "status_code", None)
    text = message_of(body) or str(error) or type(error).__name__
    if isinstance(status, int):
        headers = getattr(getattr(error, "response", None), "headers", {})
        kind = of_status(status, words_of(body))
        return Failure(kind, text, status, retry_after(headers), str(getattr(error, "request_id", "") or ""))
    if names & {"APITimeoutError", "TimeoutException"}:
        return Failure(Kind.TIMEOUT)
    if names & {"APIConnectionError", "TransportError"}:
        return Failure(Kind.CONNECTION, _root(error))
    if "APIError" in names:  # inside a stream of OpenAI's kind: no status at all
        return Failure(of_words(words_of(body)) or Kind.REQUEST, text)
    return Failure(Kind.PROTOCOL, f"{type(error).__name__}: {text}")


def _root(error: BaseException) -> str:
    """The words of the first cause, such as "Connection refused"."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def words_of(body: object) -> tuple[str, ...]:
    """Types and codes in the body of an error, of either provider."""
    error = body.get("error", body) if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return ()
    details = error.get("details")
    deeper = details.get("error_code") if isinstance(details, Mapping) else None
    found = (error.get("code"), error.get("type"), deeper)
    return tuple(str(word) for word in found if isinstance(word, str | int))


def message_of(body: object) -> str:
    """The human words in the body of an error; empty if it has none."""
    error: Any = body.get("error", body) if isinstance(body, Mapping) else body
    message = error.get("message") if isinstance(error, Mapping) else error
    return message if isinstance(message, str) else ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait: `retry-after-ms`, or `retry-after` as seconds or as a date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(date.timestamp() - time.time(), 0.0)
