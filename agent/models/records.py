"""What is asked of a model and what it answers: frozen records that hold no key."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field, JsonValue, model_validator

from atrex.records import Record

Provider = Literal["anthropic", "openai", "openai-chat", "compatible"]


class Message(Record):
    """One turn. `stable` marks the end of a prefix that later requests repeat, and so worth caching."""

    role: Literal["user", "assistant"]
    text: Annotated[str, Field(min_length=1)]
    stable: bool = False


class Sampling(Record):
    """Parameters the user set; what is None, or absent from `extra`, is not sent."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    effort: str | None = None  # how much the model reasons, in the API's own words
    extra: dict[str, JsonValue] = {}  # further fields of the request's body, as the API names them


class Request(Record):
    """One question to a model. `sample` tells repeated askings of one question apart; it is not sent."""

    system: str = ""
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    sampling: Sampling = Sampling()
    sample: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _ends_with_the_user(self) -> Self:
        if self.messages[-1].role != "user":
            raise ValueError("the last message of a request is the user's")
        return self


class Stop(StrEnum):
    """Why a reply ended."""

    END = "end"
    LENGTH = "length"  # the output limit, or the end of the context window
    REFUSED = "refused"
    TOOL = "tool call"  # it asked for a tool that nobody offered
    EMPTY = "empty"  # it ended by itself, without any text
    CUT = "cut"  # longer than the limit of this program, which stopped reading
    MALFORMED = "malformed"  # no reason to stop, or one unknown here


class Usage(Record):
    """Tokens billed. `input_tokens` counts the whole prompt, whatever part of it a cache held."""

    input_tokens: Annotated[int, Field(ge=0)]
    output_tokens: Annotated[int, Field(ge=0)]
    cached_tokens: Annotated[int, Field(ge=0)] = 0  # read from the provider's prompt cache
    written_tokens: Annotated[int, Field(ge=0)] = 0  # written to it

    @model_validator(mode="after")
    def _parts_of_the_prompt(self) -> Self:
        if self.cached_tokens + self.written_tokens > self.input_tokens:
            raise ValueError("cached and written tokens are parts of the input")
        return self


class Reply(Record):
    """A model's answer; `usage` and `cost` are None where the server or the price table does not say."""

    text: str
    stop: Stop
    detail: str = ""  # the API's own word for the stop, or what it said of a refusal
    usage: Usage | None = None
    cost: Annotated[float, Field(ge=0)] | None = None  # dollars
    model: str  # as the server names it
    request_id: str = ""
    seconds: Annotated[float, Field(ge=0)] = 0.0  # waits between attempts included
    attempts: Annotated[int, Field(ge=1)] = 1
    recorded: bool = False  # read from disk: nothing was paid for it now


class Limits(Record):
    """How long, how often and how much. The deadline bounds one call with all its attempts and waits."""

    deadline_s: Annotated[float, Field(gt=0)] = 1800.0
    idle_s: Annotated[float, Field(gt=0)] = 300.0  # silence on the line that counts as a timeout
    connect_s: Annotated[float, Field(gt=0)] = 10.0
    attempts: Annotated[int, Field(ge=1)] = 8
    first_wait_s: Annotated[float, Field(gt=0)] = 1.0  # doubles with each attempt
    longest_wait_s: Annotated[float, Field(gt=0)] = 60.0  # a server's Retry-After may ask for more
    reply_bytes: Annotated[int, Field(ge=1)] = 1_000_000  # UTF-8 bytes of text; what is beyond is cut

    def within(self, seconds: float) -> Limits:
        """The same with a deadline that is not later than in so many seconds."""
        return self.model_copy(update={"deadline_s": min(self.deadline_s, max(seconds, 0.001))})

    @property
    def wire_bytes(self) -> int:
        """Most bytes read from the line: token by token, an event is about a hundred times its text."""
        return 128 * self.reply_bytes


class Model(Protocol):
    """Whatever answers a request. `provider` and `name` are part of what a cached reply is found by."""

    @property
    def provider(self) -> Provider:
        """The API it speaks."""

    @property
    def name(self) -> str:
        """The model asked for."""

    def complete(self, request: Request, *, seconds: float | None = None) -> Reply:
        """The answer, within so many seconds.

        Raises AtrexError (exit 2 or 3) when there is none, with the remedy in one line.
        """
