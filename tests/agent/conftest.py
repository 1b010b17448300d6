"""A synthetic lab: a seeded, noisy cost surface over cases and configurations, and what is wrong in it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent import dispatch
from agent.buckets import point
from agent.dropout import DropoutPolicy
from agent.events import Compared, Event, RunStarted
from agent.journal import Budget
from agent.lab import Comparison, Config, Knowledge, Level, ReferenceKernel, TimingFault, Tunables
from agent.promote import PromotionPolicy
from agent.proposers.search import SearchProposer
from agent.search import Search
from agent.state import SearchState
from atrex.candidate import Candidate
from atrex.records import Bound, Case, FaultKind, Judgement, Latency, Ratio, Status, Verdict, Witness

CUTS = {"token_count": (64, 2048), "hidden_size": (1024,)}
DIMS = ("token_count", "hidden_size")
EAGER = Candidate("rms_norm", "torch", "class Model: ...\n", note="eager")


def case(tokens: int, hidden: int, weight: float = 1.0) -> Case:
    size = {"token_count": tokens, "hidden_size": hidden}
    return Case(operator="rms_norm", id=f"{tokens}x{hidden}", input=size, phase="prefill", weight=weight)


CASES = tuple(case(t, h) for t in (1, 32, 256, 2048, 4096, 65536) for h in (128, 1024, 2048))


def kernel(name: str, tunables: Tunables, default: Config) -> ReferenceKernel:
    block = (
        f"# {name}\nimport triton\n\n# atrex: dispatch\nDISPATCH = []\n# atrex: end\n\n\nclass Model: ...\n"
    )
    block = block.replace("[]", repr([({}, default)]))
    return ReferenceKernel(name=name, dsl="triton", source=block, tunables=tunables)


def config_of(candidate: Candidate, case: Case) -> Config:
    return dispatch.lookup(dispatch.read(candidate.source), point(case, dict.fromkeys(DIMS)))


@dataclass
class SyntheticLab:
    """`factor(kernel, configuration, case)` is the time relative to what is attainable."""

    factor: Callable[[str, Config, Case], float]
    wrong: Callable[[Config, Case], bool] = lambda _config, _case: False
    wrong_in_full: Callable[[Config, Case], bool] = lambda _config, _case: False
    faulty: Callable[[Config, Case], bool] = lambda _config, _case: False
    shy: Callable[[Config, Case], bool] | None = None
    """Configurations whose first timing in a case is disturbed: they look twice as slow."""
    shows_case: bool = True
    noise: float = 0.02  # standard deviation of ln(ratio) of one pair
    pairs: int = 30
    prices: tuple[float, float] = (1.0, 5.0)
    """Seconds of a screening and of a full judgement; of a comparison, a quarter a case."""
    seed: int = 0
    comparisons: int = 0
    now: float = 0.0
    interrupt_at: int | None = None
    judged: list[tuple[str, Level, bool]] = field(default_factory=list)
    met: set[tuple[str, str]] = field(default_factory=set)

    def attainable(self, case: Case) -> float:
        size = case.input["token_count"] * case.input["hidden_size"]
        return 2.0 + size / 2.0e6

    def time_us(self, candidate: Candidate, case: Case) -> float:
        if candidate.dsl == "torch":
            return 5 * self.attainable(case)
        name = candidate.source.split("\n")[0].removeprefix("# ")
        return self.factor(name, config_of(candidate, case), case) * self.attainable(case)

    def judge(self, candidate: Candidate, *, level: Level, cases: Sequence[Case]) -> Judgement:
        self.now += self.prices[level == "full"]
        rules = (self.wrong, self.wrong_in_full) if level == "full" else (self.wrong,)
        bad = [
            c
            for c in cases
            for rule in rules
            if candidate.dsl != "torch" and rule(config_of(candidate, c), c)
        ]
        self.judged.append((candidate.id, level, not bad))
        return judgement(candidate, level, (bad[0].id if self.shows_case else "probe") if bad else None)

    def compare(
        self, candidate: Candidate, incumbent: Candidate, cases: Sequence[Case]
    ) -> dict[str, Comparison]:
        self.comparisons += 1
        if self.comparisons == self.interrupt_at:
            raise KeyboardInterrupt
        self.now += 0.25 * len(cases)
        for c in cases:
            if candidate.dsl != "torch" and self.faulty(config_of(candidate, c), c):
                raise TimingFault(f"illegal access in case {c.id}")
        rng = random.Random(f"{self.seed}/{self.comparisons}")
        return {c.id: self._paired(candidate, incumbent, c, rng) for c in cases}

    def _paired(
        self, candidate: Candidate, incumbent: Candidate, case: Case, rng: random.Random
    ) -> Comparison:
        ours, theirs = self.time_us(candidate, case), self.time_us(incumbent, case)
        if self.shy and candidate.dsl != "torch" and self.shy(config := config_of(candidate, case), case):
            known = (case.id, str(config))
            ours *= 1.0 if known in self.met else 2.0
            self.met.add(known)
        error = self.noise / math.sqrt(self.pairs)
        seen = math.log(theirs / ours) + rng.gauss(0, error)
        low, mid, high = (math.exp(seen + z * error) for z in (-1.96, 0, 1.96))
        ratio = Ratio(median=mid, low=low, high=high, n=self.pairs)
        return Comparison(ratio=ratio, candidate_us=theirs / mid, incumbent_us=theirs)

    def measure(self, candidate: Candidate, cases: Sequence[Case]) -> dict[str, Latency]:
        self.now += 0.25 * len(cases)
        times = {c.id: self.time_us(candidate, c) for c in cases}
        return {i: Latency(median_us=t, p10_us=t, p90_us=t, n=30, method="graph") for i, t in times.items()}

    def bound(self, case: Case) -> Bound:
        attainable = self.attainable(case)
        return Bound(sol_us=attainable / 1.5, attainable_us=attainable, limiter="memory")


def judgement(candidate: Candidate, level: Level, failed: str | None, gate: str = "accuracy") -> Judgement:
    verdict = Verdict(gate=gate, status=Status.PASS, tolerance_free=False)
    if failed:
        verdict = Verdict(
            gate=gate,
            status=Status.FAIL,
            tolerance_free=False,
            reason="planted",
            fault=FaultKind.LAUNCH,
            witness=Witness(case=failed, seed=1),
        )
    return Judgement(
        candidate=candidate.id,
        operator=candidate.operator,
        device="cuda",
        level=level,
        seed=1,
        required=(gate,),
        verdicts=(verdict,),
    )


@dataclass
class World:
    """A lab, what is known, and the search that runs in it."""

    lab: SyntheticLab
    kernels: tuple[ReferenceKernel, ...]
    events: list[Event] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def search(
        self,
        *,
        seed: int = 0,
        budget: Budget | None = None,
        promotion: PromotionPolicy | None = None,
        start: Candidate = EAGER,
        judged_seconds: float | None = None,
        **policy: Any,
    ) -> Search:
        """Go on from `events`; the lab's noise goes on where the recorded comparisons ended."""
        recorded = list(self.events)
        self.lab.comparisons = sum(isinstance(event, Compared) for event in recorded)
        started = RunStarted(
            operator="rms_norm",
            seed=seed,
            proposer="search",
            start=start,
            judged_seconds=judged_seconds,
            cases=CASES,
            buckets=CUTS,
            promotion=promotion or PromotionPolicy(),
            dropout=DropoutPolicy(**policy),
        )
        return Search(
            self.lab,
            SearchProposer(),
            lambda _diagnoses: Knowledge(kernels=self.kernels),
            started,
            budget=budget or Budget(steps=60),
            record=self.events.append,
            recorded=recorded,  # type: ignore[arg-type]
            progress=self.lines.append,
            clock=lambda: self.lab.now,
        )

    def run(self, **options: Any) -> SearchState:
        return self.search(**options).run()

    def factor(self, state: SearchState) -> float:
        """Geometric mean over the cases of the best kernel's time / attainable."""
        logs = [math.log(self.lab.time_us(state.best, c) / self.lab.attainable(c)) for c in CASES]
        return math.exp(sum(logs) / len(logs))


