"""The options of `atrex optimize` and `atrex bench`; `atrex.cli` registers them."""

from __future__ import annotations

from typing import Annotated, Literal, cast, get_args

import typer

from atrex.commands.options import (
    AgentName,
    Api,
    BaseUrl,
    CaseNames,
    Device,
    Dollars,
    Effort,
    Json,
    ModelName,
    Operator,
    OutputTokens,
    RunsDir,
    Seed,
    Temperature,
    Tokens,
    UseKnowledge,
    Workload,
)


def optimize(
    op: Operator,
    device: Device = "auto",
    workload: Workload = "atrex-bench",
    budget: Annotated[str | None, typer.Option(help="time for the whole job: 90s, 5m [default: 5m]")] = None,
    steps: Annotated[int | None, typer.Option(min=0, help="at most this many proposals")] = None,
    seed: Seed = None,
    dropout: Annotated[Literal["on", "off"], typer.Option(help="optimisation dropout")] = "on",
    case: CaseNames = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="continue this run")] = None,
    runs: RunsDir = None,
    agent: Annotated[AgentName, typer.Option(help="who proposes: search needs no model")] = "search",
    model: ModelName = "",
    base_url: BaseUrl = "",
    api: Api = None,
    tokens: Tokens = None,
    dollars: Dollars = None,
    temperature: Temperature = None,
    effort: Effort = None,
    max_output_tokens: OutputTokens = None,
    knowledge: UseKnowledge = "on",
    replay: Annotated[str, typer.Option(metavar="RUN", help="give this run's answers again, for free")] = "",
    json: Json = False,
) -> None:
    """Improve one operator: search, gate, measure; ends with the best kernel and where points are lost."""
    from agent.agents import AgentOptions
    from agent.optimize import Options
    from agent.optimize import optimize as run

    chosen = AgentOptions(
        agent=agent, model=model, base_url=base_url, api=api, replay=replay, tokens=tokens, dollars=dollars,
        temperature=temperature, effort=effort, max_output_tokens=max_output_tokens,
        knowledge=knowledge == "on",
    )  # fmt: skip
    options = Options(
        op, device, workload, budget, steps, seed, dropout == "on", tuple(case or ()), resume, runs, chosen
    )
    run(options, as_json=json)


def bench(
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", metavar="AGENT", help="eager, compile, library, replay:DIR; or as in optimize"
        ),
    ] = None,
    ops: Annotated[str | None, typer.Option(help="operators, as a,b in any spelling [default: all]")] = None,
    cases: Annotated[
        int | None, typer.Option(min=1, help="at most N cases an operator, evenly spread over all")
    ] = None,
    phase: Annotated[Literal["prefill", "decode"] | None, typer.Option(help="only this phase")] = None,
    device: Device = "auto",
    workload: Workload = "atrex-bench",
    scale: Annotated[
        Literal["full", "small"], typer.Option(help="small: reduced shapes, for a machine without a GPU")
    ] = "full",
    gates: Annotated[
        Literal["full", "screen"], typer.Option(help="level of the gates that a replayed kernel must pass")
    ] = "full",
    vs_eager: Annotated[
        bool | None,
        typer.Option(help="measure eager beside each kernel [default: for library and replay]"),
    ] = None,
    seed: Seed = None,
    budget: Annotated[
        str | None, typer.Option(help="time for the whole: 90s, 10m; what is not reached counts 0")
    ] = None,
    budget_per_op: Annotated[
        str | None, typer.Option(help="time to search for each operator's kernel [default: 5m]")
    ] = None,
    model: ModelName = "",
    base_url: BaseUrl = "",
    api: Api = None,
    tokens: Tokens = None,
    dollars: Dollars = None,
    temperature: Temperature = None,
    effort: Effort = None,
    max_output_tokens: OutputTokens = None,
    knowledge: UseKnowledge = "on",
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="continue this run")] = None,
    runs: RunsDir = None,
    html: Annotated[bool, typer.Option("--html", help="print the report as HTML")] = False,
    json: Json = False,
) -> None:
    """Run an agent or a baseline over the workload: the weighted table, in which a rejected kernel is a 0."""
    from agent.agents import AgentOptions
    from agent.bench import Options
    from agent.bench import bench as run
    from agent.bench_plan import Selection

    selection = Selection(workload=workload, cases=cases, phase=phase, scale=scale)
    chosen = AgentOptions(
        agent=cast(AgentName, agent) if agent in get_args(AgentName) else "search",
        model=model, base_url=base_url, api=api,
        tokens=tokens, dollars=dollars, temperature=temperature, effort=effort,
        max_output_tokens=max_output_tokens, knowledge=knowledge == "on",
    )  # fmt: skip
    options = Options(
        agent, ops, selection, device, seed, budget, gates, vs_eager, runs, resume, budget_per_op, chosen
    )
    run(options, as_json=json, as_html=html)
