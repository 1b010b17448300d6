"""The engine end to end: mutants of an honest rms_norm kernel, in sandboxed workers, to a report."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from atrex.judge import Engine
from atrex.protocol import InputSpec
from atrex.records import Shape
from tests.mutation import replay, report
from tests.mutation.campaign import Chunk, Options, chunks, run_chunk
from tests.mutation.mutants import Kernel, Mutant, honest_kernels, make_mutants
from tests.mutation.records import Result, WitnessRecord

OPTIONS = Options(device="cpu", threads=1, search_seconds=60.0)


def kernel(name: str) -> Kernel:
    return next(kernel for kernel in honest_kernels(["rms_norm"]) if kernel.name == name)


def pick(name: str, fault: str, note: str) -> Mutant:
    (found,) = (m for m in make_mutants(kernel(name), [fault]) if note in m.note)
    return found


def examined(*mutants: Mutant) -> list[Result]:
    done = run_chunk(Chunk(mutants[0].kernel, mutants), OPTIONS)
    assert done.doubts == ()
    return list(done.results)


@pytest.mark.slow
def test_a_narrow_sum_is_killed() -> None:
    """One of a bfloat16's roundings: as the draw has it, the witness is clear or marginal."""
    narrow = pick("rms_norm/triton/row_per_program", "accumulator_dtype", "tl.sum is rounded to bfloat16")
    (rounded,) = examined(narrow)
    assert rounded.status in ("clear", "marginal")
    assert rounded.killed
    assert rounded.allclose == "accepts"


def test_from_source_to_verdict() -> None:
    """Allclose on production inputs does not see it, and a gate kills it."""
    (dropped,) = examined(pick("rms_norm/triton/row_per_program", "drop_eps", "mean + eps"))
    assert dropped.status == "clear"
    assert dropped.killed
    assert dropped.allclose == "accepts"
    assert (dropped.gate, dropped.level) == ("sensitivity", "screen")
    assert dropped.witness is not None
    assert dropped.witness.ratio >= 4


@pytest.mark.slow
def test_a_flipped_comparison_is_killed() -> None:
    """It reads behind the last row: what lies there decides what allclose says."""
    (flipped,) = examined(pick("rms_norm/triton/row_per_program", "comparison_flip", "columns <= H"))
    assert flipped.status == "clear"
    assert flipped.killed
    assert flipped.gate in ("full_write", "bounds")


@pytest.mark.slow
def test_a_change_that_changes_nothing_is_unwitnessed_and_a_broken_one_no_mutant() -> None:
    """The first differs from its kernel in a comment alone."""
    honest = kernel("rms_norm/cpp/scalar")
    same = Mutant(honest, "constant", 1, 0, "a comment", honest.source + "# no fault\n")
    broken = Mutant(honest, "constant", 1, 0, "does not import", honest.source + "raise RuntimeError\n")
    options = Options(device="cpu", threads=1, search_seconds=3.0)
    first, second = run_chunk(Chunk(honest, (same, broken)), options).results
    assert first.status == "unwitnessed"
    assert not first.gate
    assert second.status == "does not run"


def test_a_witness_can_be_shown_again(engine: Engine) -> None:
    mutant = pick("rms_norm/cpp/scalar", "drop_eps", "eps")
    assert replay.find(mutant.id) == mutant
    assert "-        const float scale = 1 / std::sqrt(sum / hidden + eps);" in replay.patch(mutant)
    shape = Shape(init={"eps": 1.0}, dims={"token_count": 3, "hidden_size": 17})
    said = replay.show(mutant, InputSpec(shape=shape, seed=5), engine).splitlines()
    assert said[1] == "honest: right" or "times the bound" not in said[1]
    assert said[2].startswith("mutant: out[")
    with pytest.raises(KeyError):
        replay.find("rms_norm/cpp/scalar:1:2:drop_eps:000000")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["rms_norm/cpp/scalar", "rms_norm/triton/two_passes"])
