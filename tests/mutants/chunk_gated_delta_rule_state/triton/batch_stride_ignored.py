"""gate: layouts
Takes the sequences of k, w, u and g for packed.
"""

import torch
import triton
import triton.language as tl
from torch import nn

CHUNK = 64


@triton.jit
def _states(
    h,
    v_new,
    state,
    k,
    w,
    u,
    g,
    indices,
    T,
    G,
    H,
    K,
    V,
    k_stride,
    w_stride,
    u_stride,
    g_stride,
    state_stride,
    index_stride,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    sequence = (tl.program_id(0) // H).to(tl.int64)
    head = tl.program_id(0) % H
    row = tl.arange(0, BLOCK_K)
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k, in_v = row < K, column < V
    inside = in_k[:, None] & in_v[None, :]
    where = tl.load(indices + sequence * index_stride).to(tl.int64)
    corner = (head * K + row)[:, None] * V + column[None, :]
    place = state + where * state_stride + corner
    S = tl.load(place, inside, other=0.0)
    k += sequence * k_stride + (head // (H // G)) * K
    w += sequence * w_stride + head * K
    u += sequence * u_stride + head * V
    g += sequence * g_stride + head
    h += sequence * tl.cdiv(T, CHUNK) * H * K * V + corner
    v_new += sequence * T * H * V + head * V
    for start in tl.range(0, T, CHUNK):
        token = (start + tl.arange(0, CHUNK)).to(tl.int64)
        here = token < T
        fed = S.to(tl.bfloat16)
        tl.store(h, fed, inside)
        weight = tl.load(
            w + token[:, None] * (H * K) + row[None, :], here[:, None] & in_k[None, :], other=0.0
        )
        values = token[:, None] * (H * V) + column[None, :]
        written = here[:, None] & in_v[None, :]
        fresh = tl.load(u + values, written, other=0.0).to(tl.float32)
        value = fresh - tl.dot(weight, fed)
        tl.store(v_new + values, value.to(tl.bfloat16), written)
        last = tl.load(g + tl.cast(tl.minimum(start + CHUNK, T) - 1, tl.int64) * H)
        gap = last - tl.load(g + token * H, here, other=0.0)
        # By selection and not by a product: what is left out may be infinite.
        counts = (here & (gap <= 0))[:, None]
        scaled = tl.where(counts, value * tl.exp(gap)[:, None], 0.0).to(tl.bfloat16)
        key = tl.load(k + token[None, :] * (G * K) + row[:, None], here[None, :] & in_k[:, None], other=0.0)
        S = tl.dot(key, scaled, S * tl.exp(last))
        S = tl.where(inside, S, 0.0)
        h += H * K * V
    tl.store(place, S, inside)


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if all axes but the first are packed, else a copy."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A packed tensor whose sequences begin at multiples of 16 bytes: where w's do not, ptxas 12.8 errs."""
    if len(tensor) == 1:  # whatever its stride is, as there is no second one
        tensor = tensor[0][None]
    apart = tensor.stride(0) * tensor.element_size()
    return _packed(tensor) if (apart | tensor.data_ptr()) % 16 == 0 else tensor.clone().contiguous()


class Model(nn.Module):
    def __init__(self, chunk_size: int = CHUNK) -> None:
        super().__init__()
        if chunk_size != CHUNK:
            raise NotImplementedError(f"chunks of {CHUNK} only")

    def forward(
        self,
        k: torch.Tensor,
        w: torch.Tensor,
        u: torch.Tensor,
        g: torch.Tensor,
        initial_state: torch.Tensor,
        initial_state_indices: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        k, w, u, g = _packed(k), _packed(w), _packed(u), _packed(g)
        (B, T, H, V), (G, K) = u.shape, k.shape[2:]
        h = torch.empty((B, triton.cdiv(T, CHUNK), H, K, V), dtype=k.dtype, device=k.device)
        v_new = torch.empty((B, T, H, V), dtype=u.dtype, device=u.device)
        state = _packed(initial_state)  # updated in place unless its states are scattered or shared
        if state.stride(0) < H * K * V and state.shape[0] > 1:
            state = state.contiguous()
        if T > 0:
            block_k = max(16, triton.next_power_of_2(K))
            block_v = min(32, max(16, triton.next_power_of_2(V)))
            strides = (
                T * G * K,
                T * H * K,
                T * H * V,
                T * H,
                state.stride(0),
                initial_state_indices.stride(0),
            )
            _states[(B * H, triton.cdiv(V, block_v))](
                *(h, v_new, state, k, w, u, g, initial_state_indices, T, G, H, K, V),
                *(*strides, CHUNK, block_k, block_v),
                num_warps=4 if block_k <= 128 else 8,
                num_stages=2,
            )
        return {"h": h, "v_new": v_new, "final_state": state}
