"""Going on with a run, or with its answers: what a later session may change, and what it is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agent import bench, final, optimize
from agent.agents import AgentOptions, open_agent
from agent.bench_plan import OperatorPlan, Selection
from agent.bench_search import SearchingAgent
from agent.events import Event, Finished, RunStarted
from agent.history import EVENT_ENTRY
from agent.lab import Unanswered
from agent.state import fold
from agent.workspace.account import Account
from agent.workspace.session import Session
from atrex.candidate import Candidate
from atrex.commands.options import AgentName
from atrex.errors import EnvironmentProblem, UsageError
from atrex.ledger import Ledger
from atrex.records import Judgement, Scalar, Status, Verdict
from atrex.report import RunReport
from atrex.runs import Run, RunMeta, create_run, now
from atrex.spending import Spending

KERNEL = Candidate("rms_norm", "gluon", "class Model: ...\n")
ASKED: dict[str, Scalar] = {
    "seconds": 60.0, "steps": 3, "dropout": True, "workload": "atrex-bench", "cases": "54",
}  # fmt: skip


def made(root: Path, agent: dict[str, Any] | None = None, **more: Any) -> Run:
    """A run of rms_norm that has just begun."""
    given = {"agent": "gpt", "model": "m", "tokens": 100, **(agent or {})}
    fields = {"operator": "rms_norm", "device": "cpu", "dsl": "cpp", "seed": 7, "budget": ASKED, **more}
    return create_run(
        root,
        RunMeta(created=now(), command=("atrex",), agent=AgentOptions(**given).scalars(), **fields),
    )


def options(root: Path, run: Run, **more: Any) -> optimize.Options:
    return optimize.Options(op="rmsnorm", runs=root, resume=run.name, **more)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"device": "cuda"}, r"--device cuda: a run that is resumed keeps its own \(cpu\)"),
        ({"seed": 8}, r"--seed 8: .* \(7\)"),
        ({"cases": ("55",)}, r"--case 55: .* \(54\)"),
        ({"workload": "mine"}, "--workload mine"),
        ({"dropout": False}, r"--dropout off: .* \(on\)"),
        ({"op": "layer_norm"}, "is of rms_norm, not layer_norm"),
        ({"agent": AgentOptions(agent="claude")}, r"--agent claude: .* \(gpt\)"),
        ({"agent": AgentOptions(agent="gpt", model="n")}, r"--model n: .* \(m\)"),
        ({"agent": AgentOptions(agent="gpt", temperature=0.5)}, r"--temperature 0.5: .* \(unset\)"),
        ({"agent": AgentOptions(agent="gpt", knowledge=False)}, "--knowledge False"),
        ({"agent": AgentOptions(agent="gpt", dollars=1.0)}, "--dollars needs a price"),
    ],
)
def test_an_option_that_would_change_a_run_is_refused(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    given = replace(options(tmp_path, made(tmp_path)), **more)
    with pytest.raises(UsageError, match=why):
        optimize.optimize(given, as_json=True)


def test_the_same_words_again_are_fine_and_limits_are_the_session_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    agent = AgentOptions(agent="gpt", model="m", tokens=500)
    given = options(
        tmp_path, made(tmp_path), device="cpu", seed=7, cases=("54",), agent=agent, budget="2m", steps=9
    )
    run, opened = optimize._open_run(given)
    task = optimize._task(run, given, opened.options)
    assert (task.seconds, task.steps, task.tokens) == (120.0, 9, 500)
    again, opened = optimize._open_run(options(tmp_path, run))
    task = optimize._task(again, options(tmp_path, run), opened.options)
    assert (task.seconds, task.steps, task.tokens) == (60.0, 3, 100)


def test_a_benchmark_s_search_is_no_run_of_its_own(tmp_path: Path) -> None:
    run = made(tmp_path, budget={})
    with pytest.raises(UsageError, match="atrex bench --resume"):
        optimize.optimize(options(tmp_path, run), as_json=True)


def test_answers_are_given_again_to_the_same_question_only(tmp_path: Path) -> None:
    source = made(tmp_path)
    source.ledger.touch()

    def replayed(op: str, agent: AgentName) -> tuple[Run, Any]:
        chosen = AgentOptions(agent=agent, replay="latest")
        given = optimize.Options(op=op, device="cpu", cases=("0",), runs=tmp_path, agent=chosen)
        return optimize._open_run(given)

    with pytest.raises(UsageError, match="is of rms_norm, not fused_add_rms_norm"):
        replayed("fused_add_rms_norm", "gpt")
    with pytest.raises(UsageError, match="is of --agent gpt, not claude"):
        replayed("rmsnorm", "claude")
    run, _ = replayed("rmsnorm", "gpt")
    assert run.meta.agent["replay"] == str(source.path.resolve()), "`latest` is another run by now"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"ops": "layer_norm"}, "--ops layer_norm"),
        ({"selection": Selection(cases=2)}, r"--cases 2: .* \(1\)"),
        ({"selection": Selection(cases=1, scale="small")}, "--scale small"),
        ({"device": "cuda"}, "--device cuda"),
        ({"level": "screen"}, "--gates screen"),
        ({"per_op": "9m"}, "--budget-per-op 540"),
        ({"beside_eager": True}, "--vs-eager True"),
        ({"models": AgentOptions(model="x")}, "--model x"),
    ],
)
def test_so_it_is_for_a_benchmark(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    asked = bench.Asked(
        agent="search", workload="atrex-bench", ops="rms_norm", cases=1, phase=None, scale="full",
        gates="full", beside_eager=False, per_op=60.0,
    )  # fmt: skip
    run = made(tmp_path, {"agent": "search", "model": "", "tokens": None}, operator="bench-search",
               budget=asked.model_dump())  # fmt: skip
    with pytest.raises(UsageError, match=why):
        bench.bench(bench.Options(runs=tmp_path, resume=run.name, **more), as_json=True)


def searching(root: Path, **limits: Any) -> SearchingAgent:
    run = made(root, operator="bench-search", budget={})
    opened = replace(open_agent(AgentOptions(), 1.0), options=AgentOptions(agent="gpt", **limits))
    plans = {"rms_norm": OperatorPlan("rms_norm", ())}
    return SearchingAgent(opened, run, plans, 60.0, Console(quiet=True))


@pytest.mark.parametrize(
    ("spent", "left"),
    [
        (Spending(), (1000, 5.0)),
        (Spending(input_tokens=400, dollars=3.5), (600, 1.5)),
        (Spending(input_tokens=4000, dollars=9.0), (0, 0.0)),
        (Spending(dollars=None), (1000, 0.0)),
    ],
)
def test_an_operator_gets_what_those_before_it_left(
    tmp_path: Path, spent: Spending, left: tuple[int, float]
) -> None:
    """Where one reply had no price, nothing is known to be left."""
    agent = searching(tmp_path, tokens=1000, dollars=5.0)
    agent.spent["layer_norm"] = spent
    task = agent._task(agent.plans["rms_norm"])
    assert (task.tokens, task.dollars) == left


def ended(agent: SearchingAgent, *events: Event) -> Run:
    """The agent's search for rms_norm, as an earlier session left it."""
    run = agent._run("rms_norm")
    verdict = Verdict(gate="accuracy", status=Status.PASS, tolerance_free=False, reason="")
    judgement = Judgement(
        candidate=KERNEL.id, operator="rms_norm", device="cpu", level="full", seed=1,
        required=("accuracy",), verdicts=(verdict,),
    )  # fmt: skip
    report = RunReport(
        op="rms_norm", device="cpu", dsl="gluon", run=str(run.path), kernel=str(run.best),
        candidates_tried=1, candidates_accepted=1, seconds=1.0, judgement=judgement,
        spent=Spending(calls=2, dollars=1.0),
    )  # fmt: skip
    run.save_best(KERNEL.source)
    run.report().write_text(report.model_dump_json())
    with Ledger(run.ledger, "here") as ledger:
        for event in events:
            ledger.append(EVENT_ENTRY, event)
    return run


