"""What several commands need: choosing the device, cases, and printing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from atrex.commands.options import DeviceOption as DeviceOption
from atrex.errors import EnvironmentProblem, UsageError
from atrex.records import Case, Device
from atrex.report.text import plain

_WIDTH = 140
_LINE = 2000  # characters of a line of progress


def choose_device(option: DeviceOption) -> Device:
    """`auto`: CUDA where PyTorch sees it, else CPU. Raises EnvironmentProblem for an absent GPU."""
    import torch

    present = torch.cuda.is_available()
    if option == "cuda" and not present:
        raise EnvironmentProblem("--device cuda: PyTorch sees no GPU here; use --device cpu")
    if option == "auto":
        return "cuda" if present else "cpu"
    return option


def choose_cases(
    workload: str, operator: str, wanted: Sequence[str], limit: int | None = None
) -> tuple[Case, ...]:
    """An operator's cases, or those named (`rms_norm-007`, or just `007` or `7`). Raises UsageError."""
    cases = operator_cases(workload, operator)
    if wanted:
        by_name = {case.id: case for case in cases} | {str(int(c.id.rsplit("-", 1)[1])): c for c in cases}
        names = [name.lstrip("0") or "0" if name.isdecimal() else name for name in wanted]
        if unknown := [name for name in names if name not in by_name]:
            raise UsageError(f"{operator} has no case {unknown[0]!r}; see `atrex show {operator}`")
        cases = tuple({case.id: case for case in (by_name[name] for name in names)}.values())
    return cases[:limit]


def operator_cases(workload: str, operator: str) -> tuple[Case, ...]:
    """All cases of an operator, held against its problem. Raises UsageError naming case and field."""
    from atrex.problem import load_problem
    from traces.workload import load_workload

    problem = load_problem(operator)
    cases = load_workload(workload, operators=[operator]).cases(operator)
    for case in cases:
        if complaint := problem.complaint(case):
            raise UsageError(f"workload {workload}: {case.id}: {complaint}")
    return cases


def console_for_output() -> Console:
    """Standard output; wide enough for whole tables where it is no terminal that says its width.

    Text is never markup, here and in `console_for_progress`: kernels, models and files choose some of it.
    """
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else _WIDTH, markup=False)


def console_for_progress() -> Console:
    """Standard error."""
    return Console(stderr=True, markup=False, highlight=False)


def speaker(console: Console, style: str = "") -> Callable[[str], None]:
    """A printer of lines without what could steer a terminal: a model chooses some of their words."""

    def say(line: str) -> None:
        console.print(plain(line, _LINE), style=style or None)

    return say


def parse_budget(text: str) -> float:
    """Seconds of `90`, `60s`, `5m` or `1h`. Raises UsageError."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e7:
        raise UsageError(f"--budget {text!r}: give seconds, or a number with s, m or h, such as 90s or 5m")
    return seconds


def print_json(value: BaseModel | Sequence[BaseModel] | dict[str, Any] | list[Any]) -> None:
    """One JSON document on standard output."""
    if isinstance(value, BaseModel):
        plain: Any = value.model_dump(mode="json")
    elif isinstance(value, dict):
        plain = value
    else:
        plain = [item.model_dump(mode="json") if isinstance(item, BaseModel) else item for item in value]
    json.dump(plain, sys.stdout, indent=2)
    sys.stdout.write("\n")
