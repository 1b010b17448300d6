"""In a candidate's worker: a foreign kernel under our interface, a Model that takes tensors by name."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from atrex.foreign.cuda_on_cpu import cuda_on_cpu
from atrex.foreign.drawing import ForeignInputs
from atrex.foreign.literal import decode
from atrex.foreign.spec import CALL, Entry, ForeignProblem
from atrex.problem import Problem


def received(payload: dict[str, Any] | None) -> Problem | None:
    """The foreign problem that a judge sent, if it sent one."""
    if payload is None:
        return None
    foreign = ForeignProblem.model_validate(payload)
    return Problem(foreign.problem, ForeignInputs(foreign))


def surroundings(problem: Problem, device: torch.device) -> AbstractContextManager[None]:
    """Where a kernel's file is imported: a foreign one may ask for CUDA without need."""
    return cuda_on_cpu(isinstance(problem.module, ForeignInputs) and device.type == "cpu")


def adapt(module: ModuleType, problem: Problem, device: torch.device) -> str:
    """Put a class Model for the foreign callable into its module; what the file should have defined.

    Nothing is done, and nothing said, for our own operators: theirs is Model already.
    """
    if not isinstance(problem.module, ForeignInputs):
        return ""
    foreign = problem.module.problem
    vars(module)["Model"] = _model(module, foreign, device)
    return f"{'class' if foreign.entry.kind == 'model' else 'function'} {foreign.entry.name}"


def _model(module: ModuleType, foreign: ForeignProblem, device: torch.device) -> type[torch.nn.Module] | None:
    entry = foreign.entry
    target = vars(module).get(entry.name)
    if entry.kind == "model":
        if not (isinstance(target, type) and issubclass(target, torch.nn.Module)):
            return None
    elif not callable(target):
        return None
    names = tuple(foreign.problem.outputs)

    class Model(torch.nn.Module):
        """The foreign callable, for one of the reference's calls."""

        def __init__(self, **init: Any) -> None:
            super().__init__()
            with cuda_on_cpu(device.type == "cpu"):
                self.inner = _construct(target, entry, device)
            self.call = foreign.calls[int(init.get(CALL, "0"))]

        def eval(self) -> Any:
            """Our worker asks for it; the reference runs as it was constructed, and so does this."""
            return self

        def forward(self, **tensors: Tensor) -> Any:
            """Call it as the reference's example was called."""
            with cuda_on_cpu(device.type == "cpu"):
                if entry.kind == "arrays":
                    return _arrays(self.inner, tensors, device)
                args = [decode(node, tensors, device) for node in self.call.args]
                kwargs = {name: decode(node, tensors, device) for name, node in self.call.kwargs.items()}
                return _plain(self.inner(*args, **kwargs), names)

    return Model


def _construct(target: Any, entry: Entry, device: torch.device) -> Any:
    if entry.kind != "model":
        return target
    values = [decode(node, {}, device) for node in entry.init]
    keywords = {name: decode(node, {}, device) for name, node in entry.keywords.items()}
    torch.manual_seed(entry.seed)
    return target(*values, **keywords)


def _plain(raw: Any, names: tuple[str, ...]) -> Any:
    """A list or a named tuple is a tuple; a tensor that is a parameter is its data."""
    if isinstance(raw, list | tuple):
        return tuple(raw)
    if isinstance(raw, dict) and set(raw) == set(names):
        return {name: raw[name] for name in names}
    return raw


def _arrays(function: Any, tensors: dict[str, Tensor], device: torch.device) -> Tensor:
    """A dict of NumPy arrays in, one array out."""
    result = function({name: tensor.cpu().numpy() for name, tensor in tensors.items()})
    return torch.as_tensor(result).to(device)
