"""From the words of a command line to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from agent.models.cache import Cached, Replay
from agent.models.claude import Claude
from agent.models.gpt import Chat, Responses
from agent.models.records import Model, Provider
from atrex.errors import UsageError

Agent = Literal["claude", "gpt"]
Api = Literal["responses", "chat"]
DEFAULTS: dict[Agent, str] = {"claude": "claude-opus-5-5", "gpt": "gpt-6.1-sol"}


def open_model(
    agent: Agent,
    *,
    model: str = "",
    base_url: str = "",
    api: Api | None = None,
    cache: Path | None = None,
    replay: Path | None = None,
    **options: Any,
) -> Model:
    """The model that was asked for, its replies kept in `cache`, or found in `replay` without a network.

    `gpt` speaks Chat Completions to a `base_url`, and the Responses API to OpenAI. `options` are those of
    `Remote`. Raises UsageError for words that do not fit together.
    """
    if base_url and not model and agent == "gpt":
        raise UsageError("a server at --base-url needs --model, the name under which it serves one")
    name = model or DEFAULTS[agent]
    if replay is not None:
        return Replay(_provider(agent, base_url, api), name, replay)
    opened = _open(agent, name, base_url, api, options)
    return Cached(opened, cache) if cache is not None else opened


def _open(agent: Agent, name: str, base_url: str, api: Api | None, options: dict[str, Any]) -> Model:
    provider = _provider(agent, base_url, api)
    place = {"base_url": base_url} if base_url else {}
    if provider == "anthropic":
        return Claude(name, **place, **options)
    if provider == "openai":
        return Responses(name, **options)
    return Chat(name, **place, **options)


def _provider(agent: Agent, base_url: str, api: Api | None) -> Provider:
    if agent == "claude":
        if api is not None:
            raise UsageError("claude has one API; leave out the choice of one")
        return "anthropic"
    if base_url and api == "responses":
        raise UsageError("a server at --base-url is spoken to by Chat Completions; leave out the API")
    if base_url:
        return "compatible"
    return "openai-chat" if api == "chat" else "openai"
