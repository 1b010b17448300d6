"""Timing one case inside the worker: rotating inputs, CUDA-graph replay, a flushed cache.

The samples are claims. `atrex.measure` holds them against the judge's own clock.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Literal

import torch
from torch import Tensor
from torch.cuda import Event, synchronize  # bound before any candidate can replace them

from atrex import protocol
from atrex.inputs import apply_edit_in_place, build_inputs
from atrex.problem import Problem

_WARM_UP = 3
_HOST_SAMPLES = 20
_PATIENCE_NS = 200e6  # calls that take seconds are not called again and again before they are timed
_clock = time.perf_counter_ns


class PreparedCase:
    """One case with several sets of inputs, warmed up and, on CUDA, captured as one graph.

    A pass calls the candidate once on each set. The outputs of a pass stay alive together, so that
    each call writes memory of its own, as the roofline's bytes assume.
    """

    def __init__(self, problem: Problem, request: protocol.Prepare, device: torch.device) -> None:
        self.device = device
        self.flush_bytes = request.flush_bytes
        self.sets: list[dict[str, Tensor]] = []
        for seed in request.seeds:
            spec = request.inputs.model_copy(update={"seed": seed})
            self.sets.append(build_inputs(problem, spec, device)[0])
        # State that calls update in place is put back before the outputs of a call are looked at.
        updated = problem.contract.updates
        self.states = [{name: inputs[name].clone() for name in updated} for inputs in self.sets]
        self.outputs: list[Any] = [None] * len(self.sets)
        self.method: Literal["graph", "events", "wall"] = "wall"
        self.note = ""

    def warm_up(self, model: Any) -> None:
        """First calls of the candidate, the host's time for one, and on CUDA the capture."""
        self.model = model
        with torch.no_grad():
            for number in range(_WARM_UP):
                start = _clock()
                self.outputs[0] = self.model(**self.sets[0])
                self._synchronize()
                if number and _clock() - start > _PATIENCE_NS:
                    break  # the first call may have compiled, the second has not
            self.host_us = self._host_time()
            if self.device.type == "cuda":
                self.flush = torch.empty(self.flush_bytes, dtype=torch.uint8, device=self.device)
                self.graph = self._capture()

    def describe(self) -> protocol.Reply:
        """How this case will be timed, and what a call costs the host."""
        notes = (self.note,) if self.note else ()
        return protocol.Reply(method=self.method, host_us=self.host_us, notes=notes)

    def round(self, request: protocol.Round) -> protocol.Reply:
        """Time some passes; one sample (µs per call) a pass."""
        if request.restore:
            for inputs, states in zip(self.sets, self.states, strict=True):
                for name, state in states.items():
                    inputs[name].copy_(state)
        for edit in request.edits:
            for inputs in self.sets:
                apply_edit_in_place(inputs[edit.input], edit)
        if request.spoil:
            self._spoil_outputs()
        with torch.no_grad():
            samples = self._cuda_passes(request) if self.device.type == "cuda" else self._cpu_passes(request)
        return protocol.Reply(samples_us=tuple(samples), method=self.method, host_us=self.host_us)

    def output(self, index: int) -> Any:
        """What the last pass left for one set."""
        return self.outputs[index]

    def _host_time(self) -> float:
        """Median host time to issue one call, µs; on a CPU that is the call itself."""
        samples = list[int]()
        began = _clock()
        while len(samples) < _HOST_SAMPLES and (not samples or _clock() - began < _PATIENCE_NS):
            start = _clock()
            self.outputs[0] = self.model(**self.sets[0])
            samples.append(_clock() - start)
            self._synchronize()
        return statistics.median(samples) / 1e3

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            synchronize()

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for index, inputs in enumerate(self.sets):
                    self.outputs[index] = self.model(**inputs)
        except RuntimeError as error:
            synchronize()
            self.method = "events"
            self.note = f"not capturable: {str(error).splitlines()[0]}"
            return None
        self.method = "graph"
        graph.replay()
        synchronize()
        return graph

    def _spoil_outputs(self) -> None:
        for output in self.outputs:
            for tensor in _tensors(output):
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))

    def _cuda_passes(self, request: protocol.Round) -> list[float]:
        starts = [Event(enable_timing=True) for _ in range(request.passes)]
        ends = [Event(enable_timing=True) for _ in range(request.passes)]
        synchronize()
        for start, end in zip(starts, ends, strict=True):
            if request.flush:
                self.flush.fill_(1)
            start.record()
            if self.graph is not None:
                self.graph.replay()
            else:
                for index, inputs in enumerate(self.sets):
                    self.outputs[index] = self.model(**inputs)
            end.record()
        synchronize()
        pairs = zip(starts, ends, strict=True)
        return [start.elapsed_time(end) * 1e3 / len(self.sets) for start, end in pairs]

    def _cpu_passes(self, request: protocol.Round) -> list[float]:
        samples = list[float]()
        for _ in range(request.passes):
            start = _clock()
            for index, inputs in enumerate(self.sets):
                self.outputs[index] = self.model(**inputs)
            samples.append((_clock() - start) / 1e3 / len(self.sets))
        return samples


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return [item for item in items if isinstance(item, Tensor)]
