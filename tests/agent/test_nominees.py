"""Nominees: what is only timed, when the best of it goes before the gates, and what becomes of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from agent.events import Compared, Judged, Promoted, Proposal, Settled, load_event
from agent.journal import Budget
from agent.nominees import WAITING, fruitless, nominate, nominees
from agent.promote import PromotionPolicy
from agent.proposers.moves import MOST_CONFIGS
from agent.state import SearchState, config_key, fold
from atrex.candidate import Candidate


def bowl_world(synthetic: Any, **lab: Any) -> Any:
    """One in which the gates take as long, beside a comparison (4.5 s), as they do on a device."""
    return synthetic.World(
        synthetic.SyntheticLab(synthetic.bowl, prices=(20.0, 60.0), **lab), (synthetic.TILES,)
    )


def nominations(world: Any) -> list[Proposal]:
    return [
        e for e in world.events if isinstance(e, Proposal) and e.because == "the fastest of what was timed"
    ]


def before_nomination(world: Any) -> SearchState:
    """The state in which the first nomination was made."""
    return fold(world.events[: world.events.index(nominations(world)[0])])


def test_moves_are_timed_and_only_the_best_of_them_go_before_the_gates(synthetic: Any) -> None:
    world = bowl_world(synthetic)
    state = world.run(enabled=False)
    assert world.factor(state) < 1.01
    timed = [e for e in world.events if isinstance(e, Settled)]
    judged = [e for e in world.events if isinstance(e, Judged)]
    assert len(judged) <= 2 + 2 * len(nominations(world)), "the kernel itself, and the nominated"
    assert len(nominations(world)) <= len(timed) / 4
    at_once = bowl_world(synthetic)
    at_once.run(enabled=False, promotion=PromotionPolicy(patience=0))
    assert not nominations(at_once)
    assert len([e for e in at_once.events if isinstance(e, Judged)]) > 1.5 * len(judged)


@pytest.mark.parametrize("seconds", [30.0, 60.0])
def test_a_start_that_was_judged_is_not_screened_and_says_what_a_promotion_costs(
    synthetic: Any, seconds: float
) -> None:
    world = bowl_world(synthetic)
    start = Candidate("rms_norm", "triton", synthetic.TILES.source)
    world.run(enabled=False, start=start, judged_seconds=seconds, promotion=PromotionPolicy(patience=99))
    judged = [e for e in world.events if isinstance(e, Judged)]
    assert judged
    assert start.id not in {e.candidate for e in judged}
    assert {e.level for e in judged} == {"full"}, "a tuned file goes before all gates at once"
    assert seconds <= before_nomination(world).elapsed < seconds + 10, "after as long a time of comparisons"


def test_a_nomination_has_the_fastest_move_of_every_bucket(synthetic: Any) -> None:
    world = bowl_world(synthetic)
    world.run(enabled=False)
    state = before_nomination(world)
    nomination = nominate(state)
    assert nomination is not None
    assert nomination == nominations(world)[0].model_copy(update={"elapsed": 0.0})
    assert len(nomination.moves) > 1, "one candidate for several buckets"
    for move in nomination.moves:
        timed = [a for a in state.attempts if a.bucket == move.bucket and a.realised]
        best = max(timed, key=lambda a: a.realised.median if a.realised else 0.0)
        assert best.config == move.config
        assert best.realised
        assert move.predicted == best.realised.median
    assert fruitless(state) >= state.run.promotion.patience or state.elapsed > 80


def test_what_was_faster_than_the_incumbent_and_slower_than_another_move_is_next(synthetic: Any) -> None:
    world = bowl_world(synthetic)
    world.run(enabled=False)
    states = [fold(world.events[: i + 1]) for i, e in enumerate(world.events) if isinstance(e, Settled)]
    state = next(s for s in states if any(len(each) > 1 for each in nominees(s).values()))
    waiting = nominees(state)
    bucket, first = next((b, each) for b, each in waiting.items() if len(each) > 1)
    gains = [attempt.realised.median for attempt in first if attempt.realised]
    assert gains == sorted(gains, reverse=True)
    assert all(a.finding in WAITING for a in first)
    assert {a.finding for a in first} > {"nominated"}, "some were never the fastest"
    nomination = nominate(state)
    assert nomination is not None
    outcomes = [
        {"bucket": m.bucket, "finding": "unconfirmed" if m.bucket == bucket else "untested"}
        for m in nomination.moves
    ]
    settled = Settled.model_validate({"candidate": nomination.candidate.id, "outcomes": outcomes})
    after = state.apply(nomination).apply(settled)
    assert nominees(after)[bucket] == first[1:]
    assert {b: each for b, each in nominees(after).items() if b != bucket} == {
        b: each for b, each in waiting.items() if b != bucket
    }, "what was not to blame stays"


def test_a_promotion_ends_what_was_timed_against_the_earlier_configuration(synthetic: Any) -> None:
    world = bowl_world(synthetic)
    world.run(enabled=False)
    promoted = next(i for i, e in enumerate(world.events) if isinstance(e, Promoted) and e.buckets != ("*",))
    state = fold(world.events[: promoted + 2])  # and its outcomes
    event = world.events[promoted]
    assert isinstance(world.events[promoted + 1], Settled)
    assert not set(nominees(state)) & set(event.buckets)


def test_a_budget_of_steps_or_seconds_leaves_room_for_the_gates(synthetic: Any) -> None:
    world = bowl_world(synthetic)
    state = world.run(enabled=False, budget=Budget(steps=3))
    assert [e.origin for e in world.events if isinstance(e, Proposal) and e.origin != "merge"] == [
        "seed",
        "move",
        "move",
    ]
    assert nominations(world)
    assert any(a.finding == "promoted" and a.bucket != "*" for a in state.attempts)
    for seconds in (220.0, 300.0):
        world = bowl_world(synthetic)
        state = world.run(enabled=False, budget=Budget(seconds=seconds, reserve=0.0))
        assert any(a.finding == "promoted" and a.bucket != "*" for a in state.attempts)
        assert state.elapsed < seconds + 4.5


def test_timing_does_not_go_on_for_longer_than_a_promotion_takes(synthetic: Any) -> None:
    world = bowl_world(synthetic)
    world.run(enabled=False, promotion=PromotionPolicy(patience=1000))
    timed = 0.0
    for one, other in zip(world.events, world.events[1:], strict=False):
        if isinstance(other, Judged):
            timed = 0.0
        elif isinstance(other, Compared):
            timed += other.elapsed - one.elapsed
            waiting = nominees(fold(world.events[: world.events.index(other) + 2]))
            assert timed < 80 + 2 * 4.5 or not waiting


@pytest.mark.slow
def test_killed_between_timing_and_judging_a_run_goes_on_as_it_was(synthetic: Any) -> None:
    options = {"seed": 1, "enabled": False, "budget": Budget(seconds=300.0, reserve=0.0)}
    whole = bowl_world(synthetic)
    whole.run(**options)
    assert nominations(whole)
    for cut in range(2, len(whole.events), 5):
        again = bowl_world(synthetic)
        again.events = [load_event(event.model_dump_json()) for event in whole.events[:cut]]
        again.lab.now = whole.events[cut - 1].elapsed
        resumed = again.run(**options)
        kinds = [(e.kind, getattr(e, "candidate", None)) for e in whole.events]
        assert [(e.kind, getattr(e, "candidate", None)) for e in again.events] == kinds, f"after {cut}"
        assert resumed.incumbent == fold(whole.events).incumbent


@pytest.mark.parametrize("shows_case", [True, False])
def test_a_wrong_nominee_costs_the_others_nothing(synthetic: Any, shows_case: bool) -> None:
    """rows 8 is fastest and wrong for more than 2048 tokens: the other buckets keep what they won."""

    def wrong(config: Any, case: Any) -> bool:
        return bool(case.input["token_count"] > 2048 and config["rows"] == 8)

    world = bowl_world(synthetic, wrong=wrong, shows_case=shows_case)
    state = world.run(enabled=False, budget=Budget(steps=150))
    assert not any(wrong(synthetic.config_of(state.best, c), c) for c in synthetic.CASES)
    right = [c for c in synthetic.CASES if c.input["token_count"] <= 2048]
    assert all(synthetic.bowl("", synthetic.config_of(state.best, c), c) < 1.01 for c in right)
    keys = [lesson.key for lesson in state.lessons]
    assert len(set(keys)) == len(keys)


def test_in_an_episode_moves_stay_near_the_ancestor(synthetic: Any) -> None:
    tunables = {"a": (1, 2, 3), "b": (1, 2, 3), "c": (1, 2, 3), "d": (1, 2, 3)}
    start = dict.fromkeys(tunables, 1)
    kernel = synthetic.kernel("wide", tunables, start)

    def factor(_kernel: str, config: Any, _case: Any) -> float:
        return 1.0 + 0.1 * sum(bool(value != 2) for value in config.values())

    world = synthetic.World(synthetic.SyntheticLab(factor), (kernel,))
    world.run(patience=1, horizon=3, budget=Budget(steps=40))
    inside, widest = False, {True: 0, False: 0}
    for event in world.events:
        inside = (inside or event.kind == "dropout_started") and event.kind != "dropout_ended"
        if isinstance(event, Proposal) and event.because == "expected improvement":
            away = [m.change.count("->") for m in event.moves if m.techniques != ("transfer",)]
            widest[inside] = max([widest[inside], *away])
    assert widest[True] <= 2
    assert widest[False] > 2


@pytest.mark.slow
def test_a_grid_too_large_to_be_looked_at_is_searched_all_the_same(synthetic: Any) -> None:
    values = tuple(range(12))
    tunables = {"a": values, "b": values, "c": values}
    assert len(values) ** 3 > MOST_CONFIGS
    kernel = synthetic.kernel("large", tunables, {"a": 0, "b": 0, "c": 0})

    def factor(_kernel: str, config: Any, _case: Any) -> float:
        return 1.0 + 0.05 * float(sum(abs(value - 7) for value in config.values()))

    world = synthetic.World(synthetic.SyntheticLab(factor), (kernel,))
    state = world.run(enabled=False, budget=Budget(steps=25))
    assert world.factor(state) < 1.2, "of 2.05 at the start and 1.0 at the best"
    keys = [config_key("large", m.bucket, m.config) for p in state.proposals.values() for m in p.moves]
    assert len(keys) > 100
