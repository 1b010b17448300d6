import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def scan_state(
    k, w, u, g, pool, index, h, v_new, T, HK, HV, K, V, chunks,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):
    vb = tl.program_id(0)
    b = (tl.program_id(1) // HV).to(tl.int64)
    hv = tl.program_id(1) % HV
    hk = hv // (HV // HK)
    dk = tl.arange(0, BK)
    dv = vb * BV + tl.arange(0, BV)
    oks = (dk[:, None] < K) & (dv[None, :] < V)
    slot = tl.load(index + b).to(tl.int64)
    sp = pool + ((slot * HV + hv) * K + dk[:, None]) * V + dv[None, :]
    S = tl.load(sp, mask=oks, other=0.0)
    for c in range(chunks):
        narrow = S.to(tl.bfloat16)
        tl.store(h + (((b * chunks + c) * HV + hv) * K + dk[:, None]) * V + dv[None, :], narrow, mask=oks)
        t = c * C + tl.arange(0, C)
        okt = t < T
        row = (b * T + t) * HV + hv
        wt = tl.load(w + row[:, None] * K + dk[None, :], mask=okt[:, None] & (dk[None, :] < K), other=0.0)
        okv = okt[:, None] & (dv[None, :] < V)
        ut = tl.load(u + row[:, None] * V + dv[None, :], mask=okv, other=0.0).to(tl.float32)
        vt = ut - tl.dot(wt, narrow)
        tl.store(v_new + row[:, None] * V + dv[None, :], vt.to(tl.bfloat16), mask=okv)
        last = tl.minimum((c + 1) * C, T) - 1
        g_last = tl.load(g + (b * T + last) * HV + hv)
        gt = tl.load(g + row, mask=okt, other=0.0)
        vt = tl.where(okt[:, None], vt * tl.exp(tl.where(okt, g_last - gt, 0.0))[:, None], 0.0)
        kt = tl.load(
            k + ((b * T + t[None, :]) * HK + hk) * K + dk[:, None], mask=okt[None, :] & (dk[:, None] < K), other=0.0
        )
        S = S * tl.exp(g_last) + tl.dot(kt, vt.to(tl.bfloat16))
    tl.store(sp, S, mask=oks)


class Model(nn.Module):
    def __init__(self, chunk_size=64):
        super().__init__()
        self.chunk_size = chunk_size

    def forward(self, k, w, u, g, initial_state, initial_state_indices):
        B, T, HK, K = k.shape
        HV, V = u.shape[2], u.shape[3]
        chunks = (T + self.chunk_size - 1) // self.chunk_size
        k, w, u, g = (t.contiguous() for t in (k, w, u, g))
        pool = torch.empty_like(initial_state, memory_format=torch.contiguous_format).copy_(initial_state)
        h = k.new_empty((B, chunks, HV, K, V))
        v_new = torch.empty_like(u)
        for block in (64, 32, 16):
            if V % block == 0 and B * HV * (V // block) >= 64:
                break
        else:
            block = 16
        if T:
            scan_state[(triton.cdiv(V, block), B * HV)](
                k, w, u, g, pool, initial_state_indices, h, v_new, T, HK, HV, K, V, chunks,
                C=self.chunk_size, BK=max(16, triton.next_power_of_2(K)), BV=block, num_warps=4,
            )
        return {"h": h, "v_new": v_new, "final_state": pool}
