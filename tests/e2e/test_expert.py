"""The main job with a recorded expert who comes to the best kernel in four steps, and errs between them.

It takes minutes, and timing decides: run it alone. One thread, because with two on a busy machine one waits
for the other by whole time slices (16 ms, where a kernel takes 1), and promotions would tell of neighbours.
What noise hides is answered again, as the same file with another comment.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent.dispatch import lookup, read, write
from agent.events import Compared, Judged, Promoted, Proposal, Settled
from agent.history import events
from tests.e2e import long_expert
from tests.e2e.test_models import AGENTS, optimize
from tests.models.server import ModelServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
THREADS = os.environ.get("ATREX_EXPERT_THREADS", "1")
STEPS = 24
CASE, SHAPE = "55", {"token_count": 510, "hidden_size": 8192}
"""So large that the copies of eager PyTorch leave the second-level cache: a scalar kernel is faster."""
Finished = tuple[Path, dict[str, Any]]
"""The directory of a run, and its report."""
ACCEPTED = ("naive", "fused", "vectorised", "tuned")
REJECTED = {"cheat": "authenticity", "wrong": "sensitivity", "odd": "shapes"}


@pytest.fixture(scope="module", params=list(AGENTS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    pytest.importorskip(AGENTS[request.param][0])
    place = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch, ModelServer(long_expert.answer) as server:
        patch.setenv("OMP_NUM_THREADS", THREADS)
        job = optimize(request.param, server, place, "--dropout", "off", steps=STEPS, case=CASE)
        stdout, stderr = job.communicate(timeout=1100)
    assert job.returncode == 0, stderr
    (directory,) = place.iterdir()
    return directory, json.loads(stdout)


def name_of(proposal: Proposal) -> str:
    """Which of the expert's files it is, with whatever configuration."""
    return proposal.candidate.source.partition("RMSNorm, ")[2].partition(":")[0]


def test_each_step_is_promoted_by_its_interval_and_the_tuned_kernel_is_the_champion(run: Finished) -> None:
    directory, report = run
    found = events(directory / "ledger.jsonl")
    proposals = {event.candidate.id: event for event in found if isinstance(event, Proposal)}
    promoted = [event for event in found if isinstance(event, Promoted)]
    order = dict.fromkeys(name_of(proposals[event.candidate]) for event in promoted)
    assert tuple(order) == ACCEPTED
    assert all(event.gain.low > 1 for event in promoted)
    for event in promoted:
        before = found[: found.index(event)]
        judged = [e for e in before if isinstance(e, Judged) and e.candidate == event.candidate]
        assert judged[-1].level == "full"
        assert judged[-1].judgement.accepted
        compared = [e for e in before if isinstance(e, Compared) and e.candidate == event.candidate]
        assert all(c.ratio.low > 1 for c in compared[-1].comparisons.values())
    assert report["accepted"]
    best = (directory / "best.py").read_text()
    assert proposals[promoted[-1].candidate].candidate.source == best
    table = read(best)
    assert best.startswith(write(long_expert.source("tuned"), table)), "the expert's, but for the table"


def test_the_tuner_moves_within_the_last_kernel_and_keeps_what_won(run: Finished) -> None:
    """How many sums hide an addition's latency depends on the processor: it may be the expert's sixteen."""
    directory, _ = run
    found = events(directory / "ledger.jsonl")
    moves = {e.candidate.id: e for e in found if isinstance(e, Proposal) and e.moves}
    assert moves
    assert all(name_of(event) == "tuned" for event in moves.values())
    won = [e.candidate for e in found if isinstance(e, Promoted) and e.candidate in moves]
    kept = moves[won[-1]].moves[-1].config if won else lookup(read(long_expert.source("tuned")), SHAPE)
    assert lookup(read((directory / "best.py").read_text()), SHAPE) == kept


def test_the_rest_is_rejected_by_the_right_gate(run: Finished) -> None:
    directory, report = run
    found = events(directory / "ledger.jsonl")
    proposals = {event.candidate.id: event for event in found if isinstance(event, Proposal)}
    blamed = dict[str, str]()
    for event in found:
        if isinstance(event, Settled) and event.outcomes[0].finding == "wrong":
            blamed[name_of(proposals[event.candidate])] = event.outcomes[0].reason.partition(":")[0]
    assert blamed == REJECTED
    outcomes = [step["outcome"] for step in report["history"]]
    assert outcomes.count("wrong") == len(REJECTED)
    assert outcomes.count("missed") <= STEPS - len(ACCEPTED) - len(REJECTED)


def test_a_malformed_answer_is_repaired_and_costs_a_call(run: Finished) -> None:
    directory, report = run
    found = events(directory / "ledger.jsonl")
    calls = {
        name_of(event): event.spent.calls
        for event in reversed(found)
        if isinstance(event, Proposal) and event.origin == "model"
    }
    assert calls["naive"] == calls["tuned"] == 2
    assert calls["cheat"] == calls["fused"] == calls["wrong"] == calls["odd"] == calls["vectorised"] == 1
    assert report["spent"]["calls"] == len(list((directory / "replies").iterdir()))
