"""The end of a run: the champion measured afresh against eager and compiled PyTorch, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.text import Text

from agent.events import DropoutEnded, DropoutStarted, Event, Missed, Outcome, Proposal, Settled
from agent.hidden import hidden_cases
from agent.instrument import FAULTS, Instrument, told
from agent.promote import geometric_mean
from agent.proposers.baselines import compiled, eager
from agent.state import SearchState
from agent.workspace.account import Account
from atrex.candidate import Candidate
from atrex.judge import CandidateFault
from atrex.measure import Protocol, Timing, protocol_for
from atrex.policy import policy_hash
from atrex.problem import Problem
from atrex.records import Case, Device, FaultKind, Judgement, Ratio, Result
from atrex.report import DropoutEpisode, RunReport, Step
from atrex.runs import Run
from atrex.score import score_cases
from atrex.spending import Spending


def reserve(device: Device) -> float:
    """Share of the budget kept for the final measurement; eager PyTorch on a CPU takes long."""
    return 0.2 if device == "cuda" else 0.45


@dataclass(slots=True)
class Findings:
    """What a final measurement found."""

    results: list[Result] = field(default_factory=list)
    """One a case."""
    notes: list[str] = field(default_factory=list)
    """On hidden shapes, and on what is not measured."""
    doubt: str = ""
    """Why the champion is not believed after all: it was wrong while it was timed. Then nothing counts."""


def measure(
    lab: Instrument, champion: Candidate, cases: Sequence[Case], seconds: float, seed: int, console: Console
) -> Findings:
    """The champion on all cases and on hidden shapes, within about `seconds`.

    It and the baselines run in fresh processes, in interleaved rounds.
    """
    lab.release()
    unseen = hidden_cases(lab.problem, cases, seed)
    rules = protocol_for(lab.engine.device)
    # Half of the time is for what is not rounds: processes, warm-up, and compiling the baseline.
    rules = replace(
        rules, case_seconds=min(rules.case_seconds, 0.5 * seconds / (3 * len(cases) + 2 * len(unseen)))
    )
    rivals = {"eager": eager(lab.problem.spec), "compile": compiled(lab.problem.spec)}
    found = Findings()
    with console.status("measuring") as status:
        for number, case in enumerate(cases, 1):
            status.update(Text(f"measuring {case.id} ({number} of {len(cases)})"))
            found.results.append(_measure_case(lab, champion, case, rules, rivals, found))
        status.update("measuring shapes that the search never saw")
        alone = {name: rival for name, rival in rivals.items() if name == "eager"}
        elsewhere = [_measure_case(lab, champion, case, rules, alone, found) for case in unseen]
    if found.doubt:
        refused = {"accepted": False, "latency": None, "vs_eager": None, "vs_compile": None}
        found.results = [result.model_copy(update=refused) for result in found.results]
    else:
        found.notes[:0] = _hidden_note(found.results, elsewhere)
    return found


def _hidden_note(results: Sequence[Result], elsewhere: Sequence[Result]) -> tuple[str, ...]:
    """How the speed-up over eager on hidden shapes compares with that on the cases."""
    seen, unseen = ([result.vs_eager for result in each if result.vs_eager] for each in (results, elsewhere))
    if not (seen and unseen):
        return ()
    ours, theirs = geometric_mean(unseen), geometric_mean(seen)
    where = ", ".join(result.case for result in elsewhere)
    return (
        f"on shapes that the search never saw ({where}): {ours.median:.2f}x eager "
        f"[{ours.low:.2f}, {ours.high:.2f}], on its own cases {theirs.median:.2f}x",
    )


def _measure_case(
    lab: Instrument,
    champion: Candidate,
    case: Case,
    rules: Protocol,
    rivals: dict[str, Candidate],
    found: Findings,
) -> Result:
    """A baseline that fails twice is dropped with a note; a champion that does leaves the case unmeasured,
    and is no longer believed if its output was wrong.

    Twice, because a busy machine can make an honest claim of time look late.
    """
    faults = 0
    while True:
        try:
            timings = lab.time([champion, *rivals.values()], case, rules)
        except FAULTS as fault:
            faults += 1
            if faults == 1:
                continue
            blamed = fault.candidate if isinstance(fault, CandidateFault) else ""
            failed = next((name for name, each in rivals.items() if each.id == blamed), None)
            where = f"from {case.id} on" if failed else case.id
            found.notes.append(f"{where}: {failed or 'the kernel'} not measured: {told(fault)}")
            if isinstance(fault, CandidateFault) and not failed and fault.kind is FaultKind.WRONG:
                found.doubt = found.doubt or f"wrong on {case.id} while it was timed"
            if failed is None:
                return _result(lab, champion, case, None, {})
            del rivals[failed]
            faults = 0
            continue
        return _result(lab, champion, case, timings[0], dict(zip(rivals, timings[1:], strict=True)))


def _result(
    lab: Instrument, champion: Candidate, case: Case, ours: Timing | None, theirs: Mapping[str, Timing]
) -> Result:
    ratios: dict[str, Ratio] = {name: ours.ratio_to(other) for name, other in theirs.items()} if ours else {}
    return Result(
        candidate=champion.id,
        operator=case.operator,
        case=case.id,
        policy=policy_hash(),
        accepted=True,
        latency=ours.latency if ours else None,
        bound=lab.bound(case),
        vs_eager=ratios.get("eager"),
        vs_compile=ratios.get("compile"),
    )


def report(
    run: Run,
    problem: Problem,
    state: SearchState,
    events: Sequence[Event],
    judgements: Mapping[str, Judgement],
    cases: Sequence[Case],
    found: Findings,
    seconds: float,
) -> RunReport:
    """The report of a run from its search state and final results."""
    costs = {case.id: problem.cost(problem.shape(case)) for case in cases}
    judgement = judgements.get(state.incumbent)
    accepted = judgement is not None and judgement.accepted and not found.doubt
    assert run.meta.dsl is not None
    return RunReport(
        op=problem.operator,
        device=run.meta.device,
        dsl=state.best.dsl if accepted else run.meta.dsl,
        run=str(run.path),
        kernel=str(run.best) if accepted else None,
        candidates_tried=len(judgements),
        candidates_accepted=sum(each.accepted for each in judgements.values()),
        seconds=round(seconds, 1),
        judgement=judgement,
        doubt=found.doubt,
        cases=score_cases(cases, found.results, costs),
        agent=" ".join(filter(None, (state.run.proposer, str(run.meta.agent.get("model") or "")))),
        spent=_spent(run, state),
        history=tuple(_steps(state, events)),
        dropout=tuple(_episodes(events)),
        provenance=run.meta.provenance,
        command=" ".join(run.meta.command),
        notes=(*state.notes, *found.notes),
    )


def _spent(run: Run, state: SearchState) -> Spending | None:
    """On models; a tool's session that was interrupted has cost something, and has no answer yet."""
    if state.answers:
        return state.spent
    account = Account.of(run)
    return account.spent if account.sessions else None


