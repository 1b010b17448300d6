"""Bounds from first principles, hardware files, and the stored calibration."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atrex import roofline
from atrex.errors import EnvironmentProblem, UsageError
from atrex.records import Cost, Provenance
from atrex.roofline import Calibration, all_hardware, bound, detect, load_calibration, load_hardware


def calibration(hardware: str = "H200", device: str = "cuda", **figures: object) -> Calibration:
    provenance = Provenance(
        hardware=hardware, device=device, harness="0", torch=torch.__version__, python="3"
    )
    usual: dict[str, object] = {
        "provenance": provenance,
        "date": datetime(2026, 1, 1, tzinfo=UTC),
        "command": "atrex calibrate",
        "quick": False,
        "seconds": 1.0,
        "n": {"copy": 20},
        "copy_bytes_per_s": 4.0e12,
        "read_bytes_per_s": 4.4e12,
        "launch_floor_us": 2.0,
        "empty_launch_us": 1.0,
        "flops_per_s": {"fp32": 50e12, "bf16": 700e12},
        "absent": {},
    }
    return Calibration.model_validate({**usual, **figures})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATREX_HOME", str(tmp_path))
    return tmp_path


class TestBound:
    def test_traffic_over_bandwidth_limits_a_norm(self) -> None:
        cost = Cost(flops={"fp32": 1e6}, read_bytes=24_000_000, write_bytes=24_000_000)
        found = bound(cost, load_hardware("H200"), calibration())
        assert found.limiter == "memory"
        assert found.sol_us == pytest.approx(10.0)  # 48 MB at 4.8 TB/s
        assert found.attainable_us == pytest.approx(2.0 + 12.0)  # the floor, then 48 MB at 4.0 TB/s

    def test_operations_over_the_peak_limit_a_product(self) -> None:
        cost = Cost(flops={"bf16": 989e9, "fp32": 6.7e9}, read_bytes=1000, write_bytes=1000)
        found = bound(cost, load_hardware("H200"), calibration())
        assert found.limiter == "bf16"
        assert found.sol_us == pytest.approx(1000 + 100)  # the dtypes add up
        assert found.attainable_us == pytest.approx(2 + 989e9 / 700e6 + 6.7e9 / 50e6)

    def test_without_a_calibration_nothing_is_attainable_yet(self) -> None:
        assert (
            bound(Cost(flops={}, read_bytes=1, write_bytes=1), load_hardware("H200"), None).attainable_us
            is None
        )

    def test_empty_work_takes_the_launch_floor(self) -> None:
        found = bound(
            Cost(flops={"fp32": 0.0}, read_bytes=0, write_bytes=0), load_hardware("H200"), calibration()
        )
        assert (found.sol_us, found.attainable_us, found.limiter) == (0.0, 2.0, "memory")

    @pytest.mark.parametrize(
        ("machine", "dtype", "stands_in"),
        [
            ("A100", "fp8_e4m3", "bf16"),
            ("H200", "fp8_e4m3fn", "fp8"),
            ("xpu-a", "fp64", "fp32"),
            ("H20", "odd", "fp32"),
        ],
    )
    def test_a_dtype_without_a_unit_runs_as_one_that_holds_it(
        self, machine: str, dtype: str, stands_in: str
    ) -> None:
        hardware = load_hardware(machine)
        found = bound(Cost(flops={dtype: 1e12}, read_bytes=0, write_bytes=0), hardware, None)
        assert found.sol_us == pytest.approx(1e18 / hardware.peaks[stands_in])

    def test_mostly_reading_is_bounded_by_reading(self) -> None:
        cost = Cost(flops={}, read_bytes=44_000_000, write_bytes=0)
        assert calibration().memory_seconds(cost) == pytest.approx(10e-6)

    @given(
        copy=st.floats(1e9, 1e13),
        read=st.floats(1e9, 1e13),
        traffic=st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
    )
    def test_no_mix_is_faster_than_the_peak_and_a_copy_comes_out_as_measured(
        self, copy: float, read: float, traffic: tuple[int, int]
    ) -> None:
        measured = calibration(copy_bytes_per_s=copy, read_bytes_per_s=read)
        cost = Cost(flops={}, read_bytes=traffic[0], write_bytes=traffic[1])
        assert measured.memory_seconds(cost) >= cost.bytes / measured.peak_bytes_per_s * (1 - 1e-9)
        even = Cost(flops={}, read_bytes=traffic[0], write_bytes=traffic[0])
        assert measured.memory_seconds(even) == pytest.approx(even.bytes / copy)

    def test_a_calibration_needs_fp32_and_known_dtypes(self) -> None:
        for peaks, complaint in (({"bf16": 1e12}, "fp32"), ({"fp32": 1e12, "bf17": 1e12}, "bf17")):
            with pytest.raises(ValueError, match=complaint):
                calibration(flops_per_s=peaks)


class TestHardware:
    def test_h200_is_as_published(self) -> None:
        h200 = load_hardware("NVIDIA H200")
        assert (h200.memory_bytes_per_s, h200.peaks["bf16"], h200.multiprocessors) == (4.8e12, 989e12, 132)

    @pytest.mark.parametrize(
        ("printed", "name"),
        [
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA H20", "H20"),
            ("NVIDIA A100-SXM4-80GB", "A100"),
            ("NVIDIA B200", "B200"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("AMD Instinct MI300X", "MI300X"),
            ("h200", "H200"),
            ("XPU-A", "xpu-a"),
        ],
    )
    def test_a_device_is_found_by_what_its_driver_prints(self, printed: str, name: str) -> None:
        assert load_hardware(printed).name == name

    def test_no_two_machines_share_a_name(self) -> None:
        names = [roofline.plain_name(name) for h in all_hardware() for name in (h.name, *h.aliases)]
        assert len(set(names)) == len(names) >= 20

    def test_every_figure_has_a_source(self) -> None:
        for hardware in all_hardware():
            figures = {*hardware.peaks, "memory_bytes_per_s"}
            figures |= {
                f for f in ("memory_bytes", "l2_bytes", "multiprocessors") if getattr(hardware, f) is not None
            }
            assert figures == set(hardware.sources)
            assert all(hardware.sources.values())

    @pytest.mark.parametrize("hardware", all_hardware(), ids=lambda h: h.name)
    def test_peaks_are_dense_and_in_order(self, hardware: roofline.Hardware) -> None:
        """Half the width gives twice the rate: one figure with sparsity among dense ones would stand out."""
        peaks = hardware.peaks
        assert peaks["fp32"] < peaks["bf16"] == peaks["fp16"]
        assert peaks.get("fp8", 2 * peaks["bf16"]) == pytest.approx(2 * peaks["bf16"], rel=0.02)
        if "tf32" in peaks:
            assert 1.9 <= peaks["bf16"] / peaks["tf32"] <= 2.1

    def test_unknown_name_says_the_near_miss(self) -> None:
        with pytest.raises(UsageError, match=r"unknown hardware 'H20O'; did you mean H20"):
            load_hardware("H20O")
        with pytest.raises(UsageError, match=r"known: .*H200.*MI300X"):
            load_hardware("quantum")

    def test_the_pcie_board_is_not_taken_for_the_sxm_one(self) -> None:
        with pytest.raises(UsageError, match="unknown hardware"):
            load_hardware("NVIDIA H100 PCIe")

    @pytest.mark.parametrize(
        ("old", "new", "complaint"),
        [
            ("vendor: NVIDIA", "vender: NVIDIA", "field vend"),
            ("fp32: {value: 67, source: datasheet}", "fp33: {value: 67, source: datasheet}", "fp33"),
            ("source: device}", "source: rumour}", "'rumour'"),
            ("{value: 4800,", "{value: -4800,", "field memory_gb_per_s.value"),
            ("documents:", "documents: [", "not YAML"),
        ],
    )
    def test_a_bad_file_is_named_with_its_field(
        self, old: str, new: str, complaint: str, tmp_path: Path
    ) -> None:
        text = (roofline.HARDWARE / "h200.yaml").read_text()
        assert old in text
        (tmp_path / "bad.yaml").write_text(text.replace(old, new))
        with pytest.raises(UsageError) as error:
            roofline.parse_hardware(tmp_path / "bad.yaml")
        assert str(tmp_path / "bad.yaml") in str(error.value)
        assert complaint in str(error.value)
        assert "\n" not in str(error.value)


class TestStore:
    def test_what_is_stored_is_loaded(self, home: Path) -> None:
        path = roofline.store_calibration(calibration())
        assert path.parent == home / "calibration"
        assert load_calibration(load_hardware("H200"), "cuda") == calibration()
        assert load_calibration("NVIDIA H200", "cuda") == calibration()
        assert load_calibration("H100", "cuda") is None
        assert list(path.parent.iterdir()) == [path]  # no temporary file stays behind

    @pytest.mark.usefixtures("home")
    def test_another_torch_has_another_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        roofline.store_calibration(calibration())
        monkeypatch.setattr(torch, "__version__", "9.9.9")
        assert load_calibration("H200", "cuda") is None

    @pytest.mark.parametrize(
        ("old", "new", "complaint"),
        [
            ("{", "", "Invalid JSON"),
            ('"copy_bytes_per_s": 4000000000000.0', '"copy_bytes_per_s": 0', "field copy_bytes_per_s"),
            ('"quick"', '"fast"', "field quick"),
            ('"hardware": "H200"', '"hardware": "H100"', "it measures H100"),
        ],
    )
    @pytest.mark.usefixtures("home")
    def test_a_bad_record_is_named_with_the_remedy(self, old: str, new: str, complaint: str) -> None:
        path = roofline.store_calibration(calibration())
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(UsageError) as error:
            load_calibration("H200", "cuda")
        for part in (str(path), complaint, "atrex calibrate"):
            assert part in str(error.value)
        assert "\n" not in str(error.value)

    def test_a_home_that_is_a_file_is_an_environment_problem(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (home / "file").write_text("")
        monkeypatch.setenv("ATREX_HOME", str(home / "file"))
        with pytest.raises(EnvironmentProblem, match="ATREX_HOME"):
            roofline.store_calibration(calibration())


@pytest.mark.usefixtures("home")
class TestDetect:
    def test_an_uncalibrated_cpu_says_what_to_run(self) -> None:
        with pytest.raises(EnvironmentProblem, match="atrex calibrate"):
            detect("cpu")

    def test_a_cpus_peaks_are_the_measured_ones_and_say_so(self) -> None:
        measured = calibration(roofline.cpu_name(), "cpu", read_bytes_per_s=3e12)
        roofline.store_calibration(measured)
        cpu = detect("cpu")
        assert cpu.peaks == measured.flops_per_s
        assert cpu.memory_bytes_per_s == 4e12  # the better of copying and reading
        assert cpu.sources["fp32"].startswith("measured on this machine, 2026-01-01")
        cost = Cost(flops={"fp32": 1e9}, read_bytes=10**9, write_bytes=10**8)
        found = bound(cost, cpu, measured)
        assert found.attainable_us is not None
        assert found.sol_us <= found.attainable_us

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_no_gpu_is_an_environment_problem(self) -> None:
        with pytest.raises(EnvironmentProblem, match="no GPU"):
            detect("cuda")

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_the_file_agrees_with_the_device(self) -> None:
        found, properties = detect("cuda"), torch.cuda.get_device_properties(0)
        assert found.multiprocessors == properties.multi_processor_count
        assert found.l2_bytes == properties.L2_cache_size
        assert found.memory_bytes is not None
        assert found.memory_bytes <= properties.total_memory * 1.1
        assert found.architecture == f"sm_{properties.major}{properties.minor}"
