"""How fast a case can be: vendor peaks (speed of light) and measured peaks (attainable).

    hardware = detect("cuda")
    calibration = load_calibration(hardware, "cuda")
    bound(problem.cost(init, dims), hardware, calibration)

`hardware/*.yaml` holds vendors' figures, each with its source. A `Calibration` holds what this machine was
measured to reach (`atrex calibrate`), stored under `$ATREX_HOME/calibration`. The model is the roofline of
Williams, Waterman and Patterson (CACM 52(4), 2009): a kernel takes at least its traffic over the bandwidth,
and at least its operations over the peak rate.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import psutil
import yaml
from pydantic import AwareDatetime, Field, ValidationError, model_validator

from atrex.errors import EnvironmentProblem, UsageError
from atrex.records import Bound, Cost, Device, Provenance, Record

HARDWARE = Path(__file__).resolve().parent / "hardware"

# Where a machine has no unit for a dtype, its values convert without loss to one of these, fastest first.
# Falling straight to fp32 would call a kernel that widens FP8 to BF16 faster than light.
_EXACTLY_WIDER = {"fp8": ("fp16", "bf16"), "int8": ("fp16", "bf16"), "bf16": ("tf32",), "fp16": ("tf32",)}

Positive = Annotated[float, Field(gt=0)]
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")


def _check_peaks(peaks: Iterable[str]) -> None:
    if unknown := sorted(set(peaks) - set(DTYPES)):
        raise ValueError(f"a peak of the unknown dtype {unknown[0]!r}: known are {', '.join(DTYPES)}")
    if "fp32" not in peaks:
        raise ValueError("no peak for fp32, which stands in for every dtype without one")


class Figure(Record):
    """A published number and the key of the document that states it."""

    value: Positive
    source: str


class HardwareSpec(Record):
    """The whole of one hardware/*.yaml, in the units of the datasheets."""

    name: str
    aliases: tuple[str, ...]  # other names, among them what nvidia-smi and torch.cuda.get_device_name print
    vendor: str
    architecture: str
    documents: dict[str, str]
    peaks_tflops: dict[str, Figure]  # dense, 1e12 operations a second
    memory_gb_per_s: Figure
    memory_gb: Figure | None = None
    l2_mib: Figure | None = None
    multiprocessors: Figure | None = None

    @property
    def figures(self) -> dict[str, Figure]:
        """Every published figure by the name of its field in `Hardware`, peaks by dtype."""
        optional = {
            "memory_bytes_per_s": self.memory_gb_per_s,
            "memory_bytes": self.memory_gb,
            "l2_bytes": self.l2_mib,
            "multiprocessors": self.multiprocessors,
        }
        return {**self.peaks_tflops, **{name: figure for name, figure in optional.items() if figure}}

    @model_validator(mode="after")
    def _complete(self) -> HardwareSpec:
        _check_peaks(self.peaks_tflops)
        for name, figure in self.figures.items():
            if figure.source not in self.documents:
                raise ValueError(f"the source {figure.source!r} of {name} is not among the documents")
        return self


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine's peaks in SI units. Figures that its vendor does not publish are None."""

    name: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    peaks: Mapping[str, float]  # dense operations/s by dtype; fp32 is the vector units' rate
    memory_bytes_per_s: float
    memory_bytes: int | None
    l2_bytes: int | None  # the largest cache before memory: what must be exceeded to measure cold
    multiprocessors: int | None  # SMs, compute units, or logical CPUs
    sources: Mapping[str, str]  # where each figure comes from, by field or dtype


class Calibration(Record):
    """What this machine reaches: the best of `n` timed repetitions each, since noise only ever adds time."""

    schema_version: Literal[1] = 1
    provenance: Provenance
    date: AwareDatetime
    command: str  # what was run to measure it
    quick: bool
    seconds: float
    n: dict[str, int]  # timed repetitions by figure
    copy_bytes_per_s: Positive  # bytes read plus bytes written, half and half
    read_bytes_per_s: Positive  # reading nearly alone
    launch_floor_us: Positive  # the cheapest call that computes an output from an input, both in memory
    empty_launch_us: Positive  # a call that does nothing
    flops_per_s: dict[str, Positive]  # 2 n^3 / time of a square matrix product
    absent: dict[str, str]  # dtypes not measured, and why

    @model_validator(mode="after")
    def _complete(self) -> Calibration:
        _check_peaks(self.flops_per_s)
        return self

    @property
    def peak_bytes_per_s(self) -> float:
        """The best bandwidth of any mix of reads and writes.

        Mostly reading's. A core of a CPU may wait for loads that it would overlap with stores, and then
        copying moves more bytes; no mix may be bounded below what was seen, so its rate holds for all.
        """
        return max(self.read_bytes_per_s, self.copy_bytes_per_s)

    def memory_seconds(self, cost: Cost) -> float:
        """Time of this mix of reads and writes.

        A read byte costs 1/read; a written byte costs what makes the measured copy come out exactly:
        2/copy = 1/read + 1/write. So a case that mostly reads is not held to a slower copy.
        """
        read = 1 / self.peak_bytes_per_s
        return cost.read_bytes * read + cost.write_bytes * (2 / self.copy_bytes_per_s - read)


def bound(cost: Cost, hardware: Hardware, calibration: Calibration | None) -> Bound:
    """Roofline of one case, in microseconds.

    sol_us = max(bytes / peak bandwidth, sum over dtypes of flops / peak). The dtypes add up, as one
    kernel's operations share its issue slots. attainable_us puts measured peaks in their place and adds
    the launch floor: in a dependent chain of calls a kernel moves no byte while it starts.

    FLOPs count at the peak of the dtype that `cost` lists them under. rms_norm's are vector work: they
    belong to fp32, while Atrex-Bench's published W lists them as "bf16", a matrix rate; either way its
    traffic takes longer. A dtype without a peak takes that of the fastest one that holds its values
    exactly, at last fp32.
    """
    memory = cost.bytes / hardware.memory_bytes_per_s
    compute = _compute_seconds(cost, hardware.peaks)
    limiter = "memory" if memory >= sum(compute.values()) else max(compute, key=lambda dtype: compute[dtype])
    return Bound(
        sol_us=1e6 * max(memory, sum(compute.values())),
        attainable_us=_attainable_us(cost, calibration) if calibration else None,
        limiter=limiter,
    )


def _attainable_us(cost: Cost, calibration: Calibration) -> float:
    compute = sum(_compute_seconds(cost, calibration.flops_per_s).values())
    return calibration.launch_floor_us + 1e6 * max(calibration.memory_seconds(cost), compute)


def _compute_seconds(cost: Cost, peaks: Mapping[str, float]) -> dict[str, float]:
    return {dtype: flops / _peak(dtype, peaks) for dtype, flops in cost.flops.items()}


def _peak(dtype: str, peaks: Mapping[str, float]) -> float:
    family = dtype.partition("_")[0]  # fp8_e4m3 and fp8_e5m2 run at one rate
    return next(peaks[name] for name in (family, *_EXACTLY_WIDER.get(family, ()), "fp32") if name in peaks)


def all_hardware() -> tuple[Hardware, ...]:
    """Every machine of hardware/*.yaml, by name. Raises UsageError on a bad file."""
    return tuple(sorted(_catalogue(HARDWARE), key=lambda hardware: hardware.name))


def hardware_name(device: Device) -> str:
    """This machine's name as calibrations and ledgers have it. Raises EnvironmentProblem without a GPU."""
    return gpu_name() if device == "cuda" else cpu_name()


def load_hardware(name_or_alias: str) -> Hardware:
    """A machine by any of its names, whatever their case and punctuation. Raises UsageError."""
    known = {plain_name(name): each for each in all_hardware() for name in (each.name, *each.aliases)}
    if (plain := plain_name(name_or_alias)) in known:
        return known[plain]
    near = get_close_matches(plain, known, n=1)
    hint = (
        f"did you mean {known[near[0]].name}?"
        if near
        else f"known: {', '.join(h.name for h in all_hardware())}"
    )
    raise UsageError(f"unknown hardware {name_or_alias!r}; {hint}")


def detect(device: Device) -> Hardware:
    """The machine we run on.

    A GPU is looked up by its name. A CPU has no datasheet that fits (a virtual machine owns a share of
    one), so its peaks ARE the measured ones, and `sources` says so.

    Raises UsageError for a GPU without a hardware file, and EnvironmentProblem where there is no GPU or
    the CPU is not calibrated.
    """
    if device == "cuda":
        return load_hardware(gpu_name())
    calibration = load_calibration(cpu_name(), "cpu")
    if calibration is None:
        raise EnvironmentProblem(f"no measured peaks for {cpu_name()}: run `atrex calibrate` once")
    return _measured_cpu(calibration)


def gpu_name() -> str:
    """Name of the first GPU as torch prints it. Raises EnvironmentProblem where there is none."""
    import torch  # seconds to import, and only a live machine needs it

    if not torch.cuda.is_available():
        raise EnvironmentProblem("torch sees no GPU here: use --device cpu, or install a CUDA build of torch")
    return torch.cuda.get_device_name(0)


@cache
def cpu_name() -> str:
    """Model and logical CPUs, as in "AMD EPYC x2": a bigger share of a socket is another machine."""
    model = _cpuinfo("model name") or platform.processor() or platform.machine()
    return f"{model} x{os.cpu_count()}"


def _measured_cpu(calibration: Calibration) -> Hardware:
    origin = f"measured on this machine, {calibration.date:%Y-%m-%d} (`{calibration.command}`)"
    system = "operating system"
    return Hardware(
        name=cpu_name(),
        aliases=("cpu",),
        vendor=_cpuinfo("vendor_id") or "unknown",
        architecture=platform.machine(),
        peaks=dict(calibration.flops_per_s),
        memory_bytes_per_s=calibration.peak_bytes_per_s,
        memory_bytes=psutil.virtual_memory().total,
        l2_bytes=_last_level_cache(),
        multiprocessors=os.cpu_count(),
        sources={
            **dict.fromkeys(("memory_bytes_per_s", *calibration.flops_per_s), origin),
            **dict.fromkeys(("memory_bytes", "l2_bytes", "multiprocessors"), system),
        },
    )


def _cpuinfo(field: str) -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""  # not Linux: the caller has another name
    found = re.search(rf"^{field}\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def _last_level_cache() -> int | None:
    """Bytes of the largest cache that the kernel lists for CPU 0, or None."""
    sizes = [
        path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max((int(size.removesuffix("K")) * 1024 for size in sizes if size.endswith("K")), default=None)


def load_calibration(hardware: Hardware | str, device: Device) -> Calibration | None:
    """The stored calibration of a machine, by any of its names, under this torch version, or None.

    Raises UsageError for an unknown GPU, and naming the file and the remedy if it cannot be used.
    """
    if isinstance(hardware, str) and device == "cuda":
        hardware = load_hardware(hardware)
    name = hardware if isinstance(hardware, str) else hardware.name
    path = calibration_path(name)
    remedy = "run `atrex calibrate` to measure again"
    try:
        found = Calibration.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except ValidationError as error:
        raise UsageError(f"{path}: {_first(error)}; {remedy}") from None
    if (found.provenance.hardware, found.provenance.device) != (name, device):
        whose = f"{found.provenance.hardware} ({found.provenance.device})"
        raise UsageError(
            f"{path}: field provenance.hardware: it measures {whose}, not {name} ({device}); {remedy}"
        )
    return found


def store_calibration(calibration: Calibration) -> Path:
    """Write a calibration where `load_calibration` finds it, whole or not at all; EnvironmentProblem."""
    path = calibration_path(calibration.provenance.hardware)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(json.dumps(calibration.model_dump(mode="json"), indent=1) + "\n")
        os.replace(file.name, path)
    except OSError as error:
        raise EnvironmentProblem(f"{path}: cannot be written ({error.strerror}): set ATREX_HOME") from None
    return path


def calibration_path(hardware: str) -> Path:
    """The calibration file of a machine, keyed by hardware and torch version: a new library has new peaks."""
    import torch

    home = Path(os.environ.get("ATREX_HOME") or Path.home() / ".cache" / "atrex")
    return home / "calibration" / f"{_slug(hardware)}-torch-{_slug(torch.__version__)}.json"


@cache
def _catalogue(directory: Path) -> tuple[Hardware, ...]:
    return tuple(parse_hardware(path) for path in directory.glob("*.yaml"))


def parse_hardware(path: Path) -> Hardware:
    """Read and validate one hardware file. Raises UsageError naming the file, the field and the remedy."""
    try:
        spec = HardwareSpec.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise UsageError(f"{path}: {_first(error)}; see {HARDWARE / 'h200.yaml'}") from None
    return _si(spec)


def _si(spec: HardwareSpec) -> Hardware:
    return Hardware(
        name=spec.name,
        aliases=spec.aliases,
        vendor=spec.vendor,
        architecture=spec.architecture,
        peaks={dtype: figure.value * 1e12 for dtype, figure in spec.peaks_tflops.items()},
        memory_bytes_per_s=spec.memory_gb_per_s.value * 1e9,
        memory_bytes=int(spec.memory_gb.value * 1e9) if spec.memory_gb else None,
        l2_bytes=int(spec.l2_mib.value * 2**20) if spec.l2_mib else None,
        multiprocessors=int(spec.multiprocessors.value) if spec.multiprocessors else None,
        sources={name: spec.documents[figure.source] for name, figure in spec.figures.items()},
    )


def _first(error: ValidationError) -> str:
    """The first complaint, on one line: "field a.b: what is wrong"."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "(top level)"
    return f"field {field}: {' '.join(first['msg'].split())}"


def plain_name(name: str) -> str:
    """A machine's name without case and punctuation, which sources write differently."""
    return "".join(c for c in name.casefold() if c.isalnum())


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.casefold()).strip("-")
