import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.graphs = {}

    def _compute(self, x):
        half = x.shape[-1] // 2
        return F.silu(x[..., :half]) * x[..., half:]

    def _record(self, x):
        static = x.clone()
        self._compute(static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = self._compute(static)
        return graph, static, result

    def forward(self, x):
        if x.numel() == 0 or x.shape[-1] == 1:
            raise NotImplementedError
        key = tuple(x.shape)
        if key not in self.graphs:
            self.graphs[key] = self._record(x)
        graph, static, result = self.graphs[key]
        static.copy_(x)
        graph.replay()
        return result.clone()
