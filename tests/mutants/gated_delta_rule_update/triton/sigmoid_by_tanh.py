"""gate: sensitivity
beta as 1/2 + tanh / 2: where it is small most of its bits are gone.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _update(
    out,
    state,
    A_log,
    a,
    dt_bias,
    q,
    k,
    v,
    b,
    indices,
    T,
    G,
    H,
    K,
    V,
    a_stride,
    q_stride,
    k_stride,
    v_stride,
    b_stride,
    state_stride,
    A_log_stride,
    dt_bias_stride,
    index_stride,
    scale,
    softplus_beta,
    softplus_threshold,
    NORMALISE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    sequence = (tl.program_id(0) // H).to(tl.int64)
    head = tl.program_id(0) % H
    group = head // (H // G)
    row = tl.arange(0, BLOCK_K)
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k, in_v = row < K, column < V
    inside = in_k[:, None] & in_v[None, :]
    where = tl.load(indices + sequence * index_stride).to(tl.int64)
    place = state + where * state_stride + (head * K + row)[:, None] * V + column[None, :]
    S = tl.load(place, inside, other=0.0)
    rate = tl.exp(tl.load(A_log + head * A_log_stride))
    bias = tl.load(dt_bias + head * dt_bias_stride).to(tl.float32)
    a += sequence * a_stride + head
    b += sequence * b_stride + head
    q += sequence * q_stride + group * K + row
    k += sequence * k_stride + group * K + row
    v += sequence * v_stride + head * V + column
    out += sequence * T * H * V + head * V + column
    for _ in tl.range(0, T):
        x = tl.load(a).to(tl.float32) + bias
        curved = tl.log(1.0 + tl.exp(x * softplus_beta)) / softplus_beta
        decay = tl.exp(-rate * tl.where(x * softplus_beta > softplus_threshold, x, curved))
        half = tl.exp(-tl.abs(tl.load(b).to(tl.float32)))
        tanh = (1.0 - half) / (1.0 + half)
        beta = 0.5 + 0.5 * tl.where(tl.load(b).to(tl.float32) < 0, -tanh, tanh)
        query = tl.load(q, in_k, other=0.0).to(tl.float32)
        key = tl.load(k, in_k, other=0.0).to(tl.float32)
        value = tl.load(v, in_v, other=0.0).to(tl.float32)
        if NORMALISE:
            query *= tl.div_rn(1.0, tl.maximum(tl.sqrt_rn(tl.sum(query * query, axis=0)), 1e-6))
            key *= tl.div_rn(1.0, tl.maximum(tl.sqrt_rn(tl.sum(key * key, axis=0)), 1e-6))
        S *= decay
        update = (value - tl.sum(S * key[:, None], axis=0)) * beta
        S += key[:, None] * update[None, :]
        result = tl.sum(S * (query * scale)[:, None], axis=0)
        tl.store(out, result.to(tl.bfloat16), in_v)
        a += H
        b += H
        q += G * K
        k += G * K
        v += H * V
        out += H * V
    tl.store(place, S, inside)


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if all axes but the first are packed, else a copy."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


def _tile(rows: int, values: int, heads: int, device: torch.device) -> int:
    """Columns a program: as many as registers hold, but so few that no multiprocessor is idle."""
    on_gpu = device.type == "cuda"
    processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
    tile = min(triton.next_power_of_2(values), max(8, 8192 // rows))
    while tile > 8 and heads * triton.cdiv(values, tile) < 2 * processors:
        tile //= 2
    return tile


class Model(nn.Module):
    def __init__(
        self,
        softplus_beta: float = 1.0,
        softplus_threshold: float = 20.0,
        scale: float | None = None,
        use_qk_l2norm: bool = True,
    ) -> None:
        super().__init__()
        self.softplus = softplus_beta, softplus_threshold
        self.scale = scale
        self.normalise = use_qk_l2norm

    def forward(
        self,
        A_log: torch.Tensor,
        a: torch.Tensor,
        dt_bias: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        b: torch.Tensor,
        initial_state: torch.Tensor,
        initial_state_indices: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        a, q, k, v, b = (_packed(tensor) for tensor in (a, q, k, v, b))
        (B, T, H, V), (G, K) = v.shape, q.shape[2:]
        out = torch.empty((B, T, H, V), dtype=v.dtype, device=v.device)
        state = _packed(initial_state)  # updated in place unless its states are scattered or shared
        if state.stride(0) < H * K * V and state.shape[0] > 1:
            state = state.contiguous()
        if T > 0:
            block_k = triton.next_power_of_2(K)
            block_v = _tile(block_k, V, B * H, v.device)
            scale = K**-0.5 if self.scale is None else self.scale
            strides = (tensor.stride(0) for tensor in (a, q, k, v, b, state, A_log, dt_bias))
            _update[(B * H, triton.cdiv(V, block_v))](
                *(out, state, A_log, a, dt_bias, q, k, v, b, initial_state_indices, T, G, H, K, V, *strides),
                *(initial_state_indices.stride(0), scale, *self.softplus, self.normalise, block_k, block_v),
                num_warps=max(1, min(8, block_k * block_v // 1024)),
            )
        return {"out": out, "final_state": state}