def _steps(state: SearchState, events: Sequence[Event]) -> list[Step]:
    steps = list[Step]()
    ended = (event for event in events if isinstance(event, Settled | Missed))
    for number, event in enumerate(ended, 1):
        if isinstance(event, Missed):
            steps.append(Step(step=number, move=event.because, outcome="missed", note=event.reason))
            continue
        proposal = state.proposals[event.candidate]
        steps += [_step(number, proposal, outcome) for outcome in event.outcomes]
    return steps


def _episodes(events: Sequence[Event]) -> list[DropoutEpisode]:
    """Dropout episodes with the steps they lasted; one that the budget cut short has no outcome."""
    episodes = list[DropoutEpisode]()
    started: tuple[int, DropoutStarted] | None = None
    step = 0
    for event in events:
        step += isinstance(event, Settled | Missed)
        if isinstance(event, DropoutStarted):
            started = step + 1, event
        if started and isinstance(event, DropoutEnded):
            episodes.append(_episode(*started, step, "adopted" if event.found else "restored"))
            started = None
    if started:
        episodes.append(_episode(*started, step, "cut short by the budget"))
    return episodes


def _episode(first: int, event: DropoutStarted, last: int, outcome: str) -> DropoutEpisode:
    hidden = tuple(f"{item.kind} {item.key}" for item in event.hidden)
    return DropoutEpisode(first=first, last=max(first, last), share=event.p, hidden=hidden, outcome=outcome)


def _step(number: int, proposal: Proposal, outcome: Outcome) -> Step:
    move = next((move for move in proposal.moves if move.bucket == outcome.bucket), None)
    return Step(
        step=number,
        move=move.change if move else proposal.title,
        outcome=outcome.finding,
        bucket=outcome.bucket,
        predicted=move.predicted if move else proposal.predicted if proposal.authored else None,
        realised=outcome.realised,
        candidate=proposal.candidate.id,
        note=outcome.reason,
    )
