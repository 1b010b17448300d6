import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0):
        super().__init__()
        self.factor = routed_scaling_factor

    def forward(self, expert_outputs):
        T, K, H = expert_outputs.shape
        out = torch.zeros((T, H), dtype=torch.float32, device=expert_outputs.device)
        token = torch.arange(T, device=expert_outputs.device).repeat_interleave(K)
        out.index_add_(0, token, expert_outputs.reshape(T * K, H).float())
        return out.mul_(self.factor).to(expert_outputs.dtype)
