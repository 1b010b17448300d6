"""Long recordings, made of short ones by the benchmark: the same entries, in a memory that does not grow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import trace_ingest

from traces.ingest import ingest

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize("name", ["two-streams", "llama-decode-stacks", "moe-decode-graph"])
def test_a_repeated_recording_has_the_entries_of_one_many_times(name: str, tmp_path: Path) -> None:
    source = RECORDED / f"{name}.json.gz"
    repeats = trace_ingest.enlarge(source, tmp_path / "large.json", 3_000_000)
    assert repeats > 3
    once, many = ingest(source), ingest(tmp_path / "large.json")
    assert many.complaints == ()
    assert {entry.key: entry.launches for entry in many.entries} == {
        entry.key: entry.launches * repeats for entry in once.entries
    }
    assert many.device_us == pytest.approx(once.device_us * repeats)
    assert many.busy_us == pytest.approx(once.busy_us * repeats, rel=1e-4)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    script = tmp_path / "ours.py"
    script.write_text(trace_ingest.OURS)
    most = []
    for megabytes in (25, 200):
        path = tmp_path / f"{megabytes}.json"
        trace_ingest.enlarge(RECORDED / "llama-decode.json.gz", path, megabytes * 10**6)
        most.append(trace_ingest.measured([sys.executable, str(script), str(path), "1"]).most)
    assert most[1] - most[0] < 120 << 20
