"""The whole way on a GPU: a Triton kernel's launches, resources and counters, and what they say of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agent.instrument import Instrument
from atrex.candidate import load_candidate
from atrex.judge import Engine
from atrex.measure import protocol_for
from atrex.problem import load_problem
from atrex.roofline import detect
from knowledge.item import ROOT
from traces.workload import load_workload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_kernel_is_seen_with_its_resources_and_counters() -> None:
    problem = load_problem("rms_norm")
    case = max(load_workload("atrex-bench").cases("rms_norm"), key=lambda one: one.input["token_count"])
    candidate = load_candidate(ROOT / "kernels/triton/rms_norm/row_tiles.py", "rms_norm")
    with Engine("cuda") as engine:
        rules = protocol_for("cuda", quick=True)
        lab = Instrument(engine, problem, detect("cuda"), None, rules, lambda _: Path("kernel.py"))
        try:
            median = lab.measure(candidate, [case])[case.id].median_us
            profile = lab.profile(candidate, case, median)
            found = lab.bottlenecks(candidate, case, median)
        finally:
            lab.close()
    assert profile.timeline is not None
    (kernel,) = [each for each in profile.kernels if each.registers]
    assert kernel.grid
    assert profile.timeline.launches == 1
    assert kernel.dram is not None or any("counter" in note for note in profile.notes), profile.notes
    assert all(each.recoverable_us <= median for each in found)
