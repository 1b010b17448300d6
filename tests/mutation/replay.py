"""One mutant again: what was changed, and how wrong it is on a witness."""

from __future__ import annotations

import difflib

from atrex.inputs import as_contiguous, build_inputs
from atrex.judge import CandidateFault, Engine
from atrex.problem import load_problem
from atrex.protocol import InputSpec
from tests.mutation.legal import Trial
from tests.mutation.mutants import Mutant, honest_kernels, make_mutants
from tests.mutation.witness import difference_of, truth_of


def find(name: str) -> Mutant:
    """The mutant of an id. Raises KeyError: ids change with the text of their kernel."""
    for kernel in honest_kernels([name.split("/")[0]]):
        if name.startswith(f"{kernel.name}:"):
            for mutant in make_mutants(kernel):
                if mutant.id == name:
                    return mutant
    raise KeyError(name)


def patch(mutant: Mutant) -> str:
    """The change as a unified diff."""
    before, after = (text.splitlines(keepends=True) for text in (mutant.kernel.source, mutant.source))
    return "".join(difflib.unified_diff(before, after, str(mutant.kernel.path), "mutant", n=1))


def show(mutant: Mutant, spec: InputSpec, engine: Engine) -> str:
    """What the honest kernel and the mutant make of one input, in a sandboxed worker each."""
    problem = load_problem(mutant.kernel.operator)
    plain = spec.model_copy(update={"layouts": {}, "guard": None})
    trial = Trial(spec)
    truth = truth_of(problem, trial, as_contiguous(build_inputs(problem, plain, engine.torch_device)[0]))
    said = [f"input: {trial.label}"]
    for name, candidate in (("honest", mutant.kernel.candidate), ("mutant", mutant.candidate)):
        with engine.session(candidate) as session:
            try:
                found = difference_of(problem, truth, session.run(trial.call)[0])
            except CandidateFault as fault:
                said.append(f"{name}: {fault.kind.value}: {fault.message}")
                continue
        said.append(
            f"{name}: {found.what if found else 'within the bound, or equal where that is asked for'}"
        )
    return "\n".join(said)
