"""What compiled kernels take, and how many of their blocks an SM holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.profiling.resources import limits, read

TRITON = Path(__file__).parent / "fixtures" / "triton"


def test_limits_of_an_sm() -> None:
    """CUDA's occupancy calculator for sm_90: 255 registers x 128 threads leave two blocks an SM."""
    assert limits("sm_90", 255, 16, 4) == {"registers": 2, "shared memory": 224, "warps": 16, "blocks": 32}
    assert limits("sm_90", 32, 100 << 10, 8)["shared memory"] == 2
    assert limits("sm_80", 64, 0, 8)["registers"] == 4
    assert limits("sm_75", 64, 0, 8) == {}
    with pytest.raises(ValueError, match="at least one warp"):
        limits("sm_90", 64, 0, 0)


@pytest.mark.parametrize("report", [None, [], {"k": {}}, {"k": {"registers": -1}}, {"k": 3}])
def test_resources_that_are_none(report: object) -> None:
    assert read(report) == ({}, ("the worker's report on compiled kernels could not be read",))


@pytest.mark.slow
def test_triton_s_compiler_still_says_what_is_stored() -> None:
    pytest.importorskip("triton.backends.nvidia")
    script = TRITON / "compile_rows.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    fresh, stored = json.loads(done.stdout), json.loads((TRITON / "resources.json").read_text())
    assert fresh.keys() == stored.keys()
    for name, used in stored.items():
        assert (fresh[name]["spilled"] > 0) == (used["spilled"] > 0)
        assert fresh[name]["registers"] == pytest.approx(used["registers"], rel=0.25)