def test_a_search_that_came_to_its_end_is_not_made_again(tmp_path: Path) -> None:
    agent = searching(tmp_path)
    start = RunStarted(operator="rms_norm", seed=1, proposer="gpt", start=KERNEL, cases=())
    ended(agent, start, Finished(reason="budget", best=KERNEL.id))
    (agent.bench.path / "searches" / "killed-before-it-said-what-it-is").mkdir()
    assert agent.kernel("rms_norm") == KERNEL, "the id is the judgement's, whatever the device's usual dsl"
    assert agent.judgement(KERNEL.id)
    assert agent.spent["rms_norm"].calls == 2


@pytest.mark.parametrize("reason", ["interrupted", "failed", None])
def test_one_that_did_not_is(tmp_path: Path, reason: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on, and if its model fails again the benchmark ends there."""
    agent = searching(tmp_path)
    start = RunStarted(operator="rms_norm", seed=1, proposer="gpt", start=KERNEL, cases=())
    ended(agent, start, *([Finished(reason=reason, best=KERNEL.id)] if reason else []))
    outage = EnvironmentProblem("no credit")

    class Failing:
        failure, events = outage, ()

        def __init__(self, *_: object) -> None: ...

        def execute(self) -> None: ...

    monkeypatch.setattr("agent.bench_search.Job", Failing)
    with pytest.raises(Unanswered, match="no credit"):
        agent.kernel("rms_norm")


def test_an_interrupted_session_of_a_tool_is_no_gift(tmp_path: Path) -> None:
    """It has no answer in the ledger yet, but the report says what it has cost."""
    run = made(tmp_path)
    state = fold([RunStarted(operator="rms_norm", seed=1, proposer="codex", start=KERNEL, cases=())])
    assert final._spent(run, state) is None
    session = Session(tool="codex", version="1", tokens=500, dollars=0.5, transcript=tmp_path / "t.jsonl")
    Account().plus(session).save(run)
    spent = final._spent(run, state)
    assert spent
    assert (spent.tokens, spent.dollars) == (500, 0.5)
