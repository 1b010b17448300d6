"""The GPU half of `calibrate`, apart because it imports Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from atrex.calibrate import Samples, Timer, sample
from atrex.roofline import DTYPES

_TILES = ((1024, 4), (8192, 8), (32768, 16))  # elements of a block and its warps: no one is best everywhere
_BYTES = 2 << 30  # of each of the two buffers: a copy moves 4 GiB
_LINKS = 1000  # launches in one graph
_STRIDE = 1024  # fp32 elements between the elements that two launches touch: a line of L2 each
_SIZE = 8192  # rows and columns of a matrix product


@triton.jit
def _idle():  # type: ignore[no-untyped-def]
    pass


@triton.jit
def _touch(source, target, offset):  # type: ignore[no-untyped-def]
    tl.store(target + offset, tl.load(source + offset))


@triton.jit
def _touch_overlapped(source, target, offset):  # type: ignore[no-untyped-def]
    gdc_wait()  # before any access of memory, so the order of the stream holds
    gdc_launch_dependents()
    tl.store(target + offset, tl.load(source + offset))


@triton.jit  # type: ignore[untyped-decorator]
def _copy(source, target, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at))


@triton.jit  # type: ignore[untyped-decorator]
def _read(source, target, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + tl.program_id(0), tl.sum(tl.load(source + at)))


def measure_gpu(quick: bool) -> Samples:
    """Time the current GPU; needs 5 GiB of its memory."""
    times: dict[str, list[float]] = {}
    absent: dict[str, str] = {}
    for _ in range(1 if quick else 5):  # rounds apart in time: clocks rise, and fall under power
        for figure, timer in chain(_memory_timers(), _launch_timers(), _matrix_timers()):
            try:
                times.setdefault(figure, []).extend(sample(timer, 5 if quick else 20))
            except RuntimeError as error:
                if figure not in DTYPES:
                    raise
                absent[figure] = str(error).splitlines()[0]  # no such unit, or no such kernel
    times = {figure: each for figure, each in times.items() if each}
    return Samples(times, copied_bytes=2 * _BYTES, read_bytes=_BYTES, flops=2 * _SIZE**3, absent=absent)


def _memory_timers() -> Iterator[tuple[str, Timer]]:
    """Copying, by the driver and by us, and reading with one element written for each block."""
    source, target = (torch.ones(_BYTES // 4, device="cuda") for _ in range(2))
    yield "copy", _device(lambda: target.copy_(source))
    for block, warps in _TILES:
        grid = (source.numel() // block,)
        yield "copy", _device(partial(_copy[grid], source, target, BLOCK=block, num_warps=warps))
        yield "read", _device(partial(_read[grid], source, target, BLOCK=block, num_warps=warps))


def _launch_timers() -> Iterator[tuple[str, Timer]]:
    """One launch in a replayed chain of one-block kernels: moving one cold element each, or nothing.

    With programmatic dependent launch, where the GPU has it, a launch overlaps the end of the one before.
    Whatever computes outputs from inputs must start, fetch an element from memory and store one. The
    flush before each replay empties the L2, and no two launches of a chain share a line.

    On an H200 the first graphs of a process replay at 1.04 us a launch and all later ones at 1.37, for a
    cause that we have not found. The floor is the lesser, so calibrate in a process of its own.
    """
    source, target = (torch.ones(_LINKS * _STRIDE, device="cuda") for _ in range(2))
    flushed = torch.empty(max(1 << 28, 4 * _l2_bytes()), dtype=torch.uint8, device="cuda")
    touching = _chain(lambda link: _touch[(1,)](source, target, link * _STRIDE, num_warps=1))
    idling = _chain(lambda _: _idle[(1,)](num_warps=1))
    # A graph holds addresses, not tensors: while a timer is in use, this generator keeps them alive.
    yield "launch_floor", _device(touching.replay, before=flushed.zero_, calls=_LINKS)
    if torch.cuda.get_device_capability() >= (9, 0):  # a kernel may start while the one before it ends
        overlapped = _chain(
            lambda link: _touch_overlapped[(1,)](source, target, link * _STRIDE, num_warps=1, launch_pdl=True)
        )
        yield "launch_floor", _device(overlapped.replay, before=flushed.zero_, calls=_LINKS)
    yield "empty_launch", _device(idling.replay, before=flushed.zero_, calls=_LINKS)


def _l2_bytes() -> int:
    return int(torch.cuda.get_device_properties(0).L2_cache_size)


def _chain(launch: Callable[[int], object]) -> torch.cuda.CUDAGraph:
    """A graph of `_LINKS` launches, each waiting for the one before it."""
    launch(0)  # compiles, which a capture must not
    launch(1)  # Triton compiles again for another divisibility of the offset
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for link in range(_LINKS):
            launch(link)
    return graph


def _matrix_timers() -> Iterator[tuple[str, Timer]]:
    """Square products of random data (zeros would draw less power and clock higher)."""
    a, b = (torch.randn(_SIZE, _SIZE, device="cuda") for _ in range(2))
    for name, precision in (("fp32", "highest"), ("tf32", "high")):
        yield name, _device(partial(_product, a, b, precision))
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        yield name, _device(partial(torch.mm, a.to(dtype), b.to(dtype)))
    x, y, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), torch.ones((), device="cuda")
    product = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)
    yield "fp8", _device(partial(product, x, y.t(), one, one))


def _product(a: torch.Tensor, b: torch.Tensor, precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        torch.mm(a, b)
    finally:
        torch.set_float32_matmul_precision(before)


def _device(call: Callable[[], object], before: Callable[[], object] | None = None, calls: int = 1) -> Timer:
    """Times on the device what `call` issues, `calls` of them, after `before`, which is not counted."""

    def timer() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if before:
            before()
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls

    return timer
