"""Pages of one row, whose table is made on the host."""

import os

import torch
import triton  # noqa: F401
from torch import Tensor, nn

os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else it runs nvidia-smi, which the sandbox does not let it

from flag_gems.fused.flash_mla import flash_mla, flash_mla_attn_kernel

KERNELS = (flash_mla_attn_kernel,)
# Its tiles are as wide as the rank and as the rest of a row: powers of two, of at least 16.
WHERE = (
    "kv_lora_rank & (kv_lora_rank - 1) == 0 and qk_rope_head_dim & (qk_rope_head_dim - 1) == 0"
    " and kv_lora_rank >= 16 and qk_rope_head_dim >= 16"
)


class Model(nn.Module):
    def __init__(self, nhead: int, kv_lora_rank: int, qk_rope_head_dim: int) -> None:
        super().__init__()
        self.heads, self.rank, self.size = nhead, kv_lora_rank, kv_lora_rank + qk_rope_head_dim

    def forward(self, q: Tensor, kv_cache: Tensor, seq_lens: Tensor) -> Tensor:
        lens, start, rows = seq_lens.tolist(), 0, []
        longest = max(lens)
        for length in lens:
            rows.append(list(range(start, start + length)) + [0] * (longest - length))
            start += length
        table = torch.tensor(rows, dtype=torch.int32).to(q.device)
        queries, pages = q.contiguous()[:, None], kv_cache.contiguous()
        extents = (len(lens), 1, seq_lens, self.heads, 1, self.size, self.rank)
        return flash_mla(queries, table, pages, longest, 1, *extents, True)[:, 0]
