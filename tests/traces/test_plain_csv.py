"""The plain CSV of launches."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from traces.condense import Condensed, condense
from traces.readers import UnreadableTrace, plain

HEAD = "kernel,duration_us"


def read(tmp_path: Path, text: str | bytes, name: str = "launches.csv") -> tuple[Condensed, tuple[str, ...]]:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reading = plain.read(path)
    assert reading.format == "csv"
    assert not isinstance(reading.launches, Condensed)
    return condense(reading.launches), reading.complaints


def test_every_column_arrives(tmp_path: Path) -> None:
    text = (
        "kernel,duration_us,start_us,device,stream,operator,module,shapes,dtypes,scalars,annotations,kind\n"
        '"gemm<1, 2>",1.5,10,1,7,aten::mm,Linear_0,"[[512, 64]]","[""c10::Half""]",'
        '"["""", ""1e-06"", ""of alice""]","[""step"", ""prefill""]",kernel\n'
        "to host,2.5,10.5,1,8,,,,,,decode,copy\n"
    )
    (copy, gemm), complaints = read(tmp_path, text)[0].entries, read(tmp_path, text)[1]
    assert complaints == ()
    assert (gemm.kernel, gemm.operator, gemm.stack, gemm.module) == (
        "gemm<1, 2>",
        "aten::mm",
        ("aten::mm",),
        "Linear_0",
    )
    assert json.loads(gemm.shapes) == [[512, 64]]
    assert json.loads(gemm.dtypes) == ["c10::Half"]
    assert (gemm.scalars, copy.scalars) == ('["","1e-06",""]', "")
    assert gemm.annotations == ("step", "prefill")
    assert (copy.kind, copy.annotations, copy.device) == ("copy", ("decode",), 1)
    # They overlap from 10.5 to 11.5, and share that microsecond.
    assert gemm.busy_us == pytest.approx(1.0)
    assert copy.busy_us == pytest.approx(2.0)


def test_without_starts_launches_lie_end_to_end_and_that_is_said(tmp_path: Path) -> None:
    found, complaints = read(tmp_path, f"{HEAD},device\na,1,0\nb,2,1\na,3,0\n")
    assert [(device.span_us, device.busy_us) for device in found.devices] == [(4.0, 4.0), (2.0, 2.0)]
    assert len(complaints) == 1
    assert "end to end" in complaints[0]


def test_a_row_may_stand_for_several_launches(tmp_path: Path) -> None:
    found, _ = read(tmp_path, f"{HEAD},start_us,launches\na,2,100,3\na,2,200,\n")
    assert [(entry.launches, entry.device_us, entry.busy_us) for entry in found.entries] == [(4, 8.0, 8.0)]
    assert found.devices[0].span_us == 102.0


def test_gzipped_with_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    packed = gzip.compress(b"\xef\xbb\xbfkernel,duration_us\r\na,1\r\n\r\nb,2\r\n", mtime=0)
    found, _ = read(tmp_path, packed, "launches.csv.gz")
    assert {entry.kernel: entry.device_us for entry in found.entries} == {"a": 1.0, "b": 2.0}


def test_more_rows_than_one_piece(tmp_path: Path) -> None:
    rows = 120_000
    found, _ = read(tmp_path, f"{HEAD}\n" + "".join(f"k{i % 3},{i % 7}\n" for i in range(rows)))
    assert sum(entry.launches for entry in found.entries) == rows
    assert sum(entry.device_us for entry in found.entries) == sum(i % 7 for i in range(rows))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kernel,time\na,1\n", "no column duration_us"),
        ("name,duration_us\na,1\n", "no column kernel"),
        (f"{HEAD}\na,1\nb,fast\n", "line 3: duration_us is 'fast': give a number of at least 0"),
        (f"{HEAD}\na,nan\n", "line 2: duration_us is 'nan'"),
        (f"{HEAD}\na,inf\n", "line 2: duration_us is 'inf'"),
        (f"{HEAD}\na,-1\n", "line 2: duration_us is '-1'"),
        (f"{HEAD}\na,\n", "line 2: duration_us is ''"),
        (f"{HEAD}\na,1e300\n", "line 2: duration_us is '1e300'"),
        (f"{HEAD}\n,1\n", "line 2: kernel is ''"),
        (f"{HEAD},start_us\na,1,nan\n", "line 2: start_us is 'nan'"),
        (f"{HEAD},device\na,1,-1\n", "line 2: device is '-1': give a whole number"),
        (f"{HEAD},stream\na,1,0.5\n", "line 2: stream is '0.5'"),
        (f"{HEAD},launches\na,1,0\n", "line 2: launches is '0'"),
        (f"{HEAD},launches\na,1,1e12\n", "stands for more than"),
        (f"{HEAD},kind\na,1,memcpy\n", "line 2: kind is 'memcpy': give kernel, copy or fill"),
        (f'{HEAD},shapes\na,1,"[[1"\n', "line 2: shapes is '[[1'"),
        (f"{HEAD},shapes\na,1," + "[" * 50_000 + "\n", "line 2: shapes is '[[[["),
        (f"{HEAD}\nf<1, 2>,3\n", "quote texts with commas"),
        (f'{HEAD}\n"a,1\n', "no well-formed CSV"),
        (f"{HEAD},kernel\na,1,b\n", "'kernel' appears twice"),
        (f"{HEAD}\n", "holds no launch"),
        ("", "no first line"),
        ("\x00" * 1000, "no column kernel"),
        (",".join(f"c{i}" for i in range(1_000_000)) + "\n", "the first line has more than"),
        (",".join(f"c{i}" for i in range(1_000)) + "\n", "has 1000 columns"),
        (f"{HEAD}\n" + "x" * 100_000_000 + ",1\n", "a line is longer than 1 MiB"),
        (gzip.compress(f"{HEAD}\na,1\n".encode() * 1000, mtime=0)[:60], "the gzip file is cut short"),
        (gzip.compress(b"kernel,duration_us\n" + b"x" * 100_000_000, mtime=0), "a line is longer than 1 MiB"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(UnreadableTrace) as raised:
        read(tmp_path, text)
    message = str(raised.value)
    assert said in message
    assert str(tmp_path / "launches.csv") in message
    assert "\n" not in message
    assert len(message) < 400


def test_a_directory_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="cannot be read"):
        plain.read(tmp_path)


def test_columns_that_mean_nothing_are_said(tmp_path: Path) -> None:
    _, complaints = read(tmp_path, f"{HEAD},start_us,colour\na,1,0,red\n")
    assert complaints == ("columns that mean nothing here: 'colour'",)


def test_sniff() -> None:
    assert plain.sniff(b"Kernel,duration_us\n", Path("x.txt"))
    assert not plain.sniff(b'{"traceEvents": [', Path("x.json"))
