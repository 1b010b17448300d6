"""Measuring candidates: interleaved rounds, latencies, paired ratios, and claims held to the judge's clock.

`docs/measurement.md` explains the protocol. The worker's samples are believed only within what the
judge's own clock saw, and only if outputs of randomly chosen timed calls are right.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atrex import protocol
from atrex.inputs import tile_rows_for
from atrex.judge import CandidateFault, Engine, Session, new_seed
from atrex.kept import Kept
from atrex.problem import Problem
from atrex.protocol import InputSpec
from atrex.records import Case, Device, FaultKind, Latency, Ratio
from atrex.statistics import paired_ratio, relative_error

_CLAIM_SHARE = 0.7  # a claim below this share of what the judge's clock saw is not believed
_WAKE_UP_US = 8000.0  # two scheduler ticks of 4 ms: a core may be slow to come back to the judge
_BELIEVED_ROUNDS = 2 / 3  # a busy machine delays some answers; a liar's median needs half of them
_CLOCK_SLACK_US = 2000.0  # what a request costs the judge's clock besides the calls
_MOST_PASSES = 1024
_FAMILIAR_SHARE = 0.6  # of the time for new inputs: less for known ones is a memory
_TIMES_FAMILIAR = 2  # in a row before that is said
_LONE_SHARE = 0.5  # of the time of a pass by itself: who claims less of one among others leaves some out
_LONE_SLACK_US = 200.0  # by which the first pass after a wait may be late
_SHORTEST = 2  # of some passes by themselves the second-shortest counts: others wait for a busy machine
_LOOKED_AT = 3  # of them: of six, who leaves two out gets away with it once in five times
_RESTLESS_SHARE = 0.25  # of others' turns, and for each own one before:
_RESTLESS_S = 0.01  # OpenMP's threads wait for their next work awake, some milliseconds
Alone = Callable[[], AbstractContextManager[None]]  # entered while nothing else may use the device


@dataclass(frozen=True, slots=True)
class Protocol:
    """How long to measure one case; part of the policy under which results may be compared."""

    min_rounds: int = 6  # fewer give no interval at 95 %
    max_rounds: int = 40
    target: float = 0.01  # standard error of the median over the median
    case_seconds: float = 1.5
    round_us: float = 20_000.0
    cache_bytes: int = 64 << 20  # last-level cache: inputs rotate through three times as much
    max_sets: int = 128
    min_sets: int | None = None  # None: 2 on a CPU, 4 on a GPU, so that a remembered result does not pay
    most_bytes: int | None = None  # of all sets with their outputs; None: as many as the above say
    tiled: bool = True  # large inputs repeat rows: drawing them all would take longer than timing them
    hold: bool = True  # hold claims to clock and results; off only for baselines made of our own reference


def protocol_for(device: Device, *, quick: bool = False) -> Protocol:
    """The default protocol of a device; `quick` for search, where a champion is measured again anyway."""
    if device == "cuda":
        return Protocol(
            min_rounds=6 if quick else 9,
            case_seconds=0.35 if quick else 1.5,
            round_us=1_500.0 if quick else 3_000.0,
            tiled=False,
        )
    return Protocol(
        min_rounds=6,
        case_seconds=0.2 if quick else 1.2,
        round_us=6_000.0 if quick else 30_000.0,
        cache_bytes=32 << 20,
        max_sets=64,
    )


@dataclass(slots=True)
class Contestant:
    """One candidate being timed on one case."""

    session: Session
    kept: Kept
    method: str = ""
    host_us: float | None = None
    rounds: list[float] = field(default_factory=list)  # one median a round
    samples: list[float] = field(default_factory=list)
    believed: list[bool] = field(default_factory=list)  # each round's claim, by the judge's clock
    lone: list[float] = field(default_factory=list)  # passes by themselves, by the judge's clock
    own_s: float = 0.0  # processor time in its own turns
    turns_s: float = 0.0  # how long these were

    @property
    def sets(self) -> int:
        """Calls in a pass."""
        return len(self.kept.seeds)


@dataclass(frozen=True, slots=True)
class Timing:
    """All rounds of one candidate on one case."""

    latency: Latency
    rounds: tuple[float, ...]

    def ratio_to(self, other: Timing) -> Ratio:
        """Paired speed-up over `other`, which was measured in the same rounds."""
        n = min(len(self.rounds), len(other.rounds))
        return paired_ratio(self.rounds[:n], other.rounds[:n])


@contextmanager
def blaming(session: Session) -> Iterator[None]:
    """Name the candidate in every fault raised inside."""
    try:
        yield
    except CandidateFault as fault:
        fault.candidate = session.candidate.id
        raise


def measure_case(
    sessions: Sequence[Session],
    case: Case,
    rules: Protocol,
    telemetry: Callable[[], dict[str, Any]] = dict,
    floor_us: float = 0.0,
    alone: Alone = nullcontext,
) -> list[Timing]:
    """Time candidates on one case in interleaved rounds; one timing each, in their order.

    `floor_us` is what physics allows on a GPU: the case's bytes at the vendor's peak bandwidth. A CPU's
    caches are faster than its memory, so there it is not looked at. `alone` surrounds what is timed, not the
    compiling before, nor the look at outputs. Raises CandidateFault, also where a claim of time or a timed
    output does not hold.
    """
    problem = sessions[0].problem
    engine = sessions[0].engine
    spec, seeds = _recipe(problem, case, rules, engine)
    contestants = [Contestant(session, Kept(session, problem, spec, seeds)) for session in sessions]
    for contestant in contestants:
        request = protocol.Prepare(inputs=spec, seeds=seeds, flush_bytes=4 * rules.cache_bytes)
        reply = contestant.session.prepare(request)
        contestant.method, contestant.host_us = reply.method or "wall", reply.host_us
    with alone():
        for contestant in contestants:
            contestant.kept.passes = _passes(contestant, rules)
        with _keeping_still(contestants if rules.hold and len(contestants) > 1 else ()):
            _rounds(contestants, rules)
        extra = telemetry()
        for contestant in contestants:
            with blaming(contestant.session):
                _hold(contestant, rules, floor_us)
    if rules.hold:
        _look_at([contestant.kept for contestant in contestants], alone)
    return [Timing(_latency(contestant, extra), tuple(contestant.rounds)) for contestant in contestants]


@contextmanager
def _keeping_still(contestants: Sequence[Contestant]) -> Iterator[None]:
    """Blame who works while it is another's turn, which makes that one slow. Raises CandidateFault."""
    before = [contestant.session.cpu_seconds() for contestant in contestants]
    began = time.monotonic()
    yield
    whole = time.monotonic() - began
    for contestant, earlier in zip(contestants, before, strict=True):
        outside = contestant.session.cpu_seconds() - earlier - contestant.own_s
        spinning = _RESTLESS_S * len(contestant.rounds)
        if outside > spinning + _RESTLESS_SHARE * (whole - contestant.turns_s):
            text = f"worked for {outside:.2f} s while others were timed"
            raise CandidateFault(FaultKind.EXITED, text, contestant.session.candidate.id)


