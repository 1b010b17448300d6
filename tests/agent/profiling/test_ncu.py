"""ncu's command line and its output, on fixtures written by hand from the documented format."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from agent.profiling import ncu

FIXTURES = Path(__file__).parent / "fixtures" / "ncu"


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


def test_a_row_becomes_a_kernel() -> None:
    (kernel,) = ncu.parse(fixture("spills.csv")).kernels
    assert (kernel.name, kernel.grid, kernel.block) == ("_rms_norm_kernel", (4096, 1, 1), (128, 1, 1))
    assert kernel.duration_us == pytest.approx(98.56)
    assert (kernel.registers, kernel.shared_bytes, kernel.waves) == (255, 1024, 15.52)
    assert kernel.limits == {"registers": 2, "shared memory": 100, "warps": 16, "blocks": 32}
    assert kernel.dram_bytes == 141_557_760 + 138_412_032
    assert kernel.local_share == pytest.approx((2097152 + 1572864) / (2097152 + 1572864 + 2 * 4194304))
    assert sum(kernel.stalls.values()) == pytest.approx(1)
    assert max(kernel.stalls, key=lambda reason: kernel.stalls[reason]) == "long_scoreboard"


def test_scaled_units_and_thousands_separators() -> None:
    """Without `--print-units base` ncu scales, and names units differently from version to version."""
    gemm, scale = ncu.parse(fixture("vector_gemm.csv")).kernels
    assert (gemm.duration_us, scale.duration_us) == pytest.approx((1912.48, 9.28))
    assert gemm.dram_bytes == pytest.approx(50_331_648 + 8_388_608)
    assert gemm.shared_bytes == 16_384
    assert gemm.conflict_share == pytest.approx(1 / 3)
    short = fixture("vector_gemm.csv").replace('"usecond"', '"us"').replace('"Mbyte"', '"Gbyte"')
    assert ncu.parse(short).kernels[0].duration_us == pytest.approx(1912.48)
    assert (ncu.parse(short).kernels[0].dram_bytes or 0) == pytest.approx(50.331648e9 + 8_388_608)


def test_an_unknown_unit_is_noted_and_its_value_is_not_used() -> None:
    seen = ncu.parse(fixture("vector_gemm.csv").replace('"Mbyte"', '"furlong"'))
    assert [kernel.dram_bytes for kernel in seen.kernels] == [None, None]
    assert any("dram__bytes_read.sum in 'furlong'" in note for note in seen.notes)


def test_not_available_is_none() -> None:
    (kernel,) = ncu.parse(fixture("not_available.csv")).kernels
    assert (kernel.duration_us, kernel.registers) == (2.912, 32)
    assert kernel.dram is kernel.occupancy is kernel.local_share is kernel.sector_use is None
    assert kernel.limits == kernel.stalls == {}


def test_no_permission_is_one_clear_note() -> None:
    seen = ncu.parse(fixture("no_permission.txt"))
    assert seen.kernels == ()
    (note,) = seen.notes
    assert "ERR_NVGPUCTRPERM" in note
    assert "NVreg_RestrictProfilingToAdminUsers=0" in note


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("", "no table"),
        ("==PROF== Connected to process 1\n", "no table"),
        ("==ERROR== Failed to find metric regex:^a$\n", "Failed to find metric"),
        ('the candidate prints this\n"and this",1\n', "no table"),
        ('"ID","Kernel Name"\n', "no table"),
    ],
)
def test_output_without_a_table(text: str, note: str) -> None:
    seen = ncu.parse(text)
    assert seen.kernels == ()
    assert note in seen.notes[0]


def test_no_kernel_of_the_name() -> None:
    assert "no launch has a name" in ncu.parse(fixture("no_kernel.txt")).notes[0]


def test_a_table_cut_off_anywhere_is_read_as_far_as_it_goes() -> None:
    text = fixture("vector_gemm.csv")
    whole = ncu.parse(text).kernels
    for length in range(0, len(text), 97):
        seen = ncu.parse(text[:length])
        assert seen.kernels == whole[: len(seen.kernels)]
        assert seen.notes or len(seen.kernels) == len(whole)


def test_the_command_profiles_the_right_kernel_after_the_warm_up(tmp_path: Path) -> None:
    names = ["_rms_norm_kernel", "void ns::scale<float, 4>(float*, int)", "_rms_norm_kernel"]
    command = ncu.command("/opt/ncu", tmp_path / "log", names, 3)
    options = dict(pairwise(command))
    assert command[0] == "/opt/ncu"
    assert (options["--profile-from-start"], options["--target-processes"]) == ("off", "all")
    assert (options["--launch-skip"], options["--launch-count"]) == ("3", "3")
    kind, _, pattern = options["--kernel-name"].partition(":")
    assert kind == "regex"
    assert [bool(re.search(pattern, name)) for name in ("_rms_norm_kernel", "scale", "rescale", "other")] == [
        *(True, True, False, False)
    ]
    metrics = options["--metrics"].split(",")
    assert len(metrics) == len(set(metrics)) > 30
    assert options["--log-file"] == str(tmp_path / "log")


@pytest.mark.parametrize(("names", "launches"), [([], 1), (["k"], 0)])
def test_a_command_without_a_kernel_is_refused(tmp_path: Path, names: list[str], launches: int) -> None:
    with pytest.raises(ValueError, match="name the kernels"):
        ncu.command("ncu", tmp_path, names, launches)


FAKE = """#!/bin/sh
# Stands where ncu stands: takes its options, writes a table to its log file, becomes the target.
while :; do
  case "$1" in
    --csv) shift ;;
    --log-file) log=$2; shift 2 ;;
    --*) shift 2 ;;
    *) break ;;
  esac