WARPS, ROWS = (1, 2, 4, 8, 16), (1, 2, 4, 8)
TILES = kernel("tiles", {"num_warps": WARPS, "rows": ROWS}, {"num_warps": 4, "rows": 1})


def bowl(_kernel: str, config: Config, case: Case) -> float:
    """One optimum a bucket: few warps and many rows where there are many tokens, the reverse where few."""
    many = case.input["token_count"] > 64
    best = (2.0, 3.0) if many else (3.0, 0.0)
    away = [abs(math.log2(config[t]) - b) for t, b in zip(("num_warps", "rows"), best, strict=True)]  # type: ignore[arg-type]
    return 1.0 + 0.15 * sum(away)


TRAPPED = kernel(
    "trapped",
    {"variant": ("row", "tile"), "num_warps": WARPS, "rows": ROWS},
    {"variant": "row", "num_warps": 8, "rows": 2},
)


def trap(_kernel: str, config: Config, _case: Case) -> float:
    """`row` is good at once and ends at 1.3; `tile` ends at 1.0, and is worse than `row` near row's best."""
    warps, rows = (math.log2(config[t]) for t in ("num_warps", "rows"))  # type: ignore[arg-type]
    if config["variant"] == "row":
        return 1.3 + 0.1 * (abs(warps - 3) + rows)
    return 1.0 + 0.25 * (warps + 3 - rows)


@pytest.fixture
def synthetic() -> Any:
    """This module: `import-mode=importlib` gives test files no other way to share classes."""
    import sys

    return sys.modules[__name__]
