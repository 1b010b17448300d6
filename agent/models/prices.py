"""What a reply cost: tokens times the published price, or None where the price is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from agent.models.records import Provider, Usage
from atrex import strict_yaml
from atrex.records import Record

TABLE = Path(__file__).with_name("prices.yaml")
_DATED = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")

Dollars = Annotated[float, Field(ge=0)]


class Rates(Record):
    """Dollars per million tokens. `cache_write` None: not published, so a reply that wrote has no cost."""

    input: Dollars
    output: Dollars
    cache_read: Dollars
    cache_write: Dollars | None = None


class Price(Record):
    """One model's standard rates, where they were read and when."""

    provider: Literal["anthropic", "openai"]
    model: str
    rates: Rates
    prompt_limit: int | None = None  # longest prompt, in tokens, that `rates` hold for
    above: Rates | None = None  # rates of longer ones; None: unknown
    source: Annotated[str, Field(pattern=r"^https://")]
    date: date


def read(path: Path = TABLE) -> dict[tuple[str, str], Price]:
    """The table by provider and model. Raises UsageError for a file that is not one."""

    def validate(data: Any) -> dict[tuple[str, str], Price]:
        rows = TypeAdapter(list[Price]).validate_python(data)
        table: dict[tuple[str, str], Price] = {(row.provider, row.model): row for row in rows}
        if len(table) < len(rows):
            raise ValueError("a model is priced twice")
        return table

    return strict_yaml.read(path, validate)


_table = cache(read)


def find(provider: Provider, model: str) -> Price | None:
    """The price of a model, whose name may end in a snapshot's date. Servers of one's own have none."""
    seller = "openai" if provider == "openai-chat" else provider
    table = _table()
    return table.get((seller, model)) or table.get((seller, _DATED.sub("", model)))


def cost(provider: Provider, models: Iterable[str], usage: Usage | None) -> float | None:
    """Dollars for one reply, by the first of the model's names that has a price."""
    price = next((found for model in models if (found := find(provider, model))), None)
    if price is None or usage is None:
        return None
    long = price.prompt_limit is not None and usage.input_tokens > price.prompt_limit
    rates = price.above if long else price.rates
    return _bill(rates, usage) if rates else None


def _bill(rates: Rates, usage: Usage) -> float | None:
    if usage.written_tokens and rates.cache_write is None:
        return None
    plain = usage.input_tokens - usage.cached_tokens - usage.written_tokens
    cached = usage.cached_tokens * rates.cache_read + usage.written_tokens * (rates.cache_write or 0.0)
    return (plain * rates.input + cached + usage.output_tokens * rates.output) / 1e6
