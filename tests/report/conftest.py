"""A realistic report: rms_norm on a GPU, with a hostile candidate's words in every free text."""

from __future__ import annotations

import random

import pytest

from atrex.records import (
    Bound,
    Case,
    Cost,
    FaultKind,
    Judgement,
    Latency,
    Provenance,
    Ratio,
    Result,
    Status,
    Verdict,
    Witness,
)
from atrex.report import DropoutEpisode, RunReport, Step
from atrex.score import score_cases

GATES = (
    "interface", "accuracy", "shapes", "layouts", "specials", "full_write", "bounds", "purity",
    "determinism", "accumulation", "sensitivity", "authenticity",
)  # fmt: skip
SIZES = (
    (1, 1024), (3, 128), (16, 5120), (64, 2048), (360, 1152), (720, 1152), (1200, 1152), (2116, 1152),
    (2500, 1024), (3844, 1152), (4968, 1024), (8136, 1152), (10000, 1024), (24544, 128), (65556, 1152),
)  # fmt: skip
HOSTILE = (
    "<script>alert(1)</script> \x1b[31mred\x1b]8;;http://x\x07 | `tick` [bold]x[/] \u202egnp.exe\n# head"
)
CANDIDATE = "ab" * 32


def make_case(number: int, tokens: int, hidden: int) -> Case:
    return Case(
        operator="rms_norm",
        id=f"rms_norm-{number:03d}",
        input={"token_count": tokens, "hidden_size": hidden},
        phase="decode" if tokens <= 64 else "prefill",
        weight=0.0275 / len(SIZES),
        production_us={"XPU-A": 9.95},
    )


def make_result(case: Case, cost: Cost, draw: random.Random) -> Result:
    sol = cost.bytes / 4.8e6
    attainable = cost.bytes / 4.2e6 + 1.6
    median = attainable * draw.uniform(1.03, 1.5)
    gain = draw.uniform(2.5, 7)
    return Result(
        candidate=CANDIDATE,
        operator=case.operator,
        case=case.id,
        policy="p1",
        accepted=True,
        latency=Latency(
            median_us=median, p10_us=median * 0.97, p90_us=median * 1.06, n=400, method="graph", host_us=11.2
        ),
        bound=Bound(sol_us=sol, attainable_us=attainable, limiter="memory"),
        vs_eager=Ratio(median=gain, low=gain * 0.98, high=gain * 1.03, n=60),
        vs_compile=Ratio(median=gain / 3, low=gain / 3.1, high=gain / 2.9, n=60),
    )


def make_history() -> tuple[Step, ...]:
    draw = random.Random(5)
    steps = []
    for number in range(1, 41):
        gain = draw.gauss(1.0, 0.05)
        outcome = "promoted" if gain > 1.04 else "wrong" if number % 9 == 0 else "no gain"
        realised = None if outcome == "wrong" else Ratio(median=gain, low=gain - 0.02, high=gain + 0.02, n=40)
        steps.append(
            Step(
                step=number,
                bucket=f"token_count<={draw.choice((64, 512, 8192))}",
                move=f"num_warps 4 -> {draw.choice((1, 2, 8))}",
                predicted=1.0 + draw.random() / 10,
                realised=realised,
                outcome=outcome,
                note=HOSTILE if number == 9 else "",
            )
        )
    return tuple(steps)


def judge(*verdicts: Verdict) -> Judgement:
    return Judgement(
        candidate=CANDIDATE,
        operator="rms_norm",
        device="cuda",
        level="full",
        seed=12345,
        required=GATES,
        may_be_unsupported=("layouts",),
        verdicts=verdicts,
        seconds=74.2,
    )


def passing(gate: str) -> Verdict:
    return Verdict(
        gate=gate, status=Status.PASS, tolerance_free=gate != "accuracy", metrics={"runs": 10}, seconds=3.1
    )


@pytest.fixture
def accepted() -> Judgement:
    refused = Verdict(
        gate="layouts", status=Status.UNSUPPORTED, tolerance_free=True, reason="refuses transposed x clearly"
    )
    return judge(*(passing(gate) if gate != "layouts" else refused for gate in GATES))


@pytest.fixture
def rejected() -> Judgement:
    witness = Witness(
        case="rms_norm-003",
        seed=77,
        transform="poison 2^100",
        output="out",
        index=(63, 2047),
        expected="0.0123",
        got="1.27e+30" + HOSTILE,
        command="atrex verify bad.py --op rms_norm --device cuda --level full --gate full_write --seed 77",
    )
    return judge(
        passing("interface"),
        Verdict(
            gate="full_write",
            status=Status.FAIL,
            tolerance_free=True,
            reason="2048 elements are never written " + HOSTILE,
            witness=witness,
            metrics={"unwritten": 2048, "share": 0.015625, "note": HOSTILE},
        ),
        Verdict(
            gate="bounds",
            status=Status.FAIL,
            tolerance_free=True,
            reason="illegal access: reads past the end of x",
            fault=FaultKind.ILLEGAL_ACCESS,
        ),
        Verdict(
            gate="purity", status=Status.ERROR, tolerance_free=True, reason="the judge ran out of memory"
        ),
    )


@pytest.fixture
def report(accepted: Judgement) -> RunReport:
    draw = random.Random(1)
    cases = [make_case(number, *size) for number, size in enumerate(SIZES)]
    costs = {
        case.id: Cost(flops={"fp32": 4.0 * t * h}, read_bytes=2 * t * h + 2 * h, write_bytes=2 * t * h)
        for case, (t, h) in zip(cases, SIZES, strict=True)
    }
    results = [make_result(case, costs[case.id], draw) for case in cases[:-1]]  # the last one is missing
    return RunReport(
        op="rms_norm",
        device="cuda",
        dsl="triton",
        run="runs/20260101T120000Z-rms_norm-cuda-1a2b",
        kernel="runs/20260101T120000Z-rms_norm-cuda-1a2b/best.py",
        candidates_tried=41,
        candidates_accepted=12,
        seconds=312.4,
        judgement=accepted,
        cases=score_cases(cases, results, costs),
        history=make_history(),
        dropout=(
            DropoutEpisode(
                first=14, last=19, share=0.3, hidden=("technique num_warps", HOSTILE), outcome="restored"
            ),
        ),
        provenance=Provenance(
            hardware="NVIDIA H200",
            device="cuda",
            harness="0.1.0",
            torch="2.11.0",
            triton="3.6.0",
            python="3.12.3",
            driver="580.95",
        ),
        command="atrex optimize --op rmsnorm",
        notes=("rms_norm-014: the kernel not measured: timeout: " + HOSTILE,),
    )