def test_every_clearly_witnessed_mutant_is_killed(name: str) -> None:
    results = examined(*make_mutants(kernel(name)))
    assert sum(result.status == "clear" for result in results) > len(results) // 3
    assert [result.id for result in results if result.survived] == []


# -- report and command line ---------------------------------------------------------------------------


def result(**changes: Any) -> Result:
    shape = Shape(dims={"token_count": 3, "hidden_size": 17})
    plain: dict[str, Any] = {
        "id": "rms_norm/triton/a:1:2:drop_eps:abcdef",
        "operator": "rms_norm",
        "family": "reduction",
        "kernel": "rms_norm/triton/a",
        "path": "tests/honest/rms_norm/triton/a.py",
        "fault": "drop_eps",
        "line": 1,
        "note": "mean + eps -> mean",
        "status": "clear",
        "allclose": "accepts",
        "witness": WitnessRecord(spec=InputSpec(shape=shape, seed=7), what="out[3] is 1", ratio=9.0),
    }
    return Result.model_validate(plain | changes)


def test_the_report_counts_and_names_survivors() -> None:
    results = [
        result(),
        result(
            id="b", killed=True, gate="sensitivity", level="screen", fault="drop_scale", allclose="rejects"
        ),
        result(id="c", killed=True, gate="shapes", level="full", operator="fused_moe", family="moe"),
        result(id="d", status="marginal"),
        result(id="e", status="unwitnessed", witness=None, why="12 calls"),
    ]
    page = report.page("title", "python benchmarks/mutation.py --device cpu", results, ["k: is off"])
    assert "killed by the gates: **2 of 3 (66.7%)**" in page
    assert "plain allclose on production inputs: **1 of 3 (33.3%)**" in page
    assert "| reduction | 2 | 1 (50.0%) | 1 |" in page
    assert "| moe | 1 | 1 (100.0%) | 0 |" in page
    assert "| drop_eps | 2 | 1 (50.0%) | 0 |" in page
    assert "sensitivity 1, shapes 1; only at the full level: 1." in page
    assert "--show rms_norm/triton/a:1:2:drop_eps:abcdef --input " in page
    assert "- d: mean + eps -> mean" in page
    assert "- e: mean + eps -> mean (12 calls)" in page
    assert "- k: is off" in page
    assert report.from_json(report.to_json("title", "command", results, [])) == results


def test_chunks_hold_one_kernel_each() -> None:
    mutants = [m for k in honest_kernels(["rms_norm"])[:2] for m in make_mutants(k)]
    parts = chunks(mutants)
    assert len(parts) > 2
    assert sorted(m.id for part in parts for m in part.mutants) == sorted(m.id for m in mutants)
    assert all({m.kernel for m in part.mutants} == {part.kernel} for part in parts)
    assert parts[0].kernel != parts[1].kernel, "of every kernel some, should time run out"


def test_the_command_line_lists_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    script: Any = _script()
    assert script.main(["--op", "rmsnorm", "--fault", "drop_eps", "--list"]) == 0
    ids = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert any(name.startswith("rms_norm/triton/two_passes:") for name in ids)
    assert script.main(["--show", ids[0]]) == 0
    assert "+++ mutant" in capsys.readouterr().out
    assert script.main(["--show", "rms_norm/nothing"]) == 2


def test_out_of_time_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script: Any = _script()
    target = tmp_path / "results.json"
    few = ["--op", "rms_norm", "--match", "cpp/scalar", "--limit", "2", "--seconds", "-1"]
    assert script.main([*few, "--json", str(target), "--output", str(tmp_path / "page.md")]) == 0
    assert "not run 2" in capsys.readouterr().out
    assert [row["status"] for row in json.loads(target.read_text())["results"]] == ["not run"] * 2
    assert "not run 2" in (tmp_path / "page.md").read_text()


def _script() -> Any:
    path = Path(__file__).parents[2] / "benchmarks/mutation.py"
    sys.path.append(str(path.parent))  # for what it imports; `mutation` itself is this package's name
    spec = importlib.util.spec_from_file_location("mutation_script", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
