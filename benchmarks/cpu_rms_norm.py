"""Time rms_norm on this CPU: eager PyTorch, torch.compile, and each C++ reference kernel, call by call.

    python benchmarks/cpu_rms_norm.py                   # the shipped kernels on all production cases
    python benchmarks/cpu_rms_norm.py --cases 8         # on every seventh
    python benchmarks/cpu_rms_norm.py --tune vector_rows.py     # every configuration; prints a dispatch table

Contenders take turns within a round, in an order that rotates, and inputs rotate through more memory than
the last-level cache holds; a round's time is the mean over a batch of calls. A contender's time is its median
over the rounds, and a ratio the median of the rounds' ratios; with `--fastest`, for a machine that others use
too, both are of the fastest rounds. Outputs are allocated by each call, as in production.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml

from traces.workload import load_workload

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "knowledge" / "kernels" / "cpp" / "rms_norm"
PROBLEM = ROOT / "bench" / "rms_norm" / "problem.yaml"
ROTATION_BYTES = 96 << 20  # three times the 32 MiB last-level cache of the machine that this was tuned on
MAX_BUFFERS = 2048
BATCH_SECONDS = 5e-4
EPS = 1e-6

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Configuration = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds a call of each contender on one case, one entry a round."""

    rounds: dict[str, list[float]]
    fastest: bool = False

    def seconds(self, name: str) -> float:
        """Of one call."""
        return min(self.rounds[name]) if self.fastest else statistics.median(self.rounds[name])

    def speedup(self, name: str, over: str) -> float:
        """The time of `over` divided by that of `name`."""
        if self.fastest:
            return self.seconds(over) / self.seconds(name)
        pairs = zip(self.rounds[over], self.rounds[name], strict=True)
        return statistics.median(other / own for other, own in pairs)


