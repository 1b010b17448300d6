"""A worker finds its packages in a source checkout that it may not list, whatever happens there meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
from pathlib import Path
import atrex
from atrex.candidate import Candidate
from atrex.judge import Engine

kernel = "import torch\\n\\nclass Model(torch.nn.Module):\\n    pass\\n"
with Engine("cpu", threads=1) as engine:
    for name in ("before", "after"):
        with engine.session(Candidate("rms_norm", "torch", kernel, note=name)) as session:
            session.load()
        print(name, flush=True)
        Path(atrex.__file__).parents[1].joinpath("a new folder").mkdir(exist_ok=True)
"""


def test_a_checkout_that_changes(tmp_path: Path) -> None:
    """The import system looks again into a folder that has changed, and what it may not list seems empty."""
    checkout = tmp_path / "checkout"
    for package in ("atrex", "bench"):
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / "pyproject.toml").touch()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-P", "-c", SCRIPT]
    ran = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=240)
    assert ran.stdout.split() == ["before", "after"], ran.stderr[-2000:]
