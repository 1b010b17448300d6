import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    [triton.Config({"BM": 64, "BN": 64, "BK": 32}, num_warps=4), triton.Config({"BM": 32, "BN": 64, "BK": 64}, num_warps=4)],
    key=["M", "N", "K"],
)
@triton.jit
def linear_gelu(x, w, b, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        rk = k0 + tl.arange(0, BK)
        a = tl.load(x + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        c = tl.load(w + rn[None, :] * K + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < K), other=0.0)
        acc += tl.dot(a, c, input_precision="ieee")
    acc += tl.load(b + rn, mask=rn < N, other=0.0)[None, :]
    acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.7071067811865476))
    tl.store(y + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def layer_norm_rows(x, g, b, N, eps, BLOCK: tl.constexpr):
    p = x + tl.program_id(0) * N
    c = tl.arange(0, BLOCK)
    v = tl.load(p + c, mask=c < N, other=0.0)
    d = tl.where(c < N, v - tl.sum(v, 0) / N, 0.0)
    d = d / tl.sqrt(tl.sum(d * d, 0) / N + eps)
    tl.store(p + c, d * tl.load(g + c, mask=c < N, other=0.0) + tl.load(b + c, mask=c < N, other=0.0), mask=c < N)


class ModelNew(nn.Module):
    """Linear, GELU, LayerNorm. The nn modules own the parameters so that state dicts fit; they are never called."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.LayerNorm(out_features)

    def forward(self, x):
        x = x.contiguous()
        weight, bias = self.linear.weight, self.linear.bias
        M, K = x.shape
        N = self.linear.out_features
        y = torch.empty((M, N), device=x.device, dtype=x.dtype)
        linear_gelu[lambda meta: (triton.cdiv(M, meta["BM"]), triton.cdiv(N, meta["BN"]))](x, weight, bias, y, M, N, K)
        layer_norm_rows[(M,)](y, self.norm.weight, self.norm.bias, N, self.norm.eps, BLOCK=triton.next_power_of_2(N))
        return y


def get_inputs():
    return [torch.rand(128, 512)]


def get_init_inputs():
    return [512, 256]
