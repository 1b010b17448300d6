"""`atrex audit`: many kernels that nobody here wrote, in the directories of public collections."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atrex.commands.common import DeviceOption, choose_device, console_for_output, operator_cases, print_json
from atrex.errors import UsageError
from atrex.foreign.adapters import ADAPTERS, Format
from atrex.foreign.adapters.item import Item
from atrex.foreign.audit import Plan, digest, run
from atrex.foreign.rates import Row, summarise
from atrex.foreign.report import AuditReport, html, terminal
from atrex.foreign.verify import Settings
from atrex.gates.context import Level
from atrex.judge import Engine, Timeouts
from atrex.ledger import Ledger, read
from atrex.problem import load_problem
from atrex.provenance import provenance
from atrex.records import Case, Device
from atrex.roofline import hardware_name
from atrex.runs import Run, RunMeta, create_run, find_run, now, runs_root, write_atomic

_SETUP = "audit"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    directory: Path
    format: Format
    jobs: int
    device: DeviceOption
    level: Level
    limit: int | None
    timeout: float
    seed: int | None
    resume: str | None
    runs: Path | None
    as_html: bool
    as_json: bool


def audit(options: Options) -> None:
    """Judge what DIR holds; rates and rows go to the run's directory and to standard output."""
    if not options.directory.is_dir():
        raise UsageError(f"{options.directory}: not a directory")
    items = list(ADAPTERS[options.format](options.directory))[: options.limit]
    if not items:
        raise UsageError(
            f"{options.directory}: no kernel in the format {options.format}; see docs/foreign.md"
        )
    device = choose_device(options.device)
    seed = options.seed if options.seed is not None else secrets.randbelow(1 << 48)
    record = _run(options, device, seed)
    items = [_as_file(item, record) for item in items]
    with Ledger(record.ledger, hardware_name(device)) as ledger:
        _set_up(ledger, options, device)
        rows = _judge(options, items, device, record.meta.seed, ledger)
    report = AuditReport(
        format=options.format,
        directory=str(options.directory),
        device=device,
        level=options.level,
        run=record.name,
        summary=summarise(rows),
        rows=tuple(rows),
    )
    write_atomic(record.path / "audit.json", report.model_dump_json(indent=2))
    write_atomic(record.path / "audit.html", html(report))
    if options.as_json:
        print_json(report)
    elif options.as_html:
        print(html(report))
    else:
        console_for_output().print(terminal(report))
    print(f"{record.path}: ledger.jsonl, audit.json, audit.html", file=sys.stderr)


def _run(options: Options, device: Device, seed: int) -> Run:
    root = runs_root(options.runs)
    if options.resume is not None:
        return find_run(options.resume, root)
    meta = RunMeta(
        created=now(),
        command=("atrex", "audit", str(options.directory), "--format", options.format),
        operator="audit",
        device=device,
        seed=seed,
        provenance=provenance(hardware_name(device), device),
    )
    return create_run(root, meta)


def _as_file(item: Item, record: Run) -> Item:
    """A kernel that is a line of a larger file gets a file of its own, which a witness can name."""
    if item.path.suffix == ".py" or item.unusable:
        return item
    return replace(item, path=record.save_kernel(digest(item), item.kernel))


def _set_up(ledger: Ledger, options: Options, device: Device) -> None:
    """Note what the run is of; a resumed run keeps level and device, so that its rows say the same.

    Raises UsageError for a run of something else.
    """
    wanted = {"format": options.format, "level": options.level, "device": device}
    before = next((entry.payload for entry in read(ledger.path) if entry.kind == _SETUP), None)
    if before is None:
        if options.resume is not None:
            raise UsageError(f"{ledger.path.parent}: not a run of `atrex audit`")
        ledger.append(_SETUP, wanted | {"directory": str(options.directory)})
    elif any(before.get(key) != value for key, value in wanted.items()):
        stated = ", ".join(f"--{key} {before.get(key)}" for key in wanted)
        raise UsageError(f"{ledger.path.parent}: that run has {stated}; resume it with these")


def _judge(options: Options, items: Sequence[Item], device: Device, seed: int, ledger: Ledger) -> list[Row]:
    timeouts = Timeouts(max(60.0, options.timeout), options.timeout, options.timeout, options.timeout)
    settings = Settings(level=options.level, seed=seed, keep_going=True)

    def cases(operator: str) -> tuple[Case, ...]:
        problem, found = load_problem(operator), operator_cases("atrex-bench", operator)
        return found if device == "cuda" else tuple(problem.small(case) for case in found)

    plan = Plan(items=items, settings=settings, jobs=options.jobs, cases=cases)
    threads = 1 if options.jobs > 1 else None
    with Engine(device, threads=threads, timeouts=timeouts) as engine:
        engine.process(
            "atrex.worker:idle", "first"
        ).kill()  # the fork server is there before threads ask for it
        return run(plan, engine, ledger, _progress)


def _progress(row: Row, done: int, total: int) -> None:
    line = f"{done}/{total} {row.id}: {row.state}{f' ({row.reason[:120]})' if row.reason else ''}"
    print(line, file=sys.stderr, flush=True)
