"""C++ sources read statically, and g++'s reports on them: real ones, stored and made anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.profiling import native
from agent.profiling.native import Source

ROOT = Path(__file__).parents[3]
GCC = Path(__file__).parent / "fixtures" / "gcc"
VECTOR_ROWS = ROOT / "knowledge" / "kernels" / "cpp" / "rms_norm" / "vector_rows.py"

needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def stored(name: str) -> list[tuple[int, int | None]]:
    source, report = ((GCC / f"{name}.{kind}").read_text(encoding="utf-8") for kind in ("cpp", "txt"))
    return [(loop.line, loop.vector_bytes) for loop in native.parse(report, source)]


def test_loops_of_real_reports() -> None:
    assert stored("rms_norm_scalar") == [(24, None), (27, 64)]
    assert stored("linear_sigmoid_mul") == [(28, 32)]  # its inner loop is unrolled, its remainder is no loss
    assert stored("silu_and_mul") == [(23, None)]
    assert stored("dependent_scan") == [(6, None)]


def test_a_loop_quotes_its_line_and_the_compiler() -> None:
    (scan,) = native.parse((GCC / "dependent_scan.txt").read_text(), (GCC / "dependent_scan.cpp").read_text())
    assert scan.source == "for (int64_t i = 0; i < n; ++i) {"
    assert scan.reason == "unsupported use in stmt"
    (silu,) = native.parse((GCC / "silu_and_mul.txt").read_text(), (GCC / "silu_and_mul.cpp").read_text())
    assert silu.reason.startswith("it calls exp; ")


@pytest.mark.parametrize(
    "report", ["", "garbage\n", "<stdin>:999:1: missed: couldn't vectorize loop\n", "<stdin>:"]
)
def test_reports_that_say_nothing(report: str) -> None:
    assert native.parse(report, "int x;\n") == ()


def test_a_report_cut_off_anywhere() -> None:
    report, source = (
        (GCC / "rms_norm_vector_rows.txt").read_text(),
        (GCC / "rms_norm_vector_rows.cpp").read_text(),
    )
    for length in range(0, len(report), 401):
        assert all(loop.source for loop in native.parse(report[:length], source))


def test_comments_and_strings_hold_no_loops() -> None:
    source = '// for (;;)\n/* for (\n;;) */ const char* s = "for (;;)";\n#define LOOP for (;;)\n'
    report = "".join(f"<stdin>:{line}:1: missed: couldn't vectorize loop\n" for line in range(1, 5))
    assert native.parse(report, source) == ()


CALL = "library = cpp.compile({}, {{}})\n"
IMPORT = "from atrex.dsl import cpp\n"


@pytest.mark.parametrize(
    ("candidate", "text"),
    [
        (IMPORT + CALL.format("'int a;'"), "int a;"),
        (IMPORT + "SOURCE = 'int a;'\n" + CALL.format("SOURCE"), "int a;"),
        (IMPORT + "A = 'int '\nB = 'a;'\n" + CALL.format("A + B"), "int a;"),
        (IMPORT + "A = 'int '\n" + CALL.format("'\\n'.join((A, 'a;'))"), "int \na;"),
        (IMPORT + "from textwrap import dedent\n" + CALL.format("dedent('  int a;')"), "int a;"),
        ("import atrex.dsl.cpp as native\nnative.compile(source='int a;', functions={})\n", "int a;"),
        ("from atrex.dsl.cpp import compile as build\ndef f():\n    return build('int a;', {})\n", "int a;"),
    ],
)
def test_sources_are_found_without_importing(candidate: str, text: str) -> None:
    found, notes = native.sources(candidate)
    assert [source.text for source in found] == [text]
    assert notes == ()


@pytest.mark.parametrize(
    ("candidate", "note"),
    [
        ("def f(:\n", "cannot be parsed"),
        ("(" * 5000, "cannot be parsed"),
        ("-" * 100_000 + "1", "cannot be parsed"),
        ("x = 1\n" * 100_000, "longer than"),
        (IMPORT + CALL.format("+".join(["'a'"] * 5000)), "cannot be parsed"),
        ("x = 1\n", "compiles no C++"),
        ("import re\nre.compile('x')\n", "compiles no C++"),
        (IMPORT + CALL.format("open('x').read()"), "line 2: the C++ source is no literal"),
        (IMPORT + "S = 'int a;'\nS = 'int b;'\n" + CALL.format("S"), "no literal"),
        (IMPORT + "S = S\n" + CALL.format("S"), "no literal"),
        (IMPORT + CALL.format("f'int {x};'"), "no literal"),
    ],
)
def test_what_cannot_be_read_off_is_noted(candidate: str, note: str) -> None:
    found, notes = native.sources(candidate)
    assert found == ()
    assert note in notes[0]


def test_names_that_multiply_are_looked_up_once() -> None:
    tower = "".join(f"T{i + 1} = ''.join(({f'T{i}, ' * 99}))\n" for i in range(30))
    found, notes = native.sources(IMPORT + "T0 = 'int a;'\n" + tower + CALL.format("T30") + CALL.format("T1"))
    assert [source.text for source in found] == ["int a;" * 99]
    assert len(notes) == 1


def test_only_some_sources_are_compiled() -> None:
    found, notes = native.sources(IMPORT + "".join(CALL.format(f"'int a{i};'") for i in range(9)))
    assert [source.text for source in found] == [f"int a{i};" for i in range(4)]
    assert notes == ("only the first 4 of 9 C++ sources were looked at",)


@needs_gcc
def test_looking_runs_nothing_of_the_candidate(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    candidate = IMPORT + f"open({str(witness)!r}, 'w')\n" + CALL.format("'int a;'")
    seen, notes = native.look(candidate)
    assert seen is not None
    assert (seen.loops, notes) == ((), ())
    assert not witness.exists()


@needs_gcc
def test_a_flag_that_would_run_something_is_not_passed_on(tmp_path: Path) -> None:
    written = tmp_path / "dumped"
    dangerous = (
        f"-fplugin={tmp_path}/evil.so",
        f"-o{written}",
        f"-fdump-tree-all={written}",
        "-wrapper",
        "touch",
    )
    loops, note = native.report(Source((GCC / "rms_norm_scalar.cpp").read_text(), (*dangerous, "-O2")))
    assert note == ""
    assert [loop.line for loop in loops]
    assert list(tmp_path.iterdir()) == []


@needs_gcc
@pytest.mark.parametrize("source", ["not C++", "#include __FILE__\n"])
def test_a_compiler_that_fails_is_a_note(source: str) -> None:
    loops, note = native.report(Source(source))
    assert loops == ()
    assert "no report on loops" in note


@needs_gcc
def test_a_compiler_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_SECONDS", 0.3)
    loops, note = native.report(Source('#include "/dev/zero"\nint a;\n'))
    assert loops == ()
    assert "took more than 0.3 s" in note


@needs_gcc
def test_a_missing_compiler_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no report on loops" in native.report(Source("int a;"))[1]


@needs_gcc
def test_the_reference_kernel_vectorises_by_hand() -> None:
    seen, notes = native.look(VECTOR_ROWS.read_text(encoding="utf-8"))
    assert seen is not None
    assert notes == ()
    assert (seen.handmade, seen.parallel, seen.streaming) == (True, True, True)
    assert len(seen.loops) >= 5
