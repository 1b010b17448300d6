"""`atrex bench` with a model: a search for the operator, its kernel in the table, nothing paid twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import expert
from tests.e2e.test_models import KEY
from tests.models.server import ModelServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def bench(url: str, runs: Path, *more: str) -> dict[str, Any]:
    command = [
        *(sys.executable, "-m", "atrex", "bench", "--agent", "claude", "--model", "the-model"),
        *("--base-url", url, "--knowledge", "off", "--ops", "rmsnorm", "--cases", "1", "--device", "cpu"),
        *("--budget-per-op", "10m", "--tokens", "15000", "--seed", "5", "--runs", str(runs), "--json", *more),
    ]
    environment = {**os.environ, "ANTHROPIC_API_KEY": KEY}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_model_over_the_workload(tmp_path: Path) -> None:
    pytest.importorskip("anthropic")
    with ModelServer(expert.answer) as server:
        report = bench(server.url, tmp_path)
        asked = len(server.received)
        (run,) = tmp_path.iterdir()
        again = bench(server.url, tmp_path, "--resume", run.name)
        assert len(server.received) == asked, "nothing is paid twice"
    assert report["agent"] == "claude the-model"
    assert report["S"] > 0
    (entrant,) = report["entrants"]
    assert entrant["outcome"] == "accepted"
    assert entrant["fallback"] == "kernel"
    assert entrant["spent"]["calls"] == asked
    assert report["spent"]["input_tokens"] + report["spent"]["output_tokens"] >= 15000
    assert report["tokens_per_point"] > 0
    assert report["fast_p"]
    assert again["S"] == report["S"]
    assert again["entrants"] == report["entrants"]
