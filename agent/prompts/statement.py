"""The part of a prompt that a run repeats: the task, its contract, the machine, the cases, the judge."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agent.definitions import needed
from agent.wording import compared, contract_lines, extents, place, returned, role
from atrex.contract import InitSpec
from atrex.gates import gates_for
from atrex.problem import Problem
from atrex.records import Case, Device, Dsl
from atrex.roofline import Calibration, Hardware

_TEXTS = Path(__file__).with_name("texts")


@cache
def _text(name: str) -> str:
    return (_TEXTS / f"{name}.md").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Brief:
    """What stays the same in a run."""

    problem: Problem
    cases: tuple[Case, ...]
    device: Device
    dsl: Dsl
    hardware: Hardware
    calibration: Calibration | None


def system() -> str:
    """What every run begins with: the model's part, the rules, the form of an answer."""
    return _text("system") + "\n" + _text("format")


def statement(brief: Brief) -> str:
    """The whole of it, as Markdown."""
    problem, spec = brief.problem, brief.problem.spec
    parts = [
        f"# Task: {problem.operator} on {brief.hardware.name}",
        f"{spec.summary}.",
        "## Signature\n" + _signature(problem),
        "## Reference\nIn eager PyTorch, as `reference(init, inputs)`; your Model returns the same"
        f" ({returned(spec)}).\n```\n{reference(problem)}\n```",
        "## Contract\n" + "\n".join(f"- {line}" for line in contract_lines(problem.contract)),
        "## Judged by\n"
        + "\n".join(f"- {gate.name}: {gate.property}" for gate in gates_for(problem))
        + "\n\nthen timed on the cases below.",
        "## Machine\n" + "\n".join(f"- {line}" for line in machine_lines(brief)),
        "## How\n"
        + _text("cpp" if brief.dsl == "cpp" else "triton")
        + "\n"
        + _text("table").replace("DIM", _a_dim(problem)),
    ]
    return "\n\n".join(parts) + "\n"


def _a_dim(problem: Problem) -> str:
    return next(iter(problem.spec.buckets), next(iter(problem.spec.dims)))


def _signature(problem: Problem) -> str:
    spec = problem.spec
    init = ", ".join(f"{name}: {_init(each)}" for name, each in spec.init.items())
    forward = ", ".join(
        f"{name}=None" if each.optional else name
        for name, each in sorted(spec.inputs.items(), key=lambda pair: pair[1].optional)
    )
    lines = ["```python", "class Model(nn.Module):"]
    lines += [
        f"    def __init__(self{', ' if init else ''}{init}): ...",
        f"    def forward(self, {forward}): ...",
    ]
    lines += ["```"]
    lines += [f"- {name}: {place(each)} {each.dtype}, {role(each)}" for name, each in spec.inputs.items()]
    lines += [
        f"- returns {name}: {place(each)} {each.dtype}, {compared(each)}"
        for name, each in spec.outputs.items()
    ]
    lines += [f"- {name}: {legal}" for name, legal in extents(spec)]
    return "\n".join(lines)


def _init(argument: InitSpec) -> str:
    return argument.type if argument.default is None else f"{argument.type} = {argument.default!r}"


def machine_lines(brief: Brief) -> tuple[str, ...]:
    """Measured peaks where there are any, else the vendor's."""
    hardware, measured = brief.hardware, brief.calibration
    if measured:
        rates = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in measured.flops_per_s.items())
        return (
            f"measured here: copy {measured.copy_bytes_per_s / 1e9:.0f} GB/s, read "
            f"{measured.read_bytes_per_s / 1e9:.0f} GB/s, a launch costs {measured.launch_floor_us:.1f} us",
            f"measured matrix products, Tflop/s: {rates}",
            *_units(hardware),
        )
    rates = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in hardware.peaks.items())
    memory = f"the vendor's peaks: memory {hardware.memory_bytes_per_s / 1e9:.0f} GB/s; Tflop/s: {rates}"
    return (memory, *_units(hardware))


def _units(hardware: Hardware) -> tuple[str, ...]:
    if hardware.multiprocessors is None:
        return ()
    cache = f", {hardware.l2_bytes / 2**20:.0f} MiB of last-level cache" if hardware.l2_bytes else ""
    return (f"{hardware.multiprocessors} processors{cache}",)


def reference(problem: Problem) -> str:
    """The source of `reference` and of what it calls in its own module, in the order of the file."""
    _, *bodies = needed(inspect.getsource(problem.module), "reference")
    return "\n\n".join(bodies)