def _rounds(contestants: Sequence[Contestant], rules: Protocol) -> None:
    """Time all contestants in turn until enough is known of each."""
    deadline = time.monotonic() + rules.case_seconds * len(contestants)
    looked_at = random.SystemRandom().sample(range(rules.min_rounds), min(rules.min_rounds, _LOOKED_AT))
    order = list(contestants)
    for number in itertools.count():
        if not _unfinished(contestants, rules, deadline):
            return
        for contestant in order:
            with blaming(contestant.session), _turn(contestant, among=len(order)):
                if number < rules.min_rounds and rules.hold and contestant.method == "wall":
                    began = time.monotonic()
                    contestant.lone.append(contestant.kept.lone(look=number in looked_at))
                    deadline += time.monotonic() - began
                _round(contestant)
        order.reverse()  # so that neither always runs after the other


@contextmanager
def _turn(contestant: Contestant, *, among: int) -> Iterator[None]:
    """Count what goes by inside; processor time only where there are others, whose turns are looked at."""
    spent = contestant.session.cpu_seconds if among > 1 else float
    before, began = spent(), time.monotonic()
    yield
    contestant.turns_s += time.monotonic() - began
    contestant.own_s += spent() - before


def _look_at(kept: Sequence[Kept], alone: Alone) -> None:
    """What timed calls left, and whether they remember. Raises CandidateFault."""
    for one in kept:
        with blaming(one.session):
            one.check()
    with alone():
        for one in kept:
            with blaming(one.session):
                if all(one.familiar() < _FAMILIAR_SHARE for _ in range(_TIMES_FAMILIAR)):
                    text = "takes much less time for inputs that it has seen before than for others"
                    raise CandidateFault(FaultKind.EXITED, text)


