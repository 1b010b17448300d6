"""The words on the command line that choose an agent: which of them fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.agents import AgentOptions, open_agent
from agent.task import Task
from atrex.errors import UsageError
from atrex.runs import Run, RunMeta, now
from tests.agent.scripted import BRIEF


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"model": "x"}, "--model means nothing to --agent search"),
        ({"agent": "codex", "temperature": 1.0}, "--temperature means nothing to --agent codex"),
        (
            {"agent": "gpt", "base_url": "http://localhost:1/v1", "model": "m", "dollars": 1.0},
            "--tokens instead",
        ),
        ({"agent": "claude", "model": "unheard-of", "dollars": 1.0}, "none is known for unheard-of"),
    ],
)
def test_words_that_do_not_fit_together(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        AgentOptions(**options).checked()


def test_a_known_price_allows_dollars() -> None:
    assert AgentOptions(agent="claude", dollars=2.5).checked().dollars == 2.5


def test_search_needs_no_model(tmp_path: Path) -> None:
    meta = RunMeta(created=now(), command=("atrex",), operator="rms_norm", device="cuda", seed=1)
    task = Task(cases=(), seconds=1.0)
    proposer = open_agent(AgentOptions(), 10.0).proposer(BRIEF, Run(tmp_path, meta), task, print)
    assert proposer.name == "search"
    assert not list(tmp_path.iterdir())
