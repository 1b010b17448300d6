"""Sweep and time the Triton rms_norm kernels on a CUDA device, case by case.

    python3 benchmarks/gpu_rms_norm.py sweep [--out DIR]     the configurations on every production case
    python3 benchmarks/gpu_rms_norm.py table [--baselines]   the shipped dispatch table, and its rivals

Protocol: a CUDA graph of R calls on R distinct inputs (together more than three times the L2, or 128 calls),
each writing an output of its own; a 256 MB write before every replay evicts the L2; events around the replay;
median of the replays over R. The outputs of a timed replay are compared with an fp64 oracle.

S = sol / median with sol = bytes / vendor peak. A = (launch floor + bytes / copy bandwidth) / median, where
the floor is a chain of one-block kernels that each load one cold element and store it. bytes = 4TH + 2H.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "knowledge" / "kernels" / "triton" / "rms_norm"
PEAK = 4.8e12  # vendor's memory bandwidth of an H200, bytes/s
L2_BYTES = 60e6
EPS = 1e-6

Config = dict[str, Any]
Case = tuple[int, int]
Inputs = tuple[torch.Tensor, torch.Tensor]  # x, weight
Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# (hidden size, token counts) of the 56 production cases of Atrex-Bench
_PRODUCTION: list[tuple[int, list[int]]] = [
    (128, [3, 1504, 2048, 4096, 8192, 16384, 24544, 49024, 65488, 95952, 131072, 247680, 505888]),
    (256, [3]),
    (512, [3]),
    (1024, [2500, 4968, 10000, 16200, 22100]),
    (1152, [360, 720, 1200, 2116, 3844, 8136, 15000, 24368, 49152, 65556]),
    (1280, [7, 24752]),
    (1536, [1736, 5000]),
    (2048, [128, 256, 512, 1029, 2010, 4174, 8290, 16530, 20538]),
    (2560, [1672]),
    (3584, [298, 514, 1024]),
    (5120, [1]),
    (7168, [53, 141, 632, 917, 1688, 3804]),
    (8192, [154, 510]),
]
CASES: list[Case] = [(t, h) for h, counts in _PRODUCTION for t in counts]


def load_kernel(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def model_with(module: ModuleType, config: Config) -> Any:
    """The module's Model with one configuration for every problem."""
    module.DISPATCH = [({}, config)]  # type: ignore[attr-defined]
    return module.Model(eps=EPS)


def least_bytes(case: Case) -> int:
    t, h = case
    return 4 * t * h + 2 * h


# --- configurations

PLAIN: Config = {"cache": "default", "pdl": 1}


def structures(hidden_size: int) -> list[Config]:
    """Tilings whose threads load whole 16-byte vectors and hold 8 to 80 elements, with few idle lanes."""
    found = []
    for block in (128, 256, 512, 1024, 2048, 4096, 8192):
        padded = triton.cdiv(hidden_size, block) * block
        if padded > max(1.34 * hidden_size, block if block == triton.next_power_of_2(hidden_size) else 0):
            continue
        for rows in (1, 2, 4, 8, 16, 32):
            for warps in (1, 2, 4, 8, 16):
                lane_columns = rows * block / (32 * warps)  # columns of one chunk that a thread loads
                held = rows * padded / (32 * warps)
                wide = block >= 1024 and rows > 2
                if lane_columns in (8, 16, 32) and 8 <= held <= 80 and not wide:
                    found.append(PLAIN | {"block": block, "rows": rows, "num_warps": warps})
    return found


def refinements(config: Config) -> list[Config]:
    """The same tiling with the launch and cache choices moved."""
    return [config | change for change in ({"pdl": 0}, {"cache": "stream"}, {"pdl": 0, "cache": "stream"})]


# --- measuring


def make_inputs(case: Case, seed: int) -> list[Inputs]:
    """R input sets, x ~ N(0, 0.02), weight ~ 1 + N(0, 0.02), whose traffic exceeds three times the L2."""
    t, h = case
    count = min(128, max(8, int(3.3 * L2_BYTES / least_bytes(case)) + 1))
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(t, h, device="cuda", generator=generator).mul_(0.02).to(torch.bfloat16)
    weight = torch.randn(h, device="cuda", generator=generator).mul_(0.02).add_(1).to(torch.bfloat16)
    return [(torch.roll(x, i, dims=1), torch.roll(weight, i)) for i in range(count)]


