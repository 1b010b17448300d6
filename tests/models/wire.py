"""The wire formats of the Messages API and of OpenAI's Responses and Chat Completions, server side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Stop = Literal["end", "length", "refusal", "tool", "unknown", "none"]
Api = Literal["messages", "responses", "chat"]
Event = tuple[str | None, dict[str, Any] | str]  # the name and the data of a server-sent event

PATHS: dict[str, Api] = {
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/v1/chat/completions": "chat",
}


@dataclass(frozen=True)
class Text:
    """A reply: its text, why it ended, and what the server says it cost. `input` counts the whole prompt."""

    text: str = ""
    stop: Stop = "end"
    input: int = 100
    output: int = 20
    cached: int = 0
    written: int = 0
    usage: bool = True  # some compatible servers send none
    model: str = "the-model"
    tier: str | None = None
    piece: int = 16  # characters an event
    thinking: str = ""


# Anthropic ------------------------------------------------------------------------------------------------

_ANTHROPIC_STOPS = {
    "end": "end_turn",
    "length": "max_tokens",
    "refusal": "refusal",
    "tool": "tool_use",
    "unknown": "invented_last_week",
    "none": None,
}


def _anthropic_usage(say: Text) -> dict[str, Any]:
    return {
        "input_tokens": say.input - say.cached - say.written,
        "cache_creation_input_tokens": say.written,
        "cache_read_input_tokens": say.cached,
        "output_tokens": say.output,
        "service_tier": say.tier or "standard",
    }


def _anthropic_blocks(say: Text) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if say.thinking:
        blocks.append({"type": "thinking", "thinking": say.thinking, "signature": "c2ln"})
    if say.text:
        blocks.append({"type": "text", "text": say.text})
    if say.stop == "tool":
        blocks.append({"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "env"}})
    return blocks


def _anthropic_message(say: Text) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": say.model,
        "content": _anthropic_blocks(say),
        "stop_reason": _ANTHROPIC_STOPS[say.stop],
        "stop_sequence": None,
        "usage": _anthropic_usage(say),
    }


def _anthropic_events(say: Text) -> Iterator[Event]:
    begun = {**_anthropic_message(say), "content": [], "stop_reason": None}
    begun["usage"] = {**_anthropic_usage(say), "output_tokens": 1}
    yield _named({"type": "message_start", "message": begun})
    yield _named({"type": "ping"})
    for index, block in enumerate(_anthropic_blocks(say)):
        kind = block["type"]
        opened = {"text": {"type": "text", "text": ""}, "thinking": {**block, "thinking": ""}}
        empty = opened.get(kind, {**block, "input": {}})
        yield _named({"type": "content_block_start", "index": index, "content_block": empty})
        for delta in _anthropic_deltas(block, say.piece):
            yield _named({"type": "content_block_delta", "index": index, "delta": delta})
        yield _named({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": _ANTHROPIC_STOPS[say.stop], "stop_sequence": None}
    yield _named({"type": "message_delta", "delta": delta, "usage": {"output_tokens": say.output}})
    yield _named({"type": "message_stop"})


def _anthropic_deltas(block: dict[str, Any], piece: int) -> list[dict[str, Any]]:
    if block["type"] == "tool_use":
        return [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    kind = block["type"]
    return [{"type": f"{kind}_delta", kind: part} for part in pieces(block[kind], piece)]


# OpenAI: Responses ----------------------------------------------------------------------------------------


def _response(say: Text) -> dict[str, Any]:
    incomplete = {"length": "max_output_tokens"}.get(say.stop)
    status = {"length": "incomplete", "unknown": "cancelled", "none": None}.get(say.stop, "completed")
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": say.model,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "output": _response_output(say),
        "service_tier": say.tier or "default",
        "usage": _response_usage(say) if say.usage else None,
    }


def _response_usage(say: Text) -> dict[str, Any]:
    return {
        "input_tokens": say.input,
        "input_tokens_details": {"cached_tokens": say.cached, "cache_write_tokens": say.written},
        "output_tokens": say.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": say.input + say.output,
    }


def _response_output(say: Text) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    if say.thinking:
        output.append({"type": "reasoning", "id": "rs_1", "summary": []})
        output.append(_response_message("msg_0", "commentary", {"type": "output_text", "text": say.thinking}))
    if say.stop == "refusal":
        output.append(_response_message("msg_1", None, {"type": "refusal", "refusal": say.text or "No."}))
    elif say.text:
        part = {"type": "output_text", "text": say.text, "annotations": []}
        output.append(_response_message("msg_1", "final_answer", part))
    if say.stop == "tool":
        call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "bash"}
        output.append({**call, "arguments": '{"command": "env"}', "status": "completed"})
    return output


def _response_message(name: str, phase: str | None, part: dict[str, Any]) -> dict[str, Any]:
    message = {"type": "message", "id": name, "role": "assistant", "status": "completed", "content": [part]}
    return {**message, "phase": phase} if phase else message


def _response_events(say: Text) -> Iterator[Event]:
    begun = {**_response(say), "status": "in_progress", "output": [], "usage": None}
    yield _named({"type": "response.created", "sequence_number": 0, "response": begun})
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    kind = "response.refusal.delta" if say.stop == "refusal" else "response.output_text.delta"
    for number, part in enumerate(pieces(say.text, say.piece), 1):
        yield _named({"type": kind, "sequence_number": number, "delta": part, "logprobs": [], **where})
    response = _response(say)
    last = "incomplete" if response["status"] == "incomplete" else "completed"
    yield _named({"type": f"response.{last}", "sequence_number": 999_999, "response": response})


# OpenAI: Chat Completions ---------------------------------------------------------------------------------

_CHAT_STOPS = {
    "end": "stop",
    "length": "length",
    "refusal": "content_filter",
    "tool": "tool_calls",
    "unknown": "invented_last_week",
    "none": None,
}
_TOOL_CALL = {
    "index": 0,
    "id": "call_1",
    "type": "function",
    "function": {"name": "bash", "arguments": '{"command": "env"}'},
}


def _chat_usage(say: Text) -> dict[str, Any]:
    return {
        "prompt_tokens": say.input,
        "completion_tokens": say.output,
        "total_tokens": say.input + say.output,
        "prompt_tokens_details": {"cached_tokens": say.cached},
    }


def _chat_head(say: Text, kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": say.model, "service_tier": say.tier}


def _chat_completion(say: Text) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": say.text or None}
    if say.stop == "tool":
        message["tool_calls"] = [{name: _TOOL_CALL[name] for name in ("id", "type", "function")}]
    choice = {"index": 0, "message": message, "finish_reason": _CHAT_STOPS[say.stop]}
    usage = {"usage": _chat_usage(say)} if say.usage else {}
    return {**_chat_head(say, "chat.completion"), "choices": [choice], **usage}


def _chat_events(say: Text) -> Iterator[Event]:
    head = _chat_head(say, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return None, {**head, "choices": [choice], "usage": None}

    yield chunk({"role": "assistant", "content": ""})
    if say.thinking:  # as vLLM and SGLang name it
        yield chunk({"reasoning_content": say.thinking})
    for part in pieces(say.text, say.piece):
        yield chunk({"content": part})
    if say.stop == "tool":
        yield chunk({"tool_calls": [_TOOL_CALL]})
    if say.stop != "none":
        yield chunk({}, _CHAT_STOPS[say.stop])
    if say.usage:
        yield None, {**head, "choices": [], "usage": _chat_usage(say)}
    yield None, "[DONE]"


# Both -----------------------------------------------------------------------------------------------------

BODIES: dict[Api, Callable[[Text], dict[str, Any]]] = {
    "messages": _anthropic_message,
    "responses": _response,
    "chat": _chat_completion,
}
EVENTS: dict[Api, Callable[[Text], Iterator[Event]]] = {
    "messages": _anthropic_events,
    "responses": _response_events,
    "chat": _chat_events,
}


def error_body(api: Api, status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """What the real servers send with a status of 4xx or 5xx."""
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        529: "overloaded_error",
    }
    if api == "messages":
        details = {"error_code": code} if code else None
        error = {"type": kinds.get(status, "api_error"), "message": message, "details": details}
        return {"type": "error", "error": error, "request_id": "req_1"}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_event(api: Api, kind: str, message: str) -> Event:
    """An error inside a stream that had begun well."""
    if api == "messages":
        return "error", {"type": "error", "error": {"type": kind, "message": message}}
    if api == "responses":
        return _named(
            {"type": "error", "code": kind, "message": message, "param": None, "sequence_number": 1}
        )
    return None, {"error": {"message": message, "type": kind, "code": kind}}


def pieces(text: str, size: int) -> list[str]:
    """The text in parts of at most `size` characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def frame(event: Event) -> bytes:
    """One server-sent event as bytes."""
    name, data = event
    line = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {line}\n\n".encode()


def _named(data: dict[str, Any]) -> Event:
    return data["type"], data
