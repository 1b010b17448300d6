"""`atrex verify --reference` and `atrex audit`: kernels and references that nobody here wrote."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from atrex.commands import judging
from atrex.commands.common import DeviceOption, choose_device, print_json
from atrex.errors import EnvironmentProblem, UsageError
from atrex.foreign.adapters.sources import kernel_of, source_of
from atrex.foreign.spec import from_yaml, to_yaml
from atrex.foreign.verify import Settings, judge, problems, too_large
from atrex.gates import GATE_NAMES
from atrex.gates.context import Level
from atrex.judge import Engine
from atrex.problem import Problem
from atrex.records import Dsl, Judgement
from atrex.report.terminal import render_verdicts


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    reference: Path
    contract: Path | None
    print_contract: bool
    device: DeviceOption
    dsl: Dsl | None
    gates: Sequence[str]
    level: Level
    everything: bool
    seed: int | None
    timeout: float | None
    as_json: bool


def verify_either(
    path: Path,
    operator: str | None,
    reference: Path | None,
    contract: Path | None,
    *,
    print_contract: bool,
    device: DeviceOption,
    dsl: Dsl | None,
    workload: str,
    gates: Sequence[str],
    cases: Sequence[str],
    level: Level,
    everything: bool,
    seed: int | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """`atrex verify`: against one of our operators, or against a reference. Raises UsageError for both."""
    if (operator is None) == (reference is None):
        raise UsageError("give either --op with an operator or --reference with a PyTorch file")
    if operator is not None:
        if contract is not None or print_contract:
            raise UsageError(
                "--contract and --print-contract belong to --reference; see bench/ for operators"
            )
        judging.verify(
            path,
            operator,
            device=device,
            dsl=dsl,
            workload=workload,
            gates=gates,
            cases=cases,
            level=level,
            everything=everything,
            seed=seed,
            timeout=timeout,
            as_json=as_json,
        )
        return
    assert reference is not None
    if cases:
        raise UsageError("--case names cases of a workload; a reference has none")
    options = Options(
        reference, contract, print_contract, device, dsl, gates, level, everything, seed, timeout, as_json
    )
    verify(path, options)


def verify(path: Path, options: Options) -> None:
    """Run the gates on a foreign kernel. Raises RejectedError (exit 1) unless every problem is passed."""
    kernel, source = kernel_of(path), source_of(options.reference)
    if unknown := set(options.gates) - set(GATE_NAMES):
        raise UsageError(f"unknown gate {sorted(unknown)[0]!r}; known: {', '.join(GATE_NAMES)}")
    contract = from_yaml(options.contract) if options.contract else None
    argument = f"--reference {shlex.quote(str(options.reference))}"
    argument += f" --contract {shlex.quote(str(options.contract))}" if options.contract else ""
    timeouts = judging.timeouts_of(options.timeout)
    with (
        Engine(choose_device(options.device), timeouts=timeouts) as engine,
        problems(engine, options.reference.stem, source, kernel, argument, contract) as found,
    ):
        if options.print_contract:
            print("---\n".join(to_yaml(problem.module.problem) for problem in found), end="")
            return
        judgements = [_judge(engine, problem, kernel, path, options) for problem in found]
    if options.as_json:
        print_json([judgement.model_dump(mode="json") for judgement in judgements])
    for judgement in judgements:
        judging.require_accepted(judgement, options.gates, path)


def _judge(engine: Engine, problem: Problem, kernel: str, path: Path, options: Options) -> Judgement:
    if reason := too_large(engine, problem, kernel):
        raise EnvironmentProblem(f"{path}: {reason}")
    console = Console(stderr=options.as_json, markup=False)
    if not options.as_json:
        console.print(
            f"contract inferred from {options.reference} (edit: --print-contract, --contract FILE):"
        )
        console.print(to_yaml(problem.module.problem), markup=False, highlight=False)
    settings = Settings(options.level, options.gates or GATE_NAMES, options.seed, options.everything)
    judgement = judge(engine, problem, kernel, settings, dsl=options.dsl, path=path)
    if not options.as_json:
        console.print(render_verdicts(judgement))
    return judgement
