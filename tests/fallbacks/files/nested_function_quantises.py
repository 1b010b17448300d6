import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, group_size: int = 128):
        super().__init__()
        self.group_size = group_size

    def forward(self, x):
        size = self.group_size

        def kernel(block):
            groups = block.float().unflatten(1, (-1, size))
            scale = (groups.abs().amax(-1) / 448.0).clamp_min(1e-10)
            codes = (groups / scale[..., None]).clamp(-448.0, 448.0)
            return codes.flatten(1).to(torch.float8_e4m3fn), scale

        quantized, scales = (
            kernel(x)
            if x.shape[0]
            else (x.to(torch.float8_e4m3fn), x.new_empty((0, x.shape[1] // size), dtype=torch.float32))
        )
        return {"quantized": quantized, "scales": scales}
