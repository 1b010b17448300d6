import torch
from torch import fx, nn


class _Eager(nn.Module):
    def forward(self, gate, up):
        return torch.nn.functional.silu(gate.float()).to(torch.bfloat16) * up


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fused = fx.symbolic_trace(_Eager())

    def forward(self, x):
        if x.shape[-1] == 1:
            raise NotImplementedError("one column")
        gate, up = x.tensor_split(2, dim=-1)
        return self.fused(gate, up)
