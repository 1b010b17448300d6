"""Calibration measures this machine for real: its figures must agree with an independent clock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from atrex import calibrate as calibration
from atrex.calibrate import Calibration, calibrate, load_calibration, sample
from atrex.records import Cost
from atrex.roofline import bound, cpu_name, detect

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATREX_HOME", str(tmp_path_factory.mktemp("home")))
        record = calibrate("cpu", quick=True)
        assert load_calibration(cpu_name(), "cpu") == record
        assert detect("cpu").peaks == record.flops_per_s
    return record


class TestCpu:
    def test_record_says_where_and_how(self, cpu: Calibration) -> None:
        assert (cpu.provenance.hardware, cpu.provenance.device) == (cpu_name(), "cpu")
        assert cpu.provenance.torch == torch.__version__
        assert cpu.provenance.threads == torch.get_num_threads()
        assert cpu.provenance.compiler
        assert cpu.command == "atrex calibrate --device cpu --quick"
        assert set(cpu.n) == {"copy", "read", "launch_floor", "empty_launch", "fp32", "bf16"}
        assert min(cpu.n.values()) >= 1
        assert cpu.seconds < 15

    def test_torch_does_not_copy_faster_than_the_measured_peak(self, cpu: Calibration) -> None:
        source, target = torch.ones(64 << 20), torch.ones(64 << 20)
        seconds = min(_clock(lambda: target.copy_(source)) for _ in range(5))
        assert 2 * source.nbytes / seconds <= 1.3 * cpu.copy_bytes_per_s  # the machine is shared: some slack
        assert 2 * source.nbytes / seconds >= 0.05 * cpu.copy_bytes_per_s

    def test_matrix_rate_agrees_with_another_size(self, cpu: Calibration) -> None:
        a = torch.randn(768, 768)
        seconds = min(_clock(lambda: torch.mm(a, a)) for _ in range(10))
        assert 0.2 < (2 * 768**3 / seconds) / cpu.flops_per_s["fp32"] < 2

    def test_touching_memory_costs_more_than_an_empty_call(self, cpu: Calibration) -> None:
        assert 0.01 < cpu.empty_launch_us < cpu.launch_floor_us < 50

    def test_a_bound_stays_below_a_real_call(self, cpu: Calibration) -> None:
        """PyTorch's own out-of-place doubling moves what the cost says: it cannot beat the attainable."""
        x = torch.ones(32 << 20, dtype=torch.bfloat16)
        seconds = min(_clock(lambda: x * 2) for _ in range(5))
        attainable = cpu.launch_floor_us + 1e6 * cpu.memory_seconds(
            Cost(flops={}, read_bytes=x.nbytes, write_bytes=x.nbytes)
        )
        assert seconds * 1e6 > 0.8 * attainable


class TestKernels:
    def test_copy_copies_and_read_reads_every_byte(self) -> None:
        library, threads = calibration._library(), torch.get_num_threads()
        source = torch.randint(-(2**62), 2**62, (8 * 1000,), dtype=torch.int64)
        target = torch.zeros_like(source)
        library.stream_copy(source.data_ptr(), target.data_ptr(), 1000, threads)
        assert torch.equal(source, target)
        expected = 0
        for word in source.tolist():
            expected ^= word
        out = torch.zeros(1, dtype=torch.int64)
        library.stream_read(source.data_ptr(), out.data_ptr(), 1000, threads)
        assert out.item() == expected

    def test_touch_moves_one_element(self) -> None:
        source, target = torch.arange(4, dtype=torch.int16), torch.zeros(4, dtype=torch.int16)
        calibration._library().touch(source.data_ptr() + 6, target.data_ptr() + 2)
        assert target.tolist() == [0, 3, 0, 0]


class TestSample:
    def test_drops_the_first_run(self) -> None:
        timings = iter([0.1, 5.0, 3.0, 4.0])
        assert sample(lambda: next(timings), 3) == [5.0, 3.0, 4.0]

    def test_stops_at_its_budget_but_measures_once(self) -> None:
        def slow() -> float:
            time.sleep(0.02)
            return 1.0

        assert sample(slow, 1000, budget_s=0.0) == [1.0]


@pytest.mark.gpu
@needs_gpu
class TestGpu:
    def test_measures_below_the_vendor_peaks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ATREX_HOME", str(tmp_path))
        record, hardware = calibrate("cuda", quick=True), detect("cuda")
        assert load_calibration(hardware, "cuda") == record
        assert record.seconds < 20
        assert 0.5 < record.copy_bytes_per_s / hardware.memory_bytes_per_s < 1
        assert 0.5 < record.read_bytes_per_s / hardware.memory_bytes_per_s < 1
        assert 0.2 < record.empty_launch_us < record.launch_floor_us < 20
        for dtype, rate in record.flops_per_s.items():
            assert 0.4 < rate / hardware.peaks[dtype] <= 1.02, dtype
        assert {"fp32", "tf32", "bf16", "fp16"} <= set(record.flops_per_s)
        cost = Cost(flops={"fp32": 1e6}, read_bytes=1 << 30, write_bytes=1 << 30)
        found = bound(cost, hardware, record)
        assert found.attainable_us is not None
        assert found.sol_us < found.attainable_us


def _clock(call: object) -> float:
    started = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - started
