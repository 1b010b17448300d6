from torch import nn


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0):
        super().__init__()
        self.scale = routed_scaling_factor

    def forward(self, expert_outputs):
        total = sum(term.float() for term in expert_outputs.unbind(1))
        scaled = total * self.scale
        return scaled.to(expert_outputs.dtype)
