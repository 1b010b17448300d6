"""A model that answers from a script, and a search in the synthetic lab whose files it writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.dropout import DropoutPolicy
from agent.events import Missed, RunStarted, Settled
from agent.journal import Budget
from agent.lab import Knowledge
from agent.models.records import Provider, Reply, Request, Stop, Usage
from agent.prompts.statement import Brief
from agent.proposers.author import AuthorProposer
from agent.proposers.model import Asking
from agent.proposers.search import SearchProposer
from agent.search import Search
from atrex.problem import load_problem
from atrex.roofline import load_hardware

FENCE = "```"
BRIEF = Brief(load_problem("rms_norm"), (), "cuda", "triton", load_hardware("H200"), None)


def file(name: str, rows: int = 1) -> str:
    """A kernel of the synthetic lab, by its first line."""
    table = f'DISPATCH = [({{}}, {{"num_warps": 4, "rows": {rows}}})]'
    return f"# {name}\nimport triton\n\n# atrex: dispatch\n{table}\n# atrex: end\n\n\nclass Model: ...\n"


def said(source: str, why: str, *, gain: float = 1.2, technique: str = "tiling", tunables: str = "") -> str:
    more = f"TUNABLES: {tunables}\n" if tunables else ""
    return (
        f"HYPOTHESIS: {why}\nTECHNIQUE: {technique}\nGAIN: {gain}\n{more}\n{FENCE}python\n{source}{FENCE}\n"
    )


@dataclass
class Scripted:
    """A model that answers by the question alone."""

    answer: Callable[[Request], str | Reply]
    name: str = "scripted"
    provider: Provider = "anthropic"
    asked: list[Request] = field(default_factory=list)

    def complete(self, request: Request, *, seconds: float | None = None) -> Reply:
        self.asked.append(request)
        answer = self.answer(request)
        if isinstance(answer, Reply):
            return answer
        usage = Usage(input_tokens=1000, output_tokens=100)
        return Reply(text=answer, stop=Stop.END, usage=usage, cost=0.01, model=self.name)


def search_with(
    synthetic: Any, model: Any, events: list[Any], *, lab: Any = None, budget: Budget | None = None,
    author: Any = None, seed: int = 0, **policy: Any,
) -> Search:  # fmt: skip
    """A search whose files a model writes, going on from `events`."""
    lab = lab or synthetic.SyntheticLab(factor)
    lab.comparisons = sum(event.kind == "compared" for event in events)
    policy = {"enabled": False, **policy}
    start = RunStarted(
        operator="rms_norm", seed=seed, proposer="claude", start=synthetic.EAGER, cases=synthetic.CASES,
        buckets=synthetic.CUTS, dropout=DropoutPolicy(**policy),
    )  # fmt: skip
    return Search(
        lab,
        AuthorProposer("claude", author or Asking(model, BRIEF), SearchProposer()),
        lambda _diagnoses: Knowledge(),
        start,
        budget=budget or Budget(steps=6),
        record=events.append,
        recorded=list(events),
        clock=lambda: lab.now,
    )


def factor(name: str, config: Any, _case: Any) -> float:
    """Time over the attainable: eager is at 5."""
    return {"good": 3.0, "better": 2.0, "best": 1.2, "same": 3.0}[name] * (
        1.0 if config["rows"] == 4 else 1.1
    )


def wrong(config: Any, _case: Any) -> bool:
    return bool(config["rows"] == 8)


def script(request: Request) -> str:
    """An expert with a malformed, a wrong, a repeated and a refused answer on the way."""
    if len(request.messages) > 1:
        return said(file("good"), "one pass is enough")
    answers = [
        "I would rather talk about it.",
        said(file("better", rows=8), "eight rows at once"),
        said(file("better"), "one row at once", gain=1.5),
        said(file("better"), "the same again"),
        said(file("best"), "no more than one read", tunables='{"rows": [1, 2, 4]}'),
    ]
    return answers[request.sample] if request.sample < len(answers) else "nothing more"


def outcomes(events: list[Any]) -> list[str]:
    """What became of each step."""
    found = list[str]()
    for event in events:
        if isinstance(event, Settled):
            found.append(event.outcomes[0].finding)
        elif isinstance(event, Missed):
            found.append(f"missed: {event.reason}")
    return found


def whole_file(name: str) -> str:
    """A file that can be merged: the lab knows it by its mark."""
    return f"""\
# {name}
import torch
import triton
from torch import nn


def {name}(x):
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()

    def forward(self, x, weight):
        return {name}(x)
"""


def by_size(synthetic: Any, speeds: dict[str, tuple[float, float]], merged: Callable[..., float]) -> Any:
    """A lab whose files are as slow as `speeds` says, for few tokens and for many, by the function they hold.

    `merged` makes one of the figures of a file that holds several.
    """

    class Lab(synthetic.SyntheticLab):  # type: ignore[misc, name-defined]
        def judge(self, candidate: Any, *, level: Any, cases: Any) -> Any:
            self.judged.append((candidate.id, level, True))
            return synthetic.judgement(candidate, level, None)

        def compare(self, candidate: Any, incumbent: Any, cases: Any) -> Any:
            self.comparisons += 1
            rng = random.Random(self.comparisons)
            return {case.id: self._paired(candidate, incumbent, case, rng) for case in cases}

        def time_us(self, candidate: Any, case: Any) -> float:
            many = case.input["token_count"] > 64
            names = [name for name in speeds if f"def {name}" in candidate.source]
            factors = [speeds[name][many] for name in names] or [5.0]
            return merged(factors) * self.attainable(case)

    return Lab(factor)
