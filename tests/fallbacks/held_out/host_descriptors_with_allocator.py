import torch
import triton
import triton.language as tl
from torch import nn
from triton.tools.tensor_descriptor import TensorDescriptor


def _alloc(size: int, alignment: int, stream):
    return torch.empty(size, device="cuda", dtype=torch.int8)


def _pre_hook(nargs):
    bm, bn, bk = nargs["BM"], nargs["BN"], nargs["BK"]
    nargs["x_desc"].block_shape = [bm, bk]
    nargs["w_desc"].block_shape = [bn, bk]


CONFIGS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_stages=s, num_warps=w, pre_hook=_pre_hook)
    for bm, bn, bk, s, w in [(64, 64, 64, 3, 4), (128, 128, 64, 3, 8), (128, 64, 64, 4, 4)]
]


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def _gated_linear_tma(
    x_desc, w_desc, bias, mul, out, M, N, K, stride_mul,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        x = x_desc.load([pm * BM, k0])
        w = w_desc.load([pn * BN, k0])
        acc = tl.dot(x, w.T, acc)
    rm = (pm * BM + tl.arange(0, BM)).to(tl.int64)
    rn = pn * BN + tl.arange(0, BN)
    ok = (rm[:, None] < M) & (rn[None, :] < N)
    acc += tl.load(bias + rn, mask=rn < N, other=0.0).to(tl.float32)[None, :]
    gate = tl.sigmoid(acc.to(tl.bfloat16).to(tl.float32))
    factor = tl.load(mul + rm[:, None] * stride_mul + rn[None, :], mask=ok, other=0.0).to(tl.float32)
    tl.store(out + rm[:, None] * N + rn[None, :], (gate * factor).to(tl.bfloat16), mask=ok)


def _describable(t: torch.Tensor) -> torch.Tensor:
    """TMA wants 16-byte rows: pad the width with zeros where it is odd, else take the tensor as it is."""
    rows, cols = t.shape
    if t.stride(1) == 1 and t.stride(0) % 8 == 0 and t.data_ptr() % 16 == 0:
        return t
    padded = t.new_zeros((rows, -(-cols // 8) * 8))
    padded[:, :cols].copy_(t)
    return padded.narrow(1, 0, cols)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        triton.set_allocator(_alloc)

    def forward(self, hidden_states, weight, bias, post_mul_mat):
        M, K = hidden_states.shape
        N = weight.shape[0]
        out = torch.empty(M, N, dtype=hidden_states.dtype, device=hidden_states.device)
        if M * N == 0:
            return out
        x, w = _describable(hidden_states), _describable(weight)
        dummy = [1, 16]
        x_desc = TensorDescriptor.from_tensor(x, dummy)
        w_desc = TensorDescriptor(w, list(w.shape), list(w.stride()), dummy)
        mul = post_mul_mat if post_mul_mat.stride(1) == 1 else post_mul_mat.contiguous()

        def grid(meta):
            return triton.cdiv(M, meta["BM"]), triton.cdiv(N, meta["BN"])

        _gated_linear_tma[grid](x_desc, w_desc, bias.contiguous(), mul, out, M, N, K, mul.stride(0))
        return out
