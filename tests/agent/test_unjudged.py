"""A harness that cannot judge or time says nothing of the candidate: it is asked again, and then believed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from agent.events import Judged, Settled, load_event
from agent.journal import Budget
from agent.lab import TimingFault
from agent.promote import PromotionPolicy
from agent.state import fold
from atrex.records import Status


def failing(synthetic: Any, times: int, *, full: bool) -> Any:
    """A world whose harness fails the first `times` times that it judges a tuned candidate at a level."""

    class Lab(synthetic.SyntheticLab):  # type: ignore[misc, name-defined]
        failed: Counter[str]

        def judge(self, candidate: Any, *, level: Any, cases: Any) -> Any:
            found = super().judge(candidate, level=level, cases=cases)
            shipped = candidate.source == synthetic.TILES.source
            if shipped or (level == "full") != full or self.failed[candidate.id] >= times:
                return found
            self.failed[candidate.id] += 1
            (verdict,) = found.verdicts
            broken = verdict.model_copy(update={"status": Status.ERROR, "reason": "no worker"})
            return found.model_copy(update={"verdicts": (broken,)})

    lab = Lab(synthetic.bowl, prices=(20.0, 60.0))
    lab.failed = Counter()
    return synthetic.World(lab, (synthetic.TILES,))


def test_a_judgement_that_failed_once_changes_nothing_but_the_time(synthetic: Any) -> None:
    plain, shaken = failing(synthetic, 0, full=True), failing(synthetic, 1, full=True)
    budget = Budget(steps=30)
    expected, state = (world.run(enabled=False, budget=budget) for world in (plain, shaken))
    assert shaken.lab.failed
    assert set(shaken.lab.failed.values()) == {1}
    assert shaken.factor(state) < 1.01
    assert not any(attempt.finding == "unjudged" for attempt in state.attempts)
    assert state.elapsed > expected.elapsed
    seen = [(e.candidate, e.level) for e in shaken.events if isinstance(e, Judged)]
    assert len(seen) == len(set(seen)), "one event a judgement"
    again = [e for e in shaken.events if isinstance(e, Judged) and e.asked_again]
    assert {e.candidate for e in again} == set(shaken.lab.failed)
    assert {e.asked_again for e in again} == {"accuracy: no worker"}


def test_a_judgement_that_failed_twice_closes_the_moves_and_teaches_nothing(synthetic: Any) -> None:
    for full in (False, True):
        world = failing(synthetic, 2, full=full)
        # A move is screened only where every win is judged at once.
        policy = PromotionPolicy() if full else PromotionPolicy(patience=0)
        state = world.run(enabled=False, budget=Budget(steps=40), promotion=policy)
        closed = [attempt for attempt in state.attempts if attempt.finding == "unjudged"]
        assert closed
        assert {attempt.reason for attempt in closed} == {"accuracy: no worker"}
        assert set(world.lab.failed.values()) == {2}, "and not a third time"
        assert len({attempt.key for attempt in closed}) == len(closed)
        assert not state.lessons
        assert all(belief.wrong == 0 for belief in state.beliefs.values())
        assert not any(o.finding == "unjudged" for e in world.events if isinstance(e, Settled)
                       for o in e.outcomes if o.bucket == "*")  # fmt: skip


def crowded(synthetic: Any, times: int) -> Any:
    """A world whose machine fails the first `times` times that it times a tuned candidate against another."""

    class Lab(synthetic.SyntheticLab):  # type: ignore[misc, name-defined]
        failed: Counter[tuple[str, str]]

        def compare(self, candidate: Any, incumbent: Any, cases: Any) -> Any:
            pair = candidate.id, incumbent.id
            if candidate.source != synthetic.TILES.source and self.failed[pair] < times:
                self.failed[pair] += 1
                raise TimingFault(f"{TimingFault.HARNESS}others hold the memory")
            return super().compare(candidate, incumbent, cases)

    lab = Lab(synthetic.bowl, prices=(20.0, 60.0))
    lab.failed = Counter()
    return synthetic.World(lab, (synthetic.TILES,))


def test_a_timing_that_failed_once_changes_nothing(synthetic: Any) -> None:
    world = crowded(synthetic, 1)
    state = world.run(enabled=False, budget=Budget(steps=30))
    assert set(world.lab.failed.values()) == {1}
    assert world.factor(state) < 1.01
    assert not any(attempt.finding in ("unjudged", "wrong", "suspect") for attempt in state.attempts)


def test_a_timing_that_failed_twice_closes_the_moves_and_teaches_nothing(synthetic: Any) -> None:
    world = crowded(synthetic, 2)
    state = world.run(enabled=False, budget=Budget(steps=12))
    closed = [attempt for attempt in state.attempts if attempt.finding == "unjudged"]
    assert closed
    assert {attempt.reason for attempt in closed} == {"timing: harness: others hold the memory"}
    assert not any(attempt.finding in ("wrong", "suspect") for attempt in state.attempts)
    assert not state.lessons
    assert state.best.source == synthetic.TILES.source


def test_a_run_killed_beside_a_failed_judgement_goes_on_as_it_was(synthetic: Any) -> None:
    whole = failing(synthetic, 1, full=True)
    whole.run(enabled=False, budget=Budget(steps=12))
    at = [i for i, e in enumerate(whole.events) if isinstance(e, Judged)][1]
    for cut in (at, at + 1):
        again = failing(synthetic, 1, full=True)
        again.events = [load_event(event.model_dump_json()) for event in whole.events[:cut]]
        again.lab.now = whole.events[cut - 1].elapsed
        again.run(enabled=False, budget=Budget(steps=12))
        assert any(e.asked_again for e in again.events if isinstance(e, Judged))
        assert [e.kind for e in again.events] == [e.kind for e in whole.events]
        assert fold(again.events).incumbent == fold(whole.events).incumbent
