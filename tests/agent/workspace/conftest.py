"""A workspace for one small case of rms_norm in C++, and both doubles on the PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.workspace.prepare import Workspace, prepare
from atrex.problem import load_problem
from atrex.records import Case

TOOLS = Path(__file__).with_name("tools")
KEYS = {"ANTHROPIC_API_KEY": "sk-ant-own-key-of-claude", "CODEX_API_KEY": "sk-own-key-of-codex"}


def case(number: int, rows: int, hidden: int, weight: float = 1.0) -> Case:
    size = {"token_count": rows, "hidden_size": hidden}
    return Case(operator="rms_norm", id=f"rms_norm-{number:03d}", input=size, phase="decode", weight=weight)


VISIBLE, HIDDEN = case(0, 7, 128), case(1, 41239, 7919)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    problem = load_problem("rms_norm")
    return prepare(tmp_path / "work", problem, [VISIBLE], "cpu", "cpp", hidden=[HIDDEN])


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("FOREIGN_TOKEN", "foreign-secret-value")
    monkeypatch.setenv("FOREIGN_SETTING", "foreign-plain-value")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
