"""`atrex calibrate` and `atrex doctor`: what this machine reaches, and what works on it."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from atrex.assembler import Capability, assembler, fault
from atrex.commands.common import DeviceOption, choose_device, console_for_output, print_json
from atrex.errors import AtrexError


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `atrex doctor`."""

    name: str
    ok: bool
    detail: str


def calibrate(device: DeviceOption, *, quick: bool, as_json: bool) -> None:
    """Measure peaks, bandwidth and launch floor, and keep them."""
    from atrex.calibrate import calibrate as run

    calibration = run(choose_device(device), quick)
    if as_json:
        print_json(calibration)
        return
    table = Table("figure", "measured", title=f"{calibration.provenance.hardware}")
    table.add_row("copy (read + write)", f"{calibration.copy_bytes_per_s / 1e9:.1f} GB/s")
    table.add_row("read", f"{calibration.read_bytes_per_s / 1e9:.1f} GB/s")
    table.add_row("launch floor", f"{calibration.launch_floor_us:.2f} µs")
    table.add_row("empty launch", f"{calibration.empty_launch_us:.2f} µs")
    for dtype, rate in calibration.flops_per_s.items():
        table.add_row(f"{dtype} matrix product", f"{rate / 1e12:.2f} TFLOP/s")
    for dtype, why in calibration.absent.items():
        table.add_row(dtype, f"not measured: {why}")
    console_for_output().print(table)


def doctor(*, as_json: bool) -> None:
    """What works here, what does not, and what a worker may not do."""
    checks = [*_software(), *_hardware(), *_sandbox()]
    if as_json:
        print_json([{"name": c.name, "ok": c.ok, "detail": c.detail} for c in checks])
        return
    table = Table("check", "", "detail")
    for check in checks:
        table.add_row(check.name, Text("yes", "green") if check.ok else Text("no", "yellow"), check.detail)
    console_for_output().print(table)


def _software() -> list[Check]:
    import torch

    checks = [Check("torch", True, torch.__version__)]
    for module, use in (
        ("triton", "kernels in Triton"),
        ("ml_dtypes", "Triton's interpreter"),
        ("chromadb", "vector retrieval"),
        ("bm25s", "lexical retrieval"),
    ):
        found = importlib.util.find_spec(module) is not None
        checks.append(Check(module, found, use if found else f"not installed ({use})"))
    from atrex.dsl import cpp

    try:
        version = cpp.compiler_version()
        checks.append(Check("C++ compiler", True, version))
        asan = cpp.asan_runtime()
        checks.append(Check("AddressSanitizer", asan is not None, str(asan or "the compiler has no libasan")))
    except AtrexError as error:
        checks.append(Check("C++ compiler", False, str(error)))
    for tool in ("compute-sanitizer", "ncu"):
        path = shutil.which(tool)
        checks.append(Check(tool, path is not None, path or "not on the PATH"))
    return checks


def _hardware() -> list[Check]:
    import torch

    from atrex.roofline import cpu_name, gpu_name, load_calibration

    gpu = torch.cuda.is_available()
    checks = [Check("CUDA device", gpu, gpu_name() if gpu else "none visible to PyTorch")]
    if gpu:
        checks.append(_ptxas(torch.cuda.get_device_capability()))
    names = [(cpu_name(), "cpu")] + ([(gpu_name(), "cuda")] if gpu else [])
    for name, device in names:
        try:
            found = load_calibration(name, device)  # type: ignore[arg-type]
            detail = f"{name}: {found.date:%Y-%m-%d}" if found else f"{name}: run `atrex calibrate`"
            checks.append(Check(f"calibration ({device})", found is not None, detail))
        except AtrexError as error:
            checks.append(Check(f"calibration ({device})", False, str(error)))
    return checks


def _ptxas(capability: Capability) -> Check:
    version = assembler(capability)
    if version is None:
        return Check("ptxas", False, "Triton has none (kernels in Triton)")
    wrong = fault(capability, version)
    return Check("ptxas", not wrong, f"{version} {wrong}".strip())


def _sandbox() -> list[Check]:
    from atrex.sandbox import probe

    return [Check(f"sandbox: {layer.name}", layer.active, layer.detail) for layer in probe()]
