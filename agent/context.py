"""What a proposer sees: where time is lost, what was tried, what is known, and where to start from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from agent.buckets import Bucket, Grid
from agent.dropout import Item, Kind
from agent.lab import Knowledge, Tunables
from agent.promote import judged
from agent.state import Attempt, Belief, Lesson, SearchState, Suspect
from atrex.candidate import Candidate
from atrex.records import Bound, Case, Judgement
from atrex.spending import Spending

LEAST_GAIN = 1.02
"""In a bucket, of a file that is worth going on from there: the times are not of the same rounds."""
LEAST_SHARE = 0.02
"""Part of a bucket's time that counts as recoverable whatever its bound says: a bound can be wrong, so a
bucket that has reached it is tried last, not never."""
MOST_REPAIRS = 2
"""Times in a row that a model is shown a wrong file of its own to mend."""


@dataclass(frozen=True, slots=True)
class BucketDiagnosis:
    """How far one bucket is from what this machine can attain. Times are microseconds, weighted."""

    bucket: Bucket
    cases: tuple[Case, ...]
    """Its cases, the one with the most recoverable time first."""
    median_us: float
    attainable_us: float
    recoverable_us: float
    """Sum over the cases of weight * (median - attainable), at least LEAST_SHARE of the time."""
    symptoms: tuple[str, ...]

    @property
    def headroom(self) -> float:
        """The largest speed-up that the bound allows, as a ratio above 1."""
        rest = self.median_us - self.recoverable_us
        return self.median_us / rest if rest > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Parent:
    """An archived file that is faster in one bucket than the incumbent, which does not hold it."""

    bucket: Bucket
    candidate: Candidate
    gain: float
    """The incumbent's time in the bucket over its own."""
    why: str
    """What its author expected of it, and why it did not become a part of the incumbent."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A model's file that a gate found wrong, to be mended."""

    candidate: Candidate
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Context:
    """A proposer's view of the search, without what dropout hides."""

    operator: str
    seed: int
    step: int
    grid: Grid
    diagnoses: tuple[BucketDiagnosis, ...]
    """Most recoverable time first."""
    incumbent: Candidate
    base: Candidate
    """What a proposal changes: the incumbent, or in a dropout episode the descendant of an ancestor."""
    base_kernel: str
    tunables: Tunables
    """What may be varied in the base."""
    attempts: tuple[Attempt, ...]
    lessons: tuple[Lesson, ...]
    suspects: tuple[Suspect, ...]
    parents: tuple[Parent, ...]
    """Where to go on from in a bucket instead, in the order of the diagnoses."""
    beliefs: Mapping[str, Belief]
    knowledge: Knowledge
    seen: frozenset[str]
    """Names of the kernels that were already proposed as a whole."""
    notes: tuple[str, ...]
    latency_us: Mapping[str, float]
    bounds: Mapping[str, Bound]
    """Of the incumbent, by case id."""
    profile: tuple[str, ...]
    """What the base's profile shows, the costliest first."""
    repair: Repair | None
    answers: int
    """Answers of models so far, candidates or not."""
    spent: Spending
    """On them."""
    ids: frozenset[str]
    """Every candidate that was proposed."""
    hidden: frozenset[Item]

    def hides(self, kind: Kind, key: str) -> bool:
        """True iff dropout hides this."""
        return Item(kind, key) in self.hidden


def build(state: SearchState, knowledge: Knowledge) -> Context:
    """The context for the next proposal."""
    hidden = state.episode.hidden if state.episode else frozenset()
    kernel = state.kernel(state.base)

    def shown(kind: Kind, key: str) -> bool:
        return Item(kind, key) not in hidden

    diagnoses = diagnose(state)
    return Context(
        operator=state.run.operator,
        seed=state.run.seed,
        step=state.step,
        grid=state.grid,
        diagnoses=diagnoses,
        incumbent=state.best,
        base=state.candidate(state.base),
        base_kernel=kernel,
        tunables=state.kernels.get(kernel, {}),
        attempts=tuple(a for a in state.attempts if shown("attempt", a.name)),
        lessons=state.lessons,
        suspects=state.suspects,
        parents=tuple(p for p in _parents(state, diagnoses) if shown("parent", p.candidate.id)),
        beliefs={key: belief for key, belief in state.beliefs.items() if shown("belief", key)},
        knowledge=Knowledge(
            kernels=tuple(k for k in knowledge.kernels if shown("passage", k.name)),
            passages=tuple(p for p in knowledge.passages if shown("passage", p.name)),
        ),
        seen=frozenset(state.kernels),
        notes=state.notes,
        latency_us=state.latency_us,
        bounds=state.bounds,
        profile=state.profile.lines if state.profile and state.profile.candidate == state.base else (),
        repair=_repair(state),
        answers=state.answers,
        spent=state.spent,
        ids=frozenset(state.proposals) | {state.run.start.id},
        hidden=hidden,
    )


def _parents(state: SearchState, diagnoses: Iterable[BucketDiagnosis]) -> Iterator[Parent]:
    """For each bucket the fastest whole file in the archive, where it beats the incumbent by enough."""
    written = {name for name, proposal in state.proposals.items() if proposal.origin == "model"}
    files = {n: state.times_us.get(n, {}) for n in state.archive if n in written and n != state.incumbent}
    for each in diagnoses:
        known = {n: seen for n, seen in files.items() if all(case.id in seen for case in each.cases)}
        times = {name: _weighted(each.cases, medians, state) for name, medians in known.items()}
        best = min(times, key=lambda name: (times[name], name), default=None)
        if best is not None and each.median_us >= LEAST_GAIN * times[best]:
            yield Parent(each.bucket, state.candidate(best), each.median_us / times[best], _fate(state, best))


