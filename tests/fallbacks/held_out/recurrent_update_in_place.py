import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _l2(x, ok):
    return x * (1.0 / tl.sqrt(tl.sum(tl.where(ok, x * x, 0.0), 0) + 1e-6))


@triton.jit
def delta_steps(
    A_log, a, dt_bias, q, k, v, beta, pool, index, o, scale, sp_beta, sp_limit, T, HQ, HV, K, V,
    L2: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):
    vb = tl.program_id(0)
    bh = tl.program_id(1)
    b = (bh // HV).to(tl.int64)
    h = bh % HV
    hq = h // (HV // HQ)
    dk = tl.arange(0, BK)
    dv = vb * BV + tl.arange(0, BV)
    okk = dk < K
    okv = dv < V
    slot = tl.load(index + b).to(tl.int64)
    sp = pool + ((slot * HV + h) * K + dk[:, None]) * V + dv[None, :]
    S = tl.load(sp, mask=okk[:, None] & okv[None, :], other=0.0)
    rate = -tl.exp(tl.load(A_log + h))
    bias = tl.load(dt_bias + h).to(tl.float32)
    for t in range(T):
        at = b * T + t
        u = (tl.load(a + at * HV + h).to(tl.float32) + bias) * sp_beta
        soft = tl.where(u > sp_limit, u, tl.log(1.0 + tl.exp(tl.minimum(u, sp_limit)))) / sp_beta
        x = tl.load(q + (at * HQ + hq) * K + dk, mask=okk, other=0.0).to(tl.float32)
        y = tl.load(k + (at * HQ + hq) * K + dk, mask=okk, other=0.0).to(tl.float32)
        if L2:
            x = _l2(x, okk)
            y = _l2(y, okk)
        S = S * tl.exp(rate * soft)
        w = tl.load(v + (at * HV + h) * V + dv, mask=okv, other=0.0).to(tl.float32)
        gate = tl.sigmoid(tl.load(beta + at * HV + h).to(tl.float32))
        w = (w - tl.sum(S * y[:, None], 0)) * gate
        S = S + y[:, None] * w[None, :]
        r = tl.sum(S * (x * scale)[:, None], 0)
        tl.store(o + (at * HV + h) * V + dv, r.to(tl.bfloat16), mask=okv)
    tl.store(sp, S, mask=okk[:, None] & okv[None, :])


class Model(nn.Module):
    def __init__(self, softplus_beta=1.0, softplus_threshold=20.0, scale=None, use_qk_l2norm=True):
        super().__init__()
        self.beta, self.threshold = softplus_beta, softplus_threshold
        self.scale, self.l2 = scale, use_qk_l2norm

    def forward(self, A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices):
        B, T, HQ, K = q.shape
        HV, V = v.shape[2:]
        state = initial_state.clone(memory_format=torch.contiguous_format)
        out = torch.empty((B, T, HV, V), dtype=v.dtype, device=v.device)
        A_log, a, dt_bias, q, k, v, b = [t.contiguous() for t in (A_log, a, dt_bias, q, k, v, b)]
        scale = self.scale if self.scale is not None else 1.0 / K**0.5
        block_v = min(32, triton.next_power_of_2(V))
        if B > 0:
            delta_steps[triton.cdiv(V, block_v), B * HV](
                A_log, a, dt_bias, q, k, v, b, state, initial_state_indices, out, scale, self.beta, self.threshold,
                T, HQ, HV, K, V, L2=self.l2, BK=triton.next_power_of_2(K), BV=block_v,
            )
        return {"out": out, "final_state": state}
