"""TASK.md: what a command-line agent is asked to do, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.buckets import Grid
from agent.context import attainable
from agent.wording import compared, contract_lines, extents, place, returned, role
from atrex.contract import Contract, InputTensor, OutputTensor
from atrex.gates import gates_for
from atrex.problem import Problem
from atrex.records import Bound, Case, Device, Dsl, InitValue

_RULES = """\
## Rules

- One self-contained file, `kernel.py`, with `class Model(nn.Module)`; it imports torch and what {dsl} needs.
- The work is done by your own kernel. PyTorch may allocate, view and reshape; an operation of a library that
  computes a part of the result is a fallback and is rejected, unless the contract leaves it to a library.
- Nothing is remembered between calls: no cached results, no captured inputs, no look at addresses or counts.
- No network, no reading of files, no other process, no look at who is calling.
- A kernel that computes only the cases below, or only the inputs that the commands happen to draw, is wrong.
- Write in this directory alone (and in `$TMPDIR`); not in /tmp. The rest may well be read-only.

Changing `cases.yaml`, `reference.py`, `verify` or `measure` changes nothing: the judge has its own.
"""
_SKELETON = "which now holds a skeleton"
_BEGUN = "which holds what an earlier session had saved when it was interrupted: go on from there"


def task(
    problem: Problem,
    cases: Sequence[Case],
    bounds: Mapping[str, Bound],
    device: Device,
    dsl: Dsl,
    *,
    begun: bool = False,
) -> str:
    """The page. `bounds` are rooflines by case id; empty where this machine's are not known.

    `begun`: the kernel file is an earlier session's, and no skeleton.
    """
    parts = [
        f"# Write a fast kernel for `{problem.operator}`\n",
        f"{_plain(problem.spec.summary)}. `reference.py` says exactly what; make it fast on this machine "
        f"({device}), in {dsl}, in `kernel.py`, {_BEGUN if begun else _SKELETON}.\n",
        "    ./verify                  all gates on the cases below: what is wrong, and how to repeat it",
        "    ./verify --level screen   a quick look; --gate NAME and --case N narrow it further",
        "    ./measure --quick         its time on each case; ./measure reference.py: eager PyTorch's\n",
        "Save often: every saved version of `kernel.py` counts, and the best one that is accepted wins. "
        "Time and tokens are limited, and no question will be answered.\n",
        _signature(problem),
        _contract(problem.contract),
        _judging(problem),
        _RULES.format(dsl=dsl),
        _table_of_buckets(problem, cases, bounds),
        _table_of_cases(problem, cases, bounds),
    ]
    return "\n".join(parts)


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _signature(problem: Problem) -> str:
    spec = problem.spec
    lines = ["## Signature\n", f"`Model(**init)(**inputs)` returns {returned(spec)}.\n"]
    if spec.init:
        lines += ["| constructor argument | type | default | legal |", "|---|---|---|---|"]
        for name, init in spec.init.items():
            legal = ", ".join(init.choices) or f"{_edge(init.min)} to {_edge(init.max)}"
            legal = f"always the extent {init.dim}" if init.dim else legal
            lines.append(f"| `{name}` | {init.type} | {init.default!r} | {legal} |")
        lines.append("")
    lines += ["| tensor | shape | dtype | what it is |", "|---|---|---|---|"]
    lines += [_row(name, tensor, role(tensor)) for name, tensor in spec.inputs.items()]
    lines += [_row(name, tensor, f"output, {compared(tensor)}") for name, tensor in spec.outputs.items()]
    if spec.case_dtypes:
        lines += ["", f"A dtype of `case` is one of {', '.join(spec.case_dtypes)}, as the case says."]
    lines += ["", "Legal extents, all of which must work:", ""]
    lines += [f"- `{name}`: {legal}" for name, legal in extents(spec)]
    if spec.derived:
        lines.append(f"- {', '.join(f'`{name}`' for name in spec.derived)} follow from these")
    return "\n".join(lines) + "\n"


def _edge(value: float | None) -> str:
    return "anything" if value is None else f"{value:g}"


def _row(name: str, tensor: InputTensor | OutputTensor, kind: str) -> str:
    return f"| `{name}` | {place(tensor)} | {tensor.dtype} | {kind} |"


def _contract(contract: Contract) -> str:
    return "\n".join(["## Contract\n", *(f"- {line}" for line in contract_lines(contract))]) + "\n"


def _judging(problem: Problem) -> str:
    lines = [
        "## How it is judged\n",
        "First by gates, on the cases below, on hidden cases of production and on shapes off its grid, with "
        "inputs drawn afresh. One that fails, anywhere, makes the kernel worth 0:\n",
        *(f"- {gate.name}: {gate.property}" for gate in gates_for(problem)),
        "",
        "Then by time: S of a case is its bound (the least time that the hardware allows) over the kernel's "
        "median time, and the score is the mean over the cases, by weight. Kernels are timed in interleaved "
        "pairs; a gain counts when its confidence interval excludes none.\n",
    ]
    return "\n".join(lines)


def _table_of_buckets(problem: Problem, cases: Sequence[Case], bounds: Mapping[str, Bound]) -> str:
    """Cases that may well want a configuration of their own, by the operator's cut points."""
    lines = ["## Buckets of cases\n", "| bucket | cases | weight | mean bound µs | limited by |"]
    lines.append("|---|---|---|---|---|")
    whole = sum(case.weight for case in cases) or 1.0
    extended = [problem.with_dims(case) for case in cases]
    for bucket, members in Grid(problem.spec.buckets).group(extended).items():
        known = [(case, bounds[case.id]) for case in members if case.id in bounds]
        weight = sum(case.weight for case in members)
        mean = sum((case.weight or 1.0) * attainable(b) for case, b in known)
        mean /= sum(case.weight or 1.0 for case, _ in known) if known else 1.0
        limits = ", ".join(sorted({b.limiter for _, b in known})) or "unknown"
        share, time = f"{weight / whole:.0%}", f"{mean:.2f}" if known else "unknown"
        lines.append(f"| {bucket.name} | {len(members)} | {share} | {time} | {limits} |")
    return "\n".join(lines) + "\n"


def _table_of_cases(problem: Problem, cases: Sequence[Case], bounds: Mapping[str, Bound]) -> str:
    lines = ["## Cases\n", "Also in `cases.yaml`; the number is what `--case` takes.\n"]
    lines += ["| case | init | input | phase | bound µs |", "|---|---|---|---|---|"]
    for case in cases:
        bound = bounds.get(case.id)
        init = problem.full(problem.shape(case)).init
        time = "unknown" if bound is None else f"{attainable(bound):.2f}"
        lines.append(f"| {case.id} | {_values(init)} | {_values(case.input)} | {case.phase} | {time} |")
    return "\n".join(lines) + "\n"


def _values(values: Mapping[str, InitValue]) -> str:
    text = ", ".join(f"{name}={value}" for name, value in values.items())
    return text if len(text) <= 200 else text[:200] + " …"
