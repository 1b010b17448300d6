"""Claude, through the official `anthropic` SDK and the Messages API."""

from __future__ import annotations

from typing import Any

from agent.models import keys
from agent.models.call import BrokenOff, Call, field, items, load_sdk, usage_of
from agent.models.records import Request, Stop
from agent.models.remote import Remote, checked_url

KEY = "ANTHROPIC_API_KEY"
URL = "https://api.anthropic.com"
MAX_OUTPUT_TOKENS = 32_000  # the API demands a limit; this one where the user names none
_EPHEMERAL = {"type": "ephemeral"}
_BREAKPOINTS = 3  # of the API's four; the system text has the other
_STOPS = {
    "end_turn": Stop.END,
    "stop_sequence": Stop.END,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "refusal": Stop.REFUSED,
    "tool_use": Stop.TOOL,
    "pause_turn": Stop.TOOL,
}


class Claude(Remote):
    """One Claude model. Raises EnvironmentProblem without the SDK or a key in ANTHROPIC_API_KEY."""

    provider = "anthropic"
    _status_page = "https://status.claude.com"
    _sends = ("temperature", "top_p", "top_k", "effort")
    _reserved = ("max_tokens", "messages", "system", "cache_control")

    def __init__(self, name: str, *, base_url: str = URL, **options: Any) -> None:
        base_url = checked_url(base_url)
        sdk, key = load_sdk("anthropic"), keys.needed(KEY)
        super().__init__(name, key, sdk, **options)
        self._client = sdk.Anthropic(
            api_key=key.reveal(), base_url=base_url, max_retries=0, http_client=self._http_client()
        )

    def _wire_names(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        fields = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k")}
        return {**fields, "output_config": {"effort": sampling.effort} if sampling.effort else None}

    def _ask(self, request: Request, body: dict[str, Any], call: Call) -> None:
        fields: dict[str, Any] = {
            "model": self.name,
            "max_tokens": request.max_output_tokens or MAX_OUTPUT_TOKENS,
            "messages": turns(request),
        }
        if request.system:
            fields["system"] = [_block(request.system, cached=True)]
        # The user's fields travel as they are: SDKs drop and add parameters between versions.
        answer = self._client.messages.create(
            **fields, stream=self._stream, extra_body=body or None, timeout=self._timeout(call)
        )
        if self._stream:
            with answer:
                _read_events(answer, call)
        else:
            _read_message(answer, call)


def turns(request: Request) -> list[dict[str, Any]]:
    """The messages as the API takes them, the last stable ones marked as ends of a cached prefix."""
    ends = [place for place, message in enumerate(request.messages) if message.stable][-_BREAKPOINTS:]
    turns: list[dict[str, Any]] = []
    for place, message in enumerate(request.messages):
        if not turns or turns[-1]["role"] != message.role:  # neighbours of one role are parts of one turn
            turns.append({"role": message.role, "content": []})
        turns[-1]["content"].append(_block(message.text, cached=place in ends))
    return turns


def _block(text: str, *, cached: bool) -> dict[str, Any]:
    return {"type": "text", "text": text, **({"cache_control": _EPHEMERAL} if cached else {})}


def _read_events(events: Any, call: Call) -> None:
    started, counts = None, None
    for event in events:
        kind = field(event, "type", str)
        if kind == "message_start":
            started = getattr(event, "message", None)
            _note_message(started, call)
        elif kind == "content_block_delta":
            call.add(field(event, "delta.text", str) or "")
        elif kind == "message_delta":
            counts = event
            _note_stop(getattr(event, "delta", None), call)
        elif kind == "message_stop" and started is not None:
            _note_usage(call, getattr(counts, "usage", None), getattr(started, "usage", None))
            return
    raise BrokenOff("the stream ended before the reply did")


def _read_message(message: Any, call: Call) -> None:
    if field(message, "type", str) != "message":
        raise ValueError("the answer is not a message")
    _note_message(message, call)
    _note_stop(message, call)
    _note_usage(call, getattr(message, "usage", None))
    for block in items(message, "content"):
        if field(block, "type", str) == "text":
            call.add(field(block, "text", str) or "")


def _note_message(message: Any, call: Call) -> None:
    call.model = field(message, "model", str) or ""
    call.request_id = call.request_id or field(message, "id", str) or ""


def _note_stop(holder: Any, call: Call) -> None:
    reason = field(holder, "stop_reason", str) or ""
    call.stop = _STOPS.get(reason, Stop.MALFORMED)
    why = field(holder, "stop_details.explanation", str) or ""
    call.detail = f"{reason}: {why}" if why else reason


def _note_usage(call: Call, *usages: Any) -> None:
    """Counts of the last event, and of the first where the last is silent."""

    def first(name: str) -> int | None:
        return next((n for usage in usages if (n := field(usage, name, int)) is not None), None)

    plain, read, written = (
        first(name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    prompt = None if plain is None else plain + (read or 0) + (written or 0)
    call.usage = usage_of(prompt, first("output_tokens"), read, written)
    tiers = [field(usage, name, str) for usage in usages for name in ("service_tier", "speed")]
    places = [field(usage, "inference_geo", str) for usage in usages]
    call.standard_rate = set(tiers) <= {None, "standard"} and "us" not in places
