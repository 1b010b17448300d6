"""What the search proposer sees and proposes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from agent import context, dispatch
from agent.dropout import Item
from agent.events import Judged, Measured, Move, Outcome, Proposal, RunStarted, Settled
from agent.lab import Knowledge, Passage
from agent.proposers.search import SearchProposer
from agent.state import Episode, SearchState, fold


def begun(synthetic: Any) -> tuple[list[Any], Knowledge]:
    """A run whose incumbent is the kernel as shipped."""
    world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl), (synthetic.TILES,))
    search = world.search(enabled=False)
    search._measure()
    search._settle(proposal := search._propose(), search.trial.outcomes(proposal))
    return world.events, Knowledge(kernels=world.kernels, passages=(Passage(name="note", text="…"),))


def propose(state: SearchState, knowledge: Knowledge) -> Proposal | None:
    return SearchProposer().propose(context.build(state, knowledge))


def settled(state: SearchState, proposal: Proposal, finding: str) -> SearchState:
    outcomes = tuple(Outcome(bucket=m.bucket, finding=finding) for m in proposal.moves)  # type: ignore[arg-type]
    return state.apply(proposal).apply(Settled(candidate=proposal.candidate.id, outcomes=outcomes))


def test_the_same_events_and_seed_give_the_same_proposal_and_another_seed_another(synthetic: Any) -> None:
    events, knowledge = begun(synthetic)
    assert propose(fold(events), knowledge) == propose(fold(list(events)), knowledge)
    assert isinstance(events[0], RunStarted)
    others = {
        propose(fold([events[0].model_copy(update={"seed": seed}), *events[1:]]), knowledge).candidate.id  # type: ignore[union-attr]
        for seed in range(5)
    }
    assert len(others) > 1


def test_a_proposal_moves_each_bucket_to_a_configuration_that_it_has_not_tried(synthetic: Any) -> None:
    events, knowledge = begun(synthetic)
    state = fold(events)
    proposal = propose(state, knowledge)
    assert proposal is not None
    assert len(proposal.moves) == 6, "all buckets at once: nothing has been wrong yet"
    assert len({move.bucket for move in proposal.moves}) == 6
    shipped = {"num_warps": 4, "rows": 1}
    for move in proposal.moves:
        assert move.config.keys() == shipped.keys()
        assert move.config != shipped
        assert move.predicted > 1
    assert len({str(move.config) for move in proposal.moves}) > 1, "neighbours do not all try the same"
    before, after = state.best.source, proposal.candidate.source
    assert before.split(dispatch.BEGIN)[0] == after.split(dispatch.BEGIN)[0]
    assert before.split(dispatch.END)[1] == after.split(dispatch.END)[1]
    assert proposal.predicted > 1


def test_buckets_are_ranked_by_weighted_time_above_the_bound(synthetic: Any) -> None:
    events, _ = begun(synthetic)
    diagnoses = context.diagnose(fold(events))
    lost = [d.recoverable_us for d in diagnoses]
    assert lost == sorted(lost, reverse=True)
    first = diagnoses[0]
    assert first.bucket.name == "token_count 2049+, hidden_size 1025+"
    expected = sum(0.45 * synthetic.SyntheticLab(synthetic.bowl).attainable(c) for c in first.cases)
    assert abs(first.recoverable_us / expected - 1) < 0.05
    heavy = [c.model_copy(update={"weight": 1e6 if c.id == "1x128" else 1.0}) for c in synthetic.CASES]
    again = fold([events[0].model_copy(update={"cases": tuple(heavy)}), *events[1:]])
    assert context.diagnose(again)[0].cases[0].id == "1x128"


def test_a_bucket_at_its_bound_is_last_and_not_never(synthetic: Any) -> None:
    events, _ = begun(synthetic)
    state = fold(events)
    fast = {case.id: 0.1 for case in synthetic.CASES if case.input["token_count"] > 2048}
    diagnoses = context.diagnose(replace(state, latency_us={**state.latency_us, **fast}))
    assert [d.bucket.above[0] for d in diagnoses[-2:]] == [2048, 2048]
    assert all(d.recoverable_us > 0 and d.headroom > 1 for d in diagnoses)


def test_a_risky_technique_is_tried_in_fewer_buckets_at_once(synthetic: Any) -> None:
    events, knowledge = begun(synthetic)
    state = fold(events)
    proposal = propose(state, knowledge)
    assert proposal is not None
    for _ in range(2):
        state = settled(state, proposal, "wrong")
        proposal = propose(state, knowledge)
        assert proposal is not None
    assert 1 <= len(proposal.moves) <= 2


def test_suspects_come_alone_and_first(synthetic: Any) -> None:
    events, knowledge = begun(synthetic)
    proposal = propose(fold(events), knowledge)
    assert proposal is not None
    state = settled(fold(events), proposal, "suspect")
    for move in proposal.moves:
        alone = propose(state, knowledge)
        assert alone is not None
        assert [m.config for m in alone.moves] == [move.config]
        assert alone.moves[0].bucket == move.bucket
        state = settled(state, alone, "no gain")
    assert not state.suspects


def test_hidden_techniques_and_attempts_are_out_of_sight_and_lessons_are_not(synthetic: Any) -> None:
    events, knowledge = begun(synthetic)
    state = fold(events)
    first = propose(state, knowledge)
    assert first is not None
    state = settled(settled(state, first, "no gain"), first, "wrong")
    everything = context.items(state, knowledge)
    kinds = {item.kind for item in everything}
    assert kinds == {"problem", "contract", "lesson", "attempt", "passage", "technique", "belief", "parent"}
    hidden = frozenset(i for i in everything if i.kind not in ("problem", "contract", "lesson", "technique"))
    hidden |= {Item("technique", "num_warps")}
    dropped = replace(state, episode=Episode(0.5, hidden, state.incumbent, state.incumbent))
    view = context.build(dropped, knowledge)
    assert not view.attempts
    assert not view.beliefs
    assert not view.knowledge.kernels
    assert not view.knowledge.passages
    assert view.lessons == state.lessons
    proposal = SearchProposer().propose(view)
    assert proposal is not None
    assert all(move.techniques[0] == "rows" for move in proposal.moves)
    wrong = {(lesson.bucket, str(lesson.config)) for lesson in state.lessons}
    assert not wrong & {(move.bucket, str(move.config)) for move in proposal.moves}
    assert context.build(replace(dropped, episode=None), knowledge) == context.build(state, knowledge)


def test_nothing_left_to_try_is_none(synthetic: Any) -> None:
    events, _ = begun(synthetic)
    state = fold(events)
    plain = replace(state, kernels={})
    assert propose(plain, Knowledge()) is None


def test_a_kernel_that_is_the_start_itself_can_still_be_varied(synthetic: Any) -> None:
    world = synthetic.World(synthetic.SyntheticLab(synthetic.bowl), (synthetic.TILES,))
    search = world.search(enabled=False)
    start = replace(synthetic.EAGER, dsl="triton", source=synthetic.TILES.source)
    run = search.state.run.model_copy(update={"start": start})
    world.events.clear()
    again = type(search)(
        world.lab, search.proposer, search.retrieve, run, budget=search.budget, record=world.events.append
    )
    state = again.run()
    assert state.incumbent != start.id
    assert world.factor(state) < 1.01


def test_a_failed_full_judgement_takes_a_candidate_out_of_the_archive(synthetic: Any) -> None:
    events, _ = begun(synthetic)
    state = fold(events)
    assert state.accepted == (state.incumbent,)
    bad = synthetic.judgement(state.best, "full", "32x128")
    assert state.apply(Judged(candidate=state.incumbent, level="full", judgement=bad)).accepted == ()


def test_beliefs_grow_with_what_was_realised(synthetic: Any) -> None:
    events, knowledge = begun(synthetic)
    proposal = propose(fold(events), knowledge)
    assert proposal is not None
    state = settled(fold(events), proposal, "no gain")
    tried = {key: belief.tried for key, belief in state.beliefs.items()}
    assert tried == Counter(technique for move in proposal.moves for technique in move.techniques)
    assert all(belief.gains == 0 for belief in state.beliefs.values())
    assert isinstance(events[1], Measured)
    assert isinstance(proposal.moves[0], Move)
