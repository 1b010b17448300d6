"""`atrex audit-tasks`: which trivial kernels a plain allclose would accept, and what rejects them here."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from atrex.audit.page import escaped, findings, render, summary
from atrex.audit.tasks import OperatorAudit, audit_operator
from atrex.commands.common import (
    DeviceOption,
    choose_cases,
    choose_device,
    console_for_output,
    print_json,
)
from atrex.errors import RejectedError, UsageError
from atrex.problem import load_problem, operators, resolve_operator
from atrex.provenance import provenance
from atrex.records import Device
from atrex.report.workload import Scale
from atrex.roofline import hardware_name
from atrex.runs import write_atomic
from traces.workload import load_workload


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    ops: tuple[str, ...]
    device: DeviceOption
    scale: Scale
    cases: tuple[str, ...]
    limit: int | None
    workload: str

    @property
    def command(self) -> str:
        """The command line that asks for the same."""
        words = ["atrex audit-tasks"]
        words += [f"--op {op}" for op in self.ops]
        words += [f"--device {self.device}", f"--scale {self.scale}"]
        words += [f"--case {case}" for case in self.cases]
        words += [f"--cases {self.limit}"] if self.limit is not None else []
        words += [f"--workload {self.workload}"] if self.workload != "atrex-bench" else []
        return " ".join(words)


def audit_tasks(options: Options, output: Path | None, *, as_json: bool) -> None:
    """Audit the operators. Raises RejectedError where a wrong kernel escapes every source of its problem."""
    device = choose_device(options.device)
    started = time.perf_counter()
    audits = _audits(options, torch.device(device))
    seconds = time.perf_counter() - started
    facts = _facts(device, seconds)
    if output is not None:
        write_atomic(output, render(audits, options.command, facts))
    if as_json:
        document = {"command": options.command, **dict(facts), "summary": summary(audits)}
        print_json(document | {"operators": [audit.model_dump(mode="json") for audit in audits]})
    else:
        _print(audits)
    if gaps := escaped(audits):
        raise RejectedError(f"wrong, and accepted by every source of the problem: {', '.join(gaps)}")


def _audits(options: Options, device: torch.device) -> list[OperatorAudit]:
    workload = load_workload(options.workload)
    wanted = [resolve_operator(op) for op in options.ops]
    if options.cases and len(wanted) != 1:
        raise UsageError("--case names cases of one operator: give just one --op with it")
    audits = []
    for op in dict.fromkeys(wanted) or [op for op in operators() if op in workload.operators]:
        started = time.perf_counter()
        cases = choose_cases(options.workload, op, options.cases, options.limit)
        audits.append(audit_operator(load_problem(op), cases, device=device, small=options.scale == "small"))
        took = time.perf_counter() - started
        line = f"{op}: {summary(audits[-1:])}; {len(cases)} cases, {took:.1f} s"
        print(line, file=sys.stderr, flush=True)
    return audits


def _facts(device: Device, seconds: float) -> list[tuple[str, str]]:
    """Where and when."""
    known = provenance(hardware_name(device), device).model_dump(
        exclude_none=True, exclude={"device", "compiler"}
    )
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return [
        *((name, str(value)) for name, value in known.items()),
        ("date", date),
        ("seconds", f"{seconds:.0f}"),
    ]


def _print(audits: Sequence[OperatorAudit]) -> None:
    """What a reader must look at: kernels that allclose accepts, that escape, and that are equivalent."""
    table = Table("operator", "trivial kernel", "allclose", "production", "any source", "verdict", "by")
    for op, one in findings(audits):
        if one.allclose or one.verdict != "rejected":
            counts = (f"{count}/{one.cases}" for count in (one.allclose, one.production, one.rejected))
            table.add_row(op, one.kernel, *counts, one.verdict, one.source)
    console = console_for_output()
    console.print(table)
    for audit in audits:
        for note in audit.notes:
            console.print(f"{audit.op}: {note}", markup=False)
    console.print(summary(audits), markup=False)