def eager(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The operator as PyTorch users write it: x [T, H], weight [H] bf16 to [T, H] bf16."""
    xf = x.float()
    return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)


def production_cases(count: int | None) -> list[tuple[int, int]]:
    """(token_count, hidden_size) of the workload's cases, or of `count` of them spread over it."""
    cases = load_workload(operators=["rms_norm"]).cases("rms_norm")
    shapes = [(int(case.input["token_count"]), int(case.input["hidden_size"])) for case in cases]
    return shapes if count is None else shapes[:: max(1, len(shapes) // count)][:count]


def load_kernel(path: Path, configuration: Configuration | None = None) -> Call:
    """The kernel's forward, with its own dispatch table or with one configuration everywhere."""
    source = path.read_text()
    if configuration is not None:
        before, rest = source.split("# atrex: dispatch\n")
        after = rest.split("# atrex: end\n")[1]
        source = f"{before}DISPATCH = [({{}}, {configuration!r})]\n{after}"
    module = ModuleType(path.stem)
    exec(compile(source, str(path), "exec"), module.__dict__)
    call: Call = module.Model(eps=EPS)
    return call


def configurations(path: Path) -> list[Configuration]:
    """Every combination of the tunables that the kernel's front matter declares."""
    tunables = yaml.safe_load(path.read_text().split("---\n")[1])["tunables"]
    return [dict(zip(tunables, values, strict=True)) for values in itertools.product(*tunables.values())]


def measure(
    contenders: dict[str, Call], token_count: int, hidden_size: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Seconds a call by contender and round: `rounds` rounds, or those (at least 3) that fit `seconds`."""
    case_bytes = 2 * token_count * hidden_size
    count = max(2, min(MAX_BUFFERS, -(-ROTATION_BYTES // case_bytes)))
    buffers = torch.randn(count * token_count, hidden_size, dtype=torch.bfloat16).split(token_count)
    weight = 1 + 0.02 * torch.randn(hidden_size, dtype=torch.bfloat16)
    inputs = itertools.cycle(buffers)
    batches = {name: _batch_size(call, inputs, weight) for name, call in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order, deadline = list(contenders), time.perf_counter() + seconds
    for done in range(rounds):
        if done >= 3 and time.perf_counter() > deadline:
            break
        for name in order:
            times[name].append(_batch(contenders[name], inputs, weight, batches[name]))
        order.append(order.pop(0))
    return times


def _batch(call: Call, inputs: Iterator[torch.Tensor], weight: torch.Tensor, calls: int) -> float:
    chosen = list(itertools.islice(inputs, calls))
    started = time.perf_counter()
    for x in chosen:
        call(x, weight)
    return (time.perf_counter() - started) / calls


def _batch_size(call: Call, inputs: Iterator[torch.Tensor], weight: torch.Tensor) -> int:
    """Calls that take BATCH_SECONDS, after two warm-up calls (the first may compile)."""
    _batch(call, inputs, weight, 2)
    return max(1, min(1000, round(BATCH_SECONDS / _batch(call, inputs, weight, 1))))


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def compare(
    cases: Sequence[tuple[int, int]], kernels: Sequence[Path], rounds: int, seconds: float, fastest: bool
) -> None:
    """Print the shipped kernels' times and speed-ups, case by case and as geometric means."""
    compiled: Call = torch.compile(eager, dynamic=True)
    contenders = {"eager": eager, "compile": compiled, **{path.stem: load_kernel(path) for path in kernels}}
    names = [path.stem for path in kernels]
    header = "".join(f"{name:>16} {'x eager':>8} {'x compile':>9} {'GB/s':>6}" for name in names)
    print(f"{'T':>7} {'H':>5} {'eager us':>10} {'compile us':>10}{header}")
    results = []
    for token_count, hidden_size in cases:
        times = Times(measure(contenders, token_count, hidden_size, rounds, seconds), fastest)
        results.append(times)
        row = f"{token_count:7} {hidden_size:5} {times.seconds('eager') * 1e6:10.1f} "
        row += f"{times.seconds('compile') * 1e6:10.1f}"
        for name in names:
            own = times.seconds(name)
            row += (
                f"{own * 1e6:16.1f} {times.speedup(name, 'eager'):8.2f} {times.speedup(name, 'compile'):9.2f}"
            )
            row += f" {4e-9 * token_count * hidden_size / own:6.1f}"
        print(row, flush=True)
    for name in names:
        for other in ("eager", "compile"):
            ratios = [times.speedup(name, other) for times in results]
            mean, worst = geometric_mean(ratios), min(ratios)
            print(f"{name}: {mean:.2f}x {other} (worst {worst:.2f}x, {len(ratios)} cases)")


def tune(cases: Sequence[tuple[int, int]], kernel: Path, rounds: int, seconds: float) -> None:
    """Print, for each bucket that the problem declares, the configurations nearest to the best of each case.

    By the fastest round of each: a hundred configurations leave time for few rounds, and a round that
    another process disturbs can only be slower.
    """
    buckets = yaml.safe_load(PROBLEM.read_text())["buckets"]
    cuts = [[*buckets[name], math.inf] for name in ("token_count", "hidden_size")]
    tried = {repr(c): load_kernel(kernel, c) for c in configurations(kernel)}
    for token_cut, hidden_cut in itertools.product(*cuts):
        bucket = [
            case for case in cases if (token_cut, hidden_cut) == tuple(
                next(cut for cut in axis if size <= cut) for axis, size in zip(cuts, case, strict=True)
            )
        ]  # fmt: skip
        if not bucket:
            continue
        regret: dict[str, list[float]] = {name: [] for name in tried}
        for case in bucket:
            times = measure(tried, *case, rounds=rounds, seconds=seconds)
            fastest = {name: min(times[name]) for name in tried}
            for name in tried:
                regret[name].append(fastest[name] / min(fastest.values()))
        print(f"token_count <= {token_cut}, hidden_size <= {hidden_cut}: {bucket}")
        for name in sorted(tried, key=lambda name: geometric_mean(regret[name]))[:6]:
            print(
                f"    {geometric_mean(regret[name]):.3f} (worst {max(regret[name]):.3f})  {name}", flush=True
            )


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", nargs="*", type=Path, help="kernel files (default: all C++ rms_norm ones)")
    parser.add_argument("--cases", type=int, help="how many of the cases, spread evenly (default: all)")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=6.0, help="time for the rounds of one case")
    parser.add_argument("--tune", type=Path, help="try every configuration of this kernel instead")
    parser.add_argument("--fastest", action="store_true", help="compare fastest rounds, not medians")
    options = parser.parse_args()
    cases = production_cases(options.cases)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {len(cases)} cases")
    with torch.no_grad():
        if options.tune:
            path = options.tune if options.tune.exists() else KERNELS / options.tune
            tune(cases, path, options.rounds, options.seconds)
        else:
            kernels = options.kernels or sorted(KERNELS.glob("*.py"))
            compare(cases, kernels, options.rounds, options.seconds, options.fastest)


if __name__ == "__main__":
    main()
