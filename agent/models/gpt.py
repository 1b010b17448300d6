"""The official `openai` SDK: the Responses API of OpenAI, and Chat Completions of any server."""

from __future__ import annotations

from typing import Any

from agent.models import keys
from agent.models.call import BrokenOff, Call, field, items, load_sdk, usage_of
from agent.models.records import Provider, Request, Stop
from agent.models.remote import Remote, checked_url, given

KEY = "OPENAI_API_KEY"
SERVER_KEY = "ATREX_BASE_URL_KEY"  # another server never sees the key for OpenAI
URL = "https://api.openai.com/v1"
_FINISHES = {
    "stop": Stop.END,
    "length": Stop.LENGTH,
    "content_filter": Stop.REFUSED,
    "tool_calls": Stop.TOOL,
    "function_call": Stop.TOOL,
}
_STANDARD = (None, "auto", "default")
_FINAL = ("response.completed", "response.incomplete", "response.failed")


class ServerError(ValueError):
    """An error that came as a regular event of a stream, or as a field of a response."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.status_code = 200
        self.body = {"error": {"code": code, "message": message}}


class _OverOpenAI(Remote):
    """What both APIs share: the client, and whose key goes where."""

    _status_page = "https://status.openai.com"

    def __init__(self, name: str, base_url: str | None, own_server: bool, **options: Any) -> None:
        url = checked_url(base_url or URL)
        sdk = load_sdk("openai")
        key = keys.optional(SERVER_KEY) if own_server else keys.needed(KEY)
        super().__init__(name, key, sdk, **options)
        if own_server:
            self._status_page = url
        # None of the account's names, which the SDK takes from the environment, is another server's business.
        account = {"OpenAI-Organization": sdk.Omit(), "OpenAI-Project": sdk.Omit()} if own_server else None
        self._client = sdk.OpenAI(
            api_key=key.reveal(),
            base_url=url,
            max_retries=0,
            default_headers=account,
            http_client=self._http_client(),
        )


class Responses(_OverOpenAI):
    """A model of OpenAI's. Raises EnvironmentProblem without the SDK or a key in OPENAI_API_KEY."""

    provider: Provider = "openai"
    _sends = ("temperature", "top_p", "effort")
    _reserved = ("input", "instructions", "max_output_tokens")

    def __init__(self, name: str, *, base_url: str | None = None, **options: Any) -> None:
        super().__init__(name, base_url, own_server=False, **options)

    def _wire_names(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "reasoning": {"effort": sampling.effort} if sampling.effort else None,
        }

    def _ask(self, request: Request, body: dict[str, Any], call: Call) -> None:
        fields = given(
            {
                "model": self.name,
                "input": [{"role": message.role, "content": message.text} for message in request.messages],
                "instructions": request.system or None,
                "max_output_tokens": request.max_output_tokens,
            }
        )
        answer = self._client.responses.create(
            **fields, stream=self._stream, extra_body=body or None, timeout=self._timeout(call)
        )
        if self._stream:
            with answer:
                answer = _last_response(answer, call)
        _read_response(answer, call)


def _last_response(events: Any, call: Call) -> Any:
    """The response that the stream's last event carries; the pieces before it are kept in case it is cut."""
    for event in events:
        kind = field(event, "type", str)
        if kind == "response.output_text.delta":
            call.add(field(event, "delta", str) or "")
        elif kind == "response.created":
            call.model = field(event, "response.model", str) or ""
        elif kind == "error":
            raise ServerError(field(event, "code", str) or "", field(event, "message", str) or "")
        elif kind in _FINAL:
            return getattr(event, "response", None)
    raise BrokenOff("the stream ended before the reply did")


def _read_response(response: Any, call: Call) -> None:
    if field(response, "object", str) != "response":
        raise ValueError("the answer is not a response")
    if (code := field(response, "error.code", str)) is not None:
        raise ServerError(code, field(response, "error.message", str) or "")
    call.model = field(response, "model", str) or ""
    call.request_id = call.request_id or field(response, "id", str) or ""
    call.usage = usage_of(
        field(response, "usage.input_tokens", int),
        field(response, "usage.output_tokens", int),
        field(response, "usage.input_tokens_details.cached_tokens", int),
        field(response, "usage.input_tokens_details.cache_write_tokens", int),
    )
    call.standard_rate = field(response, "service_tier", str) in _STANDARD
    texts, refusals, tools = _parts(response)
    call.stop, call.detail = _stop_of(response, texts, refusals, tools)
    if texts:
        call.replace("".join(texts))


