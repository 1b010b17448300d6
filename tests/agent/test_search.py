"""The loop in a synthetic lab: it finds what is there, adopts only what is right, and survives a kill."""

from __future__ import annotations

from typing import Any

import pytest

from agent.buckets import Grid
from agent.events import (
    Compared,
    DropoutEnded,
    Finished,
    Judged,
    Promoted,
    Proposal,
    RunStarted,
    Settled,
    load_event,
)
from agent.journal import Budget
from agent.promote import PromotionPolicy
from agent.state import fold
from atrex.errors import UsageError


def test_finds_the_planted_optimum_of_every_bucket(synthetic: Any) -> None:
    for seed in range(3):
        world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl, seed=seed), (synthetic.TILES,))
        state = world.run(seed=seed, enabled=False)
        assert world.factor(state) < 1.01
        assert state.step < 30, "one move in each bucket at a time: far fewer steps than configurations"


def test_the_best_of_several_kernels_is_the_one_that_is_tuned(synthetic: Any) -> None:
    slow = synthetic.kernel("slow", {"num_warps": (1, 2)}, {"num_warps": 1, "rows": 1})

    def factor(name: str, config: Any, case: Any) -> float:
        return 4.0 if name == "slow" else synthetic.bowl(name, config, case)

    world = synthetic.World(synthetic.SyntheticLab(factor), (slow, synthetic.TILES))
    state = world.run(enabled=False)
    assert state.kernel(state.incumbent) == "tiles"
    assert world.factor(state) < 1.01


@pytest.mark.parametrize("shows_case", [True, False])
def test_a_wrong_configuration_is_never_promoted_nor_tried_again(synthetic: Any, shows_case: bool) -> None:
    def wrong(config: Any, case: Any) -> bool:
        return case.input["token_count"] > 64 and config["rows"] == 8  # the fastest, where it is fast

    lab = synthetic.SyntheticLab(synthetic.bowl, wrong=wrong, shows_case=shows_case)
    world = synthetic.World(lab, (synthetic.TILES,))
    state = world.run()
    assert not any(wrong(synthetic.config_of(state.best, c), c) for c in synthetic.CASES)
    assert {lesson.config["rows"] for lesson in state.lessons} == {8}
    assert len({lesson.key for lesson in state.lessons}) == len(state.lessons)
    assert world.factor(state) < 1.15 * 1.01, "the next best, rows 4, is found all the same"
    accepted = {name for name, level, ok in lab.judged if level == "full" and ok}
    for event in world.events:
        if isinstance(event, Promoted) and event.role == "incumbent":
            assert event.candidate in accepted


def test_what_fails_only_the_full_gates_is_not_promoted(synthetic: Any) -> None:
    def wrong(config: Any, case: Any) -> bool:
        return case.input["token_count"] > 2048 and config["num_warps"] in (2, 4) and config["rows"] > 2

    lab = synthetic.SyntheticLab(synthetic.bowl, wrong_in_full=wrong)
    world = synthetic.World(lab, (synthetic.TILES,))
    state = world.run()
    assert not any(wrong(synthetic.config_of(state.best, c), c) for c in synthetic.CASES)
    assert any(lesson.config["rows"] > 2 for lesson in state.lessons)


def test_a_crash_while_timed_is_a_lesson_about_the_one_move(synthetic: Any) -> None:
    def faulty(config: Any, case: Any) -> bool:
        return case.input["token_count"] > 64 and config["num_warps"] == 16

    world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl, faulty=faulty), (synthetic.TILES,))
    state = world.run(enabled=False)
    assert state.lessons
    assert all(lesson.config["num_warps"] == 16 and "illegal" in lesson.reason for lesson in state.lessons)
    assert not any("token_count 0-64" in lesson.bucket for lesson in state.lessons)
    assert world.factor(state) < 1.01


