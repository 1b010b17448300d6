"""Search with and without optimisation dropout, and uniform random search, replayed over recorded landscapes.

    python benchmarks/ablation.py docs/results/landscapes/*.json.gz --seeds 20 --output ablation.md

The search is the real one: its loop, state, promotion rules and proposer. Only the lab is recorded
(`agent.recorded`), with a clock of its own, so a run costs no device and a second of a CPU. All arms start
from the same kernel with the same budget of recorded seconds, and the same seed starts the same noise:
differences are paired by seed.

S is that of `atrex.score` over the recorded cases, by the medians of all recorded rounds, never by what a run
happened to measure. Patience, share p and horizon are tuned on one half of the landscapes, drawn by --split,
with seeds of their own, and reported on the other half. Intervals are Student's at 95 %: over seeds for one
landscape, over landscapes for their mean.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from measured import called

from agent.dropout import DropoutPolicy
from agent.events import Event, RunStarted, incumbents
from agent.journal import Budget
from agent.lab import Knowledge
from agent.promote import PromotionPolicy
from agent.proposers.random import RandomProposer
from agent.proposers.search import SearchProposer
from agent.recorded import Landscape, RecordedLab, load_landscape
from agent.search import Search
from atrex.errors import UsageError, run_script

# A full judgement / a screening of the C++ rms_norm: 45.1 s / 13.5 s and 30.6 s / 9.2 s on a CPU.
FULL_FACTOR = 3.3
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  # of the budget, where S is looked at
PATIENCES, SHARES, HORIZONS = (2, 4, 8), (0.15, 0.3, 0.5), (4, 8, 16)
TUNING_SEEDS = 1000  # from here on: no seed of the report


# -- runs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to search."""

    name: str
    proposer: Literal["search", "random"]
    dropout: DropoutPolicy
    patience: int = PromotionPolicy().patience  # of promotion; 0: every win is judged at once


ON = Arm("dropout on", "search", DropoutPolicy())
OFF = Arm("dropout off", "search", DropoutPolicy(enabled=False))
RANDOM = Arm("random", "random", DropoutPolicy(enabled=False), patience=0)
LATE = Arm("random, judged late", "random", DropoutPolicy(enabled=False))


@dataclass(frozen=True, slots=True)
class Terms:
    """What every run gets."""

    seconds: float
    full_factor: float = FULL_FACTOR


@dataclass(frozen=True, slots=True)
class Curve:
    """What one run had found, by the landscape's own medians."""

    S: tuple[float, ...]
    """At each of FRACTIONS of the budget."""
    speedup: float
    """At the end: geometric mean over the cases of the start's median / the best's."""
    steps: int


Runs = dict[tuple[str, str], list[Curve]]
"""By landscape and arm, in the order of the seeds."""


def run(landscape: Landscape, arm: Arm, seed: int, terms: Terms) -> Curve:
    """One search over a landscape."""
    lab = RecordedLab(landscape, seed, terms.full_factor)
    events: list[Event] = []
    search = Search(
        lab,
        SearchProposer() if arm.proposer == "search" else RandomProposer(),
        lambda _diagnoses: Knowledge(kernels=(landscape.reference,)),
        RunStarted(
            operator=landscape.operator,
            seed=seed,
            proposer=arm.proposer,
            start=landscape.start,
            judged_seconds=lab.judging_seconds("full"),
            cases=landscape.cases,
            buckets=landscape.buckets,
            promotion=PromotionPolicy(patience=arm.patience),
            dropout=arm.dropout,
        ),
        budget=Budget(terms.seconds, reserve=0.0),
        record=events.append,
        clock=lab.clock,
    )
    state = search.run()
    bests = [(0.0, landscape.source)] + [
        (event.elapsed, state.candidate(event.candidate).source)
        for event in incumbents(events, terms.seconds)
    ]
    known = [(at, landscape.efficiency(source)) for at, source in bests]
    reached = [[S for at, S in known if at <= part * terms.seconds][-1] for part in FRACTIONS]
    return Curve(tuple(reached), landscape.speedup(bests[-1][1]), state.step)


def _task(task: tuple[str, Landscape, Arm, int, Terms]) -> Curve:
    return run(*task[1:])


def sweep(
    landscapes: Mapping[str, Landscape], arms: Sequence[Arm], seeds: Sequence[int], terms: Terms, jobs: int
) -> Runs:
    """Every arm on every landscape with every seed."""
    tasks = [
        (name, landscape, arm, seed, terms)
        for (name, landscape), arm, seed in itertools.product(landscapes.items(), arms, seeds)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        curves = list(pool.map(_task, tasks, chunksize=4) if jobs > 1 else map(_task, tasks))
    runs: Runs = {}
    for (name, _, arm, *_), curve in zip(tasks, curves, strict=True):
        runs.setdefault((name, arm.name), []).append(curve)
    return runs


# -- statistics ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and the half-width of its interval at 95 %; infinite for a single value."""

    value: float
    half: float

    @property
    def verdict(self) -> str:
        """Of a difference: `win` or `loss` where the interval excludes 0, else `tie`."""
        return "win" if self.value > self.half else "loss" if self.value < -self.half else "tie"

    def text(self, sign: str = "") -> str:
        """Value and half-width, to the digits of the half-width's size."""
        half = "" if math.isinf(self.half) else f" ± {self.half:.2g}"
        return f"{self.value:{sign}.4g}{half}"


def mean(values: Iterable[float]) -> Mean:
    """Student's interval of the mean of independent values."""
    known = list(values)
    if len(known) < 2:
        return Mean(known[0], math.inf)
    error = statistics.stdev(known) / math.sqrt(len(known))
    return Mean(statistics.fmean(known), t_quantile(len(known) - 1) * error)


def t_quantile(df: int, confidence: float = 0.95) -> float:
    """The t that |T| of Student's distribution stays below with this probability, by bisection."""
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, df) < confidence else (low, middle)
    return (low + high) / 2