def _hold(contestant: Contestant, rules: Protocol, floor_us: float) -> None:
    """Hold a claim of time against physics and the judge's clock. Raises CandidateFault."""
    claimed = min(contestant.rounds)  # ratios are made of rounds, so none of them may lie
    if contestant.method != "wall" and claimed < floor_us:
        raise CandidateFault(FaultKind.EXITED, f"claims less than the physical floor of {floor_us:.2f} us")
    if not rules.hold:
        return
    if contestant.method == "wall":
        believed = sum(contestant.believed) / len(contestant.believed)
        if believed <= _BELIEVED_ROUNDS:
            text = f"in {1 - believed:.0%} of the rounds claims less than what the judge's clock saw"
            raise CandidateFault(FaultKind.EXITED, text)
        if (told := _told_share(contestant, rules)) < _CLAIM_SHARE:
            text = f"claims {told:.0%} of the time that longer rounds take on the judge's clock"
            raise CandidateFault(FaultKind.EXITED, text)
        lone = (sorted(contestant.lone)[:_SHORTEST][-1] - _LONE_SLACK_US) / contestant.sets
        enough = len(contestant.lone) > 2 * _SHORTEST  # else a busy moment may have been all there was
        if enough and (said := statistics.median(contestant.rounds)) < _LONE_SHARE * lone:
            text = f"claims {said:.0f} us a call, which takes {lone:.0f} us where none can be left out"
            raise CandidateFault(FaultKind.EXITED, text)
    elif claimed < _CLAIM_SHARE * (seen := _warm_call_us(contestant, rules)):
        text = f"claims {claimed:.2f} us a call where the judge's clock saw {seen:.2f} us"
        raise CandidateFault(FaultKind.EXITED, text)