def test_noise_alone_promotes_nothing(synthetic: Any) -> None:
    """Every configuration is as fast as the shipped one: 5 runs of up to 60 steps in 6 buckets adopt nothing
    but the kernel itself, where single intervals would adopt one move in forty."""
    adopted = nominated = 0
    for seed in range(5):
        lab = synthetic.SyntheticLab(lambda *_: 2.0, noise=0.1, seed=seed)
        world = synthetic.World(lab, (synthetic.TILES,))
        state = world.run(seed=seed, enabled=False)
        adopted += sum(a.finding == "promoted" for a in state.attempts if a.bucket != "*")
        nominated += sum(a.finding == "unconfirmed" for a in state.attempts)
    assert adopted == 0
    assert nominated > 0, "some did look better once"


@pytest.mark.parametrize("patience", [0, 3])
def test_a_promotion_is_two_comparisons_whose_intervals_exclude_no_better(
    synthetic: Any, patience: int
) -> None:
    world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl), (synthetic.TILES,))
    world.run(promotion=PromotionPolicy(patience=patience))
    promoted = [event for event in world.events if isinstance(event, Promoted)]
    assert promoted
    assert all(event.gain.better for event in promoted)
    adopted = [event for event in promoted if event.role == "incumbent"]
    for event in adopted:
        before = world.events[: world.events.index(event)]
        assert isinstance(before[-1], Judged)
        assert before[-1].level == "full"
        last = next(e for e in reversed(before) if isinstance(e, Proposal) and e.origin != "merge")
        for moved in last.moves if event.buckets != ("*",) else ():
            if moved.bucket in event.buckets:
                assert len(wins(before, moved)) >= 2, f"{moved.bucket}: {moved.config}"


def wins(events: list[Any], move: Any) -> list[Compared]:
    """Comparisons of candidates with this move, in which its cases are faster."""
    named = {
        e.candidate.id: e.candidate
        for e in events
        if isinstance(e, Proposal) and move in unpredicted(e, move)
    }
    grid = Grid(events[0].buckets)
    cases = [c.id for c in events[0].cases if grid.bucket(c).name == move.bucket]
    compared = (e for e in events if isinstance(e, Compared) and e.candidate in named)
    return [e for e in compared if all(c in e.comparisons and e.comparisons[c].ratio.better for c in cases)]


def unpredicted(proposal: Proposal, like: Any) -> list[Any]:
    """Its moves, with the prediction of another."""
    return [move.model_copy(update={"predicted": like.predicted}) for move in proposal.moves]


def test_no_configuration_is_tried_twice_without_dropout(synthetic: Any) -> None:
    world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl), (synthetic.TILES,))
    state = world.run(enabled=False)
    nominated = {e.candidate.id for e in world.events if isinstance(e, Proposal) and "timed" in e.because}
    tried = [e for e in world.events if isinstance(e, Settled) and e.candidate not in nominated]
    keys = [(move.bucket, str(move.config)) for e in tried for move in state.proposals[e.candidate].moves]
    assert len(set(keys)) == len(keys)
    assert world.events[-1].reason == "exhausted"  # type: ignore[attr-defined]


def test_predicted_and_realised_gain_are_remembered(synthetic: Any) -> None:
    world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl), (synthetic.TILES,))
    state = world.run(enabled=False)
    moves = [a for a in state.attempts if a.bucket != "*" and a.finding != "untested"]
    assert all(a.predicted >= 1 and a.realised for a in moves)
    won = [a for a in moves if a.finding == "promoted"]
    assert won
    assert all(a.realised.better for a in won)


@pytest.mark.slow
def test_a_local_optimum_of_single_moves_does_not_hold_the_tuner(synthetic: Any) -> None:
    """No single move leads on from `row`'s best (1.3) to `tile`'s (1.0); timing widely does."""
    for seed in range(3):
        world = synthetic.World(synthetic.SyntheticLab(synthetic.trap, seed=seed), (synthetic.TRAPPED,))
        assert world.factor(world.run(seed=seed, enabled=False)) < 1.01


def unlucky(synthetic: Any, seed: int = 0) -> Any:
    """A world in which the best configuration looks slow the first time that it is timed in a case."""

    def shy(config: Any, _case: Any) -> bool:
        return (config["variant"], config["num_warps"], config["rows"]) == ("tile", 1, 8)

    lab = synthetic.SyntheticLab(synthetic.trap, seed=seed, shy=shy)
    return synthetic.World(lab, (synthetic.TRAPPED,))


