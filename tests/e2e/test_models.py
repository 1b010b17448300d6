"""The main job with a model: the real SDKs against a server on loopback that plays a recorded expert."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import expert
from tests.models.server import ModelServer, Received

KEY = "sk-sentinel-0123456789abcdef-never-print-me"
STEPS = 5
AGENTS = {"claude": ("anthropic", "ANTHROPIC_API_KEY"), "gpt": ("openai", "ATREX_BASE_URL_KEY")}


def optimize(
    agent: str, server: ModelServer, runs: Path, *more: str, steps: int = STEPS, case: str = "54"
) -> subprocess.Popen[str]:
    """Starts from a blank page, on one case: what the expert answers is all that there is."""
    url = server.url if agent == "claude" else server.openai_url
    command = [
        *(sys.executable, "-m", "atrex", "optimize", "--op", "rmsnorm", "--device", "cpu", "--case", case),
        *("--agent", agent, "--model", "the-model", "--base-url", url, "--knowledge", "off"),
        *("--budget", "30m", "--steps", str(steps), "--seed", "7", "--runs", str(runs), "--json", *more),
    ]
    environment = {**os.environ, AGENTS[agent][1]: KEY, "NO_PROXY": "127.0.0.1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


@dataclass(frozen=True)
class Finished:
    """A run that has ended, and what the server received."""

    agent: str
    report: dict[str, Any]
    run: Path
    received: list[Received]
    stderr: str


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """A run with each agent, side by side: of one thread each, or they wait for one another on two cores."""
    for package, _ in AGENTS.values():
        pytest.importorskip(package)
    found = {}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        places = {agent: tmp_path_factory.mktemp(agent) for agent in AGENTS}
        servers = {agent: stack.enter_context(ModelServer(expert.answer)) for agent in AGENTS}
        jobs = {agent: optimize(agent, servers[agent], places[agent]) for agent in AGENTS}
        for job in jobs.values():
            stack.callback(job.kill)
        for agent, job in jobs.items():
            stdout, stderr = job.communicate(timeout=280)
            assert job.returncode == 0, stderr
            (run,) = places[agent].iterdir()
            found[agent] = Finished(agent, json.loads(stdout), run, servers[agent].received, stderr)
    return found


@pytest.fixture(params=list(AGENTS))
def finished(request: pytest.FixtureRequest, both: dict[str, Finished]) -> Finished:
    return both[request.param]


def test_the_right_champion_is_found(finished: Finished) -> None:
    assert finished.report["accepted"]
    best = (finished.run / "best.py").read_text()
    assert re.sub(r"import torch  # \d+", "import torch", best) == expert.source("vectorised")


def test_the_rest_is_rejected_by_the_right_gate(finished: Finished) -> None:
    history = [(step["outcome"], step["note"].partition(":")[0]) for step in finished.report["history"]]
    outcomes = [outcome for outcome, _ in history]
    assert outcomes[:2] == ["wrong", "wrong"]
    assert history[0][1] == "authenticity"
    assert history[1][1] in ("sensitivity", "accumulation", "shapes")  # where eps matters
    last = outcomes.index("promoted", 2)
    assert set(outcomes[2:last]) <= {"unconfirmed", "no gain"}  # a busy machine
    assert set(outcomes[last + 1 :]) == {"missed"}


def test_what_was_asked_is_paid_and_shown_once(finished: Finished) -> None:
    missed = sum(step["outcome"] == "missed" for step in finished.report["history"])
    assert len(finished.received) == STEPS + 1 + missed  # with the repairs, one of which was good
    assert len(list((finished.run / "replies").iterdir())) == len(finished.received)
    assert finished.report["agent"] == f"{finished.agent} the-model"
    spent = finished.report["spent"]
    assert spent["calls"] == len(finished.received)
    assert spent["dollars"] is None


def test_the_prompt_has_what_is_needed(finished: Finished) -> None:
    system = json.dumps(finished.received[0].body)
    for needed in ("HYPOTHESIS", "def reference", "row_stride"):
        assert needed in system
    asked = [expert.question(request) for request in finished.received]
    repair = next(text for text in asked if "Mend the file." in text and "eps can be left out" in text)
    assert "Gate" in repair
    assert "1 / std::sqrt(sum / hidden)" in repair  # the file that was wrong
    assert "PyTorch's own kernel is well tuned" in repair  # the lesson before


def test_the_key_goes_nowhere_but_to_the_server(finished: Finished) -> None:
    assert all(request.key == KEY for request in finished.received)
    assert KEY not in finished.stderr
    for path in finished.run.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


def test_without_a_key_nothing_is_begun(tmp_path: Path) -> None:
    pytest.importorskip("anthropic")
    environment = {name: value for name, value in os.environ.items() if name != "ANTHROPIC_API_KEY"}
    command = [sys.executable, "-m", "atrex", "optimize", "--op", "rmsnorm", "--agent", "claude"]
    done = subprocess.run(
        [*command, "--device", "cpu", "--runs", str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 3
    assert "ANTHROPIC_API_KEY" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
