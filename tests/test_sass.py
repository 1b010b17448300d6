"""Reading machine code for uniform registers that nothing has written; the lines are of a real binary."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
sass: Any = importlib.import_module("sass")

RIGHT = """
        .headerflags    @"EF_CUDA_SM90"
                   ULDC.64 UR6, c[0x0][0x208] ;
                   UIADD3 UR10, UR6, 0x8000, URZ ;
                   USGXT.U32 UR60, UR10, 0xe ;
                   UIADD3 UR42, UP0, UR60, 0x40, URZ ;
                   UIADD3.X UR43, UR7, -0x7fffffe0, URZ, UP0, !UPT ;
                   R2UR UR40, R5 ;
                   UMOV UR41, 0x40000040 ;
.L_x_3:
              @!P1 LOP3.LUT R53, RZ, UR10, RZ, 0x33, !PT ;
                   STS.64 [R0+UR10+0x1000], R20 ;
                   HGMMA.64x32x16.F32.BF16 R40, gdesc[UR40].tnspA.tnspB, R40 ;
                   HGMMA.64x128x16.F32.BF16 R24, R104, gdesc[UR40], R24, gsb0 ;
"""


def found(text: str) -> list[str]:
    lines: list[str] = sass.read_before_written(text.splitlines())
    return lines


def test_code_that_writes_first_is_right() -> None:
    assert found(RIGHT) == []


@pytest.mark.parametrize(
    ("gone", "wrong"),
    [
        ("USGXT.U32 UR60, UR10, 0xe ;", ["UIADD3 UR42, UP0, UR60, 0x40, URZ ;"]),
        ("UMOV UR41, 0x40000040 ;", ["HGMMA.64x32x16.F32.BF16 R40, gdesc[UR40].tnspA.tnspB, R40 ;"]),
        (
            "UIADD3.X UR43, UR7, -0x7fffffe0, URZ, UP0, !UPT ;",
            [
                "HGMMA.64x32x16.F32.BF16 R40, gdesc[UR40].tnspA.tnspB, R40 ;",
                "HGMMA.64x128x16.F32.BF16 R24, R104, gdesc[UR40], R24, gsb0 ;",
            ],
        ),
    ],
)
def test_what_nothing_has_written_is_found(gone: str, wrong: list[str]) -> None:
    assert gone in RIGHT
    assert found(RIGHT.replace(gone, "")) == wrong


def test_a_register_that_is_its_own_source_is_found() -> None:
    """As ptxas 12.8.93 has it."""
    broken = RIGHT.replace("UIADD3 UR42, UP0, UR60, 0x40, URZ", "UIADD3 UR42, UP0, UR42, 0x40, URZ")
    assert found(broken) == ["UIADD3 UR42, UP0, UR42, 0x40, URZ ;"]
