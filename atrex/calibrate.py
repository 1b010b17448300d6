"""Measure what this machine reaches: bandwidth, matrix rates, and what a call costs before it does any work.

    calibrate("cuda", quick=False)      # under 20 s on an H200
    calibrate("cpu", quick=False)       # under 15 s on two cores

Every figure is the best of its repetitions: other work on the machine only ever adds time, and a bound that
a lucky kernel can beat is no bound. The record is stored where `load_calibration` finds it.

A machine busy with other work gives peaks that are too low (half, for two busy cores of two): let it rest,
and give the calibration a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from itertools import chain

import torch

from atrex.dsl import cpp
from atrex.errors import EnvironmentProblem
from atrex.provenance import provenance
from atrex.records import Device
from atrex.roofline import DTYPES, Calibration, cpu_name, detect, load_calibration, store_calibration

__all__ = ["Calibration", "Samples", "calibrate", "load_calibration", "measure_cpu"]

Timer = Callable[[], float]  # runs something once and says how many seconds it took


@dataclass(frozen=True, slots=True)
class Samples:
    """Timings in seconds by figure ("copy", "read", "launch_floor", "empty_launch", or a dtype)."""

    times: dict[str, list[float]]
    copied_bytes: int  # by one "copy": read and written
    read_bytes: int  # by one "read"
    flops: int  # of one matrix product
    absent: dict[str, str]  # dtypes without a timing, and why


def calibrate(device: Device, quick: bool) -> Calibration:
    """Measure this machine and store the record; `quick` repeats less.

    Raises EnvironmentProblem without a GPU, Triton or a C++ compiler, and UsageError for a GPU without a
    hardware file.
    """
    started = time.perf_counter()
    hardware = detect("cuda").name if device == "cuda" else cpu_name()
    samples = _measure_gpu(quick) if device == "cuda" else measure_cpu(quick)
    best = {figure: min(times) for figure, times in samples.times.items()}
    calibration = Calibration(
        provenance=provenance(hardware, device),
        date=datetime.now(UTC).replace(microsecond=0),
        command=f"atrex calibrate --device {device}" + (" --quick" if quick else ""),
        quick=quick,
        seconds=round(time.perf_counter() - started, 2),
        n={figure: len(times) for figure, times in samples.times.items()},
        copy_bytes_per_s=samples.copied_bytes / best["copy"],
        read_bytes_per_s=samples.read_bytes / best["read"],
        launch_floor_us=1e6 * best["launch_floor"],
        empty_launch_us=1e6 * best["empty_launch"],
        flops_per_s={dtype: samples.flops / best[dtype] for dtype in DTYPES if dtype in best},
        absent=samples.absent,
    )
    store_calibration(calibration)
    return calibration


def sample(timer: Timer, n: int, budget_s: float = 2.0) -> list[float]:
    """Up to `n` timings, at least one; no further one starts once they took `budget_s`.

    A first run is not counted: it pays for page faults, compilation, library set-up and a cold clock.
    """
    started = time.perf_counter()
    timer()
    times = [timer()]
    while len(times) < n and time.perf_counter() - started < budget_s:
        times.append(timer())
    return times


_CPU_SOURCE = r"""
#include <cstdint>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

struct alignas(64) Line { uint64_t words[8]; };

// A plain store first reads the line it overwrites; that read would be traffic nobody asked for.
static inline void stream(Line *target, const Line *source) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i *>(target), _mm512_load_si512(source));
#elif defined(__SSE2__)
    for (int i = 0; i < 4; ++i)
        _mm_stream_si128(reinterpret_cast<__m128i *>(target) + i,
                         _mm_load_si128(reinterpret_cast<const __m128i *>(source) + i));
#else
    *target = *source;
#endif
}

extern "C" void stream_copy(const Line *source, Line *target, int64_t lines, int32_t threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < lines; ++i) stream(target + i, source + i);
#if defined(__SSE2__)
        _mm_sfence();
#endif
    }
}

extern "C" void stream_read(const Line *source, uint64_t *out, int64_t lines, int32_t threads) {
    uint64_t total = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(^ : total)
    for (int64_t i = 0; i < lines; ++i)
        for (int word = 0; word < 8; ++word) total ^= source[i].words[word];
    *out = total;
}

extern "C" void touch(const uint16_t *source, uint16_t *target) { *target = *source; }

extern "C" void idle() {}
"""

_LINE = 64  # bytes
_CALLS = 4096  # in one timing of the launch floor


def measure_cpu(quick: bool) -> Samples:
    """Time this CPU with all torch threads. Raises EnvironmentProblem without a C++ compiler."""
    size = (256 if quick else 512) << 20  # bytes of a buffer: far more than a last-level cache
    rows = 1024 if quick else 2048  # of a matrix product
    times: dict[str, list[float]] = {}
    for _ in range(1 if quick else 3):  # rounds apart in time: a neighbour's burst spoils one of them
        for figure, timer in chain(_cpu_memory_timers(size), _cpu_matrix_timers(rows)):
            times.setdefault(figure, []).extend(sample(timer, 5 if quick else 12, budget_s=0.7))
    return Samples(times, copied_bytes=2 * size, read_bytes=size, flops=2 * rows**3, absent={})


def _cpu_memory_timers(size: int) -> Iterator[tuple[str, Timer]]:
    library = _library()
    source, target = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
    lines, threads = size // _LINE, torch.get_num_threads()

    def copy() -> None:
        library.stream_copy(source.data_ptr(), target.data_ptr(), lines, threads)

    def read() -> None:
        library.stream_read(source.data_ptr(), target.data_ptr(), lines, threads)

    yield "copy", partial(_timed, copy)
    yield "read", partial(_timed, read)
    yield "launch_floor", _cold_calls(library, source, target)
    yield "empty_launch", lambda: _timed(lambda: _repeat(library.idle)) / _CALLS


@cache
def _library() -> cpp.Library:
    functions: dict[str, list[type]] = {
        "stream_copy": [cpp.pointer, cpp.pointer, cpp.i64, cpp.i32],
        "stream_read": [cpp.pointer, cpp.pointer, cpp.i64, cpp.i32],
        "touch": [cpp.pointer, cpp.pointer],
        "idle": [],
    }
    return cpp.compile(_CPU_SOURCE, functions)


def _cold_calls(library: cpp.Library, source: torch.Tensor, target: torch.Tensor) -> Timer:
    """Times one call that moves one element; no two calls share a cache line, so all are cold."""
    stride = source.numel() // _CALLS
    lines = iter(range(0, stride, _LINE))

    def timer() -> float:
        line, touch = next(lines), library.touch
        read, write = source.data_ptr() + line, target.data_ptr() + line
        pointers = [(read + call * stride, write + call * stride) for call in range(_CALLS)]
        started = time.perf_counter()
        for read, write in pointers:
            touch(read, write)
        return (time.perf_counter() - started) / _CALLS

    return timer


def _cpu_matrix_timers(rows: int) -> Iterator[tuple[str, Timer]]:
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(rows, rows).to(dtype) for _ in range(2))
        yield name, partial(_timed, partial(torch.mm, a, b))


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _repeat(call: Callable[[], object]) -> None:
    for _ in range(_CALLS):
        call()


def _measure_gpu(quick: bool) -> Samples:
    try:
        from atrex import calibrate_gpu  # imports Triton, which a CPU-only installation lacks
    except ImportError as error:
        raise EnvironmentProblem(
            f"calibrating a GPU needs Triton ({error}): pip install 'atrex[triton]'"
        ) from None
    return calibrate_gpu.measure_gpu(quick)
