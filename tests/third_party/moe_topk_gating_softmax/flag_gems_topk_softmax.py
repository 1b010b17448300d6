"""Not renormalised; without groups of experts."""

import os

import torch
import triton  # noqa: F401
from torch import Tensor, nn

os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else it runs nvidia-smi, which the sandbox does not let it

from flag_gems.fused.topk_softmax import topk_gating_softmax_kernel, topk_softmax

KERNELS = (topk_gating_softmax_kernel,)
MOST = {"num_experts": 1024}  # one tile
INIT = {"num_expert_groups": [0]}
WHERE = "top_k <= 32"


class Model(nn.Module):
    def __init__(self, top_k: int, num_expert_groups: int = 0, topk_group: int = 0) -> None:
        super().__init__()
        if num_expert_groups:
            raise NotImplementedError("no groups of experts")
        self.top_k = top_k

    def forward(self, gating_output: Tensor) -> dict[str, Tensor]:
        if gating_output.shape[1] > MOST["num_experts"]:
            raise NotImplementedError("it looks at the first 1024 experts only")
        gating_output = gating_output.contiguous()
        extent = (gating_output.shape[0], self.top_k)
        weights = gating_output.new_empty(extent)
        ids, rows = (gating_output.new_empty(extent, dtype=torch.int32) for _ in range(2))
        topk_softmax(weights, ids, rows, gating_output, renormalize=False)
        return {"topk_weights": weights, "topk_ids": ids}
