"""The worker: the only code that imports a candidate, and therefore the process nobody trusts.

It answers requests of `atrex.protocol` until the judge closes the channel. Whatever it says about
itself is a claim; the judge checks results against its own, and times against its own clock.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.cuda import synchronize  # bound before any candidate can replace it

from atrex import gpu_memory, inside, protocol
from atrex.arena import PLAIN, ArenaWriter
from atrex.channel import Channel, ChannelClosed
from atrex.faults import CandidateError, candidate_code
from atrex.foreign import entry
from atrex.gradient import offered, upstream
from atrex.inputs import Guarded, build_inputs
from atrex.overlap import overlaps
from atrex.pages import between_closed_pages
from atrex.perturb import Disturbance, FreshAllocations, keep_freed_memory, poison_free_memory
from atrex.problem import Problem, load_problem
from atrex.records import FaultKind
from atrex.timing import PreparedCase
from atrex.tracing import OperationTrace, trace
from atrex.withhold import withheld

_clock = time.perf_counter
_REQUEST: TypeAdapter[Any] = TypeAdapter(protocol.Request)


def idle(channel: Channel) -> None:
    """An entry that answers everything with an empty reply: what `atrex doctor` starts."""
    while True:
        try:
            channel.receive()
        except ChannelClosed:
            return
        channel.send({})


def canary(channel: Channel) -> None:
    """An entry that adds eight ones on the GPU: whether CUDA works in this sandbox, under this tool."""
    channel.receive()
    channel.send({"sum": float(torch.ones(8, device="cuda").sum())})


def main(channel: Channel) -> None:
    """Serve one judge; returns when the channel is closed."""
    worker = Worker()
    while True:
        try:
            message, fds = channel.receive()
        except ChannelClosed:
            return
        reply = worker.answer(message, fds)
        channel.send(reply.model_dump(mode="json"))


class Worker:
    """State of one worker: the loaded candidate, its models, and the last call's tensors."""

    def __init__(self) -> None:
        self.problem: Problem
        self.load_request: protocol.Load
        self.module: ModuleType
        self.device: torch.device
        self.models: dict[str, Any] = {}
        self.inputs: dict[str, Tensor] = {}
        self.structure = ""
        self.outputs: list[tuple[str, Any]] = []
        self.prepared: PreparedCase | None = None

    def answer(self, message: Mapping[str, Any], fds: Sequence[int]) -> protocol.Reply:
        """One reply to one request; a fault of the candidate is an answer, not an exception."""
        request = _REQUEST.validate_python(message)
        arena = ArenaWriter(fds)
        try:
            return self._dispatch(request, arena)
        except CandidateError as error:
            return protocol.Reply(fault=error.fault)
        except Exception as error:  # noqa: BLE001 - not the candidate's fault, and the judge must know
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            return protocol.Reply(harness_error=f"{type(error).__name__}: {error} ({where})")
        finally:
            arena.close()

    def _dispatch(self, request: Any, arena: ArenaWriter) -> protocol.Reply:
        if isinstance(request, protocol.Load):
            return self.load(request)
        if isinstance(request, protocol.Run):
            return protocol.Reply(calls=self.calls(request.calls, arena))
        if isinstance(request, protocol.Fetch):
            return self.fetch(request, arena)
        if isinstance(request, protocol.Trace | protocol.Profile):
            inputs, _ = build_inputs(self.problem, request.inputs, self.device)
            model = self.model(request.inputs.shape.init)
            with candidate_code():
                if isinstance(request, protocol.Profile):
                    seen = inside.seen(lambda: model(**inputs), self.module, marked=request.marked)
                    return protocol.Reply(profile=seen)
                launches = trace(
                    lambda: model(**inputs),
                    self.module,
                    self.device,
                    metadata=self._whole_numbers_are_metadata(),
                )
            return protocol.Reply(launches=launches)
        if isinstance(request, protocol.Prepare):
            self.prepared = None
            model = self.model(request.inputs.shape.init)
            self.prepared = PreparedCase(self.problem, request, self.device)
            with candidate_code():
                self.prepared.warm_up(model)
            return self.prepared.describe()
        if isinstance(request, protocol.Trim):
            return self.trim()
        if self.prepared is None:
            raise CandidateError(FaultKind.EXITED, "timing was asked for before a case was prepared")
        if isinstance(request, protocol.Round):
            with candidate_code():
                return self.prepared.round(request)
        return self.left(request, self.prepared.output(request.index), arena)

    def _whole_numbers_are_metadata(self) -> bool:
        """Whether no output of the operator is of integers."""
        return not any("int" in str(output.dtype) for output in self.problem.spec.outputs.values())

    def load(self, request: protocol.Load) -> protocol.Reply:
        """Import the candidate from a file in the scratch directory, and find its class Model."""
        self.load_request = request
        self.problem = entry.received(request.foreign) or load_problem(request.operator)
        self.device = torch.device(request.device)
        torch.set_num_threads(request.threads)
        keep_freed_memory()
        if request.device == "cuda":
            torch.cuda.set_per_process_memory_fraction(gpu_memory.SHARE)
        elif request.dsl in ("triton", "gluon"):
            from atrex.dsl import interpreter

            interpreter.install()
        with entry.surroundings(self.problem, self.device):
            self.module = import_source(request.source, Path(os.environ.get("TMPDIR", ".")))
        wanted = entry.adapt(self.module, self.problem, self.device) or "class Model(torch.nn.Module)"
        model = getattr(self.module, "Model", None)
        if not (isinstance(model, type) and issubclass(model, torch.nn.Module)):
            raise CandidateError(FaultKind.IMPORT, f"the file defines no {wanted}")
        return protocol.Reply()

    def model(self, init: Mapping[str, Any], *, fresh: bool = False) -> Any:
        """The `Model` for these constructor arguments; kept between calls, as a server keeps it."""
        key = json.dumps(init, sort_keys=True)
        if fresh or key not in self.models:
            with candidate_code():
                arguments = json.loads(key)  # lists, as in a workload, where a shape holds tuples
                self.models[key] = self.module.Model(**arguments).to(self.device).eval()
        return self.models[key]

    def calls(self, calls: Sequence[protocol.Call], arena: ArenaWriter) -> tuple[protocol.CallReport, ...]:
        """One after the other; what is held lives on, and is sent as the last of them has left it."""
        reports, held = list[protocol.CallReport](), dict[int, list[tuple[str, Any]]]()
        for i, call in enumerate(calls):
            reports.append(self.call(call, arena))
            if call.hold:
                held[i] = self.outputs
        for i, outputs in held.items():
            sent = tuple(self._send(name, value, arena, deliver=True) for name, value in outputs)
            reports[i] = reports[i].model_copy(update={"held": sent})
        return tuple(reports)

    def call(self, call: protocol.Call, arena: ArenaWriter) -> protocol.CallReport:
        """Build inputs, call the candidate once under the wanted disturbance, report what came back."""
        inputs, guards = self._inputs(call)
        model = self.model(call.inputs.shape.init, fresh=call.fresh_model)
        self.outputs = []
        if call.gradients is not None:
            self._differentiate(call, call.gradients, model, inputs)
            return self._report({}, arena, deliver=True)
        with ExitStack() as stack:
            fresh = self._conditions(call, stack)
            violations = self._address_check(call, stack)
            stream = self._enter_stream(call, stack)
            operations = stack.enter_context(OperationTrace()) if call.account else None
            started = _clock()
            with candidate_code(), torch.no_grad():
                raw = model(**inputs)
                if stream is not None:
                    stream.synchronize()
                else:
                    self._synchronize()
            call_us = (_clock() - started) * 1e6
            self._keep(raw)
            report = self._report(inputs, arena, deliver=call.deliver)
        self._synchronize()
        broken = sorted({g.name for g in guards + (fresh.guards if fresh else []) if not g.intact()})
        after = inputs.items() if call.deliver_inputs else ()
        return report.model_copy(
            update={
                "call_us": call_us,
                "operations_us": operations.seconds * 1e6 if operations else 0.0,
                "broken_guards": tuple(broken),
                "violations": tuple(str(v) for v in violations)[:8],
                "inputs": tuple(self._send(name, tensor, arena, deliver=True) for name, tensor in after),
            }
        )

    def _differentiate(
        self, call: protocol.Call, wanted: protocol.GradientRequest, model: Any, inputs: dict[str, Tensor]
    ) -> None:
        """Keep gradients of the outputs instead of these; the structure "none" says that they have none."""
        leaves = {name: inputs[name].detach().requires_grad_() for name in wanted.inputs}
        above = upstream(self.problem, call.inputs.shape, wanted.seed, self.device)
        with candidate_code():
            self._keep(model(**{**inputs, **leaves}))
            found = offered(dict(self.outputs), above, wanted.scale, leaves)
            self._synchronize()
        self.outputs, self.structure = found or [], "none" if found is None else "dict"

    def fetch(self, request: protocol.Fetch, arena: ArenaWriter) -> protocol.Reply:
        """Some rows of the last call's outputs."""
        rows = ((name, value[request.start : request.stop]) for name, value in self.outputs)
        parts = tuple(self._send(name, value, arena, deliver=True) for name, value in rows)
        return protocol.Reply(calls=(protocol.CallReport(structure=self.structure, outputs=parts),))

    def left(self, request: protocol.Keep, output: Any, arena: ArenaWriter) -> protocol.Reply:
        """What a timed round left for one set, and rows of it."""
        self._keep(output)
        whole = self._report({}, arena, deliver=False)
        for i, (name, value) in enumerate(self.outputs):
            if name in request.sliced and type(value) is Tensor:
                self.outputs[i] = (name, value[request.start : request.stop])
        return protocol.Reply(calls=(whole, self._report({}, arena, deliver=True)))

    def trim(self) -> protocol.Reply:
        """Leave the device to other workers; the models stay, with what they compiled."""
        self.inputs, self.outputs, self.prepared = {}, [], None
        gpu_memory.give_back()
        return protocol.Reply()

    def _inputs(self, call: protocol.Call) -> tuple[dict[str, Tensor], list[Guarded]]:
        inputs, guards = build_inputs(self.problem, call.inputs, self.device)
        if call.same_buffers:
            for name, tensor in inputs.items():
                self.inputs[name].copy_(tensor)
            if call.new_tensors:
                return {name: tensor.data for name, tensor in self.inputs.items()}, []
            return self.inputs, []
        if call.closed_pages:
            inputs = {name: between_closed_pages(tensor) for name, tensor in inputs.items()}
        self.inputs = inputs
        return inputs, guards

    def _conditions(self, call: protocol.Call, stack: ExitStack) -> FreshAllocations | None:
        """Poison, guard bands on outputs, and disturbance around one call."""
        problem, shape = self.problem, call.inputs.shape
        shapes = {
            name: (problem.tensor_shape(tensor, shape), problem.tensor_dtype(tensor, shape))
            for name, tensor in problem.spec.outputs.items()
        }
        if call.withhold:
            stack.enter_context(withheld(self.device))
        if call.poison:
            poison_free_memory(shapes.values(), call.poison, self.device)
        if call.disturb is not None:
            stack.enter_context(Disturbance(call.disturb, shapes.values(), self.device))
        if call.withhold:  # under no dispatch mode: by one a candidate could tell when its kernels are needed
            return None
        if call.poison or call.guard_outputs:
            mode = FreshAllocations(call.poison or "nan", guard=call.guard_outputs)
            stack.enter_context(mode)
            return mode
        return None

    def _address_check(self, call: protocol.Call, stack: ExitStack) -> list[Any]:
        if not call.check_addresses:
            return []
        from atrex.dsl import interpreter

        return stack.enter_context(interpreter.address_check())

    def _enter_stream(self, call: protocol.Call, stack: ExitStack) -> torch.cuda.Stream | None:
        if not (call.side_stream and self.device.type == "cuda"):
            return None
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        stack.enter_context(torch.cuda.stream(stream))
        return stream

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            synchronize()

    def _keep(self, raw: Any) -> None:
        """Remember what came back, by the declared names where it has the declared structure."""
        names = tuple(self.problem.spec.outputs)
        self.structure = {Tensor: "tensor", dict: "dict", tuple: "tuple"}.get(type(raw), type(raw).__name__)
        if type(raw) is dict:
            self.outputs = [(str(name), value) for name, value in raw.items()]
        elif type(raw) is tuple:
            self.outputs = [(names[i] if i < len(names) else str(i), v) for i, v in enumerate(raw)]
        else:
            self.outputs = [(names[0], raw)]

    def _report(
        self, inputs: Mapping[str, Tensor], arena: ArenaWriter, *, deliver: bool
    ) -> protocol.CallReport:
        reports = list[protocol.TensorReport]()
        for name, value in self.outputs:
            others = {k: v for k, v in self.outputs if k != name} | dict(inputs)
            reports.append(self._send(name, value, arena, deliver=deliver, others=others))
        return protocol.CallReport(structure=self.structure, outputs=tuple(reports))

    def _send(
        self,
        name: str,
        value: Any,
        arena: ArenaWriter,
        *,
        deliver: bool,
        others: Mapping[str, Any] | None = None,
    ) -> protocol.TensorReport:
        """Describe one tensor and, if it is a plain one, copy its bytes into the arena."""
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if type(value) is not Tensor:
            return protocol.TensorReport(name=name, python_type=kind, dtype="", shape=(), device="", nbytes=0)
        return protocol.TensorReport(
            name=name,
            python_type=kind,
            dtype=str(value.dtype).removeprefix("torch."),
            shape=tuple(value.shape),
            device=value.device.type,
            nbytes=value.numel() * value.element_size(),
            offset=arena.write(value) if deliver and self._is_plain(value) else -1,
            aliases=tuple(k for k, v in (others or {}).items() if overlaps(value, v)),
            strided=value.layout == torch.strided,
            requires_grad=value.requires_grad,
        )

    def _is_plain(self, value: Tensor) -> bool:
        """Whether its elements lie in this device's memory, one after another."""
        here = value.device.type == self.device.type and value.layout == torch.strided
        return here and value.dtype in PLAIN and not (value.is_neg() or value.is_conj())


def import_source(source: str, directory: Path) -> ModuleType:
    """Write the candidate to a file (Triton reads its source back) and import it."""
    path = directory / "candidate.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("candidate", path)
    if spec is None or spec.loader is None:
        raise CandidateError(FaultKind.IMPORT, f"{path} is not importable")
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    with candidate_code(importing=True):
        spec.loader.exec_module(module)
    return module
