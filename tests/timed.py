"""Sessions to time: real doubles that run eager PyTorch in this process and time it, as a worker would."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from atrex import protocol
from atrex.candidate import Candidate
from atrex.inputs import apply_edit, build_inputs
from atrex.judge import CandidateFault, Outcome, Session
from atrex.measure import Protocol, Timing, measure_case
from atrex.problem import Problem, load_problem
from atrex.records import Case, FaultKind

CPU = torch.device("cpu")
RULES = Protocol(
    min_rounds=7, max_rounds=8, case_seconds=0.1, round_us=30_000.0, cache_bytes=1 << 12, max_sets=3
)
SLEEP_S = 0.5e-3
SMALL = {"token_count": 40, "hidden_size": 64}


def report(out: Tensor) -> protocol.CallReport:
    """As a worker describes one output."""
    dtype = str(out.dtype).removeprefix("torch.")
    described = protocol.TensorReport(
        name="out",
        python_type="torch.Tensor",
        dtype=dtype,
        shape=tuple(out.shape),
        device=out.device.type,
        nbytes=out.numel() * out.element_size(),
    )
    return protocol.CallReport(structure="tensor", outputs=(described,))


@dataclass
class Here:
    """The part of an engine that measuring looks at."""

    device: str = "cpu"
    torch_device: torch.device = CPU


@dataclass
class Honest:
    """Eager rms_norm in this process; a call lasts at least SLEEP_S."""

    candidate: Candidate = field(default_factory=lambda: Candidate("rms_norm", "torch", "pass"))
    problem: Problem = field(default_factory=lambda: load_problem("rms_norm"))
    engine: Here = field(default_factory=Here)
    sleep: float = SLEEP_S
    log: list[str] = field(default_factory=list)

    def prepare(self, request: protocol.Prepare) -> protocol.Reply:
        self.request = request
        recipes = (request.inputs.model_copy(update={"seed": seed}) for seed in request.seeds)
        self.sets = [build_inputs(self.problem, recipe, CPU)[0] for recipe in recipes]
        self.outputs: list[Tensor] = [torch.empty(0)] * len(self.sets)
        return self.reply(method="wall", host_us=5.0)

    def round(self, request: protocol.Round) -> protocol.Reply:
        self.log.append("spoiled" if request.spoil else "timed" if request.passes else "edited")
        for edit in request.edits:
            for inputs in self.sets:
                inputs[edit.input].copy_(apply_edit(inputs[edit.input], edit))
        samples = list[float]()
        for _ in range(request.passes):
            start = time.perf_counter()
            for index, inputs in enumerate(self.sets):
                self.outputs[index] = self.call(inputs)
            samples.append((time.perf_counter() - start) * 1e6 / len(self.sets))
        return self.claim(samples)

    def keep(self, wanted: protocol.Keep, nbytes: int) -> Outcome:
        self.log.append("kept")
        whole = self.outputs[wanted.index]
        assert wanted.sliced == ("out",)
        out = whole[wanted.start : wanted.stop].clone()
        assert nbytes >= out.numel() * out.element_size()
        return Outcome(report(whole), {"out": out}, {})

    def call(self, inputs: dict[str, Tensor]) -> Tensor:
        time.sleep(self.sleep)
        return self.problem.reference(self.request.inputs.shape, inputs)["out"]

    def cpu_seconds(self) -> float:
        return 0.0

    def claim(self, samples: list[float]) -> protocol.Reply:
        return self.reply(samples_us=tuple(samples))

    def reply(self, **fields: Any) -> protocol.Reply:
        return protocol.Reply(**fields)


def case(**dims: int) -> Case:
    return Case(operator="rms_norm", id="rms_norm-000", input=SMALL | dims, phase="decode", weight=1)


def measure(
    *sessions: Honest, of: Case | None = None, rules: Protocol = RULES, floor_us: float = 0
) -> list[Timing]:
    return measure_case(cast(list[Session], list(sessions)), of or case(), rules, floor_us=floor_us)


def accused(session: Honest, kind: FaultKind = FaultKind.EXITED, **options: Any) -> str:
    """What a dishonest session is told; it must be named."""
    with pytest.raises(CandidateFault) as caught:
        measure(session, **options)
    assert caught.value.candidate == session.candidate.id
    assert caught.value.kind is kind
    return caught.value.message
