"""gate: layouts
Looks at the last stride alone: heads or tokens that lie apart are read elsewhere.
"""

import torch
import triton
import triton.language as tl
from torch import nn

CHUNK = 64


@triton.jit
def _outputs(
    out,
    q,
    k,
    v,
    h,
    g,
    T,
    G,
    H,
    K,
    V,
    q_stride,
    k_stride,
    v_stride,
    h_stride,
    g_stride,
    scale,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    chunks = tl.cdiv(T, CHUNK)
    head = tl.program_id(0) % H
    chunk = (tl.program_id(0) // H % chunks).to(tl.int64)
    sequence = (tl.program_id(0) // H // chunks).to(tl.int64)
    group = head // (H // G)
    place = tl.arange(0, CHUNK)
    token = chunk * CHUNK + place
    here = token < T
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_v = column < V
    q += sequence * q_stride + group * K
    k += sequence * k_stride + group * K
    h += sequence * h_stride + (chunk * H + head) * K * V
    inter = tl.zeros([CHUNK, BLOCK_V], tl.float32)
    scores = tl.zeros([CHUNK, CHUNK], tl.float32)
    for start in tl.range(0, K, BLOCK_K):
        row = start + tl.arange(0, BLOCK_K)
        in_k = row < K
        query = tl.load(q + token[:, None] * (G * K) + row[None, :], here[:, None] & in_k[None, :], other=0.0)
        key = tl.load(k + token[None, :] * (G * K) + row[:, None], here[None, :] & in_k[:, None], other=0.0)
        state = tl.load(h + row[:, None] * V + column[None, :], in_k[:, None] & in_v[None, :], other=0.0)
        inter = tl.dot(query, state, inter)
        scores = tl.dot(query, key, scores)
    gate = tl.load(g + sequence * g_stride + token * H + head, here, other=0.0)
    gap = gate[:, None] - gate[None, :]
    # By selection: where the gates rise the exponential may be infinite.
    counts = (place[:, None] >= place[None, :]) & (gap <= 0)
    scores = tl.where(counts, scores * tl.exp(gap), 0.0).to(tl.bfloat16)
    values = token[:, None] * (H * V) + head * V + column[None, :]
    written = here[:, None] & in_v[None, :]
    value = tl.load(v + sequence * v_stride + values, written, other=0.0)
    result = tl.dot(scores, value, inter * tl.exp(gate)[:, None]) * scale
    tl.store(out + sequence * T * H * V + values, result.to(tl.bfloat16), written)


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if all axes but the first are packed, else a copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Model(nn.Module):
    def __init__(self, chunk_size: int = CHUNK, scale: float | None = None) -> None:
        super().__init__()
        if chunk_size != CHUNK:
            raise NotImplementedError(f"chunks of {CHUNK} only")
        self.scale = scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, h: torch.Tensor, g: torch.Tensor
    ) -> torch.Tensor:
        q, k, v, h, g = (_packed(tensor) for tensor in (q, k, v, h, g))
        (B, T, H, V), (G, K) = v.shape, q.shape[2:]
        out = torch.empty((B, T, H, V), dtype=v.dtype, device=v.device)
        if T > 0:
            block_k = min(64, max(16, triton.next_power_of_2(K)))
            block_v = min(128, max(16, triton.next_power_of_2(V)))
            scale = K**-0.5 if self.scale is None else self.scale
            strides = (tensor.stride(0) for tensor in (q, k, v, h, g))
            _outputs[(B * h.shape[1] * H, triton.cdiv(V, block_v))](
                *(out, q, k, v, h, g, T, G, H, K, V, *strides, scale, CHUNK, block_k, block_v),
                num_warps=4,
                num_stages=2,
            )
        return out
