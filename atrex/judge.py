"""The judge's side of a worker: sessions with one candidate, and an engine that starts them.

The judge never imports, unpickles or otherwise runs anything of a candidate. It reads raw bytes out
of memory that it made and sealed itself, sized by what the problem declares.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Self

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from atrex import gpu_memory, protocol
from atrex.arena import Arena, ImpossibleReport, padded
from atrex.candidate import Candidate
from atrex.contract import InputTensor, OutputTensor
from atrex.environment import compiler_caches, memory_limit, server_environment
from atrex.errors import EnvironmentProblem
from atrex.problem import Problem, load_problem
from atrex.process import ForkServer, WorkerDied, WorkerProcess, make_scratch
from atrex.records import Device, FaultKind
from atrex.sandbox import Limits, SandboxPolicy, scrubbed_environment
from atrex.sanitizer import ComputeSanitizer, sanitizer_environment

ENTRY = "atrex.worker:main"
# `bench`, because a worker cannot search a checkout for it: it may not list what lies beside the packages.
_PRELOAD = ("atrex.worker", "atrex.dsl.cpp", "bench")
_FETCH_BYTES = 64 << 20  # a window of rows
_FATAL = {FaultKind.ILLEGAL_ACCESS, FaultKind.OUT_OF_MEMORY, FaultKind.EXITED, FaultKind.TIMEOUT}


class CandidateFault(Exception):
    """The candidate did not return: its kind, what it said, and whose fault it is."""

    def __init__(self, kind: FaultKind, message: str, candidate: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.candidate = candidate


class HarnessError(Exception):
    """The worker failed outside candidate code."""


class Stopped(Exception):
    """Another thread has ended the session."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call returned, copied out of the worker's reach onto the judge's device."""

    report: protocol.CallReport
    outputs: dict[str, Tensor]
    inputs: dict[str, Tensor]
    held: dict[str, Tensor] = dataclasses.field(default_factory=dict)  # as they were some calls later


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds a candidate may take before all that it started is killed."""

    load: float = 180.0
    call: float = 60.0
    interpreted: float = 300.0  # a call in Triton's interpreter
    round: float = 120.0


class Engine:
    """Starts sandboxed workers on one device; a context manager that leaves nothing behind.

    `sanitize`: under AddressSanitizer (C++ instrumented) or compute-sanitizer. `tool` (CUDA alone): a command
    line that the fork server is put behind, such as ncu's. `memory_bytes`: host memory a worker may have,
    by default most of what is free. Raises EnvironmentProblem when the device is not there.
    """

    def __init__(
        self,
        device: Device,
        *,
        threads: int | None = None,
        sanitize: bool = False,
        tool: tuple[str, ...] = (),
        timeouts: Timeouts | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise EnvironmentProblem("--device cuda: no CUDA device is visible to PyTorch on this machine")
        self.device: Device = device
        self.threads = threads or torch.get_num_threads()
        self.sanitize = sanitize
        self.tool = tool
        self.timeouts = timeouts or Timeouts()
        self.memory_bytes = memory_bytes or memory_limit(device)
        self.scratch = make_scratch()
        self._server: ForkServer | None = None
        self._starting = threading.Lock()
        self._cuda_works = False
        self._log = ComputeSanitizer(self.scratch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def torch_device(self) -> torch.device:
        """Where the judge computes: the same kind of device as the worker, for the same inputs."""
        return torch.device(self.device)

    def session(self, candidate: Candidate, problem: Problem | None = None, lane: str = "") -> Session:
        """A session with a candidate (of `problem`, if not its operator's); its worker starts when needed.

        Sessions of one lane share a scratch directory, and so what the candidate compiled.
        """
        return Session(self, candidate, problem or load_problem(candidate.operator), lane)

    def worker(self, candidate: Candidate, lane: str) -> WorkerProcess:
        """A fresh sandboxed process in the candidate's own scratch directory of this lane."""
        return self.process(ENTRY, f"{candidate.id[:16]}{lane}")

    def check_cuda(self) -> None:
        """Try, once, whether a worker without any candidate can use the GPU. Raises EnvironmentProblem."""
        if self._cuda_works:
            return
        with self.process("atrex.worker:canary", "canary") as worker:
            try:
                worker.request({}, timeout=self.timeouts.load)
            except WorkerDied as died:
                said = worker.log_tail().strip().splitlines()[-1:] or [died.detail]
                raise EnvironmentProblem(f"CUDA does not work in a worker: {said[0]}") from None
        self._cuda_works = True

    def process(self, entry: str, name: str) -> WorkerProcess:
        """A fresh sandboxed process for untrusted code, in a scratch directory of this name."""
        scratch = self.scratch / name
        scratch.mkdir(exist_ok=True)
        # Precompiled headers of a compiler take a hundred megabytes; all of scratch is bounded besides.
        limits = Limits(memory_bytes=self.memory_bytes, file_bytes=1 << 30)
        cuda = self.device == "cuda"
        watched = cuda and (self.sanitize or bool(self.tool))
        policy = SandboxPolicy(scratch, limits, cuda=cuda, instrumented=watched)
        return self._fork_server().spawn(entry, policy, environment=compiler_caches(scratch))

    def _fork_server(self) -> ForkServer:
        with self._starting:
            if self._server is None:
                asked = server_environment(self.device, self.threads)
                asked |= sanitizer_environment(self.device) if self.sanitize else {}
                preload = (*_PRELOAD, *(("triton",) if find_spec("triton") else ()))
                environment = scrubbed_environment(self.scratch, asked)
                self._server = ForkServer(preload=preload, environment=environment, wrapper=self._wrapper())
            return self._server

    def _wrapper(self) -> tuple[str, ...]:
        if self.device != "cuda" or not (self.sanitize or self.tool):
            return ()
        if os.geteuid() != 0:
            raise EnvironmentProblem("a tool around a worker takes its walls; only root can give it a user")
        if self.tool:
            return self.tool
        return self._log.command()

    @property
    def sanitizer_name(self) -> str:
        """What checks the accesses of a sanitizing engine."""
        return "compute-sanitizer" if self.device == "cuda" else "AddressSanitizer"

    def crowded(self) -> str:
        """Why a worker cannot have its share of a GPU's memory, if it is others who hold it; else empty."""
        return gpu_memory.crowded() if self.device == "cuda" else ""

    def sanitizer_finding(self) -> str:
        """The first violation that compute-sanitizer logged since this was last asked, or an empty string."""
        return self._log.finding() if self.sanitize and self.device == "cuda" else ""

    def forget(self, candidate: Candidate) -> None:
        """Delete a candidate's scratch directories, with what it compiled."""
        for scratch in self.scratch.glob(f"{candidate.id[:16]}*"):
            shutil.rmtree(scratch, ignore_errors=True)

    def close(self) -> None:
        """End the fork server and every worker, and delete the scratch directory."""
        if self._server is not None:
            self._server.close()
            self._server = None
        shutil.rmtree(self.scratch, ignore_errors=True)


@dataclass(slots=True)
class Session:
    """Requests to one candidate's worker, which is started anew after a fault that ended it.

    One thread at a time; only `stop` may be called from another. Every request raises Stopped after that.
    """

    engine: Engine
    candidate: Candidate
    problem: Problem
    lane: str = ""
    _worker: WorkerProcess | None = None
    _arena: Arena | None = None
    _stopped: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _patience(self) -> float:
        """Seconds for one call: of Triton's interpreter a busy machine makes minutes."""
        interpreted = self.engine.device == "cpu" and self.candidate.dsl in ("triton", "gluon")
        return self.engine.timeouts.interpreted if interpreted else self.engine.timeouts.call

    def load(self) -> None:
        """Start the worker and import the candidate. Raises CandidateFault."""
        if self._worker is not None:
            return
        self._worker = self.engine.worker(self.candidate, self.lane)
        request = protocol.Load(
            operator=self.candidate.operator,
            dsl=self.candidate.dsl,
            source=self.candidate.source,
            device=self.engine.device,
            threads=self.engine.threads,
            foreign=self.problem.foreign,
        )
        try:
            self._exchange(request, self.engine.timeouts.load)
        except CandidateFault as fault:
            fault.candidate = self.candidate.id
            self.close()
            raise

    def run(self, *calls: protocol.Call) -> list[Outcome]:
        """Call the candidate; one outcome a call. Raises CandidateFault."""
        arena = self._memory(sum(self._call_bytes(call) for call in calls))
        reply = self._request(protocol.Run(calls=calls), self._patience * len(calls), arena)
        if len(reply.calls) != len(calls):
            raise self._broke("it answered another number of calls than were asked for")
        return [self._outcome(report, arena) for report in reply.calls]

    def fetch(self, start: int, stop: int) -> dict[str, Tensor]:
        """Rows [start, stop) of the last call's outputs."""
        arena = self._memory(_FETCH_BYTES)
        reply = self._request(protocol.Fetch(start=start, stop=stop), self._patience, arena)
        return self._outcome(reply.calls[0], arena).outputs if reply.calls else {}

    def trace(self, spec: protocol.InputSpec) -> tuple[protocol.LaunchReport, ...]:
        """Operations and kernels of one call."""
        return self._request(protocol.Trace(inputs=spec), self._patience).launches

    def profile(self, spec: protocol.InputSpec, *, marked: bool = False) -> dict[str, Any]:
        """What torch's profiler saw of a warm call; behind ncu (`marked`) nothing, since ncu looks."""
        patience = self.engine.timeouts.load if marked else self._patience  # ncu replays every kernel
        return self._request(protocol.Profile(inputs=spec, marked=marked), patience).profile

    def prepare(self, request: protocol.Prepare) -> protocol.Reply:
        """Set one case up for timing."""
        return self._request(request, self.engine.timeouts.load)

    def round(self, request: protocol.Round) -> protocol.Reply:
        """Change what is asked for, then time some passes over the prepared case."""
        return self._request(request, self.engine.timeouts.round)

    def keep(self, wanted: protocol.Keep, nbytes: int) -> Outcome:
        """What the last round left for one set: a report of all, and the outputs that are wanted."""
        arena = self._memory(nbytes)
        reply = self._request(wanted, self._patience, arena)
        if len(reply.calls) != 2:
            raise self._broke("it kept no output")
        whole, delivered = reply.calls
        return dataclasses.replace(self._outcome(delivered, arena), report=whole)

    def trim(self) -> None:
        """Have the worker give back memory that it only keeps for later."""
        self._request(protocol.Trim(), self._patience)

    def log_tail(self) -> str:
        """The end of what the worker printed."""
        return self._worker.log_tail() if self._worker else ""

    def cpu_seconds(self) -> float:
        """Processor time until now of the worker and all that it started."""
        return self._worker.cpu_seconds() if self._worker else 0.0

    def close(self) -> None:
        """Kill the worker and all that it started."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def stop(self) -> None:
        """End it for good, from another thread; the one that uses it still closes it."""
        self._stopped = True
        if worker := self._worker:
            worker.interrupt()

    def _memory(self, nbytes: int) -> Arena:
        """Shared memory of at least this size, kept from request to request: fresh pages cost time."""
        if self._arena is None or self._arena.nbytes < nbytes:
            if self._arena is not None:
                self._arena.close()
            self._arena = Arena(nbytes)
        return self._arena

    def _request(self, request: BaseModel, timeout: float, arena: Arena | None = None) -> protocol.Reply:
        self.load()
        try:
            return self._exchange(request, timeout, arena)
        except CandidateFault as fault:
            fault.candidate = self.candidate.id
            if fault.kind in _FATAL:
                self.close()
            raise

    def _exchange(self, request: BaseModel, timeout: float, arena: Arena | None = None) -> protocol.Reply:
        assert self._worker is not None
        if self._stopped:
            raise Stopped
        fds = (arena.fd,) if arena else ()
        try:
            message = self._worker.request(request.model_dump(mode="json"), timeout=timeout, fds=fds)
        except WorkerDied as died:
            raise self._fault_of(died) from None
        try:
            reply = protocol.Reply.model_validate(message)
        except ValidationError:
            raise self._broke("its answer is not a reply") from None
        if reply.harness_error is not None:
            raise HarnessError(reply.harness_error)
        if reply.fault is not None:
            raise CandidateFault(reply.fault.kind, reply.fault.message)
        return reply

    def _fault_of(self, died: WorkerDied) -> CandidateFault:
        """The kind of a death; AddressSanitizer ends the process with a report in its log."""
        log = self._worker.log_tail(1 << 16) if self._worker else ""
        if self.engine.sanitize and "ERROR: AddressSanitizer" in log:
            lines = [line for line in log.splitlines() if "ERROR: AddressSanitizer" in line]
            return CandidateFault(FaultKind.ILLEGAL_ACCESS, lines[0].split("ERROR: ")[1].split(" at pc")[0])
        return CandidateFault(died.kind, died.detail)

    def _broke(self, how: str) -> CandidateFault:
        self.close()
        return CandidateFault(FaultKind.EXITED, f"the worker broke the protocol: {how}")

    def _call_bytes(self, call: protocol.Call) -> int:
        """Arena bytes for what the problem declares that this call returns."""
        outputs = sum(self._nbytes(tensor, call) for tensor in self.problem.spec.outputs.values())
        total = outputs * (call.deliver + call.hold)
        if call.deliver_inputs or call.gradients:
            total += sum(self._nbytes(tensor, call) for tensor in self.problem.spec.inputs.values())
        return total

    def _nbytes(self, tensor: InputTensor | OutputTensor, call: protocol.Call) -> int:
        return padded(self.problem.nbytes(tensor, call.inputs.shape))

    def _outcome(self, report: protocol.CallReport, arena: Arena) -> Outcome:
        device = self.engine.torch_device
        try:
            outputs, inputs, held = (
                {t.name: arena.read(t, device) for t in sent if t.offset >= 0}
                for sent in (report.outputs, report.inputs, report.held)
            )
        except ImpossibleReport as error:
            raise self._broke(str(error)) from None
        return Outcome(report, outputs, inputs, held)


def new_seed() -> int:
    """A fresh seed that no candidate can foresee."""
    return secrets.randbelow(1 << 48)
