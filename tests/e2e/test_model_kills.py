"""A run with a model, killed at a random moment and resumed: the same champion, nothing paid or judged twice.

ATREX_KILLS=50 python -m pytest tests/e2e/test_model_kills.py    # each takes a minute or two
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from agent.events import Judged
from agent.history import events
from agent.state import fold
from tests.e2e import expert
from tests.e2e.test_models import optimize
from tests.models.server import Answer, ModelServer, Received

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("ATREX_KILLS", "3"))
LONGEST = float(os.environ.get("ATREX_KILL_WITHIN", "90"))  # seconds: about what an undisturbed run takes


class Watching:
    """The expert, who notes each question whose answer is on the run's disk already."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.paid_twice: list[str] = []

    def __call__(self, request: Received) -> Answer:
        asked = expert.turns(request)
        for path in self.runs.glob("*/replies/*.json"):
            known = json.loads(path.read_text())["request"]["messages"]
            if [turn["text"] for turn in known] == asked:
                self.paid_twice.append(path.name)
        return expert.answer(request)


def finished(job: subprocess.Popen[str]) -> None:
    _, stderr = job.communicate(timeout=900)
    assert job.returncode == 0, stderr


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_a_random_moment(number: int, tmp_path: Path) -> None:
    pytest.importorskip("anthropic")
    watching = Watching(tmp_path)
    with ModelServer(watching) as server:
        job = optimize("claude", server, tmp_path)
        deadline = time.monotonic() + random.Random(f"kill {number}").uniform(1.0, LONGEST)
        while time.monotonic() < deadline and job.poll() is None:
            time.sleep(0.05)
        if job.poll() is None:
            os.kill(job.pid, signal.SIGKILL)
        job.communicate()
        begun = list(tmp_path.iterdir())
        finished(optimize("claude", server, tmp_path, *(("--resume", begun[0].name) if begun else ())))
    (run,) = tmp_path.iterdir()
    found = events(run / "ledger.jsonl")
    assert fold(found).best.source.splitlines()[3:] == expert.source("vectorised").splitlines()[3:]
    judged = [(event.candidate, event.level) for event in found if isinstance(event, Judged)]
    assert len(judged) == len(set(judged))
    assert watching.paid_twice == []
