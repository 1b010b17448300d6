"""What a judge and its workers have in their environments."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from atrex import WORKER
from atrex.environment import scrubbed_environment

SPINS = "import os, atrex; print(os.environ.get('GOMP_SPINCOUNT', 'as libgomp likes'))"


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "0"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({WORKER: "1"}, "as libgomp likes")],
)
def test_only_the_judge_s_threads_go_to_sleep_at_once(given: dict[str, str], spins: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", WORKER)}
    command = [sys.executable, "-c", SPINS]
    ran = subprocess.run(command, env=kept | given, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == spins


def test_a_worker_s_kernels_are_timed_without_the_judge_s_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY", "SOME_API_KEY", "UNKNOWN"):
        monkeypatch.setenv(name, "0")
    environment = scrubbed_environment(None, {})
    assert environment[WORKER] == "1"
    assert "GOMP_CPU_AFFINITY" in environment
    assert not {"GOMP_SPINCOUNT", "SOME_API_KEY", "UNKNOWN"} & environment.keys()


def test_no_secret_is_handed_over_by_name() -> None:
    with pytest.raises(ValueError, match="not for a worker's environment: HF_TOKEN"):
        scrubbed_environment(None, {"HF_TOKEN": "x"})