def _recipe(
    problem: Problem, case: Case, rules: Protocol, engine: Engine
) -> tuple[InputSpec, tuple[int, ...]]:
    """Inputs of a case, and the seeds of as many sets as make three last-level caches."""
    shape = problem.shape(case)
    cost = problem.cost(shape)
    sets = -(-3 * rules.cache_bytes // max(1, cost.bytes))
    least = (2 if engine.device == "cpu" else 4) if rules.min_sets is None else rules.min_sets
    sets = max(least, min(rules.max_sets, sets))
    if rules.most_bytes is not None:
        a_set = sum(problem.nbytes(tensor, shape) for tensor in problem.tensors)
        sets = max(1, min(sets, rules.most_bytes // max(1, a_set)))
    tile = None
    if rules.tiled and problem.rows is not None:
        tile = tile_rows_for(shape.dims[problem.rows], problem.width(shape))
    spec = InputSpec(shape=shape, seed=0, tile_rows=tile, turned=tile is not None)
    return spec, tuple(new_seed() for _ in range(sets))


def _passes(contestant: Contestant, rules: Protocol) -> int:
    """Passes a round so that it lasts long enough, on the judge's clock: a claim must not set it."""
    passes = 1
    _timed_pass(contestant.session, passes, flush=True)  # warm-up
    while True:
        seen_us = max(1.0, _timed_pass(contestant.session, passes, flush=True))
        if seen_us >= 0.8 * rules.round_us or passes >= _MOST_PASSES:
            return passes
        passes = min(_MOST_PASSES, 4 * passes, 1 + int(passes * rules.round_us / seen_us))


def _unfinished(contestants: Sequence[Contestant], rules: Protocol, deadline: float) -> bool:
    done = len(contestants[0].rounds)
    if done < rules.min_rounds:
        return True
    if done >= rules.max_rounds or time.monotonic() > deadline:
        return False
    return any(relative_error(contestant.rounds) > rules.target for contestant in contestants)


def _round(contestant: Contestant) -> None:
    passes, sets = contestant.kept.passes, contestant.sets
    started = time.perf_counter()
    reply = contestant.session.round(protocol.Round(passes=passes))
    seen_us = (time.perf_counter() - started) * 1e6
    samples = [sample for sample in reply.samples_us if sample > 0]
    if not samples or len(reply.samples_us) != passes:
        text = f"a timed round of {passes} passes came back with {len(reply.samples_us)} samples"
        raise CandidateFault(FaultKind.EXITED, text)
    claimed = sum(samples) * sets
    if contestant.method == "wall":  # nothing but the calls happens in between
        if claimed > seen_us:
            raise CandidateFault(
                FaultKind.EXITED, f"claims {claimed:.0f} us of the {seen_us:.0f} us that passed"
            )
        counted = statistics.median(samples) * passes * sets  # what is reported, not what adds up
        contestant.believed.append(counted >= _CLAIM_SHARE * (seen_us - _WAKE_UP_US))
    contestant.samples += samples
    contestant.rounds.append(statistics.median(samples))


def _told_share(contestant: Contestant, rules: Protocol) -> float:
    """Share of the judge's time that a worker claims, of what three times as many passes take more.

    What a request costs, and a core that is slow to wake up, are in both and cancel. A round that is long by
    itself says no more than it did.
    """

    def least(count: int) -> tuple[float, float]:
        rounds = list[tuple[float, float]]()
        for _ in range(3):
            started = time.perf_counter()
            samples = contestant.session.round(protocol.Round(passes=count)).samples_us
            rounds.append(((time.perf_counter() - started) * 1e6, sum(samples) * contestant.sets))
        return min(rounds)

    passes = contestant.kept.passes
    seen, told = least(passes)
    if seen > 3 * rules.round_us:
        return 1.0
    longer, more = least(3 * passes)
    return (more - told) / (longer - seen) if longer > seen else 1.0


def _warm_call_us(contestant: Contestant, rules: Protocol) -> float:
    """A call on the judge's clock: the slope between two batches, in which a request's own cost cancels.

    The passes are not flushed: warm calls bound cold ones from below, so no honest claim is refused.
    """
    sets = contestant.sets
    per_pass = max(1.0, statistics.median(contestant.samples) * sets)
    few = max(1, round(rules.round_us / per_pass))
    many = few + max(1, round(4 * _CLOCK_SLACK_US / per_pass))
    walls = [min(_timed_pass(contestant.session, passes) for _ in range(3)) for passes in (few, many)]
    return (walls[1] - walls[0]) / ((many - few) * sets)


def _timed_pass(session: Session, passes: int, *, flush: bool = False) -> float:
    """Microseconds on the judge's clock."""
    started = time.perf_counter()
    session.round(protocol.Round(passes=passes, flush=flush))
    return (time.perf_counter() - started) * 1e6


def _latency(contestant: Contestant, telemetry: dict[str, Any]) -> Latency:
    samples = np.asarray(contestant.samples)
    p10, median, p90 = (float(value) for value in np.quantile(samples, [0.1, 0.5, 0.9]))
    return Latency(
        median_us=median,
        p10_us=p10,
        p90_us=p90,
        n=len(samples),
        method=contestant.method,  # type: ignore[arg-type]
        host_us=contestant.host_us,
        **telemetry,
    )
