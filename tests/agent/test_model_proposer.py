"""A search with a model in a synthetic lab: what it is told, what it answers, and what a kill costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.events import Judged, Missed, Profiled, Promoted, Proposal, Settled, load_event
from agent.funds import Funds
from agent.journal import Budget
from agent.lab import TimingFault
from agent.models.cache import Cached
from agent.models.records import Reply, Request, Stop
from agent.profiling.records import Bottleneck
from agent.prompts import room
from agent.proposers.author import TUNER_PATIENCE, Recorded
from agent.proposers.model import Asking
from agent.state import SearchState, fold
from atrex.spending import Spending
from tests.agent.scripted import (
    BRIEF,
    Scripted,
    by_size,
    factor,
    file,
    outcomes,
    said,
    script,
    search_with,
    whole_file,
    wrong,
)


def test_a_model_walks_to_the_best_and_the_tuner_tunes_it(synthetic: Any) -> None:
    events, model = list[Any](), Scripted(script)
    lab = synthetic.SyntheticLab(factor, wrong=wrong)
    state = search_with(synthetic, model, events, lab=lab, budget=Budget(steps=12)).run()
    assert outcomes(events)[:5] == [
        "promoted", "wrong", "promoted", "missed: the file has been tried before", "promoted",
    ]  # fmt: skip
    assert "promoted" in outcomes(events)[5:], "the tuner finds rows 4"
    assert state.best.source.startswith("# best")
    assert all(synthetic.config_of(state.best, c)["rows"] == 4 for c in synthetic.CASES)
    assert {event.origin for event in events if isinstance(event, Proposal)} >= {"model", "move"}


def test_what_answers_cost_is_counted_once(synthetic: Any) -> None:
    events, model = list[Any](), Scripted(script)
    lab = synthetic.SyntheticLab(factor, wrong=wrong)
    state = search_with(synthetic, model, events, lab=lab, budget=Budget(steps=5)).run()
    assert state.spent.calls == len(model.asked) == 6
    assert state.spent.tokens == 6 * 1100
    assert state.spent.dollars == pytest.approx(0.06)
    assert state.answers == 5


@pytest.mark.parametrize("limit", [{"tokens": 2500}, {"dollars": 0.025}])
def test_a_budget_of_tokens_or_dollars_ends_the_asking(synthetic: Any, limit: dict[str, Any]) -> None:
    events, model = list[Any](), Scripted(script)
    author = Asking(model, BRIEF, funds=Funds(**limit))
    state = search_with(synthetic, model, events, author=author, budget=Budget(steps=50)).run()
    assert state.finished == "exhausted"
    assert len(model.asked) == 3


def test_a_server_that_counts_nothing_is_counted_by_bytes(synthetic: Any) -> None:
    model = Scripted(lambda _request: Reply(text="x" * 3000, stop=Stop.END, model="m"))
    state = search_with(synthetic, model, [], budget=Budget(steps=1)).run()
    assert state.spent.estimated
    assert state.spent.dollars is None
    assert state.spent.output_tokens == 2 * room.tokens("x" * 3000)
    assert str(state.spent).startswith("2 calls, about ")


@pytest.mark.parametrize(
    ("reply", "calls", "reason"),
    [
        (Reply(text="", stop=Stop.EMPTY, model="m"), 2, "empty"),
        (Reply(text="x", stop=Stop.LENGTH, model="m"), 2, "output limit"),
        (Reply(text="x" * 1_000_000, stop=Stop.CUT, model="m"), 2, "longer"),
        (Reply(text="no", stop=Stop.REFUSED, model="m"), 1, "declined"),
        (Reply(text="call", stop=Stop.TOOL, model="m"), 2, "no"),
        (Reply(text=said("print(os.environ)\n", "curious"), stop=Stop.END, model="m"), 2, "Model"),
    ],
)  # fmt: skip
def test_no_candidate_is_one_step_after_one_repair(
    synthetic: Any, reply: Reply, calls: int, reason: str
) -> None:
    events, model = list[Any](), Scripted(lambda _request: reply)
    search_with(synthetic, model, events, budget=Budget(steps=1)).run()
    (missed,) = [event for event in events if isinstance(event, Missed)]
    assert reason in missed.reason
    assert len(model.asked) == calls
    assert all(len(message.text) < 20_000 for request in model.asked for message in request.messages)


def test_a_wrong_file_comes_back_with_its_witness_twice_at_most(synthetic: Any) -> None:
    def stubborn(request: Request) -> str:
        return said(file("better", rows=8) + f"# try {request.sample}\n", f"try {request.sample}")

    model = Scripted(stubborn)
    lab = synthetic.SyntheticLab(factor, wrong=wrong)
    search_with(synthetic, model, [], lab=lab, budget=Budget(steps=5)).run()
    mends = ["Mend the file." in request.messages[0].text for request in model.asked]
    assert mends == [False, True, True, False, True]
    shown = model.asked[1].messages[0].text
    assert "Gate accuracy: planted" in shown
    assert "# try 0" in shown
    assert "never do this again" in shown


def test_killed_after_any_event_nothing_is_paid_or_judged_twice(synthetic: Any, tmp_path: Path) -> None:
    def run(events: list[Any], directory: Path) -> tuple[SearchState, Scripted]:
        paid = Scripted(script)
        lab = synthetic.SyntheticLab(factor, wrong=wrong)
        model = Cached(paid, directory)
        return search_with(synthetic, model, events, lab=lab, budget=Budget(steps=7)).run(), paid

    whole = list[Any]()
    end, first = run(whole, tmp_path / "whole")
    for cut in range(1, len(whole)):
        events = [load_event(event.model_dump_json()) for event in whole[:cut]]
        resumed, paid = run(events, tmp_path / "whole")
        assert paid.asked == [], f"killed after event {cut}: the replies are on the disk"
        assert resumed.incumbent == end.incumbent
        assert [event.kind for event in events] == [event.kind for event in whole]
        judged = [(event.candidate, event.level) for event in events if isinstance(event, Judged)]
        assert len(judged) == len(set(judged))
        assert fold(events) == resumed
    assert len(first.asked) == len(list((tmp_path / "whole").glob("*.json")))


def test_the_answers_of_a_run_can_be_given_again_for_nothing(synthetic: Any) -> None:
    events, again = list[Any](), list[Any]()
    lab = synthetic.SyntheticLab(factor, wrong=wrong)
    end = search_with(synthetic, Scripted(script), events, lab=lab, budget=Budget(steps=9)).run()
    lab = synthetic.SyntheticLab(factor, wrong=wrong)
    state = search_with(
        synthetic, None, again, lab=lab, author=Recorded(events), budget=Budget(steps=9)
    ).run()
    assert state.incumbent == end.incumbent
    assert state.spent == Spending()
    assert outcomes(again) == outcomes(events)


def test_after_the_last_recorded_answer_the_search_ends(synthetic: Any) -> None:
    recorded = [Missed(reason="as recorded")]
    events = list[Any]()
    state = search_with(synthetic, None, events, author=Recorded(recorded)).run()
    assert state.finished == "exhausted"
    assert outcomes(events) == ["missed: as recorded"]


def test_in_an_episode_a_file_that_beats_the_ancestor_is_its_new_head(synthetic: Any) -> None:
    def answer(request: Request) -> str:
        sources = [file("good"), file("best"), file("same", rows=2), file("better", rows=2)]
        return said(
            sources[min(request.sample, 3)], f"step {request.sample}", technique=f"way {request.sample}"
        )

    events = list[Any]()
    policy = {"enabled": True, "patience": 1, "horizon": 2, "p": 0.0}
    search_with(synthetic, Scripted(answer), events, budget=Budget(steps=4), **policy).run()
    assert outcomes(events)[:2] == ["promoted", "promoted"]
    heads = [event for event in events if isinstance(event, Promoted) and event.role == "head"]
    assert len(heads) == 1, outcomes(events)
    assert outcomes(events)[3] == "advanced"


def test_each_incumbent_is_profiled_once_and_its_bottlenecks_are_told(synthetic: Any) -> None:
    asked = list[str]()

    def profile(candidate: Any, case: Any, median_us: float) -> tuple[Bottleneck, ...]:
        asked.append(candidate.id)
        if candidate == synthetic.EAGER:
            raise TimingFault("no counters here")
        evidence = f"{case.id} takes {median_us:.0f} us"
        return (Bottleneck(kind="memory_bound", evidence=evidence, recoverable_us=1.0, query="memory-bound"),)

    def run(events: list[Any]) -> SearchState:
        lab = synthetic.SyntheticLab(factor, wrong=wrong)
        search = search_with(synthetic, model, events, lab=lab, budget=Budget(steps=3))
        search.profile = profile
        return search.run()

    events, model = list[Any](), Scripted(script)
    state = run(events)
    assert len(asked) == len(set(asked)) == 2
    assert "no profile: no counters here" in model.asked[0].messages[0].text
    seen = [event for event in events if isinstance(event, Profiled)]
    assert seen[-1].queries == ("memory-bound",)
    assert seen[-1].lines[0] in model.asked[-1].messages[0].text
    for cut in range(1, len(events)):
        again = [load_event(event.model_dump_json()) for event in events[:cut]]
        assert run(again).incumbent == state.incumbent
        assert [event.kind for event in again] == [event.kind for event in events]


def test_a_file_that_is_faster_in_some_buckets_serves_those(synthetic: Any) -> None:
    speeds = {"many": (3.0, 1.5), "few": (1.5, 3.0)}  # few tokens, many tokens

    def answer(request: Request) -> str:
        return said(whole_file(["many", "few"][min(request.sample, 1)]), f"step {request.sample}")

    events = list[Any]()
    lab = by_size(synthetic, speeds, min)
    state = search_with(synthetic, Scripted(answer), events, lab=lab, budget=Budget(steps=2)).run()
    assert outcomes(events) == ["promoted", "promoted"]
    settled = [event for event in events if isinstance(event, Settled)]
    assert "for token_count 0-64" in settled[1].outcomes[0].reason
    assert "token_count 2049+" not in settled[1].outcomes[0].reason
    assert all(f"def {name}" in state.best.source for name in speeds)
    assert state.proposals[state.incumbent].origin == "merge"
    assert (state.incumbent, "full", True) in lab.judged


def test_the_tuner_is_left_alone_after_moves_without_gain(synthetic: Any) -> None:
    def answer(request: Request) -> str:
        if request.sample == 0:
            return said(
                file("good", rows=4), "tuned already", tunables='{"rows": [1, 2, 4], "num_warps": [4]}'
            )
        return said(file("best", rows=4), "structure")

    events, model = list[Any](), Scripted(answer)
    search_with(synthetic, model, events, budget=Budget(steps=8)).run()
    origins = [event.origin for event in events if isinstance(event, Proposal) and event.origin != "merge"]
    assert origins[0] == "model"
    again = origins.index("model", 1)
    assert 1 <= again - 1 <= TUNER_PATIENCE
