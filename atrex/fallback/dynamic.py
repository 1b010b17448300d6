"""The dynamic pass: what a candidate's call really does, case by case, in the sandbox.

The trace is taken in the candidate's own process, so it is a claim; it is held against a second call in which
the candidate's kernels do nothing (`coverage`). That call's outputs are compared by the judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from atrex.candidate import Candidate
from atrex.fallback.coverage import can_withhold, written_by_others
from atrex.fallback.operations import permitted
from atrex.fallback.records import CaseReport, FileReport, Outcome, Seen
from atrex.inputs import as_contiguous, build_inputs
from atrex.judge import CandidateFault, Engine, HarnessError, Session, new_seed
from atrex.problem import Problem, load_problem
from atrex.protocol import Call, InputSpec, LaunchReport
from atrex.records import Case

_ORDER = tuple(Outcome)


@dataclass(frozen=True, slots=True)
class Run:
    """One file to run: on these cases, after what was read of it."""

    candidate: Candidate
    cases: tuple[Case, ...]
    static: FileReport


def examine_all(engine: Engine, runs: Sequence[Run], jobs: int) -> Iterator[FileReport]:
    """Their reports in order, several files at a time."""
    for first in runs[:1]:  # alone: it starts the fork server, which threads must not race for
        yield examine(engine, first.candidate, first.cases, first.static)
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda run: examine(engine, run.candidate, run.cases, run.static), runs[1:])


def examine(engine: Engine, candidate: Candidate, cases: Sequence[Case], static: FileReport) -> FileReport:
    """The static report with what every case showed, and the verdict of both."""
    with engine.session(candidate) as session:
        reports = tuple(_case(session, case, bool(static.kernels)) for case in cases)
    engine.forget(candidate)
    verdict, reason = _both(static, reports)
    return static.model_copy(update={"cases": reports, "verdict": verdict, "reason": reason})


def few_cases(operator: str, cases: Sequence[Case], most: int, *, reduced: bool) -> tuple[Case, ...]:
    """Production cases of an operator, evenly spread; on a CPU as the problem reduces them."""
    step = max(1, len(cases) // most)
    chosen = tuple(cases[::step])[:most]
    problem = load_problem(operator)
    return tuple(problem.small(case) for case in chosen) if reduced else chosen


def _case(session: Session, case: Case, has_kernels: bool) -> CaseReport:
    problem = session.problem
    spec = InputSpec(shape=problem.shape(case), seed=new_seed())
    try:
        launches = session.trace(spec)
        stops = can_withhold(launches, session.engine.device, session.candidate.source)
        not_own = _not_own(session, problem, spec) if stops else ()
    except CandidateFault as fault:
        return CaseReport(
            case=case.id, verdict=Outcome.BROKEN, reason=f"{fault.kind.value}: {fault.message[:200]}"
        )
    except HarnessError as error:
        return CaseReport(case=case.id, verdict=Outcome.UNRESOLVED, reason=f"harness: {str(error)[:200]}")
    verdict, reason = _said(_judged(launches, problem.contract.library_calls), not_own, has_kernels)
    share = _shares(launches)
    if share and verdict is not Outcome.KERNEL:
        reason += f"; {share.get('library', 0):.0%} of the device time is a library's"
    return CaseReport(
        case=case.id, verdict=verdict, reason=reason, seen=tuple(_seen(one) for one in launches),
        share=share, not_own=not_own,
    )  # fmt: skip


def _judged(launches: Sequence[LaunchReport], allowed: Sequence[str]) -> list[LaunchReport]:
    """Without what the contract leaves to a library, and the kernels that such calls launch."""
    left = [one for one in launches if not (one.origin == "compute" and permitted(one.name, allowed))]
    return left if len(left) == len(launches) else [one for one in left if one.origin != "library"]


def _not_own(session: Session, problem: Problem, spec: InputSpec) -> tuple[str, ...]:
    before = session.run(Call(inputs=spec))[0].outputs
    another = spec.model_copy(update={"seed": new_seed()})
    inputs = as_contiguous(build_inputs(problem, another, session.engine.torch_device)[0])
    return written_by_others(session, another, inputs, before)


def _said(launches: Sequence[LaunchReport], not_own: Sequence[str], has_kernels: bool) -> tuple[Outcome, str]:
    """A case's verdict, and the first thing that speaks for it."""
    own = [one.name for one in launches if one.origin == "own"]
    foreign = [one.name for one in launches if one.origin in ("compute", "library")]
    made = f"{', '.join(not_own)} not made by its own kernels" if not_own else ""
    if own and not foreign and not made:
        return Outcome.KERNEL, f"launched {', '.join(sorted(set(own)))}"
    if own:
        return Outcome.PARTIAL, made or f"beside its own kernels: {foreign[0]}"
    what = foreign[0] if foreign else "nothing computes"
    if has_kernels:
        return Outcome.DEAD_KERNEL, f"none of its kernels was launched; {what}"
    return Outcome.FALLBACK, what


def _seen(launch: LaunchReport) -> Seen:
    return Seen(
        name=launch.name,
        origin=launch.origin,
        count=launch.count,
        device_us=launch.device_us,
        sizes=launch.sizes,
    )


def _shares(launches: Sequence[LaunchReport]) -> dict[str, float] | None:
    """Share of the device time by the origin of the kernels."""
    times = defaultdict[str, float](float)
    for launch in launches:
        times[launch.origin] += launch.device_us
    whole = sum(times.values())
    return {origin: time / whole for origin, time in times.items() if time} if whole else None


def _both(static: FileReport, cases: Sequence[CaseReport]) -> tuple[Outcome, str]:
    """What was read and what was seen, together.

    A case that does not run says nothing if another does. What was seen outweighs what reading could not
    know, but not a fallback on a path that no case takes.
    """
    ran = [one for one in cases if one.verdict is not Outcome.BROKEN]
    if not ran:
        return (static.verdict, static.reason) if not cases else (Outcome.BROKEN, cases[0].reason)
    worst = max(ran, key=lambda one: _ORDER.index(one.verdict))
    if worst.verdict is not Outcome.KERNEL:
        somewhere = any(one.verdict in (Outcome.KERNEL, Outcome.PARTIAL) for one in ran)  # its own compute
        known = worst.verdict is not Outcome.UNRESOLVED
        verdict = Outcome.PARTIAL if somewhere and known else worst.verdict
        return verdict, f"{worst.case}: {worst.reason}"
    if static.verdict is Outcome.PARTIAL:
        return Outcome.PARTIAL, f"{static.reason}, on a path that none of {len(ran)} cases takes"
    return Outcome.KERNEL, worst.reason
