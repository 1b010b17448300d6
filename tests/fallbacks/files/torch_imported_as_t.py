import torch as t
import triton as T
import triton.language as L
from torch.nn import Module as M
from triton import jit


@jit
def f(o, x, n, e, B: L.constexpr):
    r = L.program_id(0).to(L.int64)
    c = L.arange(0, B)
    v = L.load(x + r * n + c, c < n, other=0.0).to(L.float32)
    L.store(o + r * n + c, (v * L.rsqrt(L.sum(v * v, 0) + e)).to(L.bfloat16), c < n)


class Model(M):
    def __init__(s, hidden_size, eps=1e-6):
        super().__init__()
        s.e = eps

    def forward(s, x):
        x = x.contiguous()
        o = t.empty_like(x)
        m, n = x.shape
        m and f[(m,)](o, x, n, s.e, B=T.next_power_of_2(n))
        return o
