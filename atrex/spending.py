"""What asking models has cost: calls, tokens, dollars, seconds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atrex.records import Record


class Spending(Record):
    """Sums over calls. `dollars` is None once one has no known price."""

    calls: Annotated[int, Field(ge=0)] = 0
    input_tokens: Annotated[int, Field(ge=0)] = 0
    output_tokens: Annotated[int, Field(ge=0)] = 0
    cached_tokens: Annotated[int, Field(ge=0)] = 0
    dollars: Annotated[float, Field(ge=0)] | None = 0.0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    estimated: bool = False
    """Whether a server did not say what it counted, so that bytes were counted instead."""

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Spending) -> Spending:
        known = self.dollars is not None and other.dollars is not None
        return Spending(
            calls=self.calls + other.calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            dollars=(self.dollars or 0.0) + (other.dollars or 0.0) if known else None,
            seconds=self.seconds + other.seconds,
            estimated=self.estimated or other.estimated,
        )

    def __str__(self) -> str:
        price = "price unknown" if self.dollars is None else f"${self.dollars:.2f}"
        about = "about " if self.estimated else ""
        return f"{self.calls} calls, {about}{self.tokens} tokens, {price}"
