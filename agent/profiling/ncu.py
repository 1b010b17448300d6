"""Nsight Compute: its command line, what it prints, and the rows that are made of it.

Documented in NVIDIA's "Nsight Compute CLI" and "Profiling Guide"; seen to work with 2025.3 on an H200.
"""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.profiling.records import Extents, Kernel, Resource
from agent.profiling.timeline import plain

_MOST_NAMES = 32
_DURATION = "gpu__time_duration.sum"
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = (
    "long_scoreboard",
    "short_scoreboard",
    "barrier",
    "mio_throttle",
    "lg_throttle",
    "math_pipe_throttle",
    "wait",
    "no_instruction",
    "branch_resolving",
    "drain",
    "membar",
    "dispatch_stall",
)
_LIMITS: dict[Resource, str] = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
}
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
_SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
_L2_HIT = "lts__t_sector_hit_rate.pct"
_SECTOR_USE = tuple(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.pct" for op in ("ld", "st"))
_LOCAL = tuple(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st"))
_GLOBAL = tuple(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st"))
_DRAM_BYTES = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
_REGISTERS = "launch__registers_per_thread"
_SHARED = "launch__shared_mem_per_block"
_WAVES = "launch__waves_per_multiprocessor"

METRICS = (
    *(_DURATION, _REGISTERS, _SHARED, _WAVES, *_LIMITS.values()),
    *(_OCCUPANCY, _DRAM, _SM, _TENSOR, _L2_HIT, *_DRAM_BYTES),
    *(*_SECTOR_USE, *_LOCAL, *_GLOBAL, _CONFLICTS, _WAVEFRONTS),
    *(_STALL.format(reason) for reason in STALLS),
)
"""Every metric that is asked for, and no section: sections and rules would add passes."""

_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BYTES = re.compile(r"([KMGT]?)byte(?:/block)?$")
_SECONDS = {"second": 1e6, "s": 1e6, "msecond": 1e3, "ms": 1e3, "usecond": 1.0, "us": 1.0}
_SECONDS |= {"nsecond": 1e-3, "ns": 1e-3}
_PASSES = re.compile(r"==PROF== Profiling .*- (\d+) passes")


@dataclass(frozen=True, slots=True)
class Collected:
    """What a tool saw, and what it could not."""

    kernels: tuple[Kernel, ...] = ()
    notes: tuple[str, ...] = ()


def tool() -> str | None:
    """The path of ncu, or None."""
    return shutil.which("ncu")


def command(tool: str, log: Path, names: Iterable[str], launches: int) -> tuple[str, ...]:
    """What is put before the command line of the process whose kernels are to be profiled.

    The target warms up, marks a range with cudaProfilerStart and calls the candidate twice in it. Nothing
    before the range is profiled; `launches` (the kernels of these names in one call) of it are skipped, and
    as many are profiled: a warm call, whether or not ncu also counts what came before the range.

    Raises ValueError without a kernel name or with less than one launch.
    """
    wanted = sorted({re.escape(plain(name)) for name in names})[:_MOST_NAMES]
    if not wanted or launches < 1:
        raise ValueError("name the kernels to profile, and how many launches of them a call makes")
    return (
        *(tool, "--target-processes", "all", "--profile-from-start", "off"),
        *("--kernel-name-base", "function", "--kernel-name", f"regex:^({'|'.join(wanted)})$"),
        *("--launch-skip", str(launches), "--launch-count", str(launches)),
        *("--replay-mode", "kernel", "--cache-control", "all", "--clock-control", "none"),
        *("--metrics", ",".join(METRICS), "--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", str(log)),
    )


def collect(run: Callable[[tuple[str, ...]], object], names: Sequence[str], launches: int) -> Collected:
    """Have `run` start the target behind the given words, wait for its end, and read what ncu wrote.

    ncu that is absent or not permitted, or that sees nothing, is a note. What `run` raises is the caller's.
    """
    path = tool()
    if path is None:
        return Collected(notes=("ncu is not on the PATH: no hardware counters",))
    if not names:
        return Collected(notes=("ncu was not run: the call launches no kernel",))
    with tempfile.TemporaryDirectory(prefix="atrex-ncu-") as directory:
        log = Path(directory) / "ncu.csv"
        run(command(path, log, names, launches))
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return parse(text)


def parse(text: str) -> Collected:
    """Read what `--csv --page raw` prints: messages, a row of names, a row of units, a row a launch."""
    messages = [line for line in text.splitlines() if line.startswith("==")]
    table = _table(text)
    notes = _complaints(messages, empty=len(table) < 3)
    if len(table) < 2:
        return Collected(notes=notes)
    names, units, *rows = table
    complete = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
    if len(complete) < len(rows):
        notes += (f"ncu's table is cut off: {len(rows) - len(complete)} rows are left out",)
    reader = _Reader(dict(zip(names, units, strict=False)))
    kernels = tuple(reader.kernel(row) for row in complete)
    return Collected(tuple(k for k in kernels if k is not None), notes + tuple(sorted(reader.notes)))


def _table(text: str) -> list[list[str]]:
    """Rows of the CSV: everything from the line that begins with the column "ID"."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), len(lines))
    try:
        return list(csv.reader(lines[start:]))
    except csv.Error:
        return []


def _complaints(messages: Sequence[str], *, empty: bool) -> tuple[str, ...]:
    joined = "\n".join(messages)
    if "ERR_NVGPUCTRPERM" in joined:
        return (
            "ncu may not read the performance counters (ERR_NVGPUCTRPERM): set the driver's "
            "NVreg_RestrictProfilingToAdminUsers=0, or run as root",
        )
    errors = [line.removeprefix("==ERROR==").strip() for line in messages if line.startswith("==ERROR==")]
    passes = tuple(f"ncu replayed the kernel {n} times" for n in dict.fromkeys(_PASSES.findall(joined)))
    if errors:
        return (f"ncu: {errors[0][:200]}", *passes)
    if "No kernels were profiled" in joined:
        return ("ncu profiled nothing: no launch has a name that was asked for", *passes)
    return ("ncu printed no table", *passes) if empty else passes


class _Reader:
    """Turns rows into kernels; what it cannot read is None, with a note."""

    def __init__(self, units: Mapping[str, str]) -> None:
        self.units = units
        self.notes = set[str]()

    def kernel(self, row: Mapping[str, str]) -> Kernel | None:
        """One launch; None for a row without a name or a duration."""
        duration = self.scaled(row, _DURATION, _microseconds)
        if not row.get("Kernel Name") or duration is None:
            self.notes.add("ncu: a row without a kernel's name or duration is left out")
            return None
        counts = {name: self.number(row, metric) for name, metric in _LIMITS.items()}
        registers, shared = self.number(row, _REGISTERS), self.scaled(row, _SHARED, _plain_bytes)
        return Kernel(
            name=row["Kernel Name"],
            duration_us=duration,
            grid=_extents(row.get("Grid Size", "")),
            block=_extents(row.get("Block Size", "")),
            registers=None if registers is None else int(registers),
            shared_bytes=None if shared is None else int(shared),
            limits={name: int(n) for name, n in counts.items() if n is not None and n >= 1},
            waves=self.number(row, _WAVES),
            occupancy=self.share(row, _OCCUPANCY),
            dram=self.share(row, _DRAM),
            sm=self.share(row, _SM),
            tensor=self.share(row, _TENSOR),
            l2_hit=self.share(row, _L2_HIT),
            dram_bytes=_total(self.scaled(row, metric, _plain_bytes) for metric in _DRAM_BYTES),
            sector_use=min((s for s in (self.share(row, m) for m in _SECTOR_USE) if s), default=None),
            local_share=self.ratio(row, _LOCAL, (*_LOCAL, *_GLOBAL)),
            conflict_share=self.ratio(row, (_CONFLICTS,), (_WAVEFRONTS,)),
            stalls=self.stalls(row),
        )

    def stalls(self, row: Mapping[str, str]) -> dict[str, float]:
        """Shares of all waiting, without reasons that nothing waited for."""
        seen = {reason: self.number(row, _STALL.format(reason)) or 0.0 for reason in STALLS}
        total = sum(seen.values())
        return {reason: value / total for reason, value in seen.items() if value > 0}

    def ratio(self, row: Mapping[str, str], part: Sequence[str], whole: Sequence[str]) -> float | None:
        """Sum / sum, at most 1; None where something is missing or there was nothing."""
        above, below = (_total(self.number(row, metric) for metric in metrics) for metrics in (part, whole))
        return min(1.0, above / below) if above is not None and below else None

    def share(self, row: Mapping[str, str], metric: str) -> float | None:
        """A percentage as a share; counters of replayed passes may exceed 100 a little."""
        value = self.number(row, metric)
        return None if value is None else min(1.0, value / 100)

    def scaled(
        self, row: Mapping[str, str], metric: str, factor: Callable[[str], float | None]
    ) -> float | None:
        """A number in the unit that `factor` converts to; a unit that it does not know is noted."""
        value, unit = self.number(row, metric), self.units.get(metric, "")
        if value is None:
            return None
        if (scale := factor(unit)) is None:
            self.notes.add(f"ncu gives {metric} in {unit!r}, which is not a known unit")
            return None
        return value * scale

    def number(self, row: Mapping[str, str], metric: str) -> float | None:
        """A number, with or without thousands separators, that is not negative; None for n/a."""
        try:
            value = float(row.get(metric, "").replace(",", ""))
        except ValueError:
            return None
        return value if 0 <= value < float("inf") else None


def _microseconds(unit: str) -> float | None:
    return _SECONDS.get(unit)


def _plain_bytes(unit: str) -> float | None:
    found = _BYTES.match(unit)
    return _PREFIXES[found[1]] if found else None


def _total(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if any(value is None for value in known) else sum(value or 0.0 for value in known)


def _extents(text: str) -> Extents | None:
    """`(128, 1, 1)` as three numbers."""
    found = [int(number) for number in re.findall(r"\d+", text)]
    return (found[0], found[1], found[2]) if len(found) == 3 else None