@pytest.mark.slow
def test_dropout_gets_over_a_misjudgement_that_holds_the_search_without_it(synthetic: Any) -> None:
    """Same seeds, same budget. What is remembered as slow is never timed again (next best: 1.25), until it is
    forgotten; 5 of 5 seeds reached 1.0 in all buckets when this was written."""

    def final(seed: int, enabled: bool) -> float:
        world = unlucky(synthetic, seed)
        return float(world.factor(world.run(seed=seed, enabled=enabled, budget=Budget(steps=160))))

    seeds = range(3)
    assert min(final(seed, False) for seed in seeds) > 1.24, "the misjudgement holds"
    assert max(final(seed, True) for seed in seeds) < 1.01


def test_an_episode_that_found_a_new_best_leaves_notes_and_resets_the_share(synthetic: Any) -> None:
    world = unlucky(synthetic)
    world.run(budget=Budget(steps=160))
    shares = {True: set[float](), False: set[float]()}
    for i, event in enumerate(world.events):
        if isinstance(event, DropoutEnded):
            state = fold(world.events[: i + 1])
            shares[event.found].add(round(state.p, 3))
            assert state.episode is None
            assert bool(event.notes) == event.found
    assert shares[True] == {0.3}
    assert shares[False] <= {0.45, 0.6}
    assert shares[False]


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_killed_after_any_event_a_resumed_run_is_the_uninterrupted_one(synthetic: Any, step: int) -> None:
    def world() -> Any:
        def wrong(config: Any, _case: Any) -> bool:
            return config["num_warps"] == 2

        lab = synthetic.SyntheticLab(synthetic.trap, wrong=wrong, shows_case=False)
        return synthetic.World(lab, (synthetic.TRAPPED,))

    options = {"seed": 3, "patience": 1, "horizon": 2, "budget": Budget(steps=15)}
    whole = world()
    whole.run(**options)
    kinds = {event.kind for event in whole.events}
    assert {"dropout_started", "dropout_ended", "promoted"} <= kinds
    for cut in range(1, len(whole.events), step):
        again = world()
        again.events = [load_event(event.model_dump_json()) for event in whole.events[:cut]]
        resumed = again.run(**options)
        assert again.events == whole.events, f"killed after event {cut}"
        assert resumed == fold(again.events)


def test_ctrl_c_returns_the_best_so_far_and_a_second_session_goes_on(synthetic: Any) -> None:
    world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl), (synthetic.TILES,))
    world.lab.interrupt_at = 9
    state = world.run(enabled=False)
    assert state.finished == "interrupted"
    assert state.incumbent != synthetic.EAGER.id
    world.lab.interrupt_at = None
    end = world.run(enabled=False)
    assert world.factor(end) < 1.01
    assert sum(isinstance(event, Finished) for event in world.events) == 2
    assert sum(isinstance(event, RunStarted) for event in world.events) == 1


def test_the_ledger_of_another_run_is_refused(synthetic: Any) -> None:
    world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl), (synthetic.TILES,))
    world.run(budget=Budget(steps=2))
    with pytest.raises(UsageError, match="another run"):
        world.run(seed=1)


def test_seconds_include_earlier_sessions_and_leave_a_reserve(synthetic: Any) -> None:
    world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl), (synthetic.TILES,))
    budget = Budget(seconds=100, reserve=0.2)
    state = world.run(enabled=False, budget=budget)
    assert state.finished == "budget"
    assert 40 < state.elapsed <= 100, "what is left, and one step more at worst, fits"
    steps = state.step
    assert world.run(enabled=False, budget=budget).step == steps, "spent is spent"
    assert world.run(enabled=False, budget=Budget(seconds=1000)).step > steps
    with pytest.raises(UsageError, match="budget"):
        Budget()


def test_progress_is_one_line_a_step(synthetic: Any) -> None:
    world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl), (synthetic.TILES,))
    state = world.run(enabled=False)
    assert [line.split(":")[0] for line in world.lines] == [f"step {i + 1}" for i in range(state.step)]
    assert sum(isinstance(event, Settled) for event in world.events) == state.step
