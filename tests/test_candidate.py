"""Candidate files: identity, language, and files that no candidate should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atrex.candidate import MAX_SOURCE_BYTES, Candidate, detect_dsl, load_candidate
from atrex.errors import UsageError

KERNEL = "import torch\nclass Model(torch.nn.Module): ...\n"


class TestIdentity:
    def test_it_is_the_content_and_nothing_else(self) -> None:
        one = Candidate("rms_norm", "cpp", KERNEL)
        assert one.id == Candidate("rms_norm", "cpp", KERNEL, parent="p", note="n").id
        assert len(one.id) == 64
        others = [
            Candidate("l2_norm", "cpp", KERNEL),
            Candidate("rms_norm", "torch", KERNEL),
            Candidate("rms_norm", "cpp", KERNEL + " "),
        ]
        assert len({one.id, *(other.id for other in others)}) == 4

    def test_parts_cannot_slide_into_each_other(self) -> None:
        assert Candidate("a", "cpp", "x").id != Candidate("acpp", "cpp", "x").id
        assert Candidate("rms_norm", "cpp", "").id != Candidate("rms_norm", "cpp", "\0").id

    def test_it_never_changes(self) -> None:
        # A changed rule would orphan every kernel recorded so far.
        assert Candidate("rms_norm", "torch", "pass\n").id == (
            "5ae8473932603e3e033e0f0fe94fc4cf83f95833765099642d6729f466389bcd"
        )


class TestLoad:
    def test_a_file_is_read_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "k.py"
        path.write_bytes("import triton\r\n# é\n".encode())
        candidate = load_candidate(path, "rms_norm")
        assert (candidate.source, candidate.dsl) == ("import triton\r\n# é\n", "triton")

    def test_a_stated_language_wins(self, tmp_path: Path) -> None:
        path = tmp_path / "k.py"
        path.write_text("import triton\n")
        assert load_candidate(path, "rms_norm", "cuda").dsl == "cuda"

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(
            UsageError, match=r"k\.py: cannot read the candidate file \(No such file"
        ) as error:
            load_candidate(tmp_path / "k.py", "rms_norm")
        assert "\n" not in str(error.value)

    def test_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot read the candidate file"):
            load_candidate(tmp_path, "rms_norm")

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        path = tmp_path / "k.py"
        os.mkfifo(path)
        with pytest.raises(UsageError, match=r"k\.py: cannot read the candidate file \(no regular file\)"):
            load_candidate(path, "rms_norm")

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / "k.py"
        path.write_bytes(b"ok = 1\n\xff\xfe")
        with pytest.raises(UsageError, match=r"k\.py: not UTF-8 text \(byte 7\)"):
            load_candidate(path, "rms_norm")

    def test_a_file_beyond_the_limit(self, tmp_path: Path) -> None:
        path = tmp_path / "k.py"
        path.write_bytes(b"#" * MAX_SOURCE_BYTES)
        assert len(load_candidate(path, "rms_norm").source) == MAX_SOURCE_BYTES
        path.write_bytes(b"#" * (MAX_SOURCE_BYTES + 1))
        with pytest.raises(UsageError, match=f"longer than {MAX_SOURCE_BYTES} bytes"):
            load_candidate(path, "rms_norm")

    @pytest.mark.parametrize(
        "source", ["a\0b", "(" * 10_000, "-" * 100_000 + "1", "x" + ".y" * 100_000, "def ("]
    )
    def test_what_does_not_parse_is_left_to_the_worker(self, tmp_path: Path, source: str) -> None:
        path = tmp_path / "k.py"
        path.write_text(source)
        assert load_candidate(path, "rms_norm").dsl == "torch"


class TestLanguage:
    @pytest.mark.parametrize(
        ("source", "dsl"),
        [
            (KERNEL, "torch"),
            ("", "torch"),
            ("import triton", "triton"),
            ("import triton.language as tl", "triton"),
            ("from triton import language as tl", "triton"),
            ("from triton.language.extra import libdevice", "triton"),
            ("def f():\n    import triton as t", "triton"),
            ("import tritonclient", "torch"),
            ("# import triton\nname = 'triton'", "torch"),
            ("from triton.experimental import gluon", "gluon"),
            ("import triton\nfrom triton.experimental.gluon import language as gl", "gluon"),
            ("import triton.experimental.gluon as g", "gluon"),
            ("from atrex.dsl import cpp", "cpp"),
            ("from atrex.dsl import cpp as compiler", "cpp"),
            ("import atrex.dsl.cpp as c", "cpp"),
            ("from atrex.dsl.cpp import compile", "cpp"),
            ("from atrex.dsl import cuda", "cuda"),
            ("from . import triton", "torch"),
        ],
    )
    def test_it_is_read_off_the_imports(self, source: str, dsl: str) -> None:
        assert detect_dsl(source) == dsl

    @given(st.text(max_size=200))
    def test_no_text_is_an_error(self, source: str) -> None:
        detect_dsl(source)