def _weighted(cases: Iterable[Case], times: Mapping[str, float], state: SearchState) -> float:
    """Microseconds of some cases by weight, as the diagnosis adds them up."""
    heavy = any(case.weight > 0 for case in state.run.cases)
    return sum((case.weight if heavy else 1.0) * times[case.id] for case in cases)


def _fate(state: SearchState, name: str) -> str:
    """What was expected of a file, and what came of it."""
    expected = state.proposals[name].title
    became = [a.reason for a in state.attempts if a.kernel == state.proposals[name].kernel and a.reason]
    return "; ".join((expected, *became[-1:]))


def _repair(state: SearchState) -> Repair | None:
    """The last judged candidate, if a model wrote it, it is wrong, and not too many repairs came before."""
    objection = state.objection
    proposal = state.proposals.get(objection.candidate) if objection else None
    if objection is None or proposal is None or proposal.origin != "model" or judged(objection) != "wrong":
        return None
    if state.episode and not state.episode.steps:  # dropout looks elsewhere
        return None
    tries, before = 0, proposal
    while (parent := state.proposals.get(before.base)) and parent.candidate.id in state.wrong:
        tries, before = tries + 1, parent
    return Repair(proposal.candidate, objection) if tries < MOST_REPAIRS else None


def items(state: SearchState, knowledge: Knowledge) -> tuple[Item, ...]:
    """Everything a proposer may see, droppable or not; what `dropout.draw` chooses from."""
    return (
        Item("problem", state.run.operator),
        Item("contract", state.run.operator),
        *(Item("lesson", " ".join(lesson.key)) for lesson in state.lessons),
        *(Item("attempt", attempt.name) for attempt in state.attempts),
        *(Item("passage", kernel.name) for kernel in knowledge.kernels),
        *(Item("passage", passage.name) for passage in knowledge.passages),
        *(Item("technique", technique) for technique in sorted(techniques(state))),
        *(Item("belief", key) for key in state.beliefs),
        *(Item("parent", name) for name in state.archive),
    )


def archive(state: SearchState) -> dict[str, set[str]]:
    """What a search may go on from, with the techniques that made it; a whole kernel is one of its own."""
    made = {name: state.proposals[name] for name in state.archive}
    return {
        name: {move.techniques[0] for move in proposal.moves}
        or {proposal.technique or f"kernel {proposal.kernel}"}
        for name, proposal in made.items()
    }


def techniques(state: SearchState) -> set[str]:
    """Categories of moves: the tunables of the known kernels, each variant, and taking over a neighbour;
    and what models named."""
    found = {"transfer"} | {p.technique for p in state.proposals.values() if p.technique}
    for tunables in state.kernels.values():
        found |= {category(name, value) for name, values in tunables.items() for value in values}
    return found


def category(tunable: str, value: object) -> str:
    """The technique category of setting a tunable: its name; each variant of a kernel is one of its own."""
    return f"variant={value}" if tunable == "variant" else tunable


def diagnose(state: SearchState) -> tuple[BucketDiagnosis, ...]:
    """All buckets that have cases, most recoverable time first."""
    groups = state.grid.group(state.run.cases)
    found = [_diagnosis(bucket, cases, state) for bucket, cases in groups.items()]
    return tuple(sorted(found, key=lambda d: (-d.recoverable_us, d.bucket.index)))


def _diagnosis(bucket: Bucket, cases: tuple[Case, ...], state: SearchState) -> BucketDiagnosis:
    bounds = {case.id: attainable(state.bounds[case.id]) for case in cases}
    excess = {case.id: max(0.0, state.latency_us[case.id] - bounds[case.id]) for case in cases}
    lost = {case.id: _weighted([case], excess, state) for case in cases}
    median = _weighted(cases, state.latency_us, state)
    return BucketDiagnosis(
        bucket=bucket,
        cases=tuple(sorted(cases, key=lambda case: (-lost[case.id], case.id))),
        median_us=median,
        attainable_us=_weighted(cases, bounds, state),
        recoverable_us=max(sum(lost.values()), LEAST_SHARE * median),
        symptoms=(*_symptoms([state.bounds[case.id] for case in cases]), *_seen(cases, state)),
    )


def _seen(cases: tuple[Case, ...], state: SearchState) -> tuple[str, ...]:
    """Symptoms from the incumbent's profile, for the bucket of the case that was profiled."""
    profile = state.profile
    fits = profile is not None and profile.candidate == state.incumbent
    return profile.queries if profile and fits and profile.case in {case.id for case in cases} else ()


def attainable(bound: Bound) -> float:
    """Microseconds that this machine can attain; the vendor's bound where it is not calibrated."""
    return bound.sol_us if bound.attainable_us is None else bound.attainable_us


def _symptoms(bounds: list[Bound]) -> tuple[str, ...]:
    limiter = Counter(bound.limiter for bound in bounds).most_common(1)[0][0]
    # The launch floor, not the work, makes the bound of most of these cases.
    launch = sum(bound.sol_us < 0.5 * attainable(bound) for bound in bounds) * 2 > len(bounds)
    work = "memory-bound" if limiter == "memory" else "compute-bound"
    return ("launch-bound", work) if launch else (work,)
