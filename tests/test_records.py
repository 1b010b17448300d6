"""Records: an illegal one cannot be built, and a legal one survives the disk."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from atrex.records import (
    Bound,
    Case,
    Cost,
    FaultKind,
    Judgement,
    Latency,
    Ratio,
    Record,
    Result,
    Status,
    Verdict,
    Witness,
)

WITNESS = Witness(
    case="token_count=3", seed=7, index=(0, 2), expected="1", got="2", command="atrex verify K.py"
)
BOUND = Bound(sol_us=2.0, attainable_us=3.0, limiter="memory")
LATENCY = Latency(median_us=4.0, p10_us=3.5, p90_us=5.0, n=100, method="wall")
FASTER = Ratio(median=1.5, low=1.4, high=1.6, n=9)


def verdict(gate: str, status: Status = Status.PASS, reason: str = "it says why") -> Verdict:
    return Verdict(gate=gate, status=status, tolerance_free=True, reason=reason)


def judgement(
    *verdicts: Verdict, required: tuple[str, ...] = ("a", "b"), optional: tuple[str, ...] = ()
) -> Judgement:
    return Judgement(
        candidate="0" * 64,
        operator="rms_norm",
        device="cpu",
        level="full",
        seed=1,
        required=required,
        may_be_unsupported=optional,
        verdicts=verdicts,
    )


def result(**changes: Any) -> Result:
    fields: dict[str, Any] = {
        "candidate": "c",
        "operator": "rms_norm",
        "case": "rms_norm-000",
        "policy": "p",
        "accepted": True,
        "latency": LATENCY,
        "bound": BOUND,
    }
    return Result(**(fields | changes))


class TestVerdict:
    @pytest.mark.parametrize("status", [status for status in Status if status is not Status.PASS])
    def test_whatever_is_not_a_pass_says_why(self, status: Status) -> None:
        with pytest.raises(ValidationError, match="needs a reason"):
            verdict("a", status, reason="")

    @pytest.mark.parametrize("blame", [{"witness": WITNESS}, {"fault": FaultKind.TIMEOUT}])
    def test_a_pass_blames_nothing(self, blame: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match="neither fault nor witness"):
            Verdict(gate="a", status=Status.PASS, tolerance_free=True, **blame)

    def test_a_failure_keeps_its_witness(self) -> None:
        failed = Verdict(gate="a", status=Status.FAIL, tolerance_free=False, reason="off", witness=WITNESS)
        assert failed.witness == WITNESS

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_metrics_are_finite(self, value: float) -> None:
        with pytest.raises(ValidationError):
            Verdict(gate="a", status=Status.PASS, tolerance_free=True, metrics={"rms_error": value})


class TestAccepted:
    def test_all_required_gates_passed(self) -> None:
        assert judgement(verdict("a"), verdict("b")).accepted

    def test_a_gate_that_has_not_spoken_is_no_pass(self) -> None:
        assert not judgement(verdict("a")).accepted
        assert not judgement().accepted

    @pytest.mark.parametrize("status", [Status.FAIL, Status.UNSUPPORTED, Status.INCONCLUSIVE, Status.ERROR])
    def test_any_other_status_is_no_pass(self, status: Status) -> None:
        assert not judgement(verdict("a"), verdict("b", status)).accepted

    def test_a_failure_of_a_gate_that_is_not_required_counts_too(self) -> None:
        assert not judgement(verdict("a"), verdict("b"), verdict("extra", Status.FAIL)).accepted

    def test_the_contract_may_allow_a_refusal_and_nothing_else(self) -> None:
        assert judgement(verdict("a"), verdict("b", Status.UNSUPPORTED), optional=("b",)).accepted
        assert not judgement(verdict("a", Status.UNSUPPORTED), verdict("b"), optional=("b",)).accepted
        assert not judgement(verdict("a"), verdict("b", Status.FAIL), optional=("b",)).accepted

    @pytest.mark.parametrize("forged", [True, False])
    def test_what_a_file_says_about_it_is_ignored(self, forged: bool) -> None:
        for honest in (judgement(verdict("a"), verdict("b")), judgement(verdict("a", Status.FAIL))):
            data = honest.model_dump(mode="json") | {"accepted": forged}
            assert Judgement.model_validate(data).accepted is honest.accepted
            assert Judgement.model_validate_json(json.dumps(data)) == honest

    def test_it_is_written_for_other_readers(self) -> None:
        assert judgement(verdict("a"), verdict("b")).model_dump(mode="json")["accepted"] is True
        assert judgement(verdict("a")).model_dump(mode="json")["accepted"] is False

    def test_it_cannot_be_set(self) -> None:
        with pytest.raises((ValidationError, AttributeError)):
            judgement().accepted = True  # type: ignore[misc]


class TestResult:
    @pytest.mark.parametrize("claim", [{"latency": LATENCY}, {"vs_eager": FASTER}, {"vs_compile": FASTER}])
    def test_a_rejected_candidate_has_no_speed(self, claim: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match="rejected candidate has no latency"):
            result(**({"accepted": False, "latency": None} | claim))

    def test_efficiency_is_speed_of_light_over_median(self) -> None:
        assert result().efficiency == 0.5
        assert result().attainment == 0.75

    def test_what_is_rejected_or_not_measured_scores_nothing(self) -> None:
        assert result(accepted=False, latency=None).efficiency == 0.0
        assert result(latency=None).attainment == 0.0
        uncalibrated = BOUND.model_copy(update={"attainable_us": None})
        assert result(bound=uncalibrated).attainment == 0.0

    @pytest.mark.parametrize("median", [0.0, -1.0, math.nan, math.inf])
    def test_a_latency_is_a_positive_number(self, median: float) -> None:
        with pytest.raises(ValidationError):
            Latency(median_us=median, p10_us=1, p90_us=1, n=1, method="wall")


class TestRatio:
    def test_a_difference_needs_an_interval_on_one_side_of_one(self) -> None:
        assert (FASTER.better, FASTER.worse) == (True, False)
        slower = Ratio(median=0.8, low=0.7, high=0.9, n=9)
        assert (slower.better, slower.worse) == (False, True)
        even = Ratio(median=1.1, low=1.0, high=1.2, n=9)
        assert (even.better, even.worse) == (False, False)


RECORDS: list[Record] = [
    Case(
        operator="rms_norm", id="rms_norm-001", init={"eps": 1e-6}, input={"n": 3}, phase="decode", weight=0.5
    ),
    Verdict(gate="a", status=Status.FAIL, tolerance_free=True, reason="é\n\x00", fault=FaultKind.LAUNCH),
    judgement(verdict("a"), verdict("b", Status.INCONCLUSIVE)),
    result(vs_eager=FASTER),
    Cost(flops={"fp32": 12.0}, read_bytes=3, write_bytes=4),
]


class TestEveryRecord:
    @pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
    def test_survives_the_disk(self, record: Record) -> None:
        assert type(record).model_validate_json(record.model_dump_json()) == record

    @pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
    def test_refuses_an_unknown_field(self, record: Record) -> None:
        with pytest.raises(ValidationError, match="speedup"):
            type(record).model_validate(record.model_dump(mode="json") | {"speedup": 9.0})

    @pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
    def test_cannot_be_changed(self, record: Record) -> None:
        name = next(iter(type(record).model_fields))
        with pytest.raises(ValidationError, match="frozen"):
            setattr(record, name, getattr(record, name))

    def test_numbers_are_finite(self) -> None:
        with pytest.raises(ValidationError):
            Bound(sol_us=math.nan, attainable_us=None, limiter="memory")
        with pytest.raises(ValidationError):
            Ratio.model_validate_json('{"median": 1, "low": NaN, "high": 2, "n": 5}')

    def test_traffic_is_reads_and_writes(self) -> None:
        assert Cost(flops={}, read_bytes=3, write_bytes=4).bytes == 7