def error_in_bounds(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> float:
    """Largest |out - fp64 oracle| as a fraction of its bound: half a bf16 ulp plus 2^-15 of the value."""
    worst = 0.0
    for begin in range(0, x.shape[0], 16384):
        part = x[begin : begin + 16384].double()
        exact = part * torch.rsqrt(part.square().mean(1, keepdim=True) + EPS) * weight.double()
        half_ulp = torch.exp2(torch.frexp(exact).exponent.double() - 9)
        bound = half_ulp + exact.abs() * 2.0**-15
        error = (out[begin : begin + 16384].double() - exact).abs() / bound
        worst = max(worst, float(error.nan_to_num(float("inf")).max()))
    return worst


class Timer:
    """Times calls by graph replay; one flush buffer and one memory pool for all."""

    def __init__(self, replays: int) -> None:
        self.replays = replays
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        self.pool = torch.cuda.graph_pool_handle()
        self.keeper = torch.cuda.CUDAGraph()  # holds the pool between graphs
        with torch.cuda.graph(self.keeper, pool=self.pool):
            self.flush.fill_(1)

    def time(self, call: Call, sets: list[Inputs]) -> tuple[float, list[torch.Tensor]]:
        """Median microseconds a call, and the outputs of the last timed replay."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call(*sets[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=stream):
            outputs = [call(*inputs) for inputs in sets]
        for output in outputs:
            output.fill_(float("nan"))
        spans = []
        for _ in range(self.replays + 2):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.flush.fill_(1)
            begin.record()
            graph.replay()
            end.record()
            spans.append((begin, end))
        torch.cuda.synchronize()
        kept = [b.elapsed_time(e) * 1e3 / len(sets) for b, e in spans[2:]]
        copies = [outputs[0].clone(), outputs[-1].clone()]
        return statistics.median(kept), copies


@triton.jit
def _empty(x):  # type: ignore[no-untyped-def]
    pass


@triton.jit
def _one_element(x, out):  # type: ignore[no-untyped-def]
    tl.store(out, tl.load(x))


def launch_floors(timer: Timer) -> tuple[float, float]:
    """Microseconds in a graph chain of an empty kernel, and of one that copies a cold element."""
    memory = torch.zeros(128, 1 << 14, dtype=torch.bfloat16, device="cuda")
    sets = [(row, torch.empty_like(row)) for row in memory]

    def empty(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        _empty[(1,)](x, num_warps=1)
        return out

    def one(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        _one_element[(1,)](x, out, num_warps=1)
        return out

    return timer.time(empty, sets)[0], timer.time(one, sets)[0]


def host_us(call: Call, x: torch.Tensor, weight: torch.Tensor, calls: int = 300) -> float:
    """Microseconds of host time that one launch costs the caller."""
    call(x, weight)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        call(x, weight)
    spent = time.perf_counter() - began
    torch.cuda.synchronize()
    return spent / calls * 1e6


def copy_bandwidth() -> float:
    """Bytes read plus written per second by a 4 GB device-to-device copy."""
    source = torch.randint(0, 255, (4 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    spans = []
    for _ in range(8):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        spans.append((begin, end))
    torch.cuda.synchronize()
    milliseconds: float = statistics.median(b.elapsed_time(e) for b, e in spans[1:])
    return 2 * source.numel() / (milliseconds * 1e-3)


# --- compiling ahead


def _compile_one(task: tuple[str, Case, Config]) -> str | None:
    """In a worker: compile by launching once, into the cache on disk that every process shares."""
    path, (t, h), config = task
    module = sys.modules.get(Path(path).stem) or load_kernel(Path(path))
    try:
        x = torch.zeros(t, h, dtype=torch.bfloat16, device="cuda")
        model_with(module, config)(x, x[0].clone())
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  (reported with its configuration, the sweep goes on)
        return f"{h} {config}: {error}"
    return None


def compile_all(pool: Any, path: Path, wanted: Iterable[tuple[Case, Config]]) -> None:
    distinct: dict[str, tuple[str, Case, Config]] = {}
    for (t, h), config in wanted:
        distinct.setdefault(json.dumps([h, config]), (str(path), (t, h), config))
    began = time.perf_counter()
    failures = [f for f in pool.map(_compile_one, distinct.values(), chunksize=2) if f]
    print(f"compiled {len(distinct)} in {time.perf_counter() - began:.0f} s, {len(failures)} failed")
    for failure in failures[:5]:
        print("  ", failure[:300])


# --- commands


def name_of(config: Config) -> str:
    return " ".join(str(config[key]) for key in ("block", "rows", "num_warps", "cache", "pdl"))


def measure_configs(
    module: ModuleType, timer: Timer, sets: list[Inputs], configs: list[Config]
) -> dict[str, float]:
    """Microseconds by configuration name; a wrong result raises."""
    times = {}
    for config in configs:
        us, outputs = timer.time(model_with(module, config), sets)
        for (x, weight), out in zip((sets[0], sets[-1]), outputs, strict=True):
            if (error := error_in_bounds(x, weight, out)) > 1:
                raise SystemExit(f"wrong: {name_of(config)} on {list(x.shape)}: {error} of the bound")
        times[name_of(config)] = us
    return times


def sweep(path: Path, out: Path, replays: int, refined: int) -> None:
    """Every tiling on every case, then the launch and cache choices of each case's `refined` fastest."""
    with multiprocessing.get_context("fork").Pool(14) as pool:  # before this process touches CUDA
        module = load_kernel(path)
        compile_all(pool, path, [(case, config) for case in CASES for config in structures(case[1])])
        timer = Timer(replays)
        results: dict[Case, dict[str, float]] = {}
        second: list[tuple[Case, Config]] = []
        for case in CASES:
            found = structures(case[1])
            results[case] = measure_configs(module, timer, make_inputs(case, seed=1), found)
            fastest = sorted(results[case], key=results[case].__getitem__)[:refined]
            second += [(case, r) for c in found if name_of(c) in fastest for r in refinements(c)]
        compile_all(pool, path, second)
        for case in CASES if refined else []:
            wanted = [config for which, config in second if which == case]
            results[case] |= measure_configs(module, timer, make_inputs(case, seed=2), wanted)
    rows = [{"token_count": t, "hidden_size": h, "us": times} for (t, h), times in results.items()]
    (out / "sweep.json").write_text(json.dumps(rows))
    for (t, h), times in results.items():
        top = sorted(times.items(), key=lambda item: item[1])[:3]
        print(t, h, " | ".join(f"{us:.2f} {name}" for name, us in top))


def eager(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)


def library(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[1],), weight, EPS)


