"""rocprofv3's CSV files, as its versions write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from traces.condense import Condensed, condense
from traces.profile import Entry
from traces.readers import Reading, UnreadableTrace, rocprof

# Headers of ROCm 6.2, 6.3 and 7.x, and of `rocpd convert`, from ROCprofiler-SDK's "Using rocprofv3".
HEADERS = {
    "6.2": '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp","Private_Segment_Size","Group_Segment_Size"',
    "6.3": '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
    '"Correlation_Id","Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size"',
    "7.0": '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
    '"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count"',
    "rocpd": '"Guid","Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id",'
    '"Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","Lds_Block_Size","Scratch_Size"',
}
AGENTS = {"6.2": "2", "6.3": "2", "7.0": '"Agent 2"', "rocpd": '"Agent 2"'}
API = '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
COPIES = (
    '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp"\n'
)
AGENT_INFO = (
    '"Node_Id","Logical_Node_Id","Agent_Type","Cu_Count","Name","Vendor_Name","Product_Name","Model_Name"\n'
    '0,0,"CPU",48,"AMD EPYC 9654","CPU","AMD EPYC 9654",""\n'
    '1,1,"GPU",304,"gfx942","AMD","AMD Instinct MI325X","ip discovery"\n'
    '2,2,"GPU",304,"gfx942","AMD","AMD Instinct MI300X","ip discovery"\n'
)
# Clocks have more digits than a float: 172352210005122 and one nanosecond more must stay apart.
T = 17_235_221_000_512_200


def row(version: str, name: str, correlation: int, start: object, end: object, stream: int = 0) -> str:
    values = {
        "guid": '"00006409-00d1"',
        "kind": '"KERNEL_DISPATCH"',
        "agent_id": AGENTS[version],
        "queue_id": "1",
        "stream_id": str(stream),
        "thread_id": "70",
        "kernel_name": f'"{name}"',
        "correlation_id": str(correlation),
        "start_timestamp": str(start),
        "end_timestamp": str(end),
    }
    names = HEADERS[version].replace('"', "").lower().split(",")
    return ",".join(values.get(column, "0") for column in names) + "\n"


def recording(tmp_path: Path, version: str = "7.0", **files: str) -> Path:
    """A kernel trace of three kernels, and other files beside it."""
    path = tmp_path / "host" / "210_kernel_trace.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        HEADERS[version]
        + "\n"
        + row(version, "void gemm<float>(float*, int)", 11, T, T + 3565)
        + row(version, "void gemm<float>(float*, int)", 12, T + 5000, T + 6001)
        + row(version, "__amd_rocclr_fillBufferAligned", 13, T + 5000, T + 6000, stream=3)
    )
    for name, text in files.items():
        path.with_name(f"210_{name}.csv").write_text(text)
    return path


def read(path: Path) -> tuple[Reading, dict[str, Entry]]:
    reading = rocprof.read(path)
    assert not isinstance(reading.launches, Condensed)
    return reading, {entry.kernel: entry for entry in condense(reading.launches).entries}


@pytest.mark.parametrize("version", sorted(HEADERS))
def test_every_version_gives_the_same_times(tmp_path: Path, version: str) -> None:
    reading, entries = read(recording(tmp_path, version, agent_info=AGENT_INFO))
    assert (reading.format, reading.hardware) == ("rocprof", "AMD Instinct MI300X")
    gemm, fill = entries["void gemm<float>(float*, int)"], entries["__amd_rocclr_fillBufferAligned"]
    assert (gemm.device, gemm.launches, gemm.kind, fill.kind) == (2, 2, "kernel", "fill")
    assert gemm.device_us == pytest.approx(3.565 + 1.001, abs=1e-9)
    assert gemm.busy_us == pytest.approx(3.565 + 0.501, abs=1e-9)  # a microsecond is shared with the fill
    assert fill.busy_us == pytest.approx(0.5, abs=1e-9)


def test_copies_count_at_the_device(tmp_path: Path) -> None:
    copies = (
        COPIES
        + f'"MEMORY_COPY","HOST_TO_DEVICE",0,2,0,{T},{T + 100}\n'
        + f'"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST","Agent 1","Agent 0",0,{T},{T + 200}\n'
        + f'"MEMORY_COPY","MEMORY_COPY_HOST_TO_HOST","Agent 0","Agent 0",0,{T},{T + 200}\n'
    )
    reading, entries = read(recording(tmp_path, memory_copy_trace=copies))
    assert entries["MEMORY_COPY_HOST_TO_DEVICE"].device == 2
    assert entries["MEMORY_COPY_DEVICE_TO_HOST"].device == 1
    assert entries["MEMORY_COPY_DEVICE_TO_HOST"].kind == "copy"
    assert "MEMORY_COPY_HOST_TO_HOST" not in entries
    assert any("1 lines of memory_copy_trace.csv" in line for line in reading.complaints)


def test_ranges_around_the_hip_call_are_the_annotations(tmp_path: Path) -> None:
    calls = (
        API
        + '"HIP_RUNTIME_API","hipLaunchKernel",7,70,11,1000,1100\n'
        + '"HIP_RUNTIME_API","hipLaunchKernel",7,71,12,1000,1100\n'
        + '"HIP_RUNTIME_API","hipMemsetAsync",7,70,13,3000,3100\n'
    )
    markers = (
        API
        + '"MARKER_CORE_RANGE_API","decode",7,70,1,500,2000\n'
        + '"MARKER_CORE_RANGE_API","aten::mm, seq = 4, op_id = 9, sizes = [[8, 4], [4, 2]]",7,70,2,900,1500\n'
        + '"MARKER_CORE_API","other thread",7,72,3,500,9000\n'
        + '"MARKER_CONTROL_API","roctxProfilerPause",7,70,4,500,9000\n'
    )
    reading = rocprof.read(recording(tmp_path, hip_api_trace=calls, marker_api_trace=markers))
    assert not isinstance(reading.launches, Condensed)
    assert reading.complaints == ()
    first, second, fill = condense(reading.launches).entries
    assert (first.operator, first.stack, first.shapes) == ("aten::mm", ("aten::mm",), "[[8,4],[4,2]]")
    assert first.annotations == ("decode",)
    assert (second.operator, second.annotations, fill.annotations) == ("", (), ())


def test_ranges_without_calls_are_not_guessed(tmp_path: Path) -> None:
    markers = API + '"MARKER_CORE_RANGE_API","decode",7,70,1,0,99999999999999999\n'
    reading, entries = read(recording(tmp_path, marker_api_trace=markers))
    assert any("no hip_api_trace.csv" in line for line in reading.complaints)
    assert all(entry.annotations == () for entry in entries.values())


def test_lines_that_are_no_launch_are_counted(tmp_path: Path) -> None:
    path = recording(tmp_path)
    with path.open("a") as file:
        file.write(row("7.0", "backwards", 20, T + 10, T))
        file.write(row("7.0", "nan", 21, "nan", T))
        file.write(row("7.0", "huge", 22, 1, 2**63))
        file.write(row("7.0", "negative", 23, -5, T))
        file.write(row("7.0", "a year", 24, 0, 10**17))
        file.write('"KERNEL_DISPATCH","Agent 2",1')  # cut off
    reading, entries = read(path)
    assert len(entries) == 2
    assert any(line.startswith("6 lines of kernel_trace.csv") for line in reading.complaints)


def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    copies = recording(tmp_path, memory_copy_trace=COPIES).with_name("210_memory_copy_trace.csv")
    with pytest.raises(UnreadableTrace, match="give the file that ends in kernel_trace"):
        rocprof.read(copies)
    other = tmp_path / "1_kernel_trace.csv"
    for text, said in [
        ('"Kind","Agent_Id"\n', "no column kernel_name"),
        (HEADERS["7.0"] + "\n", "holds no launch"),
        (HEADERS["7.0"] + '\n"KERNEL', "no well-formed CSV"),
        ("", "no first line"),
        ("x" * 100_000_000, "the first line has more than"),
        (HEADERS["7.0"] + "\n" + "x" * 100_000_000, "a line is longer"),
    ]:
        other.write_text(text)
        with pytest.raises(UnreadableTrace) as raised:
            rocprof.read(other)
        assert said in str(raised.value)
        assert "\n" not in str(raised.value)


def test_sniff() -> None:
    for header in HEADERS.values():
        assert rocprof.sniff(header.encode() + b"\n", Path("x_kernel_trace.csv"))
    assert rocprof.sniff(API.encode(), Path("x_marker_api_trace.csv"))
    assert not rocprof.sniff(b"kernel,duration_us,start_us\n", Path("x.csv"))
