"""The form of what a candidate returns: what can be said of it without a look at its values."""

from __future__ import annotations

from atrex.problem import Problem
from atrex.protocol import CallReport, InputSpec


def form_problem(problem: Problem, spec: InputSpec, report: CallReport) -> str:
    """What is wrong with the structure, types, shapes and memory of what came back; empty if nothing is."""
    if report.structure != problem.spec.returns:
        return f"returned a {report.structure}, declared is a {problem.spec.returns}"
    names = tuple(output.name for output in report.outputs)
    if names != tuple(problem.spec.outputs):
        return f"returned outputs {names}, declared are {tuple(problem.spec.outputs)}"
    for output in report.outputs:
        declared = problem.spec.outputs[output.name]
        shape = problem.tensor_shape(declared, spec.shape)
        dtype = str(problem.tensor_dtype(declared, spec.shape)).removeprefix("torch.")
        if output.python_type != "torch.Tensor":
            return f"{output.name} is a {output.python_type}, not a plain torch.Tensor"
        fits = output.shape == shape
        if declared.bounded and len(output.shape) == len(shape):
            fits = output.shape[0] <= shape[0] and output.shape[1:] == shape[1:]
        if not fits or output.dtype != dtype:
            return f"{output.name} is {output.dtype}{list(output.shape)}, declared is {dtype}{list(shape)}"
        updated = {name for name, out in problem.contract.updates.items() if out == output.name}
        if shared := set(output.aliases) - updated:
            return f"{output.name} shares memory with {', '.join(sorted(shared))}"
    return ""
