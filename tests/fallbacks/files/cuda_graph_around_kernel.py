import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _sum(out, x, K, H, factor, BLOCK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for k in tl.range(K):
        total += tl.load(x + (t * K + k) * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(out + t * H + c, (total * factor).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0):
        super().__init__()
        self.factor = routed_scaling_factor
        self.graphs = {}

    def _launch(self, out, x):
        T, K, H = x.shape
        _sum[(T, triton.cdiv(H, 512))](out, x, K, H, self.factor, BLOCK=512)

    def _capture(self, shape, dtype, device):
        x = torch.zeros(shape, dtype=dtype, device=device)
        out = torch.empty((shape[0], shape[2]), dtype=dtype, device=device)
        self._launch(out, x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._launch(out, x)
        return graph, x, out

    def forward(self, expert_outputs):
        shape = tuple(expert_outputs.shape)
        if 0 in shape:
            return expert_outputs.new_empty((shape[0], shape[2]))
        key = (shape, expert_outputs.dtype)
        if key not in self.graphs:
            self.graphs[key] = self._capture(shape, expert_outputs.dtype, expert_outputs.device)
        graph, x, out = self.graphs[key]
        x.copy_(expert_outputs)
        graph.replay()
        return out.clone()
