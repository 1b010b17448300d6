"""The judge's side of a foreign reference: it is asked for results, and its bytes are read as data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from torch import Tensor

from atrex.arena import Arena, ImpossibleReport, padded
from atrex.errors import UsageError
from atrex.foreign.messages import Answer, Describe, Evaluate, Mode, Source
from atrex.gates.context import Undecided
from atrex.inputs import raw_bytes
from atrex.judge import Engine
from atrex.process import WorkerDied, WorkerProcess
from atrex.protocol import TensorReport
from atrex.records import Status

ENTRY = "atrex.foreign.referee:main"
_CHUNK = 1 << 30


class UnusableReference(UsageError):
    """No contract can be made from this reference; the message says why."""


class Referee:
    """A sandboxed process with one reference, started when it is first needed and again after its death."""

    def __init__(self, engine: Engine, source: Source, name: str) -> None:
        self.engine = engine
        self.source = source
        self.name = name
        self._process: WorkerProcess | None = None
        self._description: Answer | None = None

    def describe(self) -> Answer:
        """What the file defines, and its example calls. Raises UnusableReference."""
        if self._process is None:
            self._process = self.engine.process(ENTRY, f"reference-{self.name}")
            request = Describe(source=self.source, device=self.engine.device, threads=self.engine.threads)
            try:
                answer = self._ask(request, self.engine.timeouts.load)
            except WorkerDied as died:
                raise UnusableReference(
                    f"the reference does not run: {died.kind.value}: {died.detail}"
                ) from None
            if answer.failure or answer.entry is None:
                self.close()
                raise UnusableReference(f"the reference does not run: {answer.failure or 'it says nothing'}")
            self._description = self._description or answer
        assert self._description is not None
        return self._description

    def evaluate(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Mapping[str, Tensor],
        modes: Sequence[Mode],
        nbytes: int,
    ) -> dict[Mode, dict[str, Tensor]]:
        """The outputs of one call in each mode; `nbytes` is what they may take in fp64.

        Raises Undecided where the reference does not return.
        """
        self.describe()
        given, reports = _written(inputs)
        taken = Arena(nbytes * len(modes))
        try:
            request = Evaluate(args=tuple(args), kwargs=dict(kwargs), inputs=reports, modes=tuple(modes))
            timeout = self.engine.timeouts.call * len(modes)
            answer = self._ask(request, timeout, (taken.fd, given.fd))
            if answer.failure:
                raise Undecided(Status.INCONCLUSIVE, f"the reference fails on these inputs: {answer.failure}")
            return {mode: self._results(answer.results.get(mode, ()), taken) for mode in modes}
        except WorkerDied as died:
            self.close()
            reason = f"the reference does not return: {died.kind.value}: {died.detail}"
            raise Undecided(Status.INCONCLUSIVE, reason) from None
        finally:
            given.close()
            taken.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _ask(self, request: BaseModel, timeout: float, fds: Sequence[int] = ()) -> Answer:
        assert self._process is not None
        try:
            message = self._process.request(request.model_dump(mode="json"), timeout=timeout, fds=fds)
            return Answer.model_validate(message)
        except WorkerDied:
            self.close()
            raise
        except ValidationError as error:
            self.close()
            what = error.errors()[0]["msg"]
            raise UnusableReference(f"the reference's process broke the protocol: {what}") from None

    def _results(self, reports: Sequence[TensorReport], taken: Arena) -> dict[str, Tensor]:
        results: dict[str, Tensor] = {}
        for report in reports:
            if report.offset < 0:
                reason = (
                    f"the reference's {report.name} is larger than the contract says: {list(report.shape)}"
                )
                raise Undecided(Status.INCONCLUSIVE, reason)
            try:
                results[report.name] = taken.read(report, self.engine.torch_device)
            except ImpossibleReport as error:
                raise Undecided(Status.INCONCLUSIVE, f"the reference's process lies: {error}") from None
        return results


def _written(inputs: Mapping[str, Tensor]) -> tuple[Arena, tuple[TensorReport, ...]]:
    """Tensors laid into memory of their own, one after the other."""
    arena = Arena(sum(padded(t.numel() * t.element_size()) for t in inputs.values()))
    reports, offset = list[TensorReport](), 0
    for name, tensor in inputs.items():
        size = tensor.numel() * tensor.element_size()
        reports.append(
            TensorReport(
                name=name,
                python_type="torch.Tensor",
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(tensor.shape),
                device="cpu",
                nbytes=size,
                offset=offset,
            )
        )
        if size:
            raw = raw_bytes(tensor.detach().cpu()).numpy().tobytes()
            for start in range(0, size, _CHUNK):
                os.pwrite(arena.fd, raw[start : start + _CHUNK], offset + start)
        offset += padded(size)
    return arena, tuple(reports)
