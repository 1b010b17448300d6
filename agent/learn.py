"""What a search learned about the knowledge it used, written back as evidence."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from agent.events import ALL_CASES, Outcome, Proposal, Settled
from agent.state import SearchState
from atrex.runs import Run
from knowledge.evidence import Evidence, EvidenceLog


def record_evidence(state: SearchState, settled: Iterable[Settled], run: Run, hardware: str) -> None:
    """One line of evidence for every outcome with a measured gain or a gate that failed."""
    log = EvidenceLog()
    for event in settled:
        proposal = state.proposals[event.candidate]
        for outcome in event.outcomes:
            if evidence := _evidence(proposal, outcome, state, run, hardware):
                log.record(evidence)


def _evidence(
    proposal: Proposal, outcome: Outcome, state: SearchState, run: Run, hardware: str
) -> Evidence | None:
    move = next((move for move in proposal.moves if move.bucket == outcome.bucket), None)
    wrong = outcome.finding == "wrong"
    if proposal.authored or (not wrong and outcome.realised is None):
        return None
    return Evidence(
        item=proposal.kernel,
        operator=state.run.operator,
        bucket="all cases" if outcome.bucket == ALL_CASES else outcome.bucket,
        hardware=hardware,
        config=dict(move.config) if move else {},
        predicted_gain=move.predicted if move and move.predicted > 0 else None,
        realised=None if wrong else outcome.realised,
        failed_gate=(outcome.reason.split(":")[0] or "unnamed") if wrong else None,
        condition=f"{outcome.finding}; {move.change}" if move else outcome.finding,
        run=run.name,
        date=datetime.now(UTC),
    )