done
[ -n "$NCU_PRINTS" ] && cp "$NCU_PRINTS" "$log"
exec "$@"
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "ncu"
    program.write_text(FAKE)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return program


@pytest.mark.parametrize(("printed", "kernels"), [("spills.csv", 1), ("no_permission.txt", 0), ("", 0)])
def test_collecting_from_a_process_of_its_own(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, kernels: int
) -> None:
    monkeypatch.setenv("NCU_PRINTS", str(FIXTURES / printed) if printed else "")
    ran = tmp_path / "ran"
    target = (sys.executable, "-c", f"open({str(ran)!r}, 'w').write('here')")
    seen = ncu.collect(lambda wrapper: subprocess.run([*wrapper, *target], check=True), ["k"], 1)
    assert ran.read_text() == "here"
    assert len(seen.kernels) == kernels
    assert seen.notes


def test_ncu_that_is_absent_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = ncu.collect(lambda _: pytest.fail("nothing to run"), ["k"], 1)
    assert seen.notes == ("ncu is not on the PATH: no hardware counters",)


def test_a_call_without_kernels_starts_nothing(fake: Path) -> None:
    seen = ncu.collect(lambda _: pytest.fail("nothing to run"), [], 0)
    assert "launches no kernel" in seen.notes[0]


@pytest.mark.slow
def test_a_fork_server_behind_the_wrapper_still_starts_workers(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The design for ncu: it runs the fork server, and the worker is the same sandboxed process as ever."""
    from atrex.environment import scrubbed_environment
    from atrex.process import ForkServer
    from atrex.sandbox import Limits, SandboxPolicy

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    monkeypatch.setenv("NCU_PRINTS", str(FIXTURES / "spills.csv"))

    def run(wrapper: tuple[str, ...]) -> None:
        policy = SandboxPolicy(scratch, Limits(memory_bytes=4 << 30))
        environment = scrubbed_environment(scratch, {"NCU_PRINTS": os.environ["NCU_PRINTS"]})
        with (
            ForkServer(preload=("atrex.worker",), environment=environment, wrapper=wrapper) as server,
            server.spawn("atrex.worker:idle", policy) as worker,
        ):
            assert worker.request({}, timeout=60) == {}

    assert [kernel.name for kernel in ncu.collect(run, ["_rms_norm_kernel"], 1).kernels] == [
        "_rms_norm_kernel"
    ]