def compiled() -> Call:
    """torch.compile of the eager formula, afresh: one kernel for a hidden size, the token count dynamic."""
    torch._dynamo.reset()
    function = torch.compile(eager)

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        torch._dynamo.maybe_mark_dynamic(x, 0)
        return function(x, weight)

    return call


def table(path: Path, out: Path, replays: int, baselines: bool) -> None:
    """The shipped dispatch on every case, beside eager, torch's own rms_norm and torch.compile."""
    module = load_kernel(path)
    calls: dict[str, Call] = {"kernel": module.Model(eps=EPS)}
    if baselines:
        serial = load_kernel(path)
        serial.DISPATCH = [(bounds, config | {"pdl": 0}) for bounds, config in module.DISPATCH]  # type: ignore[attr-defined]
        calls["kernel, pdl 0"] = serial.Model(eps=EPS)
        calls |= {"eager": eager, "F.rms_norm": library, "compile": compiled()}
    timer = Timer(replays)
    empty, floor = launch_floors(timer)
    bandwidth = copy_bandwidth()
    print(f"floor {floor:.2f} us (empty kernel {empty:.2f}), copy {bandwidth / 1e12:.3f} TB/s")
    small = make_inputs((3, 128), seed=0)[0]
    print("host us a call:", {name: round(host_us(call, *small), 1) for name, call in calls.items()})
    print("T H R | S A error |", *calls)
    scores: dict[str, list[float]] = {f"{score} {name}": [] for name in calls for score in "SA"}
    rows, worst = [], 0.0
    for case, before in zip(CASES, [CASES[0], *CASES], strict=False):
        if "compile" in calls and case[1] != before[1]:
            calls["compile"] = compiled()
        sets, us, errors = make_inputs(case, seed=time.time_ns() % 2**31), {}, []
        for name, call in calls.items():
            us[name], outputs = timer.time(call, sets)
            scores[f"S {name}"].append(least_bytes(case) / PEAK * 1e6 / us[name])
            scores[f"A {name}"].append((floor + least_bytes(case) / bandwidth * 1e6) / us[name])
            for (x, weight), output in zip((sets[0], sets[-1]), outputs, strict=True):
                errors.append(error_in_bounds(x, weight, output))
        error = max(errors[:2])
        worst = max(worst, error)
        rows.append({"case": case, "calls": len(sets), "us": us, "error": error})
        s, a = scores["S kernel"][-1], scores["A kernel"][-1]
        print(*case, len(sets), f"| {s:.3f} {a:.3f} {error:.3f} |", *(f"{v:.2f}" for v in us.values()))
    means = {name: round(statistics.mean(values), 4) for name, values in scores.items()}
    print("means", means, "worst error", worst)
    facts = {
        "floor_us": floor,
        "empty_us": empty,
        "copy_bytes_per_s": bandwidth,
        "means": means,
        "rows": rows,
    }
    (out / "table.json").write_text(json.dumps(facts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=["sweep", "table"])
    parser.add_argument("--kernel", type=Path, default=KERNELS / "row_tiles.py")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--replays", type=int, default=15)
    parser.add_argument("--refined", type=int, default=3, help="tilings a case to sweep further")
    parser.add_argument("--baselines", action="store_true")
    options = parser.parse_args()
    print("torch", torch.__version__, "triton", triton.__version__, "python", platform.python_version())
    if options.command == "sweep":
        sweep(options.kernel, options.out, options.replays, options.refined)
    else:
        table(options.kernel, options.out, options.replays, options.baselines)
    print(torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
