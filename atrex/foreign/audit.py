"""Judging many foreign kernels: in parallel, one ledger row each, and on from where a killed run stopped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from atrex.candidate import load_candidate
from atrex.errors import AtrexError, UsageError
from atrex.foreign.adapters.item import Item
from atrex.foreign.client import UnusableReference
from atrex.foreign.rates import HARNESS, Row, State
from atrex.foreign.verify import EXTENSIONS, Settings, judge, judge_candidate, problems, too_large
from atrex.gates.context import Undecided
from atrex.judge import Engine
from atrex.ledger import Ledger, read
from atrex.problem import load_problem
from atrex.records import Case, FaultKind, Judgement, Status

KERNEL = "kernel"
_NO_GPU = ("CUDA", "cuda", "nvidia", "NVIDIA", "HIP")


@dataclass(frozen=True, slots=True)
class Plan:
    """What an audit judges and how."""

    items: Sequence[Item]
    settings: Settings
    jobs: int
    cases: Callable[[str], Sequence[Case]]  # of our own operators


def digest(item: Item) -> str:
    """Identifies a kernel together with what it is held against."""
    reference = item.source.model_dump_json() if item.source else item.operator
    parts = (item.id, item.kernel, reference)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def run(plan: Plan, engine: Engine, ledger: Ledger, progress: Callable[[Row, int, int], None]) -> list[Row]:
    """Judge what the ledger does not hold yet; the rows of all items, in their order."""
    rows = finished(ledger.path)
    wanted = {digest(item): item for item in plan.items}
    missing = [item for key, item in wanted.items() if key not in rows]
    rows = {key: row for key, row in rows.items() if key in wanted}
    # Few at a time: an interrupt then waits for few, and a queue of thousands would hold nothing of use.
    with ThreadPoolExecutor(plan.jobs, thread_name_prefix="audit") as pool:
        waiting, pending = iter(missing), set[Future[Row]]()
        try:
            while True:
                while len(pending) < plan.jobs and (item := next(waiting, None)) is not None:
                    pending.add(pool.submit(judge_item, item, plan, engine))
                if not pending:
                    break
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    row = future.result()
                    ledger.append(KERNEL, row)
                    rows[row.digest] = row
                    progress(row, len(rows), len(wanted))
        finally:
            for future in pending:
                future.cancel()
    return [rows[key] for key in wanted]


def finished(path: Path) -> dict[str, Row]:
    """The rows of a ledger by digest. Raises UsageError for a row that is none."""
    rows: dict[str, Row] = {}
    for entry in read(path):
        if entry.kind == KERNEL:
            try:
                row = Row.model_validate(entry.payload)
            except ValueError as error:
                raise UsageError(f"{path}: entry {entry.seq} is no audit row: {error}") from None
            rows[row.digest] = row
    return rows


def judge_item(item: Item, plan: Plan, engine: Engine) -> Row:
    """One kernel's row. What goes wrong with it is its row's business, never the audit's."""
    started = time.monotonic()
    state: State = "unusable"
    judgements: tuple[Judgement, ...] = ()
    notes: tuple[str, ...] = ()
    try:
        reason = item.unusable or _needs_gpu(item, engine)
        if not reason:
            judged, notes = _judge(item, plan, engine)
            judgements = tuple(judged)
            state, reason = _state(judgements, engine)
    except UnusableReference as error:
        reason = str(error)
    except (AtrexError, Undecided) as error:
        reason = f"not judged: {error}"
    except Exception as error:  # noqa: BLE001 - thousands of others wait: said in the row, and counted
        reason = f"{HARNESS}{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return Row(
        id=item.id,
        digest=digest(item),
        state=state,
        reason=reason[:500],
        label=item.label,
        judgements=judgements,
        notes=notes,
        seconds=round(time.monotonic() - started, 2),
    )


def _needs_gpu(item: Item, engine: Engine) -> str:
    if engine.device == "cpu" and (found := [word for word in EXTENSIONS if word in item.kernel]):
        return f"needs CUDA ({found[0]}), which this machine or --device cpu does not offer"
    return ""


def _judge(item: Item, plan: Plan, engine: Engine) -> tuple[list[Judgement], tuple[str, ...]]:
    """Judgements for every kind of call, and what of the reference they do not cover."""
    if item.operator:
        return [_judge_ours(item, plan, engine)], ()
    assert item.source is not None
    judgements, left_out = list[Judgement](), list[str]()
    with problems(engine, item.id, item.source, item.kernel, item.argument) as found:
        fitting = [problem for problem in found if not too_large(engine, problem, item.kernel)]
        if not fitting:
            raise UnusableReference(too_large(engine, found[0], item.kernel))
        for problem in fitting:
            judgements.append(judge(engine, problem, item.kernel, plan.settings, path=item.path))
            left_out += problem.module.problem.notes
        left_out += [f"{problem.operator}: too large here" for problem in found if problem not in fitting]
    return judgements, tuple(dict.fromkeys(left_out))


def _judge_ours(item: Item, plan: Plan, engine: Engine) -> Judgement:
    """A candidate for one of our operators, on the workload's cases."""
    candidate, problem = load_candidate(item.path, item.operator), load_problem(item.operator)
    cases = plan.cases(item.operator)
    return judge_candidate(engine, candidate, problem, cases, plan.settings, item.path)


def _state(judgements: Sequence[Judgement], engine: Engine) -> tuple[State, str]:
    """What the judgements of all kinds of calls add up to, and the first objection."""
    objections = [j.objection for j in judgements if not j.accepted]
    failures = [v for j in judgements for v in j.verdicts if v.status is Status.FAIL]
    if failures:
        first = failures[0]
        started = {FaultKind.LAUNCH, FaultKind.IMPORT, FaultKind.COMPILE}
        if engine.device == "cpu" and first.fault in started and any(w in first.reason for w in _NO_GPU):
            return "unusable", f"needs a GPU: {first.reason}"
        return "rejected", f"{first.gate}: {first.reason}"
    return ("undecided", objections[0]) if objections else ("accepted", "")
