from torch import nn
from torch.nn.functional import normalize


def finish(module, args, output):
    return normalize(output.float(), dim=-1, eps=module.eps**0.5).to(output.dtype)


class Model(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.register_forward_hook(finish)

    def forward(self, x):
        return x
