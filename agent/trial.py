"""One proposal on trial: judge it, compare it, adopt what wins, and say what was found.

A whole file meets the gates first. A move of the tuner is our own file with other numbers, and the gates cost
up to a hundred times a comparison: it is only timed, and what won is a nominee (`agent.nominees`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agent import promote, specialists
from agent.buckets import compose
from agent.events import ALL_CASES, AUTHORED, Finding, Outcome, Proposal
from agent.examine import Comparisons, Configs, Examiner, Findings
from agent.journal import Journal
from agent.lab import Lab, TimingFault
from agent.nominees import gain_of, nominees
from agent.renaming import Unmergeable
from agent.state import SearchState, config_key
from atrex.candidate import Candidate
from atrex.problem import load_problem
from atrex.records import Ratio

Better = Callable[[Comparisons], bool]


class Trial:
    """Tries proposals in a lab; everything that happens goes through the journal."""

    def __init__(self, lab: Lab, journal: Journal) -> None:
        """The journal's run says which cases and buckets there are. Raises UsageError as `Grid`."""
        self.journal = journal
        self.examiner = Examiner(lab, journal)

    @property
    def state(self) -> SearchState:
        """The state of the search now."""
        return self.journal.state

    def sound(self, candidate: Candidate) -> bool:
        """Whether a candidate passes a screening, unless one is on record."""
        return self.examiner.objection(candidate, "screen") is None

    def outcomes(self, proposal: Proposal) -> tuple[Outcome, ...]:
        """Try a proposal and adopt what wins; one outcome a move, or one for a whole file."""
        buckets = [move.bucket for move in proposal.moves] or [ALL_CASES]
        try:
            return self._moves(proposal) if proposal.moves else (self._file(proposal),)
        except TimingFault as fault:
            blamed: Finding = "wrong" if len(buckets) == 1 else "suspect"
            found: Finding = "unjudged" if fault.of_machine else blamed
            return tuple(Outcome(bucket=b, finding=found, reason=f"timing: {fault}") for b in buckets)

    # A whole file

    def _file(self, proposal: Proposal) -> Outcome:
        if objection := self.examiner.objection(proposal.candidate, "screen"):
            finding, why = self.examiner.blame(objection, [ALL_CASES])[ALL_CASES]
            return Outcome(bucket=ALL_CASES, finding=finding, reason=why)
        if proposal.origin == "model":
            return self._written(proposal.candidate)
        return self._whole(proposal.candidate, self.examiner.better_start)[0]

    def _whole(self, candidate: Candidate, better: Better) -> tuple[Outcome, Comparisons]:
        """A whole file against the incumbent, on all cases; and how it compares."""
        if candidate.id == self.state.incumbent:
            return Outcome(bucket=ALL_CASES, finding="no gain", reason="it is the incumbent already"), {}
        trial = self.examiner.compare(candidate, self.state.best, [ALL_CASES])
        finding, why = self._confirm(candidate, better) if better(trial) else ("no gain", "")
        realised = self.examiner.gain(trial)
        return Outcome(bucket=ALL_CASES, finding=finding, realised=realised, reason=why), trial

    def _confirm(self, candidate: Candidate, better: Better) -> tuple[Finding, str]:
        """Make a nominated file the incumbent, if it wins a second time and all gates pass."""
        trial = self.examiner.compare(candidate, self.state.best, [ALL_CASES])
        if not better(trial):
            return "unconfirmed", ""
        if objection := self.examiner.objection(candidate, "full"):
            return self.examiner.blame(objection, [ALL_CASES])[ALL_CASES]
        self.examiner.promote(candidate, trial, [ALL_CASES])
        return "promoted", ""

    def _written(self, candidate: Candidate) -> Outcome:
        """A model's file: the new incumbent, a part of it, or in a dropout episode at least the new head."""
        examiner = self.examiner
        outcome, trial = self._whole(candidate, examiner.better)
        if not trial or examiner.better(trial):
            return outcome
        filled = [bucket for bucket in examiner.buckets if bucket in examiner.cases]
        won = [bucket for bucket in filled if examiner.better(examiner.part(trial, bucket))]
        if won:
            outcome = self._specialised(candidate, won)
        return outcome if outcome.finding != "no gain" else self._headed(candidate) or outcome

    def _headed(self, candidate: Candidate) -> Outcome | None:
        """In a dropout episode: the file as its new head, if it beats the present one."""
        head = self.state.base
        if head == self.state.incumbent:
            return None
        trial = self.examiner.compare(candidate, self.state.candidate(head), [ALL_CASES])
        if not self.examiner.better(trial):
            return None
        gain = self.examiner.gain(trial)
        self.examiner.head(candidate, gain, [ALL_CASES])
        return Outcome(bucket=ALL_CASES, finding="advanced", realised=gain)

    def _specialised(self, candidate: Candidate, won: Sequence[str]) -> Outcome:
        """The incumbent with the file for the buckets in which it is faster, if that is a better whole."""
        where = "; ".join(won)
        try:
            merged = self._dispatcher(candidate, won)
        except Unmergeable as why:
            return Outcome(bucket=ALL_CASES, finding="no gain", reason=f"faster in {where}, but {why}")
        trial = self.examiner.compare(merged, self.state.best, [ALL_CASES])
        realised = self.examiner.gain(trial)
        if not self.examiner.better(trial):
            return Outcome(bucket=ALL_CASES, finding="unconfirmed", realised=realised)
        if objection := self.examiner.objection(merged, "full"):
            why_not = f"merged: {promote.reason(objection)}"
            return Outcome(bucket=ALL_CASES, finding="no gain", realised=realised, reason=why_not)
        self.examiner.promote(merged, trial, [ALL_CASES])
        return Outcome(bucket=ALL_CASES, finding="promoted", realised=realised, reason=f"for {where}")

    def _dispatcher(self, candidate: Candidate, won: Sequence[str]) -> Candidate:
        """One file of both, as a proposal. Raises Unmergeable."""
        best, run = self.state.best, self.state.run
        buckets = [self.examiner.buckets[bucket] for bucket in won]
        note = f"{candidate.id[:12]} for {'; '.join(won)}"
        problem = load_problem(run.operator)
        merged = specialists.merge(problem, self.state.grid, best, candidate, buckets, run.cases, note)
        kernel = self.state.kernel(best.id) or f"{AUTHORED}{merged.id[:12]}"
        self._propose(
            Proposal(
                origin="merge",
                candidate=merged,
                base=best.id,
                kernel=kernel,
                because=note,
                technique="specialists",
            )
        )
        return merged

    # Moves of the tuner

    def _moves(self, proposal: Proposal) -> tuple[Outcome, ...]:
        """New configurations in some buckets, each decided on its own."""
        if self._nominated(proposal):
            return self._confirmed(proposal)
        configs = _configs(proposal)
        trial = self.examiner.compare(proposal.candidate, self.state.candidate(proposal.base), configs)
        gains = {bucket: self.examiner.gain_in(trial, [bucket]) for bucket in configs}
        found: Findings = dict.fromkeys(configs, ("no gain", ""))
        if won := self.examiner.winners(trial, configs):
            found |= self._won(proposal, trial, won)
        return _outcomes(found, gains)

    def _won(self, proposal: Proposal, trial: Comparisons, won: Configs) -> Findings:
        """What becomes of moves that beat their base."""
        if self.state.episode:
            return self._advance(proposal, trial, won)
        if not self.examiner.policy.patience:
            return self._adopt(proposal, won)[0]
        waiting, found = nominees(self.state), Findings()
        for bucket in won:
            best = max((gain_of(attempt) for attempt in waiting.get(bucket, ())), default=1.0)
            faster = self.examiner.gain_in(trial, [bucket]).median > best
            found[bucket] = ("nominated", "") if faster else ("runner-up", "")
        return found

    def _nominated(self, proposal: Proposal) -> bool:
        """Whether all of its moves have won before: against what the incumbent uses."""
        if proposal.base != self.state.incumbent:
            return False
        waiting = {attempt.key for each in nominees(self.state).values() for attempt in each}
        return all(config_key(proposal.kernel, m.bucket, m.config) in waiting for m in proposal.moves)

    def _confirmed(self, proposal: Proposal) -> tuple[Outcome, ...]:
        """Nominees together, against the incumbent a second time."""
        found, gains = self._adopt(proposal, _configs(proposal), screen_first=False)
        return _outcomes(found, gains)

    def _adopt(
        self, proposal: Proposal, won: Configs, *, screen_first: bool = True
    ) -> tuple[Findings, dict[str, Ratio]]:
        """Put winning configurations into the incumbent, if they win a second time and all gates pass.

        Returns what became of them, and their gain where they were timed again.
        """
        found: Findings = dict.fromkeys(won, ("unconfirmed", ""))
        gains = dict[str, Ratio]()
        while won:
            merged = self._merge(self.state.best, proposal, won)
            if screen_first and (objection := self.examiner.objection(merged, "screen")):
                return found | self.examiner.blame(objection, won), gains
            trial = self.examiner.compare(merged, self.state.best, won)
            gains |= {bucket: self.examiner.gain_in(trial, [bucket]) for bucket in won}
            still = self.examiner.winners(trial, won)
            if still == won:
                return found | self._passed(merged, trial, won), gains
            won = still
        return found, gains

    def _passed(self, merged: Candidate, trial: Comparisons, won: Configs) -> Findings:
        if objection := self.examiner.objection(merged, "full"):
            return self.examiner.blame(objection, won)
        self.examiner.promote(merged, trial, won)
        return dict.fromkeys(won, ("promoted", ""))

    def _advance(self, proposal: Proposal, trial: Comparisons, won: Configs) -> Findings:
        """Move the head of a dropout episode forward, and challenge the incumbent from there.

        By timing alone, unless every win is judged at once: the challenger is judged in any case.
        """
        head = self._merge(self.state.candidate(proposal.base), proposal, won)
        at_once = not self.examiner.policy.patience
        if at_once and (objection := self.examiner.objection(head, "screen")):
            return self.examiner.blame(objection, won)
        self.examiner.head(head, self.examiner.gain_in(trial, won), won)
        found: Findings = dict.fromkeys(won, ("advanced", ""))
        return found | self._challenge(head, proposal, won)

    def _challenge(self, head: Candidate, proposal: Proposal, won: Configs) -> Findings:
        """What of a new head beats the incumbent, too."""
        if proposal.kernel != self.state.kernel(self.state.incumbent):
            outcome, _ = self._whole(head, self.examiner.better)
            return dict.fromkeys(won, ("promoted", "")) if outcome.finding == "promoted" else {}
        new = {bucket: config for bucket, config in won.items() if not self.examiner.has(bucket, config)}
        if not new:
            return {}
        better = self.examiner.winners(self.examiner.compare(head, self.state.best, new), new)
        adopted, _ = self._adopt(proposal, better)
        return {bucket: finding for bucket, finding in adopted.items() if finding[0] != "unconfirmed"}

    def _merge(self, base: Candidate, proposal: Proposal, won: Configs) -> Candidate:
        """The base with the winning moves only: often the proposed candidate itself."""
        moves = tuple(move for move in proposal.moves if move.bucket in won)
        note = "; ".join(f"{move.bucket}: {move.change}" for move in moves)
        moved = {self.examiner.buckets[bucket]: config for bucket, config in won.items()}
        merged = compose(base, self.state.grid, moved, note)
        because = f"the moves of {proposal.candidate.id[:12]} that won"
        self._propose(
            Proposal(
                origin="merge",
                candidate=merged,
                base=base.id,
                kernel=proposal.kernel,
                moves=moves,
                because=because,
            )
        )
        return merged

    def _propose(self, merge: Proposal) -> None:
        """Record a merged candidate, unless it is known already."""
        if merge.candidate.id not in self.state.proposals:
            self.journal.emit(Proposal, lambda: merge)


def _configs(proposal: Proposal) -> Configs:
    return {move.bucket: move.config for move in proposal.moves}


def _outcomes(found: Findings, gains: Mapping[str, Ratio]) -> tuple[Outcome, ...]:
    """One outcome a bucket, in the order in which the buckets moved."""
    return tuple(
        Outcome(bucket=bucket, finding=finding, realised=gains[bucket], reason=why)
        for bucket, (finding, why) in found.items()
    )
