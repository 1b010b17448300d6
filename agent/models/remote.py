"""What all providers share: one call is attempts, their guards, and a reply or one clear error."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from agent.models import prices
from agent.models.call import BrokenOff, Call, Tripped, http_library, trusted
from agent.models.failures import Failure, Kind, from_exception, of_status
from agent.models.keys import Key
from agent.models.records import Limits, Provider, Reply, Request, Stop
from agent.models.retry import Clock, Surrender, persist
from atrex.errors import AtrexError, UsageError


class Remote(ABC):
    """A model behind HTTP. Safe for threads: what an attempt needs is the thread's own."""

    provider: Provider
    _client: Any  # the SDK's
    _status_page: str  # where to look when the provider is down
    _sends: Collection[str]  # the sampling parameters that the API has, and the SDK's own fields
    _reserved: Collection[str]

    def __init__(
        self,
        name: str,
        key: Key,
        sdk: ModuleType,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        seed: int = 0,
        stream: bool = True,
    ) -> None:
        self.name = name
        self.limits = limits or Limits()
        self._key = key
        self._sdk = sdk
        self._clock = clock or Clock()
        self._rng = random.Random(seed)
        self._stream = stream
        self._thread = threading.local()

    def complete(self, request: Request, *, seconds: float | None = None) -> Reply:
        """The reply, before the limits' deadline and within `seconds`, attempts and waits included.

        Raises UsageError for what the server refuses, else EnvironmentProblem.
        """
        limits = self.limits if seconds is None else self.limits.within(seconds)
        body = self._user_fields(request)
        started = self._clock.now()
        outcome = persist(lambda left: self._attempt(request, body, left), limits, self._clock, self._rng)
        if isinstance(outcome, Surrender):
            raise self._error(outcome)
        call, attempts = outcome
        return self._reply(call, attempts, self._clock.now() - started)

    @abstractmethod
    def _ask(self, request: Request, body: dict[str, Any], call: Call) -> None:
        """Send the request, and put what comes back into `call`."""

    @abstractmethod
    def _wire_names(self, request: Request) -> dict[str, Any]:
        """The sampling parameters that the API has, in its own words; None where the user set none."""

    def _user_fields(self, request: Request) -> dict[str, Any]:
        """What the user set, as body fields. Raises UsageError for one the API lacks, or that is ours."""
        wanted = request.sampling.model_dump(exclude_none=True, exclude={"extra"})
        if lacking := sorted(set(wanted) - set(self._sends)):
            raise UsageError(f"{self.provider} ({self.name}) has no parameter {lacking[0]}; leave it out")
        if ours := sorted(set(request.sampling.extra) & {*self._reserved, "model", "stream"}):
            raise UsageError(f"the field {ours[0]} is set by Atrex; leave it out of the extra parameters")
        named = given(self._wire_names(request))
        if twice := sorted(set(request.sampling.extra) & set(named)):
            raise UsageError(f"the parameter {twice[0]} is given twice; leave it out of the extra parameters")
        return {**named, **request.sampling.extra}

    def _attempt(self, request: Request, body: dict[str, Any], left: float) -> Call | Failure:
        call = self._thread.call = Call(self.limits, self._clock, left)
        try:
            self._ask(request, body, call)
        except self._errors() as error:
            # Not raised from here: the SDK's exceptions hold the request, and so the key.
            return self._judged(error, call)
        return call

    def _errors(self) -> tuple[type[Exception], ...]:
        """What an SDK raises: its own errors, its HTTP library's, and its JSON parser's (ValueError)."""
        http = http_library(self._sdk.DefaultHttpxClient)
        known = (self._sdk.APIError.__base__, http.HTTPError, http.StreamError)
        return (*known, Tripped, BrokenOff, ValueError, RecursionError)

    def _judged(self, error: Exception, call: Call) -> Call | Failure:
        """An exception as what it means: a reply cut short, a refusal, or a failure."""
        if call.too_late:
            return Failure(Kind.DEADLINE)
        if call.too_long and call.status >= 300:
            return Failure(of_status(call.status, ()), "its error page is too long to read", call.status)
        if call.too_long:
            call.stop = Stop.CUT
            return call
        if isinstance(error, BrokenOff):
            wrong_page = self._stream and call.content_type != "text/event-stream"
            text = f"it answered with {call.content_type or 'no content type'}" if wrong_page else ""
            return Failure(Kind.PROTOCOL if wrong_page else Kind.CONNECTION, text or str(error))
        failure = from_exception(error)
        text, request_id = self._key.scrub(failure.text), self._key.scrub(failure.request_id)
        if failure.kind is Kind.REFUSED:
            call.stop, call.detail = Stop.REFUSED, text
            return call
        request_id = request_id or self._key.scrub(call.request_id)
        return Failure(failure.kind, text, failure.status, failure.retry_after_s, request_id)

    def _reply(self, call: Call, attempts: int, seconds: float) -> Reply:
        text, scrub = self._key.scrub(call.text), self._key.scrub
        empty = call.stop is Stop.END and not text.strip()
        served = scrub(call.model) or self.name
        known = call.usage and call.standard_rate
        return Reply(
            text=text,
            stop=Stop.EMPTY if empty else call.stop,
            detail=scrub(call.detail)[:1000],
            usage=call.usage,
            cost=prices.cost(self.provider, (served, self.name), call.usage) if known else None,
            model=served,
            request_id=scrub(call.request_id)[:200],
            seconds=max(seconds, 0.0),
            attempts=attempts,
        )

    def _error(self, end: Surrender) -> AtrexError:
        failure = end.failure
        remedies = {
            Kind.KEY: f"check {self._key.variable}",
            Kind.FORBIDDEN: f"check what the key in {self._key.variable} may use",
            Kind.MONEY: "add credit or raise the limit in the provider's console",
            Kind.UNKNOWN: f"check --model {self.name} and --base-url",
            Kind.LARGE: "shorten the prompt, or use a model with a longer context",
            Kind.REQUEST: "change or leave out the parameter it names",
            Kind.PROTOCOL: "check --base-url",
            Kind.DEADLINE: "allow more time, or ask for a shorter reply",
        }
        remedy = remedies.get(failure.kind, f"try again later ({self._status_page})")
        why = f"{end.why}: " if end.why else ""
        return failure.error(f"{self.provider} ({self.name})", why + remedy)

    def _http_client(self) -> Any:
        """The SDK's HTTP client, watched; it follows no redirect, which would carry a key elsewhere."""

        def hook(response: Any) -> None:
            self._thread.call.watch(response)

        client = self._sdk.DefaultHttpxClient
        trust = trusted(http_library(client))
        return client(follow_redirects=False, verify=trust, event_hooks={"response": [hook]})

    def close(self) -> None:
        """Close idle connections; the model cannot be asked again."""
        self._client.close()

    def _timeout(self, call: Call) -> Any:
        idle, connect = call.timeouts()
        return self._sdk.Timeout(idle, connect=connect)


def checked_url(url: str) -> str:
    """A server's address. Raises UsageError unless it is http(s)://host/path, with no place for a secret."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise UsageError(
            "--base-url is http:// or https://, a host, and a path, such as http://localhost:8000/v1"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("--base-url holds more than a host and a path; a key belongs in ATREX_BASE_URL_KEY")
    return url


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
