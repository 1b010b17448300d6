from torch.nn import Module


class Model(Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        wide = x.float()
        centred = wide.sub(wide.mean(dim=-1, keepdim=True))
        scale = centred.square().mean(dim=-1, keepdim=True).add(self.eps).rsqrt()
        return centred.mul(scale).mul(weight.float()).add(bias.float()).to(x.dtype)
