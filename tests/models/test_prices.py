"""Prices are data with a source, and what is not known costs None."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from agent.models import choose, prices
from agent.models.records import Usage
from atrex.errors import UsageError


def tokens(prompt: int, output: int = 0, cached: int = 0, written: int = 0) -> Usage:
    return Usage(input_tokens=prompt, output_tokens=output, cached_tokens=cached, written_tokens=written)


def test_every_price_is_plausible_and_has_a_source() -> None:
    table = prices.read()
    assert len(table) > 10
    for price in table.values():
        for rates in filter(None, (price.rates, price.above)):
            assert 0 < rates.cache_read < rates.input < rates.output <= 100
            assert rates.cache_write is None or rates.input < rates.cache_write <= 2 * rates.input
        assert price.date >= date(2026, 1, 1)
        assert (price.above is None) or price.prompt_limit


def test_the_default_models_are_priced() -> None:
    assert prices.find("anthropic", choose.DEFAULTS["claude"])
    assert prices.find("openai", choose.DEFAULTS["gpt"])


def test_each_kind_of_token_has_its_rate() -> None:
    # claude-opus-5: 5 in, 25 out, 0.5 read, 6.25 written, all per million
    usage = tokens(1_000_000, output=100_000, cached=600_000, written=200_000)
    assert prices.cost("anthropic", ["claude-opus-5"], usage) == pytest.approx(1.0 + 2.5 + 0.3 + 1.25)
    assert prices.cost("anthropic", ["claude-opus-5"], tokens(0)) == 0.0


def test_long_prompts_have_their_own_rates_or_none() -> None:
    haiku = ["claude-haiku-5-5"]
    assert prices.cost("anthropic", haiku, tokens(100_000)) == pytest.approx(0.01)
    assert prices.cost("anthropic", haiku, tokens(100_001)) == pytest.approx(0.0500005)
    assert prices.cost("openai", ["gpt-6.1-sol"], tokens(272_001)) is None


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("anthropic", "gpt-6.1-sol"),
        ("openai", "claude-opus-5"),
        ("compatible", "gpt-6.1-sol"),
        ("anthropic", "claude-opus-5-turbo"),
        ("anthropic", "claude-opus-5-202607"),
    ],
)
def test_what_is_not_sold_here_has_no_cost(provider: prices.Provider, model: str) -> None:
    assert prices.cost(provider, [model], tokens(10)) is None


def test_names_and_unknown_counts() -> None:
    assert prices.find("openai-chat", "gpt-6.1-sol-2026-09-29") is prices.find("openai", "gpt-6.1-sol")
    assert prices.cost("openai", ["unheard-of", "gpt-5-nano"], tokens(1_000_000)) == pytest.approx(0.05)
    assert prices.cost("openai", ["gpt-5-nano"], None) is None
    assert prices.cost("openai", ["gpt-5-nano"], tokens(10, written=5)) is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("source: https://a.b/c", "priced twice"),
        ("source: 'somebody said so'", "source"),
        ("source: https://a.b/c\n  colour: red", "colour"),
    ],
)
def test_a_wrong_table_names_the_field(tmp_path: Path, line: str, words: str) -> None:
    row = "- provider: openai\n  model: m\n  rates: {input: 1, output: 2, cache_read: 0.1}\n"
    path = tmp_path / "prices.yaml"
    path.write_text(f"{row}  date: 2026-01-02\n  {line}\n" * 2)
    with pytest.raises(UsageError, match=words):
        prices.read(path)
