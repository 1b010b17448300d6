import contextlib
from typing import NamedTuple, Optional

import torch
import triton
import triton.language as tl
from torch import nn


class Dims(NamedTuple):
    B: int
    T: int
    HQ: int
    HV: int
    K: int
    V: int

    @classmethod
    def of(cls, q: torch.Tensor, v: torch.Tensor) -> "Dims":
        B, T, HQ, K = q.shape
        HV, V = v.shape[-2:]
        if HV % HQ:
            raise ValueError(f"{HV} value heads over {HQ} query heads")
        return cls(B, T, HQ, HV, K, V)


@triton.jit
def chunk_out(
    q, k, v, h, g, o, scale, T, HQ, HV, K, V, chunks,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):
    c = tl.program_id(0)
    vb = tl.program_id(1)
    bh = tl.program_id(2)
    b = (bh // HV).to(tl.int64)
    hv = bh % HV
    hq = hv // (HV // HQ)
    t = c * C + tl.arange(0, C)
    okt = t < T
    n = vb * BV + tl.arange(0, BV)
    okn = n < V
    gates = tl.load(g + (b * T + t) * HV + hv, mask=okt, other=0.0)
    inter = tl.zeros((C, BV), tl.float32)
    att = tl.zeros((C, C), tl.float32)
    for k0 in range(0, K, BK):
        d = k0 + tl.arange(0, BK)
        at = ((b * T + t[:, None]) * HQ + hq) * K + d[None, :]
        ok = okt[:, None] & (d[None, :] < K)
        bq = tl.load(q + at, mask=ok, other=0.0)
        bk = tl.load(k + at, mask=ok, other=0.0)
        state = tl.load(
            h + (((b * chunks + c) * HV + hv) * K + d[:, None]) * V + n[None, :],
            mask=(d[:, None] < K) & okn[None, :], other=0.0,
        )
        inter = tl.dot(bq, state, inter)
        att = tl.dot(bq, tl.trans(bk), att)
    causal = (t[:, None] >= t[None, :]) & okt[None, :]
    decay = tl.exp(tl.where(causal, gates[:, None] - gates[None, :], 0.0))
    att = tl.where(causal, att * decay, 0.0).to(tl.bfloat16)
    at = ((b * T + t[:, None]) * HV + hv) * V + n[None, :]
    ok = okt[:, None] & okn[None, :]
    values = tl.load(v + at, mask=ok, other=0.0)
    total = inter * tl.exp(gates)[:, None] * scale + tl.dot(att, values) * scale
    tl.store(o + at, total.to(tl.bfloat16), mask=ok)


@contextlib.contextmanager
def on_device_of(t: torch.Tensor):
    with contextlib.ExitStack() as stack:
        if t.is_cuda:
            stack.enter_context(torch.cuda.device(t.device))
        stack.enter_context(torch.inference_mode(torch.is_inference(t)))
        yield


class Model(nn.Module):
    def __init__(self, chunk_size: int = 64, scale: Optional[float] = None):
        super().__init__()
        self.chunk_size = chunk_size
        self.scale = scale

    def forward(self, q, k, v, h, g):
        dims = Dims.of(q, v)
        chunks = -(-dims.T // self.chunk_size)
        if h.shape != torch.Size([dims.B, chunks, dims.HV, dims.K, dims.V]):
            raise ValueError(f"states of {tuple(h.shape)}")
        torch.broadcast_shapes(g.shape, v.shape[:-1])
        q, k, v, h, g = (t.contiguous() for t in (q, k, v, h, g))
        out = torch.empty_like(v)
        if 0 in out.shape:
            return out
        scale = dims.K**-0.5 if self.scale is None else self.scale
        bv = min(64, max(16, triton.next_power_of_2(dims.V)))
        with on_device_of(q):
            chunk_out[(chunks, triton.cdiv(dims.V, bv), dims.B * dims.HV)](
                q, k, v, h, g, out, scale, dims.T, dims.HQ, dims.HV, dims.K, dims.V, chunks,
                C=self.chunk_size, BK=min(64, max(16, triton.next_power_of_2(dims.K))), BV=bv,
            )
        return out
