"""One proposal on trial: judge it, compare it, adopt what wins, and say what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent import promote
from agent.buckets import compose, configs_in
from agent.dispatch import read
from agent.events import ALL_CASES, Compared, Finding, Judged, Outcome, Promoted, Proposal
from agent.journal import Journal
from agent.lab import Comparison, Config, Lab, Level
from agent.state import SearchState
from atrex.candidate import Candidate
from atrex.records import Case, Judgement, Ratio, Status

Comparisons = Mapping[str, Comparison]
Better = Callable[[Comparisons], bool]
Configs = dict[str, Config]
"""New configurations by bucket."""
Findings = dict[str, tuple[Finding, str]]
"""What was found and why, by bucket."""


class Trial:
    """Tries proposals in a lab; everything that happens goes through the journal."""

    def __init__(self, lab: Lab, journal: Journal) -> None:
        """The journal's run says which cases and buckets there are."""
        self.lab, self.journal = lab, journal
        run = journal.state.run
        self._policy = run.promotion
        self._weights = {case.id: case.weight for case in run.cases}
        self._buckets = {b.name: b for b in journal.state.grid.buckets}
        groups = journal.state.grid.group(run.cases)
        self._cases = {bucket.name: cases for bucket, cases in groups.items()} | {ALL_CASES: run.cases}

    @property
    def state(self) -> SearchState:
        """The state of the search now."""
        return self.journal.state

    def outcomes(self, proposal: Proposal) -> tuple[Outcome, ...]:
        """Try a proposal and adopt what wins; one outcome a move, or one for a whole file."""
        candidate = proposal.candidate
        buckets = [move.bucket for move in proposal.moves] or [ALL_CASES]
        if objection := self._objection(candidate, "screen"):
            return _outcomes(_blame(objection, {b: self._cases[b] for b in buckets}), {})
        if proposal.moves:
            return self._moves(proposal)
        return (self._whole(candidate, self._better_start if proposal.origin == "seed" else self._better),)

    def _whole(self, candidate: Candidate, better: Better) -> Outcome:
        """A whole file against the incumbent on all cases; two wins and all gates make it the incumbent."""
        if candidate.id == self.state.incumbent:
            return Outcome(bucket=ALL_CASES, finding="no gain", reason="it is the incumbent")
        finding, why = self._challenge(candidate, better)
        realised = promote.gain(self._last, self._weights)
        return Outcome(bucket=ALL_CASES, finding=finding, realised=realised, reason=why)
