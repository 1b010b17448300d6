import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def one_split(q, kv, lens, begin, mid, lse, scale, NH, R, W, splits, BN: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    s = tl.program_id(2)
    n_keys = tl.load(lens + b)
    base = tl.load(begin + b).to(tl.int64)
    per = tl.cdiv(n_keys, splits)
    hi = tl.minimum((s + 1) * per, n_keys)
    w = tl.arange(0, BW)
    r = tl.arange(0, BR)
    x = tl.load(q + (b * NH + h) * W + w, mask=w < W, other=0.0).to(tl.float32)
    m = -1.0e30
    z = 0.0
    acc = tl.zeros((BR,), tl.float32)
    for n0 in range(s * per, hi, BN):
        n = n0 + tl.arange(0, BN)
        row = (base + n[:, None]) * W
        k = tl.load(kv + row + w[None, :], mask=(n[:, None] < hi) & (w[None, :] < W), other=0.0).to(tl.float32)
        t = tl.where(n < hi, tl.sum(k * x[None, :], 1) * scale, -1.0e30)
        new = tl.maximum(m, tl.max(t, 0))
        p = tl.where(n < hi, tl.exp(t - new), 0.0)
        v = tl.load(kv + row + r[None, :], mask=(n[:, None] < hi) & (r[None, :] < R), other=0.0).to(tl.float32)
        z = z * tl.exp(m - new) + tl.sum(p, 0)
        acc = acc * tl.exp(m - new) + tl.sum(p[:, None] * v, 0)
        m = new
    at = (b * NH + h) * splits + s
    tl.store(lse + at, tl.where(z > 0, m + tl.log(z), -1.0e30))
    tl.store(mid + at * R + r, acc / tl.where(z > 0, z, 1.0), mask=r < R)


def merge(mid, lse):
    total = torch.logsumexp(lse, dim=-1, keepdim=True)
    share = (lse - total).exp()
    return torch.einsum("bhs,bhsr->bhr", share, mid)


class Model(nn.Module):
    def __init__(self, nhead, kv_lora_rank, qk_rope_head_dim):
        super().__init__()
        self.nhead, self.rank, self.width = nhead, kv_lora_rank, kv_lora_rank + qk_rope_head_dim

    def forward(self, q, kv_cache, seq_lens):
        B = q.shape[0]
        lengths = seq_lens.tolist()
        starts = [sum(lengths[:i]) for i in range(B)]
        begin = torch.tensor(starts, dtype=torch.int64, device=q.device)
        splits = 8
        mid = torch.empty((B, self.nhead, splits, self.rank), dtype=torch.float32, device=q.device)
        lse = torch.empty((B, self.nhead, splits), dtype=torch.float32, device=q.device)
        if B:
            one_split[(B, self.nhead, splits)](
                q.contiguous(), kv_cache.contiguous(), seq_lens, begin, mid, lse, self.width**-0.5, self.nhead, self.rank,
                self.width, splits, BN=16, BR=triton.next_power_of_2(self.rank), BW=triton.next_power_of_2(self.width),
            )
        return merge(mid, lse).to(q.dtype)
