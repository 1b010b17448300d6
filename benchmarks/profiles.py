"""Record what the profilers say of some kernels on a GPU: the fixtures of tests/agent/profiling.

    python benchmarks/profiles.py --output $OUT/profiles.json

Of each kernel: ncu's own output, Kineto's events of one warm call, the profile and the diagnosis made of it,
and what went wrong, for the most expensive production case of at most --most-us.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from agent.instrument import Instrument
from agent.lab import TimingFault
from agent.machine import calibration_of
from agent.profiling import ncu, timeline
from atrex.candidate import load_candidate
from atrex.commands.common import operator_cases
from atrex.errors import AtrexError
from atrex.judge import Engine, HarnessError
from atrex.measure import protocol_for
from atrex.problem import Problem, load_problem
from atrex.provenance import provenance
from atrex.records import Case
from atrex.roofline import bound, detect

KERNELS = (
    "knowledge/kernels/triton/rms_norm/row_tiles.py",
    "knowledge/kernels/triton/silu_and_mul/row_tiles.py",
    "knowledge/kernels/triton/block_scaled_mm/scaled_tiles.py",
    "knowledge/kernels/triton/attention_forward/flash_tiles.py",
    "knowledge/kernels/triton/topk_filter/threshold.py",
    "knowledge/kernels/triton/moe_topk_gating_softmax/row_tiles.py",
)


def main() -> None:
    """Profile every kernel; one that cannot be profiled leaves its error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", default=KERNELS)
    parser.add_argument("--most-us", type=float, default=300.0, help="bound of the case to profile")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    seen: dict[str, Any] = {
        "provenance": provenance(detect("cuda").name, "cuda").model_dump(mode="json"),
        "kernels": {},
    }
    with Engine("cuda") as engine:
        for path in options.kernels:
            began = time.monotonic()
            seen["kernels"][path] = _profiled(engine, Path(path), options.most_us)
            options.output.write_text(json.dumps(seen))
            print(f"{path}: {time.monotonic() - began:.1f} s", flush=True)
            print(json.dumps(_short(seen["kernels"][path]), indent=1), flush=True)


def _short(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("ncu", "events")}


def _case(engine: Engine, problem: Problem, most_us: float) -> Case:
    """The case with the highest bound that is not above `most_us`."""
    hardware = detect(engine.device)

    def cost(case: Case) -> float:
        return bound(problem.cost(problem.shape(case)), hardware, None).sol_us

    cases = [case for case in operator_cases("atrex-bench", problem.operator) if cost(case) <= most_us]
    return max(cases, key=cost)


def _profiled(engine: Engine, path: Path, most_us: float) -> dict[str, Any]:
    operator = path.parent.name
    problem = load_problem(operator)
    case = _case(engine, problem, most_us)
    candidate = load_candidate(path, operator)
    record: dict[str, Any] = {"case": case.model_dump(mode="json"), "ncu": None, "events": None}
    calibration = calibration_of("cuda", lambda _: None)
    lab = Instrument(
        engine, problem, detect("cuda"), calibration, protocol_for("cuda", quick=True), lambda _: path
    )
    parse, read = ncu.parse, timeline.read

    def keep_ncu(text: str) -> ncu.Collected:
        record["ncu"] = text
        return parse(text)

    def keep_events(events: Any) -> Any:
        record["events"] = events
        return read(events)

    ncu.parse, timeline.read = keep_ncu, keep_events
    try:
        median = lab.measure(candidate, [case])[case.id].median_us
        profile = lab.profile(candidate, case, median)
        record["profile"] = profile.model_dump(mode="json")
        found = lab.bottlenecks(candidate, case, median)
        record["bottlenecks"] = [each.model_dump(mode="json") for each in found]
    except (AtrexError, HarnessError, TimingFault) as error:
        record["error"] = f"{type(error).__name__}: {error}"
    finally:
        ncu.parse, timeline.read = parse, read
        lab.close()
    return record


if __name__ == "__main__":
    main()
