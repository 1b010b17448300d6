import torch
from torch import Tensor, nn


@torch.jit.script
def conv(x: Tensor, weight: Tensor, bias: Tensor, state: Tensor, silu: bool) -> Tensor:
    dim = x.size(0)
    padded = torch.cat([state[0], x], dim=1).float()
    y = torch.conv1d(padded.unsqueeze(0), weight.float().unsqueeze(1), bias.float(), groups=dim)[0]
    y = y.to(x.dtype)
    if silu:
        y = torch.nn.functional.silu(y.float()).to(x.dtype)
    return y


class Model(nn.Module):
    def __init__(self, activation: str = "silu"):
        super().__init__()
        self.silu = activation == "silu"

    def forward(self, x, weight, bias, initial_state):
        return conv(x, weight, bias, initial_state, self.silu)