def _parts(response: Any) -> tuple[list[str], list[str], bool]:
    """Texts of the answer, texts of a refusal, and whether it asks for a tool."""
    output = items(response, "output")
    # Some models comment on the way; the answer is what they do not call a commentary.
    messages = [item for item in output if field(item, "type", str) == "message"]
    contents = [c for m in messages if field(m, "phase", str) != "commentary" for c in items(m, "content")]
    texts = [text for content in contents if (text := field(content, "text", str))]
    refusals = [text for content in contents if (text := field(content, "refusal", str))]
    return texts, refusals, any((field(item, "type", str) or "").endswith("_call") for item in output)


def _stop_of(response: Any, texts: list[str], refusals: list[str], tools: bool) -> tuple[Stop, str]:
    status = field(response, "status", str) or ""
    if refusals:
        return Stop.REFUSED, "".join(refusals)
    if status == "incomplete":
        reason = field(response, "incomplete_details.reason", str) or status
        known = {"max_output_tokens": Stop.LENGTH, "content_filter": Stop.REFUSED}
        return known.get(reason, Stop.MALFORMED), reason
    if status != "completed":
        return Stop.MALFORMED, status
    return (Stop.TOOL if tools and not texts else Stop.END), status


class Chat(_OverOpenAI):
    """Chat Completions: of any compatible server with `base_url`, which needs no key; else of OpenAI."""

    _sends = ("temperature", "top_p", "top_k", "seed", "effort")

    def __init__(self, name: str, *, base_url: str | None = None, **options: Any) -> None:
        self.provider: Provider = "compatible" if base_url else "openai-chat"
        # Other servers know the old name of the limit, OpenAI's newer models only the new one.
        self._limit = "max_tokens" if base_url else "max_completion_tokens"
        self._reserved = ("messages", "stream_options", "n", self._limit)
        super().__init__(name, base_url, own_server=base_url is not None, **options)

    def _wire_names(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        fields = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "seed")}
        return {**fields, "reasoning_effort": sampling.effort}

    def _ask(self, request: Request, body: dict[str, Any], call: Call) -> None:
        system = [{"role": "system", "content": request.system}] if request.system else []
        turns = [{"role": message.role, "content": message.text} for message in request.messages]
        fields: dict[str, Any] = {"model": self.name, "messages": system + turns}
        if request.max_output_tokens:
            fields[self._limit] = request.max_output_tokens
        if self._stream:
            fields["stream_options"] = {"include_usage": True}
        answer = self._client.chat.completions.create(
            **fields, stream=self._stream, extra_body=body or None, timeout=self._timeout(call)
        )
        if self._stream:
            with answer:
                _read_chunks(answer, call)
        else:
            _read_completion(answer, call)


def _read_chunks(chunks: Any, call: Call) -> None:
    finish, refusal = "", ""
    for chunk in chunks:
        _note_completion(chunk, call)
        for choice in items(chunk, "choices")[:1]:
            finish = field(choice, "finish_reason", str) or finish
            refusal += field(choice, "delta.refusal", str) or ""
            call.add(field(choice, "delta.content", str) or "")
    if not finish:
        raise BrokenOff("the stream ended before the reply did")
    _note_finish(finish, refusal, call)


def _read_completion(completion: Any, call: Call) -> None:
    if field(completion, "choices", list) is None:
        raise ValueError("the answer is not a chat completion")
    _note_completion(completion, call)
    for choice in items(completion, "choices")[:1]:
        finish, refusal = field(choice, "finish_reason", str), field(choice, "message.refusal", str)
        _note_finish(finish or "", refusal or "", call)
        call.add(field(choice, "message.content", str) or "")


def _note_finish(finish: str, refusal: str, call: Call) -> None:
    call.stop = Stop.REFUSED if refusal else _FINISHES.get(finish, Stop.MALFORMED)
    call.detail = refusal or finish


def _note_completion(completion: Any, call: Call) -> None:
    call.model = field(completion, "model", str) or call.model
    call.request_id = call.request_id or field(completion, "id", str) or ""
    if getattr(completion, "usage", None) is not None:
        call.usage = usage_of(
            field(completion, "usage.prompt_tokens", int),
            field(completion, "usage.completion_tokens", int),
            field(completion, "usage.prompt_tokens_details.cached_tokens", int),
            field(completion, "usage.prompt_tokens_details.cache_write_tokens", int),
        )
    if field(completion, "service_tier", str) not in _STANDARD:  # one chunk may say it, the next not
        call.standard_rate = False
