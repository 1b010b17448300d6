"""Options and arguments that several commands have; nothing heavy is imported here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import typer


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no amount")
    return value


DeviceOption = Literal["auto", "cpu", "cuda"]
Device = Annotated[DeviceOption, typer.Option(help="auto: CUDA if there is a GPU, else CPU")]
FailOn = Literal["partial", "unresolved", "dead-kernel", "fallback", "broken"]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Workload = Annotated[str, typer.Option(help="workload name or file")]
Operator = Annotated[str, typer.Option("--op", help="operator, in any spelling: rms_norm, rmsnorm")]
CaseNames = Annotated[list[str] | None, typer.Option("--case", help="case id or number; repeatable")]
Seed = Annotated[int | None, typer.Option(help="seed; a fresh one is drawn without it")]
RunsDir = Annotated[
    Path | None, typer.Option("--runs", help="directory of runs [default: $ATREX_RUNS or ./runs]")
]
AgentName = Literal["search", "claude", "gpt", "claude-code", "codex"]
ModelName = Annotated[str, typer.Option("--model", help="the agent's model [default: its latest]")]
BaseUrl = Annotated[str, typer.Option(help="with gpt: any server of the Chat Completions API")]
Api = Annotated[
    Literal["responses", "chat"] | None, typer.Option(help="with gpt: which API [default: responses]")
]
Tokens = Annotated[int | None, typer.Option(min=1, help="ask no more once this many are used, in and out")]
Dollars = Annotated[
    float | None, typer.Option(min=0, callback=_finite, help="ask no more once this much is spent")
]
Temperature = Annotated[
    float | None, typer.Option(min=0, callback=_finite, help="sent to the model only if given")
]
Effort = Annotated[str | None, typer.Option(help="how much the model reasons; sent only if given")]
OutputTokens = Annotated[int | None, typer.Option(min=1, help="most tokens of one answer")]
UseKnowledge = Annotated[
    Literal["on", "off"], typer.Option("--knowledge", help="off: no reference kernels, no notes")
]
File = Annotated[Path, typer.Argument(help="a candidate: one Python file with class Model(nn.Module)")]