def t_within(t: float, df: int) -> float:
    """P(|T| < t) for a whole number of degrees of freedom (Abramowitz & Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(df))
    term = total = math.cos(angle) if df % 2 else 1.0
    for k in range(3 if df % 2 else 2, df - 1, 2):
        term *= math.cos(angle) ** 2 * (k - 1) / k
        total += term
    if df % 2 == 0:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if df > 1 else 0.0))


# -- tuning --------------------------------------------------------------------------------------------------


def halves(names: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    """The landscapes to tune on, and the others. Raises UsageError below two."""
    if len(names) < 2:
        raise UsageError("an ablation needs two landscapes or more: one half to tune on, one to report on")
    order = random.Random(seed).sample(sorted(names), len(names))
    return sorted(order[: len(order) // 2]), sorted(order[len(order) // 2 :])


def settings() -> list[Arm]:
    """Dropout policies to choose from, the default first."""
    found = [ON]
    for patience, p, horizon in itertools.product(PATIENCES, SHARES, HORIZONS):
        policy = DropoutPolicy(patience=patience, p=p, horizon=horizon)
        if policy != ON.dropout:
            found.append(Arm(f"patience {patience}, p {p:g}, horizon {horizon}", "search", policy))
    return found


def anytime(runs: Runs, arm: Arm, tops: Mapping[str, float]) -> float:
    """S / best S, averaged over checkpoints, seeds and landscapes: what tuning maximises."""
    shares = [
        statistics.fmean(S / top for curve in runs[name, arm.name] for S in curve.S)
        for name, top in tops.items()
    ]
    return statistics.fmean(shares)


# -- tables --------------------------------------------------------------------------------------------------


def row(*cells: object) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def header(*names: str) -> list[str]:
    """The first two lines of a Markdown table."""
    return [row(*names), row(*["---"] * len(names))]


def landscape_table(landscapes: Mapping[str, Landscape]) -> list[str]:
    """What was recorded."""
    names = ("landscape", "kernel", "recorded on", "configurations", "cases", "unusable", "S start", "S best")
    lines = header(*names)
    for name, each in landscapes.items():
        where = f"{each.provenance.hardware}, {each.date[:10]}"
        ends = (f"{each.efficiency(each.source):.4g}", f"{each.best_efficiency:.4g}")
        lines.append(
            row(name, each.kernel, where, len(each.points), len(each.cases), f"{each.unusable:.0%}", *ends)
        )
    return lines


def section(title: str, *said: str) -> list[str]:
    """A heading and what is said below it, with the empty lines around them."""
    return ["", f"## {title}", "", *(line for text in said for line in (text, ""))]


def versus(runs: Runs, names: Sequence[str], one: Arm, other: Arm) -> list[str]:
    """S at the end of two arms on each landscape, their difference paired by seed, and the tally."""
    lines = header("landscape", f"S {one.name}", f"S {other.name}", "difference", "", "speed-ups", "steps")
    gaps = []
    for name in names:
        ours, theirs = both = runs[name, one.name], runs[name, other.name]
        gaps.append(mean(a.S[-1] - b.S[-1] for a, b in zip(ours, theirs, strict=True)))
        ends = [mean(curve.S[-1] for curve in curves).text() for curves in both]
        gains = ", ".join(f"{statistics.geometric_mean(c.speedup for c in curves):.3f}" for curves in both)
        steps = ", ".join(f"{statistics.fmean(c.steps for c in curves):.0f}" for curves in both)
        lines.append(row(name, *ends, gaps[-1].text("+"), gaps[-1].verdict, gains, steps))
    count = {verdict: sum(gap.verdict == verdict for gap in gaps) for verdict in ("win", "tie", "loss")}
    higher = sum(gap.value > 0 for gap in gaps)
    overall = mean(gap.value for gap in gaps).text("+")
    lines += [
        "",
        f"{one.name} against {other.name}: {count['win']} wins, {count['tie']} ties, {count['loss']} losses "
        f"at 95 %; its mean S is higher on {higher} of {len(gaps)}; mean difference {overall}.",
    ]
    return lines


def over_time(
    runs: Runs, tops: Mapping[str, float], arms: Sequence[Arm], pairs: Sequence[tuple[Arm, Arm]], terms: Terms
) -> list[str]:
    """Mean share of the best S at each checkpoint, and differences, over landscapes."""
    names = [f"{one.name} − {other.name}" for one, other in pairs]
    lines = header("seconds", *(arm.name for arm in arms), *names)
    for place, part in enumerate(FRACTIONS):
        shares = {
            arm.name: [
                statistics.fmean(curve.S[place] / top for curve in runs[name, arm.name])
                for name, top in tops.items()
            ]
            for arm in arms
        }
        cells = [f"{statistics.fmean(shares[arm.name]):.4f}" for arm in arms]
        for one, other in pairs:
            gaps = zip(shares[one.name], shares[other.name], strict=True)
            cells.append(mean(a - b for a, b in gaps).text("+"))
        lines.append(row(f"{part * terms.seconds:.0f}", *cells))
    return lines


def never_worse(runs: Runs, names: Sequence[str], arm: Arm) -> str:
    """How many runs ended with something slower than the start."""
    gains = [curve.speedup for name in names for curve in runs[name, arm.name]]
    worse = sum(gain < 1 for gain in gains)
    least = f"the least speed-up is {min(gains):.4f}"
    return f"{arm.name}: {worse} of {len(gains)} runs end below the start; {least}."


# -- the command ---------------------------------------------------------------------------------------------


def page(landscapes: Mapping[str, Landscape], asked: argparse.Namespace, command: str) -> list[str]:
    """The whole report."""
    terms = Terms(asked.seconds, asked.full_factor)
    names, tops = list(landscapes), {name: each.best_efficiency for name, each in landscapes.items()}
    tune, report = halves(names, asked.split)
    arms, choices = [ON, OFF, RANDOM, LATE], settings()
    runs = sweep(landscapes, arms, range(asked.seeds), terms, asked.jobs)
    trial_seeds = range(TUNING_SEEDS, TUNING_SEEDS + asked.tuning_seeds)
    trials = sweep({name: landscapes[name] for name in tune}, choices, trial_seeds, terms, asked.jobs)
    value = {arm: anytime(trials, arm, {name: tops[name] for name in tune}) for arm in choices}
    ranked = sorted(choices, key=lambda arm: -value[arm])
    tuned = ranked[0]
    runs |= sweep({name: landscapes[name] for name in report}, [tuned], range(asked.seeds), terms, asked.jobs)
    shown = dict.fromkeys([*ranked[:5], ON])
    return [
        "# Optimisation dropout and random search, replayed over recorded landscapes",
        "",
        f"`{command}`, {time.strftime('%Y-%m-%d')}. {asked.seeds} seeds, {terms.seconds:g} recorded seconds "
        f"a run; a full judgement counts as {terms.full_factor:g} screenings. S by the medians of all "
        "recorded rounds; ± is Student's interval at 95 %: of one landscape over seeds, of the mean "
        "difference over landscapes.",
        "",
        *landscape_table(landscapes),
        *section("Search against uniform random search", "The default policy, tuned on nothing here."),
        *versus(runs, names, ON, RANDOM),
        "",
        never_worse(runs, names, ON),
        *section(
            "Search against uniform draws that are judged as late",
            "The random search above puts every win before the gates at once. This one only times its draws, "
            "and judges the best of them as `search` does: what is left is what choosing moves is worth.",
        ),
        *versus(runs, names, ON, LATE),
        *section("Dropout on and off, default policy"),
        *versus(runs, names, ON, OFF),
        *section(
            "Dropout tuned on one half, reported on the other",
            f"Split by --split {asked.split}. Tuned on {', '.join(tune)} with {asked.tuning_seeds} seeds of "
            f"their own, {len(choices)} settings, by the mean share of the best S over all checkpoints:",
        ),
        *header("setting", "share of best S"),
        *(row(f"{arm.name} (default)" if arm == ON else arm.name, f"{value[arm]:.4f}") for arm in shown),
        "",
        *versus(runs, report, tuned, OFF),
        *section("Share of the best S over time"),
        *over_time(runs, tops, arms, [(ON, OFF), (ON, RANDOM), (ON, LATE)], terms),
    ]


def load(paths: Sequence[Path]) -> dict[str, Landscape]:
    """Landscapes by operator and device. Raises UsageError for two of one name."""
    found: dict[str, Landscape] = {}
    for path in paths:
        each = load_landscape(path)
        name = f"{each.operator} ({each.provenance.device})"
        if name in found:
            raise UsageError(f"{path}: another landscape of {name} is among the files; give one of them")
        found[name] = each
    return found


def main() -> int:
    """Run the ablation and write its page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("landscapes", nargs="+", type=Path, help="files of benchmarks/landscape.py")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tuning-seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=510.0, help="recorded seconds a run may use")
    parser.add_argument("--full-factor", type=float, default=FULL_FACTOR, help="full judgement / screening")
    parser.add_argument("--split", type=int, default=0, help="seed of the split in two halves")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    command = called(__file__)
    text = "\n".join([*page(load(asked.landscapes), asked, command), ""])
    print(text, end="")
    if asked.output:
        asked.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    run_script(main)
