import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """Prefix sums along dim 1, and the totals of 16 buckets."""

    def __init__(self, buckets: int = 16):
        super().__init__()
        self.buckets = buckets

    def forward(self, x):
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            prefix = torch.cumsum(x, dim=1)
            which = torch.arange(x.shape[1], device=x.device).remainder(self.buckets).expand(x.shape[0], -1)
            totals = torch.zeros(x.shape[0], self.buckets, device=x.device)
            totals.scatter_add_(1, which, x)
        return torch.cat([prefix, totals], dim=1)


def get_inputs():
    return [torch.randn(8, 1000)]


def get_init_inputs():
    return [16]
