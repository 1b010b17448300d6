"""`atrex list`, `atrex show` and `atrex roofline`: what there is, and what bounds it."""

from __future__ import annotations

from typing import Any

from rich.table import Column, Table
from rich.text import Text

from atrex.commands.common import console_for_output, operator_cases, print_json
from atrex.problem import Problem, load_problem, operators, resolve_operator
from atrex.records import Bound, Case, Device
from atrex.roofline import Calibration, Hardware, bound, detect, load_calibration, load_hardware
from traces.workload import load_workload


def list_operators(workload: str, *, as_json: bool) -> None:
    """Operators that can be judged here, with their share of the workload."""
    loaded = load_workload(workload)
    rows: list[dict[str, Any]] = []
    table = Table("operator", "cases", "weight", "phase", "computes", title=f"workload {loaded.name}")
    for name in operators():
        entry = loaded.operators.get(name)
        count, weight = (len(entry.cases), entry.weight) if entry else (0, 0.0)
        phase = "/".join(entry.phases) if entry else ""
        summary = load_problem(name).spec.summary
        rows.append({"op": name, "cases": count, "weight": weight, "phase": phase, "summary": summary})
        table.add_row(name, str(count), f"{weight:.6f}", phase, summary)
    if as_json:
        print_json(rows)
    else:
        console_for_output().print(table)


def bounds_of(
    problem: Problem, cases: tuple[Case, ...], hardware: Hardware, calibration: Calibration | None
) -> list[Bound]:
    """The roofline of each case."""
    return [bound(problem.cost(problem.shape(case)), hardware, calibration) for case in cases]


def show_operator(name: str, workload: str, gpu: str | None, *, as_json: bool) -> None:
    """An operator's contract and cases with their bounds on one machine."""
    problem = load_problem(name)
    cases = operator_cases(workload, problem.operator)
    hardware = load_hardware(gpu or "H200")
    bounds = bounds_of(problem, cases, hardware, load_calibration(hardware, "cuda"))
    if as_json:
        rows = [
            case.model_dump(mode="json") | each.model_dump(mode="json")
            for case, each in zip(cases, bounds, strict=True)
        ]
        print_json(
            {"problem": problem.spec.model_dump(mode="json"), "hardware": hardware.name, "cases": rows}
        )
        return
    console = console_for_output()
    contract = problem.contract
    console.print(Text.assemble((problem.operator, "bold"), f": {problem.spec.summary}"))
    console.print(
        f"accumulator {contract.accumulator}, deterministic {contract.deterministic}, "
        f"must accept {', '.join(contract.layouts.must)}; may refuse {', '.join(contract.layouts.may_refuse)}"
    )
    names = (*problem.spec.init, *cases[0].input)
    table = Table(
        Column("case", no_wrap=True),
        *names,
        "phase",
        "weight",
        "sol µs",
        "limiter",
        title=f"bounds on {hardware.name}",
    )
    for case, each in zip(cases, bounds, strict=True):
        values = {**problem.full(problem.shape(case)).init, **case.input}
        cells = [str(values.get(name, "")) for name in names]
        table.add_row(case.id, *cells, case.phase, f"{case.weight:.6f}", f"{each.sol_us:.3f}", each.limiter)
    console.print(table)


def roofline(name: str | None, workload: str, gpu: str | None, *, as_json: bool) -> None:
    """Bounds of every case; without `gpu` those of this machine, with its measured peaks."""
    import torch

    named = resolve_operator(name) if name else None
    device: Device = "cuda" if gpu or torch.cuda.is_available() else "cpu"
    hardware = load_hardware(gpu) if gpu else detect(device)
    calibration = load_calibration(hardware, device)
    loaded = load_workload(workload)
    wanted = [named] if named else [op for op in operators() if op in loaded.operators]
    rows: list[dict[str, Any]] = []
    for operator in wanted:
        problem, cases = load_problem(operator), operator_cases(workload, operator)
        for case, each in zip(cases, bounds_of(problem, cases, hardware, calibration), strict=True):
            rows.append({"op": operator, "case": case.id, **each.model_dump(mode="json")})
    if as_json:
        print_json(rows)
        return
    table = Table(
        Column("case", no_wrap=True),
        "sol µs",
        "attainable µs",
        "limiter",
        title=f"rooflines on {hardware.name}",
    )
    for row in rows:
        attainable = "-" if row["attainable_us"] is None else f"{row['attainable_us']:.3f}"
        table.add_row(row["case"], f"{row['sol_us']:.3f}", attainable, row["limiter"])
    console_for_output().print(table)
