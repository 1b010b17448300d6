"""Recorded landscapes: searched by the real search, with the recorded noise and on the recorded clock."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import context, dispatch
from agent.dispatch import Rule
from agent.dropout import DropoutPolicy
from agent.events import Event, Promoted, RunStarted
from agent.journal import Budget
from agent.lab import Config, Knowledge, Proposer, TimingFault
from agent.promote import PromotionPolicy
from agent.proposers.random import RandomProposer
from agent.proposers.search import SearchProposer
from agent.recorded import (
    Cell,
    Landscape,
    Pace,
    Point,
    RecordedLab,
    combinations,
    growing_grids,
    load_landscape,
    planned,
    save_landscape,
)
from agent.search import Search
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.records import Bound, Case, Latency, Provenance, Result, Status
from atrex.score import score, score_cases

SOURCE = (
    "# atrex: dispatch\nDISPATCH = [({}, {'num_warps': 4, 'rows': 1})]\n# atrex: end\n\n\nclass Model: ...\n"
)
TUNABLES: dict[str, tuple[Any, ...]] = {"num_warps": (1, 2, 4, 8), "rows": (1, 2, 4)}
START: Config = {"num_warps": 4, "rows": 1}
MACHINE = Provenance(hardware="Test", device="cpu", harness="h", torch="t", python="p")
Factor = Callable[[Config, Case], float]
Status_ = Callable[[Config, Case], Status]


def case(tokens: int) -> Case:
    size = {"token_count": tokens}
    return Case(operator="rms_norm", id=f"case-{tokens}", input=size, phase="decode", weight=1.0)


CASES = (case(8), case(32), case(1024))


def bowl(config: Config, case: Case) -> float:
    """Best is (8 warps, 1 row) where there are few tokens, (1 warp, 4 rows) where there are many."""
    warps, rows = (math.log2(config[name]) for name in ("num_warps", "rows"))  # type: ignore[arg-type]
    few = case.input["token_count"] <= 64
    return 1 + 0.2 * (abs(warps - 3) + rows if few else warps + abs(rows - 2))


def right(_config: Config, _case: Case) -> Status:
    return Status.PASS


def landscape(
    factor: Factor = bowl, status: Status_ = right, noise: float = 0.01, untimed: Config | None = None
) -> Landscape:
    """12 configurations, 3 cases in 2 buckets; speed of light is half of the best time, 10 us."""
    rng = random.Random(0)

    def cell(config: Config, one: Case) -> Cell:
        found = status(config, one)
        if found is not Status.PASS or config == untimed:
            return Cell(seconds=2.0, status=found, reason="planted")
        rounds = [20 * factor(config, one) * math.exp(rng.gauss(0, noise)) for _ in range(8)]
        return Cell(seconds=2.0, rounds_us=tuple(rounds))

    return Landscape(
        operator="rms_norm",
        dsl="triton",
        kernel="kernels/triton/rms_norm/tiles",
        source=SOURCE,
        tunables=TUNABLES,
        buckets={"token_count": (64,)},
        cases=CASES,
        bounds={c.id: Bound(sol_us=10.0, attainable_us=15.0, limiter="memory") for c in CASES},
        method="graph",
        paces={c.id: Pace(seconds=0.5, pairs=10) for c in CASES},
        screen_seconds=20.0,
        points=tuple(
            Point(config=config, load_seconds=1.0, cells={c.id: cell(config, c) for c in CASES})
            for config in combinations(TUNABLES, START)
        ),
        provenance=MACHINE,
        date="2026-01-01T00:00:00Z",
        command="test",
    )


def search(
    world: Landscape,
    proposer: Proposer,
    budget: Budget,
    seed: int = 0,
    patience: int = 3,
    **policy: Any,
) -> tuple[Search, RecordedLab, list[Event]]:
    lab, events = RecordedLab(world, seed, 3.0), list[Event]()
    start = RunStarted(
        operator=world.operator,
        seed=seed,
        proposer=proposer.name,
        start=world.start,
        cases=world.cases,
        buckets=world.buckets,
        promotion=PromotionPolicy(patience=patience),
        dropout=DropoutPolicy(**policy),
    )
    known = Knowledge(kernels=(world.reference,))
    made = Search(lab, proposer, lambda _: known, start, budget=budget, record=events.append, clock=lab.clock)
    return made, lab, events


def table(config: Config) -> Candidate:
    return Candidate("rms_norm", "triton", dispatch.write(SOURCE, (Rule({}, config),)))


# -- what a search finds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("proposer", [SearchProposer, RandomProposer])
def test_the_optimum_of_every_bucket_is_reached(proposer: type[Proposer]) -> None:
    world = landscape()
    for seed in range(3):
        made, _, _ = search(world, proposer(), Budget(steps=200), seed, enabled=False)
        state = made.run()
        assert world.efficiency(state.best.source) > 0.99 * world.best_efficiency
        assert world.speedup(state.best.source) > 1.2
    assert abs(world.best_efficiency - 0.5) < 0.01


@pytest.mark.parametrize("proposer", [SearchProposer, RandomProposer])
def test_what_is_wrong_is_never_adopted(proposer: type[Proposer]) -> None:
    def status(config: Config, case: Case) -> Status:
        return Status.FAIL if case.input["token_count"] > 64 and config["rows"] == 4 else Status.PASS

    world = landscape(status=status)
    made, _, events = search(world, proposer(), Budget(steps=200), enabled=False)
    state = made.run()
    promoted = [event.candidate for event in events if isinstance(event, Promoted)]
    assert promoted
    for name in promoted:
        cells = world.cells(state.candidate(name).source)
        assert all(cell.status is Status.PASS for cell in cells.values())
    assert {lesson.config["rows"] for lesson in state.lessons} == {4}
    assert world.efficiency(state.best.source) > 0.99 * world.best_efficiency


def test_what_the_harness_could_not_judge_has_no_timing_and_is_never_promoted() -> None:
    def status(config: Config, _case: Case) -> Status:
        return Status.ERROR if config["num_warps"] == 8 else Status.PASS

    made, _, _ = search(landscape(status=status), SearchProposer(), Budget(steps=200), enabled=False)
    state = made.run()
    assert any(attempt.reason.startswith("timing: ") for attempt in state.attempts)
    assert all(rule.config["num_warps"] != 8 for rule in dispatch.read(state.best.source))


def test_a_timing_that_failed_fails_again() -> None:
    slow: Config = {"num_warps": 8, "rows": 4}
    lab = RecordedLab(landscape(untimed=slow), 0, 3.0)
    assert lab.judge(table(slow), level="screen", cases=CASES).accepted
    with pytest.raises(TimingFault, match="case-8: planted"):
        lab.compare(table(slow), lab.landscape.start, CASES)
    assert lab.compare(table({"num_warps": 8, "rows": 2}), lab.landscape.start, CASES)


def test_nothing_is_made_up_for_a_configuration_that_is_not_recorded() -> None:
    lab = RecordedLab(landscape(), 0, 3.0)
    with pytest.raises(UsageError, match=r"no recorded point has the configuration .*16"):
        lab.judge(table({"num_warps": 16, "rows": 1}), level="screen", cases=CASES)


def test_efficiency_is_the_score_of_atrex() -> None:
    world = landscape()
    results = []
    for one in CASES:
        median = world.at(START).cells[one.id].median_us
        latency = Latency(median_us=median, p10_us=median, p90_us=median, n=1, method="graph")
        results.append(
            Result(
                candidate="c",
                operator=one.operator,
                case=one.id,
                policy="",
                accepted=True,
                latency=latency,
                bound=world.bounds[one.id],
            )
        )
    assert world.efficiency(SOURCE) == pytest.approx(score(score_cases(CASES, results)).S)


# -- noise and clock -----------------------------------------------------------------------------------------


def test_a_seed_replays_the_same_noise_and_another_seed_other_noise() -> None:
    def events(seed: int) -> list[str]:
        made, _, found = search(landscape(noise=0.1), SearchProposer(), Budget(steps=20), seed=0)
        made.lab.seed = seed  # type: ignore[attr-defined]
        made.run()
        return [event.model_dump_json() for event in found]

    assert events(1) == events(1)
    assert events(1) != events(2)


def test_a_comparison_is_made_of_recorded_rounds() -> None:
    world = landscape(noise=0.1)
    fast: Config = {"num_warps": 8, "rows": 1}
    found = RecordedLab(world, 0, 3.0).compare(table(fast), world.start, CASES)
    for name, comparison in found.items():
        ours, theirs = (world.at(config).cells[name].rounds_us for config in (fast, START))
        assert min(ours) <= comparison.candidate_us <= max(ours)
        assert min(theirs) <= comparison.incumbent_us <= max(theirs)
        assert min(theirs) / max(ours) <= comparison.ratio.low <= comparison.ratio.median
        assert comparison.ratio.n == world.paces[name].pairs
    again = RecordedLab(world, 0, 3.0)
    assert again.compare(table(fast), world.start, CASES) == found
    assert again.compare(table(fast), world.start, CASES) != found, "two measurements are independent"


def test_requests_take_what_they_took() -> None:
    """Cold, a table costs a worker (1 s) and a first call a case (2 s each): 7 of the 20 s of a screening."""
    world = landscape()
    lab = RecordedLab(world, 0, 3.0)

    def took(request: Callable[[], object]) -> float:
        before = lab.clock()
        request()
        return lab.clock() - before

    other = table({"num_warps": 8, "rows": 1})
    for candidate in (world.start, other):
        assert took(lambda c=candidate: lab.judge(c, level="screen", cases=CASES)) == 20.0  # type: ignore[misc]
    assert took(lambda: lab.judge(other, level="screen", cases=CASES)) == 13.0, "compiled already"
    assert took(lambda: lab.judge(other, level="full", cases=CASES)) == 3 * 20.0 - 7.0
    assert took(lambda: lab.compare(other, world.start, CASES[:2])) == 1.0
    assert took(lambda: lab.measure(other, CASES)) == 0.75
    fresh = table({"num_warps": 8, "rows": 2})
    assert took(lambda: lab.compare(fresh, world.start, CASES[:2])) == 1.0 + 1.0 + 2 * 2.0, "compiled for two"
    assert took(lambda: lab.compare(fresh, world.start, CASES)) == 1.5 + 2.0, "and for the third"


@pytest.mark.parametrize("proposer", [SearchProposer, RandomProposer])
def test_the_budget_is_in_recorded_seconds(proposer: type[Proposer]) -> None:
    made, lab, events = search(landscape(), proposer(), Budget(seconds=300.0, reserve=0.0))
    state = made.run()
    assert state.finished == "budget"
    assert state.elapsed == lab.clock()
    begun = [event.elapsed for event in events if event.kind == "proposed" and event.origin != "merge"]  # type: ignore[attr-defined]
    assert max(begun) < 300.0
    assert lab.clock() < 300.0 + 20.0 + 3 * 20.0 + 10.0, "at most one proposal too many"


# -- random search -------------------------------------------------------------------------------------------


def test_random_search_tries_every_configuration_once_and_ends() -> None:
    world = landscape(lambda _config, _case: 1.0)
    made, _, _ = search(world, RandomProposer(), Budget(steps=500), patience=0, enabled=False)
    state = made.run()
    keys = [attempt.key for attempt in state.attempts if attempt.config]
    assert len(set(keys)) == len(keys) == 2 * 11
    assert state.finished == "exhausted"
    assert made.state.best.id == world.start.id


def test_random_search_is_uniform() -> None:
    """First draws of 1320 seeds over the 11 configurations that are left: chi-square with 10 degrees of
    freedom, which exceeds 40 once in 60000 times."""
    made, _, _ = search(landscape(), RandomProposer(), Budget(steps=1), enabled=False)
    view = context.build(made.run(), Knowledge(kernels=(landscape().reference,)))
    counts = Counter[str]()
    for seed in range(1320):
        proposal = RandomProposer().propose(replace(view, seed=seed))
        assert proposal is not None
        assert len({move.bucket for move in proposal.moves}) == len(proposal.moves) == 2
        counts[json.dumps(proposal.moves[0].config)] += 1
    assert len(counts) == 11
    assert sum((count - 120) ** 2 / 120 for count in counts.values()) < 40
    assert RandomProposer().propose(view) == RandomProposer().propose(view)


# -- grids and files -----------------------------------------------------------------------------------------


def test_a_grid_grows_by_one_value_and_every_prefix_of_the_plan_holds_a_whole_one() -> None:
    tunables: dict[str, tuple[Any, ...]] = {"block": (1, 2, 3, 4, 5), "warps": (4, 8), "kind": ("a",)}
    start: Config = {"block": 2, "warps": 8, "kind": "a"}
    grids = growing_grids(tunables, start, 8)
    assert [grid["block"] for grid in grids] == [(2,), (2, 5), (2, 5), (1, 2, 5), (1, 2, 3, 5)]
    assert [grid["warps"] for grid in grids] == [(8,), (8,), (4, 8), (4, 8), (4, 8)]
    plan = planned(grids, start)
    assert plan[0] == start
    sizes = [len(combinations(grid, start)) for grid in grids]
    assert sizes == [1, 2, 4, 6, 8]
    for grid, size in zip(grids, sizes, strict=True):
        assert all(config in plan[:size] for config in combinations(grid, start))
    assert len(planned(growing_grids(tunables, start, 1000), start)) == 10


def test_a_file_holds_all_of_it_in_the_same_bytes(tmp_path: Path) -> None:
    world = landscape(untimed={"num_warps": 8, "rows": 4})
    path = tmp_path / "new" / "l.json.gz"
    save_landscape(world, path)
    written = path.read_bytes()
    assert load_landscape(path) == world
    save_landscape(load_landscape(path), path)
    assert path.read_bytes() == written


def _without_a_point(data: dict[str, Any]) -> None:
    data["points"].pop(3)


def _start_is_wrong(data: dict[str, Any]) -> None:
    cell = next(p for p in data["points"] if p["config"] == START)["cells"]["case-32"]
    cell |= {"status": "FAIL", "reason": "wrong", "rounds_us": []}


def _rounds_of_a_wrong_output(data: dict[str, Any]) -> None:
    data["points"][0]["cells"]["case-8"]["status"] = "FAIL"


def _unknown_field(data: dict[str, Any]) -> None:
    data["mood"] = "good"


def _no_bound(data: dict[str, Any]) -> None:
    del data["bounds"]["case-8"]


def _case_twice(data: dict[str, Any]) -> None:
    data["cases"].append(data["cases"][0])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_without_a_point, "the 12 combinations"),
        (_start_is_wrong, "no times for case case-32"),
        (_rounds_of_a_wrong_output, "points.0.cells.case-8"),
        (_unknown_field, "mood"),
        (_no_bound, "bounds: must hold exactly the cases"),
        (_case_twice, "twice"),
    ],
)
def test_a_bad_file_is_one_clear_line(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None], says: str
) -> None:
    data = json.loads(landscape().model_dump_json())
    spoil(data)
    path = tmp_path / "bad.json.gz"
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    with pytest.raises(UsageError, match=says) as caught:
        load_landscape(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{}", gzip.compress(b"{}", mtime=0)[:-4], gzip.compress(b"[", mtime=0)],
    ids=["missing", "empty", "plain", "cut", "malformed"],
)
def test_what_is_no_landscape_is_one_clear_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.json.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"benchmarks/landscape\.py") as caught:
        load_landscape(path)
    assert "\n" not in str(caught.value)
