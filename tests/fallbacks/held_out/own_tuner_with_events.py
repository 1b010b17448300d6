import itertools
import statistics
import time
from collections import defaultdict

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def swiglu_rows(x, y, stride_x, F, BLOCK: tl.constexpr, EVICT: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for c0 in range(tl.program_id(1) * BLOCK, F, tl.num_programs(1) * BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        g = tl.load(x + row * stride_x + c, mask=c < F, other=0.0, eviction_policy=EVICT).to(tl.float32)
        u = tl.load(x + row * stride_x + F + c, mask=c < F, other=0.0, eviction_policy=EVICT).to(tl.float32)
        tl.store(y + row * F + c, (g * tl.sigmoid(g) * u).to(y.dtype.element_ty), mask=c < F)


class Tuner:
    """Times every candidate a few times when a shape is new, and remembers the fastest."""

    BLOCKS = (256, 512, 1024, 2048)
    WARPS = (2, 4, 8)
    POLICIES = ("", "evict_first")

    def __init__(self, repeats=5):
        self.repeats = repeats
        self.best = {}
        self.history = defaultdict(list)

    def candidates(self, features):
        for block, warps, policy in itertools.product(self.BLOCKS, self.WARPS, self.POLICIES):
            if block > 2 * triton.next_power_of_2(features) or block < 32 * warps:
                continue
            yield block, warps, policy

    def launch(self, choice, x, y):
        block, warps, policy = choice
        rows, features = y.shape
        columns = min(triton.cdiv(features, block), 64)
        swiglu_rows[(rows, columns)](x, y, x.stride(0), features, BLOCK=block, EVICT=policy, num_warps=warps)

    def _measure(self, choice, x, y):
        if not x.is_cuda:
            begin = time.perf_counter()
            self.launch(choice, x, y)
            return time.perf_counter() - begin
        self.launch(choice, x, y)
        times = []
        for _ in range(self.repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.launch(choice, x, y)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        self.history[choice].extend(times)
        return statistics.median(times)

    def pick(self, x, y):
        key = (min(x.shape[0], 4096).bit_length(), x.shape[1], x.dtype, x.device.type)
        if key not in self.best:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return 1024, 4, ""
            timings = {c: self._measure(c, x, y) for c in self.candidates(y.shape[1])}
            self.best[key] = min(timings, key=timings.__getitem__)
        return self.best[key]

    def report(self):
        return {c: sum(t) / max(len(t), 1) for c, t in self.history.items()}


TUNER = Tuner()


class Model(nn.Module):
    def forward(self, x):
        if x.stride(-1) != 1:
            x = x.contiguous()
        rows, last = x.size()
        half, odd = divmod(last, 2)
        if odd:
            raise ValueError(f"an even width is needed, not {last}")
        y = x.new_empty((rows, half))
        if rows and half:
            TUNER.launch(TUNER.pick(x, y), x, y)
        return y
