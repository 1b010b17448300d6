"""Which ptxas Triton uses, and which are known to be wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from atrex.assembler import assembler, fault
from atrex.commands import machine

H200, B200, A100 = (9, 0), (10, 0), (8, 0)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_triton_says_which_assembler_it_uses() -> None:
    """In a process of its own: where Triton was imported once, its interpreter cannot be chosen any more."""
    asked = "from atrex.assembler import assembler; print([assembler(c) for c in ((9, 0), (10, 0), (8, 0))])"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"\['\d+\.\d+', '\d+\.\d+', '\d+\.\d+'\]", said.strip())


def test_without_triton_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia.compiler", None)
    assert assembler(H200) is None
    found = machine._ptxas(H200)
    assert not found.ok
    assert "none" in found.detail


@pytest.mark.parametrize(
    ("capability", "version", "wrong"),
    [
        *((H200, "12.8", True), (H200, "13.0", True), (H200, "13.3", False), (H200, "14.0", False)),
        *((B200, "12.9", False), (A100, "12.8", False)),
    ],
)
def test_what_is_known_to_be_wrong_on_hopper_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], version: str, wrong: bool
) -> None:
    said = fault(capability, version)
    assert ("TRITON_PTXAS_PATH" in said) == wrong
    monkeypatch.setattr(machine, "assembler", lambda _: version)
    found = machine._ptxas(capability)
    assert found.ok != wrong
    assert found.detail.startswith(version)
