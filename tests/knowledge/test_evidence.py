"""Evidence survives other writers and killed ones, and cannot contradict itself."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from atrex.errors import EnvironmentProblem, UsageError
from atrex.records import Ratio
from knowledge.evidence import Evidence, EvidenceLog, summarise

GAIN = Ratio(median=1.2, low=1.1, high=1.3, n=50)


def evidence(item: str = "docs/a", hardware: str = "H200", **fields: object) -> Evidence:
    outcome = {} if "failed_gate" in fields else {"realised": GAIN}
    return Evidence.model_validate(
        {
            "item": item,
            "operator": "rms_norm",
            "bucket": "token_count<=512",
            "hardware": hardware,
            "config": {"num_warps": 4},
            "predicted_gain": 1.1,
            "run": "r1",
            "date": datetime(2026, 1, 2, tzinfo=UTC),
            **outcome,
            **fields,
        }
    )


def test_what_is_recorded_comes_back_in_order(tmp_path: Path) -> None:
    log = EvidenceLog(tmp_path)
    first, other, last = evidence(), evidence("docs/b"), evidence(failed_gate="bounds", condition="H = 4097")
    for record in (first, other, last):
        log.record(record)
    assert EvidenceLog(tmp_path).evidence_for("docs/a") == (first, last)
    assert log.evidence_for("docs/c") == ()


def test_evidence_of_one_machine(tmp_path: Path) -> None:
    log = EvidenceLog(tmp_path)
    log.record(evidence(hardware="H200"))
    log.record(evidence(hardware="EPYC"))
    assert [e.hardware for e in log.evidence_for("docs/a", hardware="EPYC")] == ["EPYC"]


def test_nothing_recorded_is_no_error(tmp_path: Path) -> None:
    assert tuple(EvidenceLog(tmp_path / "absent")) == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"realised": GAIN, "failed_gate": "bounds"},
        {"realised": None},
        {"predicted_gain": 0},
        {"date": datetime(2026, 1, 2)},  # without a time zone
        {"mood": "good"},
    ],
)
def test_evidence_that_contradicts_itself_cannot_be_built(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        evidence(**fields)


def test_every_cut_of_the_last_line_is_survived(tmp_path: Path) -> None:
    log = EvidenceLog(tmp_path)
    log.record(evidence(run="whole"))
    begin = log.path.stat().st_size
    log.record(evidence(run="cut"))
    content = log.path.read_bytes()
    for length in range(begin, len(content)):
        log.path.write_bytes(content[:length])
        whole = length == len(content) - 1  # only its newline is missing
        expected = ["whole", "cut"] if whole else ["whole"]
        assert [e.run for e in log] == expected
        log.record(evidence(run="next"))
        assert [e.run for e in log] == [*expected, "next"]
        assert log.path.read_bytes().endswith(b"\n")


def test_damage_inside_the_file_is_not_passed_over(tmp_path: Path) -> None:
    log = EvidenceLog(tmp_path)
    log.record(evidence())
    log.path.write_bytes(log.path.read_bytes() + b'{"item": 1}\n')
    log.record(evidence())
    with pytest.raises(UsageError, match=r"evidence\.jsonl: line 2: .*remove that line"):
        tuple(log)


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from knowledge.evidence import *\n"
        "line = sys.stdin.read(); log = EvidenceLog(Path(sys.argv[1]))\n"
        "e = Evidence.model_validate_json(line)\n"
        "for i in range(40): log.record(e.model_copy(update={'run': f'{sys.argv[2]}-{i}'}))\n"
    )
    text = evidence(condition="x" * 3000).model_dump_json()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), name], stdin=subprocess.PIPE, text=True
        )
        for name in "abc"
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(text)
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    runs = [e.run for e in EvidenceLog(tmp_path)]
    assert sorted(runs) == sorted(f"{name}-{i}" for name in "abc" for i in range(40))
    for name in "abc":  # each writer's own order is kept
        own = [run for run in runs if run.startswith(name)]
        assert own == [f"{name}-{i}" for i in range(40)]


def test_a_writer_waits_for_the_one_that_mends(tmp_path: Path) -> None:
    """Without the lock it could append between the other's look at the tail and its cut."""
    log = EvidenceLog(tmp_path)
    script = (
        "import sys; from pathlib import Path; from knowledge.evidence import *\n"
        "EvidenceLog(Path(sys.argv[1])).record(Evidence.model_validate_json(sys.argv[2]))\n"
    )
    with log.path.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        writer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), evidence().model_dump_json()])
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(2)
        assert log.path.stat().st_size == 0
    assert writer.wait(60) == 0
    assert tuple(log) == (evidence(),)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentProblem, match="set ATREX_HOME"):
        EvidenceLog(tmp_path / "file").record(evidence())


def test_home_decides_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATREX_HOME", str(tmp_path / "home"))
    EvidenceLog().record(evidence())
    assert (tmp_path / "home" / "evidence" / "evidence.jsonl").exists()


def test_summary() -> None:
    no_better = Ratio(median=1.0, low=0.9, high=1.1, n=50)
    records = [evidence(), evidence(realised=no_better), evidence(failed_gate="specials")]
    assert summarise(records) == (
        "helped in 1 of 2 measurements, best 1.20x [1.10, 1.30]; rejected 1x by specials"
    )
    assert summarise([]) == "not tried yet"
