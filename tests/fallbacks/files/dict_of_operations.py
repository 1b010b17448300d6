import torch
from torch import nn

STEPS = {
    "sum": torch.add,
    "square": torch.square,
    "mean": lambda t: torch.mean(t, -1, True),
    "root": torch.rsqrt,
    "times": torch.mul,
}


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        total = STEPS["sum"](x, residual)
        wide = total.float()
        root = STEPS["root"](STEPS["sum"](STEPS["mean"](STEPS["square"](wide)), self.eps))
        out = STEPS["times"](STEPS["times"](wide, root), weight.float())
        return {"out": out.to(x.dtype), "residual": total}
