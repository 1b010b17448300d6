"""atrex.dsl.cpp: compiling, caching, errors, launch records, threads, AddressSanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from atrex.dsl import cpp
from atrex.errors import EnvironmentProblem

ROOT = Path(__file__).parents[2]

FILL = r"""
#include <cstdint>
extern "C" void fill(float* out, int64_t n, float value) { for (int64_t i = 0; i < n; ++i) out[i] = value; }
extern "C" void count(int32_t* out) { ++*out; }
"""
FUNCTIONS: dict[str, list[type[Any]]] = {"fill": [cpp.pointer, cpp.i64, cpp.f32], "count": [cpp.pointer]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATREX_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("ATREX_CXX_SANITIZE", raising=False)
    return tmp_path / "cpp"


def constant(value: int) -> str:
    return f'extern "C" void answer(int* out) {{ *out = {value}; }}'


def answer(library: cpp.Library) -> int:
    out = torch.zeros(1, dtype=torch.int32)
    library.answer(out.data_ptr())
    return int(out)


class TestCompile:
    def test_function_writes_through_the_pointer_and_no_further(self) -> None:
        out = torch.zeros(8)
        cpp.compile(FILL, FUNCTIONS).fill(out.data_ptr(), 5, 2.5)
        assert out.tolist() == [2.5] * 5 + [0.0] * 3

    def test_same_content_is_built_once(self, cache: Path) -> None:
        first = cpp.compile(FILL, FUNCTIONS).path
        built = first.stat().st_mtime_ns
        assert cpp.compile(FILL, FUNCTIONS).path == first
        assert first.stat().st_mtime_ns == built
        assert list(cache.iterdir()) == [first]

    def test_object_is_keyed_by_source_and_flags(self) -> None:
        paths = {
            cpp.compile(source, {}, flags).path
            for source in (constant(1), constant(2))
            for flags in ((), ("-O1",))
        }
        assert len(paths) == 4

    def test_libraries_with_the_same_function_do_not_mix(self) -> None:
        one, two = (cpp.compile(constant(value), {"answer": [cpp.pointer]}) for value in (1, 2))
        assert (answer(one), answer(two), answer(one)) == (1, 2, 1)

    def test_concurrent_builds_of_one_source(self, cache: Path) -> None:
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(cpp.compile, constant(7), {"answer": [cpp.pointer]}) for _ in range(4)]
        assert {answer(job.result()) for job in jobs} == {7}
        assert len(list(cache.iterdir())) == 1

    def test_special_values_survive_the_default_flags(self) -> None:
        source = (
            'extern "C" void probe(float* v) { v[1] = v[0] != v[0]; v[3] = v[2] * 0.5f; v[5] = v[4] - v[4]; }'
        )
        values = torch.tensor([torch.nan, 0, 1e-39, 0, torch.inf, 0])
        cpp.compile(source, {"probe": [cpp.pointer]}).probe(values.data_ptr())
        assert values[1] == 1.0
        assert values[3] > 0
        assert values[5].isnan()


class TestErrors:
    def test_compile_error_names_the_line_and_leaves_no_file(self, cache: Path) -> None:
        with pytest.raises(cpp.CompileError, match=r"2:\d+: error: .*nonsense"):
            cpp.compile("int a;\nnonsense b;\n", {})
        assert list(cache.iterdir()) == []

    def test_missing_function(self) -> None:
        with pytest.raises(cpp.CompileError, match=r"no function 'other'.*extern"):
            cpp.compile(FILL, {"other": []})

    def test_undefined_symbol_fails_when_it_is_linked_not_in_the_call(self) -> None:
        source = 'extern "C" void elsewhere(); extern "C" void here() { elsewhere(); }'
        with pytest.raises(cpp.CompileError, match="undefined reference to `elsewhere'"):
            cpp.compile(source, {"here": []})

    @pytest.mark.parametrize(
        ("source", "flags", "said"),
        [
            ('#include <dlfcn.h>\nextern "C" void here() { dlopen("libm.so.6", 1); }', (), "uses dlopen"),
            ('extern "C" void here() {}', ("-Wl,--no-as-needed", "-lresolv"), "links libresolv"),
        ],
    )
    def test_code_of_others(self, cache: Path, source: str, flags: tuple[str, ...], said: str) -> None:
        with pytest.raises(cpp.CompileError, match=f"{said}.*own code"):
            cpp.compile(source, {"here": []}, flags)
        assert list(cache.iterdir()) == []

    def test_no_compiler(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(EnvironmentProblem, match=r"g\+\+ or clang\+\+.*CXX"):
            cpp.compile(FILL, FUNCTIONS)

    def test_cxx_that_does_not_exist(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CXX", "no-such-compiler -v")
        with pytest.raises(EnvironmentProblem, match="CXX=no-such-compiler"):
            cpp.compile(FILL, FUNCTIONS)

    def test_cache_that_cannot_be_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ATREX_CACHE_DIR", "/dev/null/cache")
        with pytest.raises(EnvironmentProblem, match=r"/dev/null/cache/cpp .*set ATREX_CACHE_DIR"):
            cpp.compile(FILL, FUNCTIONS)


def test_cxx_chooses_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, wrapper = tmp_path / "log", tmp_path / "my-c++"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec g++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", f"{wrapper} -DFROM_CXX=41")
    library = cpp.compile(constant(0).replace("= 0", "= FROM_CXX"), {"answer": [cpp.pointer]})
    assert answer(library) == 41
    assert "-march=native" in log.read_text()


class TestLaunches:
    def test_calls_inside_are_recorded_and_calls_outside_are_not(self) -> None:
        library = cpp.compile(FILL, FUNCTIONS)
        out, counter, kept = torch.zeros(1), torch.zeros(1, dtype=torch.int32), library.count
        kept(counter.data_ptr())
        with cpp.launches() as names:
            kept(counter.data_ptr())  # a reference taken before the recording
            library.fill(out.data_ptr(), 1, 1.0)
            late = cpp.compile(constant(3), {"answer": [cpp.pointer]})  # a library loaded during it
            assert answer(late) == 3
        kept(counter.data_ptr())
        answer(late)
        assert names == ["count", "fill", "answer"]
        assert int(counter) == 3

    def test_recordings_nest_and_end_with_an_error(self) -> None:
        count = cpp.compile(FILL, FUNCTIONS).count
        counter = torch.zeros(1, dtype=torch.int32)

        def fail(inner: list[list[str]]) -> None:
            with cpp.launches() as names:
                inner.append(names)
                count(counter.data_ptr())
                raise KeyError

        inner: list[list[str]] = []
        with cpp.launches() as outer:
            with pytest.raises(KeyError):
                fail(inner)
            count(counter.data_ptr())
        count(counter.data_ptr())
        assert (inner, outer) == ([["count"]], ["count", "count"])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_team_has_the_number_of_threads_asked_for(threads: int) -> None:
    source = r"""
    #include <cstdint>
    extern "C" void team(int32_t* members, int32_t threads) {
        int32_t count = 0;
    #pragma omp parallel num_threads(threads) reduction(+ : count)
        count += 1;
        *members = count;
    }
    """
    members = torch.zeros(1, dtype=torch.int32)
    cpp.compile(source, {"team": [cpp.pointer, cpp.i32]}).team(members.data_ptr(), threads)
    assert int(members) == threads


class TestAddressSanitizer:
    def test_needs_its_runtime_preloaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ATREX_CXX_SANITIZE", "address")
        with pytest.raises(EnvironmentProblem, match="LD_PRELOAD="):
            cpp.compile(FILL, FUNCTIONS)

    def test_other_sanitizers_are_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ATREX_CXX_SANITIZE", "memory")
        with pytest.raises(EnvironmentProblem, match="ATREX_CXX_SANITIZE=memory"):
            cpp.compile(FILL, FUNCTIONS)

    def test_nothing_is_left_out(self) -> None:
        """An attribute would spare a function; that a comment or a string names it does not matter."""
        spared = '#define QUIET no_sanitize("address")\n__attribute__((QUIET)) ' + FILL.lstrip()
        named = '// no_sanitize\nstatic const char* name = "no_sanitize";\n' + FILL
        done = run_sanitized(
            f"""
            from atrex.dsl import cpp
            functions = {{"fill": [cpp.pointer, cpp.i64, cpp.f32]}}
            cpp.compile({named!r}, functions)
            try:
                cpp.compile({spared!r}, functions)
            except cpp.CompileError as error:
                print(error)
            """
        )
        assert "says no_sanitize: its accesses cannot be checked" in done.stdout, done.stderr

    @pytest.mark.slow
    @pytest.mark.parametrize(("elements", "clean"), [(16, True), (17, False)])
    def test_one_element_too_many_is_found(self, elements: int, clean: bool) -> None:
        done = run_sanitized(
            f"""
            import torch
            from atrex.dsl import cpp
            library = cpp.compile({FILL!r}, {{"fill": [cpp.pointer, cpp.i64, cpp.f32]}})
            out = torch.empty(16)
            library.fill(out.data_ptr(), {elements}, 1.0)
            """
        )
        assert ("heap-buffer-overflow" in done.stderr) is not clean, done.stderr
        assert (done.returncode == 0) is clean

    @pytest.mark.slow
    def test_finds_nothing_in_rms_norm(self) -> None:
        done = run_sanitized(
            f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from test_cpp_rms_norm import CONFIGURATIONS, EPS, configure, inputs, load
            module = load()
            for shape in ((0, 32), (1, 1), (9, 33), (67, 1155), (5, 4096)):
                x, weight = inputs(*shape)
                for configuration in CONFIGURATIONS:
                    configure(module, configuration)
                    module.Model(EPS)(x, weight)
                    module.Model(EPS)(x[:, 1:], weight.repeat_interleave(2)[2::2])
            print("clean")
            """
        )
        assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr


def run_sanitized(script: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that has AddressSanitizer's runtime preloaded."""
    runtime = cpp.asan_runtime()
    if runtime is None:
        pytest.skip("the compiler has no AddressSanitizer")
    environment = os.environ | {
        "LD_PRELOAD": str(runtime),
        "ASAN_OPTIONS": "detect_leaks=0",
        "ATREX_CXX_SANITIZE": "address",
    }
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
